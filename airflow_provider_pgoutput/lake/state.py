"""Reads what the lake knows about one slot: the checkpoint table's rows, and the tables' own markers.

It reads rows of the checkpoint table only, and metadata of all other tables. ``doctor/`` draws the
conclusions. ``checkpoint.py`` reads the LSN from which a run starts.

Source: https://iceberg.apache.org/spec/#snapshots (summary)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.applied import Snapshot, find_applied
from airflow_provider_pgoutput.batch.earlier_systems import Systems, from_text
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.set_aside import TableRow, set_aside_tables
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.slot_rows import rows_of_slot
from airflow_provider_pgoutput.slices import SHARED_BY, SUMMARY_SLICE, views_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from airflow_provider_pgoutput.batch.applied import Applied, Marker
    from airflow_provider_pgoutput.batch.lsn import LsnOffset
    from airflow_provider_pgoutput.batch.set_aside import SetAside
    from airflow_provider_pgoutput.slices import Slice


@dataclass(frozen=True, slots=True)
class Recorded:
    """A row of the checkpoint table: of a whole batch, or of one table in it."""

    batch_id: str
    #: The source's ``schema.table``; None: the row is about the whole batch.
    table_name: str | None
    relation_oid: int | None
    target: str | None
    start_lsn: Lsn
    end_lsn: Lsn
    #: In UTC; None: not known.
    applied_at: datetime | None
    manifest_uri: str | None
    #: When the batch's last transaction committed at the source, in UTC; None: there was none, or an early
    #: version of the package applied the batch.
    last_commit_time: datetime | None = None
    #: The lake has every transaction that had committed by then, by the source's clock, in UTC; None: not
    #: known.
    complete_until: datetime | None = None
    #: Numbers of row changes and copied rows; None: not recorded.
    inserts: int | None = None
    updates: int | None = None
    deletes: int | None = None
    truncates: int | None = None
    copied: int | None = None
    #: The source's timeline when the batch was staged; None: not known.
    timeline: int | None = None
    #: The DAG that applied it; None: not known.
    dag_id: str | None = None
    #: Why the batch was not applied to the table; None: the table has it.
    set_aside: str | None = None
    #: None: not known.
    system_identifier: str | None = None
    #: The systems before it, as ``batch/earlier_systems.py`` writes them; None: there was none.
    adopted_from: str | None = None

    @property
    def lsn_offset(self) -> LsnOffset:
        """What the lake adds to the LSNs of the system of a whole batch.

        :raises TableRefused: somebody wrote to the column ``adopted_from``.
        """
        return Systems(self.system_identifier or "", from_text(self.adopted_from)).lsn_offset

    @property
    def is_empty(self) -> bool:
        """Whether the batch is known to have changed no row."""
        counts = (self.inserts, self.updates, self.deletes, self.truncates, self.copied)
        return all(count == 0 for count in counts)


@dataclass(frozen=True, slots=True)
class SlotTable:
    """A table of the lake, or a slice of a shared one, that the pipeline of a slot writes."""

    table: Table
    #: As the slice sees them.
    properties: Mapping[str, str]
    slice: Slice | None = None

    def applied_to(self, slot_name: str) -> Applied:
        """Which batch of a slot main ends with, and which one was published last."""
        text = self.properties.get(lake_names.PROPERTY_APPLIED + slot_name)
        return find_applied(slot_name, history_of(self.table, self.slice), text)

    @classmethod
    def of(
        cls, table: Table, slot_name: str, relation_oid: int, system_identifier: str | None
    ) -> SlotTable | None:
        """The table, or its slice with the rows of a table of the source; None: it has no such slice.

        :param relation_oid: of the table at the source.
        :param system_identifier: of the source. A slice of an earlier system may have the same OID. If there
            are both, the slice of this system is returned.
        """
        if SHARED_BY not in table.properties:
            return cls(table, table.properties)
        oid, system = lake_names.PROPERTY_RELATION_OID, lake_names.PROPERTY_SYSTEM_IDENTIFIER
        found = (
            e for e in _of_slot(table, slot_name) if e.properties.get(oid) == str(relation_oid)
        )
        return min(
            found, key=lambda each: each.properties.get(system) != system_identifier, default=None
        )


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table that the slot's pipeline writes."""

    #: ``namespace.table``.
    target: str
    #: The source's ``schema.table`` and OID when the table was made.
    source_name: str
    relation_oid: int
    system_identifier: str
    #: The newest batch in main's history; None: main has no commit of the pipeline, because somebody rolled
    #: it back.
    marker: Marker | None
    #: Branches of attempts to apply a batch, with the time of their newest commit.
    branches: Mapping[str, datetime]
    #: Whether somebody rolled main back: it does not end with what was published last.
    was_rolled_back: bool = False
    #: The newest snapshot of the batch that was published last; None: it is gone, or not known.
    published_snapshot_id: int | None = None
    #: Whether pyiceberg can commit to the table.
    is_writable: bool = True
    #: Whether it is a slice of a table that others share.
    is_shared: bool = False

    @property
    def key(self) -> str:
        """Tells it from all others of the slot: several slices have one target."""
        return key_of(self.target, self.relation_oid if self.is_shared else None)


