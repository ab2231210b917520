"""One read of the slot into a batch: the stream, the decoder, and where it is cut.

What is not here: where a batch starts and ends, and the checks around a read (``reading.py``).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.manifest import SkippedTransaction
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reassemble import UnstreamedAborts
from airflow_provider_pgoutput.capture.source.progress_log import Progress
from airflow_provider_pgoutput.capture.source.threads import HandOver
from airflow_provider_pgoutput.capture.stream.choose import Backlog, against_sql, read_room
from airflow_provider_pgoutput.capture.stream.cut import BatchCut, Limits
from airflow_provider_pgoutput.capture.stream.options import AUTO, SQL, WALSENDER
from airflow_provider_pgoutput.capture.stream.sql import SLICE_MESSAGES, SqlStream
from airflow_provider_pgoutput.capture.stream.transport import SlotRead
from airflow_provider_pgoutput.capture.stream.walsender import WalsenderStream
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import ConfigurationError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
    from airflow_provider_pgoutput.capture.pgoutput.messages import TypeMessage
    from airflow_provider_pgoutput.capture.pgoutput.prepared import PreparedTransactions
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.stream.options import PluginOptions
    from airflow_provider_pgoutput.capture.stream.transport import ChangeStream
    from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase


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


log = logging.getLogger(__name__)


#: The first slice of a read that a limit on bytes or seconds ends soon.
_SOME_MESSAGES = 200_000


#: A limit on seconds that lets some parts through.
_LONG_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Found:
    """What a read of the slot found, for the manifest."""

    end: Lsn
    #: Whether row changes were read, not only what stands beside them.
    changes: bool = False
    transactions: int = 0
    last_commit_time: str | None = None
    skipped: tuple[SkippedTransaction, ...] = ()
    #: How they were read.
    transport: str = SQL


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a run reads its slot, whatever range of it."""

    #: A session that no read of the stream uses.
    session: Session
    #: See ``session.connect``.
    conninfo: str | Mapping[str, Any] = field(repr=False)
    slot_name: str
    options: PluginOptions
    #: ``sql``, ``walsender`` or ``auto``.
    transport: str
    #: Connections that decode at the same time, over SQL. None: as many as are worth it.
    connections: int | None
    part_bytes: int
    #: Commits that the user wants to be left out.
    skip_lsns: frozenset[Lsn]
    #: Commits that earlier batches left out of what is read again.
    left_out: frozenset[Lsn]
    #: Is told the types that the stream announces, as they come.
    announce_types: Callable[[Mapping[int, TypeMessage]], None]


