"""Start here: the whole apply of one batch on one screen.

Everything is checked before anything is written. Every table is prepared on a branch. Then all tables are
published, one quickly after the other. The checkpoint comes last. An apply that was killed is simply run
again.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from airflow_provider_pgoutput.apply.current_views import (
    keep_views,
    refuse_taken,
    refuse_without_views,
)
from airflow_provider_pgoutput.apply.iceberg.failures import named_failures
from airflow_provider_pgoutput.apply.iceberg.session import Sessions
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.publish import prepare_on_main, publish, remove_dead_branches
from airflow_provider_pgoutput.apply.refused import RefusedTables
from airflow_provider_pgoutput.apply.rows.prepare import TablePreparation
from airflow_provider_pgoutput.apply.rows.staged_files import open_batch
from airflow_provider_pgoutput.apply.side_tables import (
    append_messages,
    append_rejected,
    check_side_tables,
)
from airflow_provider_pgoutput.apply.slices_together import prepare_together, publish_together
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.checkpoint_rows import (
    CheckpointRows,
    SparkCheckpointRows,
)
from airflow_provider_pgoutput.apply.table.first_run import try_catalog
from airflow_provider_pgoutput.apply.table.start import Start, start
from airflow_provider_pgoutput.apply.table.target import Target, every_target, ignores_case, shared
from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.checkpoint import refuse_gap
from airflow_provider_pgoutput.batch.set_aside import staged_without
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PublishRefused, TableDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.rows.branch import Preparation, Prepared
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from airflow_provider_pgoutput.batch.manifest import Manifest, Table


log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RowWork:
    """The classes that read and write rows. ``tests/simulation`` has others, without Spark."""

    preparation: type[Preparation]
    checkpoint: CheckpointRows


SPARK = RowWork(TablePreparation, SparkCheckpointRows())


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What one apply did."""

    batch_id: str
    end_lsn: str
    #: The checkpoint already covered the batch, so there was nothing to do.
    already_applied: bool
    #: By target: the snapshot that this run published.
    published: dict[str, int] = field(default_factory=dict)
    #: Targets that already had the batch when this run began.
    skipped: tuple[str, ...] = ()
    #: By the source's ``schema.table``: why the batch was not applied to a table that is set aside.
    set_aside: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    #: How many of ``seconds`` it took to make the prepared tables visible.
    publish_seconds: float = 0.0


class Written(NamedTuple):
    """What was published."""

    #: The snapshots, by the key of the target's name.
    published: dict[str, int]
    #: How long that took, after all tables were prepared.
    publish_seconds: float


def apply_batch(spark: SparkSession, job: ApplyJob, work: RowWork = SPARK) -> ApplyResult:
    """Apply one staged batch to its Iceberg tables, exactly once.

    :param work: reads and writes rows.
    :raises BatchRefused: the batch is damaged, incomplete, or of another pipeline.
    :raises BatchGap: an earlier batch was never applied.
    :raises TableRefused: the pipeline did not leave the target in this state.
    :raises TableRolledBack: the target is older than the checkpoint says.
    :raises TableDamaged: a file of the target is missing or damaged.
    :raises RowMissing: an update changes some columns of a row that the target does not have.
    :raises ConfigurationError: the catalog keeps no branches, tags or tables of the wanted format version.
    :raises PublishRefused: the target kept changing; run the task again.
    :raises CommitStateUnknown: the catalog did not say what it committed; run the task again.
    :raises LakeDenied: the catalog refuses the login, or forbids the request.
    :raises LakeUnavailable: the catalog or the staging area did not answer; run the task again.
    """
    with named_failures():
        return _apply(Sessions(spark), job, work)