def key_of(target: str, relation_oid: int | None) -> str:
    """See ``LakeTable.key``.

    :param relation_oid: of the source's table, if the target is shared.
    """
    return target if relation_oid is None else f"{target} {relation_oid}"


@dataclass(frozen=True, slots=True)
class LakeState:
    """Everything about one slot in one namespace."""

    #: None: there is no checkpoint table, or it has no row of the slot.
    recorded: tuple[Recorded, ...] | None
    tables: tuple[LakeTable, ...]


def open_catalog(catalog_name: str, catalog_properties: Mapping[str, str]) -> Catalog:
    """Open a catalog through pyiceberg.

    :raises LakeUnavailable: it cannot be opened.
    """
    # Imported here: pyiceberg takes a second to import.
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    with lake_errors("opened"):
        return load_catalog(catalog_name, **dict(catalog_properties))


def read_lake(catalog: Catalog, namespace: str, slot_name: str) -> LakeState:
    """Read everything about a slot from the lake.

    :raises LakeUnavailable: the catalog or a table cannot be read.
    """
    recorded, tables = None, []
    with lake_errors("read"):
        for identifier in _table_names(catalog, namespace):
            table = catalog.load_table(identifier)
            if identifier[-1] == lake_names.CHECKPOINT_TABLE:
                recorded = _recorded(table, slot_name)
                continue
            target = ".".join(identifier)
            tables += [_lake_table(e, target, slot_name) for e in _of_slot(table, slot_name)]
    return LakeState(recorded, tuple(sorted(tables, key=lambda each: each.target)))


def tables_of_slot(catalog: Catalog, namespace: str, slot_name: str) -> list[SlotTable]:
    """The tables that a slot's pipeline writes, without its own ones. Of a shared table: its slices.

    :raises LakeUnavailable: the catalog or a table cannot be read.
    """
    with lake_errors("read"):
        found = [catalog.load_table(each) for each in _table_names(catalog, namespace)]
    return [each for table in found for each in _of_slot(table, slot_name)]


def _of_slot(table: Table, slot_name: str) -> list[SlotTable]:
    views = views_of(table.properties)
    return [
        SlotTable(table, properties, slice_)
        for slice_, properties in views
        if properties.get(lake_names.PROPERTY_SLOT) == slot_name
    ]


def read_recorded(catalog: Catalog, namespace: str, slot_name: str) -> tuple[Recorded, ...]:
    """Read the checkpoint table's rows of a slot, oldest first. Without a table there are none.

    :raises LakeUnavailable: the catalog or the table cannot be read.
    """
    identifier = (*namespace.split("."), lake_names.CHECKPOINT_TABLE)
    with lake_errors("read"):
        if not catalog.table_exists(identifier):
            return ()
        return _recorded(catalog.load_table(identifier), slot_name) or ()


def names_of_tables(recorded: Iterable[Recorded]) -> frozenset[str]:
    """The tables of the source that the rows name, as ``schema.table``."""
    return frozenset(row.table_name for row in recorded if row.table_name is not None)


