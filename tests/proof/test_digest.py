"""The hash of a whole row: of very many columns, and of numbers that differ by whole words."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.proof.digest import RowHash

_INT, _NUMERIC = 23, 1700
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
        for kind, oid, zone in (("timestamp", 1114, None), ("timestamptz", 1184, "UTC")):
            row_hash = RowHash.of([Column("at", oid, -1, "", kind)], {}, 7, is_md5=is_md5)
            query = sql.SQL(
                "SELECT {} FROM unnest({}::text[]::{}[]) WITH ORDINALITY AS t(at, n) ORDER BY n"
            ).format(row_hash.expression("t"), sql.Literal([*texts, None]), sql.SQL(kind))
            theirs = [each % 2**64 for (each,) in session.execute(query).fetchall()]
            lake = pa.array(moments, pa.timestamp("us")).cast(pa.timestamp("us", zone))
            assert row_hash.of_rows([lake]).tolist() == theirs
            assert len(set(theirs)) == 7


@_FUNCTIONS
def test_decimals_have_one_hash_on_both_sides(postgres_database: str, is_md5: bool) -> None:
    """Of all numbers of digits that are hashed in their own way; NaN is NULL in the lake."""
    with connect(postgres_database) as session:
        for precision in (9, 10, 15, 16, 18, 19, 38):
            most = f"{'9' * (precision - 2)}.99"
            texts = [most, f"-{most}", "0.00", "-0.01", "0.01", "1.00"]
            kind, modifier = f"decimal({precision}, 2)", (precision << 16 | 2) + 4
            row_hash = RowHash.of([Column("n", _NUMERIC, modifier, "", kind)], {}, 7, is_md5=is_md5)
            query = sql.SQL(
                "SELECT {} FROM unnest({}::numeric({}, 2)[]) WITH ORDINALITY AS t(n, o) ORDER BY o"
            ).format(
                row_hash.expression("t"),
                sql.Literal([*texts, "NaN", None]),
                sql.Literal(precision),
            )
            theirs = [each % 2**64 for (each,) in session.execute(query).fetchall()]
            lake = pa.array([*map(Decimal, texts), None, None], pa.decimal128(precision, 2))
            assert row_hash.of_rows([lake]).tolist() == theirs, precision
            assert len(set(theirs)) == 7, precision
