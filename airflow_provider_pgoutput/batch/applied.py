"""The rule that finds the LSN up to which a table has its changes: the table's applied LSN.

Exactly-once depends on it. *main* is the table's main branch, which readers see. Apply prepares a batch on
another branch. A *publish* moves main to it. Apply reads a table through Java, ``lake/`` reads it through
pyiceberg. Both give the snapshots of main's history, newest first, and the table property of the last
publish.

The newest snapshot that a batch of the slot wrote has the answer in its summary. Other writers may have
committed after it. If that snapshot has expired, the table property has the answer. But if the last publish
is newer than the oldest snapshot that still exists, somebody rolled main back, and the property does not
count.

Source: https://iceberg.apache.org/spec/#snapshots (summary, sequence-number)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_provider_pgoutput.batch.manifest import Manifest

#: In the table property: the batch passes nothing over.
_NO_LSN = "-"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of main's history, as far as the rule needs it."""

    snapshot_id: int
    #: 0: not known, as in format version 1.
    sequence_number: int
    has_parent: bool
    #: The summary. Keys other than those of ``SUMMARY_KEYS`` may be left out.
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Marker:
    """The batch of the newest commit of the pipeline. Two markers of the same batch are equal."""

    system_identifier: str
    batch_id: str
    end_lsn: Lsn
    #: None: the snapshot has expired, and the table property answered.
    start_lsn: Lsn | None = field(default=None, compare=False)
    snapshot_id: int | None = field(default=None, compare=False)
    #: The batch passes changes of the table over from this LSN on; None: the table has all up to ``end_lsn``.
    until_lsn: Lsn | None = field(default=None, compare=False)
    #: The source's timeline when the batch was staged; None: an early version wrote the commit.
    timeline: int | None = field(default=None, compare=False)

    def reaches(self, batch_id: str, recorded: Lsn | None) -> Lsn:
        """The LSN before which apply skips the table's changes in a batch.

        If the checkpoint has the marker's batch, what that batch passes over is known, and only a copy brings
        it. If not, the batch may be staged anew. The new one may pass nothing over, and brings it.

        :param batch_id: of the batch that is applied now.
        :param recorded: where the newest batch ends that the checkpoint has; None: it has none.
        """
        is_known = recorded is not None and recorded >= self.end_lsn
        if self.until_lsn is None or is_known or self.batch_id == batch_id:
            return self.end_lsn
        return self.until_lsn if recorded is None else max(self.until_lsn, recorded)


@dataclass(frozen=True, slots=True)
class Applied:
    """What main's history and the table property say together."""

    #: The batch that main ends with; None: main has no batch of the slot.
    marker: Marker | None
    #: The batch that was published last; None: none was.
    published: Marker | None
    #: Main has no snapshot of the pipeline, and its oldest snapshot is older than the last publish. So
    #: somebody rolled main back, and the pipeline's earlier snapshots have expired.
    lacks_published: bool = False

    @property
    def was_rolled_back(self) -> bool:
        """Whether main ends with another batch than the last publish."""
        return self.published is not None and self.marker != self.published


def find_applied(slot_name: str, history: Iterable[Snapshot], property_text: str | None) -> Applied:
    """Find the batch of a slot that a table's main ends with.

    :param history: main's snapshots that still exist, newest first. No more of them are read than needed.
    :param property_text: the table's property ``PROPERTY_APPLIED`` of the slot; None: it has none.
    """
    published, number = (None, 0) if property_text is None else _parse(property_text)
    oldest = None
    for snapshot in history:
        marker = batch_of(snapshot, slot_name)
        if marker is not None:
            return Applied(marker, published)
        oldest = snapshot
    if oldest is None or not oldest.has_parent:
        return Applied(None, published)  # The whole history is here, and no batch wrote any of it.
    if number > oldest.sequence_number:
        return Applied(None, published, lacks_published=True)
    return Applied(published, published)


@dataclass(frozen=True, slots=True)
class StandsAt:
    """Which snapshot of a table has exactly the changes before an LSN."""

    #: None: the table has no snapshot that stands there.
    snapshot_id: int | None
    #: A batch that begins before the LSN, ends past it, and changed the table. So no snapshot stands there.
    spanning: Marker | None = None
    #: The first batch of the table that still exists is past the LSN.
    came_later: bool = False


def find_at(
    slot_name: str, history: Iterable[Snapshot], lsn: Lsn, newest: Marker | None
) -> StandsAt:
    """Find the snapshot of a table as it was at an LSN that the checkpoint has reached.

    If no batch past the LSN changed the table, main's head stands there, whoever wrote it. Otherwise it is
    the last commit of the batch before. A batch may have made several commits, and the marker is in the last.

    :param history: main's snapshots that still exist, newest first.
    :param newest: the batch that main ends with, see ``find_applied``. Its snapshots may all have expired.
    """
    head: int | None = None
    later: Marker | None = None
    for snapshot in history:
        head = snapshot.snapshot_id if head is None else head
        marker = batch_of(snapshot, slot_name)
        if marker is None:
            continue
        if marker.end_lsn <= lsn:
            found = head if later is None else snapshot.snapshot_id
            return StandsAt(found, _spans(later, lsn))
        later = marker
    if later is None and newest is not None and newest.end_lsn > lsn:
        later = newest
    if later is None:
        return StandsAt(head)
    return StandsAt(None, _spans(later, lsn), came_later=True)


