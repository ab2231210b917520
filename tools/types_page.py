"""Print ``docs/reference/types.md`` from the code that maps types, so that the page cannot be wrong.

``python -m tools.types_page > docs/reference/types.md``
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.changes import REJECTED
from airflow_provider_pgoutput.batch.lake_types import list_element, struct_fields
from airflow_provider_pgoutput.capture.types.cast import FAMILIES, can_be_sent, has_binary_form
from airflow_provider_pgoutput.capture.types.mapping import (
    BUILTIN_TYPES,
    TypeInfo,
    lake_type,
    type_name,
)
from airflow_provider_pgoutput.capture.types.options import COMPOSITE, TypeOptions
from airflow_provider_pgoutput.capture.types.registry import ROWS, row_of
from airflow_provider_pgoutput.capture.types.type_info import Attribute
from tools.types_page_text import HEAD, OPTIONS, SIDE, SIDE_SLOT, TAIL, TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_USER_TYPES = """
## User types, extensions and arrays

| PostgreSQL | Iceberg | Spark | binary | exact | does not fit |
|---|---|---|---|---|---|
"""

_SPARK = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "uuid": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
}
_EXACT = {
    "boolean": "all values",
    "int": "all values",
    "long": "all values",
    "float": "all values to the last bit; -0, NaN, infinities, subnormals",
    "double": "all values to the last bit; -0, NaN, infinities, subnormals",
    "decimal": "all digits",
    "string": "PostgreSQL's text form",
    "binary": "all bytes",
    "date": "every day of the years 1 to 9999",
    "timestamp": "every microsecond of the years 1 to 9999",
    "timestamptz": "every microsecond of the years 1 to 9999, as an instant",
    "list": "all elements in order, NULL included",
    "map": "all pairs, NULL values included",
}
_DOES_NOT_FIT = {
    "decimal": "NaN, ±infinity",
    "date": "±infinity, BC, years after 9999",
    "timestamp": "±infinity, BC, years after 9999",
    "timestamptz": "±infinity, BC, years after 9999",
    "list": "several dimensions, lower bounds other than 1, elements that do not fit",
}
#: Base types that no table can hold.
_INTERNAL = frozenset(
    {
        "pg_node_tree",
        "gtsvector",
        "pg_ndistinct",
        "pg_dependencies",
        "pg_mcv_list",
        "pg_brin_bloom_summary",
        "pg_brin_minmax_multi_summary",
    }
)
#: Type, precision and scale of the rows that explain modifiers of numeric.
_NUMERICS = ((12, 2), (38, 10), (39, 2), (3, -2), (3, 5))
_NUMERIC_OID = 1700
_PAIR_OID = 90002

#: The same as ``_SAMPLES``, of the types of extensions that have a row. The first of them is hstore.
_OF_EXTENSIONS = [
    (TypeInfo(oid, "public", row.name, "b", has_send=True), -1, f"`{row.name}`")
    for oid, row in enumerate((row for row in ROWS if not row.oid), 90100)
]
#: Type, modifier and what stands in the first column; empty: the type's name.
_SAMPLES = (
    (TypeInfo(90001, "public", "mood", "e"), -1, "enum"),
    (
        TypeInfo(
            _PAIR_OID, "public", "pair", "c",
            attributes=(Attribute("a", 23, -1), Attribute("b", 1184, -1)),
        ),
        -1, "composite",
    ),
    (TypeInfo(90003, "public", "floats", "r", part_oid=701), -1, "range, multirange"),
    (TypeInfo(90004, "public", "price", "d", base_oid=1700, base_type_modifier=786438), -1,
     "domain, as its base type: over `numeric(12,2)`"),
    (TypeInfo(90005, "public", "names", "d", base_oid=1009), -1, "domain over `text[]`"),
    (TypeInfo(90006, "public", "citext", "b", has_send=True), -1, "`citext`"),
    *_OF_EXTENSIONS,
    (TypeInfo(90016, "public", "ltree", "b", has_send=True), -1,
     "`ltree`, `lquery`, `ltxtquery`"),
    (TypeInfo(90010, "public", "geometry", "b", has_send=True), -1,
     "any other type of an extension"),
    (BUILTIN_TYPES[1007], -1, ""),
    (BUILTIN_TYPES[1231], 786438, ""),
    (BUILTIN_TYPES[1009], -1, ""),
    (BUILTIN_TYPES[1185], -1, ""),
    (BUILTIN_TYPES[1020], -1, ""),
    (TypeInfo(90011, "public", "_mood", "b", element_oid=90001), -1, "array of an enum"),
    (TypeInfo(90012, "public", "_hstore", "b", element_oid=_OF_EXTENSIONS[0][0].oid), -1, "`hstore[]`"),
    (TypeInfo(90013, "public", "_names", "b", element_oid=90005), -1,
     "array of a domain over `text[]`"),
    (TypeInfo(90014, "public", "corner", "d", base_oid=603, delimiter=";"), -1, "domain over `box`"),
    (TypeInfo(90015, "public", "_corner", "b", element_oid=90014), -1,
     "array of a domain over `box`"),
)  # fmt: skip


def spark_type(lake: str) -> str:
    """Spark SQL's name of an Iceberg type."""
    if element := list_element(lake):
        return f"ARRAY<{spark_type(element)}>"
    if fields := struct_fields(lake):
        return f"STRUCT<{', '.join(f'{name}: {spark_type(kind)}' for name, kind in fields)}>"
    if lake.startswith("map<"):
        return "MAP<STRING, STRING>"
    return _SPARK.get(lake) or lake.upper()


