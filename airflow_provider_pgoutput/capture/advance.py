"""The last step of a run: lets the server forget what the lake has, or what is sealed. Never more than that.

Source: https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn, LsnOffset
from airflow_provider_pgoutput.capture.slot.replication_slot import check_slot, read_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.source.errors import of_slot, translated
from airflow_provider_pgoutput.capture.source.timelines import (
    check_system,
    check_timeline,
    check_written,
)
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    SlotNotFound,
    SourceError,
    SourceUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.capture.slot.facts import SlotFacts
    from airflow_provider_pgoutput.capture.source.catalog import Server
    from airflow_provider_pgoutput.capture.source.session import Session

log = logging.getLogger(__name__)

_WAITS = 100
_WAIT_SECONDS = 0.1


class MovableSlot(Protocol):
    """What the server is asked when a slot is moved."""

    slot_name: str

    def server(self) -> Server:
        """The system's identity, and how far the server has written."""
        ...

    def facts(self) -> SlotFacts | None:
        """The slot as it is now; None: there is none."""
        ...

    def move(self, lsn: Lsn) -> Lsn:
        """Confirm everything before ``lsn``; return where the slot is then."""
        ...


class SlotOnServer:
    """A slot of a real server."""

    def __init__(
        self,
        session: Session,
        conninfo: str | Mapping[str, Any],
        slot_name: str,
        system_identifier: str | None = None,
        offset: LsnOffset = NO_OFFSET,
    ) -> None:
        self._session, self._conninfo = session, conninfo
        self._system_identifier, self._offset = system_identifier, offset
        self.slot_name = slot_name

    def server(self) -> Server:
        """See ``MovableSlot``."""
        found = read_server(self._session, self._conninfo)
        name = self._system_identifier
        return found if name is None else found.as_in_lake(name, self._offset)

    def facts(self) -> SlotFacts | None:
        """See ``MovableSlot``."""
        return read_slot(self._session, self.slot_name, self._offset)

    def wait_for_its_reader(self) -> None:
        """Wait a few seconds for a session that read the slot.

        The server ends it a little after its client.
        """
        for _ in range(_WAITS):
            facts = self.facts()
            if facts is None or facts.active_pid is None:
                return
            time.sleep(_WAIT_SECONDS)

    def move(self, lsn: Lsn) -> Lsn:
        """See ``MovableSlot``."""
        with translated(slot=self.slot_name):
            row = self._session.execute(
                "SELECT end_lsn::pg_catalog.text FROM pg_catalog.pg_replication_slot_advance(%s, %s)",
                (self.slot_name, str(self._offset.of_server(lsn))),
            ).fetchone()
        assert row is not None, "the function returns a row"
        return self._offset.of_lake(row[0])


def advance_slot(
    conninfo: str | Mapping[str, Any],
    slot_name: str,
    checkpoint_lsn: Lsn,
    system_identifier: str | None = None,
    timeline: int | None = None,
    offset: LsnOffset = NO_OFFSET,
) -> Lsn:
    """Move the slot's ``confirmed_flush_lsn`` to the checkpoint.

    A slot that is there already, or past it, is not moved: a later run was faster. The server's answer is
    checked, because the server stops early, without an error, if it is asked for an LSN that it has not
    reached.

    :param checkpoint_lsn: how far the lake is. It must come from the checkpoint table.
    :param system_identifier: the system of the checkpoint; None: not checked.
    :param timeline: the one on which the lake's last batch was staged; None: not checked.
    :param offset: what the lake adds to LSNs of the system.
    :returns: where the slot is now.
    :raises SlotNotFound: there is no such slot.
    :raises SlotLost: the server removed WAL that the slot needed.
    :raises SlotBusy: another session reads it.
    :raises SourceChanged: the source has not written that far, or its history left the lake's history before
        the checkpoint. It is another source, or it went back.
    :raises SourceUnavailable: it does not answer, or moves the slot less far than asked.
    """
    check_slot_name(slot_name)
    if checkpoint_lsn <= 0:
        raise ConfigurationError("0/0 is not a checkpoint.", slot=slot_name)
    with of_slot(slot_name), sessions.connect(conninfo, slot=slot_name) as session:
        slot = SlotOnServer(session, conninfo, slot_name, system_identifier, offset)
        server = slot.server()
        check_system(server, system_identifier, checkpoint_lsn, slot_name)
        check_timeline(conninfo, server, then=timeline, end_lsn=checkpoint_lsn, slot=slot_name)
        return move_slot(slot, checkpoint_lsn, system_identifier)


def move_slot(slot: MovableSlot, checkpoint_lsn: Lsn, system_identifier: str | None) -> Lsn:
    """Decide whether the slot may and must be moved, and move it; see ``advance_slot``."""
    slot_name, server = slot.slot_name, slot.server()
    check_system(server, system_identifier, checkpoint_lsn, slot_name)
    facts = slot.facts()
    if facts is None:
        raise SlotNotFound(
            "The slot does not exist.",
            slot=slot_name,
            lsn=checkpoint_lsn,
            advice="find out who dropped it; changes since then are lost: run once with"
            " on_slot_lost='copy'.",
        )
    confirmed = check_slot(facts, server, two_phase=True)
    if confirmed >= checkpoint_lsn:
        log.info("Slot %s is at %s already.", slot_name, confirmed)
        return confirmed
    check_written(server, checkpoint_lsn, slot_name)
    reach("advance.before_move")
    try:
        reached = slot.move(checkpoint_lsn)
    except SourceError:
        # The server refuses to move a slot back. A later run was faster just now.
        facts = slot.facts()
        if facts is None:
            raise
        confirmed = check_slot(facts, server, two_phase=True)
        if confirmed < checkpoint_lsn:
            raise
        log.info("Slot %s is at %s already.", slot_name, confirmed)
        return confirmed
    reach("advance.after_move")
    if reached < checkpoint_lsn:
        # A moment ago it reported a later LSN. So it was restarted, or another server answers now. The next
        # attempt reads the new LSN, and refuses a source that went back.
        raise SourceUnavailable(
            f"The server moved the slot to {reached} only.",
            slot=slot_name,
            lsn=checkpoint_lsn,
            advice="nothing, if a later attempt succeeds; else as its error says.",
        )
    log.info("Slot %s moved from %s to %s.", slot_name, confirmed, reached)
    return reached
