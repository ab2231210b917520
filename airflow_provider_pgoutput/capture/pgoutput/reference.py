"""A slow decoder that is written to be read: one message at a time, one Python object for each value.

It says what ``decoder.py`` must return. The tests compare the two on recorded streams (with all splits, cuts
and bit flips) and on random ones. It also finds the words for a row that the fast decoder refuses. It never
decodes data for the lake: it is about a hundred times slower.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.pgoutput.messages import (
    POSTGRES_EPOCH_US,
    Begin,
    Commit,
    LogicalMessage,
    MessageReader,
    Origin,
    Relation,
    TypeMessage,
    parse_begin,
    parse_commit,
    parse_logical_message,
    parse_origin,
    parse_relation,
    parse_truncate,
    parse_type,
)
from airflow_provider_pgoutput.capture.pgoutput.partitions import Partitions
from airflow_provider_pgoutput.capture.pgoutput.state import (
    COUNTED,
    EVENT_NAMES,
    FIRST_VERSION,
    OUTSIDE,
    WHOLE,
    check_begin,
    check_commit,
)
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock, LogicalMessageBlock


class Unchanged(enum.Enum):
    """The type of ``UNCHANGED``: a TOAST value that an update did not change and the server did not send."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Binary:
    """A value in binary form. A value in text form is plain bytes."""

    content: bytes


