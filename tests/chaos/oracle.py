"""What the source holds and what the lake holds, read and compared by code that the pipeline does not share.

The source's values are the text that PostgreSQL prints under settings that are pinned here; the lake's are
what pyiceberg reads. Both become plain Python values by the source's type. The Iceberg type that a column
must have is written down here a second time.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import psycopg
from psycopg import sql

from tests.chaos.in_lake import Column, Kind, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.table import Table as LakeTable

_PINNED = (
    *("SET DateStyle = 'ISO'", "SET IntervalStyle = 'postgres'", "SET TimeZone = 'UTC'"),
    *("SET extra_float_digits = 1", "SET bytea_output = 'hex'", "SET lc_monetary = 'C'"),
    *("SET statement_timeout = 0", "SET quote_all_identifiers = off"),
)
_PUBLISHED = """
SELECT t.schemaname, t.tablename, c.oid::int, array_agg(t.attnames ORDER BY t.pubname) AS columns,
       array_agg(t.rowfilter ORDER BY t.pubname), array_agg(p.pubname ORDER BY t.pubname)
  FROM (SELECT pubname, schemaname, tablename, rowfilter,
               array_to_string(attnames, chr(1)) AS attnames FROM pg_publication_tables) t
  JOIN pg_publication p ON p.pubname = t.pubname
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = ANY (%s) GROUP BY 1, 2, 3 ORDER BY 1, 2
"""
_COLUMNS = """
SELECT a.attname, a.atttypid::int, a.atttypmod, a.attgenerated::text
  FROM pg_attribute a
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_TYPE = """
SELECT typname, typtype::text, typelem::int, typbasetype::int, typtypmod, typsubscript::text
  FROM pg_type WHERE oid = %s
"""
_SIMPLE = {
    "bool": "boolean",
    "int2": "int",
    "int4": "int",
    "int8": "long",
    "oid": "long",
    "float4": "float",
    "float8": "double",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "bytea": "binary",
}
Row = tuple[Any, ...]
METADATA = "_pgoutput_"


class Unfit(Exception):
    """The type in the lake does not have the value; the row has NULL in its place."""


#: Iceberg widens a type and never narrows it: a table that was made again with ``int`` stays ``long``.
_WIDER = {"int": ("long",), "float": ("double",)}


@dataclass
class SourceTable:
    """A published table and its rows."""

    schema: str
    name: str
    oid: int
    publications: tuple[str, ...]
    columns: list[Column]
    key: tuple[str, ...]
    rows: Counter[Row] = field(default_factory=Counter)

    @property
    def full_name(self) -> str:
        """Schema and table."""
        return f"{self.schema}.{self.name}"


@dataclass
class Difference:
    """What is not equal in a table."""

    table: SourceTable
    #: Names of the columns without which the rows would be equal; empty: it is not about some columns.
    columns: frozenset[str]
    text: str
    #: Whether rows differ. If not, columns are missing or have another type.
    about_rows: bool = False
    #: Rows are missing in the lake, and nothing else is wrong.
    only_lacks_rows: bool = False


