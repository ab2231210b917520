"""The judge of every fault test: the invariants I1 to I8 of ``docs/explanation/guarantees.md``.

It remembers what the source held whenever the test said so, and compares the lake with that. It
reads the lake with pyiceberg's metadata and Spark's rows, and nothing of the package but names.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX
from tests.conformance.compare import (
    connect,
    difference,
    lake_fields,
    quoted,
    read_lake,
    read_source,
    source_columns,
)
from tests.conformance.pipeline import CATALOG
from tests.faults.slot_watch import kept_up_to
from tests.faults.workload import LOG_TABLE, UPSERT_TABLES

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from tests.chaos.in_lake import Way
    from tests.conformance.pipeline import Batch, Pipeline
    from tests.conformance.scenario import Row
    from tests.faults.slot_watch import SlotWatch

State = dict[str, Counter["Row"]]


@dataclass
class Judge:
    """Judges one pipeline, from its first run to its last."""

    pipeline: Pipeline
    watch: SlotWatch
    #: What the source held at each time that a batch could end at, the latest last.
    states: list[State] = field(default_factory=list)
    #: Whether what a killed attempt began may still write when the next attempt has cleared it away; a branch
    #: that this makes goes for its age. Else the last attempt at a batch leaves none.
    writers_live_on: bool = False
    #: What happens to the rows of a table on the way, by the table's name.
    ways: dict[str, Way] = field(default_factory=dict)
    #: Keys of ``account`` whose rows may be in the quarantine, as the lake prints them.
    quarantined: set[str] = field(default_factory=set)
    _greatest_checkpoint: Lsn | None = None

    def remember_source(self) -> None:
        """Take the source's present rows as a state that the lake may be in."""
        with connect(self.pipeline.conninfo) as session:
            self.states.append({table: self._source(session, table) for table in UPSERT_TABLES})

    def _source(self, session: Any, table: str) -> Counter[Row]:
        """The rows that the lake has to have when it has what the source has now."""
        fields = self._fields(session, table)
        way = self.ways.get(table)
        if way is None:
            return read_source(session, "public", table, fields)
        names = [each.name for each in fields]
        columns = ", ".join(f"{name}::text" for name in names)
        query = f"SELECT {columns} FROM {table} WHERE {way.condition or 'true'}"
        found: Counter[Row] = Counter()
        for values in session.execute(query).fetchall():
            found[tuple(map(way.masked_text, names, values))] += 1
        return found

    def after_any_run(self) -> None:
        """I1 per table, I4, I5 and I7: what must hold after a task, however it ended."""
        self.check_positions()
        published = self.pipeline.snapshot_ids()
        for table in UPSERT_TABLES:
            if published.get(table) is None:
                continue  # Not created or not published yet: the state before the first batch.
            found = self._lake(table)
            assert any(self._is(table, found, state[table]) for state in self.states), (
                f"I1: {table} is in no state that the source was in; against the latest: "
                f"{difference(found, self.states[-1][table])}"
            )

    def _is(self, table: str, found: Counter[Row], state: Counter[Row]) -> bool:
        """Whether the lake has a state of the source. Rows in the quarantine may be missing, and no other."""
        missing = state - found
        return not found - state and all(
            table == "account" and str(row[0]) in self.quarantined for row in missing
        )

    def check_positions(self) -> None:
        """I4 and I5: the slot is not past what is kept now, and the checkpoint never goes back."""
        confirmed = self.pipeline.confirmed_flush_lsn()
        checkpoint = self.pipeline.checkpoint()
        end = checkpoint.end_lsn if checkpoint else None
        if self._greatest_checkpoint is not None:
            assert end is not None, "I5: the checkpoint is gone"
            assert end >= self._greatest_checkpoint, "I5: the checkpoint went back"
        self._greatest_checkpoint = end
        kept = kept_up_to(self.pipeline)
        if confirmed is not None and kept is not None:
            assert confirmed <= kept, f"I4: the slot is at {confirmed}, what is kept ends at {kept}"

    def at_the_end(
        self, batches: list[Batch], journal_changes: int, *, pruned: bool = False
    ) -> None:
        """Everything, once the pipeline has caught up with the source.

        :param batches: those that were applied, in order.
        :param pruned: only the last of them is staged still.
        :param journal_changes: committed row changes of the change log's table.
        """
        self.check_positions()
        self._check_watch(batches[0].manifest.start_lsn)
        for table in UPSERT_TABLES:
            unequal = difference(self._lake(table), self.states[-1][table])
            assert not unequal, f"I1, I2: {table}: {unequal}"
        self._check_log(journal_changes)
        self._check_repetition(batches[-1:] if pruned else batches)
        self._check_references()

    def _check_watch(self, created_at: Lsn) -> None:
        """I4 at every instant, as far as a look every few milliseconds sees it."""
        self.watch.wait_for_a_look()
        confirmed = self.pipeline.confirmed_flush_lsn()
        assert self.watch.sightings[-1].confirmed == confirmed, "the watch missed the last move"
        early = self.watch.early(created_at)
        assert not early, f"I4: the slot was past the checkpoint: {early}"

    def _check_log(self, journal_changes: int) -> None:
        """I2 and I3 on the change log: each change once, and its replay gives the source."""
        self.pipeline.spark.catalog.refreshTable(self._identifier(LOG_TABLE))
        log = self.pipeline.spark.table(self._identifier(LOG_TABLE))
        rows = log.collect()
        streamed = [row for row in rows if row["_pgoutput_op"] != "C"]
        positions = Counter((row["_pgoutput_commit_lsn"], row["_pgoutput_seq"]) for row in streamed)
        twice = [position for position, count in positions.items() if count > 1]
        assert not twice, f"I3: {len(twice)} positions are in the change log more than once"
        assert len(streamed) == journal_changes, (
            f"I2: {len(streamed)} changes in the log, {journal_changes} were committed"
        )
        with connect(self.pipeline.conninfo) as session:
            source = dict(session.execute("SELECT id, v FROM journal").fetchall())
        if (way := self.ways.get(LOG_TABLE)) is not None:
            source = {key: way.masked_text("v", value) for key, value in source.items()}
        assert replay(rows) == source, "I2: replaying the change log does not give the source"

    def _check_repetition(self, batches: list[Batch]) -> None:
        """I6: applying old batches and advancing again changes nothing."""
        before = self.pipeline.snapshot_ids()
        confirmed = self.pipeline.confirmed_flush_lsn()
        for batch in (batches[0], batches[-1]):
            self.pipeline.apply(batch)
        assert self.pipeline.snapshot_ids() == before, "I6: a batch was applied twice"
        self.pipeline.advance()
        self.pipeline.advance()
        advanced = self.pipeline.confirmed_flush_lsn()
        assert advanced is not None
        assert confirmed is not None
        assert advanced >= confirmed, "I6: the slot went back"
        self.check_positions()

    def _check_references(self) -> None:
        """I7: nobody reads what a dead attempt left; main is what the newest batch published."""
        catalog = load_catalog(CATALOG, **self.pipeline.catalog_properties)
        for table in (*UPSERT_TABLES, LOG_TABLE):
            references = catalog.load_table((self.pipeline.namespace, table)).metadata.refs
            tags = [ref for name, ref in references.items() if name.startswith("pgoutput_")]
            main = references["main"].snapshot_id
            assert any(ref.snapshot_id == main for ref in tags), f"I7: no tag on {table}'s main"
            left = [
                name
                for name, ref in references.items()
                if ref.snapshot_ref_type == "branch" and name.startswith(BRANCH_PREFIX)
            ]
            assert self.writers_live_on or not left, f"I7: branches are left on {table}: {left}"

    def _lake(self, table: str) -> Counter[Row]:
        spark, name = self.pipeline.spark, self._identifier(table)
        spark.catalog.refreshTable(name)
        fields = lake_fields(spark, name)
        with connect(self.pipeline.conninfo) as session:
            columns = source_columns(session, "public", table)
        return read_lake(spark, name, [fields[column] for column in columns])

    def _identifier(self, table: str) -> str:
        return quoted(CATALOG, self.pipeline.namespace, table)

    def _fields(self, session: Any, table: str) -> list[StructField]:
        from pyspark.sql.types import StringType, StructField

        # Every type of the workload's tables has one text form on both sides.
        return [
            StructField(name, StringType()) for name in source_columns(session, "public", table)
        ]


def replay(rows: list[Any]) -> dict[int, str | None]:
    """The rows that a change log of ``journal`` leads to."""
    found: dict[int, str | None] = {}
    ordered = sorted(
        rows, key=lambda row: (row["_pgoutput_commit_lsn"] or 0, row["_pgoutput_seq"] or 0)
    )
    for row in ordered:
        if row["_pgoutput_op"] == "T":
            found.clear()
        elif row["_pgoutput_op"] == "D":
            del found[row["id"]]
        else:
            found[row["id"]] = row["v"]
    return found
