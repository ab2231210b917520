"""What sealed batches say of positions that are read again: what they left out, and which copies they held.

A damaged manifest says nothing; it is one reason to read again. What is not here: what the lake says of that
(``capture/checkpoint.py``).
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import BatchRefused

if TYPE_CHECKING:
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
