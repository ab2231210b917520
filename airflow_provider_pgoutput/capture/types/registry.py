"""What is particular about each PostgreSQL type, one row a type; start here to add one.

A type without a row is a ``string`` in PostgreSQL's own text: it needs no row. From the rows follow:

* the lake type (``mapping.py``), and what the owner of a pipeline may choose instead (``options.py``);
* the spelling of the type (``names.py``);
* the casters of text and of binary form (``cast.py``), and whether there is a binary form;
* the form in which a copy fetches the type (``copy_form.py``), and the SQL of a digest (``proof/forms/``);
* ``docs/reference/types.md``.

A type of an array has no row: its element's row says all. Odd values of every built-in type are in
``tests/capture/types/special_values.py``: a new row needs its values there.

Sources: https://www.postgresql.org/docs/current/datatype.html and
https://iceberg.apache.org/spec/#schemas-and-data-types
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.batch.lake_types import decimal_type
from airflow_provider_pgoutput.capture.types import dates, scalars, spelling
from airflow_provider_pgoutput.capture.types.dates import INTERVAL_STRUCT
from airflow_provider_pgoutput.capture.types.numeric import decimal_wire_caster, numeric_texts
from airflow_provider_pgoutput.capture.types.spelling import Spelling
from airflow_provider_pgoutput.capture.types.type_info import FIRST_USER_OID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_pgoutput.capture.types.arrow_bytes import Caster, Printer
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo

STRING = "string"


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """A word that the owner may write for a kind of type, besides ``string``."""

    #: The kind, as ``type_options`` names it. Several types may be of one kind.
    kind: str
    #: The choice, as the owner writes it. A decimal may have any precision and scale.
    word: str
    #: The lake type that follows from it; empty: the choice itself.
    lake_type: str = ""
    #: Why the choice is refused; empty: it is not.
    refused: str = ""
    #: Texts of the table in ``docs/reference/types.md``, as in ``TypeRow``.
    exact: str = ""
    does_not_fit: str = ""

    def allows(self, choice: str) -> bool:
        """Whether a text is this choice."""
        return choice == self.word or None not in {decimal_type(self.word), decimal_type(choice)}

    def lake_type_of(self, choice: str) -> str:
        """The lake type that follows from a choice that is allowed."""
        if (digits := decimal_type(choice)) is not None:
            return f"decimal({digits[0]}, {digits[1]})"
        return self.lake_type or choice


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
    #: From a type modifier: the lake type that holds all its values, or None. It wins over ``lake_type`` and
    #: over the choice for a kind. The choice for a single column wins over it.
    lake_type_of_modifier: Callable[[int], str | None] | None = None
    #: What may be chosen in place of ``lake_type``, which is ``string`` then; None: nothing.
    choice: TypeChoice | None = None
    #: How ``format_type`` spells the type; None: by its name alone.
    spelling: Spelling | None = None
    #: Casts text to a lake type other than ``string``; None: the lake type alone says how.
    text_caster: Caster | None = None
    #: None: a publication with such a column is read as text.
    binary: BinaryForm | None = None
    #: Whether the server has a function that makes the binary form. For other types the catalog says it.
    has_send: bool = True
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
_DIMENSIONS = Spelling(modifier=spelling.number)

_VARIANT = TypeChoice(
    "json",
    "variant",
    refused="pyiceberg 0.12 cannot load a table that has a variant column. So neither the checkpoint's"
    " reader nor other engines would see the table. Keep the text, and use parse_json in a query or a view.",
)
_DECIMAL = TypeChoice(
    "numeric",
    "decimal(38,9)",
    exact="all digits",
    does_not_fit="NaN, ±infinity, more digits before or after the point",
)
_UUID = TypeChoice("uuid", "uuid", exact="all values; pyiceberg reads `uuid`, Spark the text")
_PARTS = TypeChoice(
    "interval",
    "struct",
    INTERVAL_STRUCT,
    exact="months, days and microseconds, as PostgreSQL stores them",
    does_not_fit="±infinity (version 17 on)",
)
_MICROS = TypeChoice(
    "time", "micros", "long", exact="microseconds since midnight, `24:00:00` included"
)


def _zoned(word: str, zone: str) -> Spelling:
    return Spelling(word, f" {zone} time zone", spelling.number)


ROWS = (
    TypeRow("bool", 16, "boolean", spelling=Spelling("boolean"), copied=_ADBC,
            binary=BinaryForm(scalars.boolean_texts, lambda _: scalars.cast_wire_boolean, 1)),
    TypeRow("bytea", 17, "binary", copied=_ADBC,
            binary=BinaryForm(scalars.bytea_texts, lambda _: scalars.cast_bytes)),
    TypeRow("char", 18, exact="the character, or `\\ooo` for a byte past 127"),
    TypeRow("name", 19, binary=TEXT_FORM),
    TypeRow("int8", 20, "long", spelling=Spelling("bigint"), binary=_integer(">i8"), copied=_ADBC_AND_KEY),
    TypeRow("int2", 21, "int", spelling=Spelling("smallint"), binary=_integer(">i2"), copied=_ADBC_AND_KEY),
    TypeRow("int4", 23, "int", spelling=Spelling("integer"), binary=_integer(">i4"), copied=_ADBC_AND_KEY),
    TypeRow("text", 25, binary=TEXT_FORM, copied=_TEXT),
    TypeRow("oid", 26, "long", binary=_integer(">u4"), exact=_UNSIGNED),
    TypeRow("xid", 28, "long", exact=_UNSIGNED, in_lake=_BY_TEXT),
    TypeRow("cid", 29, "long", exact=_UNSIGNED, in_lake=_BY_TEXT),
    TypeRow("json", 114, choice=_VARIANT, spelling=Spelling("json"), binary=TEXT_FORM, copied=_CAST,
            exact="byte by byte: white space, order and duplicate keys kept"),
    TypeRow("float4", 700, "float", spelling=Spelling("real"), binary=_float(np.dtype(">f4")), copied=_ADBC),
    TypeRow("float8", 701, "double", spelling=Spelling("double precision"), binary=_float(np.dtype(">f8")),
            copied=_ADBC),
    TypeRow("money", 790,
            exact="as `$1,234.56`, with `lc_monetary` C. The server stores only a number of smallest units."
            " So in a currency without two decimals (yen) the point is wrong. Each run warns of it"),
    TypeRow("aclitem", 1033, has_send=False),
    TypeRow("bpchar", 1042, spelling=Spelling("character", modifier=spelling.length, bare="bpchar"),
            binary=TEXT_FORM, copied=_ADBC_AND_KEY, exact="as sent, padding kept"),
    TypeRow("varchar", 1043, spelling=Spelling("character varying", modifier=spelling.length),
            binary=TEXT_FORM, copied=_TEXT),
    TypeRow("date", 1082, "date", copied=_ADBC_OR_CAST,
            binary=BinaryForm(dates.date_texts, dates.moment_caster, 4)),
    TypeRow("time", 1083, choice=_MICROS, spelling=_zoned("time", "without"), text_caster=dates.cast_time,
            copied=_CAST, in_lake=("(EXTRACT(epoch FROM {}) * 1000000)",),
            binary=BinaryForm(dates.time_texts, _time, 8), exact="all values, `24:00:00` included"),
    TypeRow("timestamp", 1114, "timestamp", spelling=_zoned("timestamp", "without"), binary=_timestamp(b""),
            copied=_ADBC_OR_CAST),
    TypeRow("timestamptz", 1184, "timestamptz", spelling=_zoned("timestamp", "with"),
            binary=_timestamp(b"+00"), copied=_ADBC_OR_CAST),
    TypeRow("interval", 1186, choice=_PARTS,
            spelling=Spelling("interval", modifier=spelling.interval_fields),
            text_caster=dates.cast_interval, copied=_CAST,
            in_lake=_INTERVAL_PARTS, held="pg_catalog.isfinite({})",
            exact="all fields; style `postgres`, such as `1 mon -3 days 04:05:06`"),
    TypeRow("timetz", 1266, spelling=_zoned("time", "with"), copied=_CAST,
            exact="time and offset, such as `12:00:00+02`"),
    # Without a modifier, the standard's word would mean a length of one.
    TypeRow("bit", 1560, spelling=Spelling("bit", modifier=spelling.number, bare='"bit"')),
    TypeRow("varbit", 1562, spelling=Spelling("bit varying", modifier=spelling.number)),
    TypeRow("numeric", 1700, lake_type_of_modifier=spelling.exact_decimal, choice=_DECIMAL,
            spelling=Spelling("numeric", modifier=spelling.precision_and_scale),
            binary=BinaryForm(numeric_texts, _numeric), copied=_SENT_OR_CAST,
            exact="all digits; NaN, ±infinity, any scale"),
    TypeRow("uuid", 2950, choice=_UUID, binary=BinaryForm(scalars.uuid_texts, width=16), copied=_CAST),
    TypeRow("tsvector", 3614, exact="lexemes, positions and weights"),
    TypeRow("jsonb", 3802, choice=_VARIANT, binary=BinaryForm(scalars.jsonb_texts), copied=_CAST,
            exact="PostgreSQL's normal form; numbers keep their digits"),
    # 64 bits without a sign are too many for long, and a decimal still sorts as a number.
    TypeRow("xid8", 5069, "decimal(20, 0)", does_not_fit="", in_lake=("{}::pg_catalog.text",),
            exact="all values; unsigned 64 bit is more than `long` holds, and a decimal sorts as a number"),
    TypeRow("hstore", 0, "map<string, string>"),
    TypeRow("vector", 0, "list<float>", spelling=_DIMENSIONS, does_not_fit="", in_lake=_AS_ARRAY),
    TypeRow("halfvec", 0, "list<float>", spelling=_DIMENSIONS, does_not_fit="", in_lake=_AS_ARRAY),
    TypeRow("sparsevec", 0, spelling=_DIMENSIONS),
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
