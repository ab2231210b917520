"""The hash of a whole row: of very many columns, and of numbers that differ by whole words."""

from __future__ import annotations

from decimal import Decimal

import psycopg
import pyarrow as pa
from psycopg import sql

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.proof.digest import RowHash

_INT, _NUMERIC = 23, 1700


def test_a_row_of_as_many_columns_as_a_table_can_have(postgres_database: str) -> None:
    count = 1600
    names = [f"c{number}" for number in range(count)]
    columns = [Column(name, _INT, -1, "", "int") for name in names]
    row_hash = RowHash.of(columns, {}, 7)
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
