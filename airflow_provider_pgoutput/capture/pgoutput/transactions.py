"""Which transaction each message of a chunk belongs to, and its number in it. Vectorised.

It checks the order of the messages against the table of ``state.py``, and reads Begin and Commit but no other
message. It carries its state from chunk to chunk, so it does not matter where chunks are cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    LAST_TIME_US,
    POSTGRES_EPOCH_US,
    Begin,
    Commit,
    parse_begin,
    parse_commit,
)
from airflow_provider_pgoutput.capture.pgoutput.reference import event_of, misplaced
from airflow_provider_pgoutput.capture.pgoutput.spool import check_offsets
from airflow_provider_pgoutput.capture.pgoutput.state import (
    COUNTED,
    OUTSIDE,
    WHOLE,
    WHOLE_EVENTS,
    check_begin,
    check_commit,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk

#: Bytes after the last message, so that eight bytes can be read from every byte of every message on.
PADDING: Final = 8

_STATES: Final = tuple(WHOLE)
_UNKNOWN: Final = len(WHOLE_EVENTS)
_CODE: Final = {event: code for code, event in enumerate(WHOLE_EVENTS)}


def code_mask(events: str) -> NDArray[np.bool_]:
    """Make a table that says for an event's code whether it is one of ``events``."""
    mask = np.zeros(len(WHOLE_EVENTS) + 1, dtype=np.bool_)
    mask[[_CODE[event] for event in events]] = True
    return mask


def _setters() -> NDArray[np.int8]:
    """Make a table from an event's code to the state that it sets; -1: the state stays."""
    setters = np.full(len(WHOLE_EVENTS) + 1, -1, dtype=np.int8)
    for event, code in _CODE.items():
        steps = {(state, row[event]) for state, row in WHOLE.items() if event in row}
        targets = {target for _, target in steps}
        if len(targets) == 1:
            setters[code] = _STATES.index(targets.pop())
        else:
            # Otherwise the state would depend on all messages before, and not only on the last one that sets
            # it.
            assert all(state == target for state, target in steps), (
                "an event must set or keep a state"
            )
    return setters


def _allowed() -> NDArray[np.bool_]:
    allowed = np.zeros((len(_STATES), len(WHOLE_EVENTS) + 1), dtype=np.bool_)
    for state, row in WHOLE.items():
        for event in row:
            allowed[_STATES.index(state), _CODE[event]] = True
    return allowed


_SETTERS: Final = _setters()
_ALLOWED: Final = _allowed()
_COUNTED: Final = code_mask(COUNTED)
_CODE_OF_TAG: Final = np.full(256, _UNKNOWN, dtype=np.uint8)
for _event, _code in _CODE.items():
    if _event != "m":
        _CODE_OF_TAG[ord(_event)] = _code


class Messages:
    """The messages of a chunk, cut and classified.

    :raises ProtocolError: a message is empty, or protocol version 1 has no such message.
    """

    __slots__ = ("data", "ends", "events", "head", "starts")

    def __init__(self, chunk: MessageChunk) -> None:
        check_offsets(chunk)
        offsets = chunk.offsets
        first, last = int(offsets[0]), int(offsets[-1])
        #: All bytes, followed by ``PADDING`` zeros.
        self.data: NDArray[np.uint8] = np.empty(last - first + PADDING, dtype=np.uint8)
        self.data[: last - first] = chunk.data[first:last]
        self.data[last - first :] = 0
        self.starts: NDArray[np.int64] = offsets[:-1] - first
        self.ends: NDArray[np.int64] = offsets[1:] - first
        #: The first eight bytes of each message, as a number. For a row message they are its tag, the
        #: relation's OID (4 bytes), the kind of the first tuple and the number of its columns (2 bytes).
        self.head: NDArray[np.uint64] = self.words("<u8")[self.starts].byteswap()
        #: The event of each message, as its position in ``WHOLE_EVENTS``.
        self.events: NDArray[np.uint8] = _CODE_OF_TAG[(self.head >> np.uint64(56)).astype(np.uint8)]
        if (self.events == _UNKNOWN).any():
            event_of(self.body(int(np.argmax(self.events == _UNKNOWN))))
            raise AssertionError("the reference decoder knows a message that this one does not")
        if (logical := np.flatnonzero(self.events == _CODE["M"])).size:
            transactional = self.data[self.starts[logical] + 1] == 1
            # A message of one byte is cut short. Then the next message's tag is read as its flag, and it is
            # refused.
            self.events[logical[~transactional]] = _CODE["m"]

    def __len__(self) -> int:
        return len(self.starts)

    def words(self, layout: str) -> NDArray[Any]:
        """View the data as overlapping numbers. Number ``i`` starts at byte ``i``."""
        kind = np.dtype(layout)
        size = len(self.data) - kind.itemsize + 1
        return np.ndarray((size,), dtype=kind, buffer=self.data.data, strides=(1,))

    def body(self, index: int) -> bytes:
        """The bytes of one message."""
        return self.data[self.starts[index] : self.ends[index]].tobytes()

    def of(self, events: str) -> NDArray[np.intp]:
        """Indexes of the messages whose event is one of ``events``."""
        return np.flatnonzero(code_mask(events)[self.events])

    def event(self, index: int) -> str:
        """The event of one message."""
        return WHOLE_EVENTS[int(self.events[index])]


