"""Finds the staged batches that cover a range of LSNs, for a replay. It opens no staged file and no lake.

Batches are taken whole. The first one contains ``from_lsn``, or starts there. The last one does not end after
``to_lsn``. The first batch of a pipeline may have only copies. Then it ends where it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.sealed import sealed_batches
from airflow_provider_pgoutput.errors import BatchGap, BatchRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.area import StagingArea


class Overlaps(NamedTuple):
    """Facts about the batches that end past an LSN."""

    #: LSNs of commits that they left out on request.
    left_out: frozenset[Lsn]
    #: The last end of an applied batch with copies; None: there is none.
    copied_until: Lsn | None


def newest_readable(
    area: StagingArea, slot_name: str, system_identifier: str, lake_lsn: Lsn
) -> Manifest | None:
    """The newest applied batch whose manifest can be read; None: there is none."""
    for each in reversed(sealed_batches(area, slot_name)):
        if each.end_lsn > lake_lsn:
            continue
        manifest = each.read_unless_damaged()
        if manifest is not None and manifest.system_identifier == system_identifier:
            return manifest
    return None


def find_overlaps(
    area: StagingArea, slot_name: str, system_identifier: str, start: Lsn, lake_lsn: Lsn
) -> Overlaps:
    """Look through the batches that end past ``start``. Batches of other systems do not count."""
    left_out: set[Lsn] = set()
    copied: list[Lsn] = []
    for each in sealed_batches(area, slot_name):
        if each.end_lsn <= start:
            continue
        manifest = each.read_unless_damaged()
        if manifest is None or manifest.system_identifier != system_identifier:
            continue
        left_out.update(Lsn.parse(skipped.commit_lsn) for skipped in manifest.skipped)
        if each.end_lsn <= lake_lsn and any(t.copy_lsn is not None for t in manifest.tables):
            copied.append(each.end_lsn)
    return Overlaps(frozenset(left_out), max(copied, default=None))


class ArchivedBatch(NamedTuple):
    """A sealed batch, and where its manifest is."""

    start_lsn: Lsn
    end_lsn: Lsn
    manifest_uri: str
    batch_id: str
    system_identifier: str
    timeline: int
    #: Number of row changes, without copied rows.
    changes: int
    #: The tables that it changes or copies, as ``schema.table`` by OID.
    tables: Mapping[int, str] = {}

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
    """The batches of a slot from one LSN to another, in order and without a gap. They may overlap.

    :param to_lsn: the last batch ends there or before; None: the newest batch is the last.
    :param system_identifier: only batches of this system count; None: those of the newest batch's system.
    :raises BatchGap: the archive begins after ``from_lsn``, or a batch in between is missing.
    :raises BatchRefused: a manifest is damaged, no batch ends in the range, or none reaches ``to_lsn``.
    """
    found = _past(area, slot_name, from_lsn, to_lsn if system_identifier else None)
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
        # If there were several attempts at one batch, take the one that ends last.
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
    """Leave out batches of an earlier timeline if a batch of a later timeline starts before their end.

    The source was promoted. Their changes were staged again, or never happened.
    """
    return [
        each
        for each in found
        if not any(
            each.timeline < other.timeline and other.start_lsn < each.end_lsn for other in found
        )
    ]


def _points(found: Sequence[ArchivedBatch], position: Lsn) -> list[ArchivedBatch]:
    """The batches that start and end at an LSN."""
    return [each for each in found if each.is_point and each.start_lsn == position]


def _past(area: StagingArea, slot_name: str, lsn: Lsn, until: Lsn | None) -> list[ArchivedBatch]:
    """All batches that end past an LSN, or start and end at it, in the order of their ends.

    :param until: manifests of batches that start after this LSN are not read; None: all are.
    """
    found = []
    for each in sealed_batches(area, slot_name):
        if until is not None and each.start_lsn > until:
            continue
        if each.end_lsn > lsn or each.start_lsn == each.end_lsn == lsn:
            manifest = each.read()
            found.append(
                ArchivedBatch(
                    each.start_lsn,
                    each.end_lsn,
                    each.uri,
                    manifest.batch_id,
                    manifest.system_identifier,
                    manifest.timeline,
                    manifest.changes,
                    {table.relation_oid: table.name for table in manifest.tables},
                )
            )
    return found


def _refuse_hole(
    found: Sequence[ArchivedBatch], slot_name: str, position: Lsn, to_lsn: Lsn | None
) -> None:
    """Refuse a chain of batches that ends at ``position`` although it should go on."""
    later = [each.start_lsn for each in found if each.start_lsn > position]
    if to_lsn is not None:
        # A batch that contains to_lsn was left out on purpose.
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
