"""A condition with the types of a table's columns: SQL for the source, an answer for columns of the stream.

Both can be true, false or NULL, as in PostgreSQL. A row passes if its condition is true.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import SQL, Composable, Identifier

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.filters.comparisons import (
    BOOLEAN,
    REAL,
    TEXTS,
    WrongConstant,
    compared,
    has_order,
)
from airflow_provider_pgoutput.capture.staging.sent_values import Casters, SentCaster
from airflow_provider_pgoutput.capture.types.cast import ValuePolicy, binary_caster, column_caster
from airflow_provider_pgoutput.capture.types.mapping import lake_type, type_name
from airflow_provider_pgoutput.capture.types.type_info import base_type
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.filters import (
    AllOf,
    Among,
    Comparison,
    Condition,
    IsNull,
    IsTrue,
    Not,
    columns_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.filters.comparisons import Compared, Order
    from airflow_provider_pgoutput.capture.pgoutput.blocks import Forms
    from airflow_provider_pgoutput.capture.types.arrow_bytes import CastResult
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.filters import Constant

    #: By name of the column.
    Row = Mapping[str, "SentColumn"]
    #: An Arrow ``boolean`` array with NULL.
    Answer = Callable[[Row], pa.Array]


@dataclass(frozen=True, slots=True)
class SentColumn:
    """The values of one column of a block, as the server sent them."""

    raw: pa.Array
    forms: Forms
    caster: SentCaster

    def cast(self) -> CastResult:
        """See ``Values``."""
        return self.caster.cast(self.raw, self.forms)

    def texts(self) -> pa.Array:
        """See ``Values``."""
        return self.caster.texts(self.raw, self.forms)

    def is_null(self) -> NDArray[np.bool_]:
        """Which values are NULL."""
        found: NDArray[np.bool_] = self.raw.is_null().to_numpy(zero_copy_only=False)
        return found


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """A column of a table, as a condition needs it."""

    name: str
    type_oid: int
    type_modifier: int


class TypedCondition:
    """A condition of one table.

    :param columns: those of the table. The condition's own must be among them.
    :param types: the users' types in them.
    :param table: ``schema.table``.
    :param unsure: text columns with a collation that is not deterministic. There ``a`` may equal ``A``.
    :raises ConfigurationError: a constant does not go with its column, or a column is not compared.
    """

    def __init__(
        self,
        condition: Condition,
        columns: Collection[TypedColumn],
        types: Mapping[int, TypeInfo],
        table: str,
        unsure: Collection[str] = (),
    ) -> None:
        wanted = columns_of(condition)
        self._columns = {each.name: each for each in columns if each.name in wanted}
        self._types, self._table, self.unsure = types, table, frozenset(unsure)
        self._sql, self._answer = self._made(condition)
        self._casters = {each.name: self._caster(each) for each in self._columns.values()}

    @property
    def sql(self) -> str:
        """The condition for the source's own rows."""
        text: str = self._sql.as_string()
        return text

    def passes(self, values: Mapping[str, tuple[pa.Array, Forms]]) -> NDArray[np.bool_]:
        """Which rows pass.

        :param values: by name of the column.
        """
        row = {name: SentColumn(*values[name], caster) for name, caster in self._casters.items()}
        found: NDArray[np.bool_] = self._answer(row).fill_null(False).to_numpy(zero_copy_only=False)
        return found

    def _caster(self, column: TypedColumn) -> SentCaster:
        kind = lake_type(column.type_oid, column.type_modifier, self._types)
        name = type_name(column.type_oid, column.type_modifier, self._types)
        described = Column(column.name, column.type_oid, column.type_modifier, name, kind)
        casters = Casters(
            text=functools.partial(column_caster, types=self._types),
            binary=functools.partial(binary_caster, types=self._types),
        )
        return SentCaster(described, ValuePolicy(), self._table, casters)

    def _made(self, condition: Condition) -> tuple[Composable, Answer]:
        if isinstance(condition, Comparison):
            return self._comparison(condition)
        if isinstance(condition, Among):
            return self._among(condition)
        if isinstance(condition, IsNull):
            return self._is_null(condition.column)
        if isinstance(condition, IsTrue):
            return self._is_true(condition.column)
        if isinstance(condition, Not):
            text, part = self._made(condition.part)
            return SQL("(NOT {})").format(text), lambda row: pc.invert(part(row))
        made = [self._made(each) for each in condition.parts]
        word, join = (
            (" AND ", pc.and_kleene) if isinstance(condition, AllOf) else (" OR ", pc.or_kleene)
        )
        texts = SQL(word).join(text for text, _ in made)
        return SQL("({})").format(texts), lambda row: functools.reduce(
            join, (answer(row) for _, answer in made)
        )

    def _comparison(self, test: Comparison) -> tuple[Composable, Answer]:
        name, operator = test.column, test.operator
        type_oid = self._compared_type(name)
        if operator not in {"=", "<>"} and not has_order(type_oid):
            raise self._refused(name, f"{operator} is not decided for this type; = and <> are")
        constant = self._constant(name, type_oid, test.constant)
        text = SQL("({} {} {})").format(Identifier(name), SQL(operator), constant.literal)
        holds = _HOLDS[operator]
        return text, lambda row: _where_known(row[name], holds(constant.order(row[name])))

    def _among(self, test: Among) -> tuple[Composable, Answer]:
        name = test.column
        type_oid = self._compared_type(name)
        if type_oid == REAL and len(test.constants) > 1:
            # The server takes a list as numbers of type real, and one number as double precision.
            raise self._refused(name, "IN with several numbers is not decided for this type; = is")
        constants = [self._constant(name, type_oid, each) for each in test.constants]
        listed = SQL(", ").join(each.literal for each in constants)
        text = SQL("({} IN ({}))").format(Identifier(name), listed)

        def answer(row: Row) -> pa.Array:
            values = row[name]
            found = np.zeros(len(values.raw), np.bool_)
            for each in constants:
                found |= each.order(values) == 0
            return _where_known(values, found)

        return text, answer

    def _is_null(self, name: str) -> tuple[Composable, Answer]:
        info = base_type(self._column(name).type_oid, self._types)
        if info is None or info.typtype == "c":
            # A row of NULLs IS NULL at the source.
            raise self._refused(name, "IS NULL of a composite type is not decided")
        text = SQL("({} IS NULL)").format(Identifier(name))
        return text, lambda row: pa.array(row[name].is_null())

    def _is_true(self, name: str) -> tuple[Composable, Answer]:
        if self._compared_type(name) != BOOLEAN:
            raise self._refused(name, "only a boolean column is a condition by itself")
        return Identifier(name), lambda row: row[name].cast().values

    def _column(self, name: str) -> TypedColumn:
        found = self._columns.get(name)
        if found is None:
            raise self._refused(name, "no such column is published")
        return found

    def _compared_type(self, name: str) -> int:
        """The built-in type of a column's values."""
        info = base_type(self._column(name).type_oid, self._types)
        if info is None:
            raise self._refused(name, "its type is not known")
        if info.oid in TEXTS and name in self.unsure:
            raise self._refused(
                name, "its collation is not deterministic, so other texts may be equal"
            )
        return info.oid

    def _constant(self, name: str, type_oid: int, constant: Constant) -> Compared:
        try:
            return compared(type_oid, constant)
        except WrongConstant as why:
            raise self._refused(name, str(why)) from None

    def _refused(self, column: str, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"The filter cannot be followed: {why}.",
            table=self._table,
            column=column,
            advice=f"change filters[{self._table!r}]; see docs/how-to/filter_rows.md.",
        )


def _where_known(values: SentColumn, found: NDArray[np.bool_]) -> pa.Array:
    """NULL where the value is NULL."""
    return pa.array(found, pa.bool_(), mask=values.is_null())


_HOLDS: Mapping[str, Callable[[Order], NDArray[np.bool_]]] = {
    "=": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}
