"""Publishes prepared tables. If main moved, the table is prepared again. Removes branches of dead drivers.

The commit itself is ``IcebergTable.publish`` in ``iceberg/table.py``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.failures import failure, unnamed
from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable, discard
from airflow_provider_pgoutput.apply.rows import prepare as preparing
from airflow_provider_pgoutput.apply.table.start import Start, start
from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX, DEAD_AFTER
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import (
    CommitStateUnknown,
    PgoutputError,
    PublishRefused,
    TableRefused,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.session import Sessions
    from airflow_provider_pgoutput.apply.iceberg.sql import TableName
    from airflow_provider_pgoutput.apply.rows.branch import Preparation, Prepared
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.apply.table.checkpoint import Progress
    from airflow_provider_pgoutput.apply.table.target import Target

log = logging.getLogger(__name__)

#: How many tries ``prepare_on_main`` and ``publish`` each have for one table. Then the task fails, and
#: Airflow may try it again.
_ATTEMPTS = 4


def publish(
    sessions: Sessions,
    batch: StagedBatch,
    prepared: Prepared,
    progress: Progress,
    kind: type[Preparation] = preparing.TablePreparation,
) -> int | None:
    """Publish one table; prepare it again when main moved in between.

    :param kind: writes the rows.
    :return: the snapshot of the batch; None: main moved, and on the new main the batch changes nothing.
    :raises PublishRefused: main moved each time.
    :raises CommitStateUnknown: the catalog did not answer, and it is not known whether main has the batch.
        From the first such publish on, every other error becomes this one: for some of the others the caller
        sets the table aside, and the table may have the batch.
    """
    unanswered: list[CommitStateUnknown] = []
    with later_errors_are_unknown(unanswered, prepared.target.name.target):
        return _publish(sessions, batch, prepared, progress, kind, unanswered)


@contextlib.contextmanager
def later_errors_are_unknown(unanswered: list[CommitStateUnknown], table: str) -> Iterator[None]:
    """After a commit without an answer, every other error becomes ``CommitStateUnknown``; see ``publish``.

    :param unanswered: the errors of commits without an answer.
    """
    try:
        yield
    except (PgoutputError, *JAVA_ERRORS) as error:
        if not unanswered or isinstance(error, CommitStateUnknown):
            raise
        named = (
            error
            if isinstance(error, PgoutputError)
            else failure(error, table) or unnamed(error, table)
        )
        raise CommitStateUnknown(
            f"{unanswered[-1].message} A later step failed: {type(named).__name__}: {named.message}",
            table=table,
            advice=named.advice,
        ) from error


def _publish(
    sessions: Sessions,
    batch: StagedBatch,
    prepared: Prepared,
    progress: Progress,
    kind: type[Preparation],
    unanswered: list[CommitStateUnknown],
) -> int | None:
    """Publish one table, see ``publish``.

    :param unanswered: gets the error of each commit without an answer.
    """
    spark = sessions.spark
    waiting: Prepared | None = prepared
    target = prepared.target
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if waiting is None:
                again = start(spark, target, batch.manifest, progress)
                if again.done:
                    return snapshot_of(spark, batch, target)
                waiting = preparing.prepare(sessions, batch, target, again, kind)
                if waiting is None:
                    return None
            if waiting.notes is not None and (waiting.notes.keeps or waiting.notes.has_changes):
                # ``record`` deletes the table's entries of the quarantine from this batch on, and writes
                # those of this batch. If main moved, another driver may have applied newer batches. Their
                # entries have to stay.
                _refuse_moved(spark, waiting)
                waiting.notes.record(spark, batch, target)
            return publish_once(spark, batch, waiting, unanswered)
        except PublishRefused as refusal:
            if waiting is not None:
                discard(spark, target.name, waiting.branch)
            if attempt == _ATTEMPTS:
                raise
            log.warning("%s Preparing the batch again on the new main.", refusal)
            waiting = None
    raise AssertionError("the last attempt raises")


def prepare_on_main(
    sessions: Sessions,
    batch: StagedBatch,
    target: Target,
    begin: Start,
    progress: Progress,
    kind: type[Preparation] = preparing.TablePreparation,
) -> Prepared | None:
    """Prepare one table. If main moved since ``begin`` was read, begin again.

    If the catalog does not answer a commit of the preparation, the next try makes another branch. That is
    safe: readers see only main.

    :param kind: writes the rows.
    :raises PublishRefused: main moved in the last try too, or another driver applied the batch meanwhile.
    :raises CommitStateUnknown: in the last try the catalog did not say whether it committed.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return preparing.prepare(sessions, batch, target, begin, kind)
        except (PublishRefused, CommitStateUnknown) as refusal:
            if attempt == _ATTEMPTS:
                raise
            log.warning("%s Looking at it again.", refusal)
        begin = start(sessions.spark, target, batch.manifest, progress)
        if begin.done:
            raise PublishRefused(
                "Another driver applied the batch meanwhile.", table=target.name.target
            )
    raise AssertionError("the last attempt raises")


