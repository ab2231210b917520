"""Reads and writes the checkpoint table: how far the lake is, by batch and by table.

Each commit to a table names its batch (a marker, see ``iceberg/table.py``). The markers are the truth. The
checkpoint table is an index of them. It can be rebuilt. Two drivers at once can leave two rows for one
batch. That changes no answer.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.failures import failure
from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.iceberg.views import refuse_view
from airflow_provider_pgoutput.apply.table.checkpoint_rows import SparkCheckpointRows, rows_of
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE, marker_of, skipped_text
from airflow_provider_pgoutput.batch.earlier_systems import from_text
from airflow_provider_pgoutput.batch.earlier_systems import to_text as earlier_text
from airflow_provider_pgoutput.batch.jobs import ReplayJob
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.passed_over import to_text
from airflow_provider_pgoutput.batch.set_aside import (
    Refusal,
    TableRow,
    set_aside_tables,
    staged_without,
)
from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import BatchRefused, CommitStateUnknown, TableRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.table.checkpoint_rows import CheckpointRows, Newest
    from airflow_provider_pgoutput.batch.jobs import WriteJob
    from airflow_provider_pgoutput.batch.manifest import Manifest, Table
    from airflow_provider_pgoutput.batch.passed_over import PassedOver
    from airflow_provider_pgoutput.batch.set_aside import SetAside

log = logging.getLogger(__name__)
_SPARK_ROWS = SparkCheckpointRows()


@dataclass(frozen=True, slots=True)
class Progress:
    """What the checkpoint table says about one slot."""

    #: End of the newest batch that the whole namespace has; None: there is none.
    end_lsn: Lsn | None = None
    #: End of the newest batch that changed a table, by target.
    tables: dict[str, Lsn] = field(default_factory=dict)
    #: The same for each table of the source, by its OID, and once more by target and name. Several of
    #: them may share a target.
    of_sources: dict[int | tuple[str, str], Lsn] = field(default_factory=dict)
    #: The newest target of each table of the source, by the source table's OID.
    target_of: dict[int, str] = field(default_factory=dict)
    #: The tables that are set aside, by OID.
    set_aside: dict[int, SetAside] = field(default_factory=dict)
    #: Systems with whole batches of the slot that are no part of the history of the batch's system.
    strangers: frozenset[str | None] = frozenset()
    #: Whether no batch of any slot is recorded in the namespace.
    is_first: bool = False

    def end_of(self, name: TableName, source: Table) -> Lsn | None:
        """End of the newest batch that changed a target, or its slice; None: none did.

        :param source: it may have been renamed, or made again with another OID.
        """
        if name.slice is None:
            return self.tables.get(name.target)
        # Another table may have had the name before. So the name counts only if the OID is new.
        by_name = self.of_sources.get((name.target, source.name))
        return self.of_sources.get(source.relation_oid, by_name)

    @property
    def exists(self) -> bool:
        """Whether the whole namespace has any batch of the slot. Rows of single tables do not count."""
        return self.end_lsn is not None


@dataclass(frozen=True, slots=True)
class Applied:
    """One table that a batch changed."""

    table: Table
    target: str
    snapshot_id: int


def table_name(job: WriteJob) -> TableName:
    """The checkpoint table of a namespace."""
    return TableName(job.catalog_name, job.namespace, CHECKPOINT_TABLE)


def read(
    spark: SparkSession, job: WriteJob, manifest: Manifest, rows: CheckpointRows = _SPARK_ROWS
) -> Progress:
    """Read what is recorded for the manifest's slot and system.

    :raises TableRefused: a view has the table's name, so nothing could be recorded.
    :raises BatchRefused: see ``_refuse_other_systems``.
    """
    name = table_name(job)
    table = IcebergTable.load(spark, name)
    if table is None:
        refuse_view(spark, name)
        return Progress(is_first=True)
    whole, tables, target_of = None, {}, {}
    of_sources: dict[int | tuple[str, str], Lsn] = {}
    of_tables: list[TableRow] = []
    strangers: set[str | None] = set()
    found = rows.newest(spark, table, manifest)
    _refuse_other_systems(manifest, found)
    renumbered = {e.earlier.oid: e.relation_oid for e in manifest.tables if e.earlier}
    of_now = [(manifest.system_identifier, e.relation_oid, e.name) for e in manifest.tables]
    later_names = manifest.systems.later_names(
        [*((row.system_identifier, row.relation_oid, row.table_name) for row in found), *of_now]
    )
    for row in found:
        end_lsn = Lsn.from_sortable(row.end_lsn)
        if not manifest.systems.have(row.system_identifier, end_lsn):
            if row.table_name is None:
                strangers.add(row.system_identifier)
            continue
        if row.table_name is None:
            whole = end_lsn
            continue
        oid = row.relation_oid
        if oid is not None and row.system_identifier != manifest.system_identifier:
            # Another table has its OID on a later system.
            names = later_names[str(row.system_identifier)].get(oid, {row.table_name})
            is_taken = oid in renumbered.values() or row.table_name not in names
            oid = renumbered.get(oid, -oid if is_taken else oid)
        if row.target is not None:
            tables[row.target] = end_lsn
            if oid is not None:
                target_of[oid] = row.target
                of_sources[oid] = end_lsn
                of_sources[row.target, row.table_name] = end_lsn
        if oid is not None:
            start_lsn = Lsn.from_sortable(row.start_lsn)
            of_tables.append(
                TableRow.recorded(
                    oid, row.table_name, start_lsn, end_lsn, row.set_aside, row.target
                )
            )
    set_aside = set_aside_tables(of_tables, manifest.systems.adopted_at)
    return Progress(
        whole,
        tables,
        of_sources,
        target_of,
        set_aside,
        frozenset(strangers),
        is_first=table.is_empty,
    )


def _refuse_other_systems(manifest: Manifest, rows: Sequence[Newest]) -> None:
    """Refuse a batch whose place the lake has filled by another system, or by another adoption.

    :raises BatchRefused: the lake has left the system of the batch. Or the batch adopts a system, and after
        the comparison the lake got a batch of the earlier one, or another batch that adopts the same system.
    """
    systems = manifest.systems
    is_applied = any(
        row.system_identifier == manifest.system_identifier
        and Lsn.from_sortable(row.end_lsn) >= manifest.end_lsn
        for row in rows
        if row.table_name is None
    )
    for row in rows:
        system, end_lsn = row.system_identifier, Lsn.from_sortable(row.end_lsn)
        follows = systems.have(system, end_lsn)
        # After its adoption a system leaves such rows out: a late apply of the earlier system wrote them.
        if manifest.adopts and not is_applied and systems.left(system, end_lsn):
            raise BatchRefused(
                f"System {manifest.system_identifier} was compared with the lake when the lake was at"
                f" {systems.adopted_at}. After that the lake got a batch of system {system} up to {end_lsn}.",
                slot=manifest.slot_name,
                lsn=end_lsn,
                advice="end what still stages or applies batches of the earlier system. Then adopt the new"
                " one again (PgoutputAdoptSourceOperator).",
            )
        is_inside = follows and manifest.start_lsn < end_lsn < manifest.end_lsn
        if manifest.adopts and row.table_name is None and is_inside:
            raise BatchRefused(
                f"Another batch that adopts system {system} was applied, up to {end_lsn}.",
                slot=manifest.slot_name,
                lsn=end_lsn,
                advice="the system is adopted. Let the pipeline's own DAG go on from there.",
            )
        left = {each.system_identifier for each in from_text(row.adopted_from)}
        if not follows and manifest.system_identifier in left:
            raise BatchRefused(
                f"The batch is of system {manifest.system_identifier}, and the lake has adopted system"
                f" {system} in its place.",
                slot=manifest.slot_name,
                lsn=end_lsn,
                advice="nothing is lost: the lake has what the adopted system has. End what still stages or"
                " applies batches of the earlier system.",
            )


def loaded(spark: SparkSession, name: TableName) -> IcebergTable:
    """The checkpoint table, which was there a moment ago.

    :raises TableRefused: somebody dropped it.
    """
    table = IcebergTable.load(spark, name)
    if table is None:
        raise TableRefused("The checkpoint table was dropped meanwhile.", table=name.target)
    return table


def snapshots_at(
    spark: SparkSession,
    job: WriteJob,
    manifest: Manifest,
    lsn: Lsn,
    keys: Mapping[int, str],
) -> dict[str, tuple[Lsn, tuple[int, ...]]]:
    """By target: where the newest batch up to ``lsn`` ends, and the snapshots of that batch, latest first.

    A table that no batch had changed by then is not in it. A batch has several snapshots of a table if two
    drivers applied it, or if it was replayed.

    :param keys: of slices of shared tables: what stands for the target, by the OID of the source's table.
    """
    name = table_name(job)
    if IcebergTable.load(spark, name) is None:
        return {}
    rows = (
        rows_of(spark, name, manifest)
        .where(F.col("target").isNotNull() & (F.col("end_lsn") <= lsn.sortable))
        .select("target", "relation_oid", "end_lsn", "applied_at", "snapshot_id")
        .orderBy(F.desc("end_lsn"), F.desc("applied_at"))
        .collect()
    )
    ends: dict[str, str] = {}
    found: dict[str, tuple[Lsn, tuple[int, ...]]] = {}
    for row in rows:
        target = keys.get(row["relation_oid"], row["target"])
        if ends.setdefault(target, row["end_lsn"]) == row["end_lsn"]:
            _, before = found.get(target, (None, ()))
            found[target] = (Lsn.from_sortable(row["end_lsn"]), (*before, row["snapshot_id"]))
    return found


def record(
    spark: SparkSession,
    job: WriteJob,
    manifest: Manifest,
    applied: Sequence[Applied],
    *,
    whole: bool = True,
    passed_over: tuple[PassedOver, ...] = (),
    set_aside: tuple[tuple[Table, Refusal], ...] = (),
    unchanged: tuple[Table, ...] = (),
    left: tuple[tuple[int, str], ...] = (),
    rows: CheckpointRows = _SPARK_ROWS,
) -> None:
    """Append rows in one commit: one for each table that is named here, and one for the batch.

    If no table changed or came back, and the namespace does not have the batch, nothing is written.

    :param whole: the whole namespace has the batch now. If not, there is no row for the batch.
    :param passed_over: tables that this apply passes over, in addition to those of the manifest. The row of
        the batch names them.
    :param set_aside: tables to which the batch was not applied, and why.
    :param unchanged: tables that were set aside and have the batch now, although it changed nothing in them.
    :param left: OID and name of tables that are set aside no more, see ``tables_that_left``.
    :raises PublishRefused: other slots kept writing at the same time.
    :raises CommitStateUnknown: the catalog did not say whether it committed. A second row for a batch changes
        no answer.
    :raises LakeUnavailable: the catalog failed.
    """
    if not (applied or unchanged or whole):
        return
    totals = sum((table.counts for table in manifest.tables), Counts())
    found = [
        _row(job, manifest, each.table.counts, each.table, each.target, each.snapshot_id)
        for each in applied
    ]
    found += [_row(job, manifest, table.counts, table) for table in unchanged]
    found += [_named_row(job, manifest, oid, name) for oid, name in left]
    for table, refusal in set_aside:
        row = _row(job, manifest, table.counts, table)
        row["set_aside"] = refusal.to_text()
        found.append(row)
    if whole:
        found += _unstaged_rows(job, manifest)
        row = _row(job, manifest, totals, None)
        row["passed_over"] = to_text((*manifest.passed_over, *passed_over))
        found.append(row)
    name = table_name(job)
    rows.ensure(spark, name)
    reach("apply.after_checkpoint_table")
    _append(spark, name, manifest, lambda: rows.append(spark, name, found, marker_of(manifest)))


def _append(
    spark: SparkSession, name: TableName, manifest: Manifest, append: Callable[[], None]
) -> None:
    """Append rows in one commit. If the catalog does not answer, look for the commit, and append once more.

    :raises CommitStateUnknown: the catalog did not answer the second time either.
    """
    before = loaded(spark, name).head
    for last in (False, True):
        try:
            append()
        except JAVA_ERRORS as error:
            named = failure(error, name.target)
            if named is None:
                raise
            if not isinstance(named, CommitStateUnknown):
                raise named from error
            log.warning("The catalog did not answer the commit of the checkpoint. Looking for it.")
            if loaded(spark, name).snapshot_of(manifest.batch_id, since=before):
                return
            # The first commit may still arrive. Then the batch has its rows twice. That changes no answer.
            if last:
                raise named from error
        else:
            return


def _row(
    job: WriteJob,
    manifest: Manifest,
    counts: Counts,
    table: Table | None,
    target: str | None = None,
    snapshot_id: int | None = None,
) -> dict[str, object]:
    return {
        "slot_name": manifest.slot_name,
        "system_identifier": manifest.system_identifier,
        "batch_id": manifest.batch_id,
        "table_name": table.name if table else None,
        "relation_oid": table.relation_oid if table else None,
        "target": target,
        "start_lsn": manifest.start_lsn.sortable,
        "end_lsn": manifest.end_lsn.sortable,
        "applied_at": None,
        "snapshot_id": snapshot_id,
        "inserts": counts.inserts,
        "updates": counts.updates,
        "deletes": counts.deletes,
        "truncates": counts.truncates,
        "copied": counts.copied,
        "rejected": counts.rejected,
        "dag_id": job.dag_id,
        "run_id": job.run_id,
        "manifest_uri": manifest.uri(job.staging_uri),
        "columns": _columns(job, table) if table else None,
        "schema_changes": _schema_changes(table) if table else None,
        "last_commit_time": manifest.last_commit_time,
        "complete_until": manifest.complete_until,
        "skipped": None if table else skipped_text(manifest),
        "timeline": manifest.timeline,
        "passed_over": None,
        "set_aside": None,
        "adopted_from": None if table else earlier_text(manifest.adopted_from),
    }


def _unstaged_rows(job: WriteJob, manifest: Manifest) -> list[dict[str, object]]:
    """A row for each table that the stage task set aside in the batch."""
    refusals = ((each, staged_without(each)) for each in manifest.passed_over)
    return [
        {
            **_named_row(job, manifest, each.relation_oid, each.table_name),
            "set_aside": refusal.to_text(),
        }
        for each, refusal in refusals
        if refusal is not None
    ]


def _named_row(
    job: WriteJob, manifest: Manifest, relation_oid: int, name: str
) -> dict[str, object]:
    """A row for a table that is known by OID and name only, with no changes counted."""
    row = _row(job, manifest, Counts(), None)
    named = {"relation_oid": relation_oid, "table_name": name}
    return {**row, **named, "skipped": None, "adopted_from": None}


def _columns(job: WriteJob, table: Table) -> str | None:
    """The columns at the end of the batch; None: the checkpoint has them already.

    The batch knows that of the namespace for which it was staged. So a replay always records them.
    """
    wanted = table.records_columns or isinstance(job, ReplayJob)
    return table.shape.to_json() if wanted else None


def _schema_changes(table: Table) -> str | None:
    changes = [str(each) for each in table.schema_changes]
    return json.dumps(changes, ensure_ascii=True) if changes else None
