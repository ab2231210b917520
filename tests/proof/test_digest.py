"""The hash of a whole row: of very many columns, and of numbers that differ by whole words."""

from __future__ import annotations

import itertools
import json
from datetime import datetime
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.proof.digest import RowHash

_INT, _NUMERIC, _FLOAT = 23, 1700, 701
_FUNCTIONS = pytest.mark.parametrize("is_md5", [False, True], ids=["server", "md5"])


@_FUNCTIONS
def test_a_row_of_as_many_columns_as_a_table_can_have(postgres_database: str, is_md5: bool) -> None:
    count = 1600
    names = [f"c{number}" for number in range(count)]
    columns = [Column(name, _INT, -1, "", "int") for name in names]
    row_hash = RowHash.of(columns, {}, 7, is_md5=is_md5)
    with psycopg.connect(postgres_database) as session:
        given = ", ".join(f"{name} int" for name in names)
        session.execute(f"CREATE TABLE wide ({given})".encode())
        session.execute("INSERT INTO wide (c0, c99, c100, c1599) VALUES (1, 2, 3, 4)")
        query = sql.SQL("SELECT {} FROM wide AS t").format(row_hash.expression("t"))
        (theirs,) = session.execute(query).fetchone() or (None,)
    values = {0: 1, 99: 2, 100: 3, 1599: 4}
    lake = [pa.array([values.get(number)], pa.int32()) for number in range(count)]
    assert row_hash.of_rows(lake).tolist() == [theirs % 2**64]
    moved = [*lake[:99], lake[100], lake[99], *lake[101:]]
    assert row_hash.of_rows(moved).tolist() != [theirs % 2**64]


def test_decimals_that_differ_by_a_word_have_different_hashes() -> None:
    """The server's hash of a bigint takes both for the same number."""
    kind = "decimal(12, 2)"
    row_hash = RowHash.of([Column("n", _NUMERIC, (12 << 16 | 2) + 4, "", kind)], {}, 7)
    numbers = pa.array([Decimal("30000000.00"), Decimal("-12949672.96")], pa.decimal128(12, 2))
    first, second = row_hash.of_rows([numbers]).tolist()
    assert first != second


@_FUNCTIONS
def test_moments_have_one_hash_on_both_sides(postgres_database: str, is_md5: bool) -> None:
    """Those that the lake cannot hold are NULL there."""
    texts = (
        *("2000-01-01 00:00:00", "1999-12-31 23:59:59.999999", "0001-01-01 00:00:00"),
        *("9999-12-31 23:59:59.999999", "2024-02-29 12:00:00.000001", "1969-07-20 20:17:40"),
        *("infinity", "-infinity", "10000-01-01 00:00:00", "0044-03-15 00:00:00 BC"),
    )
    moments = [datetime.fromisoformat(each) for each in texts[:6]] + [None] * 5
    with connect(postgres_database) as session:
        own = session.info.server_version >= 180000
        for kind, oid, zone, has_own in (
            ("timestamp", 1114, None, False),
            ("timestamptz", 1184, "UTC", False),
            ("timestamptz", 1184, "UTC", own),
        ):
            row_hash = RowHash.of(
                [Column("at", oid, -1, "", kind)], {}, 7, is_md5=is_md5, hashes_timestamptz=has_own
            )
            query = sql.SQL(
                "SELECT {} FROM unnest({}::text[]::{}[]) WITH ORDINALITY AS t(at, n) ORDER BY n"
            ).format(row_hash.expression("t"), sql.Literal([*texts, None]), sql.SQL(kind))
            theirs = [each % 2**64 for (each,) in session.execute(query).fetchall()]
            lake = pa.array(moments, pa.timestamp("us")).cast(pa.timestamp("us", zone))
            assert row_hash.of_rows([lake]).tolist() == theirs
            assert len(set(theirs)) == 7


