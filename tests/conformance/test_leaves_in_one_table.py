"""Partitions that are published one by one become slices of one table: rows move, leaves come and go."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.conformance.pipeline import CATALOG
from tests.proof.worlds import World

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline

_WAYS: dict[str, str] = {"by_sql": "sql", "by_walsender": "walsender"}
_ROWS = """
CREATE TABLE orders (year int, id int, v text, PRIMARY KEY (year, id)) PARTITION BY LIST (year);
CREATE TABLE orders_2025 PARTITION OF orders FOR VALUES IN (2025);
CREATE TABLE orders_2026 PARTITION OF orders FOR VALUES IN (2026);
INSERT INTO orders SELECT 2025 + i % 2, i, 'v' FROM generate_series(1, 40) i;
CREATE PUBLICATION p FOR TABLE orders;
"""
#: Each text is a batch.
_PROGRAM = (
    # Rows that move to the other partition, and back within one batch.
    """
    UPDATE orders SET year = 2026 WHERE year = 2025 AND id < 6;
    UPDATE orders SET year = 2025, v = 'back' WHERE year = 2026 AND id IN (1, 2, 40);
    DELETE FROM orders WHERE id = 8; UPDATE orders SET id = id + 100 WHERE id = 9;
    """,
    # A new partition, with rows that come from another one.
    """
    CREATE TABLE orders_2027 PARTITION OF orders FOR VALUES IN (2027);
    INSERT INTO orders VALUES (2027, 1, 'new'); UPDATE orders SET year = 2027 WHERE id IN (11, 12);
    """,
    """
    UPDATE orders SET v = v || 'u' WHERE year > 2025; TRUNCATE orders_2025;
    INSERT INTO orders VALUES (2025, 1, 'again')
    """,
    "TRUNCATE orders; INSERT INTO orders VALUES (2026, 1, 'after')",
)


def _run(pipeline: Pipeline, *statements: str) -> None:
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        for each in statements:
            session.execute(each.encode())
    pipeline.apply(pipeline.stage())


def _in_lake(pipeline: Pipeline) -> Counter[tuple[Any, ...]]:
    name = f"{CATALOG}.{pipeline.namespace}.orders"
    pipeline.spark.catalog.refreshTable(name)
    frame = pipeline.spark.table(name)
    if pipeline.plan_options["soft_delete"]:
        frame = frame.where("_pgoutput_op <> 'D'")
    rows = frame.select("year", "id", "v", "part").collect()
    return Counter(tuple(each) for each in rows)


def _wanted(pipeline: Pipeline) -> Counter[tuple[Any, ...]]:
    with psycopg.connect(pipeline.conninfo) as session:
        rows = session.execute(b"SELECT year, id, v, year::text FROM orders").fetchall()
    return Counter(rows)


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("mode", ["upsert", "soft_delete"])
@pytest.mark.further
def test_leaves_in_one_table(pipeline: Pipeline, way: str, mode: str) -> None:
    pipeline.capture_options.update(transport=_WAYS[way])
    pipeline.plan_options.update(
        shared_names={r"public\.orders_(?P<part>[0-9]+)": "orders"}, soft_delete=mode != "upsert"
    )

    _run(pipeline, _ROWS)
    assert _in_lake(pipeline) == _wanted(pipeline)
    for batch in _PROGRAM:
        _run(pipeline, batch)
        assert _in_lake(pipeline) == _wanted(pipeline)
    proof = World(pipeline, ("p",)).verify()
    assert [str(each) for each in proof.tables if not each.is_equal] == []
    assert {each.table for each in proof.tables} == {
        f"public.orders_{n}" for n in (2025, 2026, 2027)
    }
    # A detached partition is published no more. Its slice keeps its rows, and the others go on.
    kept = _in_lake(pipeline)
    _run(pipeline, "ALTER TABLE orders DETACH PARTITION orders_2026")
    _run(pipeline, "UPDATE orders_2026 SET v = 'alone'; INSERT INTO orders VALUES (2025, 7, 'on')")
    kept[2025, 7, "on", "2025"] += 1
    assert _in_lake(pipeline) == kept
