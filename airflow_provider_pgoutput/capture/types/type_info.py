"""What a PostgreSQL type is, as far as casting needs it: the rows of ``pg_type`` reduced to a few fields.

Types of the server itself (OID below 10000, the same in PostgreSQL 15 to 18) are known without asking;
pgoutput announces only the others by Type messages. User types come from the catalog of the source,
``CATALOG_QUERY``. What is not here: running that query.

Source: https://www.postgresql.org/docs/current/catalog-pg-type.html
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.capture.types.builtin_types import BUILTIN_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: First OID that is not the same on every server (``FirstGenbkiObjectId``).
FIRST_USER_OID = 10000

#: Its rows are the arguments of ``TypeInfo`` in order.  An array type is recognised by its element
#: naming it (``typarray``): ``typelem`` alone is also set for ``point``, ``name`` or ``int2vector``,
#: whose text is no array literal.
CATALOG_QUERY = """
SELECT t.oid::pg_catalog.int8, n.nspname::pg_catalog.text, t.typname::pg_catalog.text,
       t.typtype::pg_catalog.text, COALESCE(e.oid, 0)::pg_catalog.int8,
       t.typbasetype::pg_catalog.int8, t.typtypmod, t.typdelim::pg_catalog.text,
       COALESCE(r.rngsubtype, m.rngtypid, 0)::pg_catalog.int8,
       t.typsend::pg_catalog.oid <> 0
  FROM pg_catalog.pg_type t
  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid
  LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid
  LEFT JOIN pg_catalog.pg_range m ON m.rngmultitypid = t.oid
 WHERE t.oid >= 10000
"""

#: OID of a composite type, then name, type and type modifier of one of its attributes, in order. The rows of
#: each table are a composite type, too. Such a type is left out unless a column or a domain has it.
ATTRIBUTE_QUERY = """
SELECT t.oid::pg_catalog.int8, a.attname::pg_catalog.text, a.atttypid::pg_catalog.int8, a.atttypmod
  FROM pg_catalog.pg_type t
  JOIN pg_catalog.pg_class c ON c.oid = t.typrelid
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
 WHERE t.oid >= 10000 AND t.typtype = 'c' AND a.attnum > 0 AND NOT a.attisdropped
   AND (c.relkind = 'c'
        OR t.oid IN (SELECT u.atttypid FROM pg_catalog.pg_attribute u)
        OR t.typarray IN (SELECT u.atttypid FROM pg_catalog.pg_attribute u)
        OR t.oid IN (SELECT u.typbasetype FROM pg_catalog.pg_type u)
        OR t.typarray IN (SELECT u.typbasetype FROM pg_catalog.pg_type u))
 ORDER BY t.oid, a.attnum
"""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a composite type."""

    name: str
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """One type of the source."""

    oid: int
    schema_name: str
    name: str
    #: ``b`` base, ``c`` composite, ``d`` domain, ``e`` enum, ``m`` multirange, ``p`` pseudo, ``r`` range.
    typtype: str
    #: OID of the element type; 0: not an array.
    element_oid: int = 0
    #: OID of the type under a domain; 0: not a domain.
    base_oid: int = 0
    #: Type modifier that a domain gives to its base type; -1: none.
    base_type_modifier: int = -1
    #: What separates elements of this type in an array literal; ``;`` for ``box`` alone.
    delimiter: str = ","
    #: OID of the type of a range's bounds, or of a multirange's ranges; 0: neither, or built in.
    part_oid: int = 0
    #: Whether there is a function that makes the binary form; False of a type that is built in.
    has_send: bool = False
    #: Of a composite type, when they were asked for.
    attributes: tuple[Attribute, ...] = ()


def types_to_body(types: Mapping[int, TypeInfo]) -> list[dict[str, Any]]:
    """Types as JSON has them."""
    return [dataclasses.asdict(each) for each in types.values()]


def types_from_body(body: Iterable[Mapping[str, Any]]) -> dict[int, TypeInfo]:
    """The types that ``types_to_body`` described, by OID."""
    found = {}
    for each in body:
        attributes = tuple(Attribute(**one) for one in each["attributes"])
        found[each["oid"]] = TypeInfo(**{**each, "attributes": attributes})
    return found


#: The types of the server itself by OID.
BUILTIN_TYPES: Mapping[int, TypeInfo] = {
    oid: TypeInfo(oid, "pg_catalog", name, typtype, element_oid, delimiter=delimiter)
    for oid, name, typtype, element_oid, delimiter in BUILTIN_ROWS
}


def type_catalog(
    rows: Iterable[tuple[int, str, str, str, int, int, int, str, int, bool]],
) -> dict[int, TypeInfo]:
    """Turn the rows of ``CATALOG_QUERY`` into the catalog that ``lake_type`` and ``type_name`` take."""
    return {row[0]: TypeInfo(*row) for row in rows}


def with_attributes(
    catalog: Mapping[int, TypeInfo], rows: Iterable[tuple[int, str, int, int]]
) -> dict[int, TypeInfo]:
    """Add the rows of ``ATTRIBUTE_QUERY`` to a catalog."""
    attributes: dict[int, list[Attribute]] = {}
    for type_oid, name, attribute_oid, modifier in rows:
        attributes.setdefault(type_oid, []).append(Attribute(name, attribute_oid, modifier))
    return {
        oid: dataclasses.replace(info, attributes=tuple(attributes.get(oid, ())))
        for oid, info in catalog.items()
    }


def find_type(type_oid: int, catalog: Mapping[int, TypeInfo]) -> TypeInfo | None:
    """The type of this OID; None when it was dropped since the change was written."""
    return BUILTIN_TYPES.get(type_oid) or catalog.get(type_oid)


def base_type(type_oid: int, catalog: Mapping[int, TypeInfo]) -> TypeInfo | None:
    """The type of this OID, and of a domain the type under it."""
    info = find_type(type_oid, catalog)
    while info is not None and info.typtype == "d":
        info = find_type(info.base_oid, catalog)
    return info
