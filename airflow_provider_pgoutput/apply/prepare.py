"""Prepares one table: everything the batch does to it, on a branch that nobody reads yet.

What is not here: the checks before it (``target.py``), the publishing after it (``publish.py``).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply import carry, evolve, keyed, keyless, log, versions
from airflow_provider_pgoutput.apply.branching import Preparation
from airflow_provider_pgoutput.apply.defaults import missing_value
from airflow_provider_pgoutput.apply.failures import failure, unnamed
from airflow_provider_pgoutput.apply.iceberg import IcebergTable, discard
from airflow_provider_pgoutput.apply.java import JAVA_ERRORS
from airflow_provider_pgoutput.apply.layout import Layout, lay_out, refuse_lost_columns
from airflow_provider_pgoutput.apply.names import Sql, partition_transform
from airflow_provider_pgoutput.apply.partitioning import lost_columns
from airflow_provider_pgoutput.apply.target import OP_COLUMN, Start, Target, properties
from airflow_provider_pgoutput.apply.write import BranchWriter
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError, PublishRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.apply.branching import Prepared
    from airflow_provider_pgoutput.apply.staged import StagedBatch
    from airflow_provider_pgoutput.batch.manifest import Column

logger = logging.getLogger(__name__)

#: Of Iceberg's write-audit-publish: with them a table of ``write.wap.enabled`` has commits staged outside of
#: every branch, or written to another one. https://iceberg.apache.org/docs/latest/spark-configuration/
_OF_AUDITS = ("spark.wap.id", "spark.wap.branch")
#: Keys up to this size are sent to every executor, so that the target need not be shuffled.
_BROADCAST_BYTES = 64 << 20
_BYTES_OF_A_PARTITION = 32 << 20
#: Changes that one task folds and writes sooner than several share them out; their rows are one file, too.
_ROWS_OF_ONE_TASK, _BYTES_OF_ONE_TASK = 50_000, 8 << 20
#: What a task reads of a copy's file at least and at most.
_SPLIT_BYTES = 16 << 20, 128 << 20
#: What a row group of a table with a key has: those without a wanted key are not read, and a batch has few.
_ROW_GROUP_BYTES = 16 << 20


class TablePreparation(Preparation):
    """The preparation of one table with Spark: state that its steps share."""

    def __init__(
        self, spark: SparkSession, batch: StagedBatch, target: Target, start: Start
    ) -> None:
        super().__init__(spark, batch, target, start)
        self.counts = target.source.counts
        self.soft_delete = batch.plan.soft_delete and not target.is_log
        self.columns: tuple[Column, ...] = ()
        self.layout = Layout(target.source)
        #: The branch is known to hold no rows: nothing can be deleted from it.
        self.empty = False

    def write(self) -> None:
        """See ``Preparation``."""
        plan = self.batch.plan
        if not self.target.is_log and not self.start.copies:
            refuse_lost_columns(self.target.source, self.table)
        self.layout = lay_out(
            self.target.source,
            self.table,
            starts=self._starts,
            copies=self.start.copies and not self.target.is_log,
            is_log=self.target.is_log,
            type_changes=self.target.options.type_changes or plan.type_changes,
            drop_columns=plan.drop_columns,
            metadata=self.target.metadata,
            loaded=self.start.loaded,
        )
        source = self.layout.table
        self.columns = versions.merge_columns(source, self.layout.existing, self.layout.left_out)
        self.empty = self.table is None or self.table.is_empty
        if self.start.copies:
            self._copy()
        segments = versions.segments(source, self.columns)
        if self.target.is_log:
            log.append_all(self, segments)
        else:
            self._apply(segments)

    def read(self, segment: versions.Segment) -> DataFrame:
        """The segment's changes at or past the floor; few of them in one partition."""
        changes = versions.read_changes(
            self.spark, self.batch, self.layout.table, segment, self.start.floor
        )
        return changes.coalesce(1) if _are_few(segment) else changes

    def evolve(self, table: IcebergTable) -> evolve.Evolved:
        """See ``Preparation``."""
        ours = properties(self.target, self.batch.manifest)
        return evolve.evolve(
            self.spark, table, self.columns, self._key, ours, self.target.metadata, self.layout
        )

    def open_branch(self, table: IcebergTable) -> BranchWriter:
        """See ``Preparation``."""
        writer = BranchWriter(self.spark, table, self.branch, self.columns)
        # The rows of a copy have all their values, and replace those that would be filled in.
        replaced = self.start.copies and not self.target.is_log
        for column in self.columns:
            if column.name in self.evolved.lacking and not replaced:
                writer.fill(column.name, missing_value(column, self.target.source.name))
        return writer

    @property
    def _starts(self) -> tuple[str, ...]:
        """Where attempts at what this batch brings may start; see ``recorded.begun_counts``."""
        found = (self.start.lake_lsn, self.batch.manifest.start_lsn)
        return tuple(str(each) for each in found if each is not None)

    @property
    def _key(self) -> tuple[str, ...]:
        return () if self.target.is_log else self.layout.table.versions[-1].key_columns

    def create(self) -> IcebergTable:
        """See ``Preparation``."""
        plan, target, key = self.batch.plan, self.target, self._key
        columns = [(each.name, each.lake_type, each.name in key) for each in self.columns]
        columns += [(name, kind, False) for name, kind in target.metadata.items()]
        defaults = {"format-version": str(plan.format_version)}
        for statement in ("delete", "update", "merge"):
            defaults[f"write.{statement}.mode"] = plan.write_mode
        if key:
            defaults["write.parquet.row-group-size-bytes"] = str(_ROW_GROUP_BYTES)
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
            partitioned_by=[partition_transform(each) for each in target.options.partitioned_by],
        )

    def _copy(self) -> None:
        """Replace what the table holds by the rows of the copy."""
        rows = versions.read_copy(self.spark, self.batch, self.layout.table, self.columns)
        writer = self.writer()
        # Not of a key that was made anew: nothing would be found by it.
        held_key = self._key if set(self._key) <= set(self.layout.existing) else ()
        kept: dict[str, Sql] = {}
        if rows is not None and not self.empty and not self.target.is_log:
            rows, kept = carry.over_copy(self, rows, held_key)
        if self.soft_delete and held_key and not self.empty:
            if rows is not None:
                names = [each.name for each in self.columns]
                writer.delete_keys(rows, [names.index(each) for each in self._key])
            # Their key may be a column that came later, or that an attempt of this batch added.
            writer.delete_without_key(self._key)
            writer.mark_all_deleted(OP_COLUMN)
        elif not self.target.is_log:
            if not self.empty:
                writer.delete_all()
            self.empty = True
        if rows is not None:
            if self.counts.rejected and self._key:
                at = {each.name: staged.new(i) for i, each in enumerate(self.columns)}
                key = {at[name]: name for name in self._key}
                keyed.refuse_null_keys(rows, self.target.source.name, key)
            extra = log.of_copy(self.start.floor, numbered=self.target.is_log)
            writer.append(rows, extra | kept)
            self.counted["appended"] += self.counts.copied
            self.empty = False
        reach("apply.after_copy")

    def _apply(self, segments: list[versions.Segment]) -> None:
        """Apply the segments in order; a truncate voids all that came before it."""
        truncated = self._last_truncate(segments) if self.counts.truncates else None
        if truncated is None:
            self._apply_each(segments)
            return
        number, lsn, seq = truncated
        position, truncate = f"struct({staged.COMMIT_LSN}, {staged.SEQ})", f"struct({lsn}L, {seq}L)"
        if self.soft_delete:
            # What was truncated stays, with the last values that it had.
            self._apply_each(segments[: number + 1], until=Sql(f"{position} < {truncate}"))
        self._empty_target()
        self._apply_each(segments[number:], since=Sql(f"{position} > {truncate}"))

    def _apply_each(
        self,
        segments: list[versions.Segment],
        *,
        since: Sql | None = None,
        until: Sql | None = None,
    ) -> None:
        """Apply segments in order, the first one since a position, or the last one until one."""
        for number, segment in enumerate(segments):
            changes, ends = self.read(segment), number == len(segments) - 1
            if self.counts.truncates:
                changes = changes.where(F.col(staged.OP) != staged.TRUNCATE)
            if since is not None and number == 0:
                changes = changes.where(since)
            if until is not None and ends:
                changes = changes.where(until)
            apply = keyed.apply if segment.key else keyless.apply
            apply(self, segment, changes, ends and until is None)

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
    spark: SparkSession,
    batch: StagedBatch,
    target: Target,
    start: Start,
    kind: type[Preparation] = TablePreparation,
) -> Prepared | None:
    """Prepare one table on a branch; None when the batch changes nothing in it.

    :param kind: what writes the rows.
    :raises RowMissing: the target lacks a row of which an update leaves values out.
    :raises TableRefused: the schema changed in a way that Iceberg cannot follow.
    :raises PublishRefused: another driver took the batch over.
    :raises CommitStateUnknown: the catalog did not say whether the branch has the rows; it goes.
    """
    began = time.monotonic()
    preparation = kind(own_session(spark, target), batch, target, start)
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


