"""Which message may follow which in protocol versions 1 to 4: one table, which every decoder reads.

An event is a message's tag. There is one exception: a transactional logical message is ``M``, and any other
logical message is ``m``. The server sends ``m`` as soon as it reads it in the WAL, so it comes between
transactions. An origin may not follow a change, as in PostgreSQL's own apply worker. A pair that is not in
the table is a ProtocolError. The content of messages does not matter here.

``reassemble.py`` uses the whole table, and makes whole transactions. The decoders after it need only the part
of version 1.

Source: https://www.postgresql.org/docs/current/protocol-logical-replication.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.pgoutput.messages import Begin, Commit

OUTSIDE: Final = "outside a transaction"
BEGUN: Final = "at the start of a transaction"
CHANGING: Final = "after a change in a transaction"
BLOCK_STARTED: Final = "at the start of a stream block"
STREAMING: Final = "after a change in a stream block"
PREPARE_BEGUN: Final = "at the start of a prepared transaction"
PREPARING: Final = "after a change in a prepared transaction"


def _inside(started: str, changing: str, end: str) -> dict[str, dict[str, str]]:
    """Rows of the table for messages between the first and the last message of a unit."""
    changes = dict.fromkeys("IUDTM", changing)
    announcements = dict.fromkeys("RY", started)
    return {
        started: {"O": started, **announcements, **changes, end: OUTSIDE},
        changing: {**dict.fromkeys("RY", changing), **changes, end: OUTSIDE},
    }


NEXT_STATE: Final[dict[str, dict[str, str]]] = {
    OUTSIDE: {
        "B": BEGUN,
        "m": OUTSIDE,
        # Stream commit and stream abort end a transaction whose blocks came before.
        "S": BLOCK_STARTED,
        "c": OUTSIDE,
        "A": OUTSIDE,
        # Commit prepared, rollback prepared, stream prepare.
        "b": PREPARE_BEGUN,
        "K": OUTSIDE,
        "r": OUTSIDE,
        "p": OUTSIDE,
        # Without a Begin Prepare: servers 18.0 to 18.5 send it for a transaction that changed nothing.
        "P": OUTSIDE,
    },
    **_inside(BEGUN, CHANGING, "C"),
    **_inside(BLOCK_STARTED, STREAMING, "E"),
    **_inside(PREPARE_BEGUN, PREPARING, "P"),
}

#: The protocol version that introduced an event; 1 if the event is not here.
FIRST_VERSION: Final = {**dict.fromkeys("SEcA", 2), **dict.fromkeys("bPKrp", 3)}

#: Events that take a number in the transaction, see ``batch/changes.py``. A logical message takes none: the
#: server sends it only on request, and positions must not depend on that.
COUNTED: Final = "IUDT"

#: Name of the message behind an event, for errors.
EVENT_NAMES: Final = {
    "B": "Begin",
    "C": "Commit",
    "O": "Origin",
    "R": "Relation",
    "Y": "Type",
    "I": "Insert",
    "U": "Update",
    "D": "Delete",
    "T": "Truncate",
    "M": "transactional Message",
    "m": "non-transactional Message",
    "S": "Stream Start",
    "E": "Stream Stop",
    "c": "Stream Commit",
    "A": "Stream Abort",
    "b": "Begin Prepare",
    "P": "Prepare",
    "K": "Commit Prepared",
    "r": "Rollback Prepared",
    "p": "Stream Prepare",
}


def events_of(version: int) -> tuple[str, ...]:
    """All events that a stream of a protocol version can have."""
    return tuple(sorted(each for each in EVENT_NAMES if FIRST_VERSION.get(each, 1) <= version))


def next_states(version: int) -> dict[str, dict[str, str]]:
    """The part of the table that a stream of a protocol version can reach."""
    events = events_of(version)
    rows = {
        state: {event: target for event, target in row.items() if event in events}
        for state, row in NEXT_STATE.items()
    }
    reached, waiting = {OUTSIDE}, [OUTSIDE]
    while waiting:
        for target in rows[waiting.pop()].values():
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return {state: row for state, row in rows.items() if state in reached}


#: What the decoders read: whole transactions in the order of their commits.
WHOLE: Final = next_states(1)
WHOLE_EVENTS: Final = events_of(1)


def check_begin(begin: Begin, last_commit: Commit | None) -> None:
    """Check that transactions come in the order of their commits.

    :raises ProtocolError: ``begin`` lies before the end of the transaction before it.
    """
    if last_commit is not None and begin.final_lsn < last_commit.end_lsn:
        raise ProtocolError(
            f"Begin message: this transaction comes after one that ended at {last_commit.end_lsn}.",
            lsn=begin.final_lsn,
        )


def check_commit(commit: Commit, begin: Begin) -> None:
    """Check that a commit ends the open transaction.

    :raises ProtocolError: their LSNs differ.
    """
    if commit.commit_lsn != begin.final_lsn:
        raise ProtocolError(
            f"Commit message: its commit_lsn is {commit.commit_lsn}, not that of its Begin.",
            lsn=begin.final_lsn,
        )
