"""Publishes the few changes of many slices of one table in one commit, and not slice by slice.

Several tables of a source can be written to one table of the lake. The rows of each are a slice, see
``slices.py``. A commit costs the same for one slice as for hundreds. So the driver collects the changes of
all slices (``rows/apply_few.py``), and finds the rows that they replace in one search. It writes all of it to
one branch, in one commit. The summary of the commit names these slices.

A slice with a copy, a truncate, new columns or many changes is left out. ``pipeline.py`` prepares and
publishes it alone, afterwards. If something is refused while the changes are written, it is not known which
slice has caused it. Then all of them are prepared alone, and only one that is refused again is set aside.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable, discard
from airflow_provider_pgoutput.apply.publish import (
    later_errors_are_unknown,
    publish_once,
    snapshot_of,
)
from airflow_provider_pgoutput.apply.refused import ABOUT_ONE
from airflow_provider_pgoutput.apply.rows import apply_few
from airflow_provider_pgoutput.apply.rows.branch import Preparation, Prepared
from airflow_provider_pgoutput.apply.rows.branch_writer import BranchWriter
from airflow_provider_pgoutput.apply.rows.prepare import TablePreparation, named_run, settings_of
from airflow_provider_pgoutput.apply.schema.evolve import Evolved
from airflow_provider_pgoutput.apply.table.start import Start, start
from airflow_provider_pgoutput.batch.checkpoint import marker_of
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import (
    CommitStateUnknown,
    PgoutputError,
    PublishRefused,
    TableRefused,
)
from airflow_provider_pgoutput.slices import SUMMARY_SLICE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.session import Sessions
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.apply.table.checkpoint import Progress
    from airflow_provider_pgoutput.apply.table.target import Target

log = logging.getLogger(__name__)

#: How many times slices are tried together. After that each is prepared alone.
_ATTEMPTS = 4
#: If there are fewer slices than this, each is prepared alone.
_LEAST = 2
#: A slice, and from where on its changes have to be written.
Member = tuple["Target", Start]


class _Together(Preparation):
    """The preparation of several slices of one table on one branch.

    :param members: slices of one table.
    """

    def __init__(self, spark: SparkSession, batch: StagedBatch, members: Sequence[Member]) -> None:
        super().__init__(spark, batch, *members[0])
        self._members = members
        self.taken: tuple[Target, ...] = ()

    def write(self) -> None:
        """See ``Preparation``.

        Nothing is written if fewer than two slices fit, or if the table is too large, or has other columns
        than its newest snapshot.
        """
        looked_at = ((target, self._few(target, begin)) for target, begin in self._members)
        found = [(target, few) for target, few in looked_at if few is not None and few.rows]
        head = self.start.head
        if self.table is None or head is None or len(found) < _LEAST:
            return
        table = self.table.whole([each.slice for each, _ in found if each.slice is not None])
        if not apply_few.are_small(table, head, len(found)) or table.has_other_columns(head):
            return
        self.taken = tuple(target for target, _ in found)
        several, writer = [few for _, few in found], self.writer()
        apply_few.write(self.spark._jvm, writer, table, several, self.marker)
        for few in several:
            self.count(appended=len(few.live), deleted_keys=len(few.rows))
        reach("apply.after_row_delta")

    def _few(self, target: Target, begin: Start) -> apply_few.Few | None:
        """The changes of a slice; None: it has to be prepared alone."""
        if (
            self.table is None
            or target.slice is None
            or target.keeps_past
            or target.source.until_lsn is not None
            or begin.copies
            or begin.head != self.start.head
        ):
            return None
        one = TablePreparation(self.spark, self.batch, target, begin)
        one.table = self.table.seen_by(target.slice)
        if one.needs_marker or one.entries() is not None:
            return None
        try:
            one.look()
        except TableRefused as refused:
            # When it is prepared alone, it is refused again. That refusal counts.
            log.info("%s", refused)
            return None
        return apply_few.read(one, one.segments()) if one.needs_only_rows(one.table) else None

    @property
    def needs_marker(self) -> bool:
        """See ``Preparation``: ``_few`` leaves out each slice that needs one."""
        return False

    @property
    def marker(self) -> dict[str, str]:
        """The keys of the commit's summary: those of the batch, and the ids of all slices in the commit."""
        ids = (each.slice.id for each in self.taken if each.slice is not None)
        return {**marker_of(self.batch.manifest), SUMMARY_SLICE: " ".join(ids)}

    def fields_of(self, table: IcebergTable) -> object:
        """See ``Preparation``: the schema's id, and the properties of the table and of all slices."""
        return int(table.java.schema().schemaId()), table.whole_properties

    def create(self) -> IcebergTable:
        """See ``Preparation``."""
        raise AssertionError("slices of a new table are prepared one by one")

    def evolve(self, table: IcebergTable) -> Evolved:
        """See ``Preparation``. It changes nothing: slices that need other columns are left out."""
        return Evolved()

    def open_branch(self, table: IcebergTable) -> BranchWriter:
        """See ``Preparation``."""
        return BranchWriter(self.spark, table, self.branch, ())


