"""What a batch does to the columns of a table: numbers, changes in words, and what older rows lack.

Made when all of the batch was read, so that the catalog is asked after the newest row was written.
What is not here: finding the numbers (``attribution.py``), and changing a target; apply does that.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import shape as words
from airflow_provider_pgoutput.batch.shape import SchemaChange, Shape
from airflow_provider_pgoutput.batch.widening import widens
from airflow_provider_pgoutput.capture.schema.attribution import Catalog, attribute
from airflow_provider_pgoutput.capture.schema.full_keys import FullKeys
from airflow_provider_pgoutput.capture.schema.policy import COPY, DEFAULT, FAIL, CopyNeeded
from airflow_provider_pgoutput.capture.schema.rewrites import keeps_values
from airflow_provider_pgoutput.errors import SnapshotLost, TableRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Column, Table, TableVersion
    from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
    from airflow_provider_pgoutput.capture.source.attributes import Attribute

log = logging.getLogger(__name__)

_WAYS_ON = (
    "copy_tables=[%r] brings it in; older_rows='copy' does so by itself from now on, older_rows='default'"
    " writes the column's default if it is a constant"
)


@dataclass(frozen=True)
class SchemaHistory:
    """What is known of the tables of a batch beside the batch itself."""

    policy: SchemaPolicy
    #: By OID, of the last batch that held the table; one that no batch held is not there.
    before: Mapping[int, Shape]
    #: By OID, as they are now.
    attributes: Mapping[int, tuple[Attribute, ...]]
    #: By OID: names of the columns that the publications name now.
    published: Mapping[int, frozenset[str]]
    #: Spells the type of a column as ``Column.type_name`` does.
    type_name: Callable[[int, int], str]
    #: A column of a table that shows this text of PostgreSQL's in older rows.
    showing: Callable[[str, Column, str | None], Column]
    #: The text of a column's constant default, by OID and number.
    constant_default: Callable[[int, int], str | None]
    full_keys: FullKeys = field(default_factory=FullKeys)
    _warned: set[tuple[int, str]] = field(default_factory=set)

    def complete(self, table: Table) -> Table:
        """The table with the numbers of its columns, and what changed since the last batch.

        :raises CopyNeeded: the policy wants a copy, and the batch holds none of it.
        :raises SnapshotLost: the copy that the batch holds was outdated by a change after it.
        :raises TableRefused: columns cannot be told apart, and the policy neither copies nor takes one; or
            see ``FullKeys``.
        """
        before = self.before.get(table.relation_oid)
        versions = self._numbered(table, before)
        versions = tuple(self._filled(table, each) for each in versions)
        changes = self._changes(table.relation_oid, before, versions)
        completed = dataclasses.replace(
            table,
            versions=versions,
            schema_changes=tuple(changes),
            records_columns=before is None or before != Shape.of(versions[-1]),
        )
        for change in changes:
            log.info("%s: %s.", table.name, change)
        self.full_keys.check(completed, before, self.policy)
        past = before
        if table.copy_lsn is not None:
            # The copied rows are of the first version; of what came later they lack as much as any.
            past = Shape.of(versions[0])
            changes = self._changes(table.relation_oid, None, versions)
            _refuse_late_types(completed)
        # Without a past, what came between two versions of the batch is still known.
        completed = self._older_rows(completed, changes, may_copy=past is not None)
        if past is not None:
            self._copy_for_types(completed, past)
            self._converted_rows(completed, past, changes)
        return completed

    def _numbered(self, table: Table, before: Shape | None) -> tuple[TableVersion, ...]:
        """Give the columns of all versions but a copied one, which has them, their numbers."""
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
        named = [[(each.name, each.type_name) for each in v.columns] for v in versions[first:]]
        if not named:
            return tuple(versions)
        found = attribute(state, named, self._catalog(table.relation_oid))
        # Without a past there is nothing that could be destroyed, and a copy has its own.
        if found.tied and state is not None and table.copy_lsn is None:
            self._refuse_tied(table, found.tied)
        if found.unsure:
            self._warn_of_doubt(table, found.unsure, has_past=state is not None)
        for place, numbers in enumerate(found.numbers, start=first):
            columns = tuple(
                dataclasses.replace(column, attribute_number=number)
                for column, number in zip(versions[place].columns, numbers, strict=True)
            )
            versions[place] = dataclasses.replace(versions[place], columns=columns)
        return tuple(versions)

    def _refuse_tied(self, table: Table, columns: frozenset[str]) -> None:
        if self.policy.unsure_columns == COPY:
            raise CopyNeeded(table.relation_oid)
        if self.policy.unsure_columns == FAIL:
            raise TableRefused(
                "A column was dropped and another took its place, and neither the stream nor the catalog"
                " tells to which of the two the values in this batch belong.",
                table=table.name,
                column=", ".join(sorted(columns)),
                advice=f"copy the table again (copy_tables=[{table.name!r}], or unsure_columns='copy' in"
                " the stage task); unsure_columns='warn' takes them for the newer column's.",
            )

    def _warn_of_doubt(self, table: Table, columns: frozenset[str], *, has_past: bool) -> None:
        if not self.attributes.get(table.relation_oid):
            outcome = "the table is gone, so columns go by their names"
        elif has_past:
            outcome = f"it is taken for a new one. copy_tables=[{table.name!r}] makes it exact"
        else:
            outcome = (
                "no earlier batch says which columns there were, so columns go by their names: of one that"
                " was renamed, older values stay under its old name."
                f" copy_tables=[{table.name!r}] makes it exact"
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
        live = [each for each in attributes if not each.is_dropped]
        names = self.published.get(relation_oid) or frozenset(each.name for each in live)
        return Catalog(
            {
                each.number: (each.name, self.type_name(each.type_oid, each.type_modifier))
                for each in live
                if each.name in names
            },
            frozenset(each.number for each in attributes),
            frozenset(each.number for each in live),
        )

    def _filled(self, table: Table, version: TableVersion) -> TableVersion:
        """What older rows show is known by number: the name may have been another column's since."""
        now = {each.number: each for each in self.attributes.get(table.relation_oid, ())}

        def filled(column: Column) -> Column:
            number = column.attribute_number
            found = None if number is None else now.get(number)
            if found is None:
                return column
            if found.missing_value is None and found.name == column.name:
                # Where it was read by the name, it was read before the table was rewritten.
                return column
            return self.showing(table.name, column, found.missing_value)

        return dataclasses.replace(version, columns=tuple(map(filled, version.columns)))

    def _changes(
        self, relation_oid: int, before: Shape | None, versions: Sequence[TableVersion]
    ) -> list[SchemaChange]:
        shapes = [*([before] if before else []), *map(Shape.of, versions)]
        live = {e.number for e in self.attributes.get(relation_oid, ()) if not e.is_dropped}
        return [each for pair in itertools.pairwise(shapes) for each in _differences(*pair, live)]

    def _older_rows(
        self, table: Table, changes: Sequence[SchemaChange], *, may_copy: bool
    ) -> Table:
        """Do what the policy says about added columns of which older rows may show something."""
        attributes = {e.number: e for e in self.attributes.get(table.relation_oid, ())}
        added = {each.attribute_number for each in changes if each.kind == words.ADDED}
        values: dict[int | None, str] = {}
        for number in sorted(each for each in added if each is not None):
            found = attributes.get(number)
            if found is None or found.missing_value is not None or not found.may_have_filled:
                continue
            if self.policy.older_rows == COPY and may_copy:
                raise _copy_needed(table, found.name)
            _refuse_unknown_key(table, number, "was added to the key")
            value = None
            if self.policy.older_rows == DEFAULT:
                value = self.constant_default(table.relation_oid, number)
            if value is None:
                self._warn_of_older_rows(table, found.name)
            else:
                values[number] = value
        return self._with_values(table, values)

    def _with_values(self, table: Table, values: Mapping[int | None, str]) -> Table:
        """The table with what older rows show in some columns."""

        def completed(column: Column) -> Column:
            value = values.get(column.attribute_number)
            return column if value is None else self.showing(table.name, column, value)

        return dataclasses.replace(
            table,
            versions=tuple(
                dataclasses.replace(each, columns=tuple(map(completed, each.columns)))
                for each in table.versions
            ),
        )

    def _warn_of_older_rows(self, table: Table, column: str) -> None:
        if (table.relation_oid, column) in self._warned:
            return
        self._warned.add((table.relation_oid, column))
        log.warning(
            "%s: what older rows show in the added column %s is neither in the stream nor in the catalog"
            " (its default is no constant, or the table was rewritten since): they have NULL in the lake"
            " until they change. " + _WAYS_ON + ".",
            table.name,
            column,
            table.name,
        )

    def _copy_for_types(self, table: Table, before: Shape) -> None:
        if self.policy.type_changes != COPY:
            return
        for column in unfollowable(table, before):
            log.warning(
                "%s: Iceberg cannot follow the change of column %s to %s: the table is copied again, as"
                " type_changes says.",
                table.name,
                column.name,
                column.type_name,
            )
            raise CopyNeeded(table.relation_oid)

    def _converted_rows(self, table: Table, before: Shape, changes: Sequence[SchemaChange]) -> None:
        """Do what the policy says about types whose change made other values of those that there were."""
        # Of these all older values are in question, which apply says.
        refused = {each.attribute_number for each in unfollowable(table, before)}
        for change in changes:
            if (
                change.kind != words.RETYPED
                or change.attribute_number in refused
                or keeps_values(change.before, change.after)
            ):
                continue
            log.warning(
                "%s: column %s changed from %s to %s. PostgreSQL sends nothing of the rows that it converted:"
                " they have in the lake what they had until they change. copy_tables=[%r] brings them in;"
                " type_changes='copy' does so by itself from now on.",
                table.name,
                change.column,
                change.before,
                change.after,
                table.name,
            )
            if self.policy.type_changes == COPY:
                raise _copy_needed(table, change.column)
            _refuse_unknown_key(table, change.attribute_number, "of the key changed its type")