@dataclass(frozen=True, slots=True)
class Positions:
    """The transaction of each message. Transaction 0 is the one that the chunk before left open."""

    #: By message: number of its transaction.
    transaction: NDArray[np.int32]
    #: By message: its number in the transaction, for messages that are counted.
    seq: NDArray[np.int64]
    #: By transaction.
    commit_lsn: NDArray[np.int64]
    xid: NDArray[np.int64]
    commit_ts_us: NDArray[np.int64]
    wanted: NDArray[np.bool_]

    def lsn(self, index: int) -> Lsn:
        """Commit LSN of a message's transaction, for the text of an error."""
        return Lsn(int(self.commit_lsn[self.transaction[index]]))


class Transactions:
    """The open transaction, and what is known of the ones before."""

    def __init__(
        self,
        start_lsn: Lsn | None,
        end_lsn: Lsn | None,
        *,
        skip_origins: bool = False,
        skip_lsns: Collection[Lsn] = (),
    ) -> None:
        self._start_lsn = start_lsn
        self._end_lsn = end_lsn
        self._skip_origins = skip_origins
        # LSNs past this cannot be on the wire, so no transaction has them.
        known = sorted(lsn for lsn in skip_lsns if lsn < 2**63)
        self._skip_lsns = np.array(known, dtype=np.int64)
        #: Number of row changes by commit LSN, for the transactions that were skipped by their LSN.
        self.skipped: dict[Lsn, int] = {}
        #: Whether the open transaction is skipped because it has an origin.
        self._has_origin = False
        self._state = OUTSIDE
        self._next_seq = 0
        self.begin: Begin | None = None
        self.last_commit: Commit | None = None
        self.count = 0

    def follow(self, messages: Messages) -> Positions:
        """Find the transaction of every message of the next chunk.

        :raises ProtocolError: a message may not stand at its position, or a Begin or Commit is wrong.
        """
        self._check_states(messages)
        begins = messages.of("B")
        transaction = np.zeros(len(messages), dtype=np.int32)
        transaction[begins] = 1
        np.cumsum(transaction, out=transaction)
        lsns, times, xids = self._begins(messages, begins)
        wanted = self._wanted(lsns)
        if self._skip_origins:
            has_origin = np.zeros(len(lsns), dtype=np.bool_)
            has_origin[0] = self._has_origin
            has_origin[transaction[messages.of("O")]] = True
            if has_origin[0]:
                # Its Begin came in an earlier chunk, its origin only now.
                self.skipped.pop(Lsn(int(lsns[0])), None)
            self._has_origin = bool(has_origin[-1])
            wanted &= ~has_origin
        if len(self._skip_lsns):
            self._skip(messages, transaction, lsns, wanted)
        self._commits(messages, begins, transaction, lsns, wanted)

        counted = np.cumsum(_COUNTED[messages.events], dtype=np.int64)
        base = np.concatenate(([-self._next_seq], counted[begins]))
        if len(messages):
            self._next_seq = int(counted[-1] - base[-1])
        return Positions(
            transaction=transaction,
            seq=counted - 1 - base[transaction],
            commit_lsn=lsns,
            xid=xids,
            commit_ts_us=times + POSTGRES_EPOCH_US,
            wanted=wanted,
        )

    def _skip(
        self,
        messages: Messages,
        transaction: NDArray[np.int32],
        lsns: NDArray[np.int64],
        wanted: NDArray[np.bool_],
    ) -> None:
        """Leave out the transactions that the user wants to skip, and count their rows."""
        skipped = wanted & np.isin(lsns, self._skip_lsns)
        if skipped.any():
            rows = np.bincount(transaction[messages.of("IUDT")], minlength=len(lsns))
            for number in np.flatnonzero(skipped).tolist():
                lsn = Lsn(int(lsns[number]))
                self.skipped[lsn] = self.skipped.get(lsn, 0) + int(rows[number])
            wanted &= ~skipped

    def _check_states(self, messages: Messages) -> None:
        if not len(messages):
            return
        setters = _SETTERS[messages.events]
        numbers = np.arange(len(messages), dtype=np.int32)
        last = np.maximum.accumulate(np.where(setters >= 0, numbers, -1))
        initial = _STATES.index(self._state)
        after = np.where(last >= 0, setters[last], initial).astype(np.int8)
        before = np.concatenate((np.array([initial], dtype=np.int8), after[:-1]))
        allowed = _ALLOWED[before, messages.events]
        if not allowed.all():
            index = int(np.argmin(allowed))
            raise misplaced(
                messages.event(index), _STATES[before[index]], self._lsn_before(messages, index)
            )
        self._state = _STATES[after[-1]]

    def _lsn_before(self, messages: Messages, index: int) -> Lsn | None:
        """Commit LSN of the transaction that is open before a message, if it can be read."""
        begins = messages.of("BC")
        begins = begins[begins < index]
        if not begins.size:
            return self.begin.final_lsn if self.begin else None
        if messages.event(int(begins[-1])) == "C":
            return None
        return parse_begin(messages.body(int(begins[-1]))).final_lsn

    def _begins(
        self, messages: Messages, begins: NDArray[np.intp]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Read commit LSN, time and ID of all transactions, the open one first."""
        starts = messages.starts[begins]
        wrong = messages.ends[begins] - starts != 21
        if wrong.any():
            self._refuse_begin(messages, int(begins[np.argmax(wrong)]))
        numbers = messages.words(">i8")
        lsns, times = numbers[starts + 1].astype(np.int64), numbers[starts + 9].astype(np.int64)
        xids = messages.words(">u4")[starts + 17].astype(np.int64)
        wrong = (lsns <= 0) | (times > LAST_TIME_US)
        if wrong.any():
            self._refuse_begin(messages, int(begins[np.argmax(wrong)]))
        open_one = self.begin
        first = (
            (open_one.final_lsn, open_one.committed_at_us, open_one.xid) if open_one else (0, 0, 0)
        )
        if len(begins):
            self.begin = Begin(Lsn(int(lsns[-1])), int(times[-1]), int(xids[-1]))
        return (
            np.concatenate((np.array([first[0]], dtype=np.int64), lsns)),
            np.concatenate((np.array([first[1]], dtype=np.int64), times)),
            np.concatenate((np.array([first[2]], dtype=np.int64), xids)),
        )

    def _refuse_begin(self, messages: Messages, index: int) -> None:
        parse_begin(messages.body(index))
        raise AssertionError("the reference decoder accepts a Begin that this one refused")

    def _wanted(self, lsns: NDArray[np.int64]) -> NDArray[np.bool_]:
        wanted = np.ones(len(lsns), dtype=np.bool_)
        if self._start_lsn is not None:
            wanted &= lsns >= min(self._start_lsn, 2**63 - 1)
        if self._end_lsn is not None and self._end_lsn < 2**63:
            wanted &= lsns < int(self._end_lsn)
        return wanted

    def _commits(
        self,
        messages: Messages,
        begins: NDArray[np.intp],
        transaction: NDArray[np.int32],
        lsns: NDArray[np.int64],
        wanted: NDArray[np.bool_],
    ) -> None:
        """Check the commits. Each transaction must start at or after the end of the one before."""
        commits = messages.of("C")
        starts = messages.starts[commits]
        wrong = messages.ends[commits] - starts != 26
        if wrong.any():
            self._refuse_commit(messages, int(commits[np.argmax(wrong)]), lsns, transaction)
        numbers = messages.words(">i8")
        commit_lsns, end_lsns = numbers[starts + 2], numbers[starts + 10].astype(np.int64)
        times = numbers[starts + 18]
        wrong = (
            (messages.data[starts + 1] != 0)
            | (commit_lsns != lsns[transaction[commits]])
            | (end_lsns <= commit_lsns)
            | (times > LAST_TIME_US)
        )
        if wrong.any():
            self._refuse_commit(messages, int(commits[np.argmax(wrong)]), lsns, transaction)

        # The state table allows Begin and Commit only in turns, so they can be paired by number.
        opens_inside = len(commits) and (not len(begins) or commits[0] < begins[0])
        last_end = self.last_commit.end_lsn if self.last_commit else 0
        before = end_lsns if opens_inside else np.concatenate(([last_end], end_lsns))
        wrong = lsns[1:] < before[: len(begins)]
        if wrong.any():
            number = int(np.argmax(wrong))
            begin = parse_begin(messages.body(int(begins[number])))
            check_begin(begin, Commit(Lsn(0), Lsn(int(before[number])), 0))
        if len(commits):
            self.count += int(wanted[transaction[commits]].sum())
            self.last_commit = parse_commit(messages.body(int(commits[-1])))
            if not len(begins) or commits[-1] > begins[-1]:
                self.begin = None

    def _refuse_commit(
        self,
        messages: Messages,
        index: int,
        lsns: NDArray[np.int64],
        transaction: NDArray[np.int32],
    ) -> None:
        lsn = Lsn(int(lsns[transaction[index]]))
        check_commit(parse_commit(messages.body(index), lsn), Begin(lsn, 0, 0))
        raise AssertionError("the reference decoder accepts a Commit that this one refused")
