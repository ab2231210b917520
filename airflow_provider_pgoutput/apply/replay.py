"""Applies old batches again: into tables of another namespace, or in place of the rows that tables hold.

Everything is checked before anything is written: the files of all batches, that the batches follow each other
without a gap, and where each table begins. Each batch is then applied as ever (``pipeline.py``). A replay
that was killed is simply run again. ``capture/staging/archive.py`` chooses the batches.

In place: a table first goes back (``rewind.py``), and ends where it was. The namespace's checkpoint stays.
Until the replay is done, an apply of a newer batch refuses the table as rolled back.

To catch up: tables that are set aside (``batch/set_aside.py``) get the batches that they lack. The pipeline
may go on meanwhile. It leaves such a table alone until the checkpoint table says that nothing is missing.

In another namespace: the batches write a checkpoint there. If only some tables were chosen they do not,
because the namespace as a whole does not have the batches.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.current_views import (
    keep_views,
    refuse_taken,
    refuse_without_views,
)
from airflow_provider_pgoutput.apply.iceberg.failures import named_failures
from airflow_provider_pgoutput.apply.iceberg.session import Sessions
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import (
    SPARK,
    applied_tables,
    by_target,
    returned,
    write_tables,
)
from airflow_provider_pgoutput.apply.refused import RefusedTables
from airflow_provider_pgoutput.apply.replay_steps import Step, first_steps, plan_steps
from airflow_provider_pgoutput.apply.rewind import go_back
from airflow_provider_pgoutput.apply.side_tables import (
    append_messages,
    append_rejected,
    check_side_tables,
)
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.first_run import try_catalog
from airflow_provider_pgoutput.apply.table.start import Start, start
from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.applied import start_of_first
from airflow_provider_pgoutput.batch.checkpoint import refuse_gap
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import (
    BatchGap,
    PublishRefused,
    TableRefused,
    TableRolledBack,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.pipeline import RowWork
    from airflow_provider_pgoutput.apply.table.target import Target
    from airflow_provider_pgoutput.batch.applied import Marker
    from airflow_provider_pgoutput.batch.jobs import ReplayJob
    from airflow_provider_pgoutput.batch.manifest import Manifest


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What one replay did."""

    #: Where the first batch starts, and the last one ends.
    start_lsn: str
    end_lsn: str
    batches: int
    #: By target: the snapshot that this run published last.
    published: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def replay(spark: SparkSession, job: ReplayJob, work: RowWork = SPARK) -> ReplayResult:
    """Apply the batches of a job in their order.

    :param work: reads and writes rows.
    :raises BatchRefused: a batch is damaged or of another pipeline, or no batch has a chosen table.
    :raises BatchGap: there is a gap between two batches, or a table lacks what committed before the first
        one.
    :raises TableRefused: the pipeline did not leave the target in this state, or the target cannot go back.
    :raises TableRolledBack: a target in another namespace is older than the checkpoint there says.
    :raises RowMissing: an update changes some columns of a row that the target does not have.
    :raises ConfigurationError: the catalog keeps no branches, tags or tables of the wanted format version.
    :raises PublishRefused: the target kept changing; run the task again.
    :raises CommitStateUnknown: the catalog did not say what it committed; run the task again.
    """
    with named_failures():
        return _replay(Sessions(spark), job, work)


def _replay(sessions: Sessions, job: ReplayJob, work: RowWork) -> ReplayResult:
    began = time.monotonic()
    spark = sessions.spark
    steps = plan_steps(spark, job)
    first, last = steps[0].batch.manifest, steps[-1].batch.manifest
    progress = checkpoint.read(spark, job, first, work.checkpoint)
    for step in steps:
        check_side_tables(spark, step.batch)
    copied: frozenset[str] = frozenset()
    # Of tables that catch up, one that is refused again does not stop the others.
    refused = (
        RefusedTables(SET_ASIDE, checkpoint.Progress(), passes_over=False) if job.catch_up else None
    )
    if refused is not None:
        _refuse_before_adoption(steps, progress, refused)
        steps = _waiting(steps, progress)
    elif job.in_place:
        _refuse_lacking(steps, progress, first)
        copied = go_back(spark, job, steps, first_steps(steps), progress)
    else:
        _refuse_lacking(steps, progress, first)
        _refuse_headless(spark, job, steps, progress)
    if not job.catch_up:
        _warn_of_unstaged(steps)
    refuse_without_views(spark, job, (each for step in steps for each in step.targets))
    try_catalog(spark, job, progress, work.checkpoint)
    result = ReplayResult(str(first.start_lsn), str(last.end_lsn), len(steps))
    for number, step in enumerate(steps, 1):
        manifest = step.batch.manifest
        log.info(
            "Batch %d of %d: %s to %s.", number, len(steps), manifest.start_lsn, manifest.end_lsn
        )
        published = _apply(sessions, job, step, copied, progress, refused, work)
        result.published.update(by_target(step.targets, published))
        # A batch may have copied a renamed table into a new target.
        now = {
            t.source.relation_oid: t.name.target for t in step.targets if t.name.key in published
        }
        progress = dataclasses.replace(progress, target_of={**progress.target_of, **now})
        reach("replay.after_batch")
    if refused is not None:
        _refuse_still_aside(refused, last)
    if job.in_place and not job.catch_up:
        _refuse_left_behind(spark, job, last, progress)
    return dataclasses.replace(result, seconds=time.monotonic() - began)


