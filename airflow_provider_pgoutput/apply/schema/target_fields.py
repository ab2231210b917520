"""Follows the fields of a target through the versions of a batch's table, oldest first.

``column_layout.py`` asks for the fields of each version, and explains retired fields.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.schema.column_map import (
    earlier_table_fields,
    fields_of,
    known_fields,
    retired_before_batch,
    retired_fields,
    unnumbered_fields,
)
from airflow_provider_pgoutput.batch.lake_types import loses_fields, widens
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.apply.schema.column_map import Field
    from airflow_provider_pgoutput.batch.table_version import Column

log = logging.getLogger(__name__)


@dataclass(eq=False)
class TargetField:
    """A field of the target that exists, or that is to be made."""

    name: str
    lake_type: str
    number: int | None
    field: Field | None = None
    #: Whether the newest version of the batch has the column.
    is_current: bool = False
    #: Whether a new field of the same ``attnum`` takes its name.
    is_retired: bool = False
    #: Whether it is to be dropped.
    is_dropped: bool = False

    def follow(self, column: Column) -> None:
        """Take the name and the wider type of a column, as it is from this version on."""
        if widens(self.lake_type, column.lake_type):
            self.lake_type = column.lake_type
        if not self.is_retired:
            self.name = column.name

    def identify(self, number: int | None) -> None:
        """Take the ``attnum`` that was not known until now."""
        self.number = number

    def retire(self, *, is_dropped: bool = False) -> None:
        """Give way to a new field of the same ``attnum``."""
        self.is_retired, self.is_dropped = True, is_dropped

    def mark_dropped(self, *, is_dropped: bool) -> None:
        """Note whether the field is to be dropped."""
        self.is_dropped = is_dropped

    def give_up_name(self, taken: Collection[str]) -> None:
        """Take a free name in place of its own."""
        suffix = "" if self.number is None else f"_{self.number}"
        base = f"{self.name}__old{suffix}"
        names = [base, *(f"{base}_{i}" for i in range(2, 1000))]
        self.name = next(name for name in names if name not in taken)

    def mark_current(self, *, is_current: bool) -> None:
        """Note whether the newest version has the column."""
        self.is_current = is_current


@dataclass
class TargetFields:
    """All fields of a target, as they are after the versions that were taken so far."""

    table: str
    #: What follows if a column changes to a type that Iceberg cannot follow. True: its old values stay, in a
    #: column of another name. False: the table is refused, unless the batch copies it.
    keeps_retyped: bool
    #: Whether the batch copies the table in the version that is taken next, or in a later one.
    copies: bool
    #: By name: the fields of the target that no column has taken yet.
    free: dict[str, Field]
    #: Names of the columns by which rows of the target are found.
    keys: frozenset[str]
    #: Whether the target has earlier versions of rows. Then the old values stay in any case, also if a copy
    #: brings all rows again.
    is_history: bool = False
    #: Ids of the fields that other slices of a shared table use. They are not renamed, and not dropped.
    of_others: frozenset[int] = frozenset()
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

    def take_known_fields(
        self,
        target: IcebergTable | None,
        relation_oid: int,
        starts: Collection[str],
        added: frozenset[int | None],
    ) -> bool:
        """Take the fields that the target's property names.

        An earlier attempt at the same batch may have made some of them. They are taken in the order in which
        that attempt made them. So each row goes to the same field as if there had been one attempt only.

        :param starts: where this batch starts, see ``lay_out``.
        :param added: see the attribute.
        :return: whether the property names any field.
        """
        by_id = {each.id: each for each in fields_of(target)}
        known, retired = known_fields(target, relation_oid), retired_fields(target, relation_oid)
        before_batch = retired_before_batch(target, relation_oid, starts)
        # Retired fields first: then the next field to retire gets another name.
        for number, field_ids in retired.items():
            count = len(field_ids) if before_batch is None else before_batch.get(number, 0)
            # Taken without the number: when the source drops the column, the field with old values stays.
            for held in (by_id[each] for each in field_ids[:count] if each in by_id):
                target_field = self._known(held, None)
                target_field.retire()
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
            self.added = added
            self.set_apart(earlier_table_fields(target, relation_oid))
        return bool(known)

    def set_apart(self, field_ids: Collection[int], *, is_dropped: bool = False) -> None:
        """Set fields of an earlier table of the same name apart, except for those that a column has taken.

        A column that gets the name of such a field later is new. Then the field gets another name. It does
        not keep its name as a user's own column would.
        """
        mine = set(field_ids) - self.of_others
        for held in [each for each in self.free.values() if each.id in mine]:
            target_field = self._known(held, None)
            target_field.mark_dropped(is_dropped=is_dropped)
            self.every.append(target_field)
            self.of_earlier_table.append(target_field)

    def _known(self, found: Field, number: int | None) -> TargetField:
        del self.free[found.name]
        return TargetField(found.name, found.lake_type, number, found)

    def take_version(self, columns: Sequence[Column], *, copies: bool) -> list[TargetField]:
        """The fields of the columns of the next version.

        :param copies: whether the batch copies the table in this version, or in a later one.
        """
        self.copies = copies
        for each in self.every if columns else ():
            each.mark_current(is_current=False)
        row = [self.take(column) for column in columns]
        for each in row:
            each.mark_current(is_current=True)
        return row

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
            target_field.identify(number)
        if target_field is None:
            found = self.free.pop(column.name, None)
            if found is not None and number in self.added and found.id not in self.of_others:
                self.refuse_taken(column.name, "added at the source under")
            kind = column.lake_type if found is None else found.lake_type
            target_field = self._add(key, TargetField(column.name, kind, number, found))
        is_key = column.name in self.keys
        if not fits(target_field.lake_type, column.lake_type) or (
            is_key and loses_fields(target_field.lake_type, column.lake_type)
        ):
            target_field = self._replace(key, target_field, column, is_key)
        target_field.follow(column)
        return target_field

    def _names(self, key: int | str) -> set[str]:
        """Names of a column's field, and of the fields that an earlier attempt added for the column."""
        made = self.made.get(key, []) if isinstance(key, int) else []
        return {each.name for each in [self.by_column[key], *made]}

    def _replace(
        self, key: int | str, target_field: TargetField, column: Column, is_key: bool
    ) -> TargetField:
        if target_field.field is not None and target_field.field.id in self.of_others:
            raise TableRefused(
                f"The type changed from {target_field.lake_type} to {column.lake_type}, which Iceberg cannot"
                " follow, and other tables share the column in the lake.",
                table=self.table,
                column=column.name,
                advice="give the column another name in the lake (renamed_columns in table_options), and copy"
                f" the table again (copy_tables=[{self.table!r}]).",
            )
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
        # The copy brings all rows again, so the old field would be NULL in each of them. Earlier versions of
        # rows keep their values.
        target_field.retire(is_dropped=self.copies and not self.is_history)
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

    def drop_gone(self, gone: Collection[int | None], keys: Collection[str]) -> None:
        """Drop the fields of columns that the source dropped.

        :param gone: each ``attnum`` of these columns.
        :param keys: key columns of the batch's versions. Their fields stay.
        """
        for each in self.every:
            if each.number in gone and each.number is not None and not each.is_current:
                each.mark_dropped(is_dropped=each.name not in keys)

    def drop_unnumbered(self) -> None:
        """Drop the fields without a number that no column of the newest version has.

        The columns of the copy have numbers, and such a field has none. It has the earlier name of one of
        them, or its column is gone. Either way no row of the copy has a value in it.
        """
        for each in self.unnumbered().values():
            each.mark_dropped(is_dropped=not each.is_current)

    def keep_in_use(self, field_ids: Collection[int]) -> None:
        """Do not drop the fields that ``columns_in_use`` names."""
        for each in self.every:
            if each.is_dropped and each.field and each.field.id in field_ids:
                each.mark_dropped(is_dropped=False)
                log.warning(
                    "%s: column %s of the target stays: the target is, or was once, partitioned or sorted by"
                    " it.",
                    self.table,
                    each.field.name,
                )

    def leave_to_others(self) -> None:
        """Keep the fields that other slices use as they are.

        :raises TableRefused: a column got another name at the source, and other slices still use its field.
            Or a column was dropped, and a new one has its name.
        """
        shared = {
            each.field.name: each
            for each in self.every
            if each.field is not None and each.field.id in self.of_others
        }
        for each in shared.values():
            each.mark_dropped(is_dropped=False)
        names = {
            each.name: name
            for name, each in shared.items()
            if each.is_current and each.name != name
        }
        if names:
            column = next(iter(names))
            raise TableRefused(
                f"The column was renamed at the source, and other tables share the column"
                f" {names[column]!r} of the lake.",
                table=self.table,
                column=column,
                advice=f"give it the name that it has in the lake: renamed_columns={names} in table_options.",
            )
        for each in self.every:
            if each.is_current and shared.get(each.name, each) is not each:
                raise TableRefused(
                    f"The column has the name of an earlier column of the table, and other tables share the"
                    f" column {each.name!r} of the lake.",
                    table=self.table,
                    column=each.name,
                    advice="give it another name in the lake (renamed_columns in table_options).",
                )

    def settle_names(self) -> None:
        """Give current columns the names that the source has. A retired field of such a name gets another.

        :raises TableRefused: a user's own column of the target has the name.
        """
        taken = {each.name for each in self.every if each.is_current and not each.is_retired}
        if clash := sorted(taken & self.free.keys()):
            self.refuse_taken(clash[0], "renamed at the source to")
        taken |= self.free.keys()
        # The field with the older values gives up its name, even if the newer column is gone at the end of
        # the batch.
        unnumbered = set(self.unnumbered().values())
        for each in sorted(self.every, key=lambda target_field: target_field.is_retired):
            if each.is_current and not each.is_retired:
                continue
            if each.name in taken or each.is_dropped:
                name = each.name
                each.give_up_name(taken)
                if each in unnumbered and not each.is_dropped:
                    log.warning(
                        "%s: an earlier batch did not know which column of the source %s was, and it is"
                        " another one now. What that batch wrote is in column %s now. copy_tables=[%r] makes"
                        " it exact.",
                        self.table,
                        name,
                        each.name,
                        self.table,
                    )
            taken.add(each.name)

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
