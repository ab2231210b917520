"""Tables of which a batch passes changes over while the stream is read, see ``batch/passed_over.py``.

What is not here: changes of the columns that cannot be followed, which are found when all was read
(``schema/gone.py``).
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.passed_over import PassedOver

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock

_BEFORE = "An earlier batch passed changes of the table over."
_IS_GONE = (
    "The table was dropped or is not published any more: the lake keeps it as it was before that."
)
_IS_PUBLISHED = "copy_tables=[{!r}] brings the table in again."

log = logging.getLogger(__name__)


def _is_published(_relation_oid: int) -> bool:
    return True


@dataclass(slots=True)
class Passing:
    """The tables of one batch whose changes are passed over."""

    #: Since which LSN earlier batches pass changes over, by OID.
    before: Mapping[int, str] = field(default_factory=dict)
    #: Whether the publications have a table now; asked when a change of it is refused.
    is_published: Callable[[int], bool] = _is_published
    #: The tables that the lake has, by OID, as it calls them.
    lake_names: Mapping[int, str] = field(default_factory=dict)
    found: dict[int, PassedOver] = field(default_factory=dict)

    def takes(self, block: ChangeBlock, *, is_copied: bool) -> bool:
        """Whether the changes of a block are passed over.

        :param is_copied: whether the batch copies the table, which ends what earlier batches decided.
        """
        oid = block.relation.oid
        if oid in self.before and not is_copied and oid not in self.found:
            self.found[oid] = PassedOver(oid, block.relation.name, self.before[oid], 0, _BEFORE)
        if oid not in self.found:
            return False
        self.count(oid, len(block))
        return True

    def begin(self, relation_oid: int, name: str, lsn: Lsn, reason: str) -> None:
        """Pass over what committed at ``lsn`` or later; where it is earlier than before, from there on."""
        known = self.found.get(relation_oid)
        changes = 0 if known is None else known.changes
        self.found[relation_oid] = PassedOver(relation_oid, name, str(lsn), changes, reason)

    def report(self, copied: Collection[int]) -> tuple[PassedOver, ...]:
        """What the manifest says, and the log in warnings.

        :param copied: OIDs of the tables that the batch copies.
        """
        for each in self.found.values():
            log.warning(
                "%s: its changes from LSN %s on are passed over, %d in this batch. %s %s",
                each.table_name,
                each.since_lsn,
                each.changes,
                each.reason,
                _IS_PUBLISHED.format(each.table_name)
                if self.is_published(each.relation_oid)
                else _IS_GONE,
            )
        ended = [
            PassedOver(oid, "", None)
            for oid in self.before
            if oid in copied and oid not in self.found
        ]
        return tuple(sorted([*self.found.values(), *ended], key=lambda each: each.relation_oid))

    def count(self, relation_oid: int, changes: int) -> None:
        """Count changes that are passed over."""
        known = self.found[relation_oid]
        self.found[relation_oid] = dataclasses.replace(known, changes=known.changes + changes)