def _refuse_moved(spark: SparkSession, prepared: Prepared) -> None:
    """Refuse if main is not where it was when the table was prepared.

    :raises PublishRefused: it moved.
    """
    name = prepared.target.name
    table = IcebergTable.load(spark, name)
    if table is not None and table.head != prepared.base:
        raise PublishRefused("Main moved since the branch was made.", table=name.target)


def publish_once(
    spark: SparkSession,
    batch: StagedBatch,
    prepared: Prepared,
    unanswered: list[CommitStateUnknown],
) -> int:
    """Publish. If the catalog did not say whether it did, look, and try once more.

    :param unanswered: gets the error of each commit without an answer.
    :raises PublishRefused: main moved.
    :raises CommitStateUnknown: the second try had no answer either.
    """
    target = prepared.target
    for last in (False, True):
        table = IcebergTable.load(spark, target.name)
        if table is None:
            raise TableRefused("The table was dropped meanwhile.", table=target.name.target)
        try:
            days = batch.job.tag_retention_days
            snapshot_id = table.publish(
                prepared.branch,
                prepared.base,
                prepared.head,
                batch.manifest,
                days,
                prepared.evolved.notes,
                prepared.of_rows,
                [each.slice for each in prepared.others if each.slice is not None],
            )
        except CommitStateUnknown as unknown:
            unanswered.append(unknown)
            # If main ends with the batch, nothing is left to do. If not, the request is sent once more. If
            # the first request still arrives, Iceberg takes only one of the two.
            log.warning(
                "The catalog did not say whether it published %s. Looking whether main has the batch.",
                target.name.target,
            )
            if all(_holds(spark, batch, each) for each in prepared.targets):
                return snapshot_of(spark, batch, target)
            if last:
                raise
        else:
            reach("apply.after_publish")
            return snapshot_id
    raise AssertionError("the second try returns or raises")


def _holds(spark: SparkSession, batch: StagedBatch, target: Target) -> bool:
    """Whether main ends with this batch."""
    table = IcebergTable.load(spark, target.name)
    marker = table.marker(batch.manifest.slot_name) if table else None
    return marker is not None and marker.batch_id == batch.manifest.batch_id


def snapshot_of(spark: SparkSession, batch: StagedBatch, target: Target) -> int:
    """The newest snapshot of the batch in main's history. If there is none, main's head.

    :raises TableRefused: the table was dropped.
    """
    table = IcebergTable.load(spark, target.name)
    head = table.head if table else None
    if table is None or head is None:
        raise TableRefused("The table was dropped meanwhile.", table=target.name.target)
    return table.snapshot_of(batch.manifest.batch_id) or head


def remove_dead_branches(spark: SparkSession, batch: StagedBatch, name: TableName) -> None:
    """Remove all branches of this batch, and the pipeline's branches whose newest snapshot is over a day old.

    A driver may still use one of them. Then its publish is refused, and it looks at the table again.
    """
    table = IcebergTable.load(spark, name)
    if table is None:
        return
    same_batch = f"{BRANCH_PREFIX}{batch.manifest.batch_id[:16]}_"
    oldest_ms = (time.time() - DEAD_AFTER.total_seconds()) * 1000
    dead = [
        branch
        for branch, newest_ms in table.branch_ages_ms().items()
        if branch.startswith(same_batch) or newest_ms < oldest_ms
    ]
    try:
        table.remove_branches(dead)
    except (PublishRefused, CommitStateUnknown) as refusal:
        # Somebody else removed them or committed meanwhile, or the catalog did not answer. Branches that stay
        # do no harm.
        log.info("%s The table's dead branches stay until a later apply removes them.", refusal)
        return
    if dead:
        level = batch.level_of_tables
        log.log(level, "Removed %d dead branches of %s.", len(dead), name.target)
