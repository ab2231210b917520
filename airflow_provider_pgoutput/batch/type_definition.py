"""Users' types as the source's catalog defined them at one moment, and what was altered since.

PostgreSQL stores a composite value by attributes and an enum value by the number of its label. The text is
made when the value is read. So ``ALTER TYPE`` changes the text of all existing values, and sends no row. A
batch keeps the definitions of its columns' types, and the next run compares them with the catalog.
``capture/source/type_definitions.py`` reads them.

Sources: https://www.postgresql.org/docs/current/catalog-pg-type.html, catalog-pg-enum.html and
catalog-pg-attribute.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Values of ``TypeDefinition.kind``: letters of ``pg_type.typtype``, and one for arrays, which have no
#: letter.
ARRAY = "a"
BASE = "b"
COMPOSITE = "c"
DOMAIN = "d"
ENUM = "e"
MULTIRANGE = "m"
RANGE = "r"


@dataclass(frozen=True, slots=True)
class EnumLabel:
    """One value of an enum."""

    #: ``pg_enum.oid``. A label that is renamed keeps it.
    oid: int
    text: str
    #: ``pg_enum.enumsortorder``.
    sort_order: float
    #: ``xmin`` of its row in ``pg_enum``. A label that was renamed, and renamed back, has another one.
    written_by: int


@dataclass(frozen=True, slots=True)
class TypeAttribute:
    """One attribute of a composite type, or a column of a table whose row type is used as a type."""

    #: ``pg_attribute.attnum``. A number is never given to a second attribute.
    number: int
    name: str
    #: 0: the attribute was dropped.
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """A type that a user made."""

    oid: int
    schema_name: str
    name: str
    kind: str
    #: OID of the type of an array's elements, below a domain, of a range's bounds, or of a multirange's
    #: ranges.
    part_oid: int = 0
    #: The type modifier that a domain gives to the type below it.
    part_modifier: int = -1
    labels: tuple[EnumLabel, ...] = ()
    #: Including dropped attributes.
    attributes: tuple[TypeAttribute, ...] = ()

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> TypeDefinition:
        """Read the JSON form, which is that of ``dataclasses.asdict``.

        :raises KeyError: a field is missing.
        :raises TypeError: a field is missing, unknown or of another type.
        """
        labels = tuple(EnumLabel(**each) for each in body["labels"])
        attributes = tuple(TypeAttribute(**each) for each in body["attributes"])
        return cls(**{**body, "labels": labels, "attributes": attributes})

    def __str__(self) -> str:
        return f"{self.schema_name}.{self.name}"


def alterations(
    type_oid: int,
    before: Mapping[int, TypeDefinition],
    now: Mapping[int, TypeDefinition],
    *,
    as_struct: bool = False,
) -> tuple[str, ...]:
    """What was done to a type that makes existing values look different at the source, in words.

    Changes that only allow new values are not named: ``ADD VALUE`` of an enum.

    :param before: definitions by OID; a type that is missing here or in ``now`` is ignored.
    :param as_struct: whether composites are structs in the lake. A struct gets and loses attributes as a
        table does columns.
    """
    found: dict[str, None] = {}
    _collect(type_oid, before, now, as_struct, found, set())
    return tuple(found)


def _collect(
    type_oid: int,
    before: Mapping[int, TypeDefinition],
    now: Mapping[int, TypeDefinition],
    as_struct: bool,
    found: dict[str, None],
    seen: set[int],
) -> None:
    one, two = before.get(type_oid), now.get(type_oid)
    if one is None or two is None or type_oid in seen:
        return
    seen.add(type_oid)
    if one.kind == ENUM:
        found.update(dict.fromkeys(_renamed_labels(one, two)))
    if one.kind == COMPOSITE:
        found.update(dict.fromkeys(_other_attributes(one, two, as_struct=as_struct)))
    # A range is text in the lake, whatever its bounds are.
    is_struct = as_struct and one.kind not in {RANGE, MULTIRANGE}
    for part_oid in (one.part_oid, *(each.type_oid for each in one.attributes)):
        _collect(part_oid, before, now, is_struct, found, seen)


def _renamed_labels(one: TypeDefinition, two: TypeDefinition) -> list[str]:
    """What was done to the labels. They are not quoted, because they are values of rows."""
    now = {each.oid: each for each in two.labels}
    pairs = [(each, now.get(each.oid)) for each in one.labels]
    if any(after is None or after.text != label.text for label, after in pairs):
        return [f"a value of {two} was renamed"]
    rewritten = [
        after.sort_order == label.sort_order
        for label, after in pairs
        if after is not None and after.written_by != label.written_by
    ]
    if any(rewritten):
        return [f"a value of {two} was renamed, and renamed back"]
    if rewritten:
        # When many values were added in one place, ADD VALUE BEFORE numbers the others anew.
        return [f"the values of {two} were numbered anew, and one may have been renamed meanwhile"]
    return []


def _other_attributes(one: TypeDefinition, two: TypeDefinition, *, as_struct: bool) -> list[str]:
    then = {each.number: each for each in one.attributes if each.type_oid}
    now = {each.number: each for each in two.attributes if each.type_oid}
    last = max((each.number for each in one.attributes), default=0)
    dropped = [
        f"{two}.{each.name} was dropped" for number, each in then.items() if number not in now
    ]
    added = [f"{two}.{each.name} was added" for number, each in now.items() if number > last]
    gone = any(each.number > last and not each.type_oid for each in two.attributes)
    if gone:
        dropped.append(f"an attribute of {two} was added, and dropped again")
    retyped = [
        f"the type of {two}.{now[number].name} was changed"
        for number, each in then.items()
        if number in now
        and (each.type_oid, each.type_modifier) != (now[number].type_oid, now[number].type_modifier)
    ]
    # Iceberg can add and drop fields of a struct, unless one attribute may have replaced another.
    return retyped + ([] if as_struct and not (dropped and added) else dropped + added)