class SlotReading:
    """An open read of the slot, from ``start`` up to ``target``; to be closed in any case.

    :param limits: when the batch may end before that.
    """

    def __init__(
        self,
        settings: ReadSettings,
        start: Lsn,
        target: Lsn,
        limits: Limits,
        two_phase: TwoPhase | None,
    ) -> None:
        self._settings = settings
        self._start, self._target, self._limits = start, target, limits
        self._prepared = None if two_phase is None else two_phase.transactions
        self._transport = _choose_transport(settings, start, target, two_phase)
        self._unstreamed = UnstreamedAborts()
        self._stream = self._open_stream(two_phase)

    def into(self, batch: BatchInProgress) -> Found:
        """Read until the batch is complete: at the target, or at the first commit past a limit."""
        cut = BatchCut(self._start, self._target, self._limits)
        with no_garbage_collection(), located(self._settings.slot_name, cut):
            decoder, progress = self._decoder(), Progress(self._start, self._target)
            self._settings.announce_types(decoder.types)
            drain(self._stream, cut, batch, decoder, progress, self._prepared)
        self._log_unstreamed()
        commit = decoder.last_commit if decoder.transactions else None
        return Found(
            end=cut.end_lsn,
            changes=True,
            transactions=decoder.transactions,
            last_commit_time=None if commit is None else commit_time(commit.committed_at_us),
            skipped=self._skipped(decoder, cut.end_lsn),
            transport=self._transport,
        )

    def _skipped(self, decoder: Decoder, end: Lsn) -> tuple[SkippedTransaction, ...]:
        """What was left out on request.

        :raises ConfigurationError: a position that was given is in the batch and no commit's.
        """
        slot_name, found = self._settings.slot_name, decoder.skipped
        for lsn in sorted(self._settings.skip_lsns):
            if self._start <= lsn < end and lsn not in found:
                raise ConfigurationError(
                    "No transaction of the batch that is read commits at this LSN of skip_lsns.",
                    slot=slot_name,
                    lsn=lsn,
                    advice="give the LSN that the error names, which is that of the commit record.",
                )
        for lsn, changes in sorted(found.items()):
            log.warning(
                "Slot %s: the transaction that committed at %s is left out on request: %s row changes.",
                slot_name,
                lsn,
                f"{changes:,}",
            )
        return tuple(SkippedTransaction(str(lsn), count) for lsn, count in sorted(found.items()))

    def beside_copy(self, batch: BatchInProgress) -> tuple[SkippedTransaction, ...]:
        """Read what came before a copy and is not in it: logical messages, and what was prepared.

        Of the latter the server will send no more than its commit.

        :returns: what was left out on request.
        """
        cut, decoder = BatchCut(self._start, self._target, Limits()), self._decoder()
        with located(self._settings.slot_name, cut):
            for chunk in self._stream.chunks():
                if self._settings.options.messages and not cut.finished:
                    decoder.decode(cut.take(chunk))
                for messages in decoder.take_messages():
                    batch.add_messages(messages)
        self._log_unstreamed()
        return self._skipped(decoder, self._target) if self._settings.options.messages else ()

    def _log_unstreamed(self) -> None:
        if count := len(self._unstreamed):
            log.info(
                "Slot %s: the server told of %s rolled back transactions of which it had sent nothing; they"
                " change nothing.",
                self._settings.slot_name,
                f"{count:,}",
            )

    def close(self) -> None:
        """End the read and free the slot."""
        self._stream.close()

    def __enter__(self) -> SlotReading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _decoder(self) -> Decoder:
        settings = self._settings
        return Decoder(
            self._start,
            self._target,
            skip_origins=settings.options.skip_origins,
            skip_lsns=settings.skip_lsns | settings.left_out,
        )

    def _open_stream(self, two_phase: TwoPhase | None) -> ChangeStream:
        settings = self._settings
        read = SlotRead(
            settings.conninfo,
            settings.slot_name,
            settings.options,
            self._start,
            self._target,
            two_phase,
            self._unstreamed,
        )
        if self._transport == WALSENDER:
            return WalsenderStream(read)
        return SqlStream(
            read,
            connections=settings.connections,
            max_messages=_max_messages(self._limits, settings.part_bytes, is_cut=two_phase is None),
            part_bytes=settings.part_bytes,
        )


def _choose_transport(
    settings: ReadSettings, start: Lsn, target: Lsn, two_phase: TwoPhase | None
) -> str:
    """What was asked for; with ``auto``, SQL unless something speaks against it."""
    if settings.transport != AUTO:
        return settings.transport
    backlog = Backlog(target - start, settings.part_bytes, is_cut=two_phase is None)
    reason = against_sql(read_room(settings.session, settings.slot_name), backlog)
    if reason is None:
        return SQL
    log.info("Slot %s is read over the walsender: %s.", settings.slot_name, reason)
    return WALSENDER


def _max_messages(limits: Limits, part_bytes: int, *, is_cut: bool) -> int | None:
    """Messages that the limits let through, roughly; None: no limit, or more than it pays to read in slices.

    A limit ends a read that is cut in parts at the same commit; what was decoded past it is dropped.
    """
    found = []
    if limits.max_changes is not None:
        found.append(max(10_000, limits.max_changes + limits.max_changes // 4))
    if limits.max_bytes is not None and (limits.max_bytes < part_bytes or not is_cut):
        found.append(_SOME_MESSAGES)
    if limits.max_seconds is not None and (limits.max_seconds < _LONG_SECONDS or not is_cut):
        found.append(_SOME_MESSAGES)
    most = min(found, default=None)
    return None if most is None or (is_cut and most >= SLICE_MESSAGES) else most
