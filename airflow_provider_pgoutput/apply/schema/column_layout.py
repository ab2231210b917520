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
    fields_of_others,
    known_fields,
    retiring_batch,
    unsent_numbers,
)
from airflow_provider_pgoutput.apply.schema.partitioning import columns_in_use
from airflow_provider_pgoutput.apply.schema.target_fields import TargetFields
from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.batch.changes import METADATA_COLUMNS
from airflow_provider_pgoutput.batch.table_version import lookup_columns
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.apply.schema.column_map import RetiringBatch
    from airflow_provider_pgoutput.apply.schema.target_fields import TargetField
    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.table_version import TableVersion


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
    #: Names of fields that belong to no column of the source, as far as is known: a user added them.
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
    is_history: bool = False,
    loaded: bool = False,
    is_other_table: bool = False,
) -> Layout:
    """Find the field of every column of the batch.

    :param starts: see ``retired_before_batch``. A checkpoint that is past the start of the batch is first.
    :param copies: the batch holds a copy that replaces all rows.
    :param keeps_retyped: see ``TargetFields``.
    :param drop_columns: whether the field of a column that the source dropped is dropped.
    :param metadata: lake types of the metadata columns, by name.
    :param is_log: the target is a change log. No row is looked for in it, so no column has to stay its key.
    :param is_history: the target keeps earlier versions of rows. So a copy replaces no values in them, and no
        field goes because of it.
    :param loaded: the user loaded the table, so columns that the batch does not name are the user's.
    :param is_other_table: the target's numbers are those of another table, see ``is_other_table``.
    :raises TableRefused: a change of type cannot be followed, or a name is taken.
    """
    fields = fields_of(target)
    # No table has OID 0, so the target knows nothing of it.
    oid = 0 if is_other_table else table.relation_oid
    keys = frozenset(name for v in table.versions for name in lookup_columns(v) if not is_log)
    target_fields = TargetFields(
        table.name,
        keeps_retyped,
        copies,
        {each.name: each for each in fields},
        keys,
        is_history,
        fields_of_others(target),
    )
    added = (_numbers_of(table, shape.ADDED) | _numbers_of(table, shape.PUBLISHED)) - {None}
    known = target_fields.take_known_fields(target, oid, starts, added)
    fields_by_version: list[list[TargetField]] = []
    copied = _copied_version(table)
    for at_version, version in enumerate(table.versions):
        # A change of the schema after the copy concerns the copied rows, as it concerns any older rows.
        row = target_fields.take_version(version.columns, copies=copies and at_version <= copied)
        fields_by_version.append(row)
        if at_version == copied and row and not known and (copies or is_log):
            target_fields.set_apart(earlier_table_fields(target, oid), is_dropped=drop_columns)
    if fields and not known and not copies:
        _warn_of_no_numbers(target_fields, metadata)
    unsent = _unsent(table, target, oid)
    if known and copies and not is_history:
        target_fields.drop_unnumbered()
    if drop_columns:
        names = {name for version in table.versions for name in version.key_columns}
        target_fields.drop_gone(_numbers_of(table, shape.DROPPED), names)
    if target is not None and any(each.is_dropped for each in target_fields.every):
        target_fields.keep_in_use(columns_in_use(target))
    target_fields.leave_to_others()
    target_fields.settle_names()
    return Layout(
        table=_in_target(table, fields_by_version),
        renamed={
            each.field.id: each.name
            for each in target_fields.every
            if each.field and each.field.name != each.name and not each.is_dropped
        },
        dropped=frozenset(e.field.id for e in target_fields.every if e.field and e.is_dropped),
        left_out=frozenset(each.name for each in target_fields.every if each.is_dropped),
        existing=_existing(target_fields),
        numbered=(numbered := target_fields.numbered()),
        not_in_batch=_not_in_batch(
            target_fields, fields_by_version, unsent, metadata, copies=copies
        )
        if known or loaded
        else frozenset(),
        user_columns=_user_columns(target_fields, metadata),
        metadata=frozenset(target_fields.free) & set(METADATA_COLUMNS),
        unsent=unsent,
        of_earlier_table=frozenset(
            each.name for each in target_fields.of_earlier_table if not each.is_dropped
        ),
        unnumbered=frozenset(
            e.name for e in target_fields.unnumbered().values() if not e.is_dropped
        ),
        retiring_batch=retiring_batch(target, oid, starts, numbered),
    )


def _existing(target_fields: TargetFields) -> dict[str, str]:
    return {
        **{name: each.lake_type for name, each in target_fields.free.items()},
        **{e.name: e.field.lake_type for e in target_fields.every if e.field and not e.is_dropped},
    }


def _user_columns(target_fields: TargetFields, metadata: Mapping[str, str]) -> frozenset[str]:
    others = {
        name for name, each in target_fields.free.items() if each.id in target_fields.of_others
    }
    return frozenset(target_fields.free) - {*METADATA_COLUMNS, *metadata} - others


def _not_in_batch(
    target_fields: TargetFields,
    fields_by_version: Sequence[Sequence[TargetField]],
    unsent: frozenset[int],
    metadata: Mapping[str, str],
    *,
    copies: bool,
) -> frozenset[str]:
    """Names of fields about which the batch says nothing. A changed row keeps its values in them.

    A copy replaces whole rows: a column that is not published is NULL in them.

    :param fields_by_version: for each version of the batch, the field of each of its columns.
    """
    taken = {target_field for row in fields_by_version for target_field in row}
    unsent = frozenset() if copies else unsent
    left = {
        each.name
        for each in target_fields.every
        if (each.is_retired or each.number in unsent) and not each.is_dropped and each not in taken
    }
    return _user_columns(target_fields, metadata) | left


def _unsent(table: Table, target: IcebergTable | None, relation_oid: int) -> frozenset[int]:
    """Each ``attnum`` that a column list leaves out, since this batch or an earlier one."""
    found = _numbers_of(table, shape.UNPUBLISHED)
    newest = {each.attribute_number for each in table.versions[-1].columns}
    left_out = unsent_numbers(target, relation_oid) | found
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
    if target is None:
        return
    present = {each.id for each in fields_of(target)}
    known = known_fields(target, table.relation_oid)
    lost = {number for number, field_id in known.items() if field_id not in present}
    # Asked last: whether a slice is empty may take a look at its rows.
    if not lost or target.is_empty:
        return
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


def _in_target(table: Table, fields_by_version: Sequence[Sequence[TargetField]]) -> Table:
    """The batch's table with the column names of the target.

    :param fields_by_version: see ``_not_in_batch``.
    """

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

    pairs = zip(table.versions, fields_by_version, strict=True)
    versions = tuple(version(one, fields) for one, fields in pairs)
    return dataclasses.replace(table, versions=versions)
