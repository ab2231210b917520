"""Print ``docs/types.md`` from the code that maps types, so that the page cannot be wrong.

``python -m airflow_provider_pgoutput.capture.types.document > docs/types.md``
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.mapping import (
    BUILTIN_TYPES,
    TypeInfo,
    lake_type,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """\
# Types

<!-- Made by `python -m airflow_provider_pgoutput.capture.types.document > docs/types.md`. -->

Nothing is destroyed on the way to the lake. A column gets the Iceberg type that holds every value of its
PostgreSQL type exactly, or, where there is none, `string` with PostgreSQL's own text. No value is rounded,
clamped or silently replaced by NULL, and a decimal never becomes a float.

The mapping is the same for the stream and the initial copy. It depends on the type and its modifier alone,
never on the values.

## Values that do not fit

A few types have values that their Iceberg type lacks: NaN in a `numeric(12,2)`, `infinity` in a `timestamp`,
a two-dimensional array. What happens to such a value is the *value policy*, by family of the Iceberg type
({families}):

| policy | what it does |
|---|---|
| `null_and_keep` | the row gets NULL; the text as PostgreSQL printed it goes to a side table |
| `fail` | the batch is refused; the error names table, column and type, never the value |

The default is `null_and_keep`. The side table holds the table, column, key and LSN beside the text, and the
number of such values is in the log, the manifest and the XCom.

Anything else that does not parse is no odd value but a wrong session setting or a damaged stream, and always
an error (`ProtocolError`). Text that is not UTF-8, which only a database with encoding SQL_ASCII can hold, is
refused (`ValueRefused`) whatever the policy.

## Settings of the session

The text that PostgreSQL sends depends on settings of the session. They are pinned, so that neither
`postgresql.conf` nor `ALTER ROLE ... SET` changes what arrives: `DateStyle = ISO`,
`IntervalStyle = postgres`, `TimeZone = UTC`, `extra_float_digits = 1`, `bytea_output = hex`,
`lc_monetary = C`, `client_encoding = UTF8`.

## Built-in types

| PostgreSQL | Iceberg | Spark | exact | does not fit |
|---|---|---|---|---|
"""

_USER_TYPES = """
## User types, extensions and arrays

| PostgreSQL | Iceberg | Spark | exact | does not fit |
|---|---|---|---|---|
"""

_TAIL = """
## Good to know

- `timestamp with time zone` is an instant: PostgreSQL does not store the zone it was entered with, so
  there is none to keep. `timestamp without time zone` is `timestamp` in Iceberg and `TIMESTAMP_NTZ` in Spark.
- Years before 1 and after 9999 exist in PostgreSQL (4713 BC to 294276) but not in Spark and most readers.
- A list has one dimension and starts at 1. PostgreSQL does not fix the dimensions of an array column, so
  `integer[]` and `integer[][]` are one type, and each value is looked at on its own.
