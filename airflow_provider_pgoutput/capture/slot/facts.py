"""What the server says of a replication slot: one query, for capture, hook, sensor, trigger and CLI.

The query never touches the slot itself. To peek would be no cheaper than to read, and the server refuses it
while somebody reads the slot. Everybody may look at the view. The module imports no driver, so a DAG file
that imports it is parsed quickly. ``replication_slot.py`` and the trigger run the query.

Source: https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.errors import SlotLost, WrongSlot

if TYPE_CHECKING:
    from collections.abc import Sequence


PLUGIN = "pgoutput"


#: One row always: the server's position, and the slot's columns or NULLs. A standby can decode since version
#: 16, and its position is what was replayed. Columns that came after version 15 are read through JSON, so one
#: query serves all versions.
SLOT_QUERY = """
SELECT p.lsn::pg_catalog.text, pg_catalog.pg_wal_lsn_diff(p.lsn, s.confirmed_flush_lsn)::pg_catalog.int8,
       pg_catalog.pg_is_in_recovery(), s.slot_name::pg_catalog.text,
       s.plugin::pg_catalog.text, s.slot_type, s.database::pg_catalog.text, s.temporary,
       s.active_pid, s.confirmed_flush_lsn::pg_catalog.text, s.restart_lsn::pg_catalog.text,
       s.wal_status, s.safe_wal_size, s.two_phase,
       pg_catalog.to_jsonb(s) ->> 'invalidation_reason',
       -- On a primary that was a standby it is left over, and says nothing.
       COALESCE((pg_catalog.to_jsonb(s) ->> 'synced')::pg_catalog.bool, false)
           AND pg_catalog.pg_is_in_recovery(),
       (SELECT setting::pg_catalog.int8 FROM pg_catalog.pg_settings
         WHERE name = 'max_slot_wal_keep_size'),
       COALESCE((pg_catalog.to_jsonb(s) ->> 'failover')::pg_catalog.bool, false),
       (SELECT CASE unit WHEN 'min' THEN 60 ELSE 1 END * setting::pg_catalog.int8
          FROM pg_catalog.pg_settings WHERE name = 'idle_replication_slot_timeout'),
       pg_catalog.date_part('epoch', pg_catalog.now()
           - (pg_catalog.to_jsonb(s) ->> 'inactive_since')::pg_catalog.timestamptz)
  FROM (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                    ELSE pg_catalog.pg_current_wal_lsn() END) AS p(lsn)
  LEFT JOIN pg_catalog.pg_replication_slots AS s ON s.slot_name = %s
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
    #: The process that reads the slot now; None: nobody does.
    active_pid: int | None
    #: Transactions that committed before it are not sent again.  None while a slot is being made.
    confirmed_flush_lsn: Lsn | None
    #: The server keeps the WAL from here on.  None: it was lost.
    restart_lsn: Lsn | None
    #: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
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

    def check_plugin(self) -> None:
        """Refuse a slot that sends something else.

        :raises WrongSlot: it is physical, or its plugin is not ``pgoutput``.
        """
        if self.slot_type != "logical":
            raise WrongSlot("The slot is physical.", slot=self.name, advice="name a logical slot.")
        if self.plugin != PLUGIN:
            raise WrongSlot(
                f"The slot uses the output plugin {self.plugin!r}.",
                slot=self.name,
                advice=f"use a slot of the plugin {PLUGIN}. The first run creates one that does not exist.",
            )

    def check_kept(self) -> None:
        """Refuse a slot that the server has given up.

        :raises SlotLost: the server removed WAL that the slot needed.
        """
        if self.is_lost:
            raise lost_slot(self.name, self.confirmed_flush_lsn, self.invalidation_reason)


def lost_slot(name: str, confirmed: Lsn | str | None, reason: str | None = None) -> SlotLost:
    """The error for a slot that the server has given up.

    :param reason: its ``invalidation_reason``; None: not known.
    """
    return SlotLost(
        f"The slot was invalidated ({reason or 'WAL removed'}): changes that were not read are gone.",
        slot=name,
        lsn=confirmed,
        advice="run once with on_slot_lost='copy' (stage operator and sensor), which makes a new slot and"
        " copies the tables again; raise max_slot_wal_keep_size (PostgreSQL 18: idle_replication_slot_timeout"
        " too) or run more often.",
    )


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A slot, if it exists, and how far the server is ahead of it."""

    slot_name: str
    #: Where the server writes, at the same moment.
    current_lsn: Lsn
    #: WAL between the slot and the server, of all databases, published or not. None: there is no slot, or it
    #: is being made.
    lag_bytes: int | None
    #: None: there is no such slot yet.
    slot: SlotFacts | None
    #: Whether the server replays the WAL of another one. Then that one may have written more.
    is_standby: bool = False

    @classmethod
    def from_row(
        cls, slot_name: str, row: Sequence[Any], offset: LsnOffset = NO_OFFSET
    ) -> SlotStatus:
        """Read the one row of ``SLOT_QUERY``.

        :param offset: of the server, in the lake.
        """
        current, lag_bytes, is_standby, name, *columns = row
        slot = None if name is None else _slot(slot_name, columns, offset)
        return cls(slot_name, offset.of_lake(current), lag_bytes, slot, is_standby)

    @property
    def confirmed_flush_lsn(self) -> Lsn | None:
        """The slot's position; None: it has none yet."""
        return None if self.slot is None else self.slot.confirmed_flush_lsn

    def check(self) -> None:
        """Refuse a slot that no run can ever read.

        :raises SlotLost: the server removed WAL that the slot needed.
        :raises WrongSlot: it is physical, or its plugin is not ``pgoutput``.
        """
        if self.slot is not None:
            self.slot.check_plugin()
            self.slot.check_kept()

    def is_worth_a_run(self, min_lag_bytes: int, *, interval_elapsed: bool) -> bool:
        """Whether a run would have something to do.

        A slot that does not exist is worth a run: the first run creates it. A slot that somebody reads is
        not.

        :param min_lag_bytes: that much WAL is always worth a run.
        :param interval_elapsed: the longest wait is over, so any WAL at all is.
        """
        if self.slot is None:
            return True
        if self.slot.active_pid is not None or self.lag_bytes is None:
            return False
        return self.lag_bytes >= max(min_lag_bytes, 1) or (interval_elapsed and self.lag_bytes > 0)


def _slot(name: str, columns: Sequence[Any], offset: LsnOffset) -> SlotFacts:
    """The slot's part of the row of ``SLOT_QUERY``."""
    (
        plugin, slot_type, database, temporary, active_pid, confirmed, restart, wal_status, safe_wal_size,
        two_phase, reason, synced, keep_mib, failover, idle_timeout_seconds, idle_seconds,
    ) = columns  # fmt: skip
    return SlotFacts(
        name=name,
        plugin=plugin,
        slot_type=slot_type,
        database=database,
        temporary=temporary,
        active_pid=active_pid,
        confirmed_flush_lsn=offset.of_lake(confirmed) if confirmed else None,
        restart_lsn=offset.of_lake(restart) if restart else None,
        wal_status=wal_status,
        safe_wal_size=safe_wal_size,
        two_phase=two_phase,
        invalidation_reason=reason,
        synced=synced,
        keep_size=keep_mib << 20 if keep_mib >= 0 else None,
        failover=failover,
        idle_timeout_seconds=idle_timeout_seconds or None,
        idle_seconds=idle_seconds,
    )
