"""Compares a column of values with a constant as PostgreSQL does, by the type of the column.

Each kind of type has the constant as SQL, with an explicit cast. For each value it gives -1, 0 or 1: less,
equal, greater. A boolean or a text gives only 0 or 1: equal or different. Types whose order or
equality may differ from PostgreSQL's are refused.

Sources: https://www.postgresql.org/docs/current/datatype-numeric.html (NaN is equal to itself and greater
than all numbers), https://www.postgresql.org/docs/current/datatype-character.html (blanks at the end of
char(n)).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.arrow_bytes import CastResult
    from airflow_provider_pgoutput.filters import Constant

    #: By row: -1, 0 or 1. If the value is NULL, the number means nothing.
    Order = NDArray[np.int8]

_Moment = TypeVar("_Moment", date, datetime)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64: Final = range(-(2**63), 2**63)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?")
_ZONED: Final = re.compile(rf"({_MOMENT.pattern})\s?(Z|[+-]\d{{2}}(:?\d{{2}})?)")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

BOOLEAN: Final = 16
REAL: Final = 700
#: ``char(n)``.
PADDED: Final = 1042
TEXTS: Final = frozenset({25, 1043, PADDED})


class Values(Protocol):
    """A column of values, as the server sent them."""

    def cast(self) -> CastResult:
        """The values in the lake's own type of their type."""
        ...

    def texts(self) -> pa.Array:
        """What PostgreSQL prints for the values: Arrow ``binary``."""
        ...


class WrongConstant(Exception):
    """A constant does not go with the type of its column. The text says which one does."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A constant, as the type of its column understands it."""

    literal: sql.Composable
    order: Callable[[Values], Order]


def compared(type_oid: int, constant: Constant) -> Compared:
    """How values of a built-in type are compared with a constant.

    :raises WrongConstant: the constant is none of the type, or the type is none that is compared.
    """
    for oids, make in _BY_TYPE:
        if type_oid in oids:
            return make(type_oid, constant.value)
    raise WrongConstant(
        "values of this type are not compared; IS NULL and IS NOT NULL are possible"
    )


def has_order(type_oid: int) -> bool:
    """Whether ``<`` means the same here as at the source. The order of texts is that of their collation."""
    return type_oid not in TEXTS and type_oid != BOOLEAN


def _boolean(_: int, value: object) -> Compared:
    if not isinstance(value, bool):
        raise WrongConstant("a boolean is compared with TRUE or FALSE")

    def order(values: Values) -> Order:
        return _flags(pc.not_equal(values.cast().values, value))

    return Compared(sql.SQL("TRUE" if value else "FALSE"), order)


def _text(type_oid: int, value: object) -> Compared:
    if not isinstance(value, str):
        raise WrongConstant("a text is compared with a text in single quotes")
    is_padded = type_oid == PADDED
    wanted = (value.rstrip(" ") if is_padded else value).encode()

    def order(values: Values) -> Order:
        texts = values.texts()
        if is_padded:
            # Only bytes are looked at, so that an invalid text is no error here.
            texts = pc.ascii_rtrim(texts.view(pa.string()), characters=" ").view(pa.binary())
        return _flags(pc.not_equal(texts, pa.scalar(wanted, texts.type)))

    kind = "bpchar" if is_padded else "text"
    return Compared(_literal(value, kind), order)


def _uuid(_: int, value: object) -> Compared:
    if not isinstance(value, str) or not _UUID.fullmatch(value.lower()):
        raise WrongConstant("a uuid is a text like '00000000-0000-0000-0000-000000000000'")
    wanted = value.lower().encode()

    def order(values: Values) -> Order:
        texts = values.texts()
        constant = pa.scalar(wanted, texts.type)
        return _flags(pc.greater(texts, constant)) - _flags(pc.less(texts, constant))

    return Compared(_literal(value.lower(), "uuid"), order)


def _integer(_: int, value: object) -> Compared:
    number = _number(value)
    floor = math.floor(number)
    is_whole = floor == number

    def order(values: Values) -> Order:
        found = values.cast().values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if floor not in _INT64:
            return np.full(len(found), -1 if floor > 0 else 1, np.int8)
        if is_whole:
            return _signs(found, floor)
        return np.where(found > floor, 1, -1).astype(np.int8)

    kind = "int8" if is_whole and floor in _INT64 else "numeric"
    return Compared(_literal(f"{number:f}", kind), order)


def _float(_: int, value: object) -> Compared:
    number = _number(value)
    wanted = float(number)
    if math.isinf(wanted):
        raise WrongConstant("the number is larger than any of double precision")
    if not wanted and number:
        raise WrongConstant("the number is smaller than any of double precision")

    def order(values: Values) -> Order:
        # PostgreSQL compares ``real`` with a number as double precision, too.
        found = values.cast().values.cast(pa.float64()).fill_null(0).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(found), np.int8(1), _signs(found, wanted))

    return Compared(_literal(f"{number:f}", "float8"), order)


