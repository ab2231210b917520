"""Columns in PostgreSQL's binary form cast to the same values, by the same rules, as their text is.

Start here: ``binary_caster``, beside ``column_caster`` of ``cast.py``. A type is read here only when its
send function makes the same of a value in every version of PostgreSQL; others need text mode. Domains
are read as their base type and enums as text. What is not here: how each type is read.

Source: https://www.postgresql.org/docs/current/protocol-logical-replication.html (option ``binary``)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

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
from airflow_provider_pgoutput.capture.types.cast import ColumnCaster, ValuePolicy
from airflow_provider_pgoutput.capture.types.type_info import find_type
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_pgoutput.batch.manifest import Column
    from airflow_provider_pgoutput.capture.types.binary_scalars import Printer
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.capture.types.values import Caster

#: What to do about a type without a binary form.
TEXT_MODE_ADVICE = "use text mode (binary=False), or leave the column out with a column list."


@dataclass(frozen=True, slots=True)
class BinaryForm:
    """How a type is read."""

    #: Makes the caster to an Arrow type, which is that of the lake type.
    caster_to: Callable[[pa.DataType], Caster]
    #: Prints values as the type's output function does.
    texts: Printer
    #: Bytes of every value; None: they differ.
    width: int | None = None


def _integer(wire: str) -> BinaryForm:
    kind = np.dtype(wire)
    return BinaryForm(
        lambda target: scalars.integer_caster(kind, target),
        scalars.integer_printer(kind),
        kind.itemsize,
    )


def _float(kind: np.dtype[np.float32] | np.dtype[np.float64]) -> BinaryForm:
    return BinaryForm(lambda _: scalars.float_caster(kind), float_printer(kind), kind.itemsize)


def _string(texts: Printer, width: int | None = None) -> BinaryForm:
    """A type that is text in the lake."""
    return BinaryForm(lambda _: scalars.text_caster(texts), texts, width)


def _numeric(target: pa.DataType) -> Caster:
    if pa.types.is_decimal(target):
        return decimal_wire_caster(target)
    return scalars.text_caster(numeric_texts)


def _time(target: pa.DataType) -> Caster:
    if pa.types.is_integer(target):
        return dates.cast_wire_time
    return scalars.text_caster(dates.time_texts)


_TEXT = _string(scalars.same_texts)

#: By OID, as a user's type may have the name of one of these.
_FORMS: Mapping[int, BinaryForm] = {
    16: BinaryForm(lambda _: scalars.cast_wire_boolean, scalars.boolean_texts, 1),
    17: BinaryForm(lambda _: scalars.cast_bytes, scalars.bytea_texts),
    18: _string(scalars.char_texts, 1),
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
    1082: BinaryForm(dates.moment_caster, dates.date_texts, 4),
    1083: BinaryForm(_time, dates.time_texts, 8),
    1114: BinaryForm(dates.moment_caster, dates.timestamp_printer(b""), 8),
    1184: BinaryForm(dates.moment_caster, dates.timestamp_printer(b"+00"), 8),
    1700: BinaryForm(_numeric, numeric_texts),
    2950: _string(scalars.uuid_texts, 16),
    3802: _string(scalars.jsonb_texts),
}


def has_binary_form(type_oid: int, types: Mapping[int, TypeInfo]) -> bool:
    """Whether a column of this type can be read in binary mode.

    :param types: users' types by OID; a type that is nowhere has no binary form.
    """
    return _form(type_oid, types) is not None


def binary_caster(
    column: Column,
    policy: ValuePolicy,
    *,
    types: Mapping[int, TypeInfo],
    table: str | None = None,
) -> ColumnCaster:
    """The caster of a column whose values are in binary form, by its type.

    :param types: users' types by OID, as ``lake_type`` takes them: what a domain or an array is of.
    :param table: ``schema.table``, for errors.
    :raises ConfigurationError: when the column's type has no binary form.
    """
    form = _form(column.type_oid, types)
    if form is None:
        raise ConfigurationError(
            f"Type {column.type_name} cannot be read in binary mode.",
            table=table,
            column=column.name,
            advice=TEXT_MODE_ADVICE,
        )
    cast = form.caster_to(arrow_type(column.lake_type))
    return ColumnCaster(column, policy, table, cast, form.texts)


def _form(type_oid: int, types: Mapping[int, TypeInfo]) -> BinaryForm | None:
    info = find_type(type_oid, types)
    if info is None:
        return None
    if info.typtype == "d":
        return _form(info.base_oid, types)
    if info.typtype == "e":
        return _TEXT
    if not info.element_oid:
        return _FORMS.get(info.oid)
    element = _form(info.element_oid, types)
    return (
        None if element is None else _array(ElementForm(info.element_oid, element.width), element)
    )


def _array(form: ElementForm, element: BinaryForm) -> BinaryForm:
    return BinaryForm(
        lambda target: array_caster(target, form, element.caster_to(target.value_type)),
        array_printer(form, element.texts),
    )
