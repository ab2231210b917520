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

from airflow_provider_pgoutput.apply.partitioning import columns_in_use
from airflow_provider_pgoutput.apply.places import Place, Places
from airflow_provider_pgoutput.apply.recorded import (
    begun,
    fields_of,
    former_fields,
    known_fields,
    unsent_numbers,
)
from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.batch.identity import sought_by
from airflow_provider_pgoutput.batch.plan import METADATA_COLUMNS
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg import IcebergTable
    from airflow_provider_pgoutput.apply.recorded import Begun
    from airflow_provider_pgoutput.batch.manifest import Table, TableVersion

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
    #: Names of fields that nothing says to be columns of the source, or of a table of before.
    others: frozenset[str] = frozenset()
    #: Names of fields that are metadata columns, and not columns of the source that are called so.
    metadata: frozenset[str] = frozenset()
    #: Each ``attnum`` that the source has, and does not send any more.
    unsent: frozenset[int] = frozenset()
    #: Names of fields that are columns of a table which had the name before, and of this one no more.
    former: frozenset[str] = frozenset()
    #: For the target's property: which batch made columns make room, see ``recorded.py``.
    begun: Begun | None = None

    @property
    def converted(self) -> frozenset[int]:
        """Each ``attnum`` of which the values of before its last change of type are in another field."""
        return frozenset(number for number, age in self.numbered if age)


def lay_out(
    table: Table,
    target: IcebergTable | None,
    *,
    starts: Sequence[str],
    copies: bool,
    type_changes: str,
    drop_columns: bool,
    metadata: Mapping[str, str],
    is_log: bool = False,
    loaded: bool = False,
) -> Layout:
    """Find the place of every column of the batch.

    :param starts: where the batch starts, and before that the checkpoint, where that is past it.
    :param copies: the batch holds a copy that replaces all rows.
    :param type_changes: what is done about a type to which Iceberg cannot follow.
    :param drop_columns: whether what was dropped at the source is dropped here.
    :param metadata: lake types of the metadata columns, by name.
    :param is_log: no row is looked for in the target, so no column has to be its key.
    :param loaded: others loaded the table, so what the batch does not name is theirs.
    :raises TableRefused: a type cannot be followed, or a name is taken.
    """
    fields = fields_of(target)
    keys = frozenset(name for v in table.versions for name in sought_by(v) if not is_log)
    places = Places(table.name, type_changes, copies, {each.name: each for each in fields}, keys)
    known = places.know(target, table.relation_oid, starts)
    if known:
        new = _numbers_of(table, shape.ADDED) | _numbers_of(table, shape.PUBLISHED)
        places.added = new - {None}
    at: list[list[Place]] = []
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
        if at_version == copied and row and not known and (copies or is_log):
            places.leave(former_fields(target, table.relation_oid), is_dropped=drop_columns)
    if fields and not known and not copies:
        _warn_of_no_numbers(places, metadata)
    unsent = _unsent(table, target)
    if drop_columns:
        _mark_dropped(table, places.every)
    _keep_sources(places, target)
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
        existing=_existing(places),
        numbered=(numbered := places.numbered()),
        foreign=_foreign(places, at, unsent, copies=copies) if known or loaded else frozenset(),
        others=_others(places),
        metadata=frozenset(places.free) & set(METADATA_COLUMNS),
        unsent=unsent,
        former=frozenset(each.name for each in places.former if not each.is_dropped),
        begun=begun(target, table.relation_oid, starts, numbered),
    )


def _existing(places: Places) -> dict[str, str]:
    return {
        **{name: each.lake_type for name, each in places.free.items()},
        **{e.name: e.field.lake_type for e in places.every if e.field and not e.is_dropped},
    }


def _others(places: Places) -> frozenset[str]:
    return frozenset(places.free) - set(METADATA_COLUMNS)


def _foreign(
    places: Places, at: Sequence[Sequence[Place]], unsent: frozenset[int], *, copies: bool
) -> frozenset[str]:
    """Names of fields of which the batch says nothing, so that a changed row keeps what it has in them.

    What is not sent is NULL in the rows of a copy.
    """
    taken = {place for row in at for place in row}
    unsent = frozenset() if copies else unsent
    left = {
        each.name
        for each in places.every
        if (each.is_retired or each.number in unsent) and not each.is_dropped and each not in taken
    }
    return _others(places) | left


def _unsent(table: Table, target: IcebergTable | None) -> frozenset[int]:
    """Each ``attnum`` that a column list left out, now or before, and that was not sent since."""
    found = _numbers_of(table, shape.UNPUBLISHED)
    newest = {each.attribute_number for each in table.versions[-1].columns}
    left_out = unsent_numbers(target, table.relation_oid) | found
    return frozenset(each for each in left_out - newest if each is not None)


def _numbers_of(table: Table, kind: str) -> frozenset[int | None]:
    """Each ``attnum`` of which the batch has a change of this kind."""
    return frozenset(each.attribute_number for each in table.schema_changes if each.kind == kind)


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


def _warn_of_no_numbers(places: Places, metadata: Mapping[str, str]) -> None:
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


def _mark_dropped(table: Table, every: Sequence[Place]) -> None:
    """What the source dropped since the last batch; key columns of earlier versions are still needed."""
    gone = _numbers_of(table, shape.DROPPED)
    keys = {name for version in table.versions for name in version.key_columns}
    for each in every:
        if each.number in gone and each.number is not None and not each.is_current:
            each.is_dropped = each.name not in keys


def _settle_names(places: Places, foreign: frozenset[str]) -> None:
    """Current columns have the source's names; others make room for them.

    :raises TableRefused: a name is that of a column which somebody added to the target.
    """
    taken = {each.name for each in places.every if each.is_current and not each.is_retired}
    if clash := sorted(taken & foreign):
        places.refuse_taken(clash[0], "renamed at the source to")
    taken |= foreign
    # Also of a column that is gone by the end of the batch, it is the older values that make room.
    for each in sorted(places.every, key=lambda place: place.is_retired):
        if each.is_current and not each.is_retired:
            continue
        if each.name in taken or each.is_dropped:
            each.name = _old_name(each, taken)
        taken.add(each.name)


def _old_name(place: Place, taken: set[str]) -> str:
    """The name of a column that gave its own up."""
    suffix = "" if place.number is None else f"_{place.number}"
    base = f"{place.name}__old{suffix}"
    names = [base, *(f"{base}_{i}" for i in range(2, 1000))]
    return next(name for name in names if name not in taken)


def _in_target(table: Table, at: Sequence[Sequence[Place]]) -> Table:
    """The table with the names of its columns in the target."""

    def version(one: TableVersion, places: Sequence[Place]) -> TableVersion:
        names = {c.name: place.name for c, place in zip(one.columns, places, strict=True)}
        return dataclasses.replace(
            one,
            columns=tuple(dataclasses.replace(c, name=names[c.name]) for c in one.columns),
            key_columns=tuple(names[name] for name in one.key_columns),
        )

    versions = tuple(version(one, row) for one, row in zip(table.versions, at, strict=True))
    return dataclasses.replace(table, versions=versions)


def _keep_sources(places: Places, target: IcebergTable | None) -> None:
    """Drop nothing that the table is, or was, partitioned by, and nothing that it is sorted by."""
    if target is None:
        return
    in_use = columns_in_use(target)
    for each in places.every:
        if each.is_dropped and each.field and each.field.id in in_use:
            each.is_dropped = False
            log.warning(
                "%s: column %s of the target stays: the target is, or was once, partitioned or sorted by it.",
                places.table,
                each.field.name,
            )
