"""What a filter is: the condition of the argument ``filters``, and how a manifest and the lake write it down.

The grammar is a part of SQL's::

    condition  = and { OR and }
    and        = not { AND not }
    not        = NOT not | test
    test       = ( condition ) | column | column IS [NOT] NULL
               | column operator constant | constant operator column
               | column [NOT] IN ( constant { , constant } )
    operator   = = | <> | != | < | <= | > | >=
    constant   = [ + | - ] number | 'text' | TRUE | FALSE

A date, a time or a uuid is a text. ``capture/filters/`` gives a condition the types of a table's
columns. Standard library only: a DAG file is parsed with it.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_CHARACTERS: Final = 10_000
#: Python's own stack is much deeper.
_MOST_PARENTHESES: Final = 50
_MOST_DIGITS: Final = 100

_KEYWORDS: Final = frozenset({"and", "or", "not", "is", "null", "in", "true", "false"})
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?![\w.]))
      | (?P<word>[^\W\d][\w$]*)
      | (?P<sign><>|!=|<=|>=|[=<>(),+-])
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_SWAPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_CONSTANT: Final = "a constant: a number, a text in single quotes, TRUE or FALSE"


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant. Its column decides what a text means."""

    value: str | Decimal | bool

    def __str__(self) -> str:
        if isinstance(self.value, bool):
            return "TRUE" if self.value else "FALSE"
        if isinstance(self.value, Decimal):
            return f"{self.value:f}"
        return "'" + self.value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``column operator constant``."""

    column: str
    #: ``=``, ``<>``, ``<``, ``<=``, ``>`` or ``>=``.
    operator: str
    constant: Constant

    def __str__(self) -> str:
        return f"{_quoted(self.column)} {self.operator} {self.constant}"


@dataclass(frozen=True, slots=True)
class Among:
    """``column IN (constant, ...)``."""

    column: str
    constants: tuple[Constant, ...]

    def __str__(self) -> str:
        return f"{_quoted(self.column)} IN ({', '.join(map(str, self.constants))})"


@dataclass(frozen=True, slots=True)
class IsNull:
    """``column IS NULL``."""

    column: str

    def __str__(self) -> str:
        return f"{_quoted(self.column)} IS NULL"


@dataclass(frozen=True, slots=True)
class IsTrue:
    """A boolean column alone."""

    column: str

    def __str__(self) -> str:
        return _quoted(self.column)


@dataclass(frozen=True, slots=True)
class Not:
    """``NOT condition``."""

    part: Condition

    def __str__(self) -> str:
        return f"NOT ({self.part})"


@dataclass(frozen=True, slots=True)
class AllOf:
    """``condition AND condition``."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        return " AND ".join(f"({each})" for each in self.parts)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """``condition OR condition``."""

    parts: tuple[Condition, ...]

    def __str__(self) -> str:
        return " OR ".join(f"({each})" for each in self.parts)


Condition = Comparison | Among | IsNull | IsTrue | Not | AllOf | AnyOf


def columns_of(condition: Condition) -> tuple[str, ...]:
    """The names of the columns of a condition, each once."""
    if isinstance(condition, Comparison | Among | IsNull | IsTrue):
        return (condition.column,)
    parts = (condition.part,) if isinstance(condition, Not) else condition.parts
    return tuple(dict.fromkeys(name for each in parts for name in columns_of(each)))


def with_names(condition: Condition, names: Mapping[str, str]) -> Condition:
    """The condition with other names of its columns.

    :param names: new names by name.
    """
    if isinstance(condition, Comparison | Among | IsNull | IsTrue):
        return replace(condition, column=names.get(condition.column, condition.column))
    if isinstance(condition, Not):
        return Not(with_names(condition.part, names))
    return replace(condition, parts=tuple(with_names(each, names) for each in condition.parts))


class ColumnOfSource(NamedTuple):
    """A column of a condition as it was when rows passed. Another type may make other rows pass."""

    #: ``pg_attribute.attnum``.
    number: int
    type_oid: int
    type_modifier: int


def recorded(condition: Condition, columns: Mapping[str, ColumnOfSource]) -> str:
    """The filter as manifests and the lake write it down.

    ``A>=10.0`` and ``a >= 10`` give one text. The order of the parts counts.

    :param columns: its columns by name.
    """
    named = [[name, *columns[name]] for name in sorted(columns_of(condition))]
    return json.dumps([str(condition), named], ensure_ascii=True)


def is_same_condition(one: str | None, other: str | None) -> bool:
    """Whether two filters that were written down have the same words, whatever their columns were then."""
    if one is None or other is None:
        return one is other
    return bool(json.loads(one)[0] == json.loads(other)[0])


def is_filter_of_now(
    written: str | None, condition: Condition | None, names: Mapping[int, str] | None
) -> bool:
    """Whether a filter that was written down may stand for the filter of now.

    It may have the column names of then, or those of now. If one of its columns was dropped, nobody can write
    that filter any more. Then any filter counts, also none.

    :param condition: the filter of now; None: there is none.
    :param names: the columns' names of now, by ``attnum``; None: not known, so only equal names are the same.
    """
    if written is None:
        return condition is None
    then, columns = read_recorded(written)
    if names is None:
        return str(condition) == str(then)
    if any(each.number not in names for each in columns.values()):
        return True
    now = with_names(then, {name: names[each.number] for name, each in columns.items()})
    return str(condition) in {str(then), str(now)}


def read_recorded(text: str) -> tuple[Condition, dict[str, ColumnOfSource]]:
    """The condition that was written down, and its columns by name.

    :raises ConfigurationError: another version of the package wrote it, or somebody changed it.
    """
    try:
        condition, columns = json.loads(text)
        found = {str(name): ColumnOfSource(*map(int, of_source)) for name, *of_source in columns}
        # What is written down may be longer and deeper than what the user wrote.
        return _Parser(str(condition), "the lake", math.inf).condition(), found
    except (ValueError, TypeError, ConfigurationError) as error:
        raise ConfigurationError(
            "The filter that the lake's table has in its properties cannot be read.",
            advice="copy the table again (copy_tables).",
        ) from error


def parse_filters(filters: Mapping[str, str]) -> dict[str, Condition]:
    """Read the argument ``filters``.

    :raises ConfigurationError: a name is no ``schema.table``, or a condition is none.
    """
    for name in filters:
        if "." not in name or not all(name.split(".")):
            raise ConfigurationError(
                f"filters has {name!r}, which is not the name of a table.",
                advice="spell it schema.table.",
            )
    return {name: parse_condition(text, f"filters[{name!r}]") for name, text in filters.items()}


def parse_condition(text: str, where: str) -> Condition:
    """Read one condition.

    :param where: what has it, for the error.
    :raises ConfigurationError: it says at which character.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ConfigurationError(
            f"The condition of {where} has more than {_MOST_CHARACTERS:,} characters."
        )
    return _Parser(text, where).condition()