Value = bytes | Binary | Unchanged | None
Tuple = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one relation; the fields are those of ``ChangeBlock``."""

    relation: Relation
    commit_lsn: int
    seq: int
    op: str
    xid: int
    commit_ts_us: int
    old_kind: str | None
    new: Tuple | None
    old: Tuple | None
    origin: str | None = None
    origin_lsn: int | None = None


@dataclass(frozen=True, slots=True)
class EmittedMessage:
    """One logical message; the fields are those of ``LogicalMessageBlock``."""

    lsn: int
    transactional: bool
    commit_lsn: int | None
    seq: int | None
    xid: int | None
    commit_ts_us: int | None
    prefix: str
    content: bytes


class ReferenceDecoder:
    """Decodes message after message. Its properties have the same meaning as those of ``Decoder``."""

    def __init__(
        self,
        start_lsn: Lsn | None = None,
        end_lsn: Lsn | None = None,
        *,
        skip_origins: bool = False,
        skip_lsns: Collection[Lsn] = (),
    ) -> None:
        self._start_lsn = start_lsn
        self._end_lsn = end_lsn
        self._skip_origins = skip_origins
        self._skip_lsns = frozenset(skip_lsns)
        #: Number of row changes of the open transaction that are not wanted.
        self._left_out = 0
        self.skipped: dict[Lsn, int] = {}
        self._origin: Origin | None = None
        self._state = OUTSIDE
        self._begin: Begin | None = None
        self._next_seq = 0
        self.transactions = 0
        self.origins = 0
        self.logical_messages = 0
        #: The wanted logical messages.
        self.messages: list[EmittedMessage] = []
        self.last_commit: Commit | None = None
        self.relations: dict[int, Relation] = {}
        self._partitions = Partitions()
        self.types: dict[int, TypeMessage] = {}

    @property
    def in_transaction(self) -> bool:
        """Whether the last message left a transaction open."""
        return self._begin is not None

    def decode(self, body: bytes) -> list[Change]:
        """Decode one message. Only a truncate gives more than one change.

        :raises ProtocolError: the message is invalid, or may not stand here.
        """
        event = event_of(body)
        if event not in WHOLE[self._state]:
            raise misplaced(event, self._state, self._lsn)
        self._state = WHOLE[self._state][event]
        seq = self._next_seq
        if event in COUNTED:
            self._next_seq += 1
        if event in "IUD":
            root = self._partitions.row(oid_of_row(body, self._lsn))
            if root is not None:
                self.relations[root.oid] = root
        elif event not in "RY":
            self._partitions.end_run()
        if event in "IUDT":
            return self._changes(event, body, seq)
        self._control(event, body)
        return []

    @property
    def _lsn(self) -> Lsn | None:
        return self._begin.final_lsn if self._begin else None

    @property
    def _wanted(self) -> bool:
        return self._in_range and self._lsn not in self._skip_lsns

    @property
    def _in_range(self) -> bool:
        lsn = self._lsn
        return (
            lsn is not None
            and not (self._skip_origins and self._origin)
            and (self._start_lsn is None or lsn >= self._start_lsn)
            and (self._end_lsn is None or lsn < self._end_lsn)
        )

    def _control(self, event: str, body: bytes) -> None:
        if event == "B":
            self._begin = parse_begin(body)
            self._next_seq, self._left_out = 0, 0
            self._origin = None
            check_begin(self._begin, self.last_commit)
        elif event == "C":
            assert self._begin is not None, "the state table lets no commit stand outside"
            commit = parse_commit(body, self._lsn)
            check_commit(commit, self._begin)
            self.transactions += self._wanted
            if self._in_range and not self._wanted:
                self.skipped[self._begin.final_lsn] = self._left_out
            self.last_commit = commit
            self._begin = None
        elif event == "R":
            for relation in self._partitions.announce(parse_relation(body, self._lsn)):
                self.relations[relation.oid] = relation
        elif event == "Y":
            type_message = parse_type(body, self._lsn)
            self.types[type_message.oid] = type_message
        elif event == "O":
            self._origin = parse_origin(body, self._lsn)
            self.origins += 1
        else:
            self._take_message(parse_logical_message(body, self._lsn))

    def _take_message(self, message: LogicalMessage) -> None:
        self.logical_messages += 1
        begin = self._begin if message.transactional else None
        if begin is not None:
            wanted = self._wanted
        else:
            wanted = (self._start_lsn is None or message.lsn > self._start_lsn) and (
                self._end_lsn is None or message.lsn <= self._end_lsn
            )
        if not wanted:
            return
        emitted = EmittedMessage(
            lsn=int(message.lsn),
            transactional=message.transactional,
            commit_lsn=None if begin is None else int(begin.final_lsn),
            seq=None if begin is None else self._next_seq,
            xid=None if begin is None else begin.xid,
            commit_ts_us=None if begin is None else begin.committed_at_us + POSTGRES_EPOCH_US,
            prefix=message.prefix,
            content=message.content,
        )
        self.messages.append(emitted)

    def _changes(self, event: str, body: bytes, seq: int) -> list[Change]:
        assert self._begin is not None, "the state table lets no change stand outside"
        truncate = parse_truncate(body, self._lsn) if event == "T" else None
        if not self._wanted:
            self._left_out += 1
            return []
        begin = self._begin
        committed_at_us = begin.committed_at_us + POSTGRES_EPOCH_US
        position = (int(begin.final_lsn), seq, event, begin.xid, committed_at_us)
        origin: tuple[str | None, int | None] = (None, None)
        if self._origin is not None:
            origin = self._origin.name, int(self._origin.commit_lsn) or None
        if truncate is not None:
            relations = [self._relation(oid) for oid in truncate.relation_oids]
            return [Change(each, *position, None, None, None, *origin) for each in relations]
        relation = self._relation(oid_of_row(body, self._lsn))
        old_kind, old, new = parse_row(body, relation, self._lsn)
        return [Change(relation, *position, old_kind, new, old, *origin)]

    def _relation(self, oid: int) -> Relation:
        if oid not in self.relations:
            raise unknown_relation(oid, self._lsn)
        return self.relations[oid]


def event_of(body: bytes, version: int = 1) -> str:
    """Name the event of ``state.py`` that a message is.

    :raises ProtocolError: no message of the protocol version starts like this.
    """
    tag = body[:1].decode("latin-1")
    if tag not in EVENT_NAMES or tag == "m" or FIRST_VERSION.get(tag, 1) > version:
        raise ProtocolError(
            f"A message starts with byte {body[:1].hex() or 'none'}, which protocol version {version} "
            "lacks."
        )
    return "m" if tag == "M" and body[1:2] != b"\x01" else tag


def misplaced(event: str, state: str, lsn: Lsn | None) -> ProtocolError:
    """Make the error for an event that the state table does not allow."""
    return ProtocolError(f"{EVENT_NAMES[event]} message {state}, at byte 0.", lsn=lsn)


def unknown_relation(oid: int, lsn: Lsn | None) -> ProtocolError:
    """Make the error for a change whose relation was not announced before it."""
    return ProtocolError(f"A change of OID {oid} comes before its Relation message.", lsn=lsn)


def oid_of_row(body: bytes, lsn: Lsn | None) -> int:
    """Read the relation's OID of an Insert, Update or Delete."""
    return MessageReader(body, EVENT_NAMES[chr(body[0])], lsn).uint32()