@_FUNCTIONS
@pytest.mark.parametrize(
    ("kind", "oid", "modifier", "arrow"),
    [
        ("int", _INT, -1, pa.int32()),
        ("long", 20, -1, pa.int64()),
        ("double", _FLOAT, -1, pa.float64()),
        ("decimal(8, 2)", _NUMERIC, (8 << 16 | 2) + 4, pa.decimal128(8, 2)),
        ("decimal(12, 2)", _NUMERIC, (12 << 16 | 2) + 4, pa.decimal128(12, 2)),
        ("decimal(18, 2)", _NUMERIC, (18 << 16 | 2) + 4, pa.decimal128(18, 2)),
    ],
)
def test_no_value_is_lost_where_columns_exchange_them(
    postgres_database: str, is_md5: bool, kind: str, oid: int, modifier: int, arrow: pa.DataType
) -> None:
    """Some of the server's functions return the seed for some values, such as zero. Then order is lost."""
    names = ("a", "b", "c", "d")
    row_hash = RowHash.of([Column(n, oid, modifier, "", kind) for n in names], {}, 7, is_md5=is_md5)
    rows = list(itertools.product((None, 0, -1, 1), repeat=4))
    with connect(postgres_database) as session:
        (name,) = session.execute("SELECT format_type(%s, %s)", (oid, modifier)).fetchone() or ("",)
        given = [dict(zip(names, row, strict=True)) for row in rows]
        query = sql.SQL(
            "SELECT {} FROM jsonb_to_recordset({}) AS t(a {k}, b {k}, c {k}, d {k})"
        ).format(row_hash.expression("t"), sql.Literal(json.dumps(given)), k=sql.SQL(name))
        theirs = [each % 2**64 for (each,) in session.execute(query).fetchall()]
    made = Decimal if oid == _NUMERIC else float if oid == _FLOAT else int
    lake = [
        pa.array([None if each is None else made(each) for each in column], arrow)
        for column in zip(*rows, strict=True)
    ]
    assert row_hash.of_rows(lake).tolist() == theirs
    assert len(set(theirs)) == len(rows)


@_FUNCTIONS
def test_decimals_have_one_hash_on_both_sides(postgres_database: str, is_md5: bool) -> None:
    """Of all numbers of digits that are hashed in their own way; NaN is NULL in the lake."""
    with connect(postgres_database) as session:
        for precision, scale in (
            *((9, 2), (10, 2), (15, 2), (16, 2), (17, 2), (18, 2), (19, 2), (38, 2)),
            *((9, 0), (10, 0), (12, 4), (16, 16), (16, 15), (16, 1), (18, 18), (12, 7)),
        ):
            steps = [10**precision - 1, 1, 10**scale, 10 ** (precision - 1), 6 * 10 ** (scale // 2)]
            numbers = [0, *(sign * step for step in steps for sign in (1, -1))]
            fit = [each for each in dict.fromkeys(numbers) if abs(each) < 10**precision]
            texts = [f"{each}e-{scale}" for each in fit]
            kind, modifier = f"decimal({precision}, {scale})", (precision << 16 | scale) + 4
            row_hash = RowHash.of([Column("n", _NUMERIC, modifier, "", kind)], {}, 7, is_md5=is_md5)
            query = sql.SQL(
                "SELECT {} FROM unnest({}::numeric({}, {})[]) WITH ORDINALITY AS t(n, o) ORDER BY o"
            ).format(
                row_hash.expression("t"),
                sql.Literal([*texts, "NaN", None]),
                sql.Literal(precision),
                sql.Literal(scale),
            )
            theirs = [each % 2**64 for (each,) in session.execute(query).fetchall()]
            lake = pa.array([*map(Decimal, texts), None, None], pa.decimal128(precision, scale))
            assert row_hash.of_rows([lake]).tolist() == theirs, kind
            # Neither a sign nor a NULL is lost.
            assert len(set(theirs)) == len(texts) + 1, kind
