"""How far the lake is, read from the checkpoint table through pyiceberg. It writes nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE, REBUILT
from airflow_provider_pgoutput.batch.earlier_systems import EarlierSystem, Systems, from_text
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.passed_over import since_by_oid
from airflow_provider_pgoutput.batch.set_aside import SetAside, TableRow, set_aside_tables
from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.errors import PgoutputError, TableRefused
from airflow_provider_pgoutput.lake.failures import lake_failure
from airflow_provider_pgoutput.lake.slot_rows import rows_of_slot

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Mapping, Sequence

    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

_HEX_DIGITS = 16
_SELECTED = (
    "system_identifier",
    "adopted_from",
    "start_lsn",
    "end_lsn",
    "table_name",
    "relation_oid",
    "batch_id",
    "columns",
    "schema_changes",
    "copied",
    "skipped",
    "timeline",
    "passed_over",
    "set_aside",
    "target",
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far the lake is: everything that committed before ``end_lsn`` is in it."""

    end_lsn: Lsn
    system_identifier: str
    #: ``schema.table`` by OID, of every table that a batch changed or copied, in the order of their newest
    #: batches; None: not known.
    tables: Mapping[int, str] | None = None
    #: The batch that ends there; None: not known.
    batch_id: str | None = None
    #: By system and OID: the newest ``schema.table`` that a table had there. Rows of early versions of the
    #: package name no system, and are left out.
    names_by_system: Mapping[tuple[str, int], str] = field(default_factory=dict)
    #: By OID: ``namespace.table``, the newest target of each table that the lake has.
    targets: Mapping[int, str] = field(default_factory=dict)
    #: By OID: a table's columns at the end of the last batch that changed them, if known.
    shapes: Mapping[int, Shape] = field(default_factory=dict)
    #: By OID: the end of the batch that last changed the table's columns, or was the first to record them.
    shaped_at: Mapping[int, Lsn] = field(default_factory=dict)
    #: Where the first recorded batch starts; None: not known.
    begun_at: Lsn | None = None
    #: Where the last batch with copied rows ends; None: none is recorded.
    copied_until: Lsn | None = None
    #: The source's timeline when the last batch was staged; None: not known.
    timeline: int | None = None
    #: What batches left out on request, as the table records it: JSON of commit LSNs and numbers of changes.
    skipped: tuple[str, ...] = ()
    #: By OID: the LSN, as text, from which on changes of a table are passed over, until it is copied.
    passed_over: Mapping[int, str] = field(default_factory=dict)
    #: The tables that are set aside, by OID.
    set_aside: Mapping[int, SetAside] = field(default_factory=dict)
    #: The systems from which the lake was filled before, the oldest first.
    adopted_from: tuple[EarlierSystem, ...] = ()
    #: OIDs of the tables that came from an earlier system, and have no batch of the system of now. That may
    #: have given such an OID to another table.
    earlier_oids: frozenset[int] = frozenset()

    @property
    def systems(self) -> Systems:
        """The system of the source, and those before it."""
        return Systems(self.system_identifier, self.adopted_from)

    @property
    def copied_by_itself(self) -> frozenset[int]:
        """OIDs of the tables that are passed over, and are copied as soon as they are published again.

        A table that the stage task set aside is copied only if somebody asks for it.
        """
        return frozenset(
            oid
            for oid in self.passed_over
            if oid not in self.set_aside or not self.set_aside[oid].needs_copy
        )

    @property
    def newest_oids(self) -> dict[str, int]:
        """The OID by name. If several tables had a name, the one with the newest batch counts."""
        return {name: oid for oid, name in (self.tables or {}).items()}

    @property
    def shapes_by_name(self) -> dict[str, Shape]:
        """The columns of tables by name. If several tables had a name, the newest one counts."""
        names = self.tables or {}
        oldest_first = sorted(self.shapes, key=lambda oid: self.shaped_at.get(oid, Lsn(0)))
        return {names[oid]: self.shapes[oid] for oid in oldest_first if oid in names}

    @property
    def types(self) -> dict[int, TypeDefinition]:
        """The users' types in the tables' columns, by OID, also types that are gone at the source."""
        # The types of tables with a negative OID (``by_name_only``) are those of another system.
        return {
            oid: each
            for of_table, shape in self.shapes.items()
            if of_table > 0
            for oid, each in shape.types_by_oid.items()
        }

    def oid_of(self, relation_oid: int, name: str) -> int:
        """The OID under which the checkpoint has a table. It is negative for one of an earlier system.

        See ``by_name_only``. A table that was made again on the same system is another one.

        :param relation_oid: of the table at the source.
        :param name: its ``schema.table``.
        """
        newest = self.newest_oids.get(name, relation_oid)
        is_earlier = newest < 0 and newest != -relation_oid
        return newest if is_earlier and relation_oid not in (self.tables or {}) else relation_oid

    def by_name_only(self, relation_oids: Collection[int]) -> Checkpoint:
        """The checkpoint, in which some tables are found by their names alone.

        Their OIDs become negative. No table of the source has such an OID.

        :param relation_oids: OIDs of an earlier system. On the system of now they may be other tables.
        """

        def apart(found: Mapping[int, _Value]) -> dict[int, _Value]:
            return {-oid if oid in relation_oids else oid: each for oid, each in found.items()}

        return replace(
            self,
            tables=None if self.tables is None else apart(self.tables),
            targets=apart(self.targets),
            shapes=apart(self.shapes),
            shaped_at=apart(self.shaped_at),
            passed_over=apart(self.passed_over),
            set_aside=apart(self.set_aside),
            earlier_oids=frozenset(),
        )


