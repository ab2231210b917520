"""Casts columns to the lake's types, and decides about values that do not fit.

Start here: ``column_caster`` for text, ``binary_caster`` for values in PostgreSQL's binary form. Both give
the same values. The session that printed the text must have DateStyle ISO, IntervalStyle postgres, TimeZone
UTC, extra_float_digits 1 or more, bytea_output hex and client_encoding UTF8. With other settings a caster
says that the text is malformed.

The common types have a binary form. A slot with a column of another type is read as text. A domain is read as
its base type, and an enum as text.

Source: https://www.postgresql.org/docs/current/protocol-logical-replication.html (option ``binary``)
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_pgoutput.batch.lake_types import list_element, struct_fields
from airflow_provider_pgoutput.capture.types.arrow_bytes import (
    Caster,
    CastResult,
    InvalidEncoding,
    MalformedText,
    TooMuchText,
)
from airflow_provider_pgoutput.capture.types.dates import date_caster
from airflow_provider_pgoutput.capture.types.lists import (
    ElementForm,
    array_caster,
    array_printer,
    cast_map,
    list_caster,
)
from airflow_provider_pgoutput.capture.types.literals import ARRAY, BOX_ARRAY
from airflow_provider_pgoutput.capture.types.mapping import BOX_ARRAY_OID
from airflow_provider_pgoutput.capture.types.masked import masked_caster, masked_printer
from airflow_provider_pgoutput.capture.types.numeric import decimal_caster, exact_caster
from airflow_provider_pgoutput.capture.types.records import record_caster
from airflow_provider_pgoutput.capture.types.registry import STRING, TEXT_FORM, BinaryForm, row_of
from airflow_provider_pgoutput.capture.types.scalars import cast_binary, cast_boolean, cast_string
from airflow_provider_pgoutput.capture.types.type_info import (
    FIRST_USER_OID,
    TypeInfo,
    base_type,
    find_type,
)
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    NoBinaryForm,
    ProtocolError,
    ValueRefused,
)
from airflow_provider_pgoutput.lake.arrow_types import STRING_MAP, arrow_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.masks import Mask

__all__ = [
    "FAIL",
    "FAMILIES",
    "NULL_AND_KEEP",
    "TEXT_MODE_ADVICE",
    "CastResult",
    "ColumnCaster",
    "ValuePolicy",
    "binary_caster",
    "can_be_sent",
    "column_caster",
    "has_binary_form",
]

#: The row gets NULL. The caller gets the position, so that it can keep the value's text in a side table.
NULL_AND_KEEP = "null_and_keep"
#: The table is refused.
FAIL = "fail"

#: The types that can reject values, by the first word of the lake type (timestamptz counts as timestamp):
#: decimals (NaN, infinity, too many digits), dates and timestamps (infinity, BC, years after 9999), lists
#: (several dimensions, lower bounds other than 1, elements that do not fit), and structs (infinite
#: intervals, attributes that do not fit).
FAMILIES = ("decimal", "date", "timestamp", "list", "struct")

#: What to do about a type without a binary form.
TEXT_MODE_ADVICE = "use text mode (binary=False), or leave the column out with a column list."

_NO_TYPES: Mapping[int, TypeInfo] = {}
_TEXT_ADVICE = (
    "check that the session's DateStyle, TimeZone, bytea_output and client_encoding are the pinned "
    "ones, and that the column's type is current; copy_tables copies the table and passes over such values."
)
_BINARY_ADVICE = "check that the column's type is current, or use text mode (binary=False)."


@dataclass(frozen=True, slots=True)
class ValuePolicy:
    """What happens to a value that does not fit its column. It is never changed to a value that fits."""

    default: str = NULL_AND_KEEP
    #: Exceptions by family, see ``FAMILIES``.
    by_family: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if unknown := {self.default, *self.by_family.values()} - {NULL_AND_KEEP, FAIL}:
            raise ConfigurationError(
                f"Unknown value policy {sorted(unknown)}.",
                advice=f"use {NULL_AND_KEEP!r} or {FAIL!r}.",
            )
        if unknown := set(self.by_family) - set(FAMILIES):
            raise ConfigurationError(
                f"Unknown type family {sorted(unknown)}.",
                advice=f"choose from {', '.join(FAMILIES)}.",
            )

    def fails(self, lake_type: str) -> bool:
        """Whether a rejected value of a column of this lake type refuses the batch."""
        family = lake_type.partition("<")[0].partition("(")[0].removesuffix("tz")
        return self.by_family.get(family, self.default) == FAIL


@dataclass(frozen=True, slots=True)
class ColumnCaster:
    """Casts one column of one table."""

    column: Column
    policy: ValuePolicy
    #: ``schema.table``, for errors.
    table: str | None
    _cast: Caster
    #: Prints values in binary form; None: the values are text.
    _texts: Callable[[pa.Array], pa.Array] | None = None

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of ``CastResult.values``."""
        return arrow_type(self.column.lake_type)

    @property
    def plain_texts(self) -> Callable[[pa.Array], pa.Array] | None:
        """Prints values in binary form; None: the values are text."""
        return self._texts

    def cast(self, raw: pa.Array) -> CastResult:
        """Cast a column: an Arrow ``binary`` array of what PostgreSQL sent, null for NULL.

        :raises ValueRefused: a value does not fit and the policy says fail, or a value is not UTF-8.
        :raises ProtocolError: a value is not what the type's output or send function makes.
        :raises TooMuchText: see ``in_parts``.
        """
        with self._explained(raw):
            result = self._cast(raw)
        if len(result.rejected) and self.policy.fails(self.column.lake_type):
            raise ValueRefused(
                f"{len(result.rejected)} value(s) of type {self.column.type_name} do not fit "
                f"{self.column.lake_type}.",
                table=self.table,
                column=self.column.name,
                advice=f"change the value at the source, or set the value policy to {NULL_AND_KEEP!r}.",
            )
        return result

    def texts(self, raw: pa.Array) -> pa.Array:
        """The text that PostgreSQL prints for values. The caller keeps it for values that do not fit.

        For binary values it is made one by one, so use it for few values.

        :raises ProtocolError: a value is not what the type's send function makes.
        """
        if self._texts is None:
            return raw
        with self._explained(raw):
            return self._texts(raw)

    @contextmanager
    def _explained(self, raw: pa.Array) -> Iterator[None]:
        """Turn the exceptions of a caster into errors that name the column."""
        try:
            yield
        except InvalidEncoding:
            raise ValueRefused(
                f"A value of type {self.column.type_name} is not valid UTF-8.",
                table=self.table,
                column=self.column.name,
                advice="the database's encoding is probably SQL_ASCII, which checks nothing: repair the "
                "value at the source, or leave the column out with a column list of the publication.",
            ) from None
        except TooMuchText:
            if len(raw) > 1:
                raise
            raise ValueRefused(
                f"A value of type {self.column.type_name} is longer than 1 GiB as text.",
                table=self.table,
                column=self.column.name,
                advice="change it at the source, or leave the column out with a column list.",
            ) from None
        except MalformedText:
            form, advice = (
                ("text", _TEXT_ADVICE) if self._texts is None else ("binary", _BINARY_ADVICE)
            )
            raise ProtocolError(
                f"A value is not in the {form} form of type {self.column.type_name}.",
                table=self.table,
                column=self.column.name,
                advice=advice,
            ) from None


