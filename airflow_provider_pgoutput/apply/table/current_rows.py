"""The query that computes the source's current rows from a change log. Spark SQL, for versions 3.5 and 4.

The newest entry of a key counts. A row that moved to another key leaves its old one. A ``TRUNCATE`` or a copy
ends what came before. A value that was left out as unchanged TOAST is looked up in the older entries of its
row, also under the keys that it had before.

In a change log that several tables of the source share, all of this is told apart by the constant columns.

A subquery uses the table's column names only if it reads the table alone, or with the prefix
``_pgoutput_entry``. So no column can be mistaken for one of the query's own. Columns of ``ended`` begin with
``_pgoutput_``, because a subquery compares them with constant columns, which never do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal, quote
from airflow_provider_pgoutput.apply.schema.spark_types import spark_type
from airflow_provider_pgoutput.apply.table.target import OLD_KEY_COLUMN, OP_COLUMN, UNCHANGED_COLUMN
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.lake_types import is_nested

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.log_rows import LogRows

#: PostgreSQL leaves no value of these types out of an update: none is stored out of line.
_NEVER_LEFT_OUT = frozenset(
    {"boolean", "int", "long", "float", "double", "date", "timestamp", "timestamptz", "uuid"}
)
#: A value that was left out is looked up under at most so many earlier keys.
_MOST_MOVES = 1000
_ENTRY = Sql("_pgoutput_entry")
#: An empty list of names.
_NO_NAMES = Sql("CAST(array() AS ARRAY<STRING>)")
#: A sequence below that of all entries. So a copy ends neither its own rows nor changes at its LSN.
_LEAST_SEQ = Sql("-9223372036854775807L")


def why_no_query(rows: LogRows | None, columns: Mapping[str, str]) -> str | None:
    """Why no query gives the current rows of a change log; None: ``current_rows`` does.

    :param columns: lake types by name.
    """
    if rows is None:
        return "No batch of the table was applied since the pipeline began to note its key."
    if rows.why_unknown is not None:
        return rows.why_unknown
    if any(is_nested(columns[each]) for each in rows.key):
        return "Its key has a list, a map or a struct, and entries have no exact text of those."
    if max(Counter(each.lower() for each in columns).values()) > 1:
        return "Names of its columns differ only in case, and most readers do not tell them apart."
    return None


@dataclass(frozen=True, slots=True)
class _Entry:
    """SQL about one entry of a change log.

    :ivar shared_by: the constant columns of a shared change log; empty: it is not shared.
    :ivar prefix: what stands before the names of columns.
    """

    rows: LogRows
    columns: Mapping[str, str]
    shared_by: Sequence[str]
    prefix: Sql

    @property
    def lsn_sql(self) -> Sql:
        return self._column(staged.metadata(staged.COMMIT_LSN))

    @property
    def seq_sql(self) -> Sql:
        return self._column(staged.metadata(staged.SEQ))

    @property
    def op_sql(self) -> Sql:
        return self._column(OP_COLUMN)

    @property
    def place_sql(self) -> Sql:
        """Its position, which is unique and can be compared."""
        return self.place_with(self.seq_sql)

    def place_with(self, seq: Sql) -> Sql:
        """Its position, with another sequence number."""
        of_slice = f", 'slice', {self.slice_sql}" if self.shared_by else ""
        return Sql(f"named_struct('lsn', {self.lsn_sql}, 'seq', {seq}{of_slice})")

    @property
    def slice_sql(self) -> Sql:
        """What tells tables of the source apart that share the change log."""
        return _struct([self._column(each) for each in self.shared_by])

    @property
    def lasts_sql(self) -> Sql:
        """Whether no truncate or copy ended it."""
        ended = "SELECT max(_pgoutput_place) FROM ended"
        if self.shared_by:
            ended += f" WHERE _pgoutput_slice = {self.slice_sql}"
        is_after = f"{self.place_sql} > ({ended})"
        return Sql(f"{self.op_sql} <> '{staged.TRUNCATE}' AND coalesce({is_after}, true)")

    @property
    def left_out_sql(self) -> Sql:
        """The names of the columns that it leaves out."""
        return Sql(f"coalesce({self._column(UNCHANGED_COLUMN)}, {_NO_NAMES})")

    @property
    def key_sql(self) -> Sql:
        return _struct([self._column(each) for each in (*self.shared_by, *self.rows.key)])

    @property
    def old_key_sql(self) -> Sql:
        """The row's key before this entry moved it; NULL: it did not move."""
        constants = (self._column(each) for each in self.shared_by)
        values = _struct([*constants, *(self._old_value(each) for each in self.rows.key)])
        return Sql(f"CASE WHEN size({self._column(OLD_KEY_COLUMN)}) > 0 THEN {values} END")

    def _column(self, name: str) -> Sql:
        return Sql(f"{self.prefix}{quote(name)}")

    def _old_value(self, name: str) -> Sql:
        """An old value of a key column, see ``rows/change_log.py`` for its text."""
        lake_type, held = self.columns[name], self._column(OLD_KEY_COLUMN)
        texts = ", ".join(f"{held}[{literal(each)}]" for each in self.rows.names(name))
        text = Sql(f"coalesce({texts})")
        if lake_type == "binary":
            return Sql(f"unhex({text})")
        if lake_type == "timestamptz":
            # The text is that of UTC, whatever the time zone of the reader.
            text = Sql(f"concat({text}, 'Z')")
        return Sql(f"CAST({text} AS {spark_type(lake_type)})")


