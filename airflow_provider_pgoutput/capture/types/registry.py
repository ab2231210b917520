"""What is particular about each PostgreSQL type, one row a type; start here to add one.

A type without a row is a ``string`` in PostgreSQL's own text: it needs no row. From the rows follow the
lake type (``mapping.py``), the casters of text and of binary form (``cast.py``), the form in which a copy
fetches the type (``copy_form.py``) and ``docs/reference/types.md``. A type of an array has no row: its
element's row says all. Odd values of every built-in type are in ``tests/capture/types/special_values.py``:
a new row needs its values there.

Sources: https://www.postgresql.org/docs/current/datatype.html and
https://iceberg.apache.org/spec/#schemas-and-data-types
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.types import dates, scalars
from airflow_provider_pgoutput.capture.types.dates import INTERVAL_STRUCT
from airflow_provider_pgoutput.capture.types.numeric import decimal_wire_caster, numeric_texts
from airflow_provider_pgoutput.capture.types.options import (
    INTERVAL,
    JSON,
    NUMERIC,
    STRING,
    TIME,
    UUID,
)
from airflow_provider_pgoutput.capture.types.type_info import FIRST_USER_OID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_pgoutput.capture.types.arrow_bytes import Caster, Printer
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo


@dataclass(frozen=True, slots=True)
class BinaryForm:
    """How values in a type's binary form are read."""

    #: Prints values as the type's output function does.
    texts: Printer
    #: Makes the caster to an Arrow type, which is that of the lake type; None: the printed text is cast.
    caster_to: Callable[[pa.DataType], Caster] | None = None
    #: Bytes of every value; None: they differ.
    width: int | None = None


