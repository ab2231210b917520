"""Which message may follow which: one table, read by the reference decoder and by the fast one.

An event is a message's tag, except that a transactional logical message is ``M`` and another one ``m``:
the server sends the latter as soon as it meets it in the WAL, hence between transactions. An origin may
not follow a change, as in the server's own apply worker. A pair that is not in the table is a
ProtocolError. Nothing here looks at the content of a message.

The protocol versions 2 to 4 add states for streamed and prepared transactions; they are not here.

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

NEXT_STATE: Final[dict[str, dict[str, str]]] = {
    OUTSIDE: {"B": BEGUN, "m": OUTSIDE},
    BEGUN: {
        "O": BEGUN,
        "R": BEGUN,
        "Y": BEGUN,
        "I": CHANGING,
        "U": CHANGING,
        "D": CHANGING,
        "T": CHANGING,
        "M": CHANGING,
        "C": OUTSIDE,
    },
    CHANGING: {
        "R": CHANGING,
        "Y": CHANGING,
        "I": CHANGING,
        "U": CHANGING,
        "D": CHANGING,
        "T": CHANGING,
        "M": CHANGING,
        "C": OUTSIDE,
    },
}

#: Events that take a number in the transaction, see ``batch/changes.py``.
COUNTED: Final = "IUDTM"

EVENTS: Final = tuple(sorted({event for row in NEXT_STATE.values() for event in row}))

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
}


def check_begin(begin: Begin, last_commit: Commit | None) -> None:
    """Demand that transactions come in the order of their commits.

    :raises ProtocolError: when ``begin`` lies before the end of the transaction before it.
    """
    if last_commit is not None and begin.final_lsn < last_commit.end_lsn:
        raise ProtocolError(
            f"Begin message: this transaction comes after one that ended at {last_commit.end_lsn}.",
            lsn=begin.final_lsn,
        )


def check_commit(commit: Commit, begin: Begin) -> None:
    """Demand that a commit ends the transaction that was begun.

    :raises ProtocolError: when the LSNs differ.
    """
    if commit.commit_lsn != begin.final_lsn:
        raise ProtocolError(
            f"Commit message: its commit_lsn is {commit.commit_lsn}, not that of its Begin.",
            lsn=begin.final_lsn,
        )
