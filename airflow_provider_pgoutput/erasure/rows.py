"""Which rows shall be erased: the argument ``rows``, checked against the tables of the lake.

A value is given as JSON has it, or as PostgreSQL prints it. Each place keeps it in a form of its own. A
staged file has it in the type that the column had then, the lake in the type that it has now. Both have a
hash if the column is hashed. No error says a value.
"""

from __future__ import annotations

import decimal
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.jobs import ErasedColumn, ErasedTable
from airflow_provider_pgoutput.batch.lake_types import decimal_type
from airflow_provider_pgoutput.capture.types.masked import mask_of_texts
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from airflow_provider_pgoutput.lake.arrow_types import arrow_type
from airflow_provider_pgoutput.masks import is_hash, recorded_mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.shape import KnownColumn, Shape
    from airflow_provider_pgoutput.batch.table_version import TableVersion
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.lake.state import SlotTable

#: What makes a Python value out of a text, by the lake type. A text that is something else is an error.
_READERS: Mapping[str, Callable[[str], Any]] = {
    "string": str,
    "uuid": lambda text: str(uuid.UUID(text)),
    "boolean": {"t": True, "true": True, "f": False, "false": False}.__getitem__,
    "int": int,
    "long": int,
    "decimal": decimal.Decimal,
}
#: Arrow reads these.
_TIMES = frozenset({"date", "timestamp", "timestamptz"})

#: A row, or some rows alike: a value by the name of its column.
Row = dict[str, "str | int | bool"]


