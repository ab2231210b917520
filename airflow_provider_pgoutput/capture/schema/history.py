"""What a batch does to the columns of a table: numbers, changes, and what the policy says about them.

It runs after the whole batch was read, so the catalog is asked after the newest row was written.
``attribution.py`` finds the numbers, ``differences.py`` the changes, ``older_rows.py`` the values of older
rows. Apply changes the target.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.batch.answers import COPY, IGNORE
from airflow_provider_pgoutput.batch.shape import SchemaChange, Shape
from airflow_provider_pgoutput.capture.schema.altered_types import (
    AlteredTypes,
    check_altered,
    other_expressions,
)
from airflow_provider_pgoutput.capture.schema.attribution import Catalog, attribute
from airflow_provider_pgoutput.capture.schema.differences import differences, unfollowable
from airflow_provider_pgoutput.capture.schema.full_keys import FullKeys
from airflow_provider_pgoutput.capture.schema.gone import refuse_unfollowable
from airflow_provider_pgoutput.capture.schema.named_objects import check_names
from airflow_provider_pgoutput.capture.schema.older_rows import OlderRows, refuse_unknown_key
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded, copy_needed, way_on
from airflow_provider_pgoutput.capture.schema.rewrites import keeps_values
from airflow_provider_pgoutput.capture.source.type_definitions import TypesOfTables
from airflow_provider_pgoutput.capture.types.registry import STRING
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.shape import Storage
    from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
    from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
    from airflow_provider_pgoutput.capture.source.attributes import Attribute
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SchemaHistory:
    """What is known about the tables of a batch from outside of the batch."""

    policy: SchemaPolicy
    #: By OID: the table at the end of the last batch that had it. A table that no batch had is not in it.
    before: Mapping[int, Shape]
    #: By OID: the table's columns as ``pg_attribute`` has them now.
    attributes: Mapping[int, tuple[Attribute, ...]]
    #: By OID: names of the columns that the publications name now.
    published: Mapping[int, frozenset[str]]
    #: Spells the type of a column like ``Column.type_name``. Arguments: OID and modifier of the type.
    type_name: Callable[[int, int], str]
    #: Returns the column with the value of its older rows. Arguments: the table's name, the column, and the
    #: value as PostgreSQL prints it.
    showing: Callable[[str, Column, str | None], Column]
    #: The text of a column's constant default. Arguments: OID of the table and ``attnum``.
    constant_default: Callable[[int, int], str | None]
    #: By OID: the tables' files now, read after ``attributes``. A table that is not in it is gone.
    storage: Mapping[int, Storage] = field(default_factory=dict)
    #: By OID: the tables' files when the run began, before anything was copied or read.
    storage_at_start: Mapping[int, Storage] = field(default_factory=dict)
    full_keys: FullKeys = field(default_factory=FullKeys)
    #: By table name, from the last batch with a table of that name.
    shapes_by_name: Mapping[str, Shape] = field(default_factory=dict)
    #: The definitions of the users' types in columns, as they are now.
    types: TypesOfTables = field(default_factory=TypesOfTables)
    #: Published tables without rows in the batch.
    unwritten: Sequence[PublishedTable] = ()

    def check_unwritten(self) -> None:
        """Look at tables without rows in the batch, for changes for which PostgreSQL sends no rows.

        :raises CopyNeeded: the policy wants a copy.
        """
        self._altered_types.check_unwritten(self.before, self.unwritten)

    def complete(self, table: Table, oldest_xids: Sequence[int | None] = ()) -> Table:
        """The table with the numbers of its columns, and the changes since the last batch.

        :param oldest_xids: by version: the oldest transaction with rows in the batch; None: there are none.
        :raises CopyNeeded: the policy wants a copy, and the batch has none.
        :raises SnapshotLost: the copy in the batch is older than a change.
        :raises TableRefused: columns cannot be told apart, and the policy neither copies nor ignores it; or
            see ``FullKeys``.
        """
        before = self.before.get(table.relation_oid)
        versions, highest_number = self._numbered(table, before)
        if table.is_gone:
            refuse_unfollowable(dataclasses.replace(table, versions=versions), before)
        elif not any(version.columns for version in versions):
            self._refuse_no_columns(table)
        numbered = dataclasses.replace(table, versions=versions)
        versions = self.full_keys.by_number(numbered, before).versions
        versions = tuple(self._filled(table, each) for each in versions)
        changes = self._changes(
            table.relation_oid, before, versions, before.storage if before else None
        )
        if before is None and table.copy_lsn is not None and table.name in self.shapes_by_name:
            changes = [
                *_since_earlier_table(self.shapes_by_name[table.name], versions[0]),
                *changes,
            ]
        completed = dataclasses.replace(
            table,
            versions=versions,
            highest_number=self._highest_number(table.relation_oid, versions[-1], highest_number),
        )
        if before is not None:
            changes += self._altered_types.changes(before, completed, oldest_xids)
        past = before
        if table.copy_lsn is not None:
            # The copied rows have the first version. Changes after it concern them like any older rows.
            past = dataclasses.replace(Shape.of(versions[0]), types=table.types)
        altered = [] if past is None else self._altered_types.changes(past, completed, oldest_xids)
        completed = self._altered_types.recorded(completed, past, altered)
        completed = dataclasses.replace(
            completed,
            storage=self._older_rows.storage_of(completed, before),
            expressions=self._expressions(table.relation_oid),
        )
        if before is not None:
            computed_anew = other_expressions(before, completed)
            changes += computed_anew
            altered += computed_anew if table.copy_lsn is None else []
        completed = dataclasses.replace(completed, schema_changes=tuple(changes))
        for change in changes:
            log.info("%s: %s.", table.name, change)
        is_key_chosen = table.name in self.full_keys.configured
        check_names(completed, before, self.policy, is_key_chosen=is_key_chosen)
        self.full_keys.check(completed, before, self.policy)
        if table.copy_lsn is not None:
            # The copy was made after the run began.
            then = self.storage_at_start.get(table.relation_oid)
            changes = self._changes(table.relation_oid, None, versions, then)
            _refuse_late_types(completed)
        # Even if nothing is known from before, the changes between two versions of the batch are known.
        completed = self._older_rows.complete(completed, changes, past, may_copy=past is not None)
        if past is not None:
            self._copy_for_types(completed, past)
            self._converted_rows(completed, past, changes)
            check_altered(completed, altered, self.policy)
        is_known = before is not None and before == completed.shape
        return dataclasses.replace(completed, records_columns=not is_known)

    def _expressions(self, relation_oid: int) -> tuple[tuple[int, int], ...]:
        """Numbers that stand for the expressions of generated columns, by column number."""
        columns = self.attributes.get(relation_oid, ())
        return tuple((e.number, e.expression) for e in columns if e.expression is not None)

    @functools.cached_property
    def _altered_types(self) -> AlteredTypes:
        return AlteredTypes(self.policy, self.types)

    @functools.cached_property
    def _older_rows(self) -> OlderRows:
        return OlderRows(
            self.policy,
            self.attributes,
            self.storage,
            self.storage_at_start,
            self.showing,
            self.constant_default,
        )

    def _numbered(self, table: Table, before: Shape | None) -> tuple[tuple[TableVersion, ...], int]:
        """Find the columns' numbers in all versions. A copied version has them already.

        :return: the versions, and ``Attribution.highest_number``.
        """
        versions = list(table.versions)
        first = 0
        state = _state(before.columns) if before else None
        if table.copy_lsn is not None:
            first = 1
            state = {
                each.attribute_number: (each.name, each.type_name)
                for each in versions[0].columns
                if each.attribute_number is not None
            }
        highest_number = max([before.highest_number if before else 0, *(state or ())])
        named = [[(each.name, each.type_name) for each in v.columns] for v in versions[first:]]
        if not named:
            return tuple(versions), highest_number
        found = attribute(state, named, self._catalog(table.relation_oid), highest_number)
        # If nothing is known from before, nothing can be destroyed.
        if found.tied and state is not None:
            self._refuse_tied(table, found.tied)
        if found.unsure:
            self._warn_of_doubt(table, found.unsure, has_past=state is not None)
        for index, numbers in enumerate(found.numbers, start=first):
            columns = tuple(
                dataclasses.replace(column, attribute_number=number)
                for column, number in zip(versions[index].columns, numbers, strict=True)
            )
            versions[index] = dataclasses.replace(versions[index], columns=columns)
        return tuple(versions), found.highest_number

    def _refuse_no_columns(self, table: Table) -> None:
        """Refuse rows from a time without columns. The table has some now, and their values were not sent."""
        if COPY in {self.policy.on_unknown_default, self.policy.on_unsure_column}:
            raise CopyNeeded(table.relation_oid)
        raise TableRefused(
            "Rows came while the table had no columns, and it has some again.",
            table=table.name,
            advice=f"copy the table again (copy_tables=[{table.name!r}]).",
        )

    def _highest_number(self, relation_oid: int, last: TableVersion, highest_number: int) -> int:
        """The number to record as ``Shape.highest_number``."""
        published = {each.attribute_number or 0 for each in last.columns}
        live = {e.number for e in self.attributes.get(relation_oid, ()) if not e.is_dropped}
        # A column that exists now and is not published may be published later, and dropped before a run looks
        # at it.
        is_hidden = any(number <= highest_number for number in live - published)
        return max(published, default=0) if is_hidden else highest_number

    def _refuse_tied(self, table: Table, columns: frozenset[str]) -> None:
        if self.policy.on_unsure_column == IGNORE:
            return
        names = ", ".join(sorted(columns))
        # The copied columns are known, but not those of the rows after the copy.
        if self.policy.on_unsure_column == COPY or table.copy_lsn is not None:
            raise copy_needed(table, names)
        raise TableRefused(
            "A column was dropped and another took its place, and neither the stream nor the catalog"
            " tells to which of the two the values in this batch belong.",
            table=table.name,
            column=names,
            advice=f"copy the table again (copy_tables=[{table.name!r}], or on_unsure_column='copy' in"
            " the stage task); on_unsure_column='ignore' takes them for the newer column's.",
        )

    def _warn_of_doubt(self, table: Table, columns: frozenset[str], *, has_past: bool) -> None:
        exact = way_on(table, f"copy_tables=[{table.name!r}] makes it exact")
        if not self.attributes.get(table.relation_oid):
            outcome = "the table is gone, so columns go by their names"
        elif has_past:
            outcome = f"what needs the fewest changes is taken. {exact}"
        else:
            outcome = (
                "no earlier batch says which columns there were, so columns go by their names: of one that"
                f" was renamed, older values stay under its old name. {exact}"
            )
        log.warning(
            "%s: whether %s kept its values or is a new column of that name cannot be told from the"
            " stream and the catalog: %s.",
            table.name,
            ", ".join(sorted(columns)),
            outcome,
        )

    def _catalog(self, relation_oid: int) -> Catalog:
        attributes = self.attributes.get(relation_oid, ())
        live = {
            each.number: (each.name, self.type_name(each.type_oid, each.type_modifier))
            for each in attributes
            if not each.is_dropped
        }
        names = self.published.get(relation_oid)
        return Catalog(
            {number: each for number, each in live.items() if not names or each[0] in names},
            frozenset(each.number for each in attributes),
            live,
        )

    def _filled(self, table: Table, version: TableVersion) -> TableVersion:
        """Look up the values of older rows by number: another column may have had the name meanwhile."""
        now = {each.number: each for each in self.attributes.get(table.relation_oid, ())}

        def filled(column: Column) -> Column:
            number = column.attribute_number
            found = None if number is None else now.get(number)
            if found is None:
                return column
            if found.missing_value is None and found.name == column.name:
                # The value was read by name, before the table was rewritten.
                return column
            return self.showing(table.name, column, found.missing_value)

        return dataclasses.replace(version, columns=tuple(map(filled, version.columns)))

    def _changes(
        self,
        relation_oid: int,
        before: Shape | None,
        versions: Sequence[TableVersion],
        earlier: Storage | None,
    ) -> list[SchemaChange]:
        """The changes from the last batch through all versions.

        :param before: the table at the end of the last batch; None: only changes between versions are found.
        :param earlier: the table's files before these changes. They tell how many columns it had then, so
            that these do not count as new. None: not known.
        """
        columns = 0 if earlier is None else earlier.columns
        shapes = [*([before] if before else []), *map(Shape.of, versions)]
        live = {e.number for e in self.attributes.get(relation_oid, ()) if not e.is_dropped}
        found = [each for pair in itertools.pairwise(shapes) for each in differences(*pair, live)]
        return [
            dataclasses.replace(each, kind=shape.PUBLISHED)
            if each.kind == shape.ADDED and (each.attribute_number or columns + 1) <= columns
            else each
            for each in found
        ]

    def _copy_for_types(self, table: Table, before: Shape) -> None:
        if self.policy.on_type_change != COPY:
            return
        for column in unfollowable(table, before):
            log.warning(
                "%s: Iceberg cannot follow the change of column %s to %s: the table is copied again, as"
                " on_type_change says.",
                table.name,
                column.name,
                column.type_name,
            )
            raise CopyNeeded(table.relation_oid)

    def _converted_rows(self, table: Table, before: Shape, changes: Sequence[SchemaChange]) -> None:
        """Do what the policy says about a change of type that gave existing rows other values."""
        # For these columns apply refuses all older values anyway.
        refused = {each.attribute_number for each in unfollowable(table, before)}
        columns = (each for version in table.versions for each in version.columns)
        texts = {each.attribute_number for each in columns if each.lake_type == STRING}
        for change in changes:
            if change.kind not in {shape.RETYPED, shape.TYPE_REPLACED}:
                continue
            as_text = change.attribute_number in texts
            if change.attribute_number in refused or keeps_values(
                change.before, change.after, as_text=as_text
            ):
                continue
            log.warning(
                "%s: %s. PostgreSQL sends nothing of the rows that it converted: they have in the lake what"
                " they had until they change. %s.",
                table.name,
                change,
                way_on(
                    table,
                    f"copy_tables=[{table.name!r}] brings them in; on_type_change='copy' does so by itself"
                    " from now on",
                ),
            )
            if self.policy.on_type_change == COPY:
                raise copy_needed(table, change.column)
            refuse_unknown_key(table, change.attribute_number, "of the key changed its type")


def _since_earlier_table(earlier: Shape, version: TableVersion) -> list[SchemaChange]:
    """The changes since an earlier table of the same name. The numbers of the two have nothing in common."""
    return differences(_by_name(earlier), _by_name(Shape.of(version)), set())


def _by_name(known: Shape) -> Shape:
    columns = tuple(dataclasses.replace(each, number=None, type_oid=0) for each in known.columns)
    return dataclasses.replace(known, columns=columns)


def _refuse_late_types(table: Table) -> None:
    """Refuse here what apply cannot follow. Otherwise apply would get the sealed batch again and again.

    :raises SnapshotLost: a column of a copied table was changed after the copy.
    """
    for column in unfollowable(table, None):
        raise copy_needed(table, column.name)


def _state(columns: Sequence[shape.KnownColumn]) -> dict[int, tuple[str, str]] | None:
    """Columns by number; None: some have no number, so nothing is known about the others."""
    if any(each.number is None for each in columns):
        return None
    return {each.number: (each.name, each.type_name) for each in columns if each.number is not None}