def _copy_needed(table: Table, column: str) -> CopyNeeded | SnapshotLost:
    """What asks for a copy; where the batch holds one, only the next attempt makes another.

    That one does not take the copy over, whose columns are no longer those of the table.
    """
    if table.copy_lsn is None:
        return CopyNeeded(table.relation_oid)
    return SnapshotLost(
        "A column was changed after the table was copied in this batch, so that the copied rows lack what"
        " it holds now. Nothing was staged.",
        table=table.name,
        column=column,
        advice="run the task again: the table is copied anew; keep ALTER TABLE away from it meanwhile.",
    )


def _refuse_late_types(table: Table) -> None:
    """Refuse here what apply cannot follow: a sealed batch would be handed to it again and again.

    :raises SnapshotLost: a column of a copied table was changed after the copy.
    """
    for column in unfollowable(table, None):
        raise _copy_needed(table, column.name)


def _refuse_unknown_key(table: Table, number: int | None, what: str) -> None:
    """Refuse a key whose values in older rows nobody tells: these rows would not be found, and double.

    :raises TableRefused: the column is part of a key of the batch.
    """
    for version in table.versions:
        for column in version.columns:
            if column.attribute_number == number and column.name in version.key_columns:
                if table.copy_lsn is not None:
                    raise _copy_needed(table, column.name)
                raise TableRefused(
                    f"The column {what}, and neither the stream nor the catalog tells what older rows hold in"
                    " it now; without it they cannot be found.",
                    table=table.name,
                    column=column.name,
                    advice=f"copy the table again (copy_tables=[{table.name!r}]).",
                )


