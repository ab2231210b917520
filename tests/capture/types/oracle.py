"""PostgreSQL as oracle: a server renders values as text and, independently, in their binary form.

The text is what a caster gets (the bytes of the type's output function, as pgoutput sends them); the
binary form, which shares no code with either output function or caster, says what is stored.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.types.cast import CastResult, ValuePolicy, column_caster
from airflow_provider_pgoutput.capture.types.mapping import (
    CATALOG_QUERY,
    lake_type,
    type_catalog,
    type_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_pgoutput.capture.types.mapping import TypeInfo


PINNED = {
    "client_encoding": "UTF8",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": "pg_catalog",
}

REJECTED = "<rejected>"
#: Types that a server may have been packaged without, by the beginnings of their names.
OF_EXTENSIONS = tuple(
    f"public.{name}" for name in ("hstore", "citext", "ltree", "vector", "halfvec", "sparsevec")
)
_EPOCH_DAYS = 10957  # From 1970-01-01 to 2000-01-01, PostgreSQL's day 0.
_EPOCH_US = _EPOCH_DAYS * 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31 from 1970-01-01.


def pin(session: psycopg.Connection[Any]) -> None:
    """Set what the capture pins."""
    for name, value in PINNED.items():
        session.execute("SELECT set_config(%s, %s, false)", (name, value))


@dataclass(frozen=True)
class Rendered:
    """A column of values as the server prints and stores them."""

    column: Column
    raw: pa.Array
    stored: list[bytes | None]
    types: dict[int, TypeInfo]

    def cast(self, policy: ValuePolicy | None = None) -> CastResult:
        result = column_caster(self.column, policy or ValuePolicy(), types=self.types).cast(
            self.raw
        )
        result.values.validate(full=True)
        return result


def column_of(session: psycopg.Connection[Any], type_sql: str) -> Column:
    """The column that a table would have with this type."""
    session.execute("DROP TABLE IF EXISTS pg_temp.probe")
    try:
        session.execute(f"CREATE TEMP TABLE probe (v {type_sql})")
    except psycopg.errors.UndefinedObject:
        if not type_sql.startswith(OF_EXTENSIONS):
            raise
        pytest.skip("this server was packaged without the extension")
    row = session.execute(
        "SELECT atttypid::int8, atttypmod FROM pg_attribute"
        " WHERE attrelid = 'pg_temp.probe'::regclass AND attname = 'v'"
    ).fetchone()
    assert row is not None
    catalog = type_catalog(session.execute(CATALOG_QUERY).fetchall())
    oid, modifier = row
    return Column(
        "v", oid, modifier, type_name(oid, modifier, catalog), lake_type(oid, modifier, catalog)
    )


def render(
    session: psycopg.Connection[Any],
    type_sql: str,
    inputs: Sequence[str | None],
    expression: str | None = None,
) -> Rendered:
    """Store ``inputs`` as values of a type and read them back.

    :param expression: makes the value from the text ``s``; default: a cast.
    """
    column = column_of(session, type_sql)
    row = session.execute(
        "SELECT NULLIF(t.typsend, 0)::regproc::text, e.typsend IS DISTINCT FROM 0"
        "  FROM pg_type t LEFT JOIN pg_type e ON e.oid = t.typelem WHERE t.oid = %s",
        (column.type_oid,),
    ).fetchone()
    assert row is not None
    # aclitem has no binary form; the ones of refcursor and citext are declared for text.
    value = "v::text" if row[0] == "textsend" else "v"
    binary = f"encode({row[0]}({value}), 'hex')" if all(row) else "NULL::text"
    cursor = session.execute(
        f"WITH q AS (SELECT {expression or f's::{type_sql}'} AS v, i"
        "              FROM unnest(%s::text[]) WITH ORDINALITY AS u(s, i))"
        f" SELECT v, {binary} FROM q ORDER BY i",
        (list(inputs),),
    )
    result = cursor.pgresult
    assert result is not None
    texts = [result.get_value(row, 0) for row in range(result.ntuples)]
    stored = [result.get_value(row, 1) for row in range(result.ntuples)]
    return Rendered(
        column,
        pa.array(texts, pa.binary()),
        [None if each is None else bytes.fromhex(each.decode()) for each in stored],
        type_catalog(session.execute(CATALOG_QUERY).fetchall()),
    )


def _numeric(payload: bytes) -> Any:
    count, weight, sign, scale = struct.unpack_from("!hhHh", payload)
    if sign in {0xC000, 0xD000, 0xF000}:
        return REJECTED
    groups = struct.unpack_from(f"!{count}h", payload, 8)
    with localcontext(prec=20_000):
        value = Decimal(0)
        for place, group in enumerate(groups):
            value += Decimal(group).scaleb(4 * (weight - place))
        return (-value if sign else value).quantize(Decimal(1).scaleb(-scale))


def _date(payload: bytes) -> Any:
    days = int.from_bytes(payload, signed=True) + _EPOCH_DAYS
    return days if _FIRST_DAY <= days <= _LAST_DAY else REJECTED


def _timestamp(payload: bytes) -> Any:
    micros = int.from_bytes(payload, signed=True) + _EPOCH_US
    return micros if _FIRST_DAY <= micros // 86_400_000_000 <= _LAST_DAY else REJECTED


def _signed(payload: bytes) -> int:
    return int.from_bytes(payload, signed=True)


def _interval(payload: bytes) -> Any:
    micros, days, months = struct.unpack("!qii", payload)
    if (days, months) in {(2**31 - 1, 2**31 - 1), (-(2**31), -(2**31))}:
        return REJECTED
    return {"months": months, "days": days, "micros": micros}


#: What a value of the named type is, from its send function; floats stay bytes, so that NaN equals NaN.
STORED: dict[str, Callable[[bytes], Any]] = {
    "bool": lambda payload: payload == b"\x01",
    "int2": _signed,
    "int4": _signed,
    "int8": _signed,
    "oid": int.from_bytes,
    "xid": int.from_bytes,
    "cid": int.from_bytes,
    "xid8": lambda payload: Decimal(int.from_bytes(payload)),
    "float4": bytes,
    "float8": bytes,
    "numeric": _numeric,
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
    "bytea": bytes,
    "text": bytes.decode,
    "uuid": lambda payload: str(uuid.UUID(bytes=payload)),
    "time": _signed,
    "interval": _interval,
}


def stored_array(element: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Read the binary form of an array; one that a list would change is rejected."""

    def read(payload: bytes) -> Any:
        dimensions, _, _ = struct.unpack_from("!iiI", payload)
        if dimensions == 0:
            return []
        count, lower = struct.unpack_from("!ii", payload, 12)
        if dimensions > 1 or lower != 1:
            return REJECTED
        position, values = 20, []
        for _ in range(count):
            (length,) = struct.unpack_from("!i", payload, position)
            position += 4
            values.append(None if length < 0 else element(payload[position : position + length]))
            position += max(length, 0)
        return REJECTED if REJECTED in values else values

    return read


