"""One read of the slot into a batch: the stream, the decoder and the cut.

``capture/stage.py`` decides where a batch starts and ends, and makes the checks around a read.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.lsn import NO_OFFSET
from airflow_provider_pgoutput.batch.manifest import SkippedTransaction
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reassemble import UnstreamedAborts
from airflow_provider_pgoutput.capture.source.pooler import is_pooled
from airflow_provider_pgoutput.capture.source.progress_log import Progress
from airflow_provider_pgoutput.capture.source.threads import BoundedQueue
from airflow_provider_pgoutput.capture.stream.choose import Backlog, against_sql, read_capacity
from airflow_provider_pgoutput.capture.stream.cut import BatchCut, Limits
from airflow_provider_pgoutput.capture.stream.gather import Gathering
from airflow_provider_pgoutput.capture.stream.options import AUTO, SQL, WALSENDER
from airflow_provider_pgoutput.capture.stream.sql import SLICE_MESSAGES, SqlStream
from airflow_provider_pgoutput.capture.stream.transport import SlotRead
from airflow_provider_pgoutput.capture.stream.walsender import WalsenderStream
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import ConfigurationError, ProtocolError
from airflow_provider_pgoutput.garbage import no_garbage_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    from airflow_provider_pgoutput.batch.lsn import Lsn, LsnOffset
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock, MessageChunk
    from airflow_provider_pgoutput.capture.pgoutput.messages import TypeMessage
    from airflow_provider_pgoutput.capture.pgoutput.prepared import PreparedTransactions
    from airflow_provider_pgoutput.capture.source.progress_log import Tell
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.stream.options import PluginOptions
    from airflow_provider_pgoutput.capture.stream.transport import ChangeStream
    from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase


_POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


#: How many chunks may be fetched before they are decoded.
_FETCHED_CHUNKS = 3


#: How long the thread that fetches may take to notice that its chunks are no longer wanted.
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

    :raises ProtocolError: the stream breaks the protocol, or ends inside a transaction.
    """
    gathering = Gathering(decoder.decode)

    def add(blocks: list[ChangeBlock]) -> None:
        for block in blocks:
            batch.add(block)
        for messages in decoder.take_messages():
            batch.add_messages(messages)

    for chunk in _fetched_ahead(stream):
        add(gathering.add(cut.take(chunk)))
        reach("stage.after_chunk")
        progress.report(batch.rows, len(chunk.data), cut.last_lsn)
        if prepared is not None:
            prepared.settle(min(cut.last_lsn, cut.end_lsn))
        if cut.finished:
            break
    else:
        cut.end_at(stream.end_lsn)
    add(gathering.rest())
    if decoder.in_transaction:
        raise ProtocolError(
            "The stream ended inside a transaction.",
            advice="run the task again; report it if it repeats.",
        )


@contextlib.contextmanager
def located(slot_name: str, cut: BatchCut) -> Iterator[None]:
    """Add to a ProtocolError which slot it concerns, and after which commit it happened.

    Transactions that are streamed before their end have no LSN yet, so the decoder may not know any.
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
    """A time of the wire, microseconds since 2000-01-01 UTC, as ISO 8601 in UTC."""
    return (_POSTGRES_EPOCH + timedelta(microseconds=committed_at_us)).isoformat()


def _fetched_ahead(stream: ChangeStream) -> Iterator[MessageChunk]:
    """The stream's chunks. A thread fetches them while earlier ones are decoded."""
    ready: BoundedQueue[MessageChunk] = BoundedQueue(_FETCHED_CHUNKS)

    def chunks() -> Generator[MessageChunk, None, None]:
        yield from stream.chunks()

    thread = threading.Thread(target=lambda: ready.feed(chunks()), name="fetch", daemon=True)
    thread.start()
    try:
        yield from ready
    finally:
        ready.stop()
        stream.stop()
        # On a silent network the thread ends with this process.
        thread.join(_STOP_SECONDS)


log = logging.getLogger(__name__)


#: How many messages the first slice has, if a limit on bytes or seconds will end the read soon.
_SOME_MESSAGES = 200_000


