"""What is known about a type that was dropped at the source before the changes of its columns were read.

The catalog no longer has it. The last batch may have recorded its definition. Otherwise there is only the
Type message of the stream, with OID, schema and name (for a domain: those of the type below it).
``type_info.py`` has types that exist.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html and
https://www.postgresql.org/docs/current/sql-createtype.html (names of array types)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.type_definition import ARRAY, DOMAIN
from airflow_provider_pgoutput.capture.types.type_info import (
    BUILTIN_TYPES,
    Attribute,
    TypeInfo,
    find_type,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.pgoutput.messages import TypeMessage

#: An OID has 32 bits.
_PAST_ALL_OIDS = 1 << 32


def defined_before(
    type_oid: int, known: Mapping[int, TypeDefinition], catalog: Mapping[int, TypeInfo]
) -> dict[int, TypeInfo]:
    """A type and its parts, as a batch recorded them, without types that the catalog has.

    Empty: no batch recorded the type.
    """
    found: dict[int, TypeInfo] = {}
    wanted = [type_oid]
    while wanted:
        oid = wanted.pop()
        definition = known.get(oid)
        if definition is None or oid in found or find_type(oid, catalog) is not None:
            continue
        found[oid] = _info(definition)
        wanted += [definition.part_oid, *(each.type_oid for each in definition.attributes)]
    return found


def announced(message: TypeMessage, catalog: Mapping[int, TypeInfo]) -> dict[int, TypeInfo]:
    """A type as its Type message describes it, and for an array the type of its elements.

    A name that begins with an underscore counts as an array's name, because the server names arrays so;
    unless a type of that name exists now and is no array.
    """
    named = (message.schema_name, message.name)
    for each in BUILTIN_TYPES.values():
        if (each.schema_name, each.name) == named:
            # The server does not announce its own types, so this is a domain.
            return {message.oid: TypeInfo(message.oid, *named, "d", base_oid=each.oid)}
    namesake = next((e for e in catalog.values() if (e.schema_name, e.name) == named), None)
    is_array = message.name.startswith("_") if namesake is None else bool(namesake.element_oid)
    if not is_array:
        return {message.oid: TypeInfo(message.oid, *named, "b")}
    element = None if namesake is None else catalog.get(namesake.element_oid)
    if element is None or element.typtype == "c":
        # The attributes of another composite tell nothing about this one.
        oid = message.oid + _PAST_ALL_OIDS
        element = TypeInfo(oid, message.schema_name, message.name.removeprefix("_"), "b")
    array = TypeInfo(message.oid, *named, "b", element_oid=element.oid)
    return {element.oid: element, message.oid: array}


def _info(definition: TypeDefinition) -> TypeInfo:
    kind, part_oid = definition.kind, definition.part_oid
    is_array, is_domain = kind == ARRAY, kind == DOMAIN
    return TypeInfo(
        definition.oid,
        definition.schema_name,
        definition.name,
        "b" if is_array else kind,
        element_oid=part_oid if is_array else 0,
        base_oid=part_oid if is_domain else 0,
        base_type_modifier=definition.part_modifier,
        part_oid=0 if is_array or is_domain else part_oid,
        attributes=tuple(
            Attribute(each.name, each.type_oid, each.type_modifier)
            for each in definition.attributes
            if each.type_oid
        ),
    )
