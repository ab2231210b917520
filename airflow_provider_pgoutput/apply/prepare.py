"""Prepares one table: everything the batch does to it, on a branch that nobody reads yet.

What is not here: the checks before it (``target.py``), the publishing after it (``publish.py``).
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply import evolve, keyed, keyless, log, versions
from airflow_provider_pgoutput.apply.failures import failure
from airflow_provider_pgoutput.apply.iceberg import IcebergTable, discard
from airflow_provider_pgoutput.apply.java import JAVA_ERRORS
from airflow_provider_pgoutput.apply.layout import Layout, lay_out, refuse_lost_columns
from airflow_provider_pgoutput.apply.target import OP_COLUMN, Start, Target, properties
from airflow_provider_pgoutput.apply.write import BranchWriter
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX, marker_of
from airflow_provider_pgoutput.batch.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError, PublishRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_pgoutput.apply.staged import StagedBatch
    from airflow_provider_pgoutput.batch.manifest import Column

logger = logging.getLogger(__name__)

#: Keys up to this size are sent to every executor, so that the target need not be shuffled.
_BROADCAST_BYTES = 64 << 20
_BYTES_OF_A_PARTITION = 32 << 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table whose branch waits to be published."""

    target: Target
    branch: str
    #: Main's head when the branch was made.
    base: int | None
    #: The branch's own newest snapshot.
    head: int
    #: Columns whose value was written into older rows.
    filled: frozenset[str] = frozenset()
    #: Rows appended and keys deleted, as far as they were counted.
    counted: dict[str, int] = field(default_factory=dict)


class TablePreparation:
    """The preparation of one table: state that its steps share.

    :param spark: a session of its own, see ``own_session``.
    """

    def __init__(
        self, spark: SparkSession, batch: StagedBatch, target: Target, start: Start
    ) -> None:
        self.spark, self.batch, self.target, self.start = spark, batch, target, start
        self.counts = target.source.counts
        self.soft_delete = batch.plan.soft_delete and not target.is_log
        self.counted: dict[str, int] = {"appended": 0, "deleted_keys": 0}
        self.columns: tuple[Column, ...] = ()
        self.layout = Layout(target.source)
        self.branch = f"{BRANCH_PREFIX}{batch.manifest.batch_id[:16]}_{uuid.uuid4().hex[:8]}"
        self._table: IcebergTable | None = None
        self._writer: BranchWriter | None = None
        self._base: int | None = None
        self._filled: frozenset[str] = frozenset()
        #: The branch is known to hold no rows: nothing can be deleted from it.
        self.empty = False

    def run(self) -> Prepared | None:
        """Do all steps; None when the batch changes nothing in the table."""
        self._table = IcebergTable.load(self.spark, self.target.name)
        self._refuse_moved(self._table)
        plan = self.batch.plan
        if not self.target.is_log and not self.start.copies:
            refuse_lost_columns(self.target.source, self._table)
        self.layout = lay_out(
            self.target.source,
            self._table,
            start_lsn=str(self.batch.manifest.start_lsn),
            copies=self.start.copies and not self.target.is_log,
            is_log=self.target.is_log,
            type_changes=self.target.options.type_changes or plan.type_changes,
            drop_columns=plan.drop_columns,
            metadata=self.target.metadata,
        )
        source = self.layout.table
        self.columns = versions.merge_columns(source, self.layout.existing, self.layout.left_out)
        self.empty = self._table is None or self._table.is_empty
        if self.start.copies:
            self._copy()
        segments = versions.segments(source, self.columns)
        if self.target.is_log:
            log.append_all(self, segments)
        else:
            self._apply(segments)
        if self._writer is None:
            return None
        self._writer.mark(self.marker)
        reach("apply.before_publish")
        head = self._writer.head
        assert head is not None, "the branch was marked"
        return Prepared(self.target, self.branch, self._base, head, self._filled, self.counted)

    @property
    def marker(self) -> dict[str, str]:
        """The summary keys of the batch."""
        return marker_of(self.batch.manifest)

    def writer(self) -> BranchWriter:
        """The branch; made, and the table with it, when the first thing is to be written."""
        if self._writer is None:
            self._writer = self._make_branch()
        return self._writer

    def lost_its_branch(self) -> bool:
        """Whether somebody removed the branch while it was written."""
        if self._writer is None:
            return False
        table = IcebergTable.load(self.spark, self.target.name)
        return table is None or table.branch_head(self.branch) is None

    def read(self, segment: versions.Segment) -> DataFrame:
        """The segment's changes at or past the floor."""
        return versions.read_changes(
            self.spark, self.batch, self.layout.table, segment, self.start.floor
        )

    def _make_branch(self) -> BranchWriter:
        key = () if self.target.is_log else self.layout.table.versions[-1].key_columns
        table = self._table or self._create(key)
        ours = properties(self.target, self.batch.manifest)
        self._filled = evolve.evolve(
            self.spark, table, self.columns, key, ours, self.target.metadata, self.layout
        )
        table.create_branch(self.branch, self.start.head)
        # Whatever moved main until now moved it before the branch, so the fence would not see it.
        self._refuse_moved(table)
        self._base = self.start.head
        reach("apply.after_branch")
        self._table = table
        writer = BranchWriter(self.spark, table, self.branch, self.columns)
        # The rows of a copy have all their values, and replace those that would be filled in.
        replaced = self.start.copies and not self.target.is_log
        for column in self.columns:
            if column.name in self._filled and not replaced:
                writer.fill(column.name, versions.missing_value(column))
        return writer

    def _refuse_moved(self, table: IcebergTable | None) -> None:
        """Demand main's head to be the one on which floor and copy were decided."""
        if (None if table is None else table.head) != self.start.head:
            raise PublishRefused(
                "Main moved after the table was looked at.", table=self.target.name.target
            )

    def _create(self, key: tuple[str, ...]) -> IcebergTable:
        plan, target = self.batch.plan, self.target
        columns = [(each.name, each.lake_type, each.name in key) for each in self.columns]
        columns += [(name, kind, False) for name, kind in target.metadata.items()]
        defaults = {"format-version": str(plan.format_version)}
        for statement in ("delete", "update", "merge"):
            defaults[f"write.{statement}.mode"] = plan.write_mode
        return evolve.create_table(
            self.spark,
            target.name,
            columns,
            comment=f"PostgreSQL table {target.source.name}",
            properties={
                **defaults,
                **target.options.properties,
                **properties(target, self.batch.manifest),
            },
            partitioned_by=target.options.partitioned_by,
        )

    def _copy(self) -> None:
        """Replace what the table holds by the rows of the copy."""
        writer = self.writer()
        if not self.empty and not self.target.is_log:
            writer.delete_all()
        self.empty = not self.target.is_log
        rows = versions.read_copy(self.spark, self.batch, self.layout.table, self.columns)
        if rows is not None:
            writer.append(rows, log.of_copy(self.start.floor, numbered=self.target.is_log))
            self.counted["appended"] += self.counts.copied
            self.empty = False
        reach("apply.after_copy")

    def _apply(self, segments: list[versions.Segment]) -> None:
        """Apply the segments in order; a truncate voids all that came before it."""
        truncated = self._last_truncate(segments) if self.counts.truncates else None
        if truncated is not None:
            self._empty_target()
            segments = segments[truncated[0] :]
        for number, segment in enumerate(segments):
            changes = self.read(segment)
            if self.counts.truncates:
                changes = changes.where(F.col(staged.OP) != staged.TRUNCATE)
            if truncated is not None and number == 0:
                after = f"struct({staged.COMMIT_LSN}, {staged.SEQ})"
                changes = changes.where(f"{after} > struct({truncated[1]}L, {truncated[2]}L)")
            is_last = number == len(segments) - 1
            apply = keyed.apply if segment.key else keyless.apply
            apply(self, segment, changes, is_last)

    def _last_truncate(self, segments: list[versions.Segment]) -> tuple[int, int, int] | None:
        """Number of the segment and position of the newest truncate at or past the floor."""
        for number in reversed(range(len(segments))):
            truncates = self.read(segments[number]).where(F.col(staged.OP) == staged.TRUNCATE)
            position = F.expr(f"max(struct({staged.COMMIT_LSN}, {staged.SEQ}))").alias("p")
            found = truncates.agg(position).first()
            if found is not None and found["p"] is not None:
                return number, found["p"][staged.COMMIT_LSN], found["p"][staged.SEQ]
        return None

    def _empty_target(self) -> None:
        if self.empty:
            return
        if self.soft_delete:
            self.writer().mark_all_deleted(OP_COLUMN)
            return
        self.writer().delete_all()
        self.empty = True


