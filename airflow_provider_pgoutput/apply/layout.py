"""Which field of the Iceberg table is which column of the source: renames, drops and new columns.

A field belongs to an ``attnum`` of the source's table; a property of the table says so from the first
batch on. So a rename at the source is a rename here and the field keeps its id. Everything after this
goes by name: the versions of the batch are handed on with the names that their columns have in the
target. What is not here: that property (``recorded.py``), and changing the target (``evolve.py``).

Source: https://iceberg.apache.org/spec/#schema-evolution
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.recorded import fields_of, known_fields, retired_fields
from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.batch.plan import NEW_COLUMN
from airflow_provider_pgoutput.batch.widening import widens
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg import IcebergTable
    from airflow_provider_pgoutput.apply.recorded import Field
    from airflow_provider_pgoutput.batch.manifest import Column, Table, TableVersion

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of the batch in the target."""

    #: The batch's table; columns and keys have their names in the target.
    table: Table
    #: Names by field id, of fields that are called otherwise until now.
    renamed: Mapping[int, str] = field(default_factory=dict)
    #: Ids of fields to be dropped.
    dropped: frozenset[int] = frozenset()
    #: Names of columns of the batch that have no place in the target.
    left_out: frozenset[str] = frozenset()
    #: Lake types of the target's fields, by the name that they will have.
    existing: Mapping[str, str] = field(default_factory=dict)
    #: The name in the target by ``attnum`` and 0; 1 and on: of those that made room for it, oldest first.
    numbered: Mapping[tuple[int, int], str] = field(default_factory=dict)
    #: Names of fields that no version of the batch has: no column of the source, or one of before.
    foreign: frozenset[str] = frozenset()


@dataclass(eq=False)
class _Place:
    """A column of the target, there already or to be made."""

    name: str
    lake_type: str
    number: int | None
    field: Field | None = None
    #: Whether the newest version has it.
    is_current: bool = False
    #: Whether it makes room for a column of the same ``attnum``.
    is_retired: bool = False
    #: Whether it is to be dropped.
    is_dropped: bool = False