def prepare_together(
    sessions: Sessions, batch: StagedBatch, members: Sequence[Member], progress: Progress
) -> Prepared | None:
    """Prepare as many slices of one table as possible on one branch.

    :return: its ``targets`` are these slices. The others have to be prepared alone; None: all of them.
    """
    for _ in range(_ATTEMPTS):
        try:
            return _prepare(sessions, batch, members)
        except (PublishRefused, CommitStateUnknown) as refusal:
            log.warning("%s Looking at the slices again.", refusal)
        targets = [target for target, _ in members]
        members = _look_again(sessions.spark, batch, targets, progress)
    return None


def _prepare(sessions: Sessions, batch: StagedBatch, members: Sequence[Member]) -> Prepared | None:
    """Prepare slices of one table once, see ``prepare_together``.

    The branch is removed if there is an error.

    :raises PublishRefused: another writer changed the table meanwhile.
    :raises CommitStateUnknown: the catalog did not say whether the branch has the rows.
    """
    if len(members) < _LEAST:
        return None
    began, target = time.monotonic(), members[0][0]
    with sessions.of_table(settings_of(sessions.spark, target)) as session:
        preparation = _Together(session, batch, members)
        try:
            prepared = named_run(preparation)
        except ABOUT_ONE as error:
            discard(sessions.spark, target.name, preparation.branch)
            log.warning("%s So the slices of the table are written one at a time.", error)
            return None
        except (PgoutputError, *JAVA_ERRORS):
            discard(sessions.spark, target.name, preparation.branch)
            raise
    if prepared is None:
        return None
    log.log(
        batch.level_of_tables,
        "%s: prepared %d of %d slices together (%s) in %.2f s.",
        target.name.target,
        len(preparation.taken),
        len(members),
        preparation.counted,
        time.monotonic() - began,
    )
    first, *others = preparation.taken
    return dataclasses.replace(prepared, target=first, others=tuple(others))


def publish_together(
    sessions: Sessions, batch: StagedBatch, prepared: Prepared, progress: Progress
) -> dict[str, int]:
    """Publish slices that were prepared together. If another writer moved main, prepare them again.

    :return: the snapshot of each published slice, by the key of the target's name. A slice that is not in it
        has to be prepared alone.
    :raises CommitStateUnknown: the catalog did not answer, and not all slices were found published. See
        ``publish.publish``, too.
    """
    unanswered: list[CommitStateUnknown] = []
    with later_errors_are_unknown(unanswered, prepared.target.name.target):
        published = _publish(sessions, batch, prepared, progress, unanswered)
    if unanswered and len(published) < len(prepared.targets):
        raise unanswered[-1]
    return published


def _publish(
    sessions: Sessions,
    batch: StagedBatch,
    prepared: Prepared,
    progress: Progress,
    unanswered: list[CommitStateUnknown],
) -> dict[str, int]:
    """Publish slices, see ``publish_together``.

    :param unanswered: gets the error of each commit without an answer.
    """
    spark, published = sessions.spark, dict[str, int]()
    waiting: Prepared | None = prepared
    for _ in range(_ATTEMPTS):
        try:
            if waiting is None:
                members = _look_again(spark, batch, prepared.targets, progress)
                published = {
                    target.name.key: snapshot_of(spark, batch, target)
                    for target, begin in members
                    if begin.done
                }
                waiting = _prepare(sessions, batch, [each for each in members if not each[1].done])
                if waiting is None:
                    return published
            snapshot_id = publish_once(spark, batch, waiting, unanswered)
            return published | {each.name.key: snapshot_id for each in waiting.targets}
        except ABOUT_ONE as error:
            if unanswered or waiting is None:
                raise
            discard(spark, waiting.target.name, waiting.branch)
            log.warning("%s So the slices of the table are written one at a time.", error)
            return published
        except PublishRefused as refusal:
            if waiting is not None:
                discard(spark, waiting.target.name, waiting.branch)
            log.warning("%s Preparing these slices again.", refusal)
            waiting = None
    return published


def _look_again(
    spark: SparkSession, batch: StagedBatch, targets: Sequence[Target], progress: Progress
) -> list[Member]:
    """Find again where each slice begins, because main has moved. A slice that is refused is left out."""
    members = []
    for target in targets:
        try:
            members.append((target, start(spark, target, batch.manifest, progress)))
        except ABOUT_ONE as error:
            # When it is prepared alone, it is refused again. That refusal counts.
            log.info("%s", error)
    return members
