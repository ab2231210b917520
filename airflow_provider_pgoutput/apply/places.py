"""The places that a target has for the columns of the source, while the versions of a batch are gone through.

What is not here: which batch makes what of them (``layout.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.recorded import (
    begun_counts,
    fields_of,
    former_fields,
    known_fields,
    retired_fields,
)
from airflow_provider_pgoutput.batch.plan import NEW_COLUMN
from airflow_provider_pgoutput.batch.widening import loses_fields, widens
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_provider_pgoutput.apply.iceberg import IcebergTable
    from airflow_provider_pgoutput.apply.recorded import Field
    from airflow_provider_pgoutput.batch.manifest import Column


@dataclass(eq=False)
class Place:
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
class Places:
    """The places of a table while its versions are gone through."""

    table: str
    policy: str
    #: Whether the batch's copy is of the version that is taken next, or of a later one.
    copies: bool
    free: dict[str, Field]
    #: Names of the columns by which rows of the target are found.
    keys: frozenset[str]
    every: list[Place] = field(default_factory=list)
    #: The place of each column now, by number, or by name where there is none.
    by_column: dict[int | str, Place] = field(default_factory=dict)
    #: By number: the places that made room, oldest first.
    retired: dict[int, list[Place]] = field(default_factory=dict)
    #: By number: the places that an attempt at the batch made already, in the order in which they are next.
    made: dict[int, list[Place]] = field(default_factory=dict)
    #: Of columns that only a table which had the name before has; like those of dropped ones, they make room.
    former: list[Place] = field(default_factory=list)
    #: Numbers of columns that are new at the source, where the target says which are not.
    added: frozenset[int | None] = frozenset()

    def know(self, target: IcebergTable | None, relation_oid: int, starts: Collection[str]) -> bool:
        """Take the fields over that the target's property names; whether there are any.

        What an attempt at a batch of these starts made is taken over in the order in which that made it, so
        that an attempt which follows puts every row where one alone would have.
        """
        by_id = {each.id: each for each in fields_of(target)}
        known, retired = known_fields(target, relation_oid), retired_fields(target, relation_oid)
        begun = begun_counts(target, relation_oid, starts)
        # Those that made room first, so that whatever makes room next takes another name.
        for number, field_ids in retired.items():
            count = len(field_ids) if begun is None else begun.get(number, 0)
            # Without a number: it is not dropped with the column whose older values it keeps.
            for held in (by_id[each] for each in field_ids[:count] if each in by_id):
                place = self._known(held, None)
                place.is_retired = True
                self.every.append(place)
                self.retired.setdefault(number, []).append(place)
        for number, field_id in known.items():
            count = len(retired.get(number, ())) if begun is None else begun.get(number, 0)
            chain = [*retired.get(number, ())[count:], field_id]
            places = [self._known(by_id[each], number) for each in chain if each in by_id]
            if places:
                self.every += places
                self.by_column[number], *self.made[number] = places
        if known:
            self.leave(former_fields(target, relation_oid))
        return bool(known)

    def leave(self, field_ids: Collection[int], *, is_dropped: bool = False) -> None:
        """Take those of these fields that no column has for columns of a former table alone.

        What comes later under their names is new, and nobody added them to the target.
        """
        for held in [each for each in self.free.values() if each.id in field_ids]:
            place = self._known(held, None)
            place.is_dropped = is_dropped
            self.every.append(place)
            self.former.append(place)

    def _known(self, found: Field, number: int | None) -> Place:
        del self.free[found.name]
        return Place(found.name, found.lake_type, number, found)

    def take(self, column: Column) -> Place:
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
            place = self._add(key, Place(column.name, kind, number, found))
        is_key = column.name in self.keys
        if not fits(place.lake_type, column.lake_type) or (
            is_key and loses_fields(place.lake_type, column.lake_type)
        ):
            place = self._replace(key, place, column, is_key)
        if widens(place.lake_type, column.lake_type):
            place.lake_type = column.lake_type
        if not place.is_retired:
            place.name = column.name
        return place

    def _replace(self, key: int | str, place: Place, column: Column, is_key: bool) -> Place:
        # Older rows would have no key any more, and double when they change.
        if not self.copies and (self.policy != NEW_COLUMN or is_key):
            raise TableRefused(
                f"The type changed from {place.lake_type} to {column.lake_type}, which Iceberg cannot"
                " follow.",
                table=self.table,
                column=column.name,
                advice=f"one of three: copy the table again (copy_tables=[{self.table!r}], or"
                " type_changes='copy' in the stage task); keep the old values beside in a column of"
                " another name (type_changes='new_column' in the plan options; not of a column that"
                " identifies rows); or change the column back at the source.",
            )
        place.is_retired = True
        # A copy has all values of now, so the old ones would be NULL in every row.
        place.is_dropped = self.copies
        if place.number is not None:
            self.retired.setdefault(place.number, []).append(place)
            made = self.made.get(place.number)
            if made and fits(made[0].lake_type, column.lake_type):
                self.by_column[key] = made[0]
                return made.pop(0)
        return self._add(key, Place(column.name, column.lake_type, place.number))

    def _add(self, key: int | str, place: Place) -> Place:
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
        found: dict[tuple[int, int], Place] = {}
        for number, place in self.by_column.items():
            if not isinstance(number, int):
                continue
            # What was made for versions that the batch no longer has is the newest all the same.
            chain = [*self.retired.get(number, []), place, *self.made.get(number, [])]
            found[number, 0] = chain.pop()
            found |= {(number, age): each for age, each in enumerate(chain, start=1)}
        return {slot: each.name for slot, each in found.items() if not each.is_dropped}


def fits(held: str, staged: str) -> bool:
    """Whether a place and a column have one type, or one that Iceberg can widen."""
    return held == staged or widens(held, staged) or widens(staged, held)