@dataclass
class _Places:
    """The places of a table while its versions are gone through."""

    table: str
    policy: str
    #: Whether the batch's copy is of the version that is taken next, or of a later one.
    copies: bool
    free: dict[str, Field]
    #: Names of key columns.
    keys: frozenset[str]
    every: list[_Place] = field(default_factory=list)
    #: The place of each column now, by number, or by name where there is none.
    by_column: dict[int | str, _Place] = field(default_factory=dict)
    #: By number: the places that made room, oldest first.
    retired: dict[int, list[_Place]] = field(default_factory=dict)
    #: By number: the type that the column has in the newest version.
    newest: Mapping[int | None, str] = field(default_factory=dict)
    #: Numbers of columns that are new at the source, where the target says which are not.
    added: frozenset[int | None] = frozenset()

    def know(self, target: IcebergTable | None, relation_oid: int) -> bool:
        """Take the fields over that the target's property names; whether there are any."""
        by_id = {each.id: each for each in fields_of(target)}
        known = known_fields(target, relation_oid)
        # First, so that whatever makes room next takes another name than these.
        for number, field_ids in retired_fields(target, relation_oid).items():
            for held in (by_id[each] for each in field_ids if each in by_id):
                # Without a number: it is not dropped with the column whose older values it keeps.
                place = self._known(held, None)
                place.is_retired = True
                self.every.append(place)
                self.retired.setdefault(number, []).append(place)
        for number, field_id in known.items():
            if (found := by_id.get(field_id)) is not None:
                self._add(number, self._known(found, number))
        return bool(known)

    def _known(self, found: Field, number: int | None) -> _Place:
        del self.free[found.name]
        return _Place(found.name, found.lake_type, number, found)

    def take(self, column: Column) -> _Place:
        """The place of a column of the next version."""
        number = column.attribute_number
        key: int | str = column.name if number is None else number
        place = self.by_column.get(key)
        if place is None and number is None:
            # By name only: whatever has that name now.
            place = next((e for e in self.by_column.values() if e.name == column.name), None)
        elif place is None and (place := self.by_column.pop(column.name, None)) is not None:
            # Its number was not known yet.
            place.number, self.by_column[key] = number, place
        if place is None:
            found = self.free.pop(column.name, None)
            if found is not None and number in self.added:
                self.refuse_taken(column.name, "added at the source under")
            kind = column.lake_type if found is None else found.lake_type
            place = self._add(key, _Place(column.name, kind, number, found))
        if not _fits(place.lake_type, column.lake_type):
            place = self._earlier(place, column) or self._replace(key, place, column)
        if widens(place.lake_type, column.lake_type):
            place.lake_type = column.lake_type
        if not place.is_retired:
            place.name = column.name
        return place

    def _earlier(self, place: _Place, column: Column) -> _Place | None:
        """The place that this version's column had, where an attempt at the batch changed the target already.

        Making room once more would tear the values of before the change apart.
        """
        number = column.attribute_number
        newest = self.newest.get(number)
        if number is None or newest is None or place.field is None:
            return None
        if self.policy != NEW_COLUMN or column.name in self.keys:
            return None
        if not _fits(place.field.lake_type, newest):
            # The target is not as the batch leaves it: the change is yet to be made.
            return None
        earlier = reversed(self.retired.get(number, []))
        return next((each for each in earlier if _fits(each.lake_type, column.lake_type)), None)

    def _replace(self, key: int | str, place: _Place, column: Column) -> _Place:
        # Older rows would have no key any more, and double when they change.
        is_key = column.name in self.keys
        if not self.copies and (self.policy != NEW_COLUMN or is_key):
            raise TableRefused(
                f"The type changed from {place.lake_type} to {column.lake_type}, which Iceberg cannot"
                " follow.",
                table=self.table,
                column=column.name,
                advice=f"one of three: copy the table again (copy_tables=[{self.table!r}], or"
                " type_changes='copy' in the stage task); keep the old values beside in a column of"
                " another name (type_changes='new_column' in the plan options; not of a key column); or"
                " change the column back at the source.",
            )
        place.is_retired = True
        # A copy has all values of now, so the old ones would be NULL in every row.
        place.is_dropped = self.copies
        if place.number is not None:
            self.retired.setdefault(place.number, []).append(place)
        return self._add(key, _Place(column.name, column.lake_type, place.number))

    def _add(self, key: int | str, place: _Place) -> _Place:
        self.every.append(place)
        self.by_column[key] = place
        return place

    def refuse_taken(self, name: str, change: str) -> None:
        """Leave a column alone that somebody else added to the target.

        :raises TableRefused: always.
        """
        raise TableRefused(
            f"A column was {change} a name that a column added to the target has.",
            table=self.table,
            column=name,
            advice="rename that column of the target; the batch waits.",
        )

    def numbered(self) -> dict[tuple[int, int], str]:
        """The names for the target's property, see ``Layout``."""
        slots = {(number, 0): e for number, e in self.by_column.items() if isinstance(number, int)}
        for number, places in self.retired.items():
            slots |= {(number, i): each for i, each in enumerate(places, start=1)}
        return {slot: each.name for slot, each in slots.items() if not each.is_dropped}


def lay_out(
    table: Table,
    target: IcebergTable | None,
    *,
    copies: bool,
    type_changes: str,
    drop_columns: bool,
    metadata: Mapping[str, str],
) -> Layout:
    """Find the place of every column of the batch.

    :param copies: the batch holds a copy that replaces all rows.
    :param type_changes: what is done about a type to which Iceberg cannot follow.
    :param drop_columns: whether what was dropped at the source is dropped here.
    :param metadata: lake types of the metadata columns, by name.
    :raises TableRefused: a type cannot be followed, or a name is taken.
    """
    fields = fields_of(target)
    keys = frozenset(name for version in table.versions for name in version.key_columns)
    places = _Places(table.name, type_changes, copies, {each.name: each for each in fields}, keys)
    places.newest = {e.attribute_number: e.lake_type for v in table.versions for e in v.columns}
    known = places.know(target, table.relation_oid)
    if known:
        added = (each for each in table.schema_changes if each.kind == shape.ADDED)
        places.added = frozenset(each.attribute_number for each in added) - {None}
    at: list[list[_Place]] = []
    copied = _copied_version(table)
    for at_version, version in enumerate(table.versions):
        # Of a change that came after the copy, the copied rows are older rows like any.
        places.copies = copies and at_version <= copied
        if version.columns:
            for each in places.every:
                each.is_current = False
        row = [places.take(column) for column in version.columns]
        for each in row:
            each.is_current = True
        at.append(row)
    if fields and not known and not copies:
        _warn_of_no_numbers(places, metadata)
    if drop_columns:
        _mark_dropped(table, places.every)
    for each in places.every:
        # Iceberg keeps what a partition is made of.
        if each.field and each.field.id in _partition_sources(target):
            each.is_dropped = False
    _settle_names(places, frozenset(places.free))
    return Layout(
        table=_in_target(table, at),
        renamed={
            each.field.id: each.name
            for each in places.every
            if each.field and each.field.name != each.name and not each.is_dropped
        },
        dropped=frozenset(e.field.id for e in places.every if e.field and e.is_dropped),
        left_out=frozenset(each.name for each in places.every if each.is_dropped),
        existing={
            **{name: each.lake_type for name, each in places.free.items()},
            **{e.name: e.field.lake_type for e in places.every if e.field and not e.is_dropped},
        },
        numbered=places.numbered(),
        foreign=_foreign(places, at) - set(metadata) if known else frozenset(),
    )


