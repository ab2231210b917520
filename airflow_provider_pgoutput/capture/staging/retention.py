"""Finds out what the staging area no longer needs, and removes it.

A batch may go if it was applied, is older than the retention, and no batch before it stays. So the rest is
one range without gaps, from which the lake can be rebuilt. The batch that ends at the checkpoint always
stays, because it names the prepared transactions that wait there. A batch that a table still lacks, because
the table is set aside, has a retention of its own. Manifests are removed before files. So after a kill no
manifest names a file that is gone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.repairs import expired_requests
from airflow_provider_pgoutput.capture.staging.sealed import sealed_batches
from airflow_provider_pgoutput.crash_points import reach

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.area import Entry, StagingArea
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, and where the remaining batches begin."""

    batches: int
    files: int
    size_bytes: int
    #: Where the oldest remaining batch starts; None: none remains.
    first_lsn: Lsn | None
    #: How many batches stay only because tables that are set aside lack them.
    kept_batches: int = 0
    #: Bytes of the staged files of these batches.
    kept_bytes: int = 0
    #: When the oldest of these was sealed; None: there is none.
    kept_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Sealed:
    manifest: Manifest
    entry: Entry

    @property
    def size_bytes(self) -> int:
        """The size of the staged files that its manifest names."""
        return sum(
            file.size_bytes
            for table in self.manifest.tables
            for version in table.versions
            for file in version.files
        )


def prune(
    area: StagingArea,
    slot_name: str,
    checkpoint: Checkpoint,
    *,
    older_than: datetime,
    keep_from: Lsn | None = None,
    set_aside_older_than: datetime | None = None,
) -> Pruned:
    """Remove applied batches, the rest of attempts that died, and requests for repairs that expired.

    :param older_than: files that were written at or after this time stay; with a time zone.
    :param keep_from: batches that end past this LSN stay, however old they are.
    :param set_aside_older_than: as ``older_than``, for the batches that tables lack which are set aside;
        None: all of them stay.
    :raises BatchRefused: a manifest is damaged. Nothing was removed then.
    """
    sealed = _sealed(area, slot_name)
    going = _going(sealed, checkpoint, older_than, keep_from)
    lacked = _lacked_from(sealed, checkpoint, set_aside_older_than)
    kept: list[_Sealed] = []
    if lacked is not None:
        # A batch of copies alone can start and end there.
        keep_from = min(keep_from or lacked, Lsn(lacked - 1))
        unless_kept, going = going, _going(sealed, checkpoint, older_than, keep_from)
        kept = [each for each in unless_kept if each not in going]
    staying = [each for each in sealed if each not in going]
    needed = {path for each in staying for path in each.manifest.paths}
    for each in going:
        area.delete_file(each.entry.path)
    reach("prune.after_manifests")
    unneeded = [
        # First seals, then the files that they name.
        *_unneeded_seals(area, slot_name, checkpoint, older_than),
        *_unneeded_data(area, slot_name, checkpoint, older_than, going, needed),
        *_unneeded_plans(area, slot_name, older_than, staying),
        # They have keys of rows, so they go at once.
        *expired_requests(area, slot_name),
    ]
    for entry in unneeded:
        area.delete_file(entry.path)
    for folder in (layout.copies_folder(slot_name), layout.data_folder(slot_name)):
        area.delete_empty_folders(folder)
    removed = [*(each.entry for each in going), *unneeded]
    ours = [each.manifest for each in staying if _is_of(each, checkpoint)]
    return Pruned(
        batches=len(going),
        files=len(removed),
        size_bytes=sum(entry.size_bytes for entry in removed),
        first_lsn=min((manifest.start_lsn for manifest in ours), default=None),
        kept_batches=len(kept),
        kept_bytes=sum(each.size_bytes for each in kept),
        kept_since=min((each.entry.modified for each in kept), default=None),
    )


def _sealed(area: StagingArea, slot_name: str) -> list[_Sealed]:
    """All batches, in the order of their ends."""
    return [_Sealed(each.read(), each.entry) for each in sealed_batches(area, slot_name)]