def _row(label: str, lake: str, info: TypeInfo | None, *, binary: str) -> str:
    family, row = re.split(r"[<(]", lake)[0], row_of(info)
    exact = _EXACT[family] if row.exact is None else row.exact
    does_not_fit = _DOES_NOT_FIT.get(family, "") if row.does_not_fit is None else row.does_not_fit
    return f"| {label} | `{lake}` | `{spark_type(lake)}` | {binary} | {exact} | {does_not_fit} |\n"


def _binary(type_oid: int, catalog: Mapping[int, TypeInfo]) -> str:
    if has_binary_form(type_oid, catalog):
        return "yes"
    return "sent as text" if can_be_sent(type_oid, catalog) else "text only"


def _builtin_rows() -> Iterator[str]:
    order = list(_SPARK)
    rows = []
    for info in BUILTIN_TYPES.values():
        if info.element_oid or info.typtype not in "brm" or info.name in _INTERNAL:
            continue
        lake = lake_type(info.oid, -1, {})
        place = order.index(lake) if lake in order else len(order)
        name = f"`{type_name(info.oid, -1, {})}`"
        binary = _binary(info.oid, {})
        rows.append((place, info.oid, _row(name, lake, info, binary=binary)))
    for precision, scale in _NUMERICS:
        modifier = (precision << 16 | scale & 0x7FF) + 4
        lake = lake_type(_NUMERIC_OID, modifier, {})
        name = type_name(_NUMERIC_OID, modifier, {})
        numeric = BUILTIN_TYPES[_NUMERIC_OID] if lake == "string" else None
        row = _row(f"`{name}`", lake, numeric, binary=_binary(_NUMERIC_OID, {}))
        rows.append((order.index("double"), _NUMERIC_OID, row))
    yield from (row for _, _, row in sorted(rows, key=lambda each: each[:2]))


def _chosen_rows() -> Iterator[str]:
    catalog = {info.oid: info for info, _, _ in _SAMPLES}
    chosen = [(row.oid, row.choice) for row in ROWS if row.choice]
    for type_oid, choice in (*chosen, (_PAIR_OID, COMPOSITE)):
        if choice.refused:
            continue
        options = TypeOptions({choice.kind: choice.word})
        lake = lake_type(type_oid, -1, catalog, options.of("", ""))
        name = "composite" if choice is COMPOSITE else f"`{type_name(type_oid, -1, catalog)}`"
        option = f"`{{{json.dumps(choice.kind)}: {json.dumps(choice.word)}}}`"
        kinds = f"`{lake}` | `{spark_type(lake)}` | {_binary(type_oid, catalog)}"
        yield f"| {option} | {name} | {kinds} | {choice.exact} | {choice.does_not_fit} |\n"


def _user_rows() -> Iterator[str]:
    catalog = {info.oid: info for info, _, _ in _SAMPLES}
    for info, modifier, label in _SAMPLES:
        lake = lake_type(info.oid, modifier, catalog)
        name = label or f"`{type_name(info.oid, modifier, catalog)}`"
        yield _row(name, lake, info, binary=_binary(info.oid, catalog))


def document_text() -> str:
    """The whole page."""
    families = ", ".join(f"`{each}`" for each in FAMILIES)
    head = HEAD.format(families=families)
    side = "".join(f"| `{name}` | `{kind}` | {SIDE[name]} |\n" for name, kind in REJECTED)
    return "".join(
        [
            head,
            side,
            f"| `slot_name` | `string` | {SIDE_SLOT} |\n",
            TYPES,
            *_builtin_rows(),
            _USER_TYPES,
            *_user_rows(),
            OPTIONS,
            *_chosen_rows(),
            TAIL,
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(document_text())
