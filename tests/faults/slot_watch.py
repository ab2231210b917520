"""I4 at every instant: a thread that looks at the slot every few milliseconds while tasks run.

Whenever it finds the slot at a new position it reads the checkpoint, after the position. The checkpoint
never goes back (I5), so a slot that was right is never found past a checkpoint that was read later: no
clock is compared and nothing depends on how slow the thread is. What it cannot see is a slot that is
early by less than one look. What is not here: the judgement after a task, see ``invariants.py``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.request import AFTER_STAGE

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline

_BETWEEN_LOOKS_SECONDS = 0.003
_TIME_LIMIT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Sighting:
    """A position that the slot was found at."""

    confirmed: Lsn
    #: How far it may be, read after the position: the checkpoint, or with ``advance="after_stage"`` what is
    #: sealed from there on; None: there was no checkpoint.
    kept: Lsn | None


def kept_up_to(pipeline: Pipeline) -> Lsn | None:
    """How far the server need not keep changes, because the lake or the staging area does."""
    checkpoint = pipeline.checkpoint()
    if checkpoint is None:
        return None
    kept = checkpoint.end_lsn
    if pipeline.capture_options.get("advance") == AFTER_STAGE:
        folder = pipeline.staging / pipeline.slot_name / "manifests"
        # Their names begin with start and end, so they are in the order of the starts.
        for path in sorted(folder.glob("*.json")):
            start, end = (Lsn(int(text, 16)) for text in path.name.split("-")[:2])
            if start <= kept:
                kept = max(kept, end)
    return kept


class SlotWatch:
    """Looks at one pipeline's slot from its start until it is stopped."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slot-watch", daemon=True)
        self._error: BaseException | None = None
        #: How many times the slot was looked at.
        self.looks = 0
        #: Every change of the position, the oldest first.
        self.sightings: list[Sighting] = []
        self._thread.start()

    def stop(self) -> None:
        """End the thread; raise what ended it before."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def wait_for_a_look(self) -> None:
        """Return when the slot was looked at after this call began."""
        wanted = self.looks + 2  # The one that is under way may have begun before.
        for _ in range(int(_TIME_LIMIT_SECONDS / _BETWEEN_LOOKS_SECONDS)):
            if self.looks >= wanted:
                return
            assert self._thread.is_alive(), f"the watch ended: {self._error}"
            self._stopping.wait(_BETWEEN_LOOKS_SECONDS)
        raise AssertionError("the slot was not looked at")

    def early(self, created_at: Lsn) -> list[Sighting]:
        """Where the slot was past what is kept.

        :param created_at: where the slot began, which is the start of the first batch. Until there is a
            checkpoint the slot may not be past it.
        """
        return [
            each
            for each in self.sightings
            if each.confirmed > max(created_at, each.kept or created_at)
        ]

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._look_until_stopped()
                except psycopg.OperationalError:
                    # A test that stops the server ends this session too; the next one looks on.
                    self._stopping.wait(_BETWEEN_LOOKS_SECONDS)
        except BaseException as error:
            self._error = error

    def _look_until_stopped(self) -> None:
        last: Lsn | None = None
        with psycopg.connect(self._pipeline.conninfo, autocommit=True) as session:
            while not self._stopping.wait(_BETWEEN_LOOKS_SECONDS):
                row = session.execute(
                    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots"
                    " WHERE slot_name = %s AND confirmed_flush_lsn IS NOT NULL",
                    (self._pipeline.slot_name,),
                    prepare=True,
                ).fetchone()
                found = Lsn.parse(row[0]) if row else None
                if found is not None and found != last:
                    self.sightings.append(Sighting(found, kept_up_to(self._pipeline)))
                last = found
                self.looks += 1
