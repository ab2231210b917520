"""The words of ``docs/reference/types.md``; ``types_page.py`` makes its tables."""

from __future__ import annotations

HEAD = """\
# Types

<!-- Made by `python -m tools.types_page > docs/reference/types.md`. -->

Nothing is destroyed on the way to the lake. A column gets the Iceberg type that holds every value of its
PostgreSQL type exactly. If there is no such type, it gets `string` with PostgreSQL's own text. No value is
rounded, clamped or silently replaced by NULL, and a decimal never becomes a float.

The mapping is the same for the stream and the initial copy. It depends on the type and its modifier alone,
never on the values.

## Values that do not fit

A few types have values that their Iceberg type lacks: NaN in a `numeric(12,2)`, `infinity` in a `timestamp`,
a two-dimensional array. The *value policy* says what happens to such a value. There is one for each family
of Iceberg types ({families}):

| policy | what it does |
|---|---|
| `null_and_keep` | the row gets NULL; the text as PostgreSQL printed it goes to a side table |
| `fail` | the table is refused; the error names table, column and type, never the value |

The default is `null_and_keep` for all families. `value_policy={{"decimal": "fail", "default":
"null_and_keep"}}` chooses by family. The log of the stage task, the manifest and the XCom (`rejected` of each
table) have the number of such values. Apply puts the values into the side table. With `fail` the table is
[set aside](../how-to/tables_set_aside.md#a-table-that-cannot-be-staged) by default, and the others go on.

The policy also counts for the default of a new date or timestamp column, which older rows show. For example,
`ADD COLUMN valid_to timestamptz DEFAULT 'infinity'` gives older rows NULL and logs a warning, or is refused.
(The side table has rows of changes and copies only.) In a key such a value is always refused
(`ValueRefused`), and so are such defaults of other types.

### The side table

`<namespace>.pgoutput_rejected_values` is made when there is a first value to keep. Each batch appends to it
in one commit. If the old tuple of an update (with REPLICA IDENTITY FULL) has the same value, that is a row of
its own; `tuple` tells the two apart. You find a value again by `schema_name`, `table_name`, `key` and
`column_name`, and the newest one by `commit_lsn` and `seq`. A copied row comes before every change.

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
#: The column that the apply adds to those of the staged files.
SIDE_SLOT = "the slot whose batch brought it; NULL: an earlier version wrote the row"

TYPES = """
Any other value that does not parse shows a wrong session setting or a damaged stream. It is always an error
(`ProtocolError`). Only a database with encoding SQL_ASCII can hold text that is not UTF-8. Such text is
refused (`ValueRefused`), whatever the policy.

## Settings of the session

The text that PostgreSQL sends depends on settings of the session. They are pinned, so that neither
`postgresql.conf` nor `ALTER ROLE ... SET` changes the text: `DateStyle = ISO`,
`IntervalStyle = postgres`, `TimeZone = UTC`, `extra_float_digits = 1`, `bytea_output = hex`,
`lc_monetary = C`, `client_encoding = UTF8`, `quote_all_identifiers = off`.

## Text and binary

With `binary=True` PostgreSQL sends changes in the binary form of their types. The column `binary` says
which types are read in this form: the common ones, and domains and arrays of them. If a table has a column
of a type that is `text only`, the whole slot is read as text instead, and the log names the column. The
same happens if a value of such a type comes among the changes. The server has no binary form of a type that
is `sent as text`: it sends the text in both modes. The values in the lake are the same in both modes.

## Built-in types

| PostgreSQL | Iceberg | Spark | binary | exact | does not fit |
|---|---|---|---|---|---|
"""


OPTIONS = """
## Options

`type_options` of `PgoutputStageOperator` chooses for all columns of a kind of type. `column_types` chooses
for one column (`{"public.orders.id": "uuid"}`). The table below has the choices. In arrays, domains and
composites the choice is for their elements, base type and attributes. Choices are checked before anything
is connected, those of columns before anything is read. They decide the type of a column when its table is
made. Apply refuses a batch with another type (`TableRefused`). So to change a choice, name another target
and copy the table again.

