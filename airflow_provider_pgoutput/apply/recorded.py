"""The fields of a target, and the property that says which of them is which column of the source.

What is not here: what a batch does to them (``layout.py``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.types import lake_type_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.apply.iceberg import IcebergTable

#: Table property: JSON with the relation's OID and, by ``attnum``, the id of the field, and the ids of
#: those that made room for it (``retired``, oldest first; absent where there are none).
COLUMNS_PROPERTY = "pgoutput.columns"


@dataclass(frozen=True, slots=True)
class Field:
    """A column that the target has."""

    id: int
    name: str
    lake_type: str


def fields_of(target: IcebergTable | None) -> list[Field]:
    """The columns that the target has."""
    if target is None:
        return []
    return [
        Field(int(each.fieldId()), str(each.name()), lake_type_of(each.type()))
        for each in target.java.schema().columns()
    ]


def known_fields(target: IcebergTable | None, relation_oid: int) -> dict[int, int]:
    """Field ids by ``attnum``; a table that was made anew at the source has other numbers."""
    found = _recorded(target, relation_oid).get("fields", {})
    return {int(number): int(field_id) for number, field_id in found.items()}


def retired_fields(target: IcebergTable | None, relation_oid: int) -> dict[int, list[int]]:
    """By ``attnum``: ids of the fields that made room for the one that it has now, oldest first."""
    found = _recorded(target, relation_oid).get("retired", {})
    return {int(number): [int(each) for each in ids] for number, ids in found.items()}


def _recorded(target: IcebergTable | None, relation_oid: int) -> dict[str, Any]:
    text = None if target is None else target.properties.get(COLUMNS_PROPERTY)
    body: dict[str, Any] = {} if text is None else json.loads(text)
    return body if body.get("relation_oid") == relation_oid else {}


def columns_property(relation_oid: int, fields: Mapping[tuple[int, int], int]) -> str:
    """The text that ``known_fields`` reads.

    :param fields: ids, see ``Layout.numbered``.
    """
    by_number: dict[str, int] = {}
    retired: dict[str, list[int]] = {}
    for (number, age), field_id in sorted(fields.items()):
        if age == 0:
            by_number[str(number)] = field_id
        else:
            retired.setdefault(str(number), []).append(field_id)
    body: dict[str, Any] = {"relation_oid": relation_oid, "fields": by_number}
    return json.dumps(body | ({"retired": retired} if retired else {}))
