"""What the server says about a slot, read in one query that never touches the slot itself.

Used by the hook, the sensor and the trigger. Peeking would be no cheaper than reading, and a slot that
somebody reads refuses it; these views are free for everyone to look at.

Source: https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import SlotLost, WrongSlot

if TYPE_CHECKING:
    from collections.abc import Sequence

#: One row always: the server's position, and the slot's columns or NULLs.  On a standby, which can
#: decode since PostgreSQL 16, the position is what was replayed.
SLOT_STATUS_SQL = """
SELECT p.lsn::text,
       s.plugin, s.database, s.active, s.wal_status, s.safe_wal_size,
       s.restart_lsn::text, s.confirmed_flush_lsn::text,
       pg_catalog.pg_wal_lsn_diff(p.lsn, s.confirmed_flush_lsn)::int8,
       s.slot_name IS NOT NULL
  FROM (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                    ELSE pg_catalog.pg_current_wal_lsn() END) AS p(lsn)
  LEFT JOIN pg_catalog.pg_replication_slots AS s ON s.slot_name = %s
"""

LOST = "lost"


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A slot as ``pg_replication_slots`` shows it, and how far the server is ahead of it."""

    slot_name: str
    #: False: there is no such slot yet, and all that follows is None.
    exists: bool
    current_lsn: Lsn
    plugin: str | None
    database: str | None
    #: Somebody reads the slot now.
    active: bool | None
    #: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
    wal_status: str | None
    #: Bytes of WAL that can still be written before the slot is in danger; None: no limit is set.
    safe_wal_size_bytes: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    #: WAL between the slot and the server, of all databases, published or not.
    lag_bytes: int | None

    @classmethod
    def from_row(cls, slot_name: str, row: Sequence[Any]) -> SlotStatus:
        """Read the one row of ``SLOT_STATUS_SQL``."""
        current, plugin, database, active, wal_status, safe, restart, confirmed, lag, exists = row
        return cls(
            slot_name=slot_name,
            exists=exists,
            current_lsn=Lsn.parse(current),
            plugin=plugin,
            database=database,
            active=active,
            wal_status=wal_status,
            safe_wal_size_bytes=safe,
            restart_lsn=None if restart is None else Lsn.parse(restart),
            confirmed_flush_lsn=None if confirmed is None else Lsn.parse(confirmed),
            lag_bytes=lag,
        )

    def check(self) -> None:
        """Refuse a slot that no run can ever read.

        :raises SlotLost: when the server removed WAL that the slot needed.
        :raises WrongSlot: when its plugin is not ``pgoutput``.
        """
        if not self.exists:
            return
        if self.plugin != "pgoutput":
            raise WrongSlot(
                f"The slot has the plugin {self.plugin!r}, not 'pgoutput'.",
                slot=self.slot_name,
                advice="name another slot; the first run creates one that does not exist.",
            )
        if self.wal_status == LOST:
            raise SlotLost(
                "The server removed WAL that the slot still needed.",
                slot=self.slot_name,
                lsn=self.restart_lsn or self.confirmed_flush_lsn,
                advice="run once with on_slot_lost='copy' (stage operator and sensor), which makes a new"
                " slot and copies the tables again; raise max_slot_wal_keep_size (PostgreSQL 18:"
                " idle_replication_slot_timeout too) or run more often.",
            )

    def is_worth_a_run(self, min_lag_bytes: int, *, interval_elapsed: bool) -> bool:
        """Whether a run would have something to do.

        :param min_lag_bytes: that much WAL is always worth a run.
        :param interval_elapsed: the longest wait is over, so any WAL at all is.

        A slot that does not exist is: the first run creates it. One that is being read is not.
        """
        if not self.exists:
            return True
        if self.active or self.lag_bytes is None:
            return False
        return self.lag_bytes >= max(min_lag_bytes, 1) or (interval_elapsed and self.lag_bytes > 0)
