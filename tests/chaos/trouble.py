"""What people do to single tables of a lake that they should not, and how they undo it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_SLOT, SUMMARY_END_LSN

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

CATALOG = "lake"
#: With this property Spark cannot delete rows of a table, so the pipeline refuses it.
_ANY_SCHEMA = "write.spark.accept-any-schema"
KINDS = ("property", "slot", "rolled back", "dropped", "row")
ROW_DELETED = "row deleted in the lake"


@dataclass
class Troubles:
    """What was done to the tables of one namespace and is not undone yet."""

    namespace: str
    catalog_properties: dict[str, str]
    chance: random.Random
    #: Deletes a row of a table and returns whether there was one.
    delete_row: Callable[[str], bool]
    #: By target: what undoes it. It returns whether the table is as it was.
    _undo: dict[str, Callable[[], bool]] = field(default_factory=dict)

    def make(self, kinds: tuple[str, ...]) -> tuple[str, str] | None:
        """Make trouble of a kind in a table; the two, or None: there is no such table.

        :param kinds: to choose from.
        """
        catalog = self._catalog()
        names = [name for _, name in catalog.list_tables(self.namespace)]
        targets = [
            each for each in names if not each.startswith("pgoutput_") and each not in self._undo
        ]
        if not targets:
            return None
        target, kind = self.chance.choice(targets), self.chance.choice(kinds)
        do = getattr(self, f"_{kind.replace(' ', '_')}")
        undo = do(catalog, target)
        if undo is None:
            return None
        self._undo[target] = undo
        return target, kind

    def end(self) -> list[str]:
        """Undo everything; the tables of the lake that are not as they were."""
        found = [target for target, undo in self._undo.items() if not undo()]
        self._undo = {}
        return found

    def _catalog(self) -> Any:
        return load_catalog(CATALOG, **self.catalog_properties)

    def _load(self, target: str) -> Any:
        """A table as it is now; None: it is gone."""
        try:
            return self._catalog().load_table((self.namespace, target))
        except NoSuchTableError:
            return None

    def _property(self, _catalog: Any, target: str) -> Callable[[], bool]:
        return self._set(target, _ANY_SCHEMA, "true", None)

    def _slot(self, catalog: Any, target: str) -> Callable[[], bool] | None:
        before = catalog.load_table((self.namespace, target)).properties.get(PROPERTY_SLOT)
        return None if before is None else self._set(target, PROPERTY_SLOT, "another", before)

    def _set(self, target: str, key: str, value: str, before: str | None) -> Callable[[], bool]:
        with self._load(target).transaction() as change:
            change.set_properties({key: value})

        def undo() -> bool:
            table = self._load(target)
            if table is not None and table.properties.get(key) == value:
                with table.transaction() as change:
                    if before is None:
                        change.remove_properties(key)
                    else:
                        change.set_properties({key: before})
            return True

        return undo

    def _rolled_back(self, catalog: Any, target: str) -> Callable[[], bool] | None:
        table = catalog.load_table((self.namespace, target))
        head = table.current_snapshot()
        marked = [
            each.snapshot_id
            for each in table.metadata.snapshots
            if SUMMARY_END_LSN in each.summary.additional_properties
        ]
        if head is None or len(marked) < 2 or marked[0] == head.snapshot_id:
            return None
        table.manage_snapshots().set_current_snapshot(marked[0]).commit()
        return self._back_to(target, marked[0], head.snapshot_id)

    def _back_to(self, target: str, now: int, before: int) -> Callable[[], bool]:
        """Set main back to a snapshot, unless the pipeline went on from where it is now."""

        def undo() -> bool:
            table = self._load(target)
            head = None if table is None else table.current_snapshot()
            if head is None or head.snapshot_id != now:
                return False
            if table.snapshot_by_id(before) is None:
                return False
            table.manage_snapshots().set_current_snapshot(before).commit()
            return True

        return undo

    def _dropped(self, catalog: Any, target: str) -> Callable[[], bool]:
        elsewhere = f"{self.namespace}_hidden"
        catalog.create_namespace_if_not_exists(elsewhere)
        hidden = elsewhere, f"{target}_{self.chance.randrange(10**6)}"
        catalog.rename_table((self.namespace, target), hidden)

        def undo() -> bool:
            if self._load(target) is None:
                self._catalog().rename_table(hidden, (self.namespace, target))
            # In the other case a copy made the table again.
            return True

        return undo

    def _row(self, _catalog: Any, target: str) -> Callable[[], bool] | None:
        before = self._load(target).current_snapshot()
        if before is None or not self.delete_row(target):
            return None
        now = self._load(target).current_snapshot()
        return self._back_to(target, now.snapshot_id, before.snapshot_id)