def read_checkpoint(
    catalog_name: str,
    catalog_properties: Mapping[str, str],
    namespace: str,
    slot_name: str,
    opened: Catalog | None = None,
) -> Checkpoint | None:
    """The slot's checkpoint; None: no batch of the slot was ever applied.

    :param catalog_properties: as ``pyiceberg.catalog.load_catalog`` takes them.
    :param opened: the catalog, if it is open already.
    :raises LakeDenied: the catalog does not let this login read it.
    :raises ConfigurationError: a setting of the catalog is missing or wrong.
    :raises LakeUnavailable: the catalog or the table cannot be read. This never returns None for that.
    :raises TableRefused: the table has LSNs of two systems, or is something else entirely.
    """
    # Imported here: pyiceberg takes a second to import.
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError  # noqa: PLC0415

    try:
        catalog = opened or load_catalog(catalog_name, **dict(catalog_properties))
        try:
            table = catalog.load_table((*namespace.split("."), CHECKPOINT_TABLE))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        rows = rows_of_slot(table, slot_name, _SELECTED)
    except PgoutputError:
        raise
    except Exception as error:
        # pyiceberg's exceptions have no common base class, and their messages may contain credentials.
        table_name = f"{namespace}.{CHECKPOINT_TABLE}"
        raise lake_failure(error, "The checkpoint table cannot be read", table_name) from None
    return checkpoint_of(rows, namespace, slot_name)


def checkpoint_of(rows: pa.Table, namespace: str, slot_name: str) -> Checkpoint | None:
    """The checkpoint that the slot's rows of the table make; None: they have no batch.

    :raises TableRefused: the rows are not what the pipeline writes, or are of unrelated systems.
    """
    # In the order of the batches: if a table was renamed and copied again, its last name counts.
    rows = _of_history(rows.sort_by("end_lsn"), slot_name)
    of_tables = rows.filter(pc.is_valid(rows.column("table_name")))
    rows = rows.filter(pc.is_null(rows.column("table_name")))
    if rows.num_rows == 0:
        return None
    table = f"{namespace}.{CHECKPOINT_TABLE}"
    found = [text for text in rows.column("end_lsn").to_pylist() if text is not None]
    if len(found) != rows.num_rows or any(len(text) != _HEX_DIGITS for text in found):
        raise TableRefused(
            "The checkpoint table has rows without a position.",
            table=table,
            slot=slot_name,
            advice="somebody wrote to it; rebuild it from the tables' snapshot summaries.",
        )
    systems = _systems(rows)
    if systems is None:
        raise TableRefused(
            "The checkpoint table has positions of several source systems for this slot.",
            table=table,
            slot=slot_name,
            advice="use another slot name or namespace for the other system.",
        )
    names = of_tables.column("table_name").to_pylist()
    oids = of_tables.column("relation_oid").to_pylist()
    known: dict[int, str] = {}
    for oid, name in zip(oids, names, strict=True):
        # The newest row of a table gives its place, too.
        known.pop(oid, None)
        known[oid] = name
    systems_of_rows, targets = _columns(of_tables, "system_identifier", "target")
    of_now = {
        oid
        for oid, system in zip(oids, systems_of_rows, strict=True)
        if system == systems.system_identifier
    }
    # The last row has the greatest LSN.
    batch_id = rows.column("batch_id").to_pylist()[-1]
    if batch_id == REBUILT:
        batch_id = None
    starts = [text for text in _columns(rows, "start_lsn")[0] if text is not None]
    shapes, shaped_at = _shapes(of_tables)
    copied = [
        end for end, count in zip(*_columns(of_tables, "end_lsn", "copied"), strict=True) if count
    ]
    skipped, timelines = _columns(rows, "skipped", "timeline")
    later_names = systems.later_names(list(zip(systems_of_rows, oids, names, strict=True)))
    passed_over = [
        (text, later_names[system])
        for system, text in zip(*_columns(rows, "system_identifier", "passed_over"), strict=True)
        if text
    ]
    return Checkpoint(
        end_lsn=Lsn.from_sortable(max(found)),
        system_identifier=systems.system_identifier,
        adopted_from=systems.earlier,
        tables=known,
        names_by_system={
            (system, oid): name
            for system, oid, name in zip(systems_of_rows, oids, names, strict=True)
            if system is not None
        },
        batch_id=batch_id,
        targets={oid: each for oid, each in zip(oids, targets, strict=True) if each is not None},
        shapes=shapes,
        shaped_at=shaped_at,
        begun_at=Lsn.from_sortable(min(starts)) if starts else None,
        copied_until=Lsn.from_sortable(max(copied)) if copied else None,
        timeline=timelines[-1],
        skipped=tuple(text for text in skipped if text),
        passed_over=_passed_over(passed_over, table, slot_name),
        set_aside=_set_aside(of_tables, systems.adopted_at),
        earlier_oids=frozenset(known.keys() - of_now if systems.earlier else ()),
    )


