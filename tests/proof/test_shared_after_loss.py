"""A shared table with masks and filters: some of its slices lose their slot, or get another system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.jobs import TableOptions
from tests.capture.test_masks import CANARY, SECRET, hashed, plain_places
from tests.conformance.pipeline import Pipeline
from tests.faults.test_upgrades import server
from tests.proof.test_adopted_source import _system
from tests.proof.test_shared_tables import erase_row, problems
from tests.proof.worlds import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

_A = "CREATE TABLE tenant_a.orders (id int PRIMARY KEY, email text, note text);"
_B = "CREATE TABLE tenant_b.orders (id int PRIMARY KEY, email text, note text);"
#: Only the old server publishes it. Its rows stay. On the new one ``tenant_a.orders`` gets its OID.
_E = "CREATE TABLE tenant_e.orders (id int PRIMARY KEY, email text, note text);"
_PUBLISHED = f"""
CREATE PUBLICATION p FOR TABLE tenant_a.orders, tenant_b.orders;
INSERT INTO tenant_a.orders SELECT i, '{CANARY}-a' || i, 'a' FROM generate_series(1, 60) i;
INSERT INTO tenant_b.orders SELECT i, 'mail ' || i, 'b' FROM generate_series(1, 60) i;
"""
_SCHEMAS = "CREATE SCHEMA tenant_a; CREATE SCHEMA tenant_b; CREATE SCHEMA tenant_e;"
_LOST = f"""
UPDATE tenant_a.orders SET email = '{CANARY}-new' WHERE id = 2;
DELETE FROM tenant_a.orders WHERE id = 3; INSERT INTO tenant_a.orders VALUES (90, '{CANARY}', 'a');
UPDATE tenant_b.orders SET note = 'changed' WHERE id IN (4, 45); DELETE FROM tenant_b.orders WHERE id = 5;
INSERT INTO tenant_b.orders VALUES (0, 'mail 0', 'b');
"""
_LATER = "UPDATE tenant_a.orders SET note = 'later' WHERE id < 3; DELETE FROM tenant_b.orders WHERE id < 2;"
#: Rows of tenant b pass the filter up to this key.
_MOST = 40


def _wanted(world: World, shard: str) -> set[tuple[Any, ...]]:
    with psycopg.connect(world.pipeline.conninfo) as session:
        of_a = session.execute("SELECT id, email, note FROM tenant_a.orders").fetchall()
        of_b = session.execute("SELECT id, email, note FROM tenant_b.orders").fetchall()
    return {(shard, "a", number, hashed(email), note) for number, email, note in of_a} | {
        (shard, "b", number, email, note) for number, email, note in of_b if number <= _MOST
    }


def _oid(world: World, table: str) -> int:
    with psycopg.connect(world.pipeline.conninfo) as session:
        row = session.execute("SELECT %s::regclass::oid", (table,)).fetchone()
    assert row is not None
    return int(row[0])


def _assert_equal(worlds: dict[str, World], mode: str) -> None:
    """Rows of the lake are those of the sources; the digests of each slice say the same."""
    any_world = next(iter(worlds.values()))
    any_world.refresh()
    name = f"lake.{any_world.pipeline.namespace}.orders"
    now = " AND _pgoutput_is_current" if mode == "history" else ""
    rows = any_world.pipeline.spark.sql(
        f"SELECT shard, tenant, id, email, note FROM {name} WHERE tenant <> 'e'{now}"
    )
    found = [tuple(row) for row in rows.collect()]
    assert len(found) == len(set(found))
    assert set(found) == {row for shard, each in worlds.items() for row in _wanted(each, shard)}
    for world in worlds.values():
        proof = world.verify(mask_secret=SECRET)
        assert [str(each) for each in proof.tables if not each.is_equal] == []
        assert {each.table for each in proof.tables} >= {"tenant_a.orders", "tenant_b.orders"}


@pytest.mark.parametrize("mode", [pytest.param("upsert", marks=pytest.mark.slow), "history"])
def test_a_loss_and_an_adoption_change_the_slices_of_their_slot(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    mode: str,
) -> None:
    home = new_server_home()
    with server(home / "old", 18) as old, server(home / "new", 18) as new:

        def world(conninfo: str, slot: str, shard: str) -> World:
            options = {
                f"tenant_{tenant}.orders": TableOptions(constant_columns={"shard": shard})
                for tenant in "abe"
            }
            return World(
                Pipeline(
                    conninfo=conninfo,
                    slot_name=slot,
                    publication_names=("p",),
                    namespace=f"shared_{mode}",
                    staging=home / f"staging_{slot}",
                    catalog_properties=dict(lake_catalog_properties),
                    spark=spark,
                    capture_options={
                        "advance": "after_apply",
                        "columns": {"tenant_a.orders.email": "hash"},
                        "mask_secret": SECRET,
                        "filters": {"tenant_b.orders": f"id <= {_MOST}"},
                    },
                    plan_options={
                        "mode": mode,
                        "shared_names": {r"tenant_(?P<tenant>.+)\.(.+)": "{2}"},
                        "table_options": options,
                    },
                ),
                ("p",),
            )

        for postgres in (old, new):
            # On both servers, so that the next OIDs are the same.
            with psycopg.connect(postgres.conninfo(), autocommit=True) as session:
                session.execute("CREATE DATABASE second")
        eu = world(old.conninfo(), "eu", "eu")
        us = world(old.conninfo("second"), "us", "us")
        moved = world(new.conninfo(), "eu", "eu")
        for each, tables in (
            (eu, _A + _B + _E),
            (moved, _B + _E.replace("orders", "other") + _A),
            (us, _A + _B),
        ):
            assert each.pipeline.reader
            each.sql(_SCHEMAS + tables)
            each.sql(_PUBLISHED)
        eu.sql(
            "ALTER PUBLICATION p ADD TABLE tenant_e.orders;"
            " INSERT INTO tenant_e.orders VALUES (1, 'mail', 'e'), (10, 'mail', 'e')"
        )
        assert _oid(moved, "tenant_b.orders") == _oid(eu, "tenant_a.orders")
        assert _oid(moved, "tenant_a.orders") == _oid(eu, "tenant_e.orders")
        for each in (eu, us):
            each.run()
        _assert_equal({"eu": eu, "us": us}, mode)

        for each in (eu, us, moved):
            each.sql(_LOST)
        eu.sql("SELECT pg_drop_replication_slot('eu')")
        batch = eu.pipeline.stage(on_slot_lost="difference")
        us.run()
        eu.pipeline.apply(batch)
        _assert_equal({"eu": eu, "us": us}, mode)

        moved.sql(
            "DELETE FROM tenant_a.orders WHERE id = 7; UPDATE tenant_b.orders SET id = 70 WHERE id = 8"
        )
        for _ in range(8):
            moved.sql("SELECT pg_switch_wal(); CREATE TABLE t (); DROP TABLE t")
        batch = moved.pipeline.stage(on_slot_lost="difference", adopted_system=_system(moved))
        moved.pipeline.apply(batch)
        _assert_equal({"eu": moved, "us": us}, mode)
        for each in (moved, us):
            each.sql(_LATER)
            each.run()
        _assert_equal({"eu": moved, "us": us}, mode)
        assert [problems(each) for each in (moved, us)] == [[], []]

        moved.sql("DELETE FROM tenant_a.orders WHERE id = 10")
        moved.run()
        erase_row(moved, "tenant_a.orders", 10)
        _assert_equal({"eu": moved, "us": us}, mode)
        found = moved.pipeline.spark.sql(
            f"SELECT DISTINCT shard, tenant FROM lake.shared_{mode}.orders WHERE id = 10"
        )
        assert {(*row,) for row in found.collect()} == {
            ("eu", "b"),
            ("eu", "e"),
            ("us", "a"),
            ("us", "b"),
        }
        assert [plain_places(home / f"staging_{slot}") for slot in ("eu", "us")] == [[], []]