def unfollowable(table: Table, before: Shape | None) -> list[Column]:
    """Columns of a batch that changed to a type to which Iceberg cannot follow."""
    if table.copy_lsn is not None:
        # Whatever the lake held gives way to the copy, which has the columns of the first version.
        before = Shape.of(table.versions[0])
    if before is None:
        return []
    found = []
    kinds = {each.number: each.lake_type for each in before.columns if each.number is not None}
    for version in table.versions:
        for column in version.columns:
            number = column.attribute_number
            held = (
                column.lake_type if number is None else kinds.setdefault(number, column.lake_type)
            )
            if held == column.lake_type or widens(column.lake_type, held):
                continue
            if not widens(held, column.lake_type):
                found.append(column)
            if number is not None:
                kinds[number] = column.lake_type
    return found


def _state(columns: Sequence[words.KnownColumn]) -> dict[int, tuple[str, str]] | None:
    """Columns by number; None when some have none, so that nothing can be said of the rest."""
    if any(each.number is None for each in columns):
        return None
    return {each.number: (each.name, each.type_name) for each in columns if each.number is not None}


def _differences(one: Shape, two: Shape, live: set[int]) -> list[SchemaChange]:
    """What lies between two shapes that follow each other."""
    by_name = {each.name: each for each in one.columns}
    by_number = {each.number: each for each in one.columns if each.number is not None}
    found, kept = [], set()
    for column in two.columns:
        earlier = None if column.number is None else by_number.get(column.number)
        namesake = by_name.get(column.name)
        if earlier is None and namesake and None in (namesake.number, column.number):
            earlier = namesake
        if earlier is None:
            found.append(
                SchemaChange(words.ADDED, column.name, "", column.type_name, column.number)
            )
            continue
        kept.add(earlier)
        found += _of_column(earlier, column)
    gone = [
        SchemaChange(
            words.UNPUBLISHED if each.number in live else words.DROPPED,
            each.name,
            attribute_number=each.number,
        )
        for each in one.columns
        if each not in kept
    ]
    renamed = {each.before: each.after for each in found if each.kind == words.RENAMED}
    key = tuple(renamed.get(name, name) for name in one.key)
    if key != two.key:
        found.append(SchemaChange(words.KEY, "", ", ".join(key), ", ".join(two.key)))
    if one.replica_identity != two.replica_identity:
        found.append(SchemaChange(words.IDENTITY, "", one.replica_identity, two.replica_identity))
    return gone + found


def _of_column(one: words.KnownColumn, two: words.KnownColumn) -> list[SchemaChange]:
    found = []
    if one.name != two.name:
        found.append(SchemaChange(words.RENAMED, two.name, one.name, two.name, two.number))
    if one.type_name != two.type_name:
        found.append(
            SchemaChange(words.RETYPED, two.name, one.type_name, two.type_name, two.number)
        )
    return found