def _refuse_still_aside(refused: RefusedTables, last: Manifest) -> None:
    """Raise if tables were refused again. The others have all batches.

    :raises TableRefused: names them, and the reason of the first one.
    """
    tables = [*refused.set_aside.values()]
    if not tables:
        return
    names = ", ".join(sorted(table.name for table, _ in tables))
    raise TableRefused(
        f"Still set aside: {names}. The first of them is refused because of {tables[0][1]}",
        slot=last.slot_name,
        table=tables[0][0].name,
        lsn=last.end_lsn,
        advice="the warnings above have the reason of each.",
    )


def _waiting(steps: list[Step], progress: checkpoint.Progress) -> list[Step]:
    """The steps with only the tables that are set aside. The others have the batches.

    A table in mode ``upsert`` begins with its newest copy in these batches, since the copy replaces what
    came before. So it comes back also if an earlier batch cannot be applied at all. No table may be left: a
    driver did all the work and died before it ended, and its job was started again.

    A table that lacks earlier batches than these stays set aside. Nobody asked for it, but it once had the
    name of a table that somebody asked for.
    """
    begins = _copies(steps)
    first = steps[0].batch.manifest.start_lsn
    waits = {
        oid
        for oid, each in progress.set_aside.items()
        if not each.needs_copy and (each.replay_lsn >= first or oid in begins)
    }
    return [
        Step(
            step.batch,
            tuple(
                each
                for each in step.targets
                if each.source.relation_oid in waits
                and number >= begins.get(each.source.relation_oid, 0)
            ),
        )
        for number, step in enumerate(steps)
    ]


def _copies(steps: list[Step]) -> dict[int, int]:
    """By OID: the number of the last step that copies a table, and so replaces its rows."""
    return {
        target.source.relation_oid: number
        for number, step in enumerate(steps)
        for target in step.targets
        if target.source.copy_lsn is not None and not target.keeps_past
    }


def _refuse_before_adoption(
    steps: list[Step], progress: checkpoint.Progress, refused: RefusedTables
) -> None:
    """Leave tables set aside that lack batches of an earlier system, unless a batch here replaces their rows.

    A replay has batches of one system only. The first one of an adopted system copies the tables that are set
    aside. That makes up for what they lack in a mirror, and not in a table that keeps the past.
    """
    adopted_at = steps[0].batch.manifest.systems.adopted_at
    copies = _copies(steps)
    for target in (each for step in steps for each in step.targets):
        source = target.source
        waits = progress.set_aside.get(source.relation_oid)
        if waits is None or waits.needs_copy:
            continue
        if adopted_at is None or waits.since_lsn >= adopted_at:
            continue
        if source.relation_oid in copies or source.relation_oid in refused.set_aside:
            continue
        reason = TableRefused(
            f"The table lacks changes from {waits.since_lsn} on. At {adopted_at} the lake adopted another"
            " system, and no batch since then replaces the table's rows.",
            slot=steps[0].batch.manifest.slot_name,
            table=source.name,
            lsn=waits.since_lsn,
            advice=f"copy the table again (copy_tables=[{source.name!r}]).",
        )
        refused.refuse(target, reason)


