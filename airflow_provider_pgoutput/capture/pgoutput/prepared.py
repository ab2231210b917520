"""Prepared transactions of one read: which of them wait, and where they ended.

A transaction is known by its ID and gid together, because a gid can be used again once it is free. Its
content waits from its Prepare, perhaps in an earlier batch, until ``COMMIT PREPARED`` or ``ROLLBACK
PREPARED``. ``stream/two_phase.py`` reads the content of earlier batches.

Source: https://www.postgresql.org/docs/current/logicaldecoding-two-phase-commits.html
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.spool import Spool
    from airflow_provider_pgoutput.capture.pgoutput.stream_messages import (
        CommitPrepared,
        Prepare,
        RollbackPrepared,
    )

_Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A prepared transaction and its content."""

    prepare: Prepare
    spool: Spool

    @property
    def key(self) -> _Key:
        """What identifies it."""
        return (self.prepare.xid, self.prepare.gid)


class PreparedTransactions:
    """The prepared transactions that wait, shared by the threads of a read.

    :param start: of the batch.
    :param earlier: transactions that waited at the end of the batch before.
    :param commits_without_prepare: whether the server sends ``COMMIT PREPARED`` of transactions that changed
        nothing, without a Prepare (before 15.19, 16.15 and 17.11).
    """

    def __init__(
        self, start: Lsn, earlier: Iterable[Waiting], *, commits_without_prepare: bool
    ) -> None:
        self._start = start
        self._commits_without_prepare = commits_without_prepare
        self._lock = threading.Lock()
        self._waiting = {each.key: each for each in earlier}
        #: By transaction: the LSN at which it ended.
        self._ended: dict[_Key, int] = {}
        #: Where transactions of this read were prepared and committed, and those that will come once more.
        self._seen: set[Lsn] = set()
        self._again: set[Lsn] = set()
        #: How many ``COMMIT PREPARED`` came of transactions that changed nothing.
        self.empty = 0

    def put(self, prepare: Prepare, spool: Spool) -> None:
        """Add a transaction that was prepared."""
        with self._lock:
            if prepare.prepare_lsn in self._again:
                spool.discard()
                return
            self._seen.add(prepare.prepare_lsn)
            one = Waiting(prepare, spool)
            self._ended.pop(one.key, None)
            self._waiting[one.key] = one

    def committed(self, message: CommitPrepared) -> Spool | None:
        """The content of a transaction that commits.

        :return: None: an earlier batch has it, this read returned it already, or it is empty.
        :raises ProtocolError: its content was never seen.
        """
        key = (message.xid, message.gid)
        with self._lock:
            if message.commit.commit_lsn in self._again:
                return None
            self._seen.add(message.commit.commit_lsn)
            found = self._waiting.get(key)
            if found is not None:
                self._ended[key] = message.commit.commit_lsn + 1
                return found.spool
            if message.commit.commit_lsn < self._start:
                return None
            if self._commits_without_prepare:
                self.empty += 1
                return None
        raise ProtocolError(
            f"COMMIT PREPARED of transaction {message.xid}, whose content came neither in this batch nor "
            "in an earlier one.",
            lsn=message.commit.commit_lsn,
            advice="the batch in which it was prepared was staged without two_phase, or its files are "
            "gone: drop the slot and run with on_slot_lost='copy'.",
        )

    def read_again(self) -> None:
        """Everything that this read has had so far will come once more. Skip it then."""
        with self._lock:
            self._again = set(self._seen)

    def rolled_back(self, message: RollbackPrepared) -> None:
        """End a transaction, wherever the batch ends: it will never commit.

        An unknown one changed nothing.
        """
        with self._lock:
            key = (message.xid, message.gid)
            if key in self._waiting:
                self._ended[key] = 0

    def open_at(self, end: Lsn) -> list[Waiting]:
        """The transactions that were prepared before ``end`` and were still open there, oldest first."""
        with self._lock:
            found = [
                each
                for key, each in self._waiting.items()
                if each.prepare.prepare_lsn < end and self._ended.get(key, end + 1) > end
            ]
        return sorted(found, key=lambda each: each.prepare.prepare_lsn)

    def settle(self, end: Lsn) -> None:
        """Forget transactions that ended at or before ``end``. The batch reaches at least that far."""
        with self._lock:
            for key in [key for key, ended in self._ended.items() if ended <= end]:
                del self._ended[key]
                self._waiting.pop(key).spool.discard()