- `column_types` with `"string"` keeps PostgreSQL's text of a column of *any* type. Examples are an array with
  several dimensions, a `timestamp` that may be infinite, or a key that does not fit.
- `{"numeric": "decimal(p,s)"}` is for numerics that have no decimal of their own (without precision, or above
  38 digits). In `column_types` it is for every numeric of the column, also a `numeric(12,2)`.
- Values that do not fit a choice follow the value policy. Nothing is rounded.

| option | PostgreSQL | Iceberg | Spark | binary | exact | does not fit |
|---|---|---|---|---|---|---|
"""

TAIL = """
## Good to know

- `timestamp with time zone` is an instant. PostgreSQL does not store the zone that it was entered with, so
  there is no zone to keep. `timestamp without time zone` is `timestamp` in Iceberg and `TIMESTAMP_NTZ` in
  Spark.
- Years before 1 and after 9999 exist in PostgreSQL (4713 BC to 294276) but not in Spark and most readers.
- A list has one dimension and starts at 1. PostgreSQL does not fix the dimensions of an array column, so
  `integer[]` and `integer[][]` are one type, and each value is looked at on its own.
- An array with an element that does not fit is set aside as a whole: NULL in the table, its text beside it.
- A type that was dropped after the change was written is known from the batch before. If no batch has kept
  it, its name in the stream tells whether it was an array, and the type of its elements. A domain is then its
  base type, without a length. All other types are `string`.
- The text of `regclass`, `regtype`, `regrole` and their like is a name. If the object is renamed, the text
  changes in all rows, without a row event. A warning names such columns once. For keys of such types see
  [schema changes](../explanation/schema_changes.md#schema).
- The types of `hstore`, `vector` and `halfvec` are known by name, in whatever schema the extension is.
- If a composite stays `string`, an infinite or huge value in it is in its text, as PostgreSQL prints it.
- pyiceberg 0.12 reads an empty list where a list of structs is NULL; Spark reads NULL.
- The page about [schema changes](../explanation/schema_changes.md#schema) says what happens
  after `ALTER TYPE` of a composite or an enum.
- Bounds of `uuid` columns are not written to the files, because a filter reads them wrongly, probably as
  signed numbers. Measured with Spark 4.1.3 and Iceberg 1.12.0: a file held a uuid that begins with 8 to f
  beside one that begins with 0 to 7. Then `WHERE id = '...'` found none of three rows that were there, and
  `DELETE` removed none. The pipeline sets the table properties `write.metadata.metrics.column.<name> =
  counts` and `write.parquet.stats-enabled.column.<name> = false`. With both, all rows were found; with the
  first one alone they were not. So a filter on a uuid skips no files, and other writers of the table must
  keep these properties. Deletes and joins of the pipeline itself do not filter by literals of uuids.
- `json` as Iceberg's `variant` is refused (`ConfigurationError`). Measured with the locked versions:
  - Spark 4.1.3 writes and reads it.
  - pyiceberg 0.12.0 does not load a table that has such a column at all (`Unsupported field type:
    'variant'`).
  - Spark cannot group or compare it. Folding a table without a key needs that.
  - `parse_json` makes doubles of numbers with an exponent or more than 38 digits, and refuses duplicate keys.

  The text loses nothing: `parse_json(doc)` in a query or a view gives the variant.
- A NULL list of structs (`public.pair[]` or `interval[]` by choice) is NULL in the files and in Spark.
  pyiceberg 0.12.0 reads it as an empty list ([iceberg-python
  3833](https://github.com/apache/iceberg-python/issues/3833)).
- In one interval months, days and microseconds are all the greatest number, in another all the least.
  PostgreSQL 15 and 16 print these two in figures. From 17 on they are `infinity` and `-infinity`.
- The page about [applying](../explanation/applying.md#equal-keys) says how keys are compared.
"""