class Source:
    """Reads the tables of the source."""

    def __init__(
        self, conninfo: str, choices: Mapping[str, str], way: Callable[[str], Way] = lambda _: Way()
    ) -> None:
        """Connect.

        :param choices: ``type_options`` of the pipeline.
        :param way: what happens to the rows of a table, by ``schema.table``.
        """
        self._way = way
        self._session = psycopg.connect(conninfo, autocommit=True, client_encoding="utf8")
        self._choices = choices
        for statement in _PINNED:
            self._session.execute(statement.encode())

    def close(self) -> None:
        """Disconnect."""
        self._session.close()

    def tables(self, publications: Sequence[str]) -> Iterator[SourceTable]:
        """Every table that the publications have now, with the rows that they publish."""
        found = self._session.execute(_PUBLISHED, (list(publications),)).fetchall()
        generated = self._published_generated(publications)
        for schema, name, oid, columns, filters, names in found:
            listed = set(columns[0].split("\x01")) if columns[0] else set()
            rows = self._session.execute(_COLUMNS, (oid,)).fetchall()
            way = self._way(f"{schema}.{name}")
            table = SourceTable(
                schema,
                name,
                oid,
                tuple(names),
                [
                    way.column(label, self._kind(type_oid, modifier))
                    for label, type_oid, modifier, made in rows
                    if label in listed
                    and (not made or (made == "s" and generated))
                    and way.masks.get(label) != "drop"
                ],
                tuple(way.names.get(each, each) for each in self._key(oid)),
            )
            conditions = [] if None in filters else [" OR ".join(filters)]
            conditions += [way.condition] if way.condition else []
            if table.columns:
                table.rows = self._rows(
                    table, way, " AND ".join(f"({each})" for each in conditions)
                )
                table.columns += [Column(each, Kind("text"), each) for each in way.constants]
            yield table

    def _published_generated(self, publications: Sequence[str]) -> bool:
        if self._session.info.server_version < 180000:
            return False
        (found,) = self._session.execute(
            "SELECT bool_or(pubgencols = 's') FROM pg_publication WHERE pubname = ANY (%s)",
            (list(publications),),
        ).fetchone() or (False,)
        return bool(found)

    def _key(self, oid: int) -> tuple[str, ...]:
        rows = self._session.execute(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid"
            " AND a.attnum = ANY (i.indkey) WHERE i.indrelid = %s AND i.indisprimary",
            (oid,),
        )
        return tuple(name for (name,) in rows.fetchall())

    def _rows(self, table: SourceTable, way: Way, condition: str) -> Counter[Row]:
        names = sql.SQL(", ").join(sql.Identifier(each.source_name) for each in table.columns)
        only = sql.SQL("ONLY " if self._is_plain(table.oid) else "")
        query = sql.SQL("SELECT {} FROM {}{}").format(
            names, only, sql.Identifier(table.schema, table.name)
        )
        if condition:
            query += sql.SQL(" WHERE ") + sql.SQL(condition)
        result = self._session.execute(query).pgresult
        assert result is not None
        constants = tuple(way.constants.values())
        return Counter(
            tuple(
                from_text(way.masked(result.get_value(row, place), column.mask), column.kind)
                for place, column in enumerate(table.columns)
            )
            + constants
            for row in range(result.ntuples)
        )

    def _is_plain(self, oid: int) -> bool:
        (kind,) = self._session.execute(
            "SELECT relkind::text FROM pg_class WHERE oid = %s", (oid,)
        ).fetchone() or ("r",)
        return bool(kind == "r")

    def _kind(self, oid: int, modifier: int) -> Kind:
        row = self._session.execute(_TYPE, (oid,)).fetchone()
        assert row is not None
        name, typtype, element, base, base_modifier, subscript = row
        if typtype == "d":
            return self._kind(base, base_modifier)
        if element and subscript == "array_subscript_handler":
            inner = self._kind(element, modifier)
            return Kind(name, inner, f"list<{inner.lake}>")
        if name == "numeric":
            return self._numeric(modifier)
        if name in self._choices:
            return Kind(name, lake=self._choices[name].replace("micros", "long"))
        return Kind(name, lake=_SIMPLE.get(name, "string"))

    def _numeric(self, modifier: int) -> Kind:
        if modifier >= 4:
            precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
            if precision <= 38 and scale <= precision:
                return Kind("numeric", lake=f"decimal({precision}, {scale})")
        chosen = self._choices.get("numeric")
        if chosen:
            return Kind("numeric", lake=chosen.replace(",", ", "))
        return Kind("numeric")


def from_text(value: bytes | None, kind: Kind) -> Any:
    """What a row of the lake has to hold in place of a text of PostgreSQL."""
    if value is None:
        return None
    try:
        return _parsed(value.decode(), kind)
    except Unfit:
        return None


def _parsed(text: str, kind: Kind) -> Any:
    if kind.element is not None:
        return tuple(
            None if each is None else _parsed(each, kind.element) for each in array_items(text)
        )
    parse = _PARSERS.get(kind.lake.partition("(")[0])
    if parse is None:
        return text
    return parse(text, kind.lake)


def array_items(text: str) -> list[str | None]:
    """The elements of an array of one dimension."""
    if text.startswith("["):
        raise Unfit
    found: list[str | None] = []
    place = 1
    while place < len(text) - 1:
        if text[place] == "{":
            raise Unfit
        if text[place] == '"':
            part = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S).match(text, place)
            assert part is not None
            found.append(re.sub(r"\\(.)", r"\1", part[1], flags=re.S))
            place = part.end()
        else:
            end = place
            while text[end] not in ",}":
                end += 2 if text[end] == "\\" else 1
            raw = text[place:end]
            found.append(None if raw == "NULL" else re.sub(r"\\(.)", r"\1", raw, flags=re.S))
            place = end
        place += 1  # A comma, or the end.
    return found


def _decimal(text: str, lake: str) -> str:
    scale = int(lake.rstrip(")").rpartition(",")[2])
    precision = int(lake.partition("(")[2].partition(",")[0])
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise Unfit from None
    if not value.is_finite():
        raise Unfit
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    if -exponent > scale or len(value.as_tuple().digits) + exponent > precision - scale:
        raise Unfit
    return _plain_decimal(value)


def _plain_decimal(value: Decimal) -> str:
    plain = value.normalize(Context(prec=80))
    return str(plain) if plain else "0"