@dataclass(frozen=True, slots=True)
class CopyForm:
    """In which form a copy fetches a type. Without any of these: what the output function prints."""

    #: ADBC's value is exactly the value that the text gives.
    as_adbc_reads: bool = False
    #: So it is in a key, too: there the Arrow value must also print as PostgreSQL prints it.
    as_adbc_reads_key: bool = False
    #: The type's send function makes it, where the lake type is no string.
    sent: bool = False
    #: ``::text`` gives what the output function prints: the type has no cast to text of its own.
    castable: bool = False


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type."""

    #: In ``pg_type``. A type of an extension is known by it: its schema is the installer's choice, and nobody
    #: takes the name of a base type by chance, as making one needs a superuser and C code.
    name: str
    #: 0: a type of an extension.
    oid: int
    lake_type: str = STRING
    #: The key of ``options.CHOICES`` that covers this type; empty: none does.
    kind: str = ""
    #: The lake type if the user chooses another than ``string``. For ``numeric`` the choice itself is the
    #: type.
    chosen_lake_type: str = STRING
    #: Casts text to a lake type other than ``string``; None: the lake type alone says how.
    text_caster: Caster | None = None
    #: None: a publication with such a column is read as text.
    binary: BinaryForm | None = None
    copied: CopyForm = CopyForm()
    #: SQL that turns a value ``{}`` into the lake's, if that is no string. A struct has one expression for
    #: each field.
    in_lake: tuple[str, ...] = ("{}",)
    #: SQL condition: the lake's struct can hold the value ``{}``. None: it can hold every value.
    held: str | None = None
    #: Texts of the table in ``docs/reference/types.md``: which values are exact, and which do not fit. None:
    #: the text of the lake type.
    exact: str | None = None
    does_not_fit: str | None = None


def _integer(wire: str) -> BinaryForm:
    kind = np.dtype(wire)
    return BinaryForm(
        scalars.integer_printer(kind),
        lambda target: scalars.integer_caster(kind, target),
        kind.itemsize,
    )


def _float(kind: np.dtype[np.float32] | np.dtype[np.float64]) -> BinaryForm:
    printer = scalars.float_printer(kind)
    return BinaryForm(printer, lambda _: scalars.float_caster(kind), kind.itemsize)


def _numeric(target: pa.DataType) -> Caster:
    if pa.types.is_decimal(target):
        return decimal_wire_caster(target)
    return scalars.text_caster(numeric_texts)


def _time(target: pa.DataType) -> Caster:
    if pa.types.is_integer(target):
        return dates.cast_wire_time
    return scalars.text_caster(dates.time_texts)


def _timestamp(zone: bytes) -> BinaryForm:
    return BinaryForm(dates.timestamp_printer(zone), dates.moment_caster, 8)


#: The binary form of text is the text, also that of an enum.
TEXT_FORM = BinaryForm(scalars.same_texts)
_ADBC = CopyForm(as_adbc_reads=True)
_ADBC_AND_KEY = CopyForm(as_adbc_reads=True, as_adbc_reads_key=True)
_TEXT = CopyForm(as_adbc_reads=True, as_adbc_reads_key=True, castable=True)
#: For dates and timestamps. In a key column the copy fetches their text.
_ADBC_OR_CAST = CopyForm(as_adbc_reads=True, castable=True)
_SENT_OR_CAST = CopyForm(sent=True, castable=True)
_CAST = CopyForm(castable=True)
#: There is no cast from these types to a number.
_BY_TEXT = ("{}::pg_catalog.text::pg_catalog.int8",)
_AS_ARRAY = ("{}::pg_catalog.float4[]",)
_INTERVAL_PARTS = (
    "(EXTRACT(year FROM {0}) * 12 + EXTRACT(month FROM {0}))",
    "EXTRACT(day FROM {0})",
    (
        "(EXTRACT(hour FROM {0}) * 3600000000 + EXTRACT(minute FROM {0}) * 60000000"
        " + EXTRACT(microseconds FROM {0}))"
    ),
)
_UNSIGNED = "all values; unsigned, hence `long`"

ROWS = (
    TypeRow("bool", 16, "boolean", copied=_ADBC,
            binary=BinaryForm(scalars.boolean_texts, lambda _: scalars.cast_wire_boolean, 1)),
    TypeRow("bytea", 17, "binary", copied=_ADBC,
            binary=BinaryForm(scalars.bytea_texts, lambda _: scalars.cast_bytes)),
    TypeRow("char", 18, exact="the character, or `\\ooo` for a byte past 127"),
    TypeRow("name", 19, binary=TEXT_FORM),
    TypeRow("int8", 20, "long", binary=_integer(">i8"), copied=_ADBC_AND_KEY),
    TypeRow("int2", 21, "int", binary=_integer(">i2"), copied=_ADBC_AND_KEY),
    TypeRow("int4", 23, "int", binary=_integer(">i4"), copied=_ADBC_AND_KEY),
    TypeRow("text", 25, binary=TEXT_FORM, copied=_TEXT),
    TypeRow("oid", 26, "long", binary=_integer(">u4"), exact=_UNSIGNED),
    TypeRow("xid", 28, "long", exact=_UNSIGNED, in_lake=_BY_TEXT),
    TypeRow("cid", 29, "long", exact=_UNSIGNED, in_lake=_BY_TEXT),
    TypeRow("json", 114, kind=JSON, binary=TEXT_FORM, copied=_CAST,
            exact="byte by byte: white space, order and duplicate keys kept"),
    TypeRow("float4", 700, "float", binary=_float(np.dtype(">f4")), copied=_ADBC),
    TypeRow("float8", 701, "double", binary=_float(np.dtype(">f8")), copied=_ADBC),
    TypeRow("money", 790,
            exact="as `$1,234.56`, with `lc_monetary` C. The server stores only a number of smallest units."
            " So in a currency without two decimals (yen) the point is wrong. Each run warns of it"),
    TypeRow("bpchar", 1042, binary=TEXT_FORM, copied=_ADBC_AND_KEY, exact="as sent, padding kept"),
    TypeRow("varchar", 1043, binary=TEXT_FORM, copied=_TEXT),
    TypeRow("date", 1082, "date", copied=_ADBC_OR_CAST,
            binary=BinaryForm(dates.date_texts, dates.moment_caster, 4)),
    TypeRow("time", 1083, kind=TIME, chosen_lake_type="long", text_caster=dates.cast_time, copied=_CAST,
            in_lake=("(EXTRACT(epoch FROM {}) * 1000000)",),
            binary=BinaryForm(dates.time_texts, _time, 8), exact="all values, `24:00:00` included"),
    TypeRow("timestamp", 1114, "timestamp", binary=_timestamp(b""), copied=_ADBC_OR_CAST),
    TypeRow("timestamptz", 1184, "timestamptz", binary=_timestamp(b"+00"), copied=_ADBC_OR_CAST),
    TypeRow("interval", 1186, kind=INTERVAL, chosen_lake_type=INTERVAL_STRUCT,
            text_caster=dates.cast_interval, copied=_CAST,
            in_lake=_INTERVAL_PARTS, held="pg_catalog.isfinite({})",
            exact="all fields; style `postgres`, such as `1 mon -3 days 04:05:06`"),
    TypeRow("timetz", 1266, copied=_CAST, exact="time and offset, such as `12:00:00+02`"),
    TypeRow("numeric", 1700, kind=NUMERIC, binary=BinaryForm(numeric_texts, _numeric), copied=_SENT_OR_CAST,
            exact="all digits; NaN, ±infinity, any scale"),
    TypeRow("uuid", 2950, kind=UUID, chosen_lake_type="uuid", binary=BinaryForm(scalars.uuid_texts, width=16),
            copied=_CAST),
    TypeRow("tsvector", 3614, exact="lexemes, positions and weights"),
    TypeRow("jsonb", 3802, kind=JSON, binary=BinaryForm(scalars.jsonb_texts), copied=_CAST,
            exact="PostgreSQL's normal form; numbers keep their digits"),
    # 64 bits without a sign are too many for long, and a decimal still sorts as a number.
    TypeRow("xid8", 5069, "decimal(20, 0)", does_not_fit="", in_lake=("{}::pg_catalog.text",),
            exact="all values; unsigned 64 bit is more than `long` holds, and a decimal sorts as a number"),
    TypeRow("hstore", 0, "map<string, string>"),
    TypeRow("vector", 0, "list<float>", does_not_fit="", in_lake=_AS_ARRAY),
    TypeRow("halfvec", 0, "list<float>", does_not_fit="", in_lake=_AS_ARRAY),
)  # fmt: skip

_TEXT_ROW = TypeRow("", 0)
_BUILT_IN: Mapping[int, TypeRow] = {row.oid: row for row in ROWS if row.oid}
_OF_EXTENSIONS: Mapping[str, TypeRow] = {row.name: row for row in ROWS if not row.oid}


def row_of(info: TypeInfo | None) -> TypeRow:
    """The row of a type; an unknown type, and one without a row, is text."""
    if info is None or info.typtype != "b" or info.element_oid:
        return _TEXT_ROW
    if info.oid < FIRST_USER_OID:
        return _BUILT_IN.get(info.oid, _TEXT_ROW)
    return _OF_EXTENSIONS.get(info.name, _TEXT_ROW)