- An array with an element that does not fit is set aside as a whole: NULL in the table, its text beside it.
- Values of a type that was dropped after the change was written are `string`: their text is all that is left.
- The types of `hstore`, `vector` and `halfvec` are known by name, in whatever schema the extension is.
"""

_NAMES = {"decimal": "`decimal`", "date": "`date`", "timestamp": "`timestamp`", "list": "`list`"}
_SPARK = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
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
_UNFIT = {
    "decimal": "NaN, ±infinity",
    "date": "±infinity, BC, years after 9999",
    "timestamp": "±infinity, BC, years after 9999",
    "timestamptz": "±infinity, BC, years after 9999",
    "list": "several dimensions, lower bounds other than 1, elements that do not fit",
}
#: What is particular about one type, over its Iceberg type's notes.
_EXACT_OF_TYPE = {
    "int2": "all values",
    "oid": "all values; unsigned, hence `long`",
    "xid": "all values; unsigned, hence `long`",
    "cid": "all values; unsigned, hence `long`",
    "xid8": "all values; unsigned 64 bit is more than `long` holds, and a decimal sorts as a number",
    "numeric": "all digits; NaN, ±infinity, any scale",
    "money": "as `$1,234.56`, with `lc_monetary` C",
    "bpchar": "as sent, padding kept",
    "char": "the character, or `\\ooo` for a byte past 127",
    "json": "byte by byte: white space, order and duplicate keys kept",
    "jsonb": "PostgreSQL's normal form; numbers keep their digits",
    "interval": "all fields; style `postgres`, such as `1 mon -3 days 04:05:06`",
    "time": "all values, `24:00:00` included",
    "timetz": "time and offset, such as `12:00:00+02`",
    "tsvector": "lexemes, positions and weights",
}
_UNFIT_OF_TYPE = {"xid8": "", "vector": ""}
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

#: Type, modifier and what stands in the first column; empty: the type's name.
_SAMPLES = (
    (TypeInfo(90001, "public", "mood", "e"), -1, "enum"),
    (TypeInfo(90002, "public", "pair", "c"), -1, "composite"),
    (TypeInfo(90003, "public", "floats", "r"), -1, "range, multirange"),
    (TypeInfo(90004, "public", "price", "d", base_oid=1700, base_type_modifier=786438), -1,
     "domain, as its base type: over `numeric(12,2)`"),
    (TypeInfo(90005, "public", "names", "d", base_oid=1009), -1, "domain over `text[]`"),
    (TypeInfo(90006, "public", "citext", "b"), -1, "`citext`"),
    (TypeInfo(90007, "public", "hstore", "b"), -1, "`hstore`"),
    (TypeInfo(90008, "public", "vector", "b"), 3, "`vector(3)`, `halfvec(3)` of pgvector"),
    (TypeInfo(90009, "public", "sparsevec", "b"), -1, "`sparsevec` of pgvector"),
    (TypeInfo(90010, "public", "geometry", "b"), -1, "any other type of an extension"),
    (BUILTIN_TYPES[1007], -1, ""),
    (BUILTIN_TYPES[1231], 786438, ""),
    (BUILTIN_TYPES[1009], -1, ""),
    (BUILTIN_TYPES[1185], -1, ""),
    (BUILTIN_TYPES[1020], -1, ""),
    (TypeInfo(90011, "public", "_mood", "b", element_oid=90001), -1, "array of an enum"),
    (TypeInfo(90012, "public", "_hstore", "b", element_oid=90007), -1, "`hstore[]`"),
    (TypeInfo(90013, "public", "_names", "b", element_oid=90005), -1,
     "array of a domain over `text[]`"),
    (TypeInfo(90014, "public", "corner", "d", base_oid=603, delimiter=";"), -1, "domain over `box`"),
    (TypeInfo(90015, "public", "_corner", "b", element_oid=90014), -1,
     "array of a domain over `box`"),
)  # fmt: skip


def spark_type(lake: str) -> str:
    """Spark SQL's name of an Iceberg type."""
    if lake.startswith("list<"):
        return f"ARRAY<{spark_type(lake[5:-1])}>"
    if lake.startswith("map<"):
        return "MAP<STRING, STRING>"
    return _SPARK.get(lake) or lake.upper()


def _row(label: str, lake: str, key: str) -> str:
    family = re.split(r"[<(]", lake)[0]
    exact = _EXACT_OF_TYPE.get(key, _EXACT[family])
    unfit = _UNFIT_OF_TYPE.get(key, _UNFIT.get(family, ""))
    return f"| {label} | `{lake}` | `{spark_type(lake)}` | {exact} | {unfit} |\n"


def _builtin_rows() -> Iterator[str]:
    order = list(_SPARK)
    rows = []
    for info in BUILTIN_TYPES.values():
        if info.element_oid or info.typtype not in "brm" or info.name in _INTERNAL:
            continue
        lake = lake_type(info.oid, -1, {})
        place = order.index(lake) if lake in order else len(order)
        rows.append((place, info.oid, _row(f"`{type_name(info.oid, -1, {})}`", lake, info.name)))
    for precision, scale in _NUMERICS:
        modifier = (precision << 16 | scale & 0x7FF) + 4
        lake = lake_type(_NUMERIC_OID, modifier, {})
        name = type_name(_NUMERIC_OID, modifier, {})
        key = "numeric" if lake == "string" else ""
        rows.append((order.index("double"), _NUMERIC_OID, _row(f"`{name}`", lake, key)))
    yield from (row for _, _, row in sorted(rows, key=lambda each: each[:2]))


def _user_rows() -> Iterator[str]:
    catalog = {info.oid: info for info, _, _ in _SAMPLES}
    for info, modifier, label in _SAMPLES:
        lake = lake_type(info.oid, modifier, catalog)
        yield _row(label or f"`{type_name(info.oid, modifier, catalog)}`", lake, info.name)


def document_text() -> str:
    """The whole page."""
    head = _HEAD.format(families=", ".join(_NAMES.values()))
    return "".join([head, *_builtin_rows(), _USER_TYPES, *_user_rows(), _TAIL])


if __name__ == "__main__":
    sys.stdout.write(document_text())