def _run(preparation: Preparation) -> Prepared | None:
    try:
        return preparation.run()
    except JAVA_ERRORS as error:
        table = preparation.target.name.target
        if preparation.lost_its_branch():
            raise PublishRefused("Another driver took this batch over.", table=table) from error
        if named := failure(error, table):
            raise named from error
        found = IcebergTable.load(preparation.spark, preparation.target.name)
        raise (found and lost_columns(found)) or unnamed(error, table) from error


def isolated(spark: SparkSession) -> SparkSession:
    """A session with the same catalogs whose settings and views no other thread sees."""
    java: Any = spark._jsparkSession
    session = type(spark)(spark.sparkContext, java.cloneSession())
    for key, value in {
        # Text of the source stands in statements: it must not read Spark's variables.
        "spark.sql.variable.substitute": "false",
        # PostgreSQL's names that differ only in case are different names.
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.autoBroadcastJoinThreshold": str(_BROADCAST_BYTES),
        "spark.sql.iceberg.check-nullability": "false",
        # Old defaults that some clusters keep: each gives other values, or none, without a word.
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.legacy.timeParserPolicy": "CORRECTED",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.storeAssignmentPolicy": "ANSI",
        "spark.sql.parser.escapedStringLiterals": "false",
        # Folded rows are kept for the three statements that read them: packing them costs more than folding.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
    }.items():
        session.conf.set(key, value)
    for key in _OF_AUDITS:
        session.conf.unset(key)
    return session


