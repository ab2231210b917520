"""The words of ``docs/types.md``; its tables are made in ``document.py``."""

from __future__ import annotations

HEAD = """\
# Types

<!-- Made by `python -m tools.types_page > docs/types.md`. -->

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

The default is `null_and_keep` for all of them; `value_policy={{"decimal": "fail", "default":
"null_and_keep"}}` says it by family. How many values were set aside is in the log of the stage task, in the
manifest and in the XCom (`rejected` of each table); apply puts them into the side table.

The policy also counts for a default that rows older than a column show, when the column is a date or
timestamp: `ADD COLUMN valid_to timestamptz DEFAULT 'infinity'` gives these rows NULL and logs a warning (the
side table has rows of changes and copies only), or is refused. In a key it is always refused
(`ValueRefused`), and so are such defaults of other types.

### The side table

`<namespace>.pgoutput_rejected_values`, made when there is a first value to keep, and appended to in one
commit for each batch. The same value of the old tuple of an update (with REPLICA IDENTITY FULL) is a row of
its own, as `tuple` says. The value is found again by `schema_name`, `table_name`, `key` and `column_name`,
the newest by `commit_lsn` and `seq`; a copied row comes before every change.

| column | type | meaning |
|---|---|---|
"""

SIDE = {
    "schema_name": "schema of the source table",
    "table_name": "its name",
    "relation_oid": "its OID",
    "commit_lsn": "LSN of the commit record; NULL: the row was copied",
    "seq": "ordinal of the change in its transaction; NULL: the row was copied",
    "op": "`I`, `U`, `D`, or `C` for a copied row",
    "tuple": "`new` or `old`",
    "column_name": "the column that is NULL in place of the value",
    "type_name": "its PostgreSQL type",
    "key": 'the key of the row: a JSON object of texts, `{"id": "7"}`; `{}` without a key',
    "raw_value": "the value, as PostgreSQL prints it",
}

TYPES = """
Anything else that does not parse is no odd value but a wrong session setting or a damaged stream, and always
an error (`ProtocolError`). Text that is not UTF-8, which only a database with encoding SQL_ASCII can hold, is
refused (`ValueRefused`) whatever the policy.

## Settings of the session

The text that PostgreSQL sends depends on settings of the session. They are pinned, so that neither
`postgresql.conf` nor `ALTER ROLE ... SET` changes what arrives: `DateStyle = ISO`,
`IntervalStyle = postgres`, `TimeZone = UTC`, `extra_float_digits = 1`, `bytea_output = hex`,
`lc_monetary = C`, `client_encoding = UTF8`, `quote_all_identifiers = off`.

## Text and binary

With `binary=True` PostgreSQL sends changes in the binary form of their types. The column `binary` says which
types are read in it: the common ones, and domains and arrays of them. A table with a column of a type that is
`text only` lets the whole slot be read as text instead; the log names the column. So does a value of such a
type among the changes. The server has no binary form of a type that is `sent as text`: it sends the text in
both modes. The values in the lake are the same in both modes.

## Built-in types

| PostgreSQL | Iceberg | Spark | binary | exact | does not fit |
|---|---|---|---|---|---|
"""


OPTIONS = """
## Options

`type_options` of `PgoutputStageOperator` chooses for all columns of a kind of type, `column_types` for one
column (`{"public.orders.id": "uuid"}`, the choices below). Within arrays, domains and composites the choice
is for what they are made of. Choices are checked before anything is connected, those of columns before
anything is read. They decide the type of a column when its table is made; apply refuses a batch that says
another one (`TableRefused`), so to change a choice, name another target and copy the table again.

- `column_types` with `"string"` keeps PostgreSQL's text of a column of *any* type: of arrays with several
  dimensions, of a `timestamp` that may be infinite, of a key that does not fit.
- `{"numeric": "decimal(p,s)"}` is for numerics that no decimal holds anyway (without precision, or above 38
  digits). In `column_types` it is for every numeric of the column, also a `numeric(12,2)`.
- Values that do not fit a choice follow the value policy. Nothing is rounded.

| option | PostgreSQL | Iceberg | Spark | binary | exact | does not fit |
|---|---|---|---|---|---|---|
"""