@dataclass(frozen=True, slots=True)
class _Token:
    #: ``text``, ``column``, ``number``, ``sign``, ``end``, or a keyword in lower case.
    kind: str
    value: str
    position: int


class _Parser:
    def __init__(self, text: str, where: str, most_parentheses: float = _MOST_PARENTHESES) -> None:
        self._text, self._where, self._most_parentheses = text, where, most_parentheses
        self._tokens: Sequence[_Token] = tuple(self._tokenized())
        self._next = 0
        self._depth = 0

    def condition(self) -> Condition:
        found = self._any_of()
        if not self._is("end"):
            raise self._error("AND, OR or the end", self._token)
        return found

    def _tokenized(self) -> Iterator[_Token]:
        position, text = 0, self._text
        while True:
            found = _TOKEN.match(text, position)
            if found is None:
                start = position + len(text[position:]) - len(text[position:].lstrip())
                raise self._error("a column, a constant or an operator", _Token("", "", start))
            kind = str(found.lastgroup)
            value, start = found[kind], found.start(kind)
            if kind == "text":
                value = value[1:-1].replace("''", "'")
            elif kind == "quoted":
                kind, value = "column", value[1:-1].replace('""', '"')
            elif kind == "word":
                value = _folded(value)
                kind = value if value in _KEYWORDS else "column"
            yield _Token(kind, value, start)
            if kind == "end":
                return
            position = found.end()

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += 1
        return token

    def _is(self, kind: str, *values: str) -> bool:
        return self._token.kind == kind and (not values or self._token.value in values)

    def _took(self, kind: str, *values: str) -> bool:
        if not self._is(kind, *values):
            return False
        self._next += 1
        return True

    def _error(self, expected: str, token: _Token) -> ConfigurationError:
        return ConfigurationError(
            f"The condition of {self._where} is not understood at character {token.position + 1}. Expected is"
            f" {expected}.",
            advice="a condition compares columns with constants (=, <>, <, <=, >, >=, IN, IS NULL), joined by"
            " AND, OR, NOT and parentheses; see docs/how-to/filter_rows.md.",
        )

    def _any_of(self) -> Condition:
        parts = [self._all_of()]
        while self._took("or"):
            parts.append(self._all_of())
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _all_of(self) -> Condition:
        parts = [self._not()]
        while self._took("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _not(self) -> Condition:
        self._depth += 1
        if self._depth > self._most_parentheses:
            raise ConfigurationError(
                f"The condition of {self._where} is nested more than {_MOST_PARENTHESES} times."
            )
        found: Condition = Not(self._not()) if self._took("not") else self._test()
        self._depth -= 1
        return found

    def _test(self) -> Condition:
        if self._took("sign", "("):
            found = self._any_of()
            self._expect("sign", ")", "a closing parenthesis")
            return found
        if self._is("column"):
            return self._of_column(self._take().value)
        if not self._is_constant():
            raise self._error("a column", self._token)
        constant = self._constant()
        operator = self._operator()
        if not self._is("column"):
            raise self._error("a column", self._token)
        return Comparison(self._take().value, _SWAPPED[operator], constant)

    def _of_column(self, column: str) -> Condition:
        if self._took("is"):
            is_not = self._took("not")
            self._expect("null", "null", "NULL")
            return Not(IsNull(column)) if is_not else IsNull(column)
        if self._is("not") or self._is("in"):
            is_not = self._took("not")
            self._expect("in", "in", "IN")
            among = Among(column, self._constants())
            return Not(among) if is_not else among
        if self._is("sign", *_SWAPPED, "!="):
            return Comparison(column, self._operator(), self._constant())
        return IsTrue(column)

    def _constants(self) -> tuple[Constant, ...]:
        self._expect("sign", "(", "an opening parenthesis")
        found = [self._constant()]
        while self._took("sign", ","):
            found.append(self._constant())
        self._expect("sign", ")", "a comma or a closing parenthesis")
        return tuple(found)

    def _operator(self) -> str:
        if not self._is("sign", *_SWAPPED, "!="):
            raise self._error("an operator: =, <>, <, <=, > or >=", self._token)
        operator = self._take().value
        return "<>" if operator == "!=" else operator

    def _is_constant(self) -> bool:
        return self._token.kind in {"number", "text", "true", "false"} or self._is("sign", "-", "+")

    def _constant(self) -> Constant:
        if self._is("null"):
            raise self._error(f"{_CONSTANT}; NULL is found by IS NULL only", self._token)
        if not self._is_constant():
            raise self._error(_CONSTANT, self._token)
        token = self._take()
        if token.kind in {"true", "false"}:
            return Constant(token.kind == "true")
        if token.kind == "text":
            if "\0" in token.value:
                raise self._error("a text without the character NUL", token)
            return Constant(token.value)
        sign = 1
        if token.kind == "sign":
            sign = -1 if token.value == "-" else 1
            if not self._is("number"):
                raise self._error("a number", self._token)
            token = self._take()
        if len(token.value) > _MOST_DIGITS:
            raise self._error(f"a number of at most {_MOST_DIGITS} digits", token)
        return Constant(_plain(Decimal(token.value), sign))

    def _expect(self, kind: str, value: str, words: str) -> None:
        if not self._took(kind, value):
            raise self._error(words, self._token)


def _plain(number: Decimal, sign: int) -> Decimal:
    """A number without zeros at its end, so that equal numbers have equal texts."""
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    found = Decimal(text or "0")
    return found.copy_negate() if sign < 0 and found else found


def _folded(name: str) -> str:
    """A name as PostgreSQL folds it in a database of UTF-8: only the letters of ASCII change."""
    return "".join(each.lower() if each.isascii() else each for each in name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
