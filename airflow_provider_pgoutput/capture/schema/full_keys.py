"""Keys that the stream does not announce: with REPLICA IDENTITY FULL, and of some partitioned tables.

With FULL every column is part of the identity, so the stream does not announce a new primary key. All rows of
a batch get the current key. Example: the key changed from ``id`` to ``code``, and two earlier rows of the
batch have the same ``code``. They would count as one row, and apply would delete a row that the source has.
The same holds if neither a root nor its partitions announce the root's key. ``source/keys.py`` reads the
keys.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.batch.table_version import FULL
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded, way_on
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.table_version import TableVersion
    from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy

log = logging.getLogger(__name__)

#: Replica identities with which a version's key is the primary key, and not another index or nothing.
_BY_PRIMARY_KEY = ("d", FULL)


@dataclass(frozen=True)
class FullKeys:
    """Knows whether rows under REPLICA IDENTITY FULL may be applied by the current key."""

    #: Tables, ``schema.table``, with a key that the user chose. The user says that it holds for earlier rows,
    #: too.
    configured: frozenset[str] = frozenset()
    #: OIDs of the tables with rows in the lake.
    held: frozenset[int] = frozenset()

    def by_number(self, table: Table, before: Shape | None) -> Table:
        """The table with the key in each version spelled by the names that its columns had then.

        Example: the key ``id`` was called ``a`` before a rename. In the version before the rename the key is
        ``a``. If it is not sure that the key always had the same columns, the table stays as it is. So do
        versions that are not under REPLICA IDENTITY FULL.

        :param table: its columns have their numbers.
        :param before: the table at the end of the last batch.
        """
        past = before if table.copy_lsn is None else Shape.of(table.versions[0])
        now = Shape.of(table.versions[-1])
        if table.name in self.configured or past is None:
            return table
        key = _ordered_numbers(now)
        if not (_is_primary(past) and _is_primary(now) and key) or _numbers(past) != set(key):
            return table
        versions = (_with_key(each, key) for each in table.versions)
        return dataclasses.replace(table, versions=tuple(versions))

    def check(self, table: Table, before: Shape | None, policy: SchemaPolicy) -> None:
        """Check that all rows of a table were written under one key, as far as is known.

        :param table: its columns have their numbers.
        :param before: the table at the end of the last batch.
        :raises CopyNeeded: the policy wants a copy, and the batch has none.
        :raises TableRefused: the key changed, and the policy does not copy.
        """
        if table.name in self.configured:
            return
        # A copy was read by the key of its moment, whatever the lake had before.
        copied = table.copy_lsn is not None
        last = None if copied or before is None or not _is_primary(before) else before
        for version in table.versions:
            is_not_announced = _is_not_announced(version)
            if is_not_announced and not version.key_columns:
                # Apply compares whole rows of such a version, so no key can be wrong.
                continue
            shape = Shape.of(version)
            if is_not_announced and last is None:
                self._warn_of_unknown_key(table)
            elif is_not_announced and last is not None and not _same_key(last, shape):
                if policy.on_unknown_default == COPY and before is not None and not copied:
                    raise CopyNeeded(table.relation_oid)
                _refuse(table, last, shape)
            last = shape if _is_primary(shape) else last

    def _warn_of_unknown_key(self, table: Table) -> None:
        if table.copy_lsn is not None or table.relation_oid not in self.held:
            return
        log.warning(
            "%s: no earlier batch says which primary key it had. If that changed since the last batch,"
            " rows may be lost, as the stream does not announce it. %s.",
            table.name,
            way_on(table, f"Then copy it with copy_tables=[{table.name!r}]"),
        )


def _is_not_announced(version: TableVersion) -> bool:
    """Whether the stream announces other columns than the key, so that it does not announce a new key.

    If it announces none, nothing is updated or deleted. For partitioned tables see ``RowIdentity``.
    """
    announced = {each.name for each in version.columns if each.identity}
    return version.replica_identity == FULL or bool(
        announced and announced != set(version.key_columns)
    )


def _is_primary(shape: Shape) -> bool:
    return shape.replica_identity in _BY_PRIMARY_KEY


def _same_key(one: Shape, two: Shape) -> bool:
    """Whether the keys have the same columns, whatever their names and their order."""
    first, second = _numbers(one), _numbers(two)
    if None in first or None in second:
        return set(one.key) == set(two.key)
    return first == second


def _numbers(shape: Shape) -> set[int | None]:
    numbers = {each.name: each.number for each in shape.columns}
    return {numbers.get(name) for name in shape.key}


def _ordered_numbers(shape: Shape) -> tuple[int, ...]:
    """The columns of the key in its order; empty: one of them has no number."""
    numbers = {each.name: each.number for each in shape.columns}
    found = tuple(each for name in shape.key if (each := numbers.get(name)) is not None)
    return found if len(found) == len(shape.key) else ()


def _with_key(version: TableVersion, key: tuple[int, ...]) -> TableVersion:
    """The version with a key of these columns, if it is under FULL and has all of them."""
    names = {each.attribute_number: each.name for each in version.columns}
    if version.replica_identity != FULL or not names.keys() >= set(key):
        return version
    return dataclasses.replace(version, key_columns=tuple(names[number] for number in key))


def _refuse(table: Table, before: Shape, now: Shape) -> None:
    one, two = (", ".join(each.key) or "none" for each in (before, now))
    raise TableRefused(
        f"The key changed from ({one}) to ({two}), and the stream does not tell which rows of this batch came"
        " before that, as under REPLICA IDENTITY FULL; by the new key some of them would be lost.",
        table=table.name,
        advice=f"copy the table again (copy_tables=[{table.name!r}]); on_unknown_default='copy' in"
        " the stage task does so by itself from now on.",
    )