#: Kind, choice, a type that it is for, what is exact, and what does not fit.
CHOSEN = (
    ("numeric", "decimal(38,9)", 1700, "all digits",
     "NaN, ±infinity, more digits before or after the point"),
    ("uuid", "uuid", 2950, "all values; pyiceberg reads `uuid`, Spark the text", ""),
    ("composite", "struct", 90002, "all attributes, by the rules of their types",
     "attributes that do not fit, values from before `ALTER TYPE ... ADD` or `DROP ATTRIBUTE`"),
    ("interval", "struct", 1186, "months, days and microseconds, as PostgreSQL stores them",
     "±infinity (version 17 on)"),
    ("time", "micros", 1083, "microseconds since midnight, `24:00:00` included", ""),
)  # fmt: skip

TAIL = """
## Good to know

- `timestamp with time zone` is an instant: PostgreSQL does not store the zone it was entered with, so
  there is none to keep. `timestamp without time zone` is `timestamp` in Iceberg and `TIMESTAMP_NTZ` in Spark.
- Years before 1 and after 9999 exist in PostgreSQL (4713 BC to 294276) but not in Spark and most readers.
- A list has one dimension and starts at 1. PostgreSQL does not fix the dimensions of an array column, so
  `integer[]` and `integer[][]` are one type, and each value is looked at on its own.
- An array with an element that does not fit is set aside as a whole: NULL in the table, its text beside it.
- A type that was dropped after the change was written is known from the batch before. Where none has kept
  it, its name in the stream tells whether it was an array, and of what; a domain is its base type, without
  a length; all else is `string`.
- The text of `regclass`, `regtype`, `regrole` and their like is a name. When the object is renamed it
  changes in all rows, without a row event. A warning names such columns once.
- The types of `hstore`, `vector` and `halfvec` are known by name, in whatever schema the extension is.
- An infinite or huge value in a composite that stays `string` is in its text as PostgreSQL prints it.
- pyiceberg 0.12 reads an empty list where a list of structs is NULL; Spark reads NULL.
- What `ALTER TYPE` does to composites and enums: [how a batch is applied](apply.md#schema).
- Bounds of `uuid` columns are not written to the files, as a filter reads them wrongly, probably as signed
  numbers: measured with Spark 4.1.3 and Iceberg 1.12.0, `WHERE id = '...'` found none of three rows that were
  there, and `DELETE` removed none, as soon as a file held a uuid that begins with 8 to f beside one that
  begins with 0 to 7. With the table properties `write.metadata.metrics.column.<name> = counts` and
  `write.parquet.stats-enabled.column.<name> = false`, which the pipeline sets, it found them all; with the
  first one alone it did not. A filter on a uuid therefore skips no files, and other writers of the table must
  keep these properties. Deletes and joins of the pipeline itself do not filter by literals of uuids.
- `json` as Iceberg's `variant` is refused (`ConfigurationError`). Measured with the locked versions: Spark
  4.1.3 writes and reads it, but pyiceberg 0.12.0 does not load a table that has such a column at all
  (`Unsupported field type: 'variant'`), Spark cannot group or compare it, which folding a table without a
  key needs, and `parse_json` makes doubles of numbers with an exponent or more than 38 digits and refuses
  duplicate keys. The text loses nothing: `parse_json(doc)` in a query or a view gives the variant.
- A NULL list of structs (`public.pair[]` or `interval[]` by choice) is NULL in the files and in Spark.
  pyiceberg 0.12.0 reads it as an empty list ([iceberg-python 3833](https://github.com/apache/iceberg-python/issues/3833)).
- The interval whose months, days and microseconds are all the greatest number, or all the least, is
  printed in figures by PostgreSQL 15 and 16, and is `infinity` or `-infinity` from 17 on.
- How keys are compared is on the page about [apply](apply.md#equal-keys).
"""