def _foreign(places: _Places, at: Sequence[Sequence[_Place]]) -> frozenset[str]:
    """Names of fields of which the batch says nothing, so that a changed row keeps what it has in them."""
    taken = {place for row in at for place in row}
    left = {e.name for e in places.every if e.is_retired and not e.is_dropped and e not in taken}
    return frozenset(places.free) | left


def _copied_version(table: Table) -> int:
    """Which of the versions the copied rows are of; the first one when there are none."""
    return max(
        (
            number
            for number, version in enumerate(table.versions)
            if any(file.kind == "copy" for file in version.files)
        ),
        default=0,
    )


def refuse_lost_columns(table: Table, target: IcebergTable | None) -> None:
    """Refuse a target without a field that it had for a column: older rows would silently have NULL in it.

    :raises TableRefused: somebody dropped the field of a column that the source still has.
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


def _warn_of_no_numbers(places: _Places, metadata: Mapping[str, str]) -> None:
    """A table of an earlier version of the package: its columns are matched by name, this once."""
    new = sorted(each.name for each in places.every if each.field is None and not each.is_retired)
    left = sorted(set(places.free) - set(metadata))
    if not new or not left:
        return
    log.warning(
        "%s: the target does not say yet which of its columns is which of the source's, so %s is new in it."
        " If it is %s that was renamed, older rows lack its values until copy_tables=[%r] brings them in.",
        places.table,
        ", ".join(new),
        " or ".join(left),
        places.table,
    )


def _mark_dropped(table: Table, every: Sequence[_Place]) -> None:
    """What the source dropped since the last batch; key columns of earlier versions are still needed."""
    gone = {e.attribute_number for e in table.schema_changes if e.kind == shape.DROPPED}
    keys = {name for version in table.versions for name in version.key_columns}
    for each in every:
        if each.number in gone and each.number is not None and not each.is_current:
            each.is_dropped = each.name not in keys


def _settle_names(places: _Places, foreign: frozenset[str]) -> None:
    """Current columns have the source's names; others make room for them.

    :raises TableRefused: a name is that of a column which somebody added to the target.
    """
    taken = {each.name for each in places.every if each.is_current and not each.is_retired}
    if clash := sorted(taken & foreign):
        places.refuse_taken(clash[0], "renamed at the source to")
    taken |= foreign
    for each in places.every:
        if each.is_current and not each.is_retired:
            continue
        if each.name in taken or each.is_dropped:
            each.name = _old_name(each, taken)
        taken.add(each.name)


def _old_name(place: _Place, taken: set[str]) -> str:
    """The name of a column that gave its own up."""
    suffix = "" if place.number is None else f"_{place.number}"
    base = f"{place.name}__old{suffix}"
    names = [base, *(f"{base}_{i}" for i in range(2, 1000))]
    return next(name for name in names if name not in taken)


def _in_target(table: Table, at: Sequence[Sequence[_Place]]) -> Table:
    """The table with the names of its columns in the target."""

    def version(one: TableVersion, places: Sequence[_Place]) -> TableVersion:
        names = {c.name: place.name for c, place in zip(one.columns, places, strict=True)}
        return dataclasses.replace(
            one,
            columns=tuple(dataclasses.replace(c, name=names[c.name]) for c in one.columns),
            key_columns=tuple(names[name] for name in one.key_columns),
        )

    versions = tuple(version(one, row) for one, row in zip(table.versions, at, strict=True))
    return dataclasses.replace(table, versions=versions)


def _fits(held: str, staged: str) -> bool:
    return held == staged or widens(held, staged) or widens(staged, held)


def _partition_sources(target: IcebergTable | None) -> set[int]:
    if target is None:
        return set()
    return {int(each.sourceId()) for each in target.java.spec().fields()}
