"""Which field of the Iceberg table is which column of the source: renames, drops and new columns.

A field belongs to an ``attnum`` of the source's table. From the first batch on, a property of the target says
which field belongs to which number (``column_map.py``). So ``RENAME COLUMN a TO b`` at the source renames the
field, and the field keeps its id. All later steps go by name. For them the versions of the batch get the
names that their columns have in the target. ``evolve.py`` changes the target.

A field can be retired: ``b`` changed from ``text`` to ``int`` with ``keep_retyped_columns``. The old
field is then called ``b__old_3``, keeps the old values, and a new field is called ``b``.

Source: https://iceberg.apache.org/spec/#schema-evolution
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.schema.column_map import (
    earlier_table_fields,
    fields_of,
    known_fields,
    retired_before_batch,
    retired_fields,
    retiring_batch,
    unnumbered_fields,
    unsent_numbers,
)
from airflow_provider_pgoutput.apply.schema.partitioning import columns_in_use
from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.batch.identity import lookup_columns
from airflow_provider_pgoutput.batch.jobs import METADATA_COLUMNS
from airflow_provider_pgoutput.batch.lake_types import loses_fields, widens
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.apply.schema.column_map import Field, RetiringBatch
    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.table_version import Column, TableVersion


@dataclass(eq=False)
class TargetField:
    """A field of the target that exists, or that is to be made."""

    name: str
    lake_type: str
    number: int | None
    field: Field | None = None
    #: Whether the newest version of the batch has the column.
    is_current: bool = False
    #: Whether a new field of the same ``attnum`` takes its name, see the top of this file.
    is_retired: bool = False
    #: Whether it is to be dropped.
    is_dropped: bool = False


@dataclass
class TargetFields:
    """The fields of a table while its versions are gone through, oldest first."""

    table: str
    #: Whether the old values of a column stay in a column of another name, when its type changed so that
    #: Iceberg cannot follow.
    keeps_retyped: bool
    #: Whether the batch copies the table in the version that is taken next, or in a later one.
    copies: bool
    free: dict[str, Field]
    #: Names of the columns by which rows of the target are found.
    keys: frozenset[str]
    every: list[TargetField] = field(default_factory=list)
    #: The field of each column now, by ``attnum``; by name where the number is not known.
    by_column: dict[int | str, TargetField] = field(default_factory=dict)
    #: The retired fields by ``attnum``, oldest first.
    retired: dict[int, list[TargetField]] = field(default_factory=dict)
    #: By ``attnum``: the fields that an earlier attempt at the batch made, in the order in which they are
    #: needed.
    made: dict[int, list[TargetField]] = field(default_factory=dict)
    #: Fields that belong to an earlier table of the same name, and to no column of this one.
    of_earlier_table: list[TargetField] = field(default_factory=list)
    #: Each ``attnum`` that is new at the source. Known only if the target has the property.
    added: frozenset[int | None] = frozenset()

    def know(self, target: IcebergTable | None, relation_oid: int, starts: Collection[str]) -> bool:
        """Take the fields that the target's property names.

        An earlier attempt at the same batch may have made some of them. They are taken in the order in which
        that attempt made them. So each row goes to the same field as if there had been one attempt only.

        :param starts: where this batch starts, see ``lay_out``.
        :return: whether the property names any field.
        """
        by_id = {each.id: each for each in fields_of(target)}
        known, retired = known_fields(target, relation_oid), retired_fields(target, relation_oid)
        before_batch = retired_before_batch(target, relation_oid, starts)
        # Retired fields first: then the next field to retire gets another name.
        for number, field_ids in retired.items():
            count = len(field_ids) if before_batch is None else before_batch.get(number, 0)
            # Without its number: when the source drops the column, the field with its old values stays.
            for held in (by_id[each] for each in field_ids[:count] if each in by_id):
                target_field = self._known(held, None)
                target_field.is_retired = True
                self.every.append(target_field)
                self.retired.setdefault(number, []).append(target_field)
        for number, field_id in known.items():
            count = (
                len(retired.get(number, ()))
                if before_batch is None
                else before_batch.get(number, 0)
            )
            chain = [*retired.get(number, ())[count:], field_id]
            target_fields = [self._known(by_id[each], number) for each in chain if each in by_id]
            if target_fields:
                self.every += target_fields
                self.by_column[number], *self.made[number] = target_fields
        for held in (by_id[e] for e in unnumbered_fields(target, relation_oid) if e in by_id):
            self.every.append(self._known(held, None))
            self.by_column[held.name] = self.every[-1]
        if known:
            self.leave(earlier_table_fields(target, relation_oid))
        return bool(known)

    def leave(self, field_ids: Collection[int], *, is_dropped: bool = False) -> None:
        """Take those of these fields that no column has: they belong to an earlier table of the same name.

        A column that gets such a name later is new. The user did not add these fields, so they are not in its
        way.
        """
        for held in [each for each in self.free.values() if each.id in field_ids]:
            target_field = self._known(held, None)
            target_field.is_dropped = is_dropped
            self.every.append(target_field)
            self.of_earlier_table.append(target_field)

    def _known(self, found: Field, number: int | None) -> TargetField:
        del self.free[found.name]
        return TargetField(found.name, found.lake_type, number, found)

    def take(self, column: Column) -> TargetField:
        """The field of a column of the next version."""
        number = column.attribute_number
        key: int | str = column.name if number is None else number
        target_field = self.by_column.get(key)
        if target_field is None and number is None:
            # No number is known: take the field that has this name now.
            key = next((each for each in self.by_column if column.name in self._names(each)), key)
            target_field = self.by_column.get(key)
        elif target_field is None and number not in self.added and column.name in self.by_column:
            # The number was not known until now.
            target_field = self.by_column[key] = self.by_column.pop(column.name)
            target_field.number = number
        if target_field is None:
            found = self.free.pop(column.name, None)
            if found is not None and number in self.added:
                self.refuse_taken(column.name, "added at the source under")
            kind = column.lake_type if found is None else found.lake_type
            target_field = self._add(key, TargetField(column.name, kind, number, found))
        is_key = column.name in self.keys
        if not fits(target_field.lake_type, column.lake_type) or (
            is_key and loses_fields(target_field.lake_type, column.lake_type)
        ):
            target_field = self._replace(key, target_field, column, is_key)
        if widens(target_field.lake_type, column.lake_type):
            target_field.lake_type = column.lake_type
        if not target_field.is_retired:
            target_field.name = column.name
        return target_field

    def _names(self, key: int | str) -> set[str]:
        """Names of a column's field, and of the fields that an earlier attempt added for the column."""
        made = self.made.get(key, []) if isinstance(key, int) else []
        return {each.name for each in [self.by_column[key], *made]}

    def _replace(
        self, key: int | str, target_field: TargetField, column: Column, is_key: bool
    ) -> TargetField:
        # With a key of another type, older rows would not be found by it, and a change would add a second
        # row.
        if not self.copies and (not self.keeps_retyped or is_key):
            raise TableRefused(
                f"The type changed from {target_field.lake_type} to {column.lake_type}, which Iceberg cannot"
                " follow.",
                table=self.table,
                column=column.name,
                advice=f"one of three: copy the table again (copy_tables=[{self.table!r}], or"
                " on_type_change='copy' in the stage task); keep the old values beside in a column of"
                " another name (keep_retyped_columns in plan_options; not of a column that"
                " identifies rows); or change the column back at the source.",
            )
        target_field.is_retired = True
        # The copy brings all rows again, so the old field would be NULL in each of them.
        target_field.is_dropped = self.copies
        if target_field.number is not None:
            self.retired.setdefault(target_field.number, []).append(target_field)
            made = self.made.get(target_field.number)
            if made and fits(made[0].lake_type, column.lake_type):
                self.by_column[key] = made[0]
                return made.pop(0)
        return self._add(key, TargetField(column.name, column.lake_type, target_field.number))

    def _add(self, key: int | str, target_field: TargetField) -> TargetField:
        self.every.append(target_field)
        self.by_column[key] = target_field
        return target_field

    def refuse_taken(self, name: str, change: str) -> None:
        """Refuse a new name that a user's own column of the target has.

        :raises TableRefused: always.
        """
        raise TableRefused(
            f"A column was {change} the name of a column that a user added to the target.",
            table=self.table,
            column=name,
            advice="rename that column of the target; the batch waits.",
        )

    def unnumbered(self) -> dict[str, TargetField]:
        """The fields of columns whose number is not known, by the column's name."""
        return {key: each for key, each in self.by_column.items() if isinstance(key, str)}

    def numbered(self) -> dict[tuple[int, int], str]:
        """The names to record in the target's property, see ``Layout.numbered``."""
        found: dict[tuple[int, int], TargetField] = {}
        for number, target_field in self.by_column.items():
            if not isinstance(number, int):
                continue
            # An earlier attempt may have made a field for a version that the batch no longer has. It is still
            # the newest field of its number.
            chain = [*self.retired.get(number, []), target_field, *self.made.get(number, [])]
            found[number, 0] = chain.pop()
            found |= {(number, age): each for age, each in enumerate(chain, start=1)}
        return {slot: each.name for slot, each in found.items() if not each.is_dropped}


