"""Decides for ``transport="auto"`` whether the server has room for the SQL transport.

The server writes each answer of the SQL function to a temporary file before the first row comes. The
walsender needs no such file, but is slower. ``auto`` takes SQL, unless this module finds a reason against it
before the read. An answer has whole transactions, and the size of the largest one is not known before it is
decoded. If an answer does not fit after all, ``fallback.py`` continues with the walsender.

Source: https://www.postgresql.org/docs/current/runtime-config-resource.html#GUC-TEMP-FILE-LIMIT
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from psycopg import sql

from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.source.session import Session

#: How many bytes of temporary file one byte of WAL is assumed to need. Most tables need less. Some need more:
#: a row of many small numbers is longer as text than in the WAL.
_FILE_PER_WAL: Final = 2
#: How much WAL one answer may have if nothing limits the file. More takes much longer than a few seconds.
_MOST_WAL_OF_AN_ANSWER: Final = 4 << 30

#: How many slots the server could still make.
FREE_SLOTS: Final = (
    "SELECT pg_catalog.current_setting('max_replication_slots')::pg_catalog.int4"
    " - pg_catalog.count(*) FROM pg_catalog.pg_replication_slots"
)

_QUERY: Final = f"""
SELECT pg_catalog.pg_size_bytes(pg_catalog.current_setting('temp_file_limit')),
       ({FREE_SLOTS}),
       pg_catalog.has_function_privilege(
           'pg_catalog.pg_copy_logical_replication_slot(name, name, bool)', 'EXECUTE')
"""

#: 1 if the SQL functions wait for other standbys before they read the slot, otherwise 0. They wait only if
#: the slot has failover. A copy of a slot never has it.
#: https://www.postgresql.org/docs/current/runtime-config-replication.html#GUC-SYNCHRONIZED-STANDBY-SLOTS
WAITS_FOR_STANDBYS: Final = sql.SQL(
    "SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = {}"
    " AND COALESCE((pg_catalog.to_jsonb(s) ->> 'failover')::pg_catalog.bool, false)"
    " AND COALESCE(pg_catalog.current_setting('synchronized_standby_slots', true), '') <> ''"
)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the server has room for: temporary files and slots."""

    #: Bytes of temporary files that a session may use; None: no limit.
    temp_file_limit: int | None
    #: Whether a copy of the slot can be made. Without one, a range is not cut into parts.
    makes_copies: bool

    def behind_pooler(self) -> Capacity:
        """The capacity without copies of the slot: a pooler would keep the session, and with it the copy."""
        return replace(self, makes_copies=False)


def read_capacity(session: Session, slot_name: str) -> Capacity:
    """Ask the server what it has room for."""
    with translated():
        row = session.execute(_QUERY).fetchone()
        waits = session.execute(WAITS_FOR_STANDBYS.format(sql.Literal(slot_name))).fetchone()
    assert row is not None, "a SELECT of scalars gives a row"
    limit, free_slots, may_copy = row
    makes_copies = may_copy and free_slots > 0 and waits == (0,)
    return Capacity(None if limit < 0 else limit, makes_copies)


@dataclass(frozen=True, slots=True)
class Backlog:
    """What will be read, in bytes of WAL."""

    #: From the checkpoint to the target.
    wal_bytes: int
    #: WAL of one part. A long transaction can make it more.
    part_bytes: int
    #: Whether the range can be cut into parts at all.
    is_cut: bool


def against_sql(capacity: Capacity, backlog: Backlog) -> str | None:
    """The reason not to read this backlog through SQL; None: there is none."""
    answer_bytes = backlog.wal_bytes
    if backlog.is_cut and capacity.makes_copies:
        answer_bytes = min(answer_bytes, backlog.part_bytes)
    if (
        capacity.temp_file_limit is not None
        and answer_bytes * _FILE_PER_WAL > capacity.temp_file_limit
    ):
        return (
            f"{answer_bytes >> 20} MiB of WAL in one answer may not fit the server's temp_file_limit of "
            f"{capacity.temp_file_limit >> 20} MiB"
        )
    if answer_bytes > _MOST_WAL_OF_AN_ANSWER:
        return f"its {answer_bytes >> 20} MiB of WAL would be one answer, for it cannot be cut"
    return None
