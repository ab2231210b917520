"""Reads and writes the notation of lake types in a manifest. Standard library only.

The notation is Iceberg's: ``decimal(12, 2)``, ``list<string>``, ``map<string, string>``. A struct has named
fields, ``struct<months: int, "odd name": list<long>>``: a name that is not a plain word is in double quotes,
and a quote in it is doubled.

Source: https://iceberg.apache.org/spec/#schemas-and-data-types
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


WHOLE_NUMBERS = frozenset({"int", "long"})
#: Types in which ``0.0`` and ``-0.0`` are equal, but print differently.
FLOATS = frozenset({"float", "double"})
_NESTED = ("list<", "map<", "struct<")
_WIDENINGS = {("int", "long"), ("float", "double")}


def is_nested(lake_type: str) -> bool:
    """Whether values of a type have parts."""
    return lake_type.startswith(_NESTED)


def widens(old: str, new: str) -> bool:
    """Whether Iceberg can turn a column of ``old`` into ``new`` without rewriting a file."""
    if (old, new) in _WIDENINGS:
        return True
    before, after = decimal_type(old), decimal_type(new)
    if before and after:
        return before[1] == after[1] and before[0] < after[0]
    return old != new and _grows(old, new)


def loses_fields(old: str, new: str) -> bool:
    """Whether ``new`` is ``old`` without the last fields of its structs.

    Then no row is found by what is left.
    """
    return old != new and _grows(new, old)


def _grows(old: str, new: str) -> bool:
    """Whether ``new`` is ``old``, or ``old`` with more fields at the end of its structs.

    If fields come and others go, a new field may be an old one under another name. So that is not growing.
    """
    if old == new:
        return True
    if (before := list_element(old)) and (after := list_element(new)):
        return _grows(before, after)
    fields, wanted = struct_fields(old) or (), struct_fields(new) or ()
    return (
        bool(fields)
        and all(
            name == as_name and _grows(kind, as_kind)
            for (name, kind), (as_name, as_kind) in zip(fields, wanted, strict=False)
        )
        and len(fields) <= len(wanted)
    )


_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


#: A name in quotes, or one character of anything else.
_TOKEN = re.compile(r'"(?:[^"]|"")*"|.', re.DOTALL)


#: The greatest precision of a decimal.
MAX_DECIMAL_PRECISION = 38


def decimal_type(lake_type: str) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None: it is no decimal, or one that Iceberg does not have."""
    found = _DECIMAL.fullmatch(lake_type)
    if found is None:
        return None
    precision, scale = int(found[1]), int(found[2])
    return (
        (precision, scale)
        if scale <= precision and 1 <= precision <= MAX_DECIMAL_PRECISION
        else None
    )


def list_element(lake_type: str) -> str | None:
    """The lake type of a list's elements; None: ``lake_type`` is not a list."""
    return _inside(lake_type, "list")


def map_entry(lake_type: str) -> tuple[str, str] | None:
    """The lake types of a map's keys and values; None: ``lake_type`` is not a map."""
    inside = _inside(lake_type, "map")
    parts = [] if inside is None else list(_parts(inside))
    return (parts[0], parts[1]) if len(parts) == 2 else None


def struct_fields(lake_type: str) -> tuple[tuple[str, str], ...] | None:
    """Name and lake type of a struct's fields; None: ``lake_type`` is not a struct."""
    inside = _inside(lake_type, "struct")
    if inside is None:
        return None
    fields = []
    for part in _parts(inside):
        quoted = _TOKEN.match(part) if part.startswith('"') else None
        name = quoted[0] if quoted else part.partition(":")[0]
        kind = part[len(name) :].removeprefix(":").strip()
        fields.append((name[1:-1].replace('""', '"') if quoted else name, kind))
    return tuple(fields)


def struct_type(fields: Iterable[tuple[str, str]]) -> str:
    """The struct with these fields: name and lake type of each."""
    return f"struct<{', '.join(f'{_name(name)}: {kind}' for name, kind in fields)}>"


def lake_type_in(kind: Any) -> str:
    """The lake type of a type in Iceberg's JSON."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "list":
        return f"list<{lake_type_in(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{lake_type_in(kind['key'])}, {lake_type_in(kind['value'])}>"
    return struct_type((each["name"], lake_type_in(each["type"])) for each in kind["fields"])


def _name(name: str) -> str:
    if _PLAIN_NAME.fullmatch(name):
        return name
    return '"' + name.replace('"', '""') + '"'


def _inside(lake_type: str, word: str) -> str | None:
    if lake_type.startswith(f"{word}<") and lake_type.endswith(">"):
        return lake_type[len(word) + 1 : -1]
    return None


def _parts(inside: str) -> Iterator[str]:
    """The parts between commas that are outside of brackets and quotes."""
    depth, begin = 0, 0
    for token in _TOKEN.finditer(inside):
        if token[0] in "<(":
            depth += 1
        elif token[0] in ">)":
            depth -= 1
        elif token[0] == "," and depth == 0:
            yield inside[begin : token.start()].strip()
            begin = token.end()
    yield inside[begin:].strip()