@dataclass(frozen=True, slots=True)
class AskedTable:
    """The rows of one table that shall be erased, as the user gave them."""

    #: The source's ``schema.table``.
    name: str
    relation_oid: int
    #: Earlier tables of the source that had the name.
    earlier_oids: frozenset[int]
    shape: Shape
    rows: tuple[Row, ...] = field(repr=False)
    #: The secret of hashed columns.
    secret: bytes | None = field(repr=False)
    #: The system whose OIDs these are. Another one may have given them to other tables.
    system_identifier: str
    #: By system: the OIDs of the tables that have the name, or had it when the system was left.
    oids_by_system: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def relation_oids(self) -> frozenset[int]:
        """All tables that ever had the name."""
        return self.earlier_oids | {self.relation_oid}

    def oids_in(self, manifests: Iterable[Manifest]) -> dict[str, frozenset[int]]:
        """By system: the OIDs of the tables that had the name.

        :param manifests: of all staged batches. Those that wait are not in the checkpoint.
        """
        names: dict[str, dict[int, str]] = {}
        for manifest in sorted(manifests, key=lambda each: each.end_lsn):
            of_system = names.setdefault(manifest.system_identifier, {})
            of_system |= {each.relation_oid: each.name for each in manifest.tables}
        found = {
            system: frozenset(oid for oid, name in of_system.items() if name == self.name)
            for system, of_system in names.items()
        }
        return found | {self.system_identifier: self.relation_oids}

    def is_in(self, table: SlotTable) -> bool:
        """Whether a table of the lake has rows of the table.

        Example: ``customers`` was renamed to ``clients``, and got a new table of the lake with its copy. The
        older one has the name ``customers`` for good, and the OID.
        """
        found = table.properties
        if found.get(lake_names.PROPERTY_SOURCE_TABLE) == self.name:
            return True
        of_system = self.oids_by_system.get(found[lake_names.PROPERTY_SYSTEM_IDENTIFIER], ())
        return int(found[lake_names.PROPERTY_RELATION_OID]) in of_system

    def in_version(
        self, version: TableVersion, relation_oid: int, system_identifier: str
    ) -> list[dict[int, pa.Scalar]] | None:
        """For each row the values by the positions of their columns in a staged version of the table.

        :param system_identifier: of the batch.
        :return: None: the version lacks a column, so its rows cannot be told.
        :raises ConfigurationError: the column is hashed with another secret.
        """
        by_number = {each.attribute_number: i for i, each in enumerate(version.columns)}
        by_name = {each.name: i for i, each in enumerate(version.columns)}
        places: dict[str, int] = {}
        is_same_oid = relation_oid == self.relation_oid
        for each in self._columns():
            named, numbered = by_name.get(each.name), None
            if is_same_oid and each.number is not None:
                numbered = by_number.get(each.number)
            # In another system a number may be that of another column. So the name comes first there.
            found = (numbered, named)[:: 1 if system_identifier == self.system_identifier else -1]
            place = next((each for each in found if each is not None), None)
            if place is None:
                return None
            places[each.name] = place
        rows = []
        for row in self.rows:
            values = {}
            for name, place in places.items():
                column = version.columns[place]
                values[place] = self._scalar(name, row[name], column.lake_type, column.mask)
            # A value that the type of that time does not hold was in no row.
            if all(each is not None for each in values.values()):
                rows.append(values)
        return rows

    def in_key(self, text: str) -> bool:
        """Whether the ``key`` of a rejected value is that of a row: JSON with PostgreSQL's texts."""
        key = json.loads(text)
        for row in self.rows:
            if all(name in key for name in row) and all(
                self._is(key[name], name, value) for name, value in row.items()
            ):
                return True
        return False

    def in_lake(self, found: SlotTable) -> ErasedTable:
        """The rows as the table of the lake has them. Of a shared table, those of its own slice.

        :raises TableRefused: the table has no column of the name.
        """
        rows: list[tuple[ErasedColumn, ...]] = []
        for row in self.rows:
            columns = []
            for each in self._columns():
                fields = _fields(found, each, self.relation_oid)
                if not fields:
                    raise TableRefused(
                        f"It has no column of {each.name!r}.",
                        table=self.name,
                        advice="let the pipeline apply what is staged, and try again.",
                    )
                scalar = self._scalar(each.name, row[each.name], each.lake_type, self._mask(each))
                assert scalar is not None, "checked when the table was resolved"
                columns.append(ErasedColumn(each.name, _text(scalar), fields))
            rows.append(tuple(columns))
        oid = int(found.properties[lake_names.PROPERTY_RELATION_OID])
        constants = {} if found.slice is None else dict(found.slice.constants)
        return ErasedTable(found.table.name()[-1], self.name, oid, tuple(rows), constants)

    def check(self) -> None:
        """Refuse rows that cannot be found by what was given.

        :raises ConfigurationError: it says which column, and no value.
        """
        known = {each.name: each for each in self.shape.columns}
        for row in self.rows:
            if unknown := sorted(row.keys() - known.keys()):
                raise ConfigurationError(
                    f"rows names {unknown[0]!r}, which is no column of the table.", table=self.name
                )
            if self.shape.key and set(self.shape.key) != row.keys():
                raise ConfigurationError(
                    f"rows does not give exactly the key of the table: {', '.join(self.shape.key)}.",
                    table=self.name,
                    advice="look the keys up first. A row that is found by another column could not be told"
                    " apart in deletes, which have the key alone.",
                )
            for name, value in row.items():
                column = known[name]
                if self._scalar(name, value, column.lake_type, self._mask(column)) is None:
                    raise ConfigurationError(
                        f"rows has a value for {name!r} that is not of its type {column.type_name}.",
                        table=self.name,
                        advice="write it as PostgreSQL prints it.",
                    )

    def _columns(self) -> list[KnownColumn]:
        return [each for each in self.shape.columns if each.name in self.rows[0]]

    def _mask(self, column: KnownColumn) -> str | None:
        found = (
            each.mask
            for each in self.shape.masks
            if each.number == column.number or (not each.number and each.name == column.name)
        )
        return next(found, None)

    def _scalar(
        self, name: str, value: str | int | bool, lake_type: str, mask: str | None
    ) -> pa.Scalar | None:
        if mask is None:
            return _scalar(value, lake_type, self.name, name)
        if not is_hash(mask):
            raise ConfigurationError(
                f"{name!r} is masked, and its values are not kept, so no row is found by it.",
                table=self.name,
                advice="name columns that are plain or hashed.",
            )
        found = recorded_mask(mask, self.secret)
        if found is None:
            raise ConfigurationError(
                f"{name!r} is hashed, and this is not the secret of the hash.",
                table=self.name,
                advice="give mask_conn_id of the stage task. If the secret was changed, prune the batches"
                " that were staged before that.",
            )
        plain = _plain(value)
        hashed = mask_of_texts(found, self.secret)(pa.array([plain.encode()], pa.binary()))
        return pa.scalar(hashed[0].as_py().decode())

    def _is(self, text: str | None, name: str, value: str | int | bool) -> bool:
        """Whether a text of PostgreSQL stands for a value."""
        if text is None:
            return False
        column = next(each for each in self.shape.columns if each.name == name)
        mask = self._mask(column)
        wanted = self._scalar(name, value, column.lake_type, mask)
        found = pa.scalar(text) if mask else _scalar(text, column.lake_type, self.name, name)
        return text == _plain(value) or (found is not None and found == wanted)