def _date(text: str, _lake: str) -> str:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", text) or text.startswith("0000"):
        raise Unfit
    return text


def _moment(text: str, _lake: str) -> str:
    plain = text.removesuffix("+00")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?", plain) or plain.startswith(
        "0000"
    ):
        raise Unfit
    return datetime.fromisoformat(plain).isoformat()


def _interval(text: str, _lake: str) -> tuple[int, int, int]:
    """Months, days and microseconds of ``1 year 2 mons -3 days 04:05:06.7``."""
    if "infinity" in text:
        raise Unfit
    amounts = {unit: int(amount) for amount, unit in re.findall(r"([+-]?\d+) (year|mon|day)", text)}
    clock = re.search(r"([+-]?)(\d+):(\d+):([\d.]+)$", text)
    micros = 0
    if clock is not None:
        micros = (int(clock[2]) * 3600 + int(clock[3]) * 60) * 10**6
        micros += int(Decimal(clock[4]) * 10**6)
        micros *= -1 if clock[1] == "-" else 1
    return amounts.get("year", 0) * 12 + amounts.get("mon", 0), amounts.get("day", 0), micros


def _long(text: str, _lake: str) -> int:
    if ":" not in text:
        return int(text)
    hours, minutes, seconds = text.split(":")
    return (int(hours) * 3600 + int(minutes) * 60) * 10**6 + int(Decimal(seconds) * 10**6)


_PARSERS: dict[str, Any] = {
    "boolean": lambda text, _: text == "t",
    "int": lambda text, _: int(text),
    "long": _long,
    "float": lambda text, _: repr(float(np.float32(text))),
    "double": lambda text, _: repr(float(text)),
    "decimal": _decimal,
    "date": _date,
    "timestamp": _moment,
    "timestamptz": _moment,
    "binary": lambda text, _: text.removeprefix("\\x"),
    "uuid": lambda text, _: text,
    "struct": _interval,
}


