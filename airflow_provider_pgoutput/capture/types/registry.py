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

from airflow_provider_pgoutput.batch.lake_types import list_element
from airflow_provider_pgoutput.capture.types import binary_dates as dates
from airflow_provider_pgoutput.capture.types import binary_geometry as geometry
from airflow_provider_pgoutput.capture.types import binary_intervals as intervals
from airflow_provider_pgoutput.capture.types import binary_network as network
from airflow_provider_pgoutput.capture.types import binary_numbers as numbers
from airflow_provider_pgoutput.capture.types import binary_scalars as scalars
from airflow_provider_pgoutput.capture.types.arrow import arrow_type
from airflow_provider_pgoutput.capture.types.binary_extensions import (
    hstore_texts,
    sparsevec_texts,
    vector_caster,
)
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
from airflow_provider_pgoutput.capture.types.binary_ranges import multirange_printer, range_printer
from airflow_provider_pgoutput.capture.types.binary_records import record_printer
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


def _vector(wire: str) -> BinaryForm:
    caster_to, texts = vector_caster(np.dtype(wire))
    return BinaryForm(texts, caster_to)


def _numeric(target: pa.DataType) -> Caster:
    if pa.types.is_decimal(target):
        return decimal_wire_caster(target)
    return scalars.text_caster(numeric_texts)


def _time(target: pa.DataType) -> Caster:
    if pa.types.is_integer(target):
        return dates.cast_wire_time
    return scalars.text_caster(dates.time_texts)


_TEXT = _printed(scalars.same_texts)
_VERSIONED = _printed(scalars.versioned_texts)

#: By OID, as a user's type may have the name of one of these.
_FORMS: Mapping[int, BinaryForm] = {
    16: BinaryForm(scalars.boolean_texts, lambda _: scalars.cast_wire_boolean, 1),
    17: BinaryForm(scalars.bytea_texts, lambda _: scalars.cast_bytes),
    18: _printed(scalars.char_texts, 1),
    19: _TEXT,  # name
    20: _integer(">i8"),
    21: _integer(">i2"),
    22: _printed(
        numbers.vector_printer(ElementForm(21, 2), scalars.integer_printer(np.dtype(">i2")))
    ),
    23: _integer(">i4"),
    25: _TEXT,
    26: _integer(">u4"),  # oid
    27: _printed(numbers.tid_texts, 6),
    28: _integer(">u4"),  # xid
    29: _integer(">u4"),  # cid
    30: _printed(
        numbers.vector_printer(ElementForm(26, 4), scalars.integer_printer(np.dtype(">u4")))
    ),
    114: _TEXT,  # json
    142: _TEXT,  # xml
    600: _printed(geometry.shape_printer("(#,#)"), 16),  # point
    601: _printed(geometry.shape_printer("[(#,#),(#,#)]"), 32),  # lseg
    602: _printed(geometry.path_texts),
    603: _printed(geometry.shape_printer("(#,#),(#,#)"), 32),  # box
    604: _printed(geometry.polygon_texts),
    628: _printed(geometry.shape_printer("{#,#,#}"), 24),  # line
    650: _printed(network.address_printer(is_cidr=True)),
    700: _float(np.dtype(">f4")),
    701: _float(np.dtype(">f8")),
    718: _printed(geometry.shape_printer("<(#,#),#>"), 24),  # circle
    774: _printed(network.mac_printer(8), 8),
    790: _printed(numbers.money_texts, 8),
    829: _printed(network.mac_printer(6), 6),
    869: _printed(network.address_printer(is_cidr=False)),
    1042: _TEXT,  # bpchar
    1043: _TEXT,  # varchar
    1082: BinaryForm(dates.date_texts, dates.moment_caster, 4),
    1083: BinaryForm(dates.time_texts, _time, 8),
    1114: BinaryForm(dates.timestamp_printer(b""), dates.moment_caster, 8),
    1184: BinaryForm(dates.timestamp_printer(b"+00"), dates.moment_caster, 8),
    1186: _printed(intervals.interval_texts, 16),
    1266: _printed(intervals.timetz_texts, 12),
    1560: _printed(numbers.bit_texts),
    1562: _printed(numbers.bit_texts),  # varbit
    1700: BinaryForm(numeric_texts, _numeric),
    1790: _TEXT,  # refcursor
    2950: _printed(scalars.uuid_texts, 16),
    2970: _printed(numbers.snapshot_texts),  # txid_snapshot
    3220: _printed(network.lsn_texts, 8),
    3802: _VERSIONED,  # jsonb
    4072: _VERSIONED,  # jsonpath
    5038: _printed(numbers.snapshot_texts),
    5069: _printed(scalars.integer_printer(np.dtype(">u8")), 8),  # xid8
}
#: Types of extensions by their send function: their names and schemas are anybody's choice.
_FORMS_OF_SEND: Mapping[str, BinaryForm] = {
    "textsend": _TEXT,  # citext
    "hstore:hstore_send": _printed(hstore_texts),
    "ltree:lquery_send": _VERSIONED,
    "ltree:ltree_send": _VERSIONED,
    "ltree:ltxtq_send": _VERSIONED,
    "vector:halfvec_send": _vector(">f2"),
    "vector:sparsevec_send": _printed(sparsevec_texts),
    "vector:vector_send": _vector(">f4"),
}
#: What the bounds of built-in ranges are, and the ranges of multiranges.
_PARTS: Mapping[int, int] = {
    3904: 23, 3906: 1700, 3908: 1114, 3910: 1184, 3912: 1082, 3926: 20,
    4451: 3904, 4532: 3906, 4533: 3908, 4534: 3910, 4535: 3912, 4536: 3926,
}  # fmt: skip
#: The built-in type without a send function, aclitem.
_WITHOUT_SEND = 1033


def has_binary_form(type_oid: int, types: Mapping[int, TypeInfo]) -> bool:
    """Whether values of this type are read in binary form.

    :param types: users' types by OID, with attributes; a type that is nowhere has no binary form.
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
    return info.typtype == "b" and not info.send


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
    if info.typtype == "c":
        return _record(info, types)
    if info.typtype in {"r", "m"}:
        part = _form(info.part_oid or _PARTS.get(info.oid, 0), types)
        make = range_printer if info.typtype == "r" else multirange_printer
        return None if part is None else _printed(make(part.texts))
    return _FORMS.get(info.oid) or _FORMS_OF_SEND.get(info.send)


def _element(
    info: TypeInfo, types: Mapping[int, TypeInfo]
) -> tuple[BinaryForm | None, ElementForm]:
    """How the elements of an array type are read, and what they look like."""
    element, form = find_type(info.element_oid, types), _form(info.element_oid, types)
    delimiter = b"," if element is None else element.delimiter.encode()
    width = None if form is None else form.width
    return form, ElementForm(info.element_oid, width, delimiter)


def _record(info: TypeInfo, types: Mapping[int, TypeInfo]) -> BinaryForm | None:
    """A composite; when nothing is known of its attributes, or one has no form, it has none."""
    if not info.attributes or any(_form(each.type_oid, types) is None for each in info.attributes):
        return None

    def printer_of(type_oid: int) -> Printer:
        form = _form(type_oid, types)
        if form is None:
            raise NoBinaryForm(
                f"An attribute of type {info.schema_name}.{info.name} cannot be read in binary mode.",
                advice=TEXT_MODE_ADVICE,
            )
        return form.texts

    return _printed(record_printer(printer_of))