def asked_tables(
    rows: Mapping[str, Any], checkpoint: Checkpoint, secret: bytes | None
) -> list[AskedTable]:
    """Read the argument ``rows`` and check it.

    :param rows: lists of mappings by ``schema.table``.
    :raises ConfigurationError: it is something else, or a table or a column does not fit.
    :raises TableRefused: the slot never had the table.
    """
    if not rows:
        raise ConfigurationError("rows is empty.", advice="name tables, and keys of their rows.")
    found = []
    for name, given in rows.items():
        parsed = _rows(name, given)
        oids = [oid for oid, each in (checkpoint.tables or {}).items() if each == name]
        # The newest one is last.
        oids = sorted(
            (oid for oid in oids if oid in checkpoint.shapes), key=checkpoint.shaped_at.__getitem__
        )
        if not oids:
            raise TableRefused(
                "The checkpoint of the slot does not know it.",
                table=name,
                advice="spell it schema.table, as the source does. If its first batch waits, let it be"
                " applied first.",
            )
        newest = oids[-1]
        of_systems: dict[str, set[int]] = {checkpoint.system_identifier: set(oids)}
        for (system, oid), each in checkpoint.names_by_system.items():
            if each == name:
                of_systems.setdefault(system, set()).add(oid)
        asked = AskedTable(
            name,
            newest,
            frozenset(oids[:-1]),
            checkpoint.shapes[newest],
            parsed,
            secret,
            checkpoint.system_identifier,
            {system: frozenset(each) for system, each in of_systems.items()},
        )
        asked.check()
        found.append(asked)
    return found


def in_lake(asked: Sequence[AskedTable], tables: Sequence[SlotTable]) -> tuple[ErasedTable, ...]:
    """The rows in every table of the lake that has them.

    :param tables: all tables of the slot.
    :raises TableRefused: a table of the source has none.
    """
    found: list[ErasedTable] = []
    for each in asked:
        targets = [table for table in tables if each.is_in(table)]
        if not targets:
            raise TableRefused(
                "The namespace has no table of it.",
                table=each.name,
                advice="name the namespace of the pipeline.",
            )
        found += map(each.in_lake, targets)
    return tuple(found)


def _rows(table: str, given: Any) -> tuple[Row, ...]:
    if not isinstance(given, (list, tuple)) or not given:
        raise ConfigurationError(
            "rows has no list of rows for it.", table=table, advice='write [{"id": 7}].'
        )
    for row in given:
        if not isinstance(row, dict) or not row:
            raise ConfigurationError(
                "rows has something else than a mapping of columns.",
                table=table,
                advice='write [{"id": 7}].',
            )
        if wrong := sorted(k for k, value in row.items() if not isinstance(value, (str, int))):
            raise ConfigurationError(
                f"rows has a value for {wrong[0]!r} that is no text, whole number or boolean.",
                table=table,
                advice="write it as a text, as PostgreSQL prints it. Rows with NULL there cannot be named.",
            )
    if any(row.keys() != given[0].keys() for row in given):
        raise ConfigurationError("The rows of a table name different columns.", table=table)
    return tuple(given)


def _fields(found: SlotTable, column: KnownColumn, relation_oid: int) -> tuple[str, ...]:
    """The columns of a table of the lake that hold the values of a column, now or before."""
    body = lake_names.recorded_columns(found.properties, relation_oid)
    number = str(column.number)
    ids = [body.get("fields", {}).get(number), *body.get("retired", {}).get(number, ())]
    # A nested type, which the column may have had before, has no such value.
    names = {
        each.field_id: each.name
        for each in found.table.schema().fields
        if each.field_type.is_primitive
    }
    fields = [names[each] for each in ids if each in names]
    if not fields and column.name in names.values():
        fields = [column.name]
    return tuple(fields)


def _plain(value: str | int | bool) -> str:
    """A value as PostgreSQL prints it."""
    if isinstance(value, bool):
        return "t" if value else "f"
    return str(value)


def _text(scalar: pa.Scalar) -> str:
    """The text of a value that Spark casts back to the same."""
    return str(scalar.cast(pa.string()).as_py())


def _scalar(value: str | int | bool, lake_type: str, table: str, column: str) -> pa.Scalar | None:
    """A value in a lake type; None: the type does not hold it.

    :raises ConfigurationError: rows are not looked for by columns of this type.
    """
    text = _plain(value)
    try:
        read = "decimal" if decimal_type(lake_type) else lake_type
        if read in _READERS:
            return pa.scalar(_READERS[read](text), arrow_type(lake_type))
        if lake_type in _TIMES:
            return pa.scalar(text).cast(arrow_type(lake_type))
    except (LookupError, ValueError, OverflowError, ArithmeticError, pa.ArrowException):
        return None
    raise ConfigurationError(
        f"rows names {column!r} of type {lake_type}. Rows are not looked for by values of this type.",
        table=table,
        advice="name columns of whole numbers, decimals, texts, UUIDs, dates, timestamps or booleans.",
    )
