"""The one metadata commit that publishes a branch: main, the tag, and the properties of what the batch wrote.

Source: https://iceberg.apache.org/javadoc/latest/ (Transaction, ManageSnapshots, UpdateProperties)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg import column_properties
from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.applied import find_applied, property_of
from airflow_provider_pgoutput.slices import texts_of_slices

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.slices import Slice

MAIN = "main"
TAG_PREFIX = "pgoutput_"
_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Publication:
    """What becomes visible of one table.

    :param name: of the table; of a shared one with a slice that has the batch then.
    :param branch: becomes the head of main, and is removed.
    :param head: the newest snapshot of the branch.
    """

    name: TableName
    branch: str
    head: int
    manifest: Manifest
    #: How long the tag stays; 0: there is none.
    tag_days: int
    #: Properties that note work which the branch has done. They are removed.
    done: frozenset[str] = frozenset()
    #: Properties that tell of the rows, and change with them.
    of_rows: Mapping[str, str] = field(default_factory=dict)
    #: Further slices that have the batch then.
    others: Sequence[Slice] = ()

    def transaction(self, java_table: Any, properties: Mapping[str, str]) -> Any:
        """The transaction, not yet committed.

        :param java_table: an ``org.apache.iceberg.Table``.
        :param properties: of the table, with those of all slices.
        :raises TableRefused: Iceberg refuses the properties.
        """
        transaction = java_table.newTransaction()
        change = transaction.manageSnapshots().fastForwardBranch(MAIN, self.branch)
        if self.tag_days and not self._has_newer_slices(properties):
            # Several pipelines write a shared table, and the LSNs of each mean nothing to the others.
            of_slot = "" if self.name.slice is None else f"{self.manifest.slot_name}_"
            tag = TAG_PREFIX + of_slot + self.manifest.end_lsn.sortable
            exists = java_table.refs().get(tag) is not None
            change = (change.replaceTag if exists else change.createTag)(tag, self.head)
            change = change.setMaxRefAgeMs(tag, self.tag_days * _DAY_MS)
        change.removeBranch(self.branch).commit()
        update = transaction.updateProperties()
        for name in self.done:
            update = update.remove(self._stored_name(name, self.name.slice))
        for name, text in self.of_rows.items():
            update = update.set(self._stored_name(name, self.name.slice), text)
        snapshot = java_table.snapshot(self.head)
        until = snapshot.summary().get(lake_names.SUMMARY_UNTIL_LSN)
        applied = property_of(self.manifest, int(snapshot.sequenceNumber()), until)
        key = lake_names.PROPERTY_APPLIED + self.manifest.slot_name
        for each in (self.name.slice, *self.others):
            update = update.set(self._stored_name(key, each), applied)
        column_properties.commit(update, self.name.target)
        return transaction

    @staticmethod
    def _stored_name(name: str, slice_: Slice | None) -> str:
        return name if slice_ is None else slice_.stored_name(name)

    def _has_newer_slices(self, properties: Mapping[str, str]) -> bool:
        """Whether other slices of the slot have a newer batch than this one.

        Example: this batch is applied again to one slice. Then main does not show the source at its LSN.
        """
        if self.name.slice is None:
            return False
        slot, ours = self.manifest.slot_name, {self.name.slice, *self.others}
        texts = texts_of_slices(properties, lake_names.PROPERTY_APPLIED + slot)
        published = (
            find_applied(slot, (), text).published for slice_, text in texts if slice_ not in ours
        )
        return any(each is not None and each.end_lsn > self.manifest.end_lsn for each in published)