def column_caster(
    column: Column,
    policy: ValuePolicy,
    *,
    types: Mapping[int, TypeInfo] = _NO_TYPES,
    table: str | None = None,
) -> ColumnCaster:
    """The caster of a column whose values are text, by its type and its lake type.

    :param types: users' types by OID, as for ``lake_type``: the base of a domain, the parts of an array or a
        composite.
    :param table: ``schema.table``, for errors.
    :raises ConfigurationError: the column's lake type is unknown.
    """
    return ColumnCaster(column, policy, table, caster_of(column.lake_type, column.type_oid, types))


_FIXED: Mapping[str, Caster] = {
    STRING: cast_string,
    "uuid": cast_string,
    "boolean": cast_boolean,
    "binary": cast_binary,
    STRING_MAP: cast_map,
}


def caster_of(lake_type: str, type_oid: int, types: Mapping[int, TypeInfo]) -> Caster:
    """The caster of text of a type to a lake type."""
    info = base_type(type_oid, types)
    own = row_of(info).text_caster
    if own is not None and lake_type != STRING:
        return own
    if lake_type in _FIXED:
        return _FIXED[lake_type]
    target = arrow_type(lake_type)
    if (element := list_element(lake_type)) is not None:
        brackets = BOX_ARRAY if info is not None and info.oid == BOX_ARRAY_OID else ARRAY
        element_oid = 0 if info is None else info.element_oid
        return list_caster(target, brackets, caster_of(element, element_oid, types))
    if (fields := struct_fields(lake_type)) is not None:
        return _struct_caster(target, fields, info, types)
    return _number_or_date_caster(target)


