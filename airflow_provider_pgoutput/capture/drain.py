"""The inner loop of a capture: chunks off a stream, through the decoder, into a batch.

Fetching runs in a thread of its own beside decoding and casting; encoding Parquet in a third. All three
work mostly outside Python's lock. What is not here: where the batch starts, ends and goes.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.crash_points import reach
from airflow_provider_pgoutput.capture.hand_over import HandOver
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
    from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
    from airflow_provider_pgoutput.capture.pgoutput.prepared import PreparedTransactions
    from airflow_provider_pgoutput.capture.progress import Progress
    from airflow_provider_pgoutput.capture.source.stream import ChangeStream
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.staging.cut import BatchCut

_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_FETCHED_CHUNKS = 3
#: How long the thread that fetches may take to notice that nobody wants its chunks.
_STOP_SECONDS = 10.0
_ADVICE = (
    "keep the slot, and report the error with the server's version: a retry reads the same bytes. A newer"
    " minor version of the server may send others."
)
_ADVICE_OF_TRANSACTION = (
    " If that cannot wait and one row is at fault, skip_lsns=['{}'] leaves out the transaction that commits"
    " there, and the lake loses it."
)


def drain(
    stream: ChangeStream,
    cut: BatchCut,
    batch: BatchInProgress,
    decoder: Decoder,
    progress: Progress,
    prepared: PreparedTransactions | None = None,
) -> None:
    """Read a stream until the batch is complete.

    :raises ProtocolError: when the stream breaks the protocol, or ends inside a transaction.
    """
    for chunk in _fetched_ahead(stream):
        wanted = cut.take(chunk)
        if len(wanted.offsets) > 1:
            for block in decoder.decode(wanted):
                batch.add(block)
            for messages in decoder.take_messages():
                batch.add_messages(messages)
        reach("stage.after_chunk")
        progress.report(batch.rows, len(chunk.data), cut.last_lsn)
        if prepared is not None:
            prepared.settle(min(cut.last_lsn, cut.end_lsn))
        if cut.finished:
            break
    else:
        cut.end_at(stream.end_lsn)
    if decoder.in_transaction:
        raise ProtocolError(
            "The stream ended inside a transaction.",
            advice="run the task again; report it if it repeats.",
        )


@contextlib.contextmanager
def located(slot_name: str, cut: BatchCut) -> Iterator[None]:
    """Let an error in the bytes say of which slot they are and after which commit they came.

    What the server streams before its end carries no LSN, so the decoder may not know any.
    """
    try:
        yield
    except ProtocolError as error:
        advice = error.advice or _ADVICE
        if error.lsn is not None and error.advice is None:
            advice += _ADVICE_OF_TRANSACTION.format(error.lsn)
        raise ProtocolError(
            error.message,
            slot=error.slot or slot_name,
            table=error.table,
            column=error.column,
            lsn=error.lsn or cut.last_lsn,
            advice=advice,
        ) from error


def commit_time(committed_at_us: int) -> str:
    """ISO 8601 in UTC for a time of the wire, microseconds since 2000-01-01 UTC."""
    return (_POSTGRES_EPOCH + timedelta(microseconds=committed_at_us)).isoformat()


def _fetched_ahead(stream: ChangeStream) -> Iterator[MessageChunk]:
    """The stream's chunks, fetched by a thread while the ones before are worked on."""
    ready: HandOver[MessageChunk] = HandOver(_FETCHED_CHUNKS)

    def chunks() -> Generator[MessageChunk, None, None]:
        yield from stream.chunks()

    thread = threading.Thread(target=lambda: ready.feed(chunks()), name="fetch", daemon=True)
    thread.start()
    try:
        yield from ready
    finally:
        ready.stop()
        stream.stop()
        # On a network that is silent it ends with this process.
        thread.join(_STOP_SECONDS)


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's cyclic collector would look at thousands of live buffers again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