def _refuse_lacking(steps: list[Step], progress: checkpoint.Progress, first: Manifest) -> None:
    """Refuse to begin after batches that a table lacks, because it is set aside.

    Refuse also a copy into a change log that lacks changes which are in no batch.

    :raises TableRefused: the table would lack them for good, and nobody would know.
    """
    for target in (each for step in steps for each in step.targets):
        waits = progress.set_aside.get(target.source.relation_oid)
        copy_lsn = target.source.copy_lsn
        if waits is None or not waits.lacks_unstaged or not target.is_log or copy_lsn is None:
            continue
        if Lsn.parse(copy_lsn) >= waits.since_lsn:
            raise TableRefused(
                f"No batch has changes of the change log from {waits.since_lsn} on, and a later copy does not"
                " bring them.",
                table=target.source.name,
                slot=first.slot_name,
                lsn=waits.since_lsn,
                advice="set its target to a new name in the pipeline, and copy it again"
                f" (copy_tables=[{target.source.name!r}]); leave it out of the replay (tables).",
            )
    for target, _ in first_steps(steps).values():
        waits = progress.set_aside.get(target.source.relation_oid)
        begins_whole = target.source.copy_lsn is not None and not target.keeps_past
        if waits is not None and waits.since_lsn < first.start_lsn and not begins_whole:
            raise TableRefused(
                f"The table is set aside, and lacks the batches from {waits.since_lsn} on.",
                table=target.source.name,
                slot=first.slot_name,
                lsn=first.start_lsn,
                advice=f"begin at {waits.since_lsn} or before, or leave the table out (tables).",
            )


def _warn_of_unstaged(steps: list[Step]) -> None:
    """Warn of tables whose changes are not in the batches, because the stage task set them aside."""
    chosen = {each.source.relation_oid: each.source.name for step in steps for each in step.targets}
    lacks: dict[int, str] = {}
    for step in steps:
        for target in step.targets:
            source = target.source
            if source.copy_lsn is None or source.relation_oid not in lacks:
                continue
            since = lacks.pop(source.relation_oid)
            if target.keeps_past:
                log.warning(
                    "%s is of mode %r: it lacks the changes from LSN %s to its copy at %s, which are in no"
                    " batch.",
                    source.name,
                    target.mode,
                    since,
                    source.copy_lsn,
                )
        for entry in step.batch.manifest.passed_over:
            if entry.error and entry.since_lsn is not None and entry.relation_oid in chosen:
                lacks.setdefault(entry.relation_oid, entry.since_lsn)
    for oid, since in lacks.items():
        log.warning(
            "%s ends at LSN %s: the stage task set it aside, and no batch of this replay has its changes"
            " after that, nor a copy of it.",
            chosen[oid],
            since,
        )


def _refuse_headless(
    spark: SparkSession, job: ReplayJob, steps: list[Step], progress: checkpoint.Progress
) -> None:
    """Refuse a gap: a table whose first rows are missing, or batches that start past the checkpoint.

    A change log may begin anywhere, because it only appends.
    """
    begins = steps[0].batch.manifest.start_lsn
    if not job.tables:
        # The checkpoint is about the whole namespace, also about tables that these batches do not change.
        refuse_gap(steps[0].batch.manifest, progress.end_lsn)
    has_all = progress.end_lsn is not None and progress.end_lsn >= begins
    for name, (target, manifest) in first_steps(steps).items():
        table = IcebergTable.load(spark, target.name)
        marker = table.marker(manifest.slot_name) if table else None
        reaches = marker is not None and (has_all or marker.end_lsn >= begins)
        if target.keeps_past and table is not None and marker is not None:
            _refuse_older_changes(table, target, manifest, marker)
        if reaches and not target.source.copy_lsn:
            _refuse_rolled_back(target, manifest, marker, progress)
        begins_whole = target.source.copy_lsn or (target.is_log and marker is None)
        if not (begins_whole or reaches):
            raise BatchGap(
                f"The batches from {begins} on hold changes of the table and no copy of it, and the target"
                f" {'ends at ' + str(marker.end_lsn) if marker else 'holds nothing'}.",
                slot=manifest.slot_name,
                table=target.source.name,
                lsn=begins,
                advice=f"begin at an earlier LSN, with the batch that copied the table, or write {name} as"
                " a change log.",
            )


def _refuse_rolled_back(
    target: Target, first: Manifest, marker: Marker | None, progress: checkpoint.Progress
) -> None:
    """Refuse a table that is older than the namespace's checkpoint says.

    :raises TableRolledBack: the table would lack changes of batches before these.
    """
    known = progress.end_of(target.name, target.source)
    if known is None or marker is None or marker.end_lsn >= min(known, first.start_lsn):
        return
    raise TableRolledBack(
        f"The checkpoint says {known}, the table says {marker.end_lsn}.",
        slot=first.slot_name,
        table=target.name.target,
        lsn=known,
        advice=f"begin at {marker.end_lsn} or before.",
    )


def _refuse_older_changes(
    table: IcebergTable, target: Target, first: Manifest, marker: Marker
) -> None:
    """Refuse batches from before the beginning of a change log or a history.

    It would take none of them, and nobody would notice.

    :param first: the first batch that changes the table.
    """
    if first.start_lsn >= marker.end_lsn:
        return
    since = start_of_first(first.slot_name, table.snapshots(first.slot_name))
    if since is None or since > first.start_lsn:
        raise TableRefused(
            f"The {'change log' if target.is_log else 'history'} begins at"
            f" {since or 'a position that is not known any more'}, and changes"
            " are only added at its end.",
            table=target.name.target,
            slot=first.slot_name,
            lsn=first.start_lsn,
            advice="replay into another namespace, or begin where it ends.",
        )