def from_lake(value: Any) -> Any:  # noqa: PLR0911 - a line for each type
    """The same of what pyiceberg read."""
    if isinstance(value, list):
        return tuple(from_lake(each) for each in value)
    if isinstance(value, dict):
        return tuple(value.values())
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal):
        return _plain_decimal(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    return value


@dataclass
class LakeRows:
    """All rows of a table of the lake, by column."""

    types: dict[str, str]
    columns: dict[str, list[Any]]
    count: int

    def rows(self, names: Iterable[str]) -> Iterator[Row]:
        """The rows in some columns."""
        chosen = [self.columns.get(name, [None] * self.count) for name in names]
        return zip(*chosen, strict=True) if chosen else iter(())

    def only(self, texts: Mapping[str, str]) -> LakeRows:
        """The rows that have these texts in these columns."""
        kept = [
            place
            for place in range(self.count)
            if all(
                self.columns.get(name, [None] * self.count)[place] == text
                for name, text in texts.items()
            )
        ]
        columns = {name: [values[each] for each in kept] for name, values in self.columns.items()}
        return LakeRows(self.types, columns, len(kept))

    def current_rows(self, names: Iterable[str]) -> Iterator[Row]:
        """The rows that the source still has, without deletes that are only marked and former versions."""
        operations = self.columns.get("_pgoutput_op", [None] * self.count)
        currents = self.columns.get("_pgoutput_is_current", [True] * self.count)
        for row, operation, is_current in zip(self.rows(names), operations, currents, strict=True):
            if operation != "D" and is_current:
                yield row


def read_lake(table: LakeTable) -> LakeRows:
    """All rows of main."""
    schema = table.schema()
    types = {
        each.name: "struct" if each.field_type.is_struct else str(each.field_type)
        for each in schema.fields
    }
    return rows_of(table.scan().to_arrow(), types)


def rows_of(arrow: pa.Table, types: dict[str, str]) -> LakeRows:
    """All rows of an Arrow table.

    :param types: by column: the Iceberg type.
    """
    columns = {}
    for name in arrow.column_names:
        values = [from_lake(each) for each in arrow.column(name).to_pylist()]
        if types.get(name) == "uuid":
            values = [str(UUID(each)) if isinstance(each, str) else each for each in values]
        columns[name] = values
    return LakeRows(types, columns, arrow.num_rows)


def compare(source: SourceTable, lake: LakeRows) -> Difference | None:
    """What an upsert table has other than the source."""
    missing = [each.name for each in source.columns if each.name not in lake.types]
    if missing:
        return Difference(source, frozenset(), f"no columns {missing} in the lake")
    wrong = [
        f"{each.name} is {lake.types[each.name]}, not {each.kind.lake}"
        for each in source.columns
        if not _is_as_wide(lake.types[each.name], each.kind.lake)
    ]
    if wrong:
        return Difference(source, frozenset(), "; ".join(wrong))
    names = [each.name for each in source.columns]
    found = Counter(lake.current_rows(names))
    if found == source.rows:
        return None
    return Difference(
        source,
        _unequal_columns(names, source.rows, found),
        _shown(names, source.rows, found),
        about_rows=True,
        only_lacks_rows=found <= source.rows,
    )


def _is_as_wide(found: str, wanted: str) -> bool:
    """Whether a type of the lake is the wanted one, or one to which Iceberg widens it."""
    if found in {wanted, *_WIDER.get(wanted, ())}:
        return True
    of_wanted, of_found = (
        re.fullmatch(r"decimal\((\d+), (\d+)\)", each) for each in (wanted, found)
    )
    if of_wanted is None or of_found is None:
        return False
    return of_wanted[2] == of_found[2] and int(of_wanted[1]) <= int(of_found[1])


def without(difference: Difference, lake: LakeRows, columns: frozenset[str]) -> bool:
    """Whether the rows are equal when some columns are left out."""
    source = difference.table
    names = [each.name for each in source.columns]
    kept = [place for place, name in enumerate(names) if name not in columns]
    if any(lake.types.get(names[place]) != source.columns[place].kind.lake for place in kept):
        return False
    found = Counter(tuple(row[place] for place in kept) for row in lake.current_rows(names))
    return found == _projected(source.rows, kept)


def _projected(rows: Counter[Row], kept: Sequence[int]) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for row, count in rows.items():
        found[tuple(row[place] for place in kept)] += count
    return found


def _unequal_columns(
    names: Sequence[str], wanted: Counter[Row], found: Counter[Row]
) -> frozenset[str]:
    if wanted.total() != found.total():
        return frozenset()
    alone = {
        name
        for place, name in enumerate(names)
        if _projected(wanted, [place]) != _projected(found, [place])
    }
    kept = [place for place, name in enumerate(names) if name not in alone]
    return frozenset(alone) if _projected(wanted, kept) == _projected(found, kept) else frozenset()


def _shown(names: Sequence[str], wanted: Counter[Row], found: Counter[Row]) -> str:
    def some(rows: Counter[Row]) -> str:
        shown = [
            "(" + ", ".join(str(value)[:40] for value in row) + f") x{count}"
            for row, count in list(rows.items())[:4]
        ]
        return f"{rows.total()} rows: {'; '.join(shown)}"

    return f"({', '.join(names)}) missing {some(wanted - found)} | too much {some(found - wanted)}"


def compare_log(source: SourceTable, lake: LakeRows, copied_at: int) -> list[str]:
    """What a change log has wrong: a change twice, or other newest rows than the source's.

    The key that a moved row had is in no column, so keys that are left over are not judged.

    :param copied_at: LSN of the last copy; rows of before are void.
    """
    faults = []
    places = Counter(
        zip(lake.columns["_pgoutput_commit_lsn"], lake.columns["_pgoutput_seq"], strict=True)
    )
    if twice := [place for place, count in places.items() if count > 1]:
        faults.append(f"I3: {len(twice)} changes are in the log twice, the first is {twice[0]}")
    if not source.key or any(each not in lake.types for each in source.key):
        return faults
    names = [each.name for each in source.columns]
    if any(lake.types.get(each.name) != each.kind.lake for each in source.columns):
        return [*faults, "other columns or types than the source's"]
    order = sorted(
        range(lake.count),
        key=lambda place: (
            lake.columns["_pgoutput_commit_lsn"][place] or 0,
            lake.columns["_pgoutput_seq"][place] or 0,
        ),
    )
    keys = list(lake.rows(source.key))
    all_rows = list(lake.rows(names))
    newest: dict[Row, Row | None] = {}
    for place in order:
        operation = lake.columns["_pgoutput_op"][place]
        if (lake.columns["_pgoutput_commit_lsn"][place] or 0) < copied_at:
            continue
        if operation == "T":
            newest.clear()
            continue
        unchanged = lake.columns["_pgoutput_unchanged"][place] or ()
        former = newest.get(keys[place])
        newest[keys[place]] = (
            None
            if operation == "D"
            else tuple(
                (former[number] if former else "?") if name in unchanged else value
                for number, (name, value) in enumerate(zip(names, all_rows[place], strict=True))
            )
        )
    key_places = [names.index(each) for each in source.key if each in names]
    lacking = []
    for row in source.rows:
        held = newest.get(tuple(row[place] for place in key_places))
        if held is None or any(
            one not in (two, "?") and two != "?" for one, two in zip(row, held, strict=True)
        ):
            lacking.append(row)
    if lacking:
        faults.append(
            f"{len(lacking)} rows of the source are not the newest of the log, as {str(lacking[0])[:200]}"
        )
    return faults
