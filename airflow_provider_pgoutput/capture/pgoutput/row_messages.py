"""The row messages of a chunk: which of them are wanted, their relations, and where their tuples are.

Everything about a row that does not need its values is checked here. ``tuple_walk.py`` cuts the values. The
words of a refusal come from ``reference.py``, which parses the refused row again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.reference import (
    oid_of_row,
    parse_row,
    unknown_relation,
)
from airflow_provider_pgoutput.capture.pgoutput.relations import UnknownRelation
from airflow_provider_pgoutput.capture.pgoutput.tuple_walk import Walk, WalkFault, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.pgoutput.relations import Relations
    from airflow_provider_pgoutput.capture.pgoutput.transactions import Messages, Positions

INSERT, UPDATE, DELETE, TRUNCATE = b"IUDT"
NEW, KEY, OLD = b"NKO"

#: Bytes of a row message before its first value: tag, OID, kind of the tuple, number of its columns.
_HEAD_BYTES: Final = 8
#: Bytes between an old tuple and the first value of the new one: kind of the tuple, number of columns.
_BETWEEN_BYTES: Final = 3


def _first_tuples() -> NDArray[np.bool_]:
    """Make a table that says for tag * 256 + kind of the first tuple whether they fit together."""
    table = np.zeros(1 << 16, dtype=np.bool_)
    for tag, kinds in ((INSERT, b"N"), (UPDATE, b"NKO"), (DELETE, b"KO")):
        for kind in kinds:
            table[tag << 8 | kind] = True
    return table


_FIRST_TUPLE: Final = _first_tuples()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk whose transactions and relations are known."""

    messages: Messages
    positions: Positions
    relations: Relations


