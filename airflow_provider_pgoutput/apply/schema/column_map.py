"""The fields of a target, and the property that says which of them is which column of the source.

What is not here: what a batch does to them (``layout.py``).
"""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import elements
from airflow_provider_pgoutput.apply.schema.spark_types import lake_type_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable

#: Table property: JSON with the relation's OID and, by ``attnum``, the id of the field, and the ids of
#: those that made room for it (``retired``, oldest first; absent where there are none); and the ``attnum``
#: of those that the source has but does not send any more (``unsent``, the same). ``former`` has the ids of
#: fields that are columns of a table which had the name before, and of this one no more (the same). ``begun``
#: has the start of the newest batch that made columns make room (or the checkpoint, where that is past it),
#: and how many had before it, by ``attnum``.
COLUMNS_PROPERTY = "pgoutput.columns"


#: Start LSN of a batch, and by ``attnum``, as text, how many fields had made room before it.
Begun = tuple[str, dict[str, int]]


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
        for each in elements(target.java.schema().columns())
    ]


def known_fields(target: IcebergTable | None, relation_oid: int) -> dict[int, int]:
    """Field ids by ``attnum``; a table that was made anew at the source has other numbers."""
    found = _recorded(target, relation_oid).get("fields", {})
    return {int(number): int(field_id) for number, field_id in found.items()}


def retired_fields(target: IcebergTable | None, relation_oid: int) -> dict[int, list[int]]:
    """By ``attnum``: ids of the fields that made room for the one that it has now, oldest first."""
    found = _recorded(target, relation_oid).get("retired", {})
    return {int(number): [int(each) for each in ids] for number, ids in found.items()}


def former_fields(target: IcebergTable | None, relation_oid: int) -> frozenset[int]:
    """Ids of the fields that are columns of tables which had the name before, as far as is known."""
    body = _body(target)
    found = list(body.get("former", ()))
    if body and body.get("relation_oid") != relation_oid:
        found += body.get("fields", {}).values()
        found += (each for ids in body.get("retired", {}).values() for each in ids)
    return frozenset(int(each) for each in found)


def begun_counts(
    target: IcebergTable | None, relation_oid: int, starts: Collection[str]
) -> dict[int, int] | None:
    """By ``attnum``: how many fields had made room before an attempt at the batch; None: it made none.

    :param starts: where attempts at what it brings may start: one that read the slot again starts before the
        checkpoint, and others there.
    """
    found = _recorded(target, relation_oid).get("begun")
    if found is None or found[0] not in starts:
        return None
    return {int(number): int(count) for number, count in found[1].items()}


def begun(
    target: IcebergTable | None,
    relation_oid: int,
    starts: Sequence[str],
    fields: Mapping[tuple[int, int], object],
) -> Begun | None:
    """What the property shall say of batches that made columns make room.

    :param starts: see ``begun_counts``; the first is recorded.
    :param fields: those of a batch that starts there, see ``Layout.numbered``.
    """
    before = {number: len(ids) for number, ids in retired_fields(target, relation_oid).items()}
    after = collections.Counter(number for number, age in fields if age)
    known = _recorded(target, relation_oid).get("begun")
    if all(count <= before.get(number, 0) for number, count in after.items()):
        return None if known is None else (known[0], known[1])
    counts = begun_counts(target, relation_oid, starts)
    if counts is None:
        counts = before
    return starts[0], {str(number): count for number, count in counts.items()}


def unsent_numbers(target: IcebergTable | None, relation_oid: int) -> frozenset[int]:
    """Each ``attnum`` that the source has, and does not send any more."""
    return frozenset(int(each) for each in _recorded(target, relation_oid).get("unsent", ()))


def _recorded(target: IcebergTable | None, relation_oid: int) -> dict[str, Any]:
    body = _body(target)
    return body if body.get("relation_oid") == relation_oid else {}


def _body(target: IcebergTable | None) -> dict[str, Any]:
    text = None if target is None else target.properties.get(COLUMNS_PROPERTY)
    body: dict[str, Any] = {} if text is None else json.loads(text)
    return body


def columns_property(
    relation_oid: int,
    fields: Mapping[tuple[int, int], int],
    unsent: Iterable[int] = (),
    begun_by: Begun | None = None,
    former: Iterable[int] = (),
) -> str:
    """The text that ``known_fields`` reads.

    :param fields: ids, see ``Layout.numbered``.
    :param unsent: see ``Layout.unsent``.
    :param begun_by: see ``begun``.
    :param former: ids, see ``former_fields``.
    """
    by_number: dict[str, int] = {}
    retired: dict[str, list[int]] = {}
    for (number, age), field_id in sorted(fields.items()):
        if age == 0:
            by_number[str(number)] = field_id
        else:
            retired.setdefault(str(number), []).append(field_id)
    body: dict[str, Any] = {"relation_oid": relation_oid, "fields": by_number}
    optional = {"retired": retired, "unsent": sorted(unsent), "begun": begun_by}
    optional["former"] = sorted(former)
    return json.dumps(body | {name: each for name, each in optional.items() if each})
