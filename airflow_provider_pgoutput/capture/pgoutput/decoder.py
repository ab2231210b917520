"""The decoder: a chunk of messages in, blocks of changes out, whatever the chunk boundaries.

It steers; the work on rows is in ``columns.py``, that on transactions in ``transactions.py``. What it
must give is said by ``reference.py``. It opens no connection and looks nothing up.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock, MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.columns import (
    UNCHANGED,
    Collector,
    Walk,
    WalkFault,
    walk,
)
from airflow_provider_pgoutput.capture.pgoutput.messages import (
    parse_logical_message,
    parse_origin,
    parse_relation,
    parse_truncate,
    parse_type,
)
from airflow_provider_pgoutput.capture.pgoutput.reference import parse_row, unknown_relation
from airflow_provider_pgoutput.capture.pgoutput.transactions import (
    Messages,
    Placement,
    Transactions,
)
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.messages import Commit, Relation, TypeMessage

#: Arrow's offsets are signed numbers of 32 bits; a chunk beyond this is decoded in parts.
_PART_BYTES: Final = 1 << 30

_INSERT, _UPDATE, _DELETE, _TRUNCATE = b"IUDT"
_NEW, _KEY, _OLD = b"NKO"

#: By tag and kind of the first tuple (tag * 256 + kind): may they stand together?
_FIRST_TUPLE: Final = np.zeros(1 << 16, dtype=np.bool_)
for _tag, _kinds in ((_INSERT, b"N"), (_UPDATE, b"NKO"), (_DELETE, b"KO")):
    for _kind in _kinds:
        _FIRST_TUPLE[_tag << 8 | _kind] = True


@dataclass(frozen=True, slots=True)
class _Rows:
    """Changes of a chunk, in stream order, one element each; a truncate is one for each relation."""

    #: Number of the message in the chunk.
    message: NDArray[np.intp]
    tag: NDArray[np.uint8]
    #: Position in the list of versions in force during the chunk.
    version: NDArray[np.int64]

    def pick(self, chosen: NDArray[np.intp]) -> _Rows:
        return _Rows(self.message[chosen], self.tag[chosen], self.version[chosen])


class Decoder:
    """Decodes pgoutput protocol version 1 in text format.

    Transactions whose commit LSN is before ``start_lsn``, or at or past ``end_lsn``, are skipped: their
    rows are not looked at, their relations and types are learnt. After an error the decoder refuses to
    go on; what it gave before is valid up to the last commit.

    :param start_lsn: None: from the beginning.
    :param end_lsn: None: without an end.
    """

    def __init__(self, start_lsn: Lsn | None = None, end_lsn: Lsn | None = None) -> None:
        self._transactions = Transactions(start_lsn, end_lsn)
        self._failed = False
        #: Messages of pg_logical_emit_message and of origins so far, in skipped transactions too.
        self.logical_messages = 0
        self.origins = 0
        #: The last announced version of each relation, by OID.
        self.relations: dict[int, Relation] = {}
        #: The last announced name of each type that is not built in, by OID.
        self.types: dict[int, TypeMessage] = {}

    @property
    def transactions(self) -> int:
        """Transactions that ended so far, without skipped ones."""
        return self._transactions.count

    @property
    def last_commit(self) -> Commit | None:
        """The last commit so far, of a skipped transaction too."""
        return self._transactions.last_commit

    @property
    def in_transaction(self) -> bool:
        """Whether the last chunk ended inside a transaction."""
        return self._transactions.begin is not None

    def decode(self, chunk: MessageChunk) -> list[ChangeBlock]:
        """Decode the next chunk into one block for each version of a relation that it changes.

        The blocks are in the order of their first changes. When a relation returns to an earlier version
        within the chunk, that is another block, so blocks of one relation keep the order of the stream.

        :raises ProtocolError: when a message is invalid or may not stand where it stands. Then nothing of
            the chunk may be used, and the decoder is of no more use.
        """
        if self._failed:
            raise ProtocolError("This decoder met an error before and cannot go on.")
        self._failed = True
        blocks = [block for part in _parts(chunk) for block in self._decode(part)]
        self._failed = False
        return blocks

    def _decode(self, chunk: MessageChunk) -> list[ChangeBlock]:
        messages = Messages(chunk)
        placement = self._transactions.follow(messages)
        part = _Part(self._transactions, messages, placement, dict(self.relations))
        for index in messages.of("ORYTMm"):
            self._control(part, int(index))
        return part.blocks()

    def _control(self, part: _Part, index: int) -> None:
        event = part.messages.event(index)
        body = part.messages.body(index)
        lsn = part.lsn(index) if event != "m" else None
        if event == "R":
            relation = parse_relation(body, lsn)
            if self.relations.get(relation.oid) != relation:
                self.relations[relation.oid] = relation
                part.announce(index, relation)
        elif event == "Y":
            type_message = parse_type(body, lsn)
            self.types[type_message.oid] = type_message
        elif event == "T":
            part.truncate(index, parse_truncate(body, lsn).relation_oids)
        elif event == "O":
            parse_origin(body, lsn)
            self.origins += 1
        else:
            parse_logical_message(body, lsn)
            self.logical_messages += 1


class _Part:
    """One chunk while it is decoded."""

    def __init__(
        self,
        transactions: Transactions,
        messages: Messages,
        placement: Placement,
        relations: dict[int, Relation],
    ) -> None:
        self.messages = messages
        self._transactions = transactions
        self._placement = placement
        self._words = messages.words("<u8")
        #: Versions in force: those before the chunk, and behind them those announced in it.
        self._versions: list[Relation] = list(relations.values())
        #: By OID: from which message on which version is in force, in stream order.
        self._since: dict[int, list[tuple[int, int]]] = {
            oid: [(-1, number)] for number, oid in enumerate(relations)
        }
        self._changed: list[int] = []
        self._truncates: list[tuple[int, int]] = []

    def lsn(self, index: int) -> Lsn:
        """Commit LSN of the transaction around a message."""
        return self._transactions.lsn_at(self._placement, index)

    def announce(self, index: int, relation: Relation) -> None:
        """Put a new version of a relation into force from message ``index`` on."""
        self._since.setdefault(relation.oid, []).append((index, len(self._versions)))
        self._versions.append(relation)
        self._changed.append(relation.oid)

    def truncate(self, index: int, oids: tuple[int, ...]) -> None:
        """Note that message ``index`` truncates relations."""
        if self._placement.wanted[self._placement.transaction[index]]:
            self._truncates += [(index, oid) for oid in oids]

    def blocks(self) -> list[ChangeBlock]:
        """Decode the rows."""
        rows = self._rows()
        if not len(rows.message):
            return []
        self._check_first_tuples(rows)
        widths = np.array([len(each.columns) for each in self._versions], dtype=np.int64)[
            rows.version
        ]
        if (widths == widths[0]).all():
            found = self._blocks_of_width(rows, int(widths[0]))
        else:
            # Relations of one width are walked together: the cost of a walk hardly grows with its rows.
            found = [
                block
                for width in np.unique(widths)
                for block in self._blocks_of_width(
                    rows.pick(np.flatnonzero(widths == width)), int(width)
                )
            ]
        return [block for _, block in sorted(found, key=lambda each: each[0])]

    # -- which rows, of which version

    def _rows(self) -> _Rows:
        message = self.messages.of("IUD")
        wanted = self._placement.wanted
        if not wanted.all():
            message = message[wanted[self._placement.transaction[message]]]
        head = self.messages.head[message]
        oid = ((head >> np.uint64(24)) & np.uint64(0xFFFFFFFF)).astype(np.int64)
        self._check_sizes(message)
        tag = (head >> np.uint64(56)).astype(np.uint8)
        if self._truncates:
            more = np.array(self._truncates, dtype=np.int64)
            message = np.concatenate((message, more[:, 0]))
            order = np.argsort(message, kind="stable")
            message = message[order]
            oid = np.concatenate((oid, more[:, 1]))[order]
            tag = np.concatenate((tag, np.full(len(more), _TRUNCATE, dtype=np.uint8)))[order]
        return _Rows(message, tag, self._version_of(message, oid))

    def _check_sizes(self, message: NDArray[np.intp]) -> None:
        short = self.messages.ends[message] - self.messages.starts[message] < 8
        if short.any():
            self._refuse(int(message[np.argmax(short)]))

    def _version_of(self, message: NDArray[np.intp], oid: NDArray[np.int64]) -> NDArray[np.int64]:
        """Version in force of each row's relation."""
        if not len(message):
            return oid
        known = np.array(sorted(self._since), dtype=np.int64)
        slot = np.searchsorted(known, oid) if len(known) else np.zeros(len(oid), dtype=np.intp)
        unknown = known[np.minimum(slot, len(known) - 1)] != oid if len(known) else oid >= 0
        if unknown.any():
            row = int(np.argmax(unknown))
            raise unknown_relation(int(oid[row]), self.lsn(int(message[row])))
        first = np.array([self._since[int(each)][0][1] for each in known], dtype=np.int64)
        version: NDArray[np.int64] = first[slot]
        for each in dict.fromkeys(self._changed):
            mine = np.flatnonzero(oid == each)
            since = self._since[each]
            place = np.searchsorted([at for at, _ in since], message[mine]) - 1
            if (place < 0).any():
                raise unknown_relation(each, self.lsn(int(message[mine[0]])))
            version[mine] = np.array([number for _, number in since])[place]
        return version

    # -- tuples

    def _check_first_tuples(self, rows: _Rows) -> None:
        kind = ((self.messages.head[rows.message] >> np.uint64(16)) & np.uint64(0xFF)).astype(
            np.uint16
        )
        allowed = _FIRST_TUPLE[(rows.tag.astype(np.uint16) << 8) | kind] | (rows.tag == _TRUNCATE)
        full = np.array([each.replica_identity == "f" for each in self._versions], dtype=np.bool_)
        is_full = full[rows.version]
        allowed &= np.where(is_full, kind != _KEY, kind != _OLD) | (rows.tag == _TRUNCATE)
        if not allowed.all():
            self._refuse_row(rows, int(np.argmin(allowed)))

    def _blocks_of_width(self, rows: _Rows, width: int) -> list[tuple[int, ChangeBlock]]:
        """Decode rows of relations with ``width`` columns: blocks with the number of their first message."""
        old, old_kind, new = self._tuples(rows, width)
        order, bounds = _grouped(rows.version)
        placement = self._placement
        message = rows.message if order is None else rows.message[order]
        transaction = placement.transaction[message]

        def ordered(values: NDArray[Any]) -> NDArray[Any]:
            return values if order is None else values[order]

        leading: dict[str, NDArray[Any]] = {
            "commit_lsn": placement.commit_lsn[transaction],
            "seq": placement.seq[message],
            "op": ordered(rows.tag),
            "xid": placement.xid[transaction],
            "commit_ts_us": placement.commit_ts_us[transaction],
            "old_kind": ordered(old_kind),
        }
        new_columns = _collect(new, order, width)
        old_columns = _collect(old, order, width)
        version = ordered(rows.version)
        return [
            (
                int(message[first]),
                ChangeBlock(
                    relation=self._versions[int(version[first])],
                    **{name: values[first:last] for name, values in leading.items()},
                    new=tuple(_slice(values, first, last) for values, _ in new_columns),
                    old=tuple(_slice(values, first, last) for values, _ in old_columns),
                    unchanged=tuple(
                        None if marks is None else marks[first:last] for _, marks in new_columns
                    ),
                ),
            )
            for first, last in bounds
        ]

    def _tuples(
        self, rows: _Rows, width: int
    ) -> tuple[
        tuple[Walk, NDArray[np.intp]] | None,
        NDArray[np.uint8],
        tuple[Walk, NDArray[np.intp]] | None,
    ]:
        """Walk the old and the new tuples; each with its rows' slots (-1: none), and the old ones' kinds."""
        messages = self.messages
        head = messages.head[rows.message]
        kind = ((head >> np.uint64(16)) & np.uint64(0xFF)).astype(np.uint8)
        ends = messages.ends[rows.message]
        starts = messages.starts[rows.message]
        is_row = rows.tag != _TRUNCATE
        wrong = is_row & ((head & np.uint64(0xFFFF)) != width)
        if wrong.any():
            self._refuse_row(rows, int(np.argmax(wrong)))
        positions = starts + 8

        with_old = np.flatnonzero(is_row & (kind != _NEW))
        with_new = np.flatnonzero((rows.tag == _INSERT) | (rows.tag == _UPDATE))
        old_kind = np.zeros(len(rows.tag), dtype=np.uint8)
        old = None
        if len(with_old):
            old_kind[with_old] = kind[with_old]
            found = self._walk(rows, with_old, positions[with_old], width)
            self._check_old(rows, with_old, found, width)
            positions[with_old] = found.final + 3
            old = found, _slots(with_old, len(rows.tag))
        if not len(with_new):
            return old, old_kind, None
        found = self._walk(rows, with_new, positions[with_new], width)
        wrong = found.final != ends[with_new]
        for each in found.kinds:
            if each is not None:
                wrong |= (each == UNCHANGED) & (rows.tag[with_new] == _INSERT)
        if wrong.any():
            self._refuse_row(rows, int(with_new[np.argmax(wrong)]))
        return old, old_kind, (found, _slots(with_new, len(rows.tag)))

    def _walk(
        self, rows: _Rows, chosen: NDArray[np.intp], positions: NDArray[np.int64], width: int
    ) -> Walk:
        try:
            return walk(self.messages.data, self._words, positions, width)
        except WalkFault as fault:
            self._refuse_row(rows, int(chosen[fault.row]))

    def _check_old(self, rows: _Rows, with_old: NDArray[np.intp], found: Walk, width: int) -> None:
        """Demand that old tuples hold no unchanged TOAST and that a new one follows in an Update only."""
        final = found.final
        ends = self.messages.ends[rows.message[with_old]]
        is_delete = rows.tag[with_old] == _DELETE
        wrong = np.where(is_delete, final != ends, final + 3 > ends)
        for each in found.kinds:
            if each is not None:
                wrong |= each == UNCHANGED
        if not wrong.any():
            data = self.messages.data
            count = (data[final + 1].astype(np.int64) << 8) | data[final + 2]
            wrong = ~is_delete & ((data[final] != _NEW) | (count != width))
        if wrong.any():
            self._refuse_row(rows, int(with_old[np.argmax(wrong)]))

    # -- refusals

    def _refuse_row(self, rows: _Rows, row: int) -> NoReturn:
        index = int(rows.message[row])
        parse_row(
            self.messages.body(index), self._versions[int(rows.version[row])], self.lsn(index)
        )
        raise AssertionError("the reference decoder accepts a row that this one refused")

    def _refuse(self, index: int) -> NoReturn:
        raise ProtocolError(
            f"Row message: cut short, at byte {len(self.messages.body(index))}.",
            lsn=self.lsn(index),
        )


