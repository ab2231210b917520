"""Parses the control messages of pgoutput protocol version 1 from bytes in memory.

Messages that steer the stream become objects: begin and commit, relations, types, truncates. Rows never do:
they stay bytes until ``tuple_walk.py`` cuts them into Arrow arrays. Whether a message may follow the one
before it is in ``state.py``.

Every parser takes one whole message with its tag. It raises ProtocolError, and nothing else, for bytes that
are not exactly one valid message. In protocol versions 2 to 4, some of these messages have a transaction ID
at the front while a transaction is streamed.

Layouts: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Microseconds from 1970-01-01 to 2000-01-01, the epoch of the wire.
POSTGRES_EPOCH_US = 946_684_800_000_000
#: The server's timestamps end in the year 294276. A later one would not fit when the epoch is changed to
#: 1970.
LAST_TIME_US = 2**63 - 1 - POSTGRES_EPOCH_US
#: LSNs are staged as signed 64-bit numbers. At 10 GiB/s it takes 27 years to pass the greatest one.
LAST_LSN = 2**63 - 1

_REPLICA_IDENTITIES = "dnfi"
_TRUNCATE_CASCADE = 1
_TRUNCATE_RESTART_IDENTITY = 2


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a transaction. The server sends a transaction only after it committed."""

    final_lsn: Lsn  #: Where the commit record starts; Commit repeats it as ``commit_lsn``.
    committed_at_us: int  #: Microseconds since 2000-01-01 UTC, as on the wire.
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """End of a transaction."""

    commit_lsn: Lsn  #: Where the commit record starts.
    end_lsn: Lsn  #: Just past it: the only kind of position a slot may advance to.
    committed_at_us: int  #: Microseconds since 2000-01-01 UTC, as on the wire.


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a replayed transaction was first committed."""

    commit_lsn: Lsn  #: On the origin server; zero when the replaying session did not set it.
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A published column of a relation."""

    name: str
    type_oid: int
    type_modifier: int  #: ``atttypmod``; -1: none.
    is_identity: (
        bool  #: Part of the replica identity. With FULL every column is; this is no primary key.
    )


@dataclass(frozen=True, slots=True)
class PartitionIdentity:
    """What old tuples contain when a partition's changes are published under its root.

    Partitions that send the same are equal.
    """

    #: The columns of its replica identity. An old tuple has their values, and NULL in all other columns.
    columns: frozenset[str]
    #: REPLICA IDENTITY FULL: every update and delete has the whole old row.
    is_full: bool = False
    #: OID and ``pg_class.relreplident`` of the partition, if its announcement has other columns than its
    #: root's, so that ``columns`` may lack some. (The server picks the columns of a column list by their
    #: numbers in the root. In the partition
    #: they may have other numbers.)
    incomplete: tuple[int, str] | None = None
    #: ``schema.table`` of one such partition.
    name: str = field(default="", compare=False)

    def covers(self, key: Iterable[str]) -> bool:
        """Whether old tuples have this key, and an update without an old tuple did not change the key."""
        return self.is_full or self.columns.issuperset(key)


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns of the rows that follow. Two equal announcements are one version."""

    oid: int
    schema_name: str
    table_name: str
    replica_identity: (
        str  #: ``pg_class.relreplident``: default, nothing, full or index by its first letter.
    )
    columns: tuple[RelationColumn, ...]
    #: What the partitions that are published under it send, as far as they were announced; see
    #: ``partitions.py``. Partitions without a replica identity are not here, because they send inserts only.
    partitions: frozenset[PartitionIdentity] = frozenset()

    @property
    def name(self) -> str:
        """The name as ``schema.table``, for messages."""
        return f"{self.schema_name}.{self.table_name}"


@dataclass(frozen=True, slots=True)
class TypeMessage:
    """The name of a type that is not built in. It is sent before the first relation that uses the type."""

    oid: int
    schema_name: str
    name: str


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE of some relations in one statement."""

    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message of ``pg_logical_emit_message``. It belongs to no table."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