def parse_row(
    body: bytes, relation: Relation, lsn: Lsn | None
) -> tuple[str | None, Tuple | None, Tuple | None]:
    """Parse an Insert, Update or Delete: kind of the old tuple, old tuple, new tuple.

    An old tuple is ``K``. It is ``O`` if the relation has REPLICA IDENTITY FULL, and only then. Where
    partitions send old tuples under the name of their root, both may come. An Update may have no old tuple.
    Only a new tuple can have unchanged TOAST. The one of an Insert has it when an update brought the row into
    the row filter.

    :raises ProtocolError: the bytes are not exactly one such message of ``relation``.
    """
    operation = chr(body[0])
    reader = MessageReader(body, f"{EVENT_NAMES[operation]} of {relation.name}", lsn)
    reader.uint32()
    kind = chr(reader.byte())
    if kind not in {"I": "N", "U": "NKO", "D": "KO"}[operation]:
        raise reader.fault("no tuple of this kind may follow", back=1)
    old_kind = old = new = None
    if kind != "N":
        is_full = relation.replica_identity == "f"
        if not relation.partitions and (kind == "O") != is_full:
            raise reader.fault(
                f"{kind} does not go with replica identity {relation.replica_identity}", back=1
            )
        old_kind, old = kind, _tuple(reader, relation, may_be_unchanged=False)
        if operation == "U":
            kind = chr(reader.byte())
            if kind != "N":
                raise reader.fault("no tuple of this kind may follow", back=1)
    if operation != "D":
        new = _tuple(reader, relation, may_be_unchanged=True)
    reader.finish()
    return old_kind, old, new


def _tuple(reader: MessageReader, relation: Relation, *, may_be_unchanged: bool) -> Tuple:
    count = reader.int16()
    if count != len(relation.columns):
        raise reader.fault(f"{count} columns instead of {len(relation.columns)}", back=2)
    return tuple(_value(reader, may_be_unchanged) for _ in range(count))


def _value(reader: MessageReader, may_be_unchanged: bool) -> Value:
    kind = chr(reader.byte())
    if kind == "t":
        return reader.content(reader.int32())
    if kind == "b":
        return Binary(reader.content(reader.int32()))
    if kind == "n":
        return None
    if kind == "u" and may_be_unchanged:
        return UNCHANGED
    raise reader.fault("a value of this kind may not stand here", back=1)


def changes_of_block(block: ChangeBlock) -> list[Change]:
    """Turn the columns of a block into the reference's objects, so that the two can be compared."""
    new = [None if column is None else column.to_pylist() for column in block.new]
    old = [None if column is None else column.to_pylist() for column in block.old]

    nothing = [None] * len(block)
    origins = nothing if block.origin is None else block.origin.to_pylist()
    origin_lsns = nothing if block.origin_lsn is None else block.origin_lsn.to_pylist()

    def value(values: list[bytes | None] | None, position: int, row: int, is_new: bool) -> Value:
        marks = block.unchanged[position] if is_new else None
        if marks is not None and marks[row]:
            return UNCHANGED
        found = None if values is None else values[row]
        forms = (block.new_binary if is_new else block.old_binary)[position]
        is_binary = forms if isinstance(forms, bool) else forms[row]
        return Binary(found) if isinstance(found, bytes) and is_binary else found

    def change(row: int) -> Change:
        operation = chr(block.op[row])
        old_kind = chr(block.old_kind[row]) if block.old_kind[row] else None
        return Change(
            relation=block.relation,
            commit_lsn=int(block.commit_lsn[row]),
            seq=int(block.seq[row]),
            op=operation,
            xid=int(block.xid[row]),
            commit_ts_us=int(block.commit_ts_us[row]),
            old_kind=old_kind,
            new=tuple(value(each, position, row, True) for position, each in enumerate(new))
            if operation in "IU"
            else None,
            old=tuple(value(each, position, row, False) for position, each in enumerate(old))
            if old_kind
            else None,
            origin=origins[row],
            origin_lsn=origin_lsns[row],
        )

    return [change(row) for row in range(len(block))]


def messages_of_block(block: LogicalMessageBlock) -> list[EmittedMessage]:
    """Turn the columns of a block into the reference's objects, so that the two can be compared."""
    columns = [block.commit_lsn, block.seq, block.xid, block.commit_ts_us]
    columns += [block.prefix, block.content]
    lists = [block.lsn.tolist(), block.transactional.tolist(), *(c.to_pylist() for c in columns)]
    return [EmittedMessage(*each) for each in zip(*lists, strict=True)]