def fits(held: str, staged: str) -> bool:
    """Whether a field can hold the column: the types are the same, or Iceberg can widen the field's type."""
    return held == staged or widens(held, staged) or widens(staged, held)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of the batch in the target."""

    #: The batch's table; columns and keys have their names in the target.
    table: Table
    #: New names by field id, of the fields that are renamed.
    renamed: Mapping[int, str] = field(default_factory=dict)
    #: Ids of fields to be dropped.
    dropped: frozenset[int] = frozenset()
    #: Names of columns of the batch that the target does not get.
    left_out: frozenset[str] = frozenset()
    #: Lake types of the target's fields, by the name that they will have.
    existing: Mapping[str, str] = field(default_factory=dict)
    #: The name in the target by ``attnum`` and age. Age 0 is the field in use; 1, 2, ... are retired fields,
    #: oldest first.
    numbered: Mapping[tuple[int, int], str] = field(default_factory=dict)
    #: Names of fields that no version of the batch has: a user's own, or of a column that is gone.
    not_in_batch: frozenset[str] = frozenset()
    #: Names of fields that are a user's own, as far as anything tells.
    user_columns: frozenset[str] = frozenset()
    #: Names of fields that are metadata columns. A column of the source may have such a name; it is not among
    #: them.
    metadata: frozenset[str] = frozenset()
    #: Each ``attnum`` that the source still has, but that a column list leaves out.
    unsent: frozenset[int] = frozenset()
    #: Names of fields that belong to an earlier table of the same name only.
    of_earlier_table: frozenset[str] = frozenset()
    #: Names of fields whose column came without its ``attnum``.
    unnumbered: frozenset[str] = frozenset()
    #: For the target's property: which batch retired fields, see ``column_map.py``.
    retiring_batch: RetiringBatch | None = None

    @property
    def converted(self) -> frozenset[int]:
        """Each ``attnum`` with a retired field: values from before a change of type are in another field."""
        return frozenset(number for number, age in self.numbered if age)


def lay_out(
    table: Table,
    target: IcebergTable | None,
    *,
    starts: Sequence[str],
    copies: bool,
    keeps_retyped: bool,
    drop_columns: bool,
    metadata: Mapping[str, str],
    is_log: bool = False,
    loaded: bool = False,
) -> Layout:
    """Find the field of every column of the batch.

    :param starts: where the batch starts; if the checkpoint is past that, the checkpoint comes first.
    :param copies: the batch holds a copy that replaces all rows.
    :param keeps_retyped: whether the old values of a column stay in a column of another name, when its type
        changed so that Iceberg cannot follow.
    :param drop_columns: whether a column that the source dropped is dropped here.
    :param metadata: lake types of the metadata columns, by name.
    :param is_log: the target is a change log. No row is looked for in it, so no column has to stay its key.
    :param loaded: somebody else loaded the table, so columns that the batch does not name are theirs.
    :raises TableRefused: a change of type cannot be followed, or a name is taken.
    """
    fields = fields_of(target)
    keys = frozenset(name for v in table.versions for name in lookup_columns(v) if not is_log)
    target_fields = TargetFields(
        table.name, keeps_retyped, copies, {each.name: each for each in fields}, keys
    )
    known = target_fields.know(target, table.relation_oid, starts)
    if known:
        new = _numbers_of(table, shape.ADDED) | _numbers_of(table, shape.PUBLISHED)
        target_fields.added = new - {None}
    at: list[list[TargetField]] = []
    copied = _copied_version(table)
    for at_version, version in enumerate(table.versions):
        # For a change of the schema after the copy, the copied rows are older rows like any others.
        target_fields.copies = copies and at_version <= copied
        if version.columns:
            for each in target_fields.every:
                each.is_current = False
        row = [target_fields.take(column) for column in version.columns]
        for each in row:
            each.is_current = True
        at.append(row)
        if at_version == copied and row and not known and (copies or is_log):
            target_fields.leave(
                earlier_table_fields(target, table.relation_oid), is_dropped=drop_columns
            )
    if fields and not known and not copies:
        _warn_of_no_numbers(target_fields, metadata)
    unsent = _unsent(table, target)
    if known and copies:
        for each in target_fields.unnumbered().values():
            # The columns of the copy have numbers, and this field has none. It had another name of one of
            # them, or its column is gone. Either way no row of the copy has a value in it.
            each.is_dropped = not each.is_current
    if drop_columns:
        _mark_dropped(table, target_fields.every)
    _keep_sources(target_fields, target)
    _settle_names(target_fields, frozenset(target_fields.free))
    return Layout(
        table=_in_target(table, at),
        renamed={
            each.field.id: each.name
            for each in target_fields.every
            if each.field and each.field.name != each.name and not each.is_dropped
        },
        dropped=frozenset(e.field.id for e in target_fields.every if e.field and e.is_dropped),
        left_out=frozenset(each.name for each in target_fields.every if each.is_dropped),
        existing=_existing(target_fields),
        numbered=(numbered := target_fields.numbered()),
        not_in_batch=_not_in_batch(target_fields, at, unsent, copies=copies)
        if known or loaded
        else frozenset(),
        user_columns=_user_columns(target_fields),
        metadata=frozenset(target_fields.free) & set(METADATA_COLUMNS),
        unsent=unsent,
        of_earlier_table=frozenset(
            each.name for each in target_fields.of_earlier_table if not each.is_dropped
        ),
        unnumbered=frozenset(
            e.name for e in target_fields.unnumbered().values() if not e.is_dropped
        ),
        retiring_batch=retiring_batch(target, table.relation_oid, starts, numbered),
    )


def _existing(target_fields: TargetFields) -> dict[str, str]:
    return {
        **{name: each.lake_type for name, each in target_fields.free.items()},
        **{e.name: e.field.lake_type for e in target_fields.every if e.field and not e.is_dropped},
    }


def _user_columns(target_fields: TargetFields) -> frozenset[str]:
    return frozenset(target_fields.free) - set(METADATA_COLUMNS)


def _not_in_batch(
    target_fields: TargetFields,
    at: Sequence[Sequence[TargetField]],
    unsent: frozenset[int],
    *,
    copies: bool,
) -> frozenset[str]:
    """Names of fields about which the batch says nothing. A changed row keeps its values in them.

    A copy replaces whole rows: a column that is not published is NULL in them.
    """
    taken = {target_field for row in at for target_field in row}
    unsent = frozenset() if copies else unsent
    left = {
        each.name
        for each in target_fields.every
        if (each.is_retired or each.number in unsent) and not each.is_dropped and each not in taken
    }
    return _user_columns(target_fields) | left


def _unsent(table: Table, target: IcebergTable | None) -> frozenset[int]:
    """Each ``attnum`` that a column list leaves out, since this batch or an earlier one."""
    found = _numbers_of(table, shape.UNPUBLISHED)
    newest = {each.attribute_number for each in table.versions[-1].columns}
    left_out = unsent_numbers(target, table.relation_oid) | found
    return frozenset(each for each in left_out - newest if each is not None)


def _numbers_of(table: Table, kind: str) -> frozenset[int | None]:
    """Each ``attnum`` with a schema change of this kind in the batch."""
    return frozenset(each.attribute_number for each in table.schema_changes if each.kind == kind)


def _copied_version(table: Table) -> int:
    """The version that the copied rows have; the first one if there are none."""
    return max(
        (
            number
            for number, version in enumerate(table.versions)
            if any(file.kind == "copy" for file in version.files)
        ),
        default=0,
    )


def refuse_lost_columns(table: Table, target: IcebergTable | None) -> None:
    """Refuse a target that lost the field of a column: older rows would silently have NULL in it.

    :raises TableRefused: somebody dropped a field, and the source still has its column.
    """
    if target is None or target.is_empty:
        return
    present = {each.id for each in fields_of(target)}
    known = known_fields(target, table.relation_oid)
    lost = {number for number, field_id in known.items() if field_id not in present}
    for column in table.versions[-1].columns:
        if column.attribute_number in lost:
            raise TableRefused(
                "Somebody dropped the column from the target, and the source still has it.",
                table=table.name,
                column=column.name,
                advice=f"copy the table again (copy_tables=[{table.name!r}]).",
            )


def _warn_of_no_numbers(target_fields: TargetFields, metadata: Mapping[str, str]) -> None:
    """Warn once of a target without the property, from an early version: its columns are matched by name."""
    new = sorted(
        each.name for each in target_fields.every if each.field is None and not each.is_retired
    )
    left = sorted(set(target_fields.free) - set(metadata))
    if not new or not left:
        return
    log.warning(
        "%s: the target does not record yet which column is which column of the source, so %s counts as new."
        " If it is %s, renamed, then older rows lack its values until copy_tables=[%r] brings them in.",
        target_fields.table,
        ", ".join(new),
        " or ".join(left),
        target_fields.table,
    )


def _mark_dropped(table: Table, every: Sequence[TargetField]) -> None:
    """Mark the fields of columns that the source dropped, except for key columns of earlier versions."""
    gone = _numbers_of(table, shape.DROPPED)
    keys = {name for version in table.versions for name in version.key_columns}
    for each in every:
        if each.number in gone and each.number is not None and not each.is_current:
            each.is_dropped = each.name not in keys


def _settle_names(target_fields: TargetFields, free: frozenset[str]) -> None:
    """Give current columns the names that the source has. A retired field that has such a name gets another.

    :raises TableRefused: a user's own column of the target has the name.
    """
    taken = {each.name for each in target_fields.every if each.is_current and not each.is_retired}
    if clash := sorted(taken & free):
        target_fields.refuse_taken(clash[0], "renamed at the source to")
    taken |= free
    # The field with the older values gives up its name, also if the newer column is gone by the end of the
    # batch.
    unnumbered = set(target_fields.unnumbered().values())
    for each in sorted(target_fields.every, key=lambda target_field: target_field.is_retired):
        if each.is_current and not each.is_retired:
            continue
        if each.name in taken or each.is_dropped:
            name = each.name
            each.name = _old_name(each, taken)
            if each in unnumbered and not each.is_dropped:
                log.warning(
                    "%s: an earlier batch did not know which column of the source %s was, and it is another"
                    " one now. What that batch wrote is in column %s now. copy_tables=[%r] makes it exact.",
                    target_fields.table,
                    name,
                    each.name,
                    target_fields.table,
                )
        taken.add(each.name)


def _old_name(target_field: TargetField, taken: set[str]) -> str:
    """A free name for a field that gives up its own."""
    suffix = "" if target_field.number is None else f"_{target_field.number}"
    base = f"{target_field.name}__old{suffix}"
    names = [base, *(f"{base}_{i}" for i in range(2, 1000))]
    return next(name for name in names if name not in taken)


def _in_target(table: Table, at: Sequence[Sequence[TargetField]]) -> Table:
    """The batch's table with the column names of the target."""

    def version(one: TableVersion, target_fields: Sequence[TargetField]) -> TableVersion:
        names = {
            c.name: target_field.name
            for c, target_field in zip(one.columns, target_fields, strict=True)
        }
        return dataclasses.replace(
            one,
            columns=tuple(dataclasses.replace(c, name=names[c.name]) for c in one.columns),
            key_columns=tuple(names[name] for name in one.key_columns),
        )

    versions = tuple(version(one, row) for one, row in zip(table.versions, at, strict=True))
    return dataclasses.replace(table, versions=versions)


def _keep_sources(target_fields: TargetFields, target: IcebergTable | None) -> None:
    """Keep each field that the table is partitioned or sorted by, or was once partitioned by."""
    if target is None or not any(each.is_dropped for each in target_fields.every):
        return
    in_use = columns_in_use(target)
    for each in target_fields.every:
        if each.is_dropped and each.field and each.field.id in in_use:
            each.is_dropped = False
            log.warning(
                "%s: column %s of the target stays: the target is, or was once, partitioned or sorted by it.",
                target_fields.table,
                each.field.name,
            )
