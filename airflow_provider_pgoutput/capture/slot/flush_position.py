"""Where a batch with logical messages may end: at the end of a WAL record, and never inside of one.

A transaction belongs to the batch that holds its commit LSN, wherever the batch ends. A message that is not
transactional has no commit LSN. The server selects it by the start of its record, and reports the end of its
record. Suppose that a batch ended inside of the record. It would leave the message to the next batch, and the
server would not send it again. So no batch would have it. The flush LSN is the end of a record, unless it is
the end of a page.

Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADMIN-BACKUP
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import SourceUnavailable

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.source.session import Session

#: A standby has replayed whole records. On a primary the flush LSN is read first, so the insert LSN is past
#: everything that began before it.
_QUERY = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_flush_lsn()
       END::pg_catalog.text,
       CASE WHEN NOT pg_catalog.pg_is_in_recovery()
            THEN pg_catalog.pg_current_wal_insert_lsn()
       END::pg_catalog.text,
       pg_catalog.current_setting('wal_block_size')::pg_catalog.int4,
       pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))
"""

#: Sizes of the headers of a page, and of the first page of a segment. No record starts inside of a header.
_PAGE_HEADER_BYTES: Final = 24
_SEGMENT_HEADER_BYTES: Final = 40
_ASK_SECONDS: Final = 0.05
#: An idle server writes the rest of a record when its background writer next logs a snapshot, every 15 s.
_WAIT_SECONDS: Final = 40.0


def read_flush_lsn(session: Session, offset: LsnOffset = NO_OFFSET) -> Lsn:
    """The LSN before which all WAL is on the server's disk; on a standby: before which it is replayed.

    :param offset: of the server, in the lake.
    """
    return offset.added_to(_positions(session)[0])


def read_record_end(session: Session, offset: LsnOffset = NO_OFFSET) -> Lsn:
    """Read the target of a batch: an LSN up to which all WAL is on disk, at the end of a record.

    :param offset: of the server, in the lake.
    :raises SourceUnavailable: the server does not finish writing a record.
    """
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        lsn, inserted, block_bytes, segment_bytes = _positions(session)
        if inserted is None or ends_record(lsn, inserted, block_bytes, segment_bytes):
            return offset.added_to(lsn)
        if time.monotonic() >= deadline:
            raise SourceUnavailable(
                "The server has written a part of a WAL record and does not write the rest.",
                lsn=offset.added_to(lsn),
            )
        time.sleep(_ASK_SECONDS)


def _positions(session: Session) -> tuple[Lsn, Lsn | None, int, int]:
    """Flush LSN, insert LSN, and the size of a page and of a segment. A standby has no insert LSN."""
    with translated():
        row = session.execute(_QUERY).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    flushed, inserted, block_bytes, segment_bytes = row
    return (
        Lsn.parse(flushed),
        None if inserted is None else Lsn.parse(inserted),
        block_bytes,
        segment_bytes,
    )


def ends_record(flushed: Lsn, inserted: Lsn, block_bytes: int, segment_bytes: int) -> bool:
    """Whether a record ends at the flush LSN.

    :param inserted: where the next record would start, read after the flush LSN.
    """
    if flushed % block_bytes:
        return True
    header = _PAGE_HEADER_BYTES if flushed % segment_bytes else _SEGMENT_HEADER_BYTES
    return inserted - flushed <= header
