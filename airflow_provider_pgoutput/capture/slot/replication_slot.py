"""The replication slot: it is looked at, checked before a read, made with an exported snapshot, and dropped.

``facts.py`` says what the server knows of a slot. ``capture/stream`` reads the slot's changes.
``advance.py`` moves the pipeline's slot.

Source: https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.capture.slot.facts import (
    PLUGIN,
    SLOT_QUERY,
    SlotFacts,
    SlotStatus,
)
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.source.errors import translated
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    SlotAheadOfCheckpoint,
    SlotBusy,
    SourceChanged,
    SourceLocked,
    SourceUnavailable,
    WrongSlot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider_pgoutput.capture.source.catalog import Server
    from airflow_provider_pgoutput.capture.source.session import Session


log = logging.getLogger(__name__)


@dataclass(slots=True)
class ExportedSnapshot:
    """A new slot, and the snapshot of the database at exactly the slot's first position.

    Other sessions can take the snapshot over while this object's session stays open and idle.
    """

    consistent_point: Lsn
    name: str
    _session: Session

    def close(self) -> None:
        """Give up the snapshot, and with it a temporary slot."""
        self._session.close()

    def __enter__(self) -> ExportedSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_slot_status(session: Session, slot_name: str, offset: LsnOffset = NO_OFFSET) -> SlotStatus:
    """How the slot stands now; it need not exist.

    :param offset: of the server, in the lake.
    """
    with translated(slot=slot_name):
        row = session.execute(SLOT_QUERY, (check_slot_name(slot_name),)).fetchone()
    assert row is not None, "the query has a row of its own"
    return SlotStatus.from_row(slot_name, row, offset)


def read_slot(session: Session, slot_name: str, offset: LsnOffset = NO_OFFSET) -> SlotFacts | None:
    """The slot as it is now; None: there is none of this name.

    :param offset: of the server, in the lake.
    """
    return read_slot_status(session, slot_name, offset).slot


def check_kind(slot: SlotFacts, server: Server) -> None:
    """Refuse a slot that no pipeline can use.

    :raises WrongSlot: it is physical, temporary, or of another plugin or database.
    """
    slot.check_plugin()
    if slot.database != server.database:
        raise WrongSlot(
            f"The slot belongs to database {slot.database!r}, the connection is to "
            f"{server.database!r}.",
            slot=slot.name,
            advice="connect to the slot's database.",
        )
    if slot.temporary:
        raise WrongSlot(
            "The slot is temporary: it ends with the session that made it.",
            slot=slot.name,
            advice="use a permanent slot.",
        )


def check_slot(slot: SlotFacts, server: Server, *, two_phase: bool = False) -> Lsn:
    """Refuse a slot that this pipeline cannot read; return its confirmed position.

    :param two_phase: whether prepared transactions are read at PREPARE TRANSACTION.

    :raises WrongSlot: see ``check_kind``; or it is synchronised, or two-phase although that was not asked
        for.
    :raises SlotLost: the server removed WAL that the slot needed.
    :raises SlotBusy: another session reads it, or it is still being made.
    """
    check_kind(slot, server)
    slot.check_kept()
    if slot.synced:
        raise WrongSlot(
            "The slot is synchronised from a primary and serves only after a promotion.",
            slot=slot.name,
            advice="read the slot on the primary.",
        )
    if slot.two_phase and not two_phase:
        raise WrongSlot(
            "The slot decodes prepared transactions at PREPARE (two_phase), before they commit.",
            slot=slot.name,
            advice="set two_phase, or use a slot that was never read with it; prepared transactions then "
            "come whole at COMMIT PREPARED.",
        )
    if slot.active_pid is not None:
        raise SlotBusy(
            f"Another session reads the slot (PID {slot.active_pid}).",
            slot=slot.name,
            advice="wait for it to end, or end it; this package never terminates a backend.",
        )
    if slot.confirmed_flush_lsn is None:
        raise SlotBusy("The slot is still being made.", slot=slot.name, advice="try again later.")
    return slot.confirmed_flush_lsn


def check_not_ahead(confirmed_flush_lsn: Lsn, checkpoint: Lsn, slot_name: str) -> None:
    """Refuse a slot that is past the checkpoint.

    If the server is asked for an older position, it silently starts at the slot's own one. So only this
    comparison shows that changes are missing.

    :raises SlotAheadOfCheckpoint: it is.
    """
    if confirmed_flush_lsn > checkpoint:
        raise SlotAheadOfCheckpoint(
            f"The slot is confirmed up to {confirmed_flush_lsn}, the lake only up to {checkpoint}: the "
            "changes between them cannot be read any more.",
            slot=slot_name,
            lsn=checkpoint,
            advice="find out who moved or re-created the slot; then run once with on_slot_lost='copy'.",
        )


def check_start(slot: SlotFacts, start: Lsn, server: Server) -> None:
    """Refuse a given ``start_lsn`` that the slot does not cover.

    :raises SlotAheadOfCheckpoint: the server may have recycled changes after it.
    :raises SourceChanged: the server has not written that far.
    :raises ConfigurationError: the slot decodes prepared transactions, and is not at this position.
    """
    confirmed = slot.confirmed_flush_lsn
    assert confirmed is not None, "check_slot refuses a slot without a position"
    if confirmed > start:
        raise SlotAheadOfCheckpoint(
            f"start_lsn is {start}, but the slot begins at {confirmed}: changes between them are not "
            "kept for it.",
            slot=slot.name,
            lsn=start,
            advice="make the slot first and load the tables afterwards; if you know that nothing is missing, "
            "give the slot's own position as start_lsn. Staged batches of before are applied again by"
            " PgoutputReplayOperator.",
        )
    if start > server.flush_lsn:
        raise SourceChanged(
            f"start_lsn is {start}, but the source has written up to {server.flush_lsn} only.",
            slot=slot.name,
            lsn=start,
            advice="give the position of this source, in this source's WAL, at which the load was begun.",
        )
    if slot.two_phase and start != confirmed:
        raise ConfigurationError(
            "A slot with two_phase sends what was prepared before start_lsn in part only.",
            slot=slot.name,
            lsn=start,
            advice=f"load the tables as they were at the slot's position, {confirmed}, or use a slot "
            "without two_phase.",
        )


def check_two_phase_start(slot: SlotFacts, checkpoint: Lsn) -> None:
    """Refuse to switch a slot to two_phase while it is behind the lake.

    From its position on the server sends prepared transactions at PREPARE. One that was prepared between that
    position and the checkpoint would have to be staged before the slot passes it.

    :raises SlotBusy: until the slot is at the checkpoint.
    """
    if not slot.two_phase and slot.confirmed_flush_lsn != checkpoint:
        raise SlotBusy(
            f"two_phase is switched on at the checkpoint only; the slot is at {slot.confirmed_flush_lsn}.",
            slot=slot.name,
            lsn=checkpoint,
            advice="run the task that advances the slot, then this one again.",
        )


def create_slot(
    conninfo: str | Mapping[str, Any],
    slot_name: str,
    server: Server,
    *,
    temporary: bool = False,
    two_phase: bool = False,
    failover: bool = False,
    most_seconds: float | None = None,
) -> ExportedSnapshot:
    """Make a logical slot, and export the snapshot of its first position.

    The server waits until all open transactions have ended, so none can lie across that position. Prepared
    transactions are open, too, and somebody has to end them. A warning says that they are waited for. Whoever
    reads in the snapshot has to wait for the transactions in it, see ``commit_wait.py``.

    Source: https://www.postgresql.org/docs/current/protocol-replication.html

    :param server: the run's server. ``conninfo`` has to lead to it.
    :param failover: let standbys synchronise the slot; version 17 and later.
    :param most_seconds: the longest wait; None: it has no limit.
    :raises SourceLocked: open transactions did not end in that time. There is no slot then.
    :raises MissingPrivilege: the role lacks REPLICATION.
    :raises ConfigurationError: ``wal_level`` or the number of slots does not allow it, or ``conninfo`` leads
        to another server or database.
    :raises SourceUnavailable: the server was promoted since the run began.
    """
    session = sessions.connect(conninfo, replication=True, slot=slot_name)
    try:
        statement = sql.SQL(
            "CREATE_REPLICATION_SLOT {} {}LOGICAL {} (SNAPSHOT 'export'{}{})"
        ).format(
            sql.Identifier(check_slot_name(slot_name)),
            sql.SQL("TEMPORARY " if temporary else ""),
            sql.Identifier(PLUGIN),
            sql.SQL(", TWO_PHASE" if two_phase else ""),
            sql.SQL(", FAILOVER" if failover else ""),
        )
        _check_same(server, read_server(session, conninfo), slot_name)
        with translated(slot=slot_name):
            _warn_of_prepared(session, slot_name)
            _name_writers(session, slot_name)
            with _limited(session, most_seconds, slot_name):
                row = session.execute(statement).fetchone()
        assert row is not None, "CREATE_REPLICATION_SLOT answers with a row"
        return ExportedSnapshot(server.lsn_offset.of_lake(row[1]), row[2], session)
    except BaseException:
        session.close()
        raise


@contextlib.contextmanager
def _limited(session: Session, most_seconds: float | None, slot_name: str) -> Iterator[None]:
    """Cancel the making of a slot that takes too long.

    The server starts no ``statement_timeout`` for a replication command. A ``lock_timeout`` would count anew
    for each transaction, and a standby does not wait by locks.
    """
    if most_seconds is None:
        yield
        return
    timer = threading.Timer(most_seconds, _cancel, (session, slot_name))
    timer.daemon = True
    timer.start()
    try:
        yield
    except psycopg.errors.QueryCanceled:
        raise SourceLocked(
            f"The slot was not made in {most_seconds:g} seconds, because transactions stayed open.",
            slot=slot_name,
            advice="see pg_stat_activity and pg_prepared_xacts.",
        ) from None
    finally:
        timer.cancel()


def _cancel(session: Session, slot_name: str) -> None:
    try:
        session.cancel_safe()
    except psycopg.Error as error:
        log.warning(
            "The making of slot %s cannot be cancelled: %s", slot_name, type(error).__name__
        )


def _check_same(server: Server, found: Server, slot_name: str) -> None:
    """Refuse to make a slot on another server than the one that the run reads."""
    is_same = server.system_identifier.partition("@")[0] == found.system_identifier
    if not is_same or server.database != found.database:
        raise ConfigurationError(
            f"The direct connection leads to database {found.database!r} of system"
            f" {found.system_identifier}, and the run reads database {server.database!r} of system"
            f" {server.system_identifier}.",
            slot=slot_name,
            advice="let direct_conn_id in the connection's extras name a connection to the same server and"
            " database, past the pooler.",
        )
    if (server.timeline, server.is_standby) != (found.timeline, found.is_standby):
        raise SourceUnavailable(
            f"The direct connection leads to {_role(found)}, and the run reads {_role(server)}.",
            slot=slot_name,
            advice="nothing, if a server was promoted just now. Otherwise let direct_conn_id in the"
            " connection's extras name a connection to the server that the pooler leads to.",
        )


def _role(server: Server) -> str:
    kind = "standby" if server.is_standby else "primary"
    return f"a {kind} on timeline {server.timeline}"


def drop_slot(session: Session, slot: SlotFacts) -> None:
    """Drop a slot of ours. The server keeps nothing for it any more.

    :raises SlotBusy: somebody reads it.
    """
    with translated(slot=slot.name):
        session.execute("SELECT pg_catalog.pg_drop_replication_slot(%s)", (slot.name,))


def check_failover(server: Server, *, failover: bool) -> None:
    """Refuse a slot for standbys on a server that does not have such slots.

    :raises ConfigurationError: before version 17.
    """
    if failover and server.major < 17:
        raise ConfigurationError(
            f"The source is PostgreSQL {server.major}, and failover slots came with 17.",
            advice="set failover to false.",
        )


def allows_slots(wal_level: str, major: int) -> bool:
    """Whether a logical slot can be made. From version 19 on the first one raises ``effective_wal_level``.

    Source: https://www.postgresql.org/docs/devel/runtime-config-wal.html#GUC-WAL-LEVEL
    """
    return wal_level == "logical" or (major >= 19 and wal_level == "replica")


def check_wal_level(server: Server) -> None:
    """Refuse a source that writes too little into its WAL.

    :raises ConfigurationError: ``wal_level`` does not allow a logical slot.
    """
    if not allows_slots(server.wal_level, server.major):
        raise ConfigurationError(
            f"The source has wal_level = {server.wal_level}.",
            advice="set wal_level = logical in postgresql.conf and restart the server.",
        )


def _warn_of_prepared(session: Session, slot_name: str) -> None:
    row = session.execute(
        "SELECT pg_catalog.count(*), pg_catalog.min(prepared)::pg_catalog.text"
        " FROM pg_catalog.pg_prepared_xacts"
    ).fetchone()
    if row is not None and int(row[0]):
        log.warning(
            "Slot %s can be made only when the prepared transactions on the server have ended: %s, the"
            " oldest prepared at %s. pg_prepared_xacts names them; COMMIT or ROLLBACK PREPARED ends them.",
            slot_name,
            row[0],
            row[1],
        )


def _name_writers(session: Session, slot_name: str) -> None:
    """Log for whom the server waits before it makes a slot, as long as it waits."""
    row = session.execute(
        "SELECT pg_catalog.count(*), pg_catalog.string_agg(pid::pg_catalog.text, ', ' ORDER BY pid)"
        "  FROM pg_catalog.pg_locks"
        " WHERE locktype = 'transactionid' AND granted AND mode = 'ExclusiveLock'"
        "   AND pid <> pg_catalog.pg_backend_pid()"
    ).fetchone()
    if row is not None and int(row[0]):
        log.info(
            "Slot %s is made when the transactions that write now have ended, of %s processes: %s. "
            "pg_stat_activity says since when each is open.",
            slot_name,
            row[0],
            row[1],
        )
