"""Finds columns whose type was altered. Then all rows look different at the source, and none was sent.

``ALTER TYPE cp ADD ATTRIBUTE z int`` turns ``(1,a)`` into ``(1,a,)`` in all rows. The lake has the old text.
If the column belongs to the key, apply no longer finds these rows. ``batch/type_definition.py`` compares two
definitions of a type.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.shape import SchemaChange, Shape, Unsettled
from airflow_provider_pgoutput.batch.table_version import lookup_columns
from airflow_provider_pgoutput.batch.type_definition import alterations
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded, copy_needed
from airflow_provider_pgoutput.capture.source.type_definitions import TypesOfTables
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable

log = logging.getLogger(__name__)

_OUTCOME = (
    "rows in the lake look as they did until they change, and keep the value of a dropped attribute."
    " copy_tables=%s brings them in; on_type_change='copy' does so by itself from now on."
)
#: How many columns one warning names.
_MOST_NAMED = 20
_WHILE_OPEN = "rows came from a transaction that was open at that time"


@dataclass(frozen=True)
class AlteredTypes:
    """What is known of types at the end of a batch, and what the owner of the pipeline wants to be done."""

    policy: SchemaPolicy
    #: The definitions after the whole batch was read.
    now: TypesOfTables = field(default_factory=TypesOfTables)

    def changes(
        self, past: Shape, table: Table, oldest_xids: Sequence[int | None]
    ) -> list[SchemaChange]:
        """What ALTER TYPE did to columns since ``past``.

        :param oldest_xids: by version of the table: the oldest transaction with rows in the batch; None:
            there are none.
        """
        columns = table.versions[-1].columns
        numbers = {
            each.attribute_number: each.type_oid
            for each in columns
            if each.attribute_number is not None
        }
        now = self.now.of(table.relation_oid)
        found = altered_columns(past, numbers, now)
        for number, what in self._of_new_columns(past, table, oldest_xids):
            found.setdefault(number, what)
        for number in self._unsettled(past, oldest_xids):
            # ALTER COLUMN TYPE waits for older transactions, so a converted column has no values of these.
            if numbers.get(number) in now:
                found.setdefault(number, _WHILE_OPEN)
        names = {each.attribute_number: each.name for each in columns}
        return [
            SchemaChange(shape.ALTERED, names[number], "", what, number)
            for number, what in sorted(found.items())
        ]

    def recorded(self, table: Table, past: Shape | None, changes: Sequence[SchemaChange]) -> Table:
        """The table, with what the next batch has to know of its types.

        :param past: see ``changes``; None: not known.
        :param changes: the result of ``changes``.
        """
        unsettled = None if past is None else past.unsettled
        if any(each.after != _WHILE_OPEN for each in changes):
            columns = {each.attribute_number for each in changes} - {None}
            columns |= set(unsettled.columns if unsettled else ())
            numbers = tuple(sorted(each for each in columns if each is not None))
            unsettled = Unsettled(self.now.next_xid, numbers)
        types = tuple(self.now.of(table.relation_oid).values())
        return dataclasses.replace(table, types=types, unsettled=unsettled)

    def check_unwritten(
        self, shapes: Mapping[int, Shape], tables: Iterable[PublishedTable]
    ) -> None:
        """Warn of altered types in tables without rows in the batch. Each batch does so until rows come.

        :param shapes: by OID, of the last batch with the table.
        :raises CopyNeeded: the policy wants a copy.
        """
        altered = self.altered_tables(shapes, tables)
        if not altered:
            return
        named = [
            f"{table.name}.{column} ({what})"
            for table, found in altered
            for column, what in found.items()
        ]
        log.warning(
            "%d columns of tables without changes in this batch changed in all rows: %s. PostgreSQL sends no"
            " row for that: %s",
            len(named),
            ", ".join(named[:_MOST_NAMED]) + (", ..." if len(named) > _MOST_NAMED else ""),
            _OUTCOME % sorted({table.name for table, _ in altered[:_MOST_NAMED]}),
        )
        if self.policy.on_type_change == COPY:
            raise CopyNeeded(altered[0][0].relation_oid)

    def altered_tables(
        self, shapes: Mapping[int, Shape], tables: Iterable[PublishedTable]
    ) -> list[tuple[PublishedTable, dict[str, str]]]:
        """Tables with altered types, and what was done to each column."""
        found = []
        for table in tables:
            names = {each.attribute_number: each.name for each in table.columns}
            numbers = {each.attribute_number: each.type_oid for each in table.columns}
            past = shapes.get(table.relation_oid)
            if past is not None:
                altered = altered_columns(past, numbers, self.now.of(table.relation_oid))
                found += [(table, {names[n]: what for n, what in altered.items()})] * bool(altered)
        return found

    def _of_new_columns(
        self, past: Shape, table: Table, oldest_xids: Sequence[int | None]
    ) -> Iterator[tuple[int, str]]:
        """Columns that are new in this batch, and whose type may have been altered after rows of the batch.

        No earlier batch knows how such a type was defined. The catalog says which transaction wrote its
        definition. That may also have added a value to an enum, which changes no row.
        """
        known = {each.number for each in past.columns}
        for column in table.versions[-1].columns:
            number = column.attribute_number
            if number is None or number in known:
                continue
            sent = [
                self.now.with_epoch(xid)
                for version, xid in zip(table.versions, oldest_xids, strict=False)
                if xid is not None and any(e.attribute_number == number for e in version.columns)
            ]
            if not sent:
                continue
            newer = self.now.written_after(min(sent), table.relation_oid, column.type_oid)
            if newer is not None:
                yield number, f"the definition of its type {newer} is newer than rows of this batch"

    def _unsettled(self, past: Shape, oldest_xids: Iterable[int | None]) -> tuple[int, ...]:
        """Columns that may have values of transactions that were open when the types were altered."""
        unsettled = past.unsettled
        sent = [self.now.with_epoch(each) for each in oldest_xids if each is not None]
        if unsettled is None or not sent or not self.now.next_xid:
            return ()
        return unsettled.columns if min(sent) < unsettled.below_xid else ()


def altered_columns(
    past: Shape, type_oids: Mapping[int, int], now: Mapping[int, TypeDefinition]
) -> dict[int, str]:
    """What ALTER TYPE did to columns since ``past``, in words, by ``attnum``.

    A column that now has another type was converted. That is a different change.

    :param type_oids: the columns' types now, by number.
    """
    before, found = past.types_by_oid, {}
    for column in past.columns:
        if column.number is None or type_oids.get(column.number) != column.type_oid:
            continue
        as_struct = "struct<" in column.lake_type
        done = alterations(column.type_oid, before, now, as_struct=as_struct)
        if done:
            found[column.number] = "; ".join(done)
    return found


def other_expressions(past: Shape, table: Table) -> list[SchemaChange]:
    """Generated columns that got other values in all rows by SET EXPRESSION since ``past``."""
    before = dict(past.expressions)
    names = {each.attribute_number: each.name for each in table.versions[-1].columns}
    return [
        SchemaChange(shape.ALTERED, names[number], "", "it has another expression", number)
        for number, expression in table.expressions
        if number in names and before.get(number, expression) != expression
    ]


def check_altered(table: Table, changes: Iterable[SchemaChange], policy: SchemaPolicy) -> None:
    """Do what the policy says about columns that changed in all rows without a row event.

    :param changes: of kind ``column_altered``, since the last batch or since the copy in this batch.
    :raises CopyNeeded: the policy wants a copy, and the batch has none.
    :raises SnapshotLost: a copy is wanted, and the one in the batch is older than the change.
    :raises TableRefused: rows are found by the column, and the policy does not copy.
    """
    for change in changes:
        log.warning(
            "%s: %s. PostgreSQL sends no row for that: %s",
            table.name,
            change,
            _OUTCOME % [table.name],
        )
        is_lookup_column = _is_lookup_column(table, change.attribute_number)
        if policy.on_type_change == COPY or (is_lookup_column and table.copy_lsn is not None):
            raise copy_needed(table, change.column)
        if is_lookup_column:
            raise TableRefused(
                f"Rows are found by this column, and it changed in all rows: {change.after}. PostgreSQL sends"
                " no row for that, so rows in the lake do not have the value by which the source names them"
                " now.",
                table=table.name,
                column=change.column,
                advice=f"copy the table again (copy_tables=[{table.name!r}]); on_type_change='copy' in the"
                " stage task does so by itself from now on.",
            )


def _is_lookup_column(table: Table, number: int | None) -> bool:
    return any(
        column.attribute_number == number and column.name in lookup_columns(version)
        for version in table.versions
        for column in version.columns
    )