def _numeric(_: int, value: object) -> Compared:
    number = _number(value)
    return Compared(
        _literal(f"{number:f}", "numeric"),
        lambda values: _order_of_numerics(values.texts(), number),
    )


def _order_of_numerics(printed: pa.Array, number: Decimal) -> Order:
    """The order of numbers of any size to a number, by their digits."""
    texts = printed.view(pa.string()).fill_null("0")
    digits = pc.ascii_ltrim(texts, characters="-")
    point = pc.find_substring(digits, ".")
    has_point = pc.greater_equal(point, 0)
    whole = pc.if_else(has_point, point, pc.binary_length(digits))
    cut = pc.ascii_rtrim(pc.ascii_rtrim(digits, characters="0"), characters=".")
    digits = pc.if_else(has_point, cut, digits)
    wanted = f"{number.copy_abs():f}"
    length = len(wanted.partition(".")[0])
    by_length = _signs(whole.to_numpy(zero_copy_only=False), length)
    by_digits = _flags(pc.greater(digits, wanted)) - _flags(pc.less(digits, wanted))
    magnitude = np.where(by_length != 0, by_length, by_digits)
    is_negative = _flags(pc.starts_with(texts, "-")) != 0
    sign = np.where(_flags(pc.equal(digits, "0")) != 0, 0, np.where(is_negative, -1, 1))
    wanted_sign = (number > 0) - (number < 0)
    order = np.where(sign != wanted_sign, np.sign(sign - wanted_sign), magnitude * sign)
    # NaN is greater than all numbers, and so is Infinity.
    order[_flags(pc.is_in(texts, pa.array(["NaN", "Infinity"]))) != 0] = 1
    order[_flags(pc.equal(texts, "-Infinity")) != 0] = -1
    return order.astype(np.int8)


def _date(_: int, value: object) -> Compared:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise WrongConstant("a date is a text like '2026-01-31'")
    wanted = _existing(lambda: date.fromisoformat(value))
    days = wanted.toordinal() - date(1970, 1, 1).toordinal()
    return Compared(
        _literal(wanted.isoformat(), "date"),
        lambda values: _order_of_moments(values, pa.int32(), days),
    )


def _timestamp(_: int, value: object) -> Compared:
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        raise WrongConstant("a timestamp is a text like '2026-01-31 12:00:00', without a time zone")
    wanted = _existing(lambda: datetime.fromisoformat(value).replace(tzinfo=UTC))
    return Compared(
        _literal(wanted.replace(tzinfo=None).isoformat(" "), "timestamp"),
        lambda values: _order_of_moments(values, pa.int64(), _micros(wanted)),
    )


def _timestamptz(_: int, value: object) -> Compared:
    if not isinstance(value, str) or not _ZONED.fullmatch(value):
        raise WrongConstant(
            "a timestamp with time zone is a text like '2026-01-31 12:00:00+00', with its offset from UTC"
        )
    text = value.replace(" +", "+").replace(" -", "-").replace(" Z", "Z")
    wanted = _existing(lambda: datetime.fromisoformat(text).astimezone(UTC))
    return Compared(
        _literal(wanted.isoformat(" "), "timestamptz"),
        lambda values: _order_of_moments(values, pa.int64(), _micros(wanted)),
    )


def _order_of_moments(values: Values, kind: pa.DataType, wanted: int) -> Order:
    """The order of dates or timestamps to one of the years 1 to 9999.

    The lake's types hold only these years. Another value comes before all of them (``-infinity``, BC) or
    after all.
    """
    result = values.cast()
    found = result.values.cast(kind).fill_null(0).to_numpy(zero_copy_only=False)
    order = _signs(found, wanted)
    if len(result.rejected):
        texts = values.texts().take(pa.array(result.rejected)).view(pa.string())
        is_before = pc.or_(pc.equal(texts, "-infinity"), pc.ends_with(texts, " BC"))
        order[result.rejected] = np.where(_flags(is_before) != 0, -1, 1)
    return order


def _micros(moment: datetime) -> int:
    passed = moment - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


def _existing(make: Callable[[], _Moment]) -> _Moment:
    try:
        return make()
    except (ValueError, OverflowError):
        raise WrongConstant("there is no such day or time") from None


def _number(value: object) -> Decimal:
    if not isinstance(value, Decimal):
        raise WrongConstant("a number is compared with a number, without quotes")
    return value


def _literal(text: str, kind: str) -> sql.Composable:
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.Identifier("pg_catalog", kind))


def _flags(found: pa.Array) -> Order:
    flags: Order = found.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int8)
    return flags


def _signs(found: NDArray[np.int64], wanted: float) -> Order:
    return (found > wanted).astype(np.int8) - (found < wanted).astype(np.int8)


_BY_TYPE: Final = (
    (frozenset({BOOLEAN}), _boolean),
    (TEXTS, _text),
    (frozenset({21, 23, 20}), _integer),
    (frozenset({REAL, 701}), _float),
    (frozenset({1700}), _numeric),
    (frozenset({2950}), _uuid),
    (frozenset({1082}), _date),
    (frozenset({1114}), _timestamp),
    (frozenset({1184}), _timestamptz),
)