def _parts(chunk: MessageChunk) -> list[MessageChunk]:
    """Cut a chunk that Arrow's offsets cannot span; a message alone is never that long."""
    offsets = chunk.offsets
    if not len(offsets) or offsets[-1] - offsets[0] <= _PART_BYTES:
        return [chunk]
    parts = []
    first = 0
    while first < len(offsets) - 1:
        last = int(np.searchsorted(offsets, offsets[first] + _PART_BYTES, side="right")) - 1
        last = max(last, first + 1)
        parts.append(MessageChunk(chunk.data, offsets[first : last + 1]))
        first = last
    return parts


def _grouped(
    version: NDArray[np.int64],
) -> tuple[NDArray[np.intp] | None, list[tuple[int, int]]]:
    """Order rows by version, stream order within (None: they are), and bounds of each version's rows."""
    if (version == version[0]).all():
        return None, [(0, len(version))]
    # Numbers of 16 bits are sorted by radix, several times faster than wider ones.
    keys = version.astype(np.uint16) if version.max() < 1 << 16 else version
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(version[order])) + 1
    edges = [0, *cuts.tolist(), len(version)]
    return order, list(itertools.pairwise(edges))


def _slots(chosen: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """By row: its position in ``chosen``, -1: it is not there."""
    slots = np.full(count, -1, dtype=np.intp)
    slots[chosen] = np.arange(len(chosen), dtype=np.intp)
    return slots


def _collect(
    found: tuple[Walk, NDArray[np.intp]] | None, order: NDArray[np.intp] | None, width: int
) -> list[tuple[pa.Array | None, NDArray[np.bool_] | None]]:
    """Make the columns of one kind of tuple, in the blocks' order, and their marks of unchanged TOAST."""
    if found is None:
        return [(None, None)] * width
    walked, slots = found
    collector = Collector(walked, slots if order is None else slots[order])
    return [(collector.values(column), collector.unchanged(column)) for column in range(width)]


def _slice(values: pa.Array | None, first: int, last: int) -> pa.Array | None:
    return None if values is None else values.slice(first, last - first)