def prepare(
    spark: SparkSession, batch: StagedBatch, target: Target, start: Start
) -> Prepared | None:
    """Prepare one table on a branch; None when the batch changes nothing in it.

    :raises RowMissing: the target lacks a row of which an update leaves values out.
    :raises TableRefused: the schema changed in a way that Iceberg cannot follow.
    :raises PublishRefused: another driver took the batch over.
    :raises CommitStateUnknown: the catalog did not say whether the branch has the rows; it goes.
    """
    began = time.monotonic()
    preparation = TablePreparation(own_session(spark, target), batch, target, start)
    try:
        prepared = _run(preparation)
    except (PgoutputError, *JAVA_ERRORS):
        discard(spark, target.name, preparation.branch)
        raise
    logger.info(
        "%s: %s in %.2f s.",
        target.name.target,
        "nothing to change" if prepared is None else f"prepared {preparation.counted}",
        time.monotonic() - began,
    )
    return prepared


def _run(preparation: TablePreparation) -> Prepared | None:
    try:
        return preparation.run()
    except JAVA_ERRORS as error:
        table = preparation.target.name.target
        if preparation.lost_its_branch():
            raise PublishRefused("Another driver took this batch over.", table=table) from error
        if named := failure(error, table):
            raise named from error
        raise


def isolated(spark: SparkSession) -> SparkSession:
    """A session with the same catalogs whose settings and views no other thread sees."""
    java: Any = spark._jsparkSession
    session = SparkSession(spark.sparkContext, java.cloneSession())
    for key, value in {
        # Text of the source stands in statements: it must not read Spark's variables.
        "spark.sql.variable.substitute": "false",
        # PostgreSQL's names that differ only in case are different names.
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.autoBroadcastJoinThreshold": str(_BROADCAST_BYTES),
        "spark.sql.iceberg.check-nullability": "false",
        # Folded rows are kept for the three statements that read them: packing them costs more than folding.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
    }.items():
        session.conf.set(key, value)
    return session


def own_session(spark: SparkSession, target: Target) -> SparkSession:
    """An isolated session with as many shuffle partitions as the table's staged files deserve."""
    session = isolated(spark)
    staged_bytes = sum(
        file.size_bytes for version in target.source.versions for file in version.files
    )
    cores = spark.sparkContext.defaultParallelism
    wanted = max(cores, 4 * staged_bytes // _BYTES_OF_A_PARTITION)
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    partitions = min(wanted, max(configured, cores))
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    return session
