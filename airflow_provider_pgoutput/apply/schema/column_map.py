"""The fields of a target, and the table property that says which field is which column of the source.

``column_layout.py`` decides what a batch changes in it, and explains retired fields.
"""

from __future__ import annotations

import collections
import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.checkpoint import (
    BEFORE_ADOPTION,
    PROPERTY_COLUMNS,
    PROPERTY_SYSTEM_IDENTIFIER,
    recorded_columns,
)
from airflow_provider_pgoutput.batch.lake_types import lake_type_in
from airflow_provider_pgoutput.slices import texts_of_slices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.batch.manifest import Table

# The table property ``PROPERTY_COLUMNS`` is a JSON object. Only the first two entries are always there:
# ``relation_oid``: the source's table.
# ``fields``: the id of the field in use, by ``attnum``.
# ``retired``: the ids of its retired fields, oldest first, by ``attnum``.
# ``unsent``: each ``attnum`` that the source still has, but that a column list leaves out.
# ``former``: ids of fields that belong to an earlier table of the same name only.
# ``unnumbered``: ids of fields whose column came in a batch that did not know its ``attnum``.
# ``begun``: the newest batch that retired fields, see ``RetiringBatch``.
# ``before``: see ``BEFORE_ADOPTION``.


#: First, where the batch starts, or the checkpoint if that is past it. Second, by ``attnum`` as text: how
#: many fields were retired before the batch.
RetiringBatch = tuple[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the target."""

    id: int
    name: str
    lake_type: str


def fields_of(target: IcebergTable | None) -> list[Field]:
    """The columns of the target."""
    if target is None:
        return []
    return [
        Field(each["id"], each["name"], lake_type_in(each["type"]))
        for each in target.schema["fields"]
    ]


def known_fields(target: IcebergTable | None, relation_oid: int) -> dict[int, int]:
    """Ids of the fields in use, by ``attnum``; empty if they belong to an earlier table of the same name."""
    found = _recorded(target, relation_oid).get("fields", {})
    return {int(number): int(field_id) for number, field_id in found.items()}


def is_other_table(target: IcebergTable | None, table: Table, system_identifier: str) -> bool:
    """Whether the target has rows of an earlier system, in which another table had the OID of a copied table.

    Example: ``orders`` has OID 16390, as ``users`` had on the earlier server. Two new servers begin with the
    same OID. The columns tell: a name has another number, or a number another name. Then the numbers in the
    target's property are not those of this table.

    :param table: its columns have the names that they have in the lake.
    :param system_identifier: of the batch.
    """
    if target is None or table.copy_lsn is None or not table.versions:
        return False
    of_rows = target.properties.get(PROPERTY_SYSTEM_IDENTIFIER, system_identifier)
    if of_rows == system_identifier:
        return False
    by_id = {each.id: each.name for each in fields_of(target)}
    known = known_fields(target, table.relation_oid).items()
    then = {by_id[field_id]: number for number, field_id in known if field_id in by_id}
    now = {each.name: each.attribute_number for each in table.versions[0].columns}
    named = {number: name for name, number in now.items()}
    return any(
        now.get(name, number) != number or named.get(number, name) != name
        for name, number in then.items()
    )


def retired_fields(target: IcebergTable | None, relation_oid: int) -> dict[int, list[int]]:
    """Ids of the retired fields by ``attnum``, oldest first."""
    found = _recorded(target, relation_oid).get("retired", {})
    return {int(number): [int(each) for each in ids] for number, ids in found.items()}


def unnumbered_fields(target: IcebergTable | None, relation_oid: int) -> list[int]:
    """Ids of the fields that came without an ``attnum``, and got none since."""
    return [int(each) for each in _recorded(target, relation_oid).get("unnumbered", ())]


def earlier_table_fields(target: IcebergTable | None, relation_oid: int) -> frozenset[int]:
    """Ids of the fields that belong to earlier tables of the same name, as far as is known."""
    body = _body(target)
    found = list(body.get("former", ()))
    if body and body.get("relation_oid") != relation_oid:
        found += body.get("fields", {}).values()
        found += (each for ids in body.get("retired", {}).values() for each in ids)
        found += body.get("unnumbered", ())
    return frozenset(int(each) for each in found)


def fields_of_others(target: IcebergTable | None) -> frozenset[int]:
    """Ids of the fields that other slices of a shared table use; see ``slices.py``."""
    if target is None or target.name.slice is None:
        return frozenset()
    texts = texts_of_slices(target.whole_properties, PROPERTY_COLUMNS)
    others = (_ids_in(text) for slice_, text in texts if slice_ != target.name.slice)
    return frozenset().union(*others)


@functools.lru_cache(maxsize=4096)
def _ids_in(text: str) -> frozenset[int]:
    """Ids of the fields in use, of a property's text."""
    body: dict[str, Any] = json.loads(text)
    return frozenset(int(field_id) for field_id in body.get("fields", {}).values())


def retired_before_batch(
    target: IcebergTable | None, relation_oid: int, starts: Collection[str]
) -> dict[int, int] | None:
    """By ``attnum``: how many fields were retired before this batch; None: no attempt at it retired any.

    An attempt that was killed may have retired fields already. The next attempt must not retire a second one
    for the same change.

    :param starts: the LSNs at which attempts may have started. A run that reads the slot again starts before
        the checkpoint, other runs start at it.
    """
    found = _recorded(target, relation_oid).get("begun")
    if found is None or found[0] not in starts:
        return None
    return {int(number): int(count) for number, count in found[1].items()}


def retiring_batch(
    target: IcebergTable | None,
    relation_oid: int,
    starts: Sequence[str],
    fields: Mapping[tuple[int, int], object],
) -> RetiringBatch | None:
    """The entry ``begun`` to record; None: there is nothing to record.

    :param starts: see ``retired_before_batch``; the first one is recorded.
    :param fields: fields after this batch, by ``attnum`` and age, see ``Layout.numbered``.
    """
    before = {number: len(ids) for number, ids in retired_fields(target, relation_oid).items()}
    after = collections.Counter(number for number, age in fields if age)
    known = _recorded(target, relation_oid).get("begun")
    if all(count <= before.get(number, 0) for number, count in after.items()):
        return None if known is None else (known[0], known[1])
    counts = retired_before_batch(target, relation_oid, starts)
    if counts is None:
        counts = before
    return starts[0], {str(number): count for number, count in counts.items()}


def unsent_numbers(target: IcebergTable | None, relation_oid: int) -> frozenset[int]:
    """Each ``attnum`` that the source still has, but that a column list leaves out."""
    return frozenset(int(each) for each in _recorded(target, relation_oid).get("unsent", ()))


def _recorded(target: IcebergTable | None, relation_oid: int) -> dict[str, Any]:
    return {} if target is None else recorded_columns(target.properties, relation_oid)


def _body(target: IcebergTable | None) -> dict[str, Any]:
    text = None if target is None else target.properties.get(PROPERTY_COLUMNS)
    body: dict[str, Any] = {} if text is None else json.loads(text)
    return body


def columns_property(
    relation_oid: int,
    fields: Mapping[tuple[int, int], int],
    unsent: Iterable[int] = (),
    retiring_batch: RetiringBatch | None = None,
    of_earlier_table: Iterable[int] = (),
    unnumbered: Iterable[int] = (),
    before_adoption: Mapping[str, Any] | None = None,
) -> str:
    """The property's text.

    :param fields: field ids by ``attnum`` and age, see ``Layout.numbered``.
    :param unsent: see ``Layout.unsent``.
    :param retiring_batch: see the function of this name.
    :param of_earlier_table: field ids, see ``earlier_table_fields``.
    :param unnumbered: field ids, see ``unnumbered_fields``.
    :param before_adoption: see ``BEFORE_ADOPTION``.
    """
    by_number: dict[str, int] = {}
    retired: dict[str, list[int]] = {}
    for (number, age), field_id in sorted(fields.items()):
        if age == 0:
            by_number[str(number)] = field_id
        else:
            retired.setdefault(str(number), []).append(field_id)
    body: dict[str, Any] = {"relation_oid": relation_oid, "fields": by_number}
    optional: dict[str, Any] = {
        "retired": retired,
        "unsent": sorted(unsent),
        "begun": retiring_batch,
    }
    optional |= {"former": sorted(of_earlier_table), "unnumbered": sorted(unnumbered)}
    optional[BEFORE_ADOPTION] = before_adoption
    return json.dumps(body | {name: each for name, each in optional.items() if each})


def before_adoption(target: IcebergTable) -> dict[str, Any] | None:
    """See ``BEFORE_ADOPTION``; None: the batch adopts no system, or the table has the same OID there."""
    return None if target.name.earlier is None else _body(target).get(BEFORE_ADOPTION)


def columns_of_now(target: IcebergTable) -> str:
    """The property's text without what it said before the adoption."""
    return json.dumps({name: e for name, e in _body(target).items() if name != BEFORE_ADOPTION})