def _apply(sessions: Sessions, job: ApplyJob, work: RowWork) -> ApplyResult:
    began = time.monotonic()
    spark = sessions.spark
    batch = open_batch(spark, job, job.manifest_uri)
    manifest = batch.manifest
    progress = checkpoint.read(spark, job, manifest, work.checkpoint)
    refuse_gap(manifest, progress.end_lsn)
    already_applied = progress.end_lsn is not None and progress.end_lsn >= manifest.end_lsn
    refused = RefusedTables(job.on_table_refused, progress)
    starts = _starts(spark, job, manifest, progress, refused, already_applied=already_applied)
    found = [each for each, _ in starts.values()]
    result = ApplyResult(manifest.batch_id, str(manifest.end_lsn), already_applied)
    if already_applied:
        log.info("The batch was applied before; the checkpoint is %s.", progress.end_lsn)
        return result
    begins = {name: begin for name, (_, begin) in starts.items()}
    check_side_tables(spark, batch)
    refuse_without_views(spark, job, found)
    try_catalog(spark, job, progress, work.checkpoint)
    todo = [target for target, begin in starts.values() if not begin.done]
    skipped = [target for target, begin in starts.values() if begin.done]

    written = write_tables(sessions, batch, todo, begins, progress, work, refused)
    published = written.published
    refused.raise_if_about_all()
    append_rejected(spark, batch, progress.end_lsn)
    append_messages(spark, batch, progress.end_lsn)
    have_it = [each for each in found if each.source.relation_oid not in refused.set_aside]
    keep_views(spark, job, have_it, manifest.slot_name)

    reach("apply.before_checkpoint")
    applied = applied_tables(spark, manifest.batch_id, found, skipped, published)
    checkpoint.record(
        spark,
        job,
        manifest,
        applied,
        passed_over=tuple(refused.passed_over.values()),
        set_aside=tuple(refused.set_aside.values()),
        unchanged=returned(found, refused, applied, progress),
        left=tables_that_left(manifest, progress),
        rows=work.checkpoint,
    )
    reach("apply.after_checkpoint")
    seconds = time.monotonic() - began
    log.info("Applied %s to %s in %.2f s.", manifest.start_lsn, manifest.end_lsn, seconds)
    names = tuple(target.name.target for target in skipped)
    set_aside = {table.name: str(refusal) for table, refusal in refused.set_aside.values()}
    unstaged = ((each.table_name, staged_without(each)) for each in manifest.passed_over)
    set_aside |= {name: str(refusal) for name, refusal in unstaged if refusal is not None}
    return ApplyResult(
        manifest.batch_id,
        str(manifest.end_lsn),
        False,
        by_target(todo, published),
        names,
        set_aside,
        seconds,
        written.publish_seconds,
    )


def _starts(
    spark: SparkSession,
    job: ApplyJob,
    manifest: Manifest,
    progress: checkpoint.Progress,
    refused: RefusedTables,
    *,
    already_applied: bool,
) -> dict[str, tuple[Target, Start]]:
    """By the key of a target's name: each table of the batch that is not refused, and where it begins.

    :param already_applied: the checkpoint covers the batch, so nothing is written. Then the tables that are
        set aside are left out, and no warning speaks of them.
    """
    any_case = ignores_case(spark, job.catalog_name)
    found = every_target(job, manifest)
    clashing = shared(found, any_case=any_case, target_of=progress.target_of)
    if already_applied:
        if job.on_table_refused == SET_ASIDE:
            return {}
        found = [each for each in found if each.source.relation_oid not in progress.set_aside]
    for target, error in clashing:
        refused.refuse(target, error)
    starts: dict[str, tuple[Target, Start]] = {}
    for target in found:
        if target.source.relation_oid in refused.set_aside:
            continue
        look = functools.partial(_start, spark, job, target, found, manifest, progress)
        begin = refused.unless_refused(target, look)
        if begin is not None:
            starts[target.name.key] = (target, begin)
    return starts


def _start(
    spark: SparkSession,
    job: ApplyJob,
    target: Target,
    others: Sequence[Target],
    manifest: Manifest,
    progress: checkpoint.Progress,
) -> Start:
    """Where the apply of one table begins. It is refused if its view cannot have its name."""
    begin = start(spark, target, manifest, progress)
    refuse_taken(spark, job, target, others)
    return begin