class MessageReader:
    """Reads the fields of one message. Every fault becomes a ProtocolError with the byte's number.

    :param body: the whole message with its tag. Reading starts after the tag.
    :param lsn: commit LSN of the message's transaction, for the text of the error.
    """

    __slots__ = ("_body", "_kind", "_lsn", "_position")

    def __init__(self, body: bytes, kind: str, lsn: Lsn | None) -> None:
        self._body = body
        self._kind = kind
        self._lsn = lsn
        self._position = 1
        if not body:
            raise self.fault("the message is empty", at=0)

    def fault(self, what: str, *, back: int = 0, at: int | None = None) -> ProtocolError:
        """Make the error for a fault at byte ``at``, or ``back`` bytes before the current one."""
        where = self._position - back if at is None else at
        return ProtocolError(f"{self._kind} message: {what}, at byte {where}.", lsn=self._lsn)

    def _number(self, layout: struct.Struct) -> int:
        if self._position + layout.size > len(self._body):
            raise self.fault(f"cut short, {layout.size} bytes expected")
        (value,) = layout.unpack_from(self._body, self._position)
        self._position += layout.size
        return int(value)

    def byte(self) -> int:
        """Read an unsigned number of 8 bits."""
        return self._number(_UINT8)

    def int16(self) -> int:
        """Read a signed number of 16 bits."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Read a signed number of 32 bits."""
        return self._number(_INT32)

    def uint32(self) -> int:
        """Read an unsigned number of 32 bits: an OID or a transaction id."""
        return self._number(_UINT32)

    def oid(self) -> int:
        """Read an OID, which must not be zero."""
        value = self._number(_UINT32)
        if value == 0:
            raise self.fault("an OID is zero", back=4)
        return value

    def time_us(self) -> int:
        """Read a time in microseconds since 2000-01-01 UTC."""
        value = self._number(_INT64)
        if value > LAST_TIME_US:
            raise self.fault("the commit time is out of range", back=8)
        return value

    def lsn(self, name: str, *, may_be_zero: bool = False) -> Lsn:
        """Read an LSN."""
        value = self._number(_UINT64)
        if value > LAST_LSN or (value == 0 and not may_be_zero):
            raise self.fault(f"{name} is {'out of range' if value else 'zero'}", back=8)
        return Lsn(value)

    def text(self, name: str) -> str:
        """Read a text, which ends with a NUL."""
        end = self._body.find(b"\0", self._position)
        if end < 0:
            raise self.fault(f"{name} has no end")
        try:
            value = self._body[self._position : end].decode("utf-8")
        except UnicodeDecodeError as error:
            # From None: the codec's error contains the bytes.
            raise self.fault(f"{name} is not UTF-8", at=self._position + error.start) from None
        self._position = end + 1
        return value

    def schema_name(self) -> str:
        """Read the name of a schema. For ``pg_catalog`` the server sends an empty one."""
        return self.text("the schema name") or "pg_catalog"

    def content(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        if size < 0:
            raise self.fault("a length is negative", back=4)
        if self._position + size > len(self._body):
            raise self.fault("a length leads past the end", back=4)
        value = self._body[self._position : self._position + size]
        self._position += size
        return value

    def finish(self) -> None:
        """Check that the message ends here."""
        if self._position != len(self._body):
            raise self.fault(f"{len(self._body) - self._position} bytes too long")


_UINT8 = struct.Struct("!B")
_INT16 = struct.Struct("!h")
_INT32 = struct.Struct("!i")
_UINT32 = struct.Struct("!I")
_INT64 = struct.Struct("!q")
_UINT64 = struct.Struct("!Q")


def parse_begin(body: bytes, lsn: Lsn | None = None) -> Begin:
    """Parse ``B``."""
    reader = MessageReader(body, "Begin", lsn)
    message = Begin(reader.lsn("final_lsn"), reader.time_us(), reader.uint32())
    reader.finish()
    return message


def parse_commit(body: bytes, lsn: Lsn | None = None) -> Commit:
    """Parse ``C``. It has no flags today. One of a future version may change what a commit means."""
    reader = MessageReader(body, "Commit", lsn)
    if flags := reader.byte():
        raise reader.fault(f"unknown flags {flags:#04x}", at=1)
    message = Commit(reader.lsn("commit_lsn"), reader.lsn("end_lsn"), reader.time_us())
    reader.finish()
    if message.end_lsn <= message.commit_lsn:
        raise reader.fault("end_lsn is not past commit_lsn", at=10)
    return message


def parse_origin(body: bytes, lsn: Lsn | None = None) -> Origin:
    """Parse ``O``."""
    reader = MessageReader(body, "Origin", lsn)
    message = Origin(reader.lsn("the origin's LSN", may_be_zero=True), reader.text("the name"))
    reader.finish()
    return message


def parse_relation(body: bytes, lsn: Lsn | None = None) -> Relation:
    """Parse ``R``."""
    reader = MessageReader(body, "Relation", lsn)
    oid = reader.oid()
    schema_name = reader.schema_name()
    table_name = reader.text("the table name")
    identity = chr(reader.byte())
    if identity not in _REPLICA_IDENTITIES:
        raise reader.fault("unknown replica identity", back=1)
    count = reader.int16()
    if count < 0:
        raise reader.fault("the number of columns is negative", back=2)
    columns = tuple(_relation_column(reader) for _ in range(count))
    reader.finish()
    return Relation(oid, schema_name, table_name, identity, columns)


def _relation_column(reader: MessageReader) -> RelationColumn:
    flags = reader.byte()
    if flags not in {0, 1}:
        raise reader.fault(f"unknown column flags {flags:#04x}", back=1)
    return RelationColumn(
        name=reader.text("a column name"),
        type_oid=reader.oid(),
        type_modifier=reader.int32(),
        is_identity=bool(flags),
    )


def parse_type(body: bytes, lsn: Lsn | None = None) -> TypeMessage:
    """Parse ``Y``."""
    reader = MessageReader(body, "Type", lsn)
    message = TypeMessage(reader.oid(), reader.schema_name(), reader.text("the type name"))
    reader.finish()
    return message


def parse_truncate(body: bytes, lsn: Lsn | None = None) -> Truncate:
    """Parse ``T``."""
    reader = MessageReader(body, "Truncate", lsn)
    count = reader.int32()
    if count < 1:
        raise reader.fault("no relation is named", back=4)
    flags = reader.byte()
    if flags & ~(_TRUNCATE_CASCADE | _TRUNCATE_RESTART_IDENTITY):
        raise reader.fault(f"unknown flags {flags:#04x}", back=1)
    if 4 * count != len(body) - 6:
        raise reader.fault(f"{count} relations do not fill {len(body) - 6} bytes")
    oids = tuple(reader.oid() for _ in range(count))
    reader.finish()
    if len(set(oids)) != count:
        raise reader.fault("a relation is named twice", at=6)
    return Truncate(oids, bool(flags & _TRUNCATE_CASCADE), bool(flags & _TRUNCATE_RESTART_IDENTITY))


def parse_logical_message(body: bytes, lsn: Lsn | None = None) -> LogicalMessage:
    """Parse ``M``. The content is arbitrary bytes, the prefix is text."""
    reader = MessageReader(body, "Message", lsn)
    flags = reader.byte()
    if flags not in {0, 1}:
        raise reader.fault(f"unknown flags {flags:#04x}", back=1)
    position = reader.lsn("the LSN")
    prefix = reader.text("the prefix")
    content = reader.content(reader.int32())
    reader.finish()
    return LogicalMessage(bool(flags), position, prefix, content)
