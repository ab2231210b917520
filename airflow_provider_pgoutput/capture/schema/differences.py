"""Compares two versions of a table: schema changes, and changes of type that Iceberg cannot follow.

``attribution.py`` finds out which column is which. ``history.py`` acts on the changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import shape
from airflow_provider_pgoutput.batch.lake_types import loses_fields, widens
from airflow_provider_pgoutput.batch.shape import SchemaChange, Shape
from airflow_provider_pgoutput.batch.table_version import lookup_columns
from airflow_provider_pgoutput.capture.types.type_info import FIRST_USER_OID

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.table_version import Column


def unfollowable(table: Table, before: Shape | None) -> list[Column]:
    """Columns that a batch changed to a type that Iceberg cannot follow.

    :param before: the table at the end of the last batch; None: not known.
    """
    if table.copy_lsn is not None:
        # The copy replaces everything in the lake, and has the columns of the first version.
        before = Shape.of(table.versions[0])
    if before is None:
        return []
    found = []
    kinds = {each.number: each.lake_type for each in before.columns if each.number is not None}
    for version in table.versions:
        lookup = lookup_columns(version)
        for column in version.columns:
            number = column.attribute_number
            held = (
                column.lake_type if number is None else kinds.setdefault(number, column.lake_type)
            )
            # Apply finds no row by a value that lost an attribute.
            is_lost = column.name in lookup and loses_fields(held, column.lake_type)
            if held == column.lake_type or (widens(column.lake_type, held) and not is_lost):
                continue
            if not widens(held, column.lake_type):
                found.append(column)
            if number is not None:
                kinds[number] = column.lake_type
    return found


def differences(one: Shape, two: Shape, live: set[int]) -> list[SchemaChange]:
    """The changes from one shape to the next.

    :param live: numbers of the columns that the table has now.
    """
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
                SchemaChange(shape.ADDED, column.name, "", column.type_name, column.number)
            )
            continue
        kept.add(earlier)
        found += _of_column(earlier, column)
    gone = [
        SchemaChange(
            shape.UNPUBLISHED if each.number in live else shape.DROPPED,
            each.name,
            attribute_number=each.number,
        )
        for each in one.columns
        if each not in kept
    ]
    renamed = {each.before: each.after for each in found if each.kind == shape.RENAMED}
    key = tuple(renamed.get(name, name) for name in one.key)
    if key != two.key:
        found.append(SchemaChange(shape.KEY, "", ", ".join(key), ", ".join(two.key)))
    if one.replica_identity != two.replica_identity:
        found.append(SchemaChange(shape.IDENTITY, "", one.replica_identity, two.replica_identity))
    return gone + found


def _of_column(one: shape.KnownColumn, two: shape.KnownColumn) -> list[SchemaChange]:
    found = []
    if one.name != two.name:
        found.append(SchemaChange(shape.RENAMED, two.name, one.name, two.name, two.number))
    if one.type_name != two.type_name:
        kind = shape.TYPE_RENAMED if _is_renamed_type(one, two) else shape.RETYPED
        found.append(SchemaChange(kind, two.name, one.type_name, two.type_name, two.number))
        if kind == shape.RETYPED:
            return found
    elif one.type_oid != two.type_oid and one.type_oid and two.type_oid:
        found.append(SchemaChange(shape.TYPE_REPLACED, two.name, one.type_name, "", two.number))
    if one.lake_type != two.lake_type:
        found.append(SchemaChange(shape.REMADE, two.name, one.lake_type, two.lake_type, two.number))
    return found


def _is_renamed_type(one: shape.KnownColumn, two: shape.KnownColumn) -> bool:
    """Whether two columns have the same user's type under two names.

    With another modifier it is another type.
    """
    modifiers = {each.type_name.partition("(")[2] for each in (one, two)}
    return one.type_oid == two.type_oid >= FIRST_USER_OID and len(modifiers) == 1
