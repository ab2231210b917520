"""Where a batch begins, and what its kind of run means for it: one frozen value that goes through the run.

Each kind of run has a function here that makes its value. ``pipeline.py`` decides which kind a run is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.membership import PublishedSet
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a batch begins."""

    #: The batch has what commits from here on.
    lsn: Lsn
    #: The slot is read from here on: at ``lsn``, or past it when the slot lost what lies between.
    reads_from: Lsn
    #: Where tables were loaded from outside; None: they were not.
    loaded_lsn: Lsn | None = None
    #: The checkpoint, if the run reads again what the lake has already. None: the run begins at the
    #: checkpoint.
    lake_lsn: Lsn | None = None
    #: Commits that the user wants to be left out of this batch.
    skip_lsns: frozenset[Lsn] = frozenset()
    #: Commits that earlier batches left out, and that are read again.
    left_out: frozenset[Lsn] = frozenset()
    #: What was published when the batch before began; None: nobody knows, or nothing depends on it.
    published_before: PublishedSet | None = None

    @property
    def held_until(self) -> Lsn:
        """The lake may hold every commit before this LSN. A copy read at an earlier LSN may lack some."""
        return self.reads_from if self.lake_lsn is None else max(self.reads_from, self.lake_lsn)

    @property
    def has_limits(self) -> bool:
        """Whether ``max_changes`` and its like may end the batch before its target.

        A load from outside may hold some of the changes after its position. They all go into one batch, so
        that the last state of a row wins. A batch that is read again goes past the lake.
        """
        return self.lake_lsn is None and self.loaded_lsn != self.lsn

    @property
    def may_repair(self) -> bool:
        """Whether rows that differ may be read again at the end of the batch.

        Only an ordinary batch may: it begins where the lake is, and limits may end it.
        """
        return self.has_limits and self.reads_from == self.lsn


def first(request: CaptureRequest, lsn: Lsn) -> Start:
    """Begin a pipeline at the position of its slot, or where its tables were loaded."""
    return Start(
        lsn=lsn,
        reads_from=lsn,
        loaded_lsn=request.start_lsn,
        skip_lsns=frozenset(request.skip_lsns),
    )


def following(request: CaptureRequest, checkpoint: Checkpoint, last: Manifest | None) -> Start:
    """Go on where the lake is.

    :param last: the batch that the lake holds last; None: the staging area has it no more.
    """
    return Start(
        lsn=checkpoint.end_lsn,
        reads_from=checkpoint.end_lsn,
        loaded_lsn=request.start_lsn,
        skip_lsns=frozenset(request.skip_lsns),
        published_before=None if last is None else last.published,
    )


def again(
    request: CaptureRequest,
    lsn: Lsn,
    checkpoint: Checkpoint,
    last: Manifest | None,
    left_out: frozenset[Lsn],
) -> Start:
    """Read again from a position that the lake may be past.

    :param last: the batch that the lake holds last; None: it is not known.
    :param left_out: commits that earlier batches left out.
    """
    lake_lsn = checkpoint.end_lsn
    # Tables of the load may still wait for their first change.
    loaded = None if last is None else last.loaded_lsn
    return Start(
        lsn=lsn,
        reads_from=lsn,
        loaded_lsn=None if loaded is None else Lsn.parse(loaded),
        lake_lsn=lake_lsn,
        # The lake has the commits before its checkpoint already, so nobody can want them left out.
        skip_lsns=frozenset(each for each in request.skip_lsns if each >= lake_lsn),
        left_out=frozenset(each for each in left_out if each >= lsn),
        published_before=None if last is None else last.published,
    )


def after_loss(request: CaptureRequest, checkpoint: Checkpoint, reads_from: Lsn) -> Start:
    """Span what a slot lost: from the checkpoint on, with a slot that begins at ``reads_from``."""
    return Start(
        lsn=checkpoint.end_lsn,
        reads_from=reads_from,
        loaded_lsn=request.start_lsn,
        skip_lsns=frozenset(request.skip_lsns),
    )
