"""Prepares one table: does everything the batch does to it, on a branch that nobody reads yet.

Before it, ``table/start.py`` checks the table. After it, ``publish.py`` publishes the branch.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.damage import damage
from airflow_provider_pgoutput.apply.iceberg.failures import failure, unnamed
from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS
from airflow_provider_pgoutput.apply.iceberg.sql import Sql, partition_transform
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable, discard
from airflow_provider_pgoutput.apply.rows import (
    apply_few,
    apply_keyed,
    apply_keyless,
    change_log,
    history,
    quarantine,
    user_columns,
)
from airflow_provider_pgoutput.apply.rows import segments as versions
from airflow_provider_pgoutput.apply.rows.key_events import beside
from airflow_provider_pgoutput.apply.rows.table_state import TableState
from airflow_provider_pgoutput.apply.schema import evolve
from airflow_provider_pgoutput.apply.schema.column_layout import (
    lay_out,
    refuse_lost_columns,
)
from airflow_provider_pgoutput.apply.schema.column_map import is_other_table
from airflow_provider_pgoutput.apply.schema.partitioning import lost_columns
from airflow_provider_pgoutput.apply.table.constant_columns import constants_to_json
from airflow_provider_pgoutput.apply.table.target import OP_COLUMN, Target, properties
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_CONSTANTS
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError, PublishRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.apply.iceberg.session import Sessions
    from airflow_provider_pgoutput.apply.rows.branch import Preparation, Prepared
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.apply.table.start import Start


log = logging.getLogger(__name__)


_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_BYTES_OF_A_PARTITION = 32 << 20


#: How Spark splits the files that it reads.
_SPLITS = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
#: A task reads at least and at most so much of a copied file.
_SPLIT_BYTES = 16 << 20, 128 << 20


#: Size of a row group in a table with a key. Row groups without a wanted key are skipped, so small ones help.
_ROW_GROUP_BYTES = 16 << 20


class TablePreparation(TableState):
    """Prepares one table with Spark: its copy first, then its changes in order."""

    def write(self) -> None:
        """See ``Preparation``."""
        self.look()
        self.empty = self.table is None or self.table.is_empty
        if self.start.copies:
            self._copy()
        segments = self.segments()
        if self.target.is_log:
            change_log.append_all(self, segments)
        elif self.target.is_history:
            history.apply_all(self, segments)
        else:
            self._apply(segments)

    def segments(self) -> list[versions.Segment]:
        """The versions of the table in the batch, with the columns of the target."""
        return versions.segments(self.layout.table, self.columns)

    def look(self) -> None:
        """Find the columns of the batch in the table.

        :raises TableRefused: a change of the columns cannot be followed.
        """
        job = self.batch.job
        keeps = self.target.options.keep_retyped_columns
        if not self.target.is_log and not self.start.copies:
            refuse_lost_columns(self.target.source, self.table)
        self._warn_of_unknown_names()
        system = self.batch.manifest.system_identifier
        self.is_other_table = is_other_table(self.table, self.target.renamed, system)
        self.layout = lay_out(
            self.target.renamed,
            self.table,
            starts=self._starts,
            copies=self.start.copies and not self.target.is_log,
            is_log=self.target.is_log,
            is_history=self.target.is_history,
            keeps_retyped=job.keep_retyped_columns if keeps is None else keeps,
            drop_columns=job.drop_columns,
            metadata=self.target.metadata,
            loaded=self.start.loaded,
            is_other_table=self.is_other_table,
        )
        source = self.layout.table
        self.columns = versions.merge_columns(source, self.layout.existing, self.layout.left_out)

    @property
    def _starts(self) -> tuple[str, ...]:
        """The LSNs at which attempts at this batch may have started, see ``retired_before_batch``."""
        found = (self.start.lake_lsn, self.batch.manifest.start_lsn)
        return tuple(str(each) for each in found if each is not None)

    def _warn_of_unknown_names(self) -> None:
        names = {each.name for version in self.target.source.versions for each in version.columns}
        if unknown := sorted(self.target.options.renamed_columns.keys() - names):
            log.warning(
                "%s: renamed_columns names columns that the table does not have: %s. That has no effect.",
                self.target.source.name,
                ", ".join(unknown),
            )

    def create(self) -> IcebergTable:
        """See ``Preparation``."""
        job, target, key = self.batch.job, self.target, self.unique_key
        constants = target.constants
        columns = [(each.name, each.lake_type, each.name in key) for each in self.columns]
        columns += [(name, kind, False) for name, kind in target.metadata.items()]
        defaults = {evolve.FORMAT_VERSION: str(job.format_version)}
        for statement in ("delete", "update", "merge"):
            defaults[f"write.{statement}.mode"] = job.write_mode
        # Older versions of Iceberg put the deletes of many data files into one file. Who reads one data file
        # then reads the deletes of all of them.
        defaults["write.delete.granularity"] = "file"
        if self.key:
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
                **({PROPERTY_CONSTANTS: constants_to_json(constants)} if constants else {}),
            },
            partitioned_by=[partition_transform(each) for each in target.options.partitioned_by],
            log_level=self.batch.level_of_tables,
        )

    def _copy(self) -> None:
        """Replace the table's rows by the copied rows. A change log and a history keep theirs."""
        rows = versions.read_copy(self.spark, self.batch, self.layout.table, self.columns)
        remasked = self.remasked()
        self.begin_notes_anew()
        if rows is not None and self.key and (self.counts.rejected or self.counts.null_keys):
            rows = self._with_keys(rows)
        writer = self.writer()
        # If the source's key is new, or has another mask, no row of the target can be found by it.
        is_held = set(self.key) <= set(self.layout.existing) and remasked.isdisjoint(self.key)
        held_key = self.key if is_held else ()
        if self.target.is_history:
            history.copy(self, rows, held_key, remasked)
            reach("apply.after_copy")
            return
        kept: dict[str, Sql] = {}
        if rows is not None and not self.empty and not self.target.is_log:
            rows, kept = user_columns.over_copy(self, rows, held_key, remasked)
        if self.soft_delete and held_key and not self.empty:
            if rows is not None:
                names = [each.name for each in self.columns]
                writer.delete_keys(rows, [names.index(each) for each in self.key])
            # Rows may have NULL in the key: it may be a column that came later, or that an attempt at this
            # batch added.
            writer.delete_without_key(self.key)
            writer.mark_all_deleted(OP_COLUMN)
            # Nobody can give deleted rows the mask of now. Their values may be plain.
            columns = writer.rows_as_they_are().columns
            writer.set_null([each for each in columns if each in remasked])
        elif not self.target.is_log:
            if not self.empty:
                writer.delete_all()
            self.empty = True
        elif not self.empty and not self.counts.copied:
            change_log.append_end(self)
        if rows is not None:
            extra = change_log.of_copy(self.start.floor, numbered=self.target.is_log)
            writer.append(rows, extra | kept)
            self.note_rows(self.counts.copied)
        reach("apply.after_copy")

    def _with_keys(self, rows: DataFrame) -> DataFrame:
        """The copied rows. Those without a key are refused, or go to the quarantine."""
        at = {each.name: i for i, each in enumerate(self.columns)}
        if self.notes.keeps:
            key = [at[name] for name in self.key]
            floor = int(self.start.floor)
            return quarantine.copied_with_key(self.notes, rows, self.columns, key, floor)
        names = {staged.new(at[name]): name for name in self.key}
        apply_keyed.refuse_null_keys(rows, self.target.source.name, names)
        return rows

    def _apply(self, segments: list[versions.Segment]) -> None:
        """Apply the segments in order. A truncate makes all changes before it irrelevant."""
        if self.entries() is None and apply_few.apply(self, segments):
            return
        truncated = self._last_truncate(segments) if self.counts.truncates else None
        if truncated is None:
            self._apply_each(segments)
            return
        number, lsn, seq = truncated
        if self.soft_delete:
            # With soft delete, truncated rows stay with the last values that they had.
            self._apply_each(segments[: number + 1], until=beside(Sql("<"), lsn, seq))
        self.begin_notes_anew()
        self._empty_target()
        self._apply_each(segments[number:], since=beside(Sql(">"), lsn, seq))

    def _apply_each(
        self,
        segments: list[versions.Segment],
        *,
        since: Sql | None = None,
        until: Sql | None = None,
    ) -> None:
        """Apply segments in order.

        :param since: SQL: which changes of the first segment are applied; None: all.
        :param until: SQL: which changes of the last segment are applied; None: all.
        """
        for number, segment in enumerate(segments):
            changes, ends = self.read(segment), number == len(segments) - 1
            if self.counts.truncates:
                changes = changes.where(F.col(staged.OP) != staged.TRUNCATE)
            if since is not None and number == 0:
                changes = changes.where(since)
            if until is not None and ends:
                changes = changes.where(until)
            apply = apply_keyed.apply if segment.key else apply_keyless.apply
            apply(self, segment, changes, ends and until is None)

    def _last_truncate(self, segments: list[versions.Segment]) -> tuple[int, int, int] | None:
        """The newest truncate at or past the floor: number of its segment, and its position."""
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
    sessions: Sessions,
    batch: StagedBatch,
    target: Target,
    start: Start,
    kind: type[Preparation] = TablePreparation,
) -> Prepared | None:
    """Prepare one table on a branch; None: the batch changes nothing in it.

    :param kind: writes the rows.
    :raises RowMissing: an update leaves out values of a row that the target does not have.
    :raises TableRefused: the schema changed in a way that Iceberg cannot follow.
    :raises TableDamaged: a file of the target is missing or damaged.
    :raises PublishRefused: another driver took over the batch.
    :raises CommitStateUnknown: the catalog did not say whether the branch has the rows. The branch is
        removed.
    """
    began = time.monotonic()
    with sessions.of_table(settings_of(sessions.spark, target)) as session:
        preparation = kind(session, batch, target, start)
        try:
            prepared = named_run(preparation)
        except (PgoutputError, *JAVA_ERRORS):
            discard(sessions.spark, target.name, preparation.branch)
            raise
    log.log(
        batch.level_of_tables,
        "%s: %s in %.2f s.",
        target.name.target,
        "nothing to change" if prepared is None else f"prepared {preparation.counted}",
        time.monotonic() - began,
    )
    return prepared