def _lacked_from(
    sealed: Sequence[_Sealed], checkpoint: Checkpoint, older_than: datetime | None
) -> Lsn | None:
    """Where the first batch starts that has to stay for a table that is set aside; None: there is none.

    If the first batch that a table lacks is gone or too old, the later ones are of no use: only a copy brings
    the table back.
    """
    found = []
    for table in checkpoint.set_aside.values():
        if table.needs_copy:
            # What it lacks was not staged.
            continue
        first = next(
            (
                each
                for each in sealed
                if _is_of(each, checkpoint) and _holds(each.manifest, table.replay_lsn)
            ),
            None,
        )
        if first is not None and (older_than is None or first.entry.modified >= older_than):
            found.append(first.manifest.start_lsn)
    return min(found, default=None)


def _holds(manifest: Manifest, lsn: Lsn) -> bool:
    """Whether a batch has what commits at an LSN, or begins there with copies."""
    return manifest.start_lsn <= lsn < manifest.end_lsn or manifest.start_lsn == lsn


def _going(
    sealed: Sequence[_Sealed], checkpoint: Checkpoint, older_than: datetime, keep_from: Lsn | None
) -> list[_Sealed]:
    """The batches that may be removed: applied, old enough, and no batch before them stays."""

    def may_go(each: _Sealed) -> bool:
        end = each.manifest.end_lsn
        applied = _is_of(each, checkpoint) and end < checkpoint.end_lsn
        return (
            applied and each.entry.modified < older_than and (keep_from is None or end <= keep_from)
        )

    staying = [each for each in sealed if _is_of(each, checkpoint) and not may_go(each)]
    # Nothing is removed from the middle.
    first = min((each.manifest.start_lsn for each in staying), default=checkpoint.end_lsn)
    return [each for each in sealed if may_go(each) and each.manifest.end_lsn <= first]


def _is_of(sealed: _Sealed, checkpoint: Checkpoint) -> bool:
    """Whether a batch is of the checkpoint's history. LSNs of another system mean nothing here."""
    manifest = sealed.manifest
    return checkpoint.systems.have(manifest.system_identifier, manifest.end_lsn)


def _unneeded_data(
    area: StagingArea,
    slot_name: str,
    checkpoint: Checkpoint,
    older_than: datetime,
    going: Sequence[_Sealed],
    needed: set[str],
) -> Iterator[Entry]:
    """Files of the batches that go, and old files of attempts that never became a batch.

    An attempt that is running starts at the checkpoint, and its files are not looked at. If it reads the slot
    again from before the checkpoint, its files are too young.
    """
    gone = {path for each in going for path in each.manifest.paths}
    folder = layout.data_folder(slot_name)
    for entry in area.entries(folder, recursive=True):
        if entry.path in needed:
            continue
        start = layout.parse_attempt_start(entry.path)
        abandoned = start is not None and start < checkpoint.end_lsn and entry.modified < older_than
        if entry.path in gone or abandoned:
            yield entry


def _unneeded_seals(
    area: StagingArea, slot_name: str, checkpoint: Checkpoint, older_than: datetime
) -> Iterator[Entry]:
    """Seals of copied tables that no batch used. The lake is past the LSN at which their batch starts."""
    for entry in area.entries(layout.copies_folder(slot_name), recursive=True):
        start = layout.parse_copy_seal_start(entry.path)
        if start is not None and start < checkpoint.end_lsn and entry.modified < older_than:
            yield entry


def _unneeded_plans(
    area: StagingArea, slot_name: str, older_than: datetime, staying: Sequence[_Sealed]
) -> Iterator[Entry]:
    kept = {each.manifest.batch_id[: layout.BATCH_ID_DIGITS] for each in staying}
    for entry in area.entries(layout.plan_folder(slot_name)):
        if entry.modified < older_than and entry.name.partition("-")[0] not in kept:
            yield entry