def _apply(
    sessions: Sessions,
    job: ReplayJob,
    step: Step,
    copied: frozenset[str],
    before: checkpoint.Progress,
    refused: RefusedTables | None,
    work: RowWork,
) -> dict[str, int]:
    """Apply one batch.

    :param before: the checkpoint as it was before this batch.
    :param refused: collects the tables that are refused. They get no later batch either. None: a refused
        table stops all.
    """
    spark, batch, manifest = sessions.spark, step.batch, step.batch.manifest
    # The batches are known to follow each other, and each table's own marker says which batches it has. A
    # table that catches up is not taken back first. So it must also be as new as the checkpoint says, and in
    # the target that the checkpoint names.
    progress = checkpoint.Progress(manifest.start_lsn)
    if job.catch_up:
        progress = checkpoint.Progress(
            manifest.start_lsn,
            before.tables,
            before.of_sources,
            before.target_of,
            strangers=before.strangers,
        )
        # ``start`` lets no copy into a change log with a gap that nobody can fill.
        gaps = {oid: each for oid, each in before.set_aside.items() if each.lacks_unstaged}
        progress = dataclasses.replace(progress, set_aside=gaps)
    starts, targets = {}, []
    for target in step.targets:
        look = functools.partial(_start, spark, job, step, target, copied, progress)
        if refused is None:
            starts[target.name.key] = look()
            targets.append(target)
        elif target.source.relation_oid not in refused.set_aside:
            begin = refused.unless_refused(target, look)
            if begin is not None:
                starts[target.name.key] = begin
                targets.append(target)
    todo = [each for each in targets if not starts[each.name.key].done]
    skipped = [each for each in targets if starts[each.name.key].done]
    published, _ = write_tables(sessions, batch, todo, starts, progress, work, refused)
    if job.in_place:
        _demand_published(spark, step, published, starts)
    append_rejected(spark, batch)
    append_messages(spark, batch)
    lacking = {} if refused is None else refused.set_aside
    have_it = [each for each in targets if each.source.relation_oid not in lacking]
    keep_views(spark, job, have_it, manifest.slot_name)
    applied = applied_tables(spark, manifest.batch_id, targets, skipped, published)
    whole = not job.in_place and not job.tables
    unchanged = returned(targets, refused, applied, before) if job.in_place else ()
    checkpoint.record(
        spark,
        job,
        manifest,
        applied,
        whole=whole,
        unchanged=unchanged,
        rows=work.checkpoint,
    )
    return published


def _demand_published(
    spark: SparkSession, step: Step, published: Mapping[str, int], starts: Mapping[str, Start]
) -> None:
    """Make sure that the tables have this batch from this replay, and not from before it.

    :raises PublishRefused: somebody else committed meanwhile, so the table seemed to have the batch.
    """
    manifest = step.batch.manifest
    for target in step.targets:
        name = target.name.key
        if name not in published:
            continue
        table = IcebergTable.load(spark, target.name)
        if not (table and table.snapshot_of(manifest.batch_id, since=starts[name].head)):
            raise PublishRefused(
                "Somebody else wrote to the table while it was replayed.",
                table=target.name.target,
                slot=manifest.slot_name,
                advice="keep other writers away from it, and run the replay again.",
            )


def _start(
    spark: SparkSession,
    job: ReplayJob,
    step: Step,
    target: Target,
    copied: frozenset[str],
    progress: checkpoint.Progress,
) -> Start:
    begin = start(spark, target, step.batch.manifest, progress)
    refuse_taken(spark, job, target, step.targets)
    copy_lsn = target.source.copy_lsn
    if copy_lsn is None or target.name.key not in copied:
        return begin
    # The copy replaces the table's rows, even if they are newer.
    return dataclasses.replace(begin, floor=Lsn.parse(copy_lsn), copies=True, done=False)


def _refuse_left_behind(
    spark: SparkSession, job: ReplayJob, last: Manifest, before: checkpoint.Progress
) -> None:
    after = checkpoint.read(spark, job, last)
    if after.end_lsn != before.end_lsn:
        raise BatchGap(
            f"Another run applied a batch meanwhile: the checkpoint is {after.end_lsn}, the tables are at"
            f" {last.end_lsn}.",
            slot=last.slot_name,
            lsn=last.end_lsn,
            advice="run the replay again, with the pipeline's DAG paused.",
        )