def tables_that_left(
    manifest: Manifest, progress: checkpoint.Progress
) -> tuple[tuple[int, str], ...]:
    """Tables that were set aside and are not published any more, so that nothing can bring them back.

    The lake never had rows of such a table, or only a copy of the table could bring it back. If the table is
    published again, it is copied.

    :return: OID and ``schema.table`` of each.
    """
    if manifest.published is None or manifest.loaded_lsn is not None:
        # It is not known what is published, or which tables were loaded from outside.
        return ()
    known = {each.relation_oid for each in manifest.published.tables}
    known |= {each.relation_oid for each in manifest.tables}
    names = {each.name for each in manifest.published.tables}
    left = tuple(
        (oid, each.table_name)
        for oid, each in progress.set_aside.items()
        if oid not in known and (each.needs_copy or oid not in progress.target_of)
    )
    for oid, name in left:
        if name in names:
            log.info("%s has another OID now. What was set aside under OID %d is over.", name, oid)
            continue
        log.warning(
            "%s is not set aside any more: it was dropped or is not published, and %s.",
            name,
            f"the lake keeps it as it was at LSN {progress.set_aside[oid].since_lsn}"
            if oid in progress.target_of
            else "the lake never had it",
        )
    return left


def write_tables(
    sessions: Sessions,
    batch: StagedBatch,
    todo: list[Target],
    starts: dict[str, Start],
    progress: checkpoint.Progress,
    work: RowWork = SPARK,
    refused: RefusedTables | None = None,
) -> Written:
    """Prepare all tables, then publish them.

    :param work: reads and writes rows.
    :param refused: collects the refused tables without which the others go on; None: a refused table stops
        all.
    :raises RowMissing: an update changes some columns of a row that the target does not have.
    :raises PublishRefused: the target kept changing; run the task again.
    """
    began = time.monotonic()
    by_table: dict[str, list[Target]] = {}
    for target in todo:
        by_table.setdefault(target.name.target, []).append(target)
    prepared, left = _prepare_all(
        sessions, batch, list(by_table.values()), starts, progress, work, refused
    )
    if not batch.logs_each_table:
        seconds = time.monotonic() - began
        count = sum(len(each.targets) for each in prepared)
        log.info("Prepared %d of %d tables in %.2f s.", count, len(todo), seconds)
    reach("apply.after_prepare")
    began = time.monotonic()
    published: dict[str, int] = {}
    for each in prepared:
        if each.others:
            together = publish_together(sessions, batch, each, progress)
            published |= together
            left += (slice_ for slice_ in each.targets if slice_.name.key not in together)
            reach("apply.between_publishes")
            continue
        put = functools.partial(publish, sessions, batch, each, progress, work.preparation)
        snapshot_id = _unless_refused(refused, each.target, put)
        if snapshot_id is not None:
            published[each.target.name.key] = snapshot_id
        reach("apply.between_publishes")
    # Slices of one table, each after the publish of the one before it, because that moves main.
    for target in left:
        begin = starts[target.name.key]
        put = functools.partial(_put_slice, sessions, batch, target, begin, progress, work)
        snapshot_id = _unless_refused(refused, target, put)
        if snapshot_id is not None:
            published[target.name.key] = snapshot_id
        reach("apply.between_publishes")
    return Written(published, round(time.monotonic() - began, 3))