def current_rows(
    table: Sql, columns: Mapping[str, str], rows: LogRows, shared_by: Sequence[str] = ()
) -> Sql:
    """The query. It has all columns of the table; those of the pipeline tell of the newest entry.

    :param table: the change log, or a query in parentheses that selects some of its entries.
    :param columns: its lake types by name, in order.
    :param rows: see ``why_no_query``.
    :param shared_by: the constant columns of a shared change log.
    """
    here = _Entry(rows, columns, shared_by, Sql(""))
    ops = f"('{staged.TRUNCATE}', '{staged.COPIED}')"
    last_seq = Sql(
        f"CASE {here.op_sql} WHEN '{staged.TRUNCATE}' THEN {here.seq_sql} ELSE {_LEAST_SEQ} END"
    )
    of_slice, grouped = "", ""
    if shared_by:
        of_slice, grouped = f"{here.slice_sql} AS _pgoutput_slice, ", f" GROUP BY {here.slice_sql}"
    ended = f"""ended AS (
    SELECT {of_slice}max({here.place_with(last_seq)}) AS _pgoutput_place
    FROM {table} WHERE {here.op_sql} IN {ops}{grouped}
)"""
    if not rows.key:
        names = ", ".join(quote(each) for each in columns)
        return Sql(f"WITH {ended}\nSELECT {names}\nFROM {table}\nWHERE {here.lasts_sql}")
    parts = [
        ended,
        f"""entries AS (
    SELECT {here.key_sql} AS row_key, {here.place_sql} AS place, {here.op_sql} AS op,
        {here.left_out_sql} AS left_out, {here.old_key_sql} AS old_row_key
    FROM {table} WHERE {here.lasts_sql}
)""",
        f"""events AS (
    SELECT row_key, place, op <> '{staged.DELETE}' AS is_there, left_out,
        op IN ('{staged.INSERT}', '{staged.COPIED}') OR old_row_key IS NOT NULL AS comes,
        old_row_key IS NOT NULL AND size(left_out) > 0 AS lacks_some
    FROM entries
    UNION ALL
    SELECT old_row_key, place, false, {_NO_NAMES}, false, false
    FROM entries WHERE old_row_key IS NOT NULL
)""",
        # With a DEFERRABLE key, ``UPDATE t SET id = 3 - id`` moves row 1 to key 2 before row 2 leaves it.
        # Then the newest event of key 2 is a row that leaves, and yet a row is there. So both are counted.
        """newest AS (
    SELECT row_key, max(place) FILTER (WHERE is_there) AS place,
        max_by(left_out, place) FILTER (WHERE is_there) AS left_out,
        max(place) FILTER (WHERE comes) AS since,
        coalesce(max_by(lacks_some, place) FILTER (WHERE comes), false) AS lacks_some
    FROM events GROUP BY row_key
    HAVING max_by(is_there, place)
        OR sum(CASE WHEN comes THEN 1 WHEN NOT is_there THEN -1 ELSE 0 END) > 0
)""",
    ]
    there = _Entry(rows, columns, shared_by, Sql(f"{_ENTRY}."))
    key = {*shared_by, *rows.key}
    fillable = [
        each
        for each, kind in columns.items()
        if kind not in _NEVER_LEFT_OUT and not (each in key or _is_ours(each))
    ]
    if fillable:
        parts += _filled(table, fillable, there)
    selected = []
    for name in columns:
        value = Sql(f"{_ENTRY}.{quote(name)}")
        if name in fillable:
            number = len(fillable[: fillable.index(name)])
            value = _if_filled(Sql(f"filled.v{number}"), value, name)
        elif name == UNCHANGED_COLUMN and fillable:
            value = _if_filled(_still_lacking(fillable), value, name)
        selected.append(value)
    joined = f"FROM {table} AS {_ENTRY}\nJOIN newest ON newest.place = {there.place_sql}"
    if fillable:
        joined += "\nLEFT JOIN filled ON filled.of_place = newest.place"
    return Sql(f"WITH {', '.join(parts)}\nSELECT {', '.join(selected)}\n{joined}")