def stored_hstore(payload: bytes) -> dict[str, str | None]:
    """Read the binary form of an hstore."""
    (count,) = struct.unpack_from("!i", payload)
    position = 4
    parts: list[Any] = []
    for _ in range(2 * count):
        (length,) = struct.unpack_from("!i", payload, position)
        position += 4
        parts.append(None if length < 0 else payload[position : position + length].decode())
        position += max(length, 0)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def stored_record(**attributes: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Read the binary form of a composite value."""

    def read(payload: bytes) -> Any:
        (count,) = struct.unpack_from("!i", payload)
        assert count == len(attributes)
        position, values = 4, {}
        for name, element in attributes.items():
            _, length = struct.unpack_from("!Ii", payload, position)
            position += 8
            part = payload[position : position + max(length, 0)]
            values[name] = None if length < 0 else element(part)
            position += len(part)
        return REJECTED if REJECTED in values.values() else values

    return read


def stored_decimal(precision: int, scale: int) -> Callable[[bytes], Any]:
    """Read a numeric that becomes a decimal by choice; one that it does not hold is rejected."""

    def read(payload: bytes) -> Any:
        value = _numeric(payload)
        if value == REJECTED:
            return value
        with localcontext(prec=20_000):
            fits = value == value.quantize(Decimal(1).scaleb(-scale))
            fits = fits and abs(value) < Decimal(10) ** (precision - scale)
        return value if fits else REJECTED

    return read


def stored_vector(payload: bytes) -> list[bytes]:
    """Read the binary form of a pgvector ``vector``."""
    (count,) = struct.unpack_from("!h", payload)
    return [payload[4 + 4 * i : 8 + 4 * i] for i in range(count)]


def stored_halfvec(payload: bytes) -> list[bytes]:
    """Read the binary form of a pgvector ``halfvec``, whose elements a float holds exactly."""
    (count,) = struct.unpack_from("!h", payload)
    return [struct.pack("!f", each) for each in struct.unpack_from(f"!{count}e", payload, 4)]


def plain(values: pa.Array) -> Any:
    """An Arrow column as ``STORED`` spells it."""
    kind = values.type
    if pa.types.is_nested(kind):
        return _plain_nested(values)
    if isinstance(kind, pa.UuidType):
        return [None if each is None else str(each) for each in values.to_pylist()]
    if pa.types.is_timestamp(kind):
        return values.cast(pa.int64()).to_pylist()
    if pa.types.is_date32(kind):
        return values.cast(pa.int32()).to_pylist()
    if pa.types.is_floating(kind):
        form = "!f" if kind == pa.float32() else "!d"
        return [None if each is None else struct.pack(form, each) for each in values.to_pylist()]
    return values.to_pylist()


def _plain_nested(values: pa.Array) -> list[Any]:
    if pa.types.is_map(values.type):
        return [None if each is None else dict(each) for each in values.to_pylist()]
    if pa.types.is_struct(values.type):
        names = [each.name for each in values.type]
        columns = [plain(child) for child in values.flatten()]
        return [
            {name: column[row] for name, column in zip(names, columns, strict=True)}
            if found.is_valid
            else None
            for row, found in enumerate(values)
        ]
    return [plain(each.values) if each.is_valid else None for each in values]


def assert_same(found: CastResult, expected: CastResult) -> None:
    """Two casts of the same values gave the same."""
    found.values.validate(full=True)
    assert found.values.type == expected.values.type
    assert found.rejected.tolist() == expected.rejected.tolist()
    assert found.rejected.dtype == expected.rejected.dtype
    # Floats as bytes: NaN is NaN, and -0 is not 0.
    assert plain(found.values) == plain(expected.values)


def assert_exact(rendered: Rendered, stored: Callable[[bytes], Any]) -> None:
    """The cast column is what the server stores, and what it cannot hold is null and reported."""
    expected = [None if each is None else stored(each) for each in rendered.stored]
    result = rendered.cast()
    found = plain(result.values)
    for row in result.rejected:
        assert found[row] is None
        found[row] = REJECTED
    assert found == expected


def assert_text(rendered: Rendered) -> None:
    """The cast column is the server's text, byte by byte."""
    assert rendered.column.lake_type == "string"
    result = rendered.cast()
    assert len(result.rejected) == 0
    assert result.values.cast(pa.binary()).to_pylist() == rendered.raw.to_pylist()