def named_run(preparation: Preparation) -> Prepared | None:
    """Run a preparation. What Java raises becomes one of our errors."""
    try:
        return preparation.run()
    except JAVA_ERRORS as error:
        table = preparation.target.name.target
        if preparation.lost_its_branch():
            raise PublishRefused("Another driver took this batch over.", table=table) from error
        if damaged := damage(preparation.spark, preparation.target.name, error):
            raise damaged from error
        if named := failure(error, table):
            raise named from error
        found = IcebergTable.load(preparation.spark, preparation.target.name)
        raise (found and lost_columns(found)) or unnamed(error, table) from error


def settings_of(spark: SparkSession, target: Target) -> dict[str, str]:
    """Settings of a session that suit the size of the table's staged files.

    :param spark: the job's session.
    """
    staged_bytes = sum(
        file.size_bytes for version in target.source.versions for file in version.files
    )
    cores = spark.sparkContext.defaultParallelism
    wanted = max(cores, 4 * staged_bytes // _BYTES_OF_A_PARTITION)
    configured = int(spark.conf.get(_SHUFFLE_PARTITIONS) or 200)
    settings = {_SHUFFLE_PARTITIONS: str(min(wanted, max(configured, cores)))}
    if not target.is_log and any(f.kind == "copy" for v in target.source.versions for f in v.files):
        return settings | _splits_of_single_files(staged_bytes // cores)
    # Set back to the job's own: another table may have changed them.
    return settings | {key: str(spark.conf.get(key)) for key in _SPLITS}


def _splits_of_single_files(wanted_bytes: int) -> dict[str, str]:
    """Settings with which no task reads parts of several staged files.

    Copied rows that are near each other at the source often have near keys. A task with parts of several
    files would write files with keys from all over the table.
    """
    least, most = _SPLIT_BYTES
    return dict.fromkeys(_SPLITS, str(max(least, min(most, wanted_bytes))))
