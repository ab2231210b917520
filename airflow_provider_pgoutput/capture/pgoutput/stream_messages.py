"""Parses the control messages of protocol versions 2 to 4: streamed and prepared transactions.

``reassemble.py`` reads them, and the decoders never see them. As in ``messages.py``, every parser takes one
whole message and raises ProtocolError, and nothing else, for bytes that are not exactly one. A gid is text
that a user chose: it is compared and stored as data, and never becomes a file name or SQL.

Layouts: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.pgoutput.messages import Commit, MessageReader
from airflow_provider_pgoutput.capture.pgoutput.state import EVENT_NAMES

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.lsn import Lsn


@dataclass(frozen=True, slots=True)
class StreamStart:
    """The messages up to the next Stream Stop belong to this transaction, which is still open."""

    xid: int
    is_first: bool  #: Whether it is the first block of the transaction.


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A streamed transaction, or one of its subtransactions, was rolled back."""

    xid: int  #: Of the whole transaction.
    subxid: int  #: Of the part that was rolled back; equal to ``xid``: all of it.


@dataclass(frozen=True, slots=True)
class Prepare:
    """``PREPARE TRANSACTION``. Begin Prepare has the same fields."""

    prepare_lsn: Lsn  #: Where the record of the prepare starts.
    end_lsn: Lsn  #: Just past it.
    prepared_at_us: int  #: Microseconds since 2000-01-01 UTC, as on the wire.
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """``COMMIT PREPARED``. The transaction's content came with its Prepare."""

    commit: Commit
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """``ROLLBACK PREPARED``. It also comes for a transaction whose Prepare lies before the slot."""

    prepare_end_lsn: Lsn
    end_lsn: Lsn  #: Just past the record of the rollback.
    xid: int
    gid: str


def parse_stream_start(body: bytes) -> StreamStart:
    """Parse ``S``."""
    reader = _reader(body)
    xid, flag = _xid(reader), reader.byte()
    if flag not in {0, 1}:
        raise reader.fault(f"unknown flag {flag:#04x}", back=1)
    reader.finish()
    return StreamStart(xid, bool(flag))


def parse_stream_stop(body: bytes) -> None:
    """Parse ``E``, which consists of its tag."""
    _reader(body).finish()


def parse_stream_commit(body: bytes) -> tuple[int, Commit]:
    """Parse ``c`` into the transaction's id and its commit."""
    reader = _reader(body)
    xid = _xid(reader)
    commit = _commit(reader)
    reader.finish()
    return xid, commit


def parse_stream_abort(body: bytes, *, with_time: bool) -> StreamAbort:
    """Parse ``A``.

    :param with_time: the option ``streaming`` is ``parallel``: an LSN and a time follow.
    """
    reader = _reader(body)
    message = StreamAbort(_xid(reader), _xid(reader))
    if with_time:
        # If a crash ended the transaction, the server knows neither.
        reader.lsn("the LSN of the abort", may_be_zero=True)
        reader.time_us()
    reader.finish()
    return message


def parse_begin_prepare(body: bytes) -> Prepare:
    """Parse ``b``."""
    reader = _reader(body)
    message = _prepare(reader)
    reader.finish()
    return message


def parse_prepare(body: bytes) -> Prepare:
    """Parse ``P`` or ``p``, which have the same layout."""
    reader = _reader(body)
    _no_flags(reader)
    message = _prepare(reader)
    reader.finish()
    return message


def parse_commit_prepared(body: bytes) -> CommitPrepared:
    """Parse ``K``."""
    reader = _reader(body)
    message = CommitPrepared(_commit(reader), _xid(reader), reader.text("the gid"))
    reader.finish()
    return message


def parse_rollback_prepared(body: bytes) -> RollbackPrepared:
    """Parse ``r``."""
    reader = _reader(body)
    _no_flags(reader)
    prepare_end_lsn, end_lsn = reader.lsn("the prepare's end LSN"), reader.lsn("end_lsn")
    reader.time_us()
    reader.time_us()
    message = RollbackPrepared(prepare_end_lsn, end_lsn, _xid(reader), reader.text("the gid"))
    reader.finish()
    return message


def _reader(body: bytes) -> MessageReader:
    return MessageReader(body, EVENT_NAMES[chr(body[0])], None)


def _xid(reader: MessageReader) -> int:
    xid = reader.uint32()
    if xid == 0:
        raise reader.fault("a transaction id is zero", back=4)
    return xid


def _no_flags(reader: MessageReader) -> None:
    """Check that no flag is set. There are none today; one of a future version may change the meaning."""
    if flags := reader.byte():
        raise reader.fault(f"unknown flags {flags:#04x}", back=1)


def _commit(reader: MessageReader) -> Commit:
    _no_flags(reader)
    commit = Commit(reader.lsn("commit_lsn"), reader.lsn("end_lsn"), reader.time_us())
    if commit.end_lsn <= commit.commit_lsn:
        raise reader.fault("end_lsn is not past commit_lsn", back=16)
    return commit


def _prepare(reader: MessageReader) -> Prepare:
    message = Prepare(
        reader.lsn("prepare_lsn"),
        reader.lsn("end_lsn"),
        reader.time_us(),
        _xid(reader),
        reader.text("the gid"),
    )
    if message.end_lsn <= message.prepare_lsn:
        raise reader.fault("end_lsn is not past prepare_lsn")
    return message