def _number_or_date_caster(target: pa.DataType) -> Caster:
    if pa.types.is_decimal(target):
        return decimal_caster(target)
    return date_caster(target) if pa.types.is_temporal(target) else exact_caster(target)


def _struct_caster(
    target: pa.DataType,
    fields: tuple[tuple[str, str], ...],
    info: TypeInfo | None,
    types: Mapping[int, TypeInfo],
) -> Caster:
    attributes = () if info is None else info.attributes
    if tuple(each.name for each in attributes) != tuple(name for name, _ in fields):
        raise ConfigurationError(
            f"A composite type is not what lake type {target} was made from.",
            advice="stage the batch again.",
        )
    casters = [
        caster_of(kind, attribute.type_oid, types)
        for (_, kind), attribute in zip(fields, attributes, strict=True)
    ]
    return record_caster(target, casters)


def masked(caster: ColumnCaster, mask: Mask, secret: bytes | None) -> ColumnCaster:
    """The caster of a column whose values are masked. It never returns a plain value, nor prints one.

    :param caster: that of the column's plain values.
    :param secret: of ``hash``.
    """
    printer = masked_printer(mask, secret, caster.plain_texts)
    cast = masked_caster(mask, caster.column.lake_type, printer)
    return replace(caster, _cast=cast, _texts=printer)


def has_binary_form(type_oid: int, types: Mapping[int, TypeInfo]) -> bool:
    """Whether values of this type are read in binary form.

    :param types: users' types by OID; a type that is nowhere has no binary form.
    """
    return _form(type_oid, types) is not None


def can_be_sent(type_oid: int, types: Mapping[int, TypeInfo]) -> bool:
    """Whether a column of this type can be read in binary mode.

    A type with a binary form can. So can a type without a send function, as the server sends its text. An
    array of such a type cannot: the server refuses to send it.
    """
    return has_binary_form(type_oid, types) or _has_no_send(base_type(type_oid, types))


def _has_no_send(info: TypeInfo | None) -> bool:
    if info is None or info.element_oid:
        return False
    if info.oid < FIRST_USER_OID:
        return not row_of(info).has_send
    return info.typtype == "b" and not info.has_send


def binary_caster(
    column: Column,
    policy: ValuePolicy,
    *,
    types: Mapping[int, TypeInfo],
    table: str | None = None,
) -> ColumnCaster:
    """The caster of a column whose values are in binary form, by its type and its lake type.

    :param types: users' types by OID, as for ``lake_type``: the base of a domain, the elements of an array.
    :param table: ``schema.table``, for errors.
    :raises NoBinaryForm: the column's type has no binary form.
    """
    form = _form(column.type_oid, types)
    if form is None:
        raise NoBinaryForm(
            f"Type {column.type_name} cannot be read in binary mode.",
            table=table,
            column=column.name,
            advice=TEXT_MODE_ADVICE,
        )
    cast = _binary_caster_of(column.lake_type, column.type_oid, types, form)
    return ColumnCaster(column, policy, table, cast, form.texts)


def _binary_caster_of(
    lake_type: str, type_oid: int, types: Mapping[int, TypeInfo], form: BinaryForm
) -> Caster:
    element_type, info = list_element(lake_type), base_type(type_oid, types)
    if element_type is not None and info is not None and info.element_oid:
        element, shape = _element(info, types)
        assert element is not None, "the array has a form"
        inner = _binary_caster_of(element_type, info.element_oid, types, element)
        return array_caster(arrow_type(lake_type), shape, inner)
    if form.caster_to is not None and lake_type != STRING:
        return form.caster_to(arrow_type(lake_type))
    cast_text = caster_of(lake_type, type_oid, types)
    return lambda raw: cast_text(form.texts(raw))


def _form(type_oid: int, types: Mapping[int, TypeInfo]) -> BinaryForm | None:
    info = base_type(type_oid, types)
    if info is None:
        return None
    if info.element_oid:
        element, shape = _element(info, types)
        return None if element is None else BinaryForm(array_printer(shape, element.texts))
    return TEXT_FORM if info.typtype == "e" else row_of(info).binary


def _element(
    info: TypeInfo, types: Mapping[int, TypeInfo]
) -> tuple[BinaryForm | None, ElementForm]:
    """How the elements of an array type are read, and what their binary form looks like."""
    element, form = find_type(info.element_oid, types), _form(info.element_oid, types)
    delimiter = b"," if element is None else element.delimiter.encode()
    width = None if form is None else form.width
    return form, ElementForm(info.element_oid, width, delimiter)
