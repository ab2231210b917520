"""Relations as the manifest describes them: announced or published columns with names, types and keys.

The stream says what a row looks like. Only the catalog knows the key, the names of types and the values of
older rows: a value that rows from before ``ADD COLUMN`` have in the new column. Example: after ``ADD COLUMN c
int DEFAULT 7`` older rows show a 7.

The catalog is asked over the run's session, which does not read the stream. One question is for all published
tables. A table that nobody knew when a batch began is asked about when its first row comes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.capture.masking import Masks, refuse_in_key
from airflow_provider_pgoutput.capture.source.catalog import (
    PublishedTable,
    read_missing_values,
    read_types,
)
from airflow_provider_pgoutput.capture.source.copy_form import is_sent
from airflow_provider_pgoutput.capture.types.cast import (
    ValuePolicy,
    binary_caster,
    column_caster,
    masked,
)
from airflow_provider_pgoutput.capture.types.gone_types import announced, defined_before
from airflow_provider_pgoutput.capture.types.mapping import lake_type, type_name
from airflow_provider_pgoutput.capture.types.missing_value import lake_text
from airflow_provider_pgoutput.capture.types.options import TypeOptions
from airflow_provider_pgoutput.capture.types.registry import STRING
from airflow_provider_pgoutput.capture.types.type_info import FIRST_USER_OID, TypeInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.pgoutput.messages import (
        PartitionIdentity,
        Relation,
        RelationColumn,
        TypeMessage,
    )
    from airflow_provider_pgoutput.capture.source.catalog import PublishedColumn
    from airflow_provider_pgoutput.capture.source.keys import Keys, RowIdentity
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.types.cast import ColumnCaster
    from airflow_provider_pgoutput.masks import Mask


@dataclass(frozen=True, slots=True)
class Described:
    """A relation as the stream announced it."""

    version: TableVersion
    #: Replica identities of its partitions, if their rows come under this relation's name.
    partitions: frozenset[PartitionIdentity] = frozenset()
    #: Positions of the relation's columns that the version has; None: all of them.
    kept: tuple[int, ...] | None = None


def _no_filter(_: int) -> None:
    return None


class Describer:
    """Asks the catalog what a relation's announcement lacks.

    :param session: a session that no read of the stream uses.
    :param keys: the keys and replica identities of tables. It asks the catalog for those that it lacks.
    :param type_options: what the owner of the pipeline chose about types.
    :param policy: what to do if the lake type cannot hold the value of older rows.
    :param known_types: users' types as earlier batches described them, by OID. Some may be dropped by now.
    :param masks: the masks of columns; None: no column has one.
    :param row_filter: by OID, the filter of a table as it is written down; None: it has none.
    """

    def __init__(
        self,
        session: Session,
        keys: Keys,
        type_options: TypeOptions | None = None,
        policy: ValuePolicy | None = None,
        *,
        known_types: Mapping[int, TypeDefinition] | None = None,
        masks: Masks | None = None,
        row_filter: Callable[[int], str | None] = _no_filter,
    ) -> None:
        self._session = session
        self._row_filter = row_filter
        self.masks = masks or Masks({}, None, None)
        self._keys = keys
        self._type_options = type_options or TypeOptions()
        self._policy = policy
        self._known_types = known_types or {}
        self._types: dict[int, TypeInfo] = {}
        self._is_stale = False
        self._announced: Mapping[int, TypeMessage] = {}
        #: The values of older rows as the catalog has them, and OIDs of the tables whose values were read.
        self._older: dict[tuple[int, str, int, int], str] = {}
        self._older_of: set[int] = set()
        #: The same values as text of the lake type. They are kept so that a warning comes once.
        self._shown: dict[tuple[str, Column, bool], str | None] = {}

    def announce_types(self, types: Mapping[int, TypeMessage]) -> None:
        """Keep the stream's Type messages, by OID.

        If a type was dropped since, nothing else may describe it.

        :param types: grows while the stream is read.
        """
        self._announced = types

    def __call__(self, relation: Relation) -> Described:
        """Describe a relation as the stream announced it."""
        self._keys.load(self._session, [relation.oid])
        older = self._older_values(relation.oid)
        names = [each.name for each in relation.columns]
        partitions = self._keys.completed(self._session, relation)
        identity = self._keys.of(
            relation.oid,
            relation.name,
            relation.replica_identity,
            names,
            [each.name for each in relation.columns if each.is_identity],
            partitions,
        )
        shown = {
            each.name: older.get((relation.oid, each.name, each.type_oid, each.type_modifier))
            for each in relation.columns
        }
        version = self._version(relation, identity, shown)
        of_version = {each.name for each in version.columns}
        kept = tuple(place for place, name in enumerate(names) if name in of_version)
        return Described(version, partitions, kept if len(kept) < len(names) else None)

    def published(self, table: PublishedTable) -> TableVersion:
        """Describe a table that is about to be copied."""
        missing = {each.name: each.missing_value for each in table.columns}
        version = self._version(table, table.row_identity, missing)
        columns = tuple(
            dataclasses.replace(column, attribute_number=published.attribute_number)
            for column, published in zip(version.columns, table.columns, strict=True)
        )
        return dataclasses.replace(version, columns=columns)

    def type_name(self, type_oid: int, type_modifier: int) -> str:
        """Spell a type as the columns of a version do."""
        return type_name(type_oid, type_modifier, self._types_with([type_oid]))

    def showing(self, table: str, column: Column, text: str | None) -> Column:
        """The column with the value of its older rows, as text of the lake type.

        :param text: the value as PostgreSQL prints it.
        :raises ValueRefused: the user chose a lake type that does not hold the value.
        """
        shown = dataclasses.replace(column, missing_value=text)
        types = self._types_with([column.type_oid])
        return self._with_lake_text(table, types, shown)

    def forget_older_rows(self) -> None:
        """Forget the values of older rows, so that the catalog is asked again.

        The next batch may end after a further ``ADD COLUMN``.
        """
        self._older.clear()
        self._older_of.clear()

    def forget_types(self) -> None:
        """Read the users' types again when they are needed next: they may have been altered."""
        self._is_stale = True

    def types_of(self, tables: Iterable[PublishedTable]) -> dict[int, TypeInfo]:
        """The users' types, those of the tables' columns among them."""
        return self._types_with(column.type_oid for table in tables for column in table.columns)

    def text_caster(
        self, column: Column, policy: ValuePolicy, *, table: str | None = None
    ) -> ColumnCaster:
        """Choose the caster of a column whose values are text; see ``types/cast.py``."""
        types = self._types_with([column.type_oid])
        return self._masked(column_caster(column, policy, types=types, table=table))

    def binary_caster(
        self, column: Column, policy: ValuePolicy, *, table: str | None = None
    ) -> ColumnCaster:
        """Choose the caster of a column whose values are in binary form; see ``types/cast.py``."""
        types = self._types_with([column.type_oid])
        return self._masked(binary_caster(column, policy, types=types, table=table))

    def copy_caster(
        self, column: Column, policy: ValuePolicy, *, table: str | None = None
    ) -> ColumnCaster:
        """Choose the caster of a column whose values are copied; see ``source/copy_form.py``."""
        types = self._types_with([column.type_oid])
        return self._masked(copy_caster(column, policy, types=types, table=table))

    def _masked(self, caster: ColumnCaster) -> ColumnCaster:
        """The caster of a column, with the column's mask."""
        recorded = caster.column.mask
        if recorded is None:
            return caster
        return masked(caster, self.masks.from_recorded(recorded), self.masks.secret)

    def _older_values(self, relation_oid: int) -> Mapping[tuple[int, str, int, int], str]:
        """The values of older rows; see ``read_missing_values``.

        The catalog is asked when the first row of a batch comes. By then it is known how far the batch can
        go. So the catalog has every column that a change of the batch can have, and one question is enough.
        """
        if relation_oid not in self._older_of:
            wanted = {relation_oid, *self._keys.relation_oids} - self._older_of
            self._older |= read_missing_values(self._session, wanted)
            self._older_of |= wanted
        return self._older

    def _version(
        self,
        table: Relation | PublishedTable,
        identity: RowIdentity,
        missing: Mapping[str, str | None],
    ) -> TableVersion:
        types = self._types_with(each.type_oid for each in table.columns)
        masks = self._masks_of(table)
        dropped = self.masks.dropped(table)
        left_out = {name for _, name in dropped}
        for name, mask in masks.items():
            if name in identity.columns or name in identity.key:
                refuse_in_key(mask, table.name, name)
        return TableVersion(
            version=1,
            schema_name=table.schema_name,
            table_name=table.table_name,
            replica_identity=identity.replica_identity,
            columns=tuple(
                self._with_lake_text(
                    table.name,
                    types,
                    self._column(
                        table.name,
                        types,
                        each,
                        missing[each.name],
                        masks.get(each.name),
                        is_identity=each.name in identity.columns,
                    ),
                    is_key=each.name in identity.key,
                )
                for each in table.columns
                if each.name not in left_out
            ),
            key_columns=identity.key,
            dropped=dropped,
            row_filter=self._row_filter(
                table.relation_oid if isinstance(table, PublishedTable) else table.oid
            ),
        )

    def _masks_of(self, table: Relation | PublishedTable) -> dict[str, Mask]:
        """The masks of the columns of a table.

        :raises TableRefused: a column may be a masked one under another name.
        """
        oid = table.relation_oid if isinstance(table, PublishedTable) else table.oid
        return self.masks.of(oid, table.name, [each.name for each in table.columns])

    def _types_with(self, type_oids: Iterable[int]) -> dict[int, TypeInfo]:
        """The users' types, read again when one is not among them yet."""
        wanted = [oid for oid in type_oids if oid >= FIRST_USER_OID]
        if wanted and (self._is_stale or any(oid not in self._types for oid in wanted)):
            # Types are added, and none is removed: rows of this batch may still have a type that was dropped.
            self._types |= read_types(self._session, attributes=self._type_options.wants_attributes)
            self._is_stale = False
            for oid in wanted:
                if oid not in self._types:
                    self._types |= self._gone(oid, self._types)
        return self._types

    def _gone(self, type_oid: int, types: dict[int, TypeInfo]) -> dict[int, TypeInfo]:
        """Describe a dropped type as earlier batches did, or else by its Type message.

        :returns: nothing, if neither is known.
        """
        found = defined_before(type_oid, self._known_types, types)
        if not found and type_oid in self._announced:
            return announced(self._announced[type_oid], types)
        return found

    def _column(
        self,
        table: str,
        types: dict[int, TypeInfo],
        column: RelationColumn | PublishedColumn,
        missing_value: str | None,
        mask: Mask | None,
        *,
        is_identity: bool,
    ) -> Column:
        choice = self._type_options.of(table, column.name)
        kind = lake_type(column.type_oid, column.type_modifier, types, choice)
        return Column(
            name=column.name,
            type_oid=column.type_oid,
            type_modifier=column.type_modifier,
            type_name=type_name(column.type_oid, column.type_modifier, types),
            lake_type=STRING if mask is not None and mask.is_text else kind,
            identity=is_identity,
            missing_value=missing_value,
            mask=None if mask is None else self.masks.recorded(mask),
        )

    def _with_lake_text(
        self, table: str, types: dict[int, TypeInfo], column: Column, *, is_key: bool = False
    ) -> Column:
        """The column with the value of its older rows as text of its lake type."""
        cache_key = (
            table,
            dataclasses.replace(column, identity=False, attribute_number=None),
            is_key,
        )
        if cache_key not in self._shown:
            self._shown[cache_key] = self._lake_text(table, types, column, is_key=is_key)
        return dataclasses.replace(column, missing_value=self._shown[cache_key])

    def _lake_text(
        self, table: str, types: dict[int, TypeInfo], column: Column, *, is_key: bool
    ) -> str | None:
        if column.mask is None or column.missing_value is None:
            return lake_text(column, types, table, self._policy, is_key=is_key)
        # The catalog has it as text, also if the stream is read in binary form.
        raw = pa.array([column.missing_value.encode()], pa.binary())
        text: bytes | None = (
            self.text_caster(column, ValuePolicy(), table=table).texts(raw)[0].as_py()
        )
        return None if text is None else text.decode()


def copy_caster(
    column: Column,
    policy: ValuePolicy,
    *,
    types: Mapping[int, TypeInfo],
    table: str | None = None,
) -> ColumnCaster:
    """Choose the caster of a column whose values are copied; see ``copy_form.py``.

    :param types: the users' types that it consists of.
    """
    caster = binary_caster if is_sent(column) else column_caster
    return caster(column, policy, types=types, table=table)