@dataclass(frozen=True, slots=True)
class Tuples:
    """The old or the new tuples of some rows."""

    found: Walk
    #: By row: number of its tuple in ``found``; -1: it has none.
    slots: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes in the order of the stream, one element each. A truncate is one change for each relation."""

    chunk: Chunk
    #: Number of the message in the chunk.
    message: NDArray[np.intp]
    tag: NDArray[np.uint8]
    #: Kind of the first tuple. For a truncate it has no meaning.
    kind: NDArray[np.uint8]
    #: Number of the version of the relation.
    version: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.message)

    def pick(self, chosen: NDArray[np.intp]) -> Rows:
        """Some of the rows, in stream order."""
        return Rows(
            self.chunk,
            self.message[chosen],
            self.tag[chosen],
            self.kind[chosen],
            self.version[chosen],
        )

    def refuse(self, row: int) -> NoReturn:
        """Raise the ProtocolError that says what is wrong with a row."""
        index = int(self.message[row])
        relation = self.chunk.relations.versions[int(self.version[row])]
        body, lsn = self.chunk.messages.body(index), self.chunk.positions.lsn(index)
        parse_row(body, relation, lsn)
        raise AssertionError("the reference decoder accepts a row that this one refused")


def select_rows(chunk: Chunk, truncates: Sequence[tuple[int, int]]) -> Rows:
    """Find the wanted changes of a chunk.

    :param truncates: the wanted truncates: number of the message and an OID, ascending.
    :raises ProtocolError: a row is cut short, comes before its relation, or has a wrong tuple.
    """
    messages, positions = chunk.messages, chunk.positions
    message = messages.of("IUD")
    if not positions.wanted.all():
        message = message[positions.wanted[positions.transaction[message]]]
    head = messages.head[message]
    oid = ((head >> np.uint64(24)) & np.uint64(0xFFFFFFFF)).astype(np.int64)
    if truncates:
        more = np.array(truncates, dtype=np.int64)
        message = np.concatenate((message, more[:, 0]))
        order = np.argsort(message, kind="stable")
        message = message[order]
        oid = np.concatenate((oid, more[:, 1]))[order]
        head = messages.head[message]
    try:
        version = chunk.relations.in_force(message, oid)
    except UnknownRelation as unknown:
        index = int(message[unknown.row])
        lsn = positions.lsn(index)
        if messages.event(index) != "T":
            oid_of_row(messages.body(index), lsn)  # Raises when the OID itself is cut short.
        raise unknown_relation(int(oid[unknown.row]), lsn) from None
    tag = (head >> np.uint64(56)).astype(np.uint8)
    kind = ((head >> np.uint64(16)) & np.uint64(0xFF)).astype(np.uint8)
    rows = Rows(chunk, message, tag, kind, version)
    _check_heads(rows, head & np.uint64(0xFFFF))
    return rows


def _check_heads(rows: Rows, width: NDArray[np.uint64]) -> None:
    messages, relations = rows.chunk.messages, rows.chunk.relations
    size = messages.ends[rows.message] - messages.starts[rows.message]
    full = relations.are_full(rows.version)
    # The kind says what the root is at that time. It may have changed without an announcement.
    fits = np.where(full, rows.kind != KEY, rows.kind != OLD) | relations.are_roots(rows.version)
    valid = (
        (size >= _HEAD_BYTES)
        & _FIRST_TUPLE[(rows.tag.astype(np.uint16) << 8) | rows.kind]
        & fits
        & (width == relations.widths(rows.version))
    )
    valid |= rows.tag == TRUNCATE
    if not valid.all():
        rows.refuse(int(np.argmin(valid)))


def find_tuples(rows: Rows, width: int) -> tuple[Tuples | None, Tuples | None]:
    """Walk the old tuples of rows of one width, then the new ones; None: no row has such a tuple.

    :raises ProtocolError: a tuple is not valid, or a message does not end where it should.
    """
    messages = rows.chunk.messages
    starts = messages.starts[rows.message] + _HEAD_BYTES
    is_delete = rows.tag == DELETE
    with_old = np.flatnonzero(is_delete | ((rows.tag == UPDATE) & (rows.kind != NEW)))
    with_new = np.flatnonzero((rows.tag == INSERT) | (rows.tag == UPDATE))
    old = new = None
    if len(with_old):
        found = _walk(rows, with_old, starts[with_old], width)
        _check_old(rows, with_old, found, width)
        starts[with_old] = found.final + _BETWEEN_BYTES
        old = Tuples(found, _slots(with_old, len(rows)))
    if len(with_new):
        found = _walk(rows, with_new, starts[with_new], width)
        wrong = found.final != messages.ends[rows.message[with_new]]
        if wrong.any():
            rows.refuse(int(with_new[np.argmax(wrong)]))
        new = Tuples(found, _slots(with_new, len(rows)))
    return old, new


def _walk(rows: Rows, chosen: NDArray[np.intp], starts: NDArray[np.int64], width: int) -> Walk:
    messages = rows.chunk.messages
    try:
        return walk(messages.data, messages.words("<u8"), starts, width)
    except WalkFault as fault:
        rows.refuse(int(chosen[fault.row]))


def _check_old(rows: Rows, with_old: NDArray[np.intp], found: Walk, width: int) -> None:
    """Check that old tuples have no unchanged TOAST, end a Delete, and precede a new tuple in an Update."""
    data = rows.chunk.messages.data
    ends = rows.chunk.messages.ends[rows.message[with_old]]
    is_delete = rows.tag[with_old] == DELETE
    wrong = np.where(is_delete, found.final != ends, found.final + _BETWEEN_BYTES > ends)
    wrong |= found.any_unchanged()
    if not wrong.any():
        # Only now is it certain that these bytes belong to the same message.
        count = (data[found.final + 1].astype(np.intp) << 8) | data[found.final + 2]
        wrong = ~is_delete & ((data[found.final] != NEW) | (count != width))
    if wrong.any():
        rows.refuse(int(with_old[np.argmax(wrong)]))


def _slots(chosen: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    slots = np.full(count, -1, dtype=np.intp)
    slots[chosen] = np.arange(len(chosen), dtype=np.intp)
    return slots