def find_batch_end(
    manifest: Manifest, history: Iterable[Snapshot], tagged: Iterable[Snapshot], lsn: Lsn
) -> int | None:
    """Find the snapshot in which a batch ends that has all changes up to an LSN and no later one.

    Either a batch ends at the LSN, in main's history or under a tag. Or the next batch in main's history ends
    later, and no snapshot between expired.

    :param manifest: any batch of the slot; it names slot and system.
    :param history: main's snapshots that still exist, newest first.
    :param tagged: the snapshots under tags.
    :return: None: no snapshot is certain to be the one.
    """
    goes_past = False
    for batch in _batches(manifest, history):
        if batch.end_lsn <= lsn:
            if goes_past or batch.end_lsn == lsn:
                return batch.snapshot_id
            break
        goes_past = True
    at_lsn = (each for each in _batches(manifest, tagged) if each.end_lsn == lsn)
    return next((each.snapshot_id for each in at_lsn), None)


def start_of_next(manifest: Manifest, history: Iterable[Snapshot], snapshot_id: int) -> Lsn | None:
    """Where the batch starts that the table got next after a snapshot.

    :param manifest: any batch of the slot; it names slot and system.
    :param history: main's snapshots that still exist, newest first.
    :return: None: it got none, or the snapshot is not in main's history.
    """
    following = None
    for snapshot in history:
        if snapshot.snapshot_id == snapshot_id:
            return following
        for batch in _batches(manifest, (snapshot,)):
            following = following if batch.start_lsn is None else batch.start_lsn
    return None


def start_of_first(slot_name: str, history: Iterable[Snapshot]) -> Lsn | None:
    """Where the first batch of a slot in main's history starts; None: older snapshots have expired.

    :param history: main's snapshots that still exist, newest first.
    """
    start = None
    for snapshot in history:
        batch = batch_of(snapshot, slot_name)
        if batch is not None and batch.start_lsn is not None:
            start = batch.start_lsn
        if not snapshot.has_parent:
            return start
    return None


def _batches(manifest: Manifest, snapshots: Iterable[Snapshot]) -> Iterator[Marker]:
    """The markers of snapshots that batches of the manifest's slot and systems made."""
    markers = (batch_of(each, manifest.slot_name) for each in snapshots)
    return (
        each
        for each in markers
        if each is not None and manifest.systems.have(each.system_identifier, each.end_lsn)
    )


def _spans(marker: Marker | None, lsn: Lsn) -> Marker | None:
    if marker is None or (marker.start_lsn is not None and marker.start_lsn >= lsn):
        return None
    return marker


def property_of(manifest: Manifest, sequence_number: int, until_lsn: str | None = None) -> str:
    """The value of ``PROPERTY_APPLIED`` that the publish of a batch writes.

    :param sequence_number: of the snapshot that is published.
    :param until_lsn: the ``SUMMARY_UNTIL_LSN`` of that snapshot.
    """
    batch = f"{manifest.system_identifier} {manifest.batch_id} {manifest.end_lsn}"
    return f"{batch} {sequence_number} {until_lsn or _NO_LSN} {manifest.timeline}"


def _parse(text: str) -> tuple[Marker, int]:
    """The batch and the sequence number of the last publish. Early versions wrote fewer words."""
    system_identifier, batch_id, end_lsn, *more = text.split(" ")
    number, until, timeline = (*more, "", "", "")[:3]
    marker = Marker(
        system_identifier,
        batch_id,
        Lsn.parse(end_lsn),
        until_lsn=Lsn.parse(until) if until not in {"", _NO_LSN} else None,
        timeline=int(timeline) if timeline else None,
    )
    return marker, int(number or 0)


def batch_of(snapshot: Snapshot, slot_name: str) -> Marker | None:
    """What the summary of a snapshot says of its batch; None: no batch of the slot made it."""
    summary = snapshot.summary
    end_lsn = summary.get(lake_names.SUMMARY_END_LSN)
    if summary.get(lake_names.SUMMARY_SLOT) != slot_name or not end_lsn:
        return None
    start_lsn = summary.get(lake_names.SUMMARY_START_LSN)
    until_lsn = summary.get(lake_names.SUMMARY_UNTIL_LSN)
    timeline = summary.get(lake_names.SUMMARY_TIMELINE)
    return Marker(
        summary[lake_names.SUMMARY_SYSTEM_IDENTIFIER],
        summary[lake_names.SUMMARY_BATCH_ID],
        Lsn.parse(end_lsn),
        Lsn.parse(start_lsn) if start_lsn else None,
        snapshot.snapshot_id,
        Lsn.parse(until_lsn) if until_lsn else None,
        int(timeline) if timeline else None,
    )