def tables_set_aside(recorded: Iterable[Recorded]) -> dict[int, SetAside]:
    """The tables that are set aside, by OID, as a slot's rows of the checkpoint table say.

    :raises TableRefused: a row is not what the pipeline writes.
    """
    return set_aside_tables(
        TableRow.recorded(
            row.relation_oid, row.table_name, row.start_lsn, row.end_lsn, row.set_aside, row.target
        )
        for row in recorded
        if row.table_name is not None and row.relation_oid is not None
    )


def _table_names(catalog: Catalog, namespace: str) -> list[tuple[str, ...]]:
    from pyiceberg.exceptions import NoSuchNamespaceError  # noqa: PLC0415

    try:
        return sorted(catalog.list_tables(tuple(namespace.split("."))))
    except NoSuchNamespaceError:
        return []


def _recorded(table: Table, slot_name: str) -> tuple[Recorded, ...] | None:
    names = (name for name, _ in lake_names.CHECKPOINT if name in Recorded.__slots__)
    rows = rows_of_slot(table, slot_name, names)
    if rows.num_rows == 0:
        return None
    found = [
        Recorded(
            **{
                **row,
                "start_lsn": Lsn.from_sortable(row["start_lsn"]),
                "end_lsn": Lsn.from_sortable(row["end_lsn"]),
            }
        )
        for row in rows.to_pylist()
    ]
    return tuple(sorted(found, key=lambda each: (each.end_lsn, each.target or "")))


def _lake_table(found: SlotTable, target: str, slot_name: str) -> LakeTable:
    table, properties = found.table, found.properties
    branches = {
        name: datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
        for name, reference in table.metadata.refs.items()
        if reference.snapshot_ref_type == "branch"
        and name.startswith(lake_names.BRANCH_PREFIX)
        and (snapshot := table.snapshot_by_id(reference.snapshot_id)) is not None
    }
    applied = found.applied_to(slot_name)
    published = applied.published
    return LakeTable(
        target=target,
        is_shared=found.slice is not None,
        source_name=properties[lake_names.PROPERTY_SOURCE_TABLE],
        relation_oid=int(properties[lake_names.PROPERTY_RELATION_OID]),
        system_identifier=properties[lake_names.PROPERTY_SYSTEM_IDENTIFIER],
        marker=applied.marker,
        branches=branches,
        was_rolled_back=applied.was_rolled_back,
        # In a shared table, other slices would go back with it.
        published_snapshot_id=None
        if published is None or found.slice is not None
        else _snapshot_of(table, published.batch_id),
        is_writable=_is_writable(table),
    )


def _is_writable(table: Table) -> bool:
    """Whether pyiceberg can commit to the table.

    A REST catalog writes the metadata by itself. For other catalogs pyiceberg writes it, up to format version
    2.

    Source: https://github.com/apache/iceberg-python/issues/1551
    """
    from pyiceberg.catalog.rest import RestCatalog  # noqa: PLC0415

    if isinstance(table.catalog, RestCatalog):
        return True
    try:
        table.metadata.model_dump_json()
    except NotImplementedError:
        return False
    return True


def _snapshot_of(table: Table, batch_id: str) -> int | None:
    """The newest snapshot of a batch, in main's history or outside of it."""
    found = [
        each
        for each in table.snapshots()
        if each.summary is not None
        and each.summary.additional_properties.get(lake_names.SUMMARY_BATCH_ID) == batch_id
    ]
    newest = max(found, key=lambda each: each.sequence_number or 0, default=None)
    return None if newest is None else newest.snapshot_id


def history_of(table: Table, slice_: Slice | None = None) -> Iterator[Snapshot]:
    """The snapshots of main's history that still exist, newest first.

    :param slice_: summaries of other slices are left out; None: the table is not shared.
    """
    snapshot = table.current_snapshot()
    while snapshot is not None:
        parent_id, summary = snapshot.parent_snapshot_id, snapshot.summary
        said = {} if summary is None else summary.additional_properties
        yield Snapshot(
            snapshot.snapshot_id,
            snapshot.sequence_number or 0,
            parent_id is not None,
            said if slice_ is None or slice_.is_in(said.get(SUMMARY_SLICE)) else {},
        )
        snapshot = None if parent_id is None else table.snapshot_by_id(parent_id)