def _put_slice(
    sessions: Sessions,
    batch: StagedBatch,
    target: Target,
    decided: Start,
    progress: checkpoint.Progress,
    work: RowWork,
) -> int | None:
    """Prepare and publish a slice of a table, after this run has published another slice of it.

    :param decided: where the slice begins. The run decided that before it published the other one. It is
        still right if nobody wrote to this slice meanwhile.
    :return: the snapshot of the batch; None: it changes nothing in the slice.
    :raises PublishRefused: the slice's history is not the one of then.
    """
    table = IcebergTable.load(sessions.spark, target.name)
    # If the other one was refused, or changes nothing, nobody has made the table yet.
    was_new = table is None and decided.head is None
    if not was_new and (table is None or table.slice_has_changed(since=decided.head)):
        raise PublishRefused(
            "The history of the table's slice changed meanwhile: another driver wrote to it, snapshots"
            " expired, or the table was rolled back.",
            table=target.name.target,
        )
    begin = dataclasses.replace(decided, head=None if table is None else table.head)
    prepared = prepare_on_main(sessions, batch, target, begin, progress, work.preparation)
    if prepared is None:
        return None
    return publish(sessions, batch, prepared, progress, work.preparation)


def _prepare_all(
    sessions: Sessions,
    batch: StagedBatch,
    tables: list[list[Target]],
    starts: dict[str, Start],
    progress: checkpoint.Progress,
    work: RowWork,
    refused: RefusedTables | None,
) -> tuple[list[Prepared], list[Target]]:
    """Prepare all tables, some at the same time. Readers see nothing of it yet.

    :param tables: for each table of the lake its slices, or the one table of the source that it has.
    :return: what was prepared, and the slices that are to be prepared after it.
    """

    def one(slices: list[Target]) -> tuple[Prepared | None, list[Target]]:
        first, *others = slices
        begin = starts[first.name.key]

        def prepare() -> Prepared | None:
            remove_dead_branches(sessions.spark, batch, first.name)
            return prepare_on_main(sessions, batch, first, begin, progress, work.preparation)

        if others:
            remove_dead_branches(sessions.spark, batch, first.name)
            members = [(each, starts[each.name.key]) for each in slices]
            together = prepare_together(sessions, batch, members, progress)
            if together is not None:
                taken = {each.name.key for each in together.targets}
                return together, [each for each in slices if each.name.key not in taken]
        return _unless_refused(refused, first, prepare), others

    if batch.job.parallel_tables <= 1:
        done = list(map(one, tables))
    else:
        with ThreadPoolExecutor(max_workers=batch.job.parallel_tables) as pool:
            done = list(pool.map(one, tables))
    prepared = [each for each, _ in done if each is not None]
    return prepared, [target for _, left in done for target in left]


def returned(
    found: list[Target],
    refused: RefusedTables | None,
    applied: list[checkpoint.Applied],
    progress: checkpoint.Progress,
) -> tuple[Table, ...]:
    """The tables that were set aside and have the batch now, although it changed nothing in them."""
    changed = {each.table.relation_oid for each in applied}
    lacking = set() if refused is None else {*refused.set_aside, *refused.passed_over}
    return tuple(
        target.source
        for target in found
        if target.source.relation_oid in progress.set_aside.keys() - changed - lacking
    )


def _unless_refused(
    refused: RefusedTables | None, target: Target, do: Callable[[], _Result]
) -> _Result | None:
    return do() if refused is None else refused.unless_refused(target, do)


def by_target(targets: Iterable[Target], published: Mapping[str, int]) -> dict[str, int]:
    """The snapshots that were published, by target. Of a shared table: that of its last slice.

    :param published: by the key of the target's name.
    """
    names = {each.name.key: each.name.target for each in targets}
    return {names[key]: snapshot_id for key, snapshot_id in published.items()}


def applied_tables(
    spark: SparkSession,
    batch_id: str,
    found: list[Target],
    skipped: list[Target],
    published: dict[str, int],
) -> list[checkpoint.Applied]:
    """The tables that the batch changed, in this run or in a run that was killed."""
    heads = dict(published)
    for target in skipped:
        try:
            table = IcebergTable.load(spark, target.name)
        except TableDamaged as damaged:
            # It has the batch. A later batch that changes it sets it aside.
            log.warning("%s", damaged)
            continue
        if table is not None and table.head is not None:
            heads[target.name.key] = table.snapshot_of(batch_id) or table.head
    return [
        checkpoint.Applied(target.source, target.name.target, heads[target.name.key])
        for target in found
        if target.name.key in heads
    ]
