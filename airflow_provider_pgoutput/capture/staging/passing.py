"""Tables whose changes a batch passes over while the stream is read, see ``batch/passed_over.py``.

Changes of columns that cannot be followed are found after everything was read (``schema/gone.py``).
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.passed_over import PassedOver, RefusedCopy
from airflow_provider_pgoutput.capture.staging.tables import OR_LEAVE_OUT
from airflow_provider_pgoutput.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Set

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock
    from airflow_provider_pgoutput.errors import PgoutputError

_BEFORE = "An earlier batch passed changes of the table over."
_IS_GONE = (
    "The table was dropped or is not published any more: the lake keeps it as it was before that."
)
_IS_PUBLISHED = "copy_tables=[{!r}] brings the table in again."
_WAY_BACK = (
    "First remove the cause. Then copy the table (copy_tables=[{!r}]); copy a change log into a new target."
    " The changes from this LSN until the copy are not staged. So no replay brings them."
)
#: The advice of an error may end with another way: to leave the transaction out. It helps only before the
#: batch is staged, so it is cut off.
_LEAVE_OUT = OR_LEAVE_OUT.partition("{")[0]

log = logging.getLogger(__name__)


def _nothing_known() -> None:
    return None


@dataclass(slots=True)
class Passing:
    """The tables of one batch whose changes are passed over."""

    #: By OID: the LSN, as text, from which on earlier batches pass changes over.
    before: Mapping[int, str] = field(default_factory=dict)
    #: OIDs of the tables that the publications have now; None: all. Asked when a change is refused, and
    #: for the report.
    published: Callable[[], frozenset[int] | None] = _nothing_known
    #: By OID: the names that tables have in the lake.
    lake_names: Mapping[int, str] = field(default_factory=dict)
    #: Whether a published table that is refused is set aside. If not, its error ends the run.
    sets_aside: bool = False
    #: OIDs of the tables that earlier batches set aside.
    known_aside: Set[int] = frozenset()
    #: Names of the tables whose copy is asked for.
    asked: Collection[str] = ()
    #: OIDs of the tables that are copied only because ``copy_tables`` names them. If the copy is refused,
    #: their changes are staged all the same.
    followed: Set[int] = frozenset()
    #: By OID: what this batch passes over.
    found: dict[int, PassedOver] = field(default_factory=dict)
    #: The errors of the tables that this batch sets aside, in order.
    errors: list[PgoutputError] = field(default_factory=list)
    #: The copies that are asked for and refused.
    refused_copies: list[RefusedCopy] = field(default_factory=list)

    def is_published(self, relation_oid: int) -> bool:
        """Whether the publications have a table now."""
        published = self.published()
        return published is None or relation_oid in published

    def takes(self, block: ChangeBlock, *, is_copied: bool) -> bool:
        """Return whether the changes of a block are passed over. If so, they are counted.

        :param is_copied: whether the batch copies the table. That ends what earlier batches decided.
        """
        oid = block.relation.oid
        if oid in self.before and not is_copied and oid not in self.found:
            self.found[oid] = PassedOver(oid, block.relation.name, self.before[oid], 0, _BEFORE)
        if oid not in self.found:
            return False
        self.count(oid, len(block))
        return True

    def begin(self, relation_oid: int, name: str, lsn: Lsn, reason: str) -> None:
        """Pass over what commits at ``lsn`` or later.

        This replaces an earlier entry of the table, so the caller gives the earliest LSN.
        """
        known = self.found.get(relation_oid)
        changes = 0 if known is None else known.changes
        self.found[relation_oid] = PassedOver(relation_oid, name, str(lsn), changes, reason)

    def set_aside(self, relation_oid: int, name: str, lsn: Lsn, error: PgoutputError) -> None:
        """Pass over what commits at ``lsn`` or later, because the table is refused.

        :raises PgoutputError: ``error``, if ``sets_aside`` is false.
        """
        if not self.sets_aside:
            raise error
        self.errors.append(error)
        self.begin(relation_oid, name, lsn, error.reason)
        # If a retry could mend the error, its advice is about the next try. There will be none.
        retries = isinstance(error, RetryableError)
        advice = "" if retries else (error.advice or "").partition(_LEAVE_OUT)[0]
        self.found[relation_oid] = dataclasses.replace(
            self.found[relation_oid],
            error=type(error).__name__,
            advice=" ".join(filter(None, (advice, _WAY_BACK.format(name)))),
        )

    def leave_out(self, relation_oid: int, name: str, lsn: Lsn, error: PgoutputError) -> None:
        """Set a table aside that has no row in the batch. If an earlier batch did so, this only warns.

        It also only warns if ``followed`` has the table. Then the table goes on without the copy.

        :raises PgoutputError: ``error``, if ``sets_aside`` is false.
        """
        if self.sets_aside and name in self.asked:
            refused = RefusedCopy(name, type(error).__name__, error.reason, error.advice or "")
            self.refused_copies.append(refused)
        if self.sets_aside and relation_oid in self.followed:
            log.warning(
                "%s is not copied, as copy_tables asks. It is followed as before. %s", name, error
            )
            return
        if self.sets_aside and relation_oid in self.known_aside:
            log.warning("%s is still set aside. %s", name, error)
            return
        self.set_aside(relation_oid, name, lsn, error)

    def is_gone(self, relation_oid: int) -> None:
        """Note that a table is gone. It is passed over, but not set aside, because nobody can copy it."""
        if (known := self.found.get(relation_oid)) is not None:
            self.found[relation_oid] = dataclasses.replace(known, error="", advice="")

    def report(self, copied: Collection[int]) -> tuple[PassedOver, ...]:
        """The entries for the manifest. Each table that is passed over is also logged as a warning.

        :param copied: OIDs of the tables that the batch copies.
        """
        published = self.published() if self.found else None
        for each in self.found.values():
            if each.error:
                log.warning(
                    "%s is set aside: its changes from LSN %s on are not staged, %d in this batch, and the"
                    " others go on. %s: %s What to do: %s",
                    each.table_name,
                    each.since_lsn,
                    each.changes,
                    each.error,
                    each.reason,
                    each.advice,
                )
                continue
            log.warning(
                "%s: its changes from LSN %s on are passed over, %d in this batch. %s %s",
                each.table_name,
                each.since_lsn,
                each.changes,
                each.reason,
                _IS_PUBLISHED.format(each.table_name)
                if published is None or each.relation_oid in published
                else _IS_GONE,
            )
        ended = [PassedOver(oid, "", None) for oid in self.before if oid in copied]
        # A table may have two entries: its copy ends what earlier batches decided, and a change after the
        # copy is passed over again. They stay in this order.
        return tuple(sorted([*ended, *self.found.values()], key=lambda each: each.relation_oid))

    def count(self, relation_oid: int, changes: int) -> None:
        """Count changes that are passed over."""
        known = self.found[relation_oid]
        self.found[relation_oid] = dataclasses.replace(known, changes=known.changes + changes)
