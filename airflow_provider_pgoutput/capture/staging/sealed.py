"""The index of sealed batches: lists the manifests of a slot, and reads those that are asked for.

All code that looks for batches in the staging area does it here. So all of it agrees on what a batch is:

- A file with another name is no manifest. An empty file is none either: its writer is at work, or died.
- A manifest is damaged if it is cut off, was altered, has a newer format, or is of another batch than its
  name says. Apply refuses all of these. The caller decides what follows: refuse, pass over or remove it.
- A batch is incomplete if a file of it is missing or has another size. Apply also checks the content.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import BatchRefused

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.staging.area import Entry, StagingArea

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SealedBatch:
    """A batch as the name of its manifest describes it. Its content is read when it is asked for."""

    start_lsn: Lsn
    end_lsn: Lsn
    slot_name: str
    #: The manifest's file.
    entry: Entry
    _area: StagingArea = field(repr=False, compare=False)

    @property
    def path(self) -> str:
        """Path of the manifest, relative to the staging root."""
        return self.entry.path

    @property
    def uri(self) -> str:
        """URI of the manifest."""
        return self._area.uri(self.path)

    def read(self) -> Manifest:
        """Read the manifest.

        :raises BatchRefused: it is damaged. The error names it.
        """
        try:
            manifest = Manifest.from_json(self._area.read(self.path))
            # Read as apply does: from the content alone.
            if self.path != manifest.path:
                raise BatchRefused("The manifest is of another batch than its name says.")
        except BatchRefused as error:
            raise BatchRefused(
                f"{error.message} It is {self.uri}.",
                slot=self.slot_name,
                lsn=self.end_lsn,
                advice=f"{error.advice or 'bring the file back.'} Or, if nothing of the batch was applied and"
                " the slot is not past its start, remove the file: the next run stages the batch again.",
            ) from error
        return manifest

    def read_unless_damaged(self) -> Manifest | None:
        """Read the manifest; None, with a warning: it is damaged."""
        try:
            return self.read()
        except BatchRefused as error:
            log.warning("A damaged manifest is passed over. %s", error.message)
            return None

    def remove(self) -> None:
        """Delete the manifest. Then the batch does not exist any more."""
        self._area.delete_file(self.path)


def sealed_batches(area: StagingArea, slot_name: str) -> list[SealedBatch]:
    """All batches of a slot, in the order of their ends. If several end there, the longest is first."""
    found = []
    for entry in area.entries(layout.manifest_folder(slot_name)):
        ends = layout.parse_manifest_name(entry.name)
        if ends is not None and entry.size_bytes:
            found.append(SealedBatch(*ends, slot_name, entry, area))
    return sorted(found, key=lambda each: (each.end_lsn, each.start_lsn, each.path))


def lost_files(area: StagingArea, manifest: Manifest) -> list[str]:
    """Paths of the batch's files that are missing or have another size."""
    sizes = area.sizes(list(manifest.paths))
    wanted = zip(manifest.paths, manifest.sizes, sizes, strict=True)
    return [path for path, size, found in wanted if found != size]
