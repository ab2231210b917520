"""Prepared transactions in the staging area: a batch writes them at its end, a later batch reads them.

The slot may pass a PREPARE only when its rows are durable, because after that the server sends only the
COMMIT PREPARED. So each transaction that is prepared at the end of a batch gets a file. The manifests name
this file until the transaction ends. ``pgoutput/prepared.py`` knows which transactions are open.

Source: https://www.postgresql.org/docs/current/logicaldecoding-two-phase-commits.html
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import PreparedTransaction
from airflow_provider_pgoutput.capture.pgoutput.prepared import PreparedTransactions, Waiting
from airflow_provider_pgoutput.capture.pgoutput.spool import Fragment
from airflow_provider_pgoutput.capture.pgoutput.stream_messages import Prepare
from airflow_provider_pgoutput.capture.staging.storage_errors import storage_errors
from airflow_provider_pgoutput.capture.stream.spill import SpillFolder
from airflow_provider_pgoutput.errors import BatchRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress

log = logging.getLogger(__name__)

_SCHEMA: Final = pa.schema([pa.field("message", pa.large_binary(), nullable=False)])
_OPTIONS: Final = ipc.IpcWriteOptions(compression="zstd")
_READ_BYTES: Final = 1 << 20


class StagedSpool:
    """The content of a prepared transaction in the staging area; see ``Spool``."""

    def __init__(self, area: StagingArea, staged: PreparedTransaction) -> None:
        self._area = area
        self.staged = staged

    def append(self, fragment: Fragment) -> None:
        """See ``Spool``."""
        raise AssertionError("what is sealed does not change")

    def fragments(self) -> Iterator[Fragment]:
        """See ``Spool``.

        :raises BatchRefused: the file is gone, or is not the one that was sealed.
        """
        self._verify()
        with storage_errors("read"), self._area.open(self.staged.path) as file:
            reader = ipc.open_stream(file)
            for record_batch in reader:
                yield _fragment(record_batch.column(0), self.staged.xid)

    def discard(self) -> None:
        """See ``Spool``. The file stays, because manifests name it."""

    def _verify(self) -> None:
        if self._area.sizes([self.staged.path]) == [None]:
            raise self._refused("missing")
        digest = hashlib.sha256()
        with storage_errors("read"), self._area.open(self.staged.path) as file:
            while content := file.read(_READ_BYTES):
                digest.update(content)
        if digest.hexdigest() != self.staged.sha256:
            raise self._refused("damaged: its SHA-256 is not the one in the manifest")

    def _refused(self, reason: str) -> BatchRefused:
        return BatchRefused(
            f"The staged file {self.staged.path} is {reason}.",
            lsn=self.staged.prepare_lsn,
            advice="bring the file back from a copy of the staging area; the server no longer has the "
            "rows of this prepared transaction. Otherwise drop the slot and run with on_slot_lost='copy'.",
        )


def read_waiting(area: StagingArea, manifest: Manifest) -> list[Waiting]:
    """The prepared transactions that were waiting at the end of a sealed batch."""
    return [
        Waiting(
            Prepare(
                prepare_lsn=Lsn.parse(each.prepare_lsn),
                end_lsn=Lsn.parse(each.end_lsn),
                prepared_at_us=each.prepared_at_us,
                xid=each.xid,
                gid=each.gid,
            ),
            StagedSpool(area, each),
        )
        for each in manifest.prepared
    ]


def write_waiting(
    area: StagingArea, batch: BatchInProgress, waiting: Sequence[Waiting]
) -> list[PreparedTransaction]:
    """Make the content of prepared transactions durable. A file that exists already stays where it is."""
    found = []
    for number, each in enumerate(waiting):
        if isinstance(each.spool, StagedSpool):
            found.append(each.spool.staged)
        else:
            found.append(_write(area, batch.prepared_path(number), each))
    for folder in sorted({each.path.rpartition("/")[0] for each in found}):
        area.sync(folder)
    return found


class TwoPhase:
    """What one read with ``two_phase`` keeps in addition to its batch. A context manager.

    :param earlier: the batch before, which knows what waits; None: there is none, or it is gone.
    :param commits_without_prepare: see ``PluginOptions``.
    """

    def __init__(
        self,
        area: StagingArea,
        start: Lsn,
        earlier: Manifest | None,
        *,
        commits_without_prepare: bool,
    ) -> None:
        self._area = area
        waiting = [] if earlier is None else read_waiting(area, earlier)
        # If the batch before is gone, a COMMIT PREPARED without content may mean that its rows were lost.
        commits_without_prepare = commits_without_prepare and earlier is not None
        self.transactions = PreparedTransactions(
            start, waiting, commits_without_prepare=commits_without_prepare
        )
        self.spill = SpillFolder()

    def __enter__(self) -> TwoPhase:
        return self

    def __exit__(self, *_: object) -> None:
        self.spill.close()

    def write(self, batch: BatchInProgress, end: Lsn) -> list[PreparedTransaction]:
        """Make durable what waits at ``end``, for the manifest."""
        if empty := self.transactions.empty:
            log.info(
                "%s transactions were prepared and committed that changed nothing.", f"{empty:,}"
            )
        return write_waiting(self._area, batch, self.transactions.open_at(end))


def _write(area: StagingArea, path: str, waiting: Waiting) -> PreparedTransaction:
    output = area.create(path)
    messages = 0
    with storage_errors("write"):
        with ipc.new_stream(output, _SCHEMA, options=_OPTIONS) as writer:
            for fragment in waiting.spool.fragments():
                if len(fragment):
                    writer.write_batch(pa.record_batch([_array(fragment)], schema=_SCHEMA))
                    messages += len(fragment)
        written = output.finish()
    prepare = waiting.prepare
    return PreparedTransaction(
        gid=prepare.gid,
        xid=prepare.xid,
        prepare_lsn=str(prepare.prepare_lsn),
        end_lsn=str(prepare.end_lsn),
        prepared_at_us=prepare.prepared_at_us,
        path=path,
        messages=messages,
        size_bytes=written.size_bytes,
        sha256=written.sha256,
    )


def _array(fragment: Fragment) -> pa.Array:
    buffers = [
        None,
        pa.py_buffer(fragment.offsets),
        pa.py_buffer(np.ascontiguousarray(fragment.data)),
    ]
    return pa.Array.from_buffers(pa.large_binary(), len(fragment), buffers)


def _fragment(messages: pa.Array, xid: int) -> Fragment:
    """The messages of a column as a fragment.

    :param messages: the column starts where its buffers start, as it does when it was just read from a file.
    """
    offsets = np.frombuffer(messages.buffers()[1], dtype=np.int64)[: len(messages) + 1]
    data = np.frombuffer(messages.buffers()[2], dtype=np.uint8)
    return Fragment(
        data[int(offsets[0]) : int(offsets[-1])],
        np.diff(offsets),
        np.full(len(messages), xid, dtype=np.uint32),
    )
