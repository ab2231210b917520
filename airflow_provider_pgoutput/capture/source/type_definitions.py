"""Reads the definitions of users' types in the columns of tables.

``batch/type_definition.py`` knows what a difference means. ``capture/types/type_info.py`` has what casting
needs.

Sources: https://www.postgresql.org/docs/current/catalog-pg-type.html and
https://www.postgresql.org/docs/current/functions-info.html (age of a transaction ID)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.type_definition import (
    EnumLabel,
    TypeAttribute,
    TypeDefinition,
)
from airflow_provider_pgoutput.capture.source.errors import translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider_pgoutput.capture.source.session import Session

# The types of the columns, and all types that are parts of these. The server's own types never change. age()
# counts back from the next transaction ID. On a standby nothing else shows it.
_DEFINITION_QUERY = """
WITH RECURSIVE used(root, oid) AS (
    SELECT a.attrelid, a.atttypid FROM pg_catalog.pg_attribute a
     WHERE a.attrelid = ANY (%s::pg_catalog.oid[]) AND a.attnum > 0 AND NOT a.attisdropped
       AND a.atttypid >= 10000
     UNION
    SELECT u.root, part.oid
      FROM used u
      JOIN pg_catalog.pg_type t ON t.oid = u.oid
     CROSS JOIN LATERAL (
           SELECT t.typelem AS oid
            UNION ALL
           SELECT t.typbasetype
            UNION ALL
           SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
            UNION ALL
           SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid
            UNION ALL
           SELECT a.atttypid FROM pg_catalog.pg_attribute a
            WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) part
     WHERE part.oid >= 10000)
SELECT u.root::pg_catalog.int8, t.oid::pg_catalog.int8, n.nspname::pg_catalog.text,
       t.typname::pg_catalog.text,
       CASE WHEN e.oid IS NULL THEN t.typtype::pg_catalog.text ELSE 'a' END,
       COALESCE(e.oid, r.rngsubtype, m.rngtypid, t.typbasetype)::pg_catalog.int8, t.typtypmod,
       ARRAY(SELECT pg_catalog.json_build_array(
                    l.oid::pg_catalog.int8, l.enumlabel, l.enumsortorder,
                    l.xmin::pg_catalog.text::pg_catalog.int8)
               FROM pg_catalog.pg_enum l WHERE l.enumtypid = t.oid ORDER BY l.oid),
       ARRAY(SELECT pg_catalog.json_build_array(
                    a.attnum, CASE WHEN a.attisdropped THEN '' ELSE a.attname END,
                    a.atttypid::pg_catalog.int8, a.atttypmod)
               FROM pg_catalog.pg_attribute a
              WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 ORDER BY a.attnum),
       ARRAY(SELECT l.xmin::pg_catalog.text::pg_catalog.int8
               FROM pg_catalog.pg_enum l WHERE l.enumtypid = t.oid
              UNION ALL
             SELECT a.xmin::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_attribute a
              WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0),
       pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text,
       pg_catalog.age('3'::pg_catalog.xid)
  FROM used u
  JOIN pg_catalog.pg_type t ON t.oid = u.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
  LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid
  LEFT JOIN pg_catalog.pg_range r ON r.rngtypid = t.oid
  LEFT JOIN pg_catalog.pg_range m ON m.rngmultitypid = t.oid
 ORDER BY 1, 2
"""
#: The transaction ID whose age is asked.
_FIRST_NORMAL_XID = 3
_XIDS_OF_AN_EPOCH = 1 << 32


@dataclass(frozen=True, slots=True)
class TypesOfTables:
    """Users' types in tables' columns at one moment."""

    #: By the table's OID, then by the type's OID.
    by_table: Mapping[int, Mapping[int, TypeDefinition]] = field(default_factory=dict)
    #: The next transaction ID, with its epoch; 0: there are no types.
    next_xid: int = 0
    #: By the type's OID: the newest transaction that wrote labels of an enum or attributes of a composite.
    written_by: Mapping[int, int] = field(default_factory=dict)

    def of(self, relation_oid: int) -> Mapping[int, TypeDefinition]:
        """The types of one table, by OID."""
        return self.by_table.get(relation_oid, {})

    def with_epoch(self, xid: int) -> int:
        """Make a 32-bit transaction ID of the stream comparable with ``next_xid``."""
        return self.next_xid - (self.next_xid - xid) % _XIDS_OF_AN_EPOCH

    def written_after(self, xid: int, relation_oid: int, type_oid: int) -> TypeDefinition | None:
        """The type of a column, or a type that is a part of it, if a later transaction defined it.

        :param xid: with its epoch.
        """
        types = self.of(relation_oid)
        waiting, seen = [type_oid], set[int]()
        while waiting:
            oid = waiting.pop()
            found = types.get(oid)
            if found is None or oid in seen:
                continue
            seen.add(oid)
            written_by = self.written_by.get(oid)
            if written_by is not None and self.with_epoch(written_by) > xid:
                return found
            waiting += (found.part_oid, *(each.type_oid for each in found.attributes))
        return None


def read_type_definitions(session: Session, relation_oids: Iterable[int]) -> TypesOfTables:
    """The types of tables' columns as the session's snapshot sees them. It waits for no table's lock."""
    with translated():
        rows = session.execute(_DEFINITION_QUERY, (sorted(relation_oids),)).fetchall()
    by_table: dict[int, dict[int, TypeDefinition]] = {}
    next_xid = 0
    written: dict[int, list[int]] = {}
    for relation_oid, *fields, xids, completed, age in rows:
        found = _definition(*fields)
        by_table.setdefault(relation_oid, {})[found.oid] = found
        written[found.oid] = xids
        begun = int(completed)
        next_xid = begun + (age + _FIRST_NORMAL_XID - begun) % _XIDS_OF_AN_EPOCH
    now = TypesOfTables(by_table, next_xid)
    written_by = {oid: max(xids, key=now.with_epoch) for oid, xids in written.items() if xids}
    return dataclasses.replace(now, written_by=written_by)


def _definition(
    oid: int,
    schema_name: str,
    name: str,
    kind: str,
    part_oid: int,
    part_modifier: int,
    labels: list[list[Any]],
    attributes: list[list[Any]],
) -> TypeDefinition:
    return TypeDefinition(
        oid,
        schema_name,
        name,
        kind,
        part_oid,
        part_modifier,
        tuple(EnumLabel(*each) for each in labels),
        tuple(TypeAttribute(*each) for each in attributes),
    )
