"""The quarantine in memory: which rows were not written, see ``apply/rows/quarantine.py``.

When entries are written and removed is the product's (``apply/publish.py``). Which ones, is this double's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.rows.quarantine import Notes
from airflow_provider_pgoutput.batch.checkpoint import QUARANTINE_TABLE
from airflow_provider_pgoutput.crash_points import reach
from tests.simulation.iceberg import MAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.world import World

QUARANTINE_NAME = TableName("lake", "ns", QUARANTINE_TABLE).sql


class Entry(NamedTuple):
    """The newest change in a batch of a row that could not be written."""

    relation_oid: int
    key: int
    commit_lsn: int
    seq: int


def entries(world: World, relation_oid: int) -> set[Entry]:
    """The entries of a table."""
    found = world.catalog.tables.get(QUARANTINE_NAME)
    rows = () if found is None or found.main is None else found.main.rows or ()
    return {each for each in rows if each.relation_oid == relation_oid}


class RowNotes(Notes):
    """See ``Notes``."""

    def __init__(self, world: World, relation_oid: int, floor: Any, *, keeps: bool) -> None:
        super().__init__(floor, keeps)
        self._world, self._oid = world, relation_oid
        #: By key: the newest change of a row that cannot be written.
        self.lost: dict[int, tuple[int, int]] = {}
        #: Keys that the batch has the whole row of, or deletes.
        self.whole: set[int] = set()

    @property
    def held(self) -> set[Entry]:
        """The entries that the table has now."""
        return entries(self._world, self._oid)

    @property
    def has_changes(self) -> bool:
        """See ``Notes``."""
        ends = self.ends_some or any(each.key in self.whole for each in self.held)
        return bool(self.lost) or ends

    def anew(self) -> None:
        """The table has other rows now."""
        self.begin_anew(ends_some=bool(self.held))
        self.lost, self.whole = {}, set()

    def note(self, key: int, commit_lsn: int, seq: int) -> None:
        """A row of which the batch does not have all values, and the target nothing."""
        self.lost[key] = commit_lsn, seq
        self.whole.discard(key)

    def is_whole(self, key: int) -> None:
        """The whole row is known, or it is gone."""
        self.lost.pop(key, None)
        self.whole.add(key)

    def record(self, spark: Any, batch: Any, target: Any) -> None:
        """See ``Notes``: the same statements in the same order."""
        if self.held:
            self._keep(
                lambda each: not self.begins_anew and each.commit_lsn < int(self.floor),
            )
        if self.whole and self.held:
            self._keep(lambda each: each.key not in self.whole)
        reach("quarantine.after_delete")
        if not self.lost:
            return
        catalog = self._world.catalog
        catalog.create(QUARANTINE_NAME, {})
        added = tuple(Entry(self._oid, key, *place) for key, place in sorted(self.lost.items()))
        catalog.commit_rows(
            QUARANTINE_NAME, MAIN, lambda rows: (*(rows or ()), *added), {}, "append to"
        )
        reach("quarantine.after_append")

    def _keep(self, keeps: Callable[[Entry], bool]) -> None:
        def kept(rows: Any) -> Any:
            return tuple(
                each for each in rows or () if each.relation_oid != self._oid or keeps(each)
            )

        self._world.catalog.commit_rows(QUARANTINE_NAME, MAIN, kept, {}, "delete from")
