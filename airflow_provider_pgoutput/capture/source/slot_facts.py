"""The facts of a replication slot, read once with one query.

Source: https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.source.session import Session


PLUGIN = "pgoutput"


# Columns that came after version 15 are read through JSON, so one query serves all versions.
_FACTS_QUERY = """
SELECT s.plugin::pg_catalog.text, s.slot_type, s.database::pg_catalog.text, s.temporary,
       s.active_pid, s.confirmed_flush_lsn::pg_catalog.text, s.restart_lsn::pg_catalog.text,
       s.wal_status, s.safe_wal_size, s.two_phase,
       pg_catalog.to_jsonb(s) ->> 'invalidation_reason',
       -- On a primary that was a standby it is left over, and says nothing.
       COALESCE((pg_catalog.to_jsonb(s) ->> 'synced')::pg_catalog.bool, false)
           AND pg_catalog.pg_is_in_recovery(),
       (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
       COALESCE((pg_catalog.to_jsonb(s) ->> 'failover')::pg_catalog.bool, false),
       (SELECT CASE unit WHEN 'min' THEN 60 ELSE 1 END * setting::pg_catalog.int8
          FROM pg_catalog.pg_settings WHERE name = 'idle_replication_slot_timeout'),
       pg_catalog.date_part('epoch', pg_catalog.now()
           - (pg_catalog.to_jsonb(s) ->> 'inactive_since')::pg_catalog.timestamptz)
  FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = %s
"""


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A row of ``pg_replication_slots``."""

    name: str
    #: None: a physical slot.
    plugin: str | None
    slot_type: str
    database: str | None
    temporary: bool
    active_pid: int | None
    #: Transactions that committed before it are not sent again.  None while a slot is being made.
    confirmed_flush_lsn: Lsn | None
    #: The server keeps the WAL from here on.  None: it was lost.
    restart_lsn: Lsn | None
    wal_status: str | None
    #: Bytes that may still be written before the slot is in danger; None: no limit.
    safe_wal_size: int | None
    two_phase: bool
    invalidation_reason: str | None
    synced: bool
    #: ``max_slot_wal_keep_size`` in bytes; None: no limit.
    keep_size: int | None
    #: Whether standbys synchronise it; version 17 and later.
    failover: bool = False
    #: ``idle_replication_slot_timeout``; None: none is set, or the server has no such thing (before 18).
    idle_timeout_seconds: int | None = None
    #: Since somebody read it last; None: somebody does now, or the server does not say (before 17).
    idle_seconds: float | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the server removed what it needs."""
        return self.wal_status == "lost" or bool(self.invalidation_reason)


def read_slot(session: Session, slot_name: str) -> SlotFacts | None:
    """Facts of the slot, or None when there is none of this name."""
    with translated(slot=slot_name):
        row = session.execute(_FACTS_QUERY, (check_slot_name(slot_name),)).fetchone()
    if row is None:
        return None
    keep_mib = int(row[12])
    return SlotFacts(
        name=slot_name,
        plugin=row[0],
        slot_type=row[1],
        database=row[2],
        temporary=row[3],
        active_pid=row[4],
        confirmed_flush_lsn=Lsn.parse(row[5]) if row[5] else None,
        restart_lsn=Lsn.parse(row[6]) if row[6] else None,
        wal_status=row[7],
        safe_wal_size=row[8],
        two_phase=row[9],
        invalidation_reason=row[10],
        synced=row[11],
        keep_size=keep_mib << 20 if keep_mib >= 0 else None,
        failover=row[13],
        idle_timeout_seconds=row[14] or None,
        idle_seconds=row[15],
    )