def own_session(spark: SparkSession, target: Target) -> SparkSession:
    """An isolated session that reads and shuffles as the table's staged files deserve."""
    session = isolated(spark)
    staged_bytes = sum(
        file.size_bytes for version in target.source.versions for file in version.files
    )
    cores = spark.sparkContext.defaultParallelism
    wanted = max(cores, 4 * staged_bytes // _BYTES_OF_A_PARTITION)
    configured = int(spark.conf.get("spark.sql.shuffle.partitions") or 200)
    session.conf.set("spark.sql.shuffle.partitions", str(min(wanted, max(configured, cores))))
    if not target.is_log and any(f.kind == "copy" for v in target.source.versions for f in v.files):
        _read_apart(session, staged_bytes // cores)
    return session


def _are_few(segment: versions.Segment) -> bool:
    files = [file for v in segment.versions for file in v.files if file.kind == "changes"]
    rows, size_bytes = sum(each.rows for each in files), sum(each.size_bytes for each in files)
    return rows <= _ROWS_OF_ONE_TASK and size_bytes <= _BYTES_OF_ONE_TASK


def _read_apart(session: SparkSession, wanted_bytes: int) -> None:
    """Let no task read parts of several staged files.

    The rows of a copy are near each other at the source, and often by key; a task would make them files
    whose keys are all over the table.
    """
    least, most = _SPLIT_BYTES
    split = str(max(least, min(most, wanted_bytes)))
    session.conf.set("spark.sql.files.maxPartitionBytes", split)
    session.conf.set("spark.sql.files.openCostInBytes", split)
