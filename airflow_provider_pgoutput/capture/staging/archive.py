"""Finds the staged batches that cover a range of LSNs, for a replay. It opens no staged file, and no lake.

Batches are taken whole: the first one holds ``from_lsn``, or starts there, and the last one does not go past
``to_lsn``. The batch that a pipeline begins with may hold copies only; it ends where it starts then.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import BatchGap, BatchRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.capture.staging.area import StagingArea


log = logging.getLogger(__name__)


class Overlaps(NamedTuple):
    """Of the batches that end past a position."""

    #: Commits that they left out on request.
    left_out: frozenset[Lsn]
    #: The last end of those that the lake is not before and that hold copies; None: there is none.
    copied_until: Lsn | None


def newest_readable(
    area: StagingArea, slot_name: str, system_identifier: str, lake_lsn: Lsn
) -> Manifest | None:
    """The newest batch that the lake is not before, and whose manifest can be read; None: there is none."""
    folder = layout.manifest_folder(slot_name)
    for name in reversed(area.names(folder)):
        ends = layout.parse_manifest_name(name)
        if ends is None or ends[1] > lake_lsn:
            continue
        with contextlib.suppress(BatchRefused):
            manifest = Manifest.from_json(area.read(f"{folder}/{name}"))
            if manifest.system_identifier == system_identifier:
                return manifest
    return None


def find_overlaps(
    area: StagingArea, slot_name: str, system_identifier: str, start: Lsn, lake_lsn: Lsn
) -> Overlaps:
    """Look through the batches that end past ``start``; those of other PostgreSQL systems do not count."""
    left_out: set[Lsn] = set()
    copied: list[Lsn] = []
    folder = layout.manifest_folder(slot_name)
    for name in area.names(folder):
        ends = layout.parse_manifest_name(name)
        if ends is None or ends[1] <= start:
            continue
        try:
            manifest = Manifest.from_json(area.read(f"{folder}/{name}"))
        except BatchRefused:
            log.warning("The manifest %s is damaged, and passed over.", name)
            continue
        if manifest.system_identifier != system_identifier:
            continue
        left_out.update(Lsn.parse(each.commit_lsn) for each in manifest.skipped)
        if ends[1] <= lake_lsn and any(each.copy_lsn is not None for each in manifest.tables):
            copied.append(ends[1])
    return Overlaps(frozenset(left_out), max(copied, default=None))


class ArchivedBatch(NamedTuple):
    """A sealed batch and where its manifest lies."""

    start_lsn: Lsn
    end_lsn: Lsn
    manifest_uri: str
    batch_id: str
    system_identifier: str
    timeline: int
    #: Row changes, copied rows not counted.
    changes: int

    @property
    def is_point(self) -> bool:
        """Whether it ends where it starts."""
        return self.start_lsn == self.end_lsn


def batches_between(
    area: StagingArea,
    slot_name: str,
    from_lsn: Lsn,
    to_lsn: Lsn | None = None,
    system_identifier: str | None = None,
) -> list[ArchivedBatch]:
    """The batches of a slot from one position to another, in order and without a gap; they may overlap.

    :param to_lsn: the last batch ends there or before; None: the newest batch is the last.
    :param system_identifier: batches of other PostgreSQL systems are left out; None: of others than the
        newest batch's.
    :raises BatchGap: the archive begins past ``from_lsn``, or lacks something in between.
    :raises BatchRefused: a manifest is damaged, no batch ends in the range, or none gets to ``to_lsn``.
    """
    found = _past(area, slot_name, from_lsn)
    system = system_identifier or (found[-1].system_identifier if found else None)
    found = _happened([each for each in found if each.system_identifier == system])
    position = from_lsn
    chain = _points(found, position)
    while to_lsn is None or position < to_lsn:
        following = [
            each
            for each in found
            if each.start_lsn <= position < each.end_lsn
            and (to_lsn is None or each.end_lsn <= to_lsn)
        ]
        if not following:
            break
        # Of several attempts at one batch the one that reaches farthest.
        chain.append(max(following, key=lambda each: each.end_lsn))
        position = chain[-1].end_lsn
        chain += _points(found, position)
    _refuse_hole(found, slot_name, position, to_lsn)
    if not chain:
        raise BatchRefused(
            f"No staged batch holds {from_lsn}"
            + (f" and ends by {to_lsn}." if to_lsn is not None else "."),
            slot=slot_name,
            lsn=from_lsn,
            advice="the names of the files in the slot's folder manifests/ say what is staged; older batches"
            " may have been pruned (staging_retention).",
        )
    return chain


def _happened(found: Sequence[ArchivedBatch]) -> list[ArchivedBatch]:
    """Leave out what was sealed before the source was promoted and then staged anew, or never happened."""
    return [
        each
        for each in found
        if not any(
            each.timeline < other.timeline and other.start_lsn < each.end_lsn for other in found
        )
    ]


def _points(found: Sequence[ArchivedBatch], position: Lsn) -> list[ArchivedBatch]:
    """The batches that start and end at a position."""
    return [each for each in found if each.is_point and each.start_lsn == position]


def _past(area: StagingArea, slot_name: str, lsn: Lsn) -> list[ArchivedBatch]:
    """All batches that end past a position, or lie in it, in the order of their ends."""
    found = []
    for entry in area.entries(layout.manifest_folder(slot_name)):
        ends = layout.parse_manifest_name(entry.name)
        # An empty one is being written, or its writer died.
        if entry.size_bytes and ends is not None and (ends[1] > lsn or ends == (lsn, lsn)):
            manifest = Manifest.from_json(area.read(entry.path))
            found.append(
                ArchivedBatch(
                    manifest.start_lsn,
                    manifest.end_lsn,
                    area.uri(entry.path),
                    manifest.batch_id,
                    manifest.system_identifier,
                    manifest.timeline,
                    manifest.changes,
                )
            )
    return sorted(found, key=lambda each: (each.end_lsn, each.start_lsn))


def _refuse_hole(
    found: Sequence[ArchivedBatch], slot_name: str, position: Lsn, to_lsn: Lsn | None
) -> None:
    """Refuse a chain that ends at ``position`` when it should not."""
    later = [each.start_lsn for each in found if each.start_lsn > position]
    if to_lsn is not None:
        # A batch that holds to_lsn is left out on purpose.
        if position >= to_lsn or any(
            each.start_lsn <= position and each.end_lsn > to_lsn for each in found
        ):
            return
        later = [each for each in later if each < to_lsn]
    if later:
        raise BatchGap(
            f"The staging area has no batch from {position} on, the next one starts at {min(later)}.",
            slot=slot_name,
            lsn=position,
            advice="bring the batches between back from a backup, or begin after them.",
        )
    if to_lsn is not None and found:
        raise BatchRefused(
            f"The newest batch ends at {position}, before {to_lsn}.",
            slot=slot_name,
            lsn=to_lsn,
            advice="leave to_lsn out, or wait until a run has staged that far.",
        )
