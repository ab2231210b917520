"""Columns in PostgreSQL's binary form cast to the same values, by the same rules, as their text is.

Start here: ``binary_caster``, beside ``column_caster`` of ``cast.py``. The common types have a binary form;
a table with a column of another type is read as text. A domain is read as its base type, and an enum as text.

Source: https://www.postgresql.org/docs/current/protocol-logical-replication.html (option ``binary``)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.batch.lake_types import list_element
from airflow_provider_pgoutput.capture.types import binary_dates as dates
from airflow_provider_pgoutput.capture.types import binary_scalars as scalars
from airflow_provider_pgoutput.capture.types.arrow import arrow_type
from airflow_provider_pgoutput.capture.types.binary_floats import float_printer
from airflow_provider_pgoutput.capture.types.binary_lists import (
    ElementForm,
    array_caster,
    array_printer,
)
from airflow_provider_pgoutput.capture.types.binary_numeric import (
    decimal_wire_caster,
    numeric_texts,
)
from airflow_provider_pgoutput.capture.types.cast import ColumnCaster, ValuePolicy, caster_of
from airflow_provider_pgoutput.capture.types.options import STRING
from airflow_provider_pgoutput.capture.types.type_info import (
    FIRST_USER_OID,
    base_type,
    find_type,
)
from airflow_provider_pgoutput.errors import NoBinaryForm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.types.arrow_bytes import Caster
    from airflow_provider_pgoutput.capture.types.binary_scalars import Printer
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo

#: What to do about a type without a binary form.
TEXT_MODE_ADVICE = "use text mode (binary=False), or leave the column out with a column list."


@dataclass(frozen=True, slots=True)
class BinaryForm:
    """How a type is read."""

    #: Prints values as the type's output function does.
    texts: Printer
    #: Makes the caster to an Arrow type, which is that of the lake type; None: the printed text is cast.
    caster_to: Callable[[pa.DataType], Caster] | None = None
    #: Bytes of every value; None: they differ.
    width: int | None = None


def _integer(wire: str) -> BinaryForm:
    kind = np.dtype(wire)
    return BinaryForm(
        scalars.integer_printer(kind),
        lambda target: scalars.integer_caster(kind, target),
        kind.itemsize,
    )


def _float(kind: np.dtype[np.float32] | np.dtype[np.float64]) -> BinaryForm:
    return BinaryForm(float_printer(kind), lambda _: scalars.float_caster(kind), kind.itemsize)


def _printed(texts: Printer, width: int | None = None) -> BinaryForm:
    """A type whose text is cast."""
    return BinaryForm(texts, width=width)


def _numeric(target: pa.DataType) -> Caster:
    if pa.types.is_decimal(target):
        return decimal_wire_caster(target)
    return scalars.text_caster(numeric_texts)


def _time(target: pa.DataType) -> Caster:
    if pa.types.is_integer(target):
        return dates.cast_wire_time
    return scalars.text_caster(dates.time_texts)


_TEXT = _printed(scalars.same_texts)

#: By OID, as a user's type may have the name of one of these.
_FORMS: Mapping[int, BinaryForm] = {
    16: BinaryForm(scalars.boolean_texts, lambda _: scalars.cast_wire_boolean, 1),
    17: BinaryForm(scalars.bytea_texts, lambda _: scalars.cast_bytes),
    19: _TEXT,  # name
    20: _integer(">i8"),
    21: _integer(">i2"),
    23: _integer(">i4"),
    25: _TEXT,
    26: _integer(">u4"),  # oid
    114: _TEXT,  # json
    700: _float(np.dtype(">f4")),
    701: _float(np.dtype(">f8")),
    1042: _TEXT,  # bpchar
    1043: _TEXT,  # varchar
    1082: BinaryForm(dates.date_texts, dates.moment_caster, 4),
    1083: BinaryForm(dates.time_texts, _time, 8),
    1114: BinaryForm(dates.timestamp_printer(b""), dates.moment_caster, 8),
    1184: BinaryForm(dates.timestamp_printer(b"+00"), dates.moment_caster, 8),
    1700: BinaryForm(numeric_texts, _numeric),
    2950: _printed(scalars.uuid_texts, 16),
    3802: _printed(scalars.jsonb_texts),
}
#: The built-in type without a send function, aclitem.
_WITHOUT_SEND = 1033


def has_binary_form(type_oid: int, types: Mapping[int, TypeInfo]) -> bool:
    """Whether values of this type are read in binary form.

    :param types: users' types by OID; a type that is nowhere has no binary form.
    """
    return _form(type_oid, types) is not None


def can_be_sent(type_oid: int, types: Mapping[int, TypeInfo]) -> bool:
    """Whether a column of this type can be read in binary mode: in binary form, or sent as text all the same.

    Of a type without a send function the server sends the text; within others it refuses it.
    """
    return has_binary_form(type_oid, types) or _has_no_send(base_type(type_oid, types))


def _has_no_send(info: TypeInfo | None) -> bool:
    if info is None or info.element_oid:
        return False
    if info.oid < FIRST_USER_OID:
        return info.oid == _WITHOUT_SEND
    return info.typtype == "b" and not info.has_send


def binary_caster(
    column: Column,
    policy: ValuePolicy,
    *,
    types: Mapping[int, TypeInfo],
    table: str | None = None,
) -> ColumnCaster:
    """The caster of a column whose values are in binary form, by its type and its lake type.

    :param types: users' types by OID, as ``lake_type`` takes them: what a domain or an array is of.
    :param table: ``schema.table``, for errors.
    :raises NoBinaryForm: when the column's type has no binary form.
    """
    form = _form(column.type_oid, types)
    if form is None:
        raise NoBinaryForm(
            f"Type {column.type_name} cannot be read in binary mode.",
            table=table,
            column=column.name,
            advice=TEXT_MODE_ADVICE,
        )
    cast = _caster(column.lake_type, column.type_oid, types, form)
    return ColumnCaster(column, policy, table, cast, form.texts)


def _caster(
    lake_type: str, type_oid: int, types: Mapping[int, TypeInfo], form: BinaryForm
) -> Caster:
    element_type, info = list_element(lake_type), base_type(type_oid, types)
    if element_type is not None and info is not None and info.element_oid:
        element, shape = _element(info, types)
        assert element is not None, "the array has a form"
        inner = _caster(element_type, info.element_oid, types, element)
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
        return None if element is None else _printed(array_printer(shape, element.texts))
    if info.typtype == "e":
        return _TEXT
    return _FORMS.get(info.oid)


def _element(
    info: TypeInfo, types: Mapping[int, TypeInfo]
) -> tuple[BinaryForm | None, ElementForm]:
    """How the elements of an array type are read, and what they look like."""
    element, form = find_type(info.element_oid, types), _form(info.element_oid, types)
    delimiter = b"," if element is None else element.delimiter.encode()
    width = None if form is None else form.width
    return form, ElementForm(info.element_oid, width, delimiter)
