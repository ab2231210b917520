"""Tables of one source, some upserted and some as change logs, compared with the source row by row.

For the life of tables: what is dropped, made again, renamed, moved, attached and detached. The lake is read
with pyiceberg, and Spark has to read the same. A change log is folded here without any code of the package:
the rows of the newest copy, and what came after them. Values are compared as text, so columns are whole
numbers, decimals and strings.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, TableOptions
from tests.conformance.compare import connect, difference, quoted, source_columns
from tests.conformance.pipeline import CATALOG, Batch, Pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.errors import PgoutputError
    from tests.conformance.scenario import Row

_METADATA = "_pgoutput_"
_POSITION = ("_pgoutput_commit_lsn", "_pgoutput_seq", "_pgoutput_op")
#: Values of ``_pgoutput_op``.
_COPIED, _TRUNCATE, _DELETE = "C", "T", "D"


class Tables:
    """The tables of a source and what a pipeline makes of them."""

    def __init__(self, pipeline: Pipeline, logs: Sequence[str] = ()) -> None:
        """
        :param logs: tables, as ``schema.table``, that are change logs in the lake.
        """
        self.pipeline = pipeline
        self._logs = frozenset(logs)
        self.set_targets({})
        self.batches: list[Batch] = []

    def set_targets(self, targets: dict[str, str]) -> None:
        """Options by table from now on: names in the lake; what is a log stays one."""
        self.pipeline.plan_options["table_options"] = {
            name: TableOptions(
                target=targets.get(name), mode=CHANGE_LOG if name in self._logs else None
            )
            for name in {*self._logs, *targets}
        }

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements at the source, each by itself; the rows of the last one."""
        with connect(self.pipeline.conninfo) as session:
            for statement in statements:
                cursor = session.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def run(self, *statements: str, **options: Any) -> Manifest:
        """Run statements at the source, each by itself, then a whole run of the pipeline."""
        if statements:
            self.execute(*statements)
        batch = self.pipeline.stage(**options)
        self.pipeline.apply(batch)
        self.pipeline.advance()
        self.batches.append(batch)
        return batch.manifest

    def refused(
        self, error: type[PgoutputError], match: str, *, attempts: int = 2, **options: Any
    ) -> str | None:
        """Runs are refused and leave everything as it was; the table that the error names."""
        before = self.state()
        for _attempt in range(attempts):
            with pytest.raises(error, match=match) as refusal:
                self.run(**options)
            assert refusal.value.advice
        assert self.state() == before
        return refusal.value.table

    def state(self) -> tuple[Any, ...]:
        """What a run that is refused, or repeated, must leave as it was."""
        pipeline = self.pipeline
        return (pipeline.confirmed_flush_lsn(), pipeline.checkpoint(), pipeline.snapshot_ids())

    def assert_repeatable(self) -> None:
        """Batches that are applied again change nothing."""
        before = self.state()
        for batch in self.batches:
            self.pipeline.apply(batch)
        assert self.state() == before

    def assert_equal(self, *names: str, key: str = "a") -> None:
        """The lake holds of these tables what the source holds.

        :param names: tables as ``schema.table``, or of the schema ``public``.
        :param key: the column that tells rows of a change log apart.
        """
        for name in names:
            self.assert_holds(name, self.source_rows(name), key=key)

    def assert_holds(
        self, name: str, rows: Counter[Row], *, target: str | None = None, key: str = "a"
    ) -> None:
        """The lake holds these rows.

        :param rows: as ``source_rows`` returns them.
        :param target: the table of the lake, where its name is not that of the source's.
        """
        found = self.lake_rows(name, target=target, key=key)
        assert found == rows, f"{name}: {difference(found, rows)}"

    def source_rows(self, name: str) -> Counter[Row]:
        """All rows of a table of the source, each value as text."""
        columns = self._columns(name)
        assert columns, name
        query = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(c)) for c in columns),
            sql.Identifier(*_split(name)),
        )
        with connect(self.pipeline.conninfo) as session:
            return Counter(session.execute(query).fetchall())

    def lake_rows(
        self,
        name: str,
        *,
        target: str | None = None,
        key: str = "a",
        columns: Sequence[str] = (),
    ) -> Counter[Row]:
        """What the lake says that a table holds, in these columns or in those that the source has now."""
        target = target or self.pipeline.plan(self.batches[0]).target_name(*_split(name))
        found = self._read(target)
        columns = (
            columns
            or self._columns(name)
            or tuple(each for each in found.column_names if not each.startswith(_METADATA))
        )
        if ".".join(_split(name)) in self._logs:
            return _folded(found.select([*_POSITION, *columns]).to_pylist(), columns, key)
        return Counter(_texts(row, columns) for row in found.select(columns).to_pylist())

    def _read(self, target: str) -> Any:
        pipeline = self.pipeline
        catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
        found = catalog.load_table((pipeline.namespace, target)).scan().to_arrow()
        columns = [
            each
            for each in found.column_names
            if each in _POSITION or not each.startswith(_METADATA)
        ]
        name = quoted(CATALOG, pipeline.namespace, target)
        pipeline.spark.catalog.refreshTable(name)
        frame = pipeline.spark.table(name).select(*map(quoted, columns))
        by_spark = Counter(_texts(row.asDict(), columns) for row in frame.collect())
        rows = Counter(_texts(row, columns) for row in found.to_pylist())
        assert by_spark == rows, f"Spark reads {target} so: {difference(by_spark, rows)}"
        return found

    def _columns(self, name: str) -> tuple[str, ...]:
        """Columns of a table of the source; none where it is gone."""
        with connect(self.pipeline.conninfo) as session:
            return source_columns(session, *_split(name))


def _folded(entries: list[dict[str, Any]], columns: Sequence[str], key: str) -> Counter[Row]:
    """The rows that a change log leaves."""
    lsn, seq, op = _POSITION
    positions = [(entry[lsn], entry[seq]) for entry in entries]
    assert len(set(positions)) == len(positions), "a position stands in the log twice"
    newest = max((entry[lsn] for entry in entries if entry[op] == _COPIED), default=0)
    held: dict[Any, Row] = {}
    for entry in sorted(entries, key=lambda each: (each[lsn], each[seq])):
        if entry[lsn] < newest:
            continue
        if entry[op] == _TRUNCATE:
            held.clear()
        elif entry[op] == _DELETE:
            held.pop(entry[key], None)
        else:
            held[entry[key]] = _texts(entry, columns)
    return Counter(held.values())


def _texts(row: dict[str, Any], columns: Sequence[str]) -> Row:
    return tuple(None if row[each] is None else str(row[each]) for each in columns)


def _split(name: str) -> tuple[str, str]:
    schema, _, table = name.rpartition(".")
    return schema or "public", table
