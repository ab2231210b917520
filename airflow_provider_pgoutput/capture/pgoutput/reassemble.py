"""Makes whole transactions, in the order of their commits, of what protocol versions 2 to 4 send in parts.

The stream of any version goes in. A stream of version 1 comes out, for the decoder. A transaction that is
streamed while it still runs waits in a spool until its commit; then its rolled back parts are left out. If it
does not end within the read, it is dropped, and the next read sends it again. A prepared transaction waits
until ``COMMIT PREPARED``, which may come in another batch. Transactions that the server sends whole pass
through unchanged. So batches are the same with every version and option.

The server announces a relation once for all transactions that it sends at commit. It announces the relation
again inside each transaction that it streams. ``relation_cache.py`` makes sure that the decoder knows each
relation that the server will not announce again.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.messages import parse_relation
from airflow_provider_pgoutput.capture.pgoutput.reference import event_of, misplaced
from airflow_provider_pgoutput.capture.pgoutput.relation_cache import (
    Announced,
    Unfinished,
    relations_in,
    tag_mask,
)
from airflow_provider_pgoutput.capture.pgoutput.spool import (
    Fragment,
    MemorySpool,
    Spool,
    check_offsets,
    chunks_of,
    one_message,
    streamed_fragment,
    whole_fragment,
    without,
)
from airflow_provider_pgoutput.capture.pgoutput.state import (
    BEGUN,
    CHANGING,
    EVENT_NAMES,
    FIRST_VERSION,
    NEXT_STATE,
    OUTSIDE,
)
from airflow_provider_pgoutput.capture.pgoutput.stream_messages import (
    parse_begin_prepare,
    parse_commit_prepared,
    parse_prepare,
    parse_rollback_prepared,
    parse_stream_abort,
    parse_stream_commit,
    parse_stream_start,
    parse_stream_stop,
)
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
    from airflow_provider_pgoutput.capture.pgoutput.messages import Commit
    from airflow_provider_pgoutput.capture.pgoutput.prepared import PreparedTransactions
    from airflow_provider_pgoutput.capture.pgoutput.stream_messages import Prepare, StreamAbort

_RELATION: Final = ord("R")
_ORIGIN: Final = ord("O")
_MESSAGE: Final = ord("M")
_BEGIN_LAYOUT: Final = struct.Struct("!cQqI")
_COMMIT_LAYOUT: Final = struct.Struct("!cBQQq")
_OID: Final = struct.Struct("!I")


#: Messages with which something other than a whole transaction begins or ends.
_CONTROL: Final = tag_mask("".join(FIRST_VERSION))
_BRACKETS: Final = tag_mask("BC")
_ANNOUNCES: Final = tag_mask("RY")
#: Row messages, truncates and logical messages. No origin may follow them.
_CHANGES: Final = tag_mask("IUDTM")


class UnstreamedAborts:
    """Rollbacks of subtransactions that the server never streamed, in one run. Each is counted once.

    PostgreSQL 18 drops a large transaction if it finds out that it was rolled back, before it streams the
    transaction or writes it to disk. Later it still reports the rollback of subtransactions, also with
    streaming off. They change nothing.
    """

    def __init__(self) -> None:
        self._found: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self._found)

    def add(self, abort: StreamAbort) -> None:
        """Count one."""
        self._found.add((abort.xid, abort.subxid))


class Reassembler:
    """Reassembles one read of a slot.

    :param version: ``proto_version`` of the read.
    :param chunk_bytes: approximate size of the chunks that are made of spooled transactions.
    :param parallel: the option ``streaming`` is ``parallel``, which makes abort messages longer.
    :param new_spool: makes a spool for an unfinished transaction.
    :param prepared: the prepared transactions that wait; None: the read has no ``two_phase``.
    :param unstreamed: counts rollbacks that are ignored.
    """

    def __init__(
        self,
        version: int,
        *,
        chunk_bytes: int = 3 << 20,
        parallel: bool = False,
        new_spool: Callable[[], Spool] = MemorySpool,
        prepared: PreparedTransactions | None = None,
        unstreamed: UnstreamedAborts | None = None,
    ) -> None:
        self._version = version
        self._chunk_bytes = chunk_bytes
        self._parallel = parallel
        self._new_spool = new_spool
        self._prepared = prepared
        self._unstreamed = UnstreamedAborts() if unstreamed is None else unstreamed
        self._state = OUTSIDE
        self._streams: dict[int, Unfinished] = {}
        #: Subtransactions that were rolled back before their transaction was first streamed.
        self._aborted_before: dict[int, set[int]] = {}
        #: The transaction whose stream block, or whose prepare, is open now.
        self._open: Unfinished | None = None
        self._preparing: Prepare | None = None
        self._announced = Announced()
        #: Number of messages so far.
        self._position = 0

    @property
    def open_streams(self) -> int:
        """Number of streamed transactions that neither committed nor rolled back yet."""
        return len(self._streams)

    def take(self, chunk: MessageChunk) -> Iterator[MessageChunk]:
        """Take the next chunk, and return what it completes. Iterate over the result to its end.

        :raises ProtocolError: a message is not valid, or may not stand at its position.
        """
        if len(chunk.offsets) < 2:
            return
        check_offsets(chunk)
        tags = chunk.data[chunk.offsets[:-1]]
        control = np.flatnonzero(_CONTROL[tags])
        if not len(control) and self._open is None and not self._announced.unseen:
            # By far the most frequent case: only whole transactions.
            if self._version > 1:
                self._announced.note_partitions(chunk, 0, len(tags), streamed=False)
            self._learn(chunk, tags, 0, len(tags))
            self._follow_brackets(tags)
            yield chunk
        else:
            yield from chunks_of(self._fragments(chunk, tags, control), self._chunk_bytes)
        self._position += len(tags)

    def drop(self) -> None:
        """Forget everything unfinished. Nothing may be taken afterwards."""
        for streamed in self._streams.values():
            streamed.spool.discard()
        self._streams.clear()
        if self._preparing is not None and self._open is not None:
            self._open.spool.discard()
        self._preparing = self._open = None

    def _fragments(
        self, chunk: MessageChunk, tags: NDArray[np.uint8], control: NDArray[np.intp]
    ) -> Iterator[Fragment]:
        first = 0
        for index in (*control.tolist(), len(tags)):
            if first < index:
                yield from self._between(chunk, tags, first, index)
            if index < len(tags):
                yield from self._control(_body(chunk, index))
            first = index + 1

    def _between(
        self, chunk: MessageChunk, tags: NDArray[np.uint8], first: int, last: int
    ) -> Iterator[Fragment]:
        """Messages with no control message among them."""
        is_streamed = self._open is not None and self._preparing is None
        self._announced.note_partitions(chunk, first, last, streamed=is_streamed)
        if self._open is None:
            yield from self._announced.settle(whole_fragment(chunk, first, last, 0))
            # Only now: what the decoder has not seen goes into the first transaction, before what this
            # transaction announces.
            self._learn(chunk, tags, first, last)
            self._follow_brackets(tags[first:last])
            return
        self._check_inside(chunk, tags, first, last)
        if self._preparing is not None:
            fragment = whole_fragment(chunk, first, last, self._open.xid)
            # Check the announcements now. They stay valid even if the transaction is rolled back and its rows
            # are never read.
            for index in np.flatnonzero(tags[first:last] == _RELATION).tolist():
                parse_relation(_body(chunk, first + index))
            self._announced.complete(fragment, self._open)
            # The server will not announce these relations again, except in streamed transactions. The decoder
            # does not see the announcement now, so it is noted as unseen.
            self._announced.learn(fragment, self._position + first, unseen=True)
        else:
            fragment = streamed_fragment(chunk, first, last, self._open.xid)
            self._check_alive(fragment, self._open)
            self._announced.note(fragment, self._position + first, self._open)
        self._open.spool.append(fragment)

    def _learn(self, chunk: MessageChunk, tags: NDArray[np.uint8], first: int, last: int) -> None:
        if self._version > 1 and (tags[first:last] == _RELATION).any():
            fragment = whole_fragment(chunk, first, last, 0)
            self._announced.learn(fragment, self._position + first, unseen=False)

    def _follow_brackets(self, tags: NDArray[np.uint8]) -> None:
        """Note whether the stream is inside of a whole transaction. The decoder checks the rest."""
        brackets = np.flatnonzero(_BRACKETS[tags])
        if len(brackets):
            self._state = BEGUN if tags[brackets[-1]] == ord("B") else OUTSIDE
            tags = tags[brackets[-1] :]
        if self._state == BEGUN and _CHANGES[tags].any():
            self._state = CHANGING

    def _check_inside(
        self, chunk: MessageChunk, tags: NDArray[np.uint8], first: int, last: int
    ) -> None:
        """Check the messages of a stream block or of a prepared transaction against the state table."""
        row = NEXT_STATE[self._state]
        changing = row["I"]
        inside = tags[first:last]
        changes = _CHANGES[inside]
        allowed = changes | _ANNOUNCES[inside]
        if self._state != changing:
            before_changes = np.cumsum(changes) == 0
            allowed |= (inside == _ORIGIN) & before_changes
        if self._preparing is not None and (logical := inside == _MESSAGE).any():
            # In a stream block a transaction ID comes before the flag. There the decoder checks the flag.
            flags = chunk.offsets[first:last][logical] + 1
            allowed[logical] = chunk.data[np.minimum(flags, len(chunk.data) - 1)] == 1
        if not allowed.all():
            wrong = int(np.argmin(allowed))
            event = event_of(_body(chunk, first + wrong), self._version)
            state = changing if changes[:wrong].any() else self._state
            raise misplaced(event, state, None)
        if changes.any():
            self._state = changing

    @staticmethod
    def _check_alive(fragment: Fragment, streamed: Unfinished) -> None:
        """Refuse messages of a rolled back subtransaction: it is left out at the commit."""
        if streamed.aborted and not streamed.aborted.isdisjoint(np.unique(fragment.xids).tolist()):
            raise ProtocolError(
                f"A message of transaction {streamed.xid} belongs to a subtransaction that was rolled "
                "back before, at byte 1."
            )

    def _control(self, body: bytes) -> Iterator[Fragment]:
        # PostgreSQL 18 reports rollbacks of what it never streamed, even if it streams nothing.
        event = "A" if body[:1] == b"A" else event_of(body, self._version)
        if event not in NEXT_STATE[self._state]:
            raise misplaced(event, self._state, None)
        self._state = NEXT_STATE[self._state][event]
        if event == "S":
            self._start_block(body)
        elif event == "E":
            parse_stream_stop(body)
            self._open = None
        elif event == "A":
            self._abort(body)
        elif event == "c":
            xid, commit = parse_stream_commit(body)
            streamed = self._known(xid, event)
            del self._streams[xid]
            yield from self._replay(streamed, commit)
            self._announced.promote(streamed)
            yield from self._end(streamed, commit)
            streamed.spool.discard()
        else:
            yield from self._two_phase(event, body)

    def _start_block(self, body: bytes) -> None:
        start = parse_stream_start(body)
        if start.is_first == (start.xid in self._streams):
            what = "is streamed already" if start.is_first else "was not streamed before"
            raise ProtocolError(f"Stream Start message: transaction {start.xid} {what}, at byte 5.")
        if start.is_first:
            aborted = self._aborted_before.pop(start.xid, set())
            self._streams[start.xid] = Unfinished(start.xid, self._new_spool(), aborted)
        self._open = self._streams[start.xid]

    def _abort(self, body: bytes) -> None:
        abort = parse_stream_abort(body, with_time=self._parallel)
        streamed = self._streams.get(abort.xid)
        if streamed is None:
            self._unstreamed.add(abort)
            if abort.subxid != abort.xid:
                # Later rows of this subtransaction are refused, too.
                self._aborted_before.setdefault(abort.xid, set()).add(abort.subxid)
            else:
                self._aborted_before.pop(abort.xid, None)
        elif abort.subxid == abort.xid:
            del self._streams[abort.xid]
            streamed.spool.discard()
        else:
            streamed.aborted.add(abort.subxid)
            # The server announces every relation again for the rest of the transaction.
            streamed.announced.clear()

    def _known(self, xid: int, event: str) -> Unfinished:
        if xid not in self._streams:
            raise ProtocolError(
                f"{EVENT_NAMES[event]} message: transaction {xid} was not streamed, at byte 1."
            )
        return self._streams[xid]

    def _two_phase(self, event: str, body: bytes) -> Iterator[Fragment]:
        if self._prepared is None:
            raise ProtocolError(
                f"{EVENT_NAMES[event]} message: the read did not ask for two_phase, at byte 0."
            )
        if event == "b":
            self._preparing = parse_begin_prepare(body)
            self._open = Unfinished(self._preparing.xid, self._new_spool())
        elif event == "P":
            prepare = parse_prepare(body)
            if self._open is None:
                self._prepared.put(prepare, self._new_spool())
                return
            if prepare != self._preparing:
                raise ProtocolError(
                    "Prepare message: it is not of the transaction that was begun, at byte 2.",
                    lsn=prepare.prepare_lsn,
                )
            self._prepared.put(prepare, self._open.spool)
            self._preparing = self._open = None
        elif event == "p":
            prepare = parse_prepare(body)
            streamed = self._known(prepare.xid, event)
            del self._streams[prepare.xid]
            self._prepared.put(prepare, self._condensed(streamed))
        elif event == "r":
            self._prepared.rolled_back(parse_rollback_prepared(body))
        else:
            message = parse_commit_prepared(body)
            spool = self._prepared.committed(message)
            if spool is not None:
                unfinished = Unfinished(message.xid, spool)
                yield from self._replay(unfinished, message.commit)
                yield from self._end(unfinished, message.commit)

    def _condensed(self, streamed: Unfinished) -> Spool:
        """The spool without rolled back parts."""
        if not streamed.aborted:
            return streamed.spool
        spool = self._new_spool()
        for fragment in streamed.spool.fragments():
            spool.append(without(fragment, streamed.aborted))
        streamed.spool.discard()
        return spool

    def _replay(self, unfinished: Unfinished, commit: Commit) -> Iterator[Fragment]:
        """A transaction as version 1 sends it, up to its commit."""
        begin = (commit.commit_lsn, commit.committed_at_us, unfinished.xid)
        yield one_message(_BEGIN_LAYOUT.pack(b"B", *begin), unfinished.xid)
        for fragment in unfinished.spool.fragments():
            kept = without(fragment, unfinished.aborted) if unfinished.aborted else fragment
            unfinished.add_oids(relations_in(kept))
            yield kept

    def _end(self, unfinished: Unfinished, commit: Commit) -> Iterator[Fragment]:
        yield from self._announced.again(unfinished.oids)
        end = (commit.commit_lsn, commit.end_lsn, commit.committed_at_us)
        yield one_message(_COMMIT_LAYOUT.pack(b"C", 0, *end), unfinished.xid)


def _body(chunk: MessageChunk, index: int) -> bytes:
    return chunk.data[chunk.offsets[index] : chunk.offsets[index + 1]].tobytes()
