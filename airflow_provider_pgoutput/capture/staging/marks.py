"""Marks: LSNs at which a verification wants a batch to end, so that the lake is exactly there for a while.

Any LSN is a legal end of a batch. So the next stage task ends its batch at the mark, and the run after it
goes on from there. A mark expires by itself: its time is in its name. The verification deletes its mark when
its wait ends. If it died, the mark expires, and the next verification deletes it.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.staging.area import StagingArea

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark in the staging area."""

    area: StagingArea
    path: str

    def remove(self) -> None:
        """Delete the mark. It may be gone already."""
        self.area.delete_file(self.path)


def leave_mark(area: StagingArea, slot_name: str, lsn: Lsn, seconds: float) -> Mark:
    """Ask for a batch that ends at an LSN.

    :param seconds: until the mark expires.
    """
    folder, now = layout.mark_folder(slot_name), time.time()
    for name in area.names(folder):
        found = layout.parse_mark_name(name)
        if found is not None and found[1] <= now:
            area.delete_file(f"{folder}/{name}")
    path = layout.mark_path(slot_name, lsn, int(now + seconds), uuid.uuid4().hex[:16])
    # The name says all. But an empty file counts as not there.
    area.write_whole(path, b"{}")
    return Mark(area, path)


def next_mark(area: StagingArea, slot_name: str, after: Lsn, target: Lsn) -> Lsn | None:
    """The first mark between the start and the target of a batch; None: there is none.

    A problem with marks must not stop the pipeline. If their folder cannot be listed, this warns and returns
    None. That happens if another user of the machine made the folder.
    """
    now = time.time()
    try:
        names = area.names(layout.mark_folder(slot_name))
    except PgoutputError as error:
        log.warning(
            "The marks of verifications cannot be read, so this batch ignores them. %s", error
        )
        return None
    found = filter(None, map(layout.parse_mark_name, names))
    return min(
        (lsn for lsn, expires in found if expires > now and after < lsn < target), default=None
    )