def _of_history(rows: pa.Table, slot_name: str) -> pa.Table:
    """Leave out the rows that an apply of an earlier system wrote after another system was adopted."""
    texts = {text for text in _columns(rows, "adopted_from")[0] if text}
    if not texts:
        return rows
    # Each adoption adds a system to the list.
    systems = Systems("", max(map(from_text, texts), key=len))
    ends = zip(*_columns(rows, "system_identifier", "end_lsn"), strict=True)
    stays = [end is None or not systems.left(each, Lsn.from_sortable(end)) for each, end in ends]
    if not all(stays):
        log.warning(
            "Slot %s: the checkpoint table has %d rows that an earlier system wrote after %s, where another"
            " one was adopted. They do not count.",
            slot_name,
            stays.count(False),
            systems.adopted_at,
        )
    return rows.filter(pa.array(stays))


def _systems(rows: pa.Table) -> Systems | None:
    """The system of the newest batch, and those before it; None: the rows are of unrelated systems."""
    columns = _columns(rows, "system_identifier", "end_lsn", "adopted_from")
    found = list(zip(*columns, strict=True))
    system, _, text = found[-1]
    if system is None:
        return None
    systems = Systems(system, from_text(text))
    is_one = all(systems.have(each, Lsn.from_sortable(end)) for each, end, _ in found)
    return systems if is_one else None


def _columns(rows: pa.Table, *names: str) -> list[list[Any]]:
    """Columns as lists; a column that the table lacks is a list of None."""
    there = rows.column_names
    return [rows.column(n).to_pylist() if n in there else [None] * rows.num_rows for n in names]


def _passed_over(
    entries: Sequence[tuple[str, Mapping[int, Container[str]]]], table: str, slot_name: str
) -> dict[int, str]:
    try:
        return since_by_oid((text for text, _ in entries), (names for _, names in entries))
    except ValueError as error:
        raise TableRefused(
            "The column passed_over of the checkpoint table is not what the pipeline writes.",
            table=table,
            slot=slot_name,
            advice="somebody wrote to it; rebuild it from the tables' snapshot summaries.",
        ) from error


def _set_aside(of_tables: pa.Table, adopted_at: Lsn | None) -> dict[int, SetAside]:
    names = ("relation_oid", "table_name", "start_lsn", "end_lsn", "set_aside", "target")
    found = []
    for oid, name, start, end, text, target in zip(*_columns(of_tables, *names), strict=True):
        if oid is not None and start is not None and end is not None:
            lsns = Lsn.from_sortable(start), Lsn.from_sortable(end)
            found.append(TableRow.recorded(oid, name, *lsns, text, target))
    return set_aside_tables(found, adopted_at)


def _alike(shape: Shape) -> Shape:
    """What is compared to see whether a batch changed the columns.

    OIDs and definitions of types are left out, because ``schema_changes`` names a change of a type.
    """
    columns = tuple(replace(each, type_oid=0) for each in shape.columns)
    return Shape(columns, shape.key, shape.replica_identity)


def _shapes(of_tables: pa.Table) -> tuple[dict[int, Shape], dict[int, Lsn]]:
    """By OID: the newest columns of each table, and the end of the batch that changed or first had them."""
    if "columns" not in of_tables.column_names:
        return {}, {}
    rows = of_tables.filter(pc.is_valid(of_tables.column("columns"))).sort_by("end_lsn")
    shapes: dict[int, Shape] = {}
    shaped_at: dict[int, Lsn] = {}
    for row in rows.select(["relation_oid", "columns", "end_lsn"]).to_pylist():
        oid, shape = row["relation_oid"], Shape.from_json(row["columns"])
        if shape is None:
            continue
        before = shapes.get(oid)
        if before is None or _alike(before) != _alike(shape):
            shaped_at[oid] = Lsn.from_sortable(row["end_lsn"])
        shapes[oid] = shape
    changes = _columns(of_tables, "relation_oid", "schema_changes", "end_lsn")
    for oid, changed, end in zip(*changes, strict=True):
        # Two changes of one batch may undo each other. Then the shapes are alike, and the columns did change.
        if changed and oid in shaped_at:
            shaped_at[oid] = max(shaped_at[oid], Lsn.from_sortable(end))
    return shapes, shaped_at