#: With a lower ``max_seconds`` than this, a read in parts does not pay off.
_LONG_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Found:
    """What a read of the slot found, for the manifest."""

    end: Lsn
    #: Whether the row changes of the stream were read. False: only a copy, and what ``beside_copy`` reads.
    changes: bool = False
    transactions: int = 0
    last_commit_time: str | None = None
    skipped: tuple[SkippedTransaction, ...] = ()
    #: The transport.
    transport: str = SQL


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a run reads its slot, whatever the range."""

    #: A session that does not read the stream.
    session: Session
    #: See ``session.connect``.
    conninfo: str | Mapping[str, Any] = field(repr=False)
    #: For the walsender: leads to the same server without a pooler in between.
    direct_conninfo: str | Mapping[str, Any] = field(repr=False)
    slot_name: str
    options: PluginOptions
    #: ``sql``, ``walsender`` or ``auto``.
    transport: str
    #: How many connections decode at the same time, over SQL; None: as many as pay off.
    connections: int | None
    part_bytes: int
    #: LSNs of commits that the user wants to leave out.
    skip_lsns: frozenset[Lsn]
    #: LSNs of commits that earlier batches left out of the range that is read again.
    left_out: frozenset[Lsn]
    #: Is called before the read with a mapping that gets the types which the stream announces.
    announce_types: Callable[[Mapping[int, TypeMessage]], None]
    #: Is called with the progress of the read; None: the progress is only logged.
    tell: Tell | None = None
    #: What the lake adds to LSNs of the server.
    lsn_offset: LsnOffset = NO_OFFSET


class SlotReading:
    """An open read of the slot, from ``start`` to ``target``. It has to be closed in any case.

    :param limits: the batch may end earlier by them.
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
        self._is_pooled = settings.transport != WALSENDER and is_pooled(settings.session)
        backlog = Backlog(target - start, settings.part_bytes, is_cut=two_phase is None)
        self._transport = _choose_transport(settings, backlog, behind_pooler=self._is_pooled)
        self._unstreamed = UnstreamedAborts()
        self._stream = self._open_stream(two_phase)

    def into(self, batch: BatchInProgress) -> Found:
        """Read until the batch is complete: at the target, or at the first commit that reaches a limit."""
        cut = BatchCut(self._start, self._target, self._limits)
        with no_garbage_collection(), located(self._settings.slot_name, cut):
            decoder = self._decoder()
            progress = Progress(self._start, self._target, self._settings.tell)
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
        """The transactions that were left out on request.

        :raises ConfigurationError: no transaction commits at a given LSN inside of the batch.
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
        """Read what came before a copy and is not in it: logical messages and prepared transactions.

        A prepared transaction has to be read now: later the server sends only its COMMIT PREPARED.

        :returns: the transactions that were left out on request.
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
                "Slot %s: the server reported %s rolled back transactions, but it had sent nothing of them;"
                " they change nothing.",
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
        is_sql = self._transport == SQL
        read = SlotRead(
            settings.conninfo if is_sql else settings.direct_conninfo,
            settings.slot_name,
            settings.options,
            self._start,
            self._target,
            two_phase,
            self._unstreamed,
            is_pooled=is_sql and self._is_pooled,
            lsn_offset=settings.lsn_offset,
        )
        if not is_sql:
            return WalsenderStream(read)
        return SqlStream(
            read,
            connections=settings.connections,
            max_messages=_max_messages(self._limits, settings.part_bytes, is_cut=two_phase is None),
            part_bytes=settings.part_bytes,
        )


def _choose_transport(settings: ReadSettings, backlog: Backlog, *, behind_pooler: bool) -> str:
    """The transport that was asked for; with ``auto`` SQL, unless something speaks against it."""
    if settings.transport != AUTO:
        return settings.transport
    if behind_pooler and settings.direct_conninfo is settings.conninfo:
        # Most poolers pass no replication connection on.
        return SQL
    capacity = read_capacity(settings.session, settings.slot_name)
    reason = against_sql(capacity.behind_pooler() if behind_pooler else capacity, backlog)
    if reason is None:
        return SQL
    log.info("Slot %s is read over the walsender: %s.", settings.slot_name, reason)
    return WALSENDER


def _max_messages(limits: Limits, part_bytes: int, *, is_cut: bool) -> int | None:
    """About how many messages the limits allow; None: no limit, or so many that slices do not pay off.

    A read in parts ends at the same commit by its limits. What it decoded after that is dropped.
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
