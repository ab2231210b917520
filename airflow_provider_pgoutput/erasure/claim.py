"""Lets one erasure of rows work on a slot at a time: the one that began last.

Two may run at once: a task of which Airflow believed that it was dead, and its next try. Each would delete
files that the other has just written. So an erasure writes its claim first, over any other. Before each step
that replaces or deletes something it looks whether the claim is still its own.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.errors import SlotBusy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.capture.staging.area import StagingArea


@dataclass(frozen=True, slots=True)
class ErasureClaim:
    """The right of one erasure to change what is staged, and what is in the lake."""

    area: StagingArea
    slot_name: str
    #: No other claim has it.
    token: str

    def check(self) -> None:
        """Make sure that no other erasure began.

        :raises SlotBusy: one did, or this one has ended.
        """
        if not self.holds:
            raise SlotBusy(
                "Another erasure of rows of this slot began meanwhile.",
                slot=self.slot_name,
                advice="let one run at a time (max_active_runs=1), and run this one again after it.",
            )

    @property
    def holds(self) -> bool:
        """Whether this is still the newest erasure."""
        path = layout.erasure_claim_path(self.slot_name)
        if self.area.sizes([path]) == [None]:
            return False
        return self.area.read(path) == self.token.encode()


@contextlib.contextmanager
def claimed(area: StagingArea, slot_name: str) -> Iterator[ErasureClaim]:
    """Claim the slot for an erasure until the block ends."""
    claim = ErasureClaim(area, slot_name, uuid.uuid4().hex)
    path = layout.erasure_claim_path(slot_name)
    area.write_whole(path, claim.token.encode())
    try:
        yield claim
    finally:
        if claim.holds:
            area.delete_file(path)
