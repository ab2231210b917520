"""What one attempt at a batch leaves in the staging area: its files if it seals the batch, otherwise nothing.

An attempt writes below a folder of its own, so two attempts never meet. A killed attempt leaves files that no
manifest names.
"""

from __future__ import annotations

import logging
import re
import uuid
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.capture.staging.manifests import seal
from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Set

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.source.catalog import Server
    from airflow_provider_pgoutput.capture.staging.area import StagingArea

log = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


class Attempt:
    """One attempt at a batch.

    :param start: where the batch starts.
    :param name: of the task's try. The same try may run twice (a cleared task), so a random part is added.
    :param written: returns the folders that were written to so far.
    """

    def __init__(
        self,
        area: StagingArea,
        slot_name: str,
        start: Lsn,
        name: str,
        written: Callable[[], set[str]],
    ) -> None:
        unique = f"{_UNSAFE.sub('-', name).strip('-')[:80] or 'attempt'}-{uuid.uuid4().hex[:8]}"
        self.root = layout.attempt_folder(slot_name, start, unique)
        #: Folders of this attempt that the seal of a copied table names. Another attempt may use them.
        self._sealed_folders: set[str] = set()
        self._area = area
        self._written = written
        self._sealing = False

    def keep(self, folders: Set[str]) -> None:
        """Keep folders that the seal of a copied table names, whatever becomes of the attempt."""
        self._sealed_folders |= folders

    def seal(
        self,
        manifest: Manifest,
        server_now: Callable[[], Server],
        skip_lsns: Collection[Lsn] = (),
        lake_lsn: Lsn | None = None,
    ) -> tuple[Manifest, str]:
        """Make the batch exist, or take the one that exists already; return its manifest and URI.

        :param server_now: reads the source's state when it is called.
        """
        # From here on the manifest may exist whatever is raised, even if writing it failed.
        self._sealing = True
        sealed = seal(self._area, manifest, server_now, skip_lsns, lake_lsn)
        if sealed[0] is not manifest:
            self._delete_files()
        return sealed

    def abandon(self) -> None:
        """Give up the batch: delete its files, except for those of sealed tables.

        If the manifest may exist already, all files stay.
        """
        if self._sealing:
            return
        try:
            self._delete_files()
        except PgoutputError as error:
            # The run fails already, and with the error that counts.
            log.warning("%s The attempt's files stay until they are pruned by their age.", error)

    def _delete_files(self) -> None:
        if not self._sealed_folders:
            self._area.delete_folder(self.root)
            return
        written = self._written() | {layout.prepared_folder(self.root)}
        for folder in sorted(written - self._sealed_folders):
            self._area.delete_folder(folder)