def _filled(table: Sql, names: Sequence[str], entry: _Entry) -> list[Sql]:
    """Subqueries that look up values which current entries leave out."""
    found = []
    for number, name in enumerate(names):
        meant = f"array({', '.join(literal(each) for each in entry.rows.names(name))})"
        has = f"NOT arrays_overlap({entry.left_out_sql}, {meant})"
        found.append(f"count_if({has}) > 0 AS has{number}")
        value = f"max_by({_ENTRY}.{quote(name)}, {entry.place_sql}) FILTER (WHERE {has})"
        found.append(f"{value} AS v{number}")
    last = "element_at(found, -1)"
    step = f"try_element_at(by_place, {last}.since)"
    earlier = (
        f"named_struct('row_key', {step}.row_key, 'since', {step}.since,"
        f" 'lacks_some', {step}.lacks_some, 'until', {last}.since)"
    )
    now = (
        "named_struct('row_key', row_key, 'since', since, 'lacks_some', lacks_some, 'until', place)"
    )
    return [
        # Entries that moved a row and left values out, and since when the row had the key before.
        Sql("""moves AS (
    SELECT entries.place, entries.old_row_key AS row_key, max(events.place) AS since,
        coalesce(max_by(events.lacks_some, events.place), false) AS lacks_some
    FROM entries LEFT JOIN events
        ON events.row_key = entries.old_row_key AND events.comes AND events.place < entries.place
    WHERE entries.old_row_key IS NOT NULL AND size(entries.left_out) > 0
    GROUP BY entries.place, entries.old_row_key
)"""),
        # The same as one map, so that a row can be followed through several moves.
        Sql("""moved AS (
    SELECT map_from_entries(collect_list(struct(place,
        named_struct('row_key', row_key, 'since', since, 'lacks_some', lacks_some)))) AS by_place
    FROM moves
)"""),
        # For each current entry that leaves values out: the keys that its row had, and from when to when.
        Sql(f"""histories AS (
    SELECT place AS of_place, explode(aggregate(
        array_repeat(0, least(size(by_place), {_MOST_MOVES})), array({now}),
        (found, unused) -> CASE WHEN {last}.lacks_some AND {step} IS NOT NULL
            THEN concat(found, array({earlier})) ELSE found END)) AS part
    FROM newest CROSS JOIN moved WHERE size(left_out) > 0
)"""),
        Sql(f"""filled AS (
    SELECT history.of_place AS of_place,
        {", ".join(found)}
    FROM (SELECT of_place, part.row_key AS row_key, part.since AS since, part.until AS until
        FROM histories) AS history
    JOIN {table} AS {_ENTRY}
        ON history.row_key = {entry.key_sql} AND coalesce({entry.place_sql} >= history.since, true)
        AND {entry.place_sql} <= history.until
    WHERE {entry.op_sql} <> '{staged.DELETE}' AND {entry.lasts_sql}
    GROUP BY history.of_place
)"""),
    ]


def _if_filled(filled: Sql, value: Sql, name: str) -> Sql:
    return Sql(f"CASE WHEN filled.of_place IS NULL THEN {value} ELSE {filled} END AS {quote(name)}")


def _still_lacking(names: Sequence[str]) -> Sql:
    each = (
        f"CASE WHEN NOT filled.has{number} THEN {literal(name)} END"
        for number, name in enumerate(names)
    )
    return Sql(f"array_compact(array({', '.join(each)}))")


def _struct(values: Sequence[Sql]) -> Sql:
    parts = ", ".join(f"'k{number}', {value}" for number, value in enumerate(values))
    return Sql(f"named_struct({parts})")


def _is_ours(name: str) -> bool:
    origins = (staged.metadata(each) for each, _ in staged.ORIGINS)
    return name in {UNCHANGED_COLUMN, OLD_KEY_COLUMN, *staged.METADATA, *origins}
