"""Publishes prepared tables, prepares again where main moved, and clears away dead branches.

What is not here: the commit itself (``iceberg.py``).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable, discard
from airflow_provider_pgoutput.apply.rows import prepare as preparing
from airflow_provider_pgoutput.apply.table.target import Start, start
from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import CommitStateUnknown, PublishRefused, TableRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName
    from airflow_provider_pgoutput.apply.rows.branch import Preparation, Prepared
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.apply.table.checkpoint import Progress
    from airflow_provider_pgoutput.apply.table.target import Target

logger = logging.getLogger(__name__)

#: Preparations of one table before the apply gives up and leaves it to Airflow's retry.
_ATTEMPTS = 4
#: A branch of ours whose newest commit is older belongs to no driver that lives.
_DEAD_AFTER_MS = 24 * 60 * 60 * 1000


def publish(
    spark: SparkSession,
    batch: StagedBatch,
    prepared: Prepared,
    progress: Progress,
    kind: type[Preparation] = preparing.TablePreparation,
) -> int | None:
    """Publish one table; prepare it again when main moved in between.

    :param kind: what writes the rows.
    :return: the snapshot that the batch left; None when it changes nothing in the table.
    :raises PublishRefused: main moved each time.
    :raises CommitStateUnknown: the catalog did not say, twice, whether it published.
    """
    waiting: Prepared | None = prepared
    target = prepared.target
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if waiting is None:
                again = start(spark, target, batch.manifest, progress)
                if again.done:
                    return _published(spark, batch, target)
                waiting = preparing.prepare(spark, batch, target, again, kind)
                if waiting is None:
                    return None
            return _publish_once(spark, batch, waiting)
        except PublishRefused as refusal:
            if waiting is not None:
                discard(spark, target.name, waiting.branch)
            if attempt == _ATTEMPTS:
                raise
            logger.warning("%s Preparing the batch again on the new main.", refusal)
            waiting = None
    raise AssertionError("the last attempt raises")


def prepare_on_main(
    spark: SparkSession,
    batch: StagedBatch,
    target: Target,
    begin: Start,
    progress: Progress,
    kind: type[Preparation] = preparing.TablePreparation,
) -> Prepared | None:
    """Prepare one table; begin again when main moved since ``begin`` was found out.

    A lost answer is no reason to ask for the same again: nobody reads the branch, so another one is made.

    :param kind: what writes the rows.
    :raises PublishRefused: main moved each time, or another driver applied the batch meanwhile.
    :raises CommitStateUnknown: the catalog did not say what it committed, each time.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return preparing.prepare(spark, batch, target, begin, kind)
        except (PublishRefused, CommitStateUnknown) as refusal:
            if attempt == _ATTEMPTS:
                raise
            logger.warning("%s Looking at it again.", refusal)
        begin = start(spark, target, batch.manifest, progress)
        if begin.done:
            raise PublishRefused(
                "Another driver applied the batch meanwhile.", table=target.name.target
            )
    raise AssertionError("the last attempt raises")


def _publish_once(spark: SparkSession, batch: StagedBatch, prepared: Prepared) -> int:
    """Publish; when the catalog did not say whether it did, look, and try once more."""
    target = prepared.target
    for last in (False, True):
        table = IcebergTable.load(spark, target.name)
        if table is None:
            raise TableRefused("The table was dropped meanwhile.", table=target.name.target)
        try:
            days = batch.plan.tag_retention_days
            snapshot_id = table.publish(
                prepared.branch,
                prepared.base,
                prepared.head,
                batch.manifest,
                days,
                prepared.evolved.notes,
            )
        except CommitStateUnknown:
            # The batch id in main's history says whether the lost answer was a yes. If not, the same
            # request may be sent again: should the first one arrive late, one of the two is refused.
            logger.warning("No answer to the publishing of %s; looking.", target.name.target)
            if _holds(spark, batch, target):
                return _published(spark, batch, target)
            if last:
                raise
        else:
            reach("apply.after_publish")
            return snapshot_id
    raise AssertionError("the second try returns or raises")


def _holds(spark: SparkSession, batch: StagedBatch, target: Target) -> bool:
    table = IcebergTable.load(spark, target.name)
    marker = table.marker(batch.manifest.slot_name) if table else None
    return marker is not None and marker.batch_id == batch.manifest.batch_id


def _published(spark: SparkSession, batch: StagedBatch, target: Target) -> int:
    """The snapshot that the batch left, or main's head when it expired."""
    table = IcebergTable.load(spark, target.name)
    head = table.head if table else None
    if table is None or head is None:
        raise TableRefused("The table was dropped meanwhile.", table=target.name.target)
    return table.snapshot_of(batch.manifest.batch_id) or head


def remove_dead_branches(spark: SparkSession, batch: StagedBatch, name: TableName) -> None:
    """Remove branches of earlier attempts at this batch, and ours older than a day.

    A driver that still lives and loses its branch is refused when it publishes, as it should be:
    this one has taken the batch over.
    """
    table = IcebergTable.load(spark, name)
    if table is None:
        return
    same_batch = f"{BRANCH_PREFIX}{batch.manifest.batch_id[:16]}_"
    oldest_ms = time.time() * 1000 - _DEAD_AFTER_MS
    dead = [
        name
        for name, newest_ms in table.branch_ages_ms().items()
        if name.startswith(same_batch) or newest_ms < oldest_ms
    ]
    try:
        table.remove_branches(dead)
    except (PublishRefused, CommitStateUnknown) as refusal:
        # Somebody else removed them, or committed just then; they are no more than in the way.
        logger.info("%s Its dead branches are left to the next apply.", refusal)
        return
    if dead:
        logger.info("Removed %d dead branches of %s.", len(dead), name.target)
