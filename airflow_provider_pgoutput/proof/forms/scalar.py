"""The forms of single values: how SQL and Arrow hash a value so that both get the same number.

``choice.py`` chooses the form of a column. The chance that two different values of a column have the same
hash is 1 in 2^64. For two timestamps it is 1 in 2^32, because the server folds the 64 bits of a timestamp
into 32 before it hashes them.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from airflow_provider_pgoutput.proof.forms.functions import (
    Md5Functions,
    ServerFunctions,
    hexadecimal,
    is_null,
)
from airflow_provider_pgoutput.proof.server_hashes import hash_numeric

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.proof.forms.functions import HashFunctions, Seeds

Sql = sql.Composable


class Form(Protocol):
    """How one column is hashed on both sides."""

    @property
    def may_hold_sentinel(self) -> bool:
        """Whether a row can have the value that is hashed in place of NULL. Then NULLs are counted, too."""

    def fits(self, value: Sql, depth: int) -> Sql | None:
        """The SQL condition under which the lake can hold a value; None: it can hold every value.

        :param value: SQL; it is not NULL.
        :param depth: see ``chained``.
        """

    def chained(self, value: Sql, seed: Sql, depth: int) -> Sql:
        """The SQL of the hash of a value.

        :param value: SQL of a column, or of a part of one. It is short, because the SQL repeats it.
        :param seed: SQL of the seed.
        :param depth: how many subqueries of other forms are around it. Each alias in a subquery ends with
            this number.
        """

    def hashed(self, values: pa.Array, seeds: Seeds) -> Seeds:
        """The hashes of a column of the lake.

        :param seeds: one for each value.
        """


@dataclass(frozen=True)
class HashTerms:
    """What both sides agree on for one digest.

    The values that are hashed in place of NULL are made of the salt. So nobody can make rows that
    look like NULL.
    """

    #: Also the seed of each row's first hash.
    salt: int
    #: Whether the server keeps text in another encoding than UTF-8. Then both sides hash the hexadecimal
    #: digits of its UTF-8 form.
    recodes: bool = False
    #: Whether values are hashed by md5, and not by the server's hash functions.
    is_md5: bool = False
    #: See ``ServerFunctions``. The hashes are the same.
    hashes_timestamptz: bool = False

    @cached_property
    def functions(self) -> HashFunctions:
        """What hashes values, and rows of them."""
        if self.is_md5:
            return Md5Functions(self._bytes[16:].hex())
        return ServerFunctions(self.hashes_timestamptz)

    @cached_property
    def _bytes(self) -> bytes:
        return hashlib.sha256(self.salt.to_bytes(8, signed=True)).digest()

    @property
    def int4(self) -> int:
        """In place of NULL, for types in which every number is a value."""
        return int.from_bytes(self._bytes[:4], signed=True)

    @property
    def int8(self) -> int:
        """The same as an ``int8``."""
        return int.from_bytes(self._bytes[4:12], signed=True)

    @property
    def float8(self) -> float:
        """The same as a ``float8``: any number between -2 and 2.

        Two of its 64 bits are fixed, so that it is not too small to be printed.
        """
        bits = int.from_bytes(self._bytes[12:20]) & ~(1 << 62) | 1 << 61
        found: float = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
        return found

    @property
    def text(self) -> str:
        """The same as a text."""
        return f"NULL {self._bytes[:16].hex()}"

    @property
    def uuid(self) -> str:
        """The same as a uuid."""
        return self._bytes[16:].hex()


#: What is hashed in place of 0 and of -0. For both of them the server returns the seed.
_ZERO: Final = 3.056249e-297
_NEGATIVE_ZERO: Final = 7.910133e-301
_DAY_US: Final = 86_400_000_000
#: 2000-01-01, PostgreSQL's day 0, in days since 1970-01-01.
_EPOCH_DAYS: Final = 10_957
_INT4_MAX: Final = 2**31 - 1
_INT8_MAX: Final = 2**63 - 1
#: Decimals of at most so many digits are hashed as a number of 32 bits, as a ``numeric``, and as a number of
#: 64 bits.
_INT4_DIGITS, _NUMERIC_DIGITS, _INT8_DIGITS = 9, 16, 18


@dataclass(frozen=True)
class ScalarForm:
    """A type whose value is hashed by one function."""

    #: The SQL that calls the hash function with ``{value}`` and ``{seed}``.
    function: str
    #: Takes the SQL of a value, and returns the SQL of what is hashed for it.
    taken: Callable[[Sql], Sql]
    #: The SQL of what is hashed in place of NULL.
    sentinel: str
    #: Hashes a column of the lake, see ``Form.hashed``.
    on_lake: Callable[[pa.Array, Seeds], Seeds]
    #: A template for ``filled``, see ``Form.fits``.
    condition: str | None = None
    may_hold_sentinel: bool = False
    #: Whether all values are less than the sentinel. Then LEAST puts it in place of NULL and NaN.
    is_sentinel_greatest: bool = False

    def fits(self, value: Sql, depth: int) -> Sql | None:
        """See ``Form``."""
        return None if self.condition is None else filled(self.condition, value)

    def chained(self, value: Sql, seed: Sql, depth: int) -> Sql:
        """See ``Form``."""
        whole = self.taken(value)
        condition = self.fits(value, depth)
        template = (
            "LEAST({whole}, {sentinel})"
            if self.is_sentinel_greatest
            else "COALESCE({whole}, {sentinel})"
            if condition is None
            else "CASE WHEN {condition} THEN {whole} ELSE {sentinel} END"
        )
        given = sql.SQL(template).format(
            whole=whole, sentinel=sql.SQL(self.sentinel), condition=condition or sql.SQL("")
        )
        return sql.SQL(self.function).format(value=given, seed=seed)

    def hashed(self, values: pa.Array, seeds: Seeds) -> Seeds:
        """See ``Form``."""
        return self.on_lake(values, seeds)


def template(text: str) -> Callable[[Sql], Sql]:
    """A function that puts the SQL of a value into ``text``, which has ``{}`` for it."""
    return lambda value: filled(text, value)


def filled(text: str, value: Sql) -> Sql:
    """``text`` with the SQL of a value in place of ``{}``."""
    return sql.SQL(text).format(value)


def _numbers(values: pa.Array, kind: pa.DataType, sentinel: float) -> NDArray[Any]:
    found = values if values.type == kind else values.cast(kind)
    whole = found.fill_null(sentinel) if found.null_count else found
    numbers: NDArray[Any] = whole.to_numpy(zero_copy_only=False)
    return numbers


def _boolean(in_lake: str, terms: HashTerms) -> Form:
    return ScalarForm(
        terms.functions.int4,
        template("{}::pg_catalog.int4"),
        "2",
        lambda values, seeds: terms.functions.hash_int4(_numbers(values, pa.int32(), 2), seeds),
    )


def _int(in_lake: str, terms: HashTerms) -> Form:
    return ScalarForm(
        terms.functions.int4,
        template(f"{in_lake}::pg_catalog.int4"),
        f"({terms.int4})",
        lambda values, seeds: terms.functions.hash_int4(
            _numbers(values, pa.int32(), terms.int4), seeds
        ),
        may_hold_sentinel=True,
    )


def _long(in_lake: str, terms: HashTerms) -> Form:
    return ScalarForm(
        terms.functions.long,
        template(f"{in_lake}::pg_catalog.int8"),
        f"'{terms.int8}'::pg_catalog.int8",
        lambda values, seeds: terms.functions.hash_long(
            _numbers(values, pa.int64(), terms.int8), seeds
        ),
    )


def _float(in_lake: str, terms: HashTerms) -> Form:
    def on_lake(values: pa.Array, seeds: Seeds) -> Seeds:
        numbers = _numbers(values, pa.float64(), terms.float8)
        zeros = numbers == 0
        if zeros.any():
            instead = np.where(np.signbit(numbers), _NEGATIVE_ZERO, _ZERO)
            numbers = np.where(zeros, instead, numbers)
        return terms.functions.hash_float8(numbers, seeds)

    taken = (
        "CASE WHEN {0} = 0 THEN CASE WHEN pg_catalog.atan2({0}, -1) < 0"
        f" THEN '{_NEGATIVE_ZERO!r}'::pg_catalog.float8 ELSE '{_ZERO!r}'::pg_catalog.float8 END"
        " ELSE {0}::pg_catalog.float8 END"
    )
    return ScalarForm(
        terms.functions.float8,
        template(taken),
        f"'{terms.float8!r}'::pg_catalog.float8",
        on_lake,
    )


def decimal_form(
    precision: int, scale: int, in_lake: str, terms: HashTerms, *, is_own: bool
) -> Form:
    """A decimal.

    :param is_own: whether the column's own type has this precision and scale, so that every number fits.
    """
    is_number = in_lake == "{}"
    if not is_number:
        condition = None
    elif is_own:
        condition = "{} <> 'NaN'::pg_catalog.numeric"
    else:
        whole = f"'1e{precision - scale}'::pg_catalog.numeric"
        condition = (
            f"(pg_catalog.abs({{0}}) < {whole} AND {{0}} = pg_catalog.round({{0}}, {scale}))"
        )
    if precision > _INT8_DIGITS or terms.is_md5:
        plain = in_lake if is_own else f"pg_catalog.round({{}}, {scale})"
        return text_form(template(f"{plain}::pg_catalog.text"), terms, condition, _decimal_texts)
    # A number that the lake cannot hold may be greater than the sentinel.
    is_greatest = is_number and is_own
    if _INT4_DIGITS < precision <= _NUMERIC_DIGITS:
        return _numeric(precision, scale, condition, is_greatest=is_greatest)

    functions = terms.functions
    kind, function, hashed = (
        ("int4", functions.int4, _hash_as_int4(functions))
        if precision <= _INT4_DIGITS
        else ("int8", functions.long, functions.hash_long)
    )

    def on_lake(values: pa.Array, seeds: Seeds) -> Seeds:
        return hashed(_without_point(values, 10**precision), seeds)

    unscaled = f"({{}} OPERATOR(pg_catalog.*) '1e{scale}'::pg_catalog.numeric)"
    return ScalarForm(
        function.replace("{value}", f"({{value}})::pg_catalog.{kind}"),
        template(unscaled if scale else "{}"),
        f"'1e{precision}'::pg_catalog.numeric",
        on_lake,
        condition,
        is_sentinel_greatest=is_greatest,
    )


def _hash_as_int4(functions: HashFunctions) -> Callable[[NDArray[np.int64], Seeds], Seeds]:
    return lambda numbers, seeds: functions.hash_int4(numbers.astype(np.int32), seeds)


def _numeric(precision: int, scale: int, condition: str | None, *, is_greatest: bool) -> Form:
    """A decimal that the server hashes as the ``numeric`` that it is.

    The server's function leaves out the sign, and the hash of zero or NaN is no better than the seed. So
    ``2 * 10 ** n`` is added to all numbers first. Then they are greater than zero, and have as many digits.
    """
    added, before_point = 2 * 10**precision, precision - scale
    sentinel = 9 * 10**precision

    def on_lake(values: pa.Array, seeds: Seeds) -> Seeds:
        numbers = _without_point(values, sentinel - added) + added
        return hash_numeric(numbers, precision + 1, scale, seeds)

    return ScalarForm(
        "pg_catalog.hash_numeric_extended({value}, {seed})",
        template(f"({{}} OPERATOR(pg_catalog.+) '2e{before_point}'::pg_catalog.numeric)"),
        f"'9e{before_point}'::pg_catalog.numeric",
        on_lake,
        condition,
        is_sentinel_greatest=is_greatest,
    )


def _without_point(values: pa.Array, sentinel: int) -> NDArray[np.int64]:
    """Decimals of at most 18 digits as whole numbers; the sentinel where one is NULL."""
    numbers = _unscaled(values)[::2]
    return np.where(is_null(values), np.int64(sentinel), numbers) if values.null_count else numbers


def _unscaled(values: pa.Array) -> NDArray[np.int64]:
    """Decimals without their point, as 128-bit numbers: of each the lower and then the upper 64 bits."""
    data = values.buffers()[1]
    halves = np.frombuffer(data, dtype=np.int64)
    return halves[2 * values.offset : 2 * (values.offset + len(values))]


def _decimal_texts(values: pa.Array) -> pa.Array:
    """Decimals as PostgreSQL prints them: with all digits of their scale."""
    scale = values.type.scale
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset
    )
    texts = whole.cast(pa.string())
    if scale == 0:
        return texts
    # At least one digit before the point, and the sign before all zeros.
    sign = pc.if_else(pc.starts_with(texts, "-"), "-", "")
    digits = pc.utf8_lpad(pc.utf8_ltrim(texts, "-"), scale + 1, "0")
    ints, fractions = (
        pc.utf8_slice_codeunits(digits, *part) for part in ((0, -scale), (-scale, None))
    )
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, ints, ""), fractions, ".")


def _date(in_lake: str, terms: HashTerms) -> Form:
    def on_lake(values: pa.Array, seeds: Seeds) -> Seeds:
        days = _numbers(values.view(pa.int32()), pa.int32(), _INT4_MAX).copy()
        days[days != _INT4_MAX] -= _EPOCH_DAYS
        return terms.functions.hash_int4(days, seeds)

    return ScalarForm(
        terms.functions.int4,
        template("({} - '2000-01-01'::pg_catalog.date)"),
        str(_INT4_MAX),
        on_lake,
        _years_of_lake("date"),
    )


def _years_of_lake(kind: str) -> str:
    return (
        f"({{0}} >= '0001-01-01'::pg_catalog.{kind} AND {{0}} < '10000-01-01'::pg_catalog.{kind})"
    )


def _timestamp(kind: str) -> Callable[[str, HashTerms], Form]:
    def make(in_lake: str, terms: HashTerms) -> Form:
        def on_lake(values: pa.Array, seeds: Seeds) -> Seeds:
            micros = _numbers(values.view(pa.int64()), pa.int64(), _INT8_MAX).copy()
            micros[micros != _INT8_MAX] -= _EPOCH_DAYS * _DAY_US
            return terms.functions.hash_moments(micros, seeds)

        moment = terms.functions.moment(kind)
        return ScalarForm(
            moment.function,
            template(moment.taken),
            moment.sentinel,
            on_lake,
            _years_of_lake(kind),
        )

    return make


def _uuid(in_lake: str, terms: HashTerms) -> Form:
    sentinel = bytes.fromhex(terms.uuid)
    return ScalarForm(
        terms.functions.uuid,
        template("{}"),
        f"'{terms.uuid}'::pg_catalog.uuid",
        lambda values, seeds: terms.functions.hash_uuids(values, seeds, sentinel),
    )


def _binary(in_lake: str, terms: HashTerms) -> Form:
    return text_form(template("pg_catalog.encode({}, 'hex')"), terms, as_texts=hexadecimal)


def text_form(
    taken: Callable[[Sql], Sql],
    terms: HashTerms,
    condition: str | None = None,
    as_texts: Callable[[pa.Array], pa.Array] | None = None,
) -> Form:
    """A value that is hashed as text.

    :param as_texts: makes the texts of the lake's values; None: they are texts.
    """
    sentinel = terms.text.encode()
    return ScalarForm(
        terms.functions.text,
        taken,
        f"'{terms.text}'",
        lambda values, seeds: terms.functions.hash_texts(
            values if as_texts is None else as_texts(values), seeds, sentinel
        ),
        condition,
    )


def string_form(taken: Callable[[Sql], Sql], terms: HashTerms) -> Form:
    """A text, which the server may keep in another encoding than the lake."""
    if not terms.recodes:
        return text_form(taken, terms)
    digits = template("pg_catalog.encode(pg_catalog.convert_to({}, 'UTF8'), 'hex')")
    return text_form(lambda value: digits(taken(value)), terms, as_texts=hexadecimal)


#: By lake type.
SIMPLE: Mapping[str, Callable[[str, HashTerms], Form]] = {
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _float,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp("timestamp"),
    "timestamptz": _timestamp("timestamptz"),
    "uuid": _uuid,
}
