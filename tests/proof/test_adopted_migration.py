"""F48 with masks, filters and histories: the new server has the OIDs of the old one, for other tables.

Two new servers begin with the same OID. So a table of the new server has the OID that another one had on the
old server. Or it has its own OID, and its columns have other numbers (``attnum``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import ConfigurationError
from tests.capture.test_masks import CANARY, SECRET, hashed, plain_places
from tests.conformance.compare import quoted
from tests.conformance.pipeline import Pipeline
from tests.faults.test_upgrades import server
from tests.proof.test_adopted_source import _system
from tests.proof.worlds import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_MASKS = {"public.people.email": "hash", "public.people.nick": "redact"}
_FILTERS = {"public.orders": "region = 'eu'"}
_MODES = {
    "public.versions": TableOptions(mode="history"),
    "public.entries": TableOptions(mode="change_log"),
}
_IDENTITY = "ALTER TABLE orders REPLICA IDENTITY FULL"
#: ``people`` and ``orders`` change places. The others lack their dropped column.
_OLD = f"""
CREATE TABLE people (id int PRIMARY KEY, plain text, email text, nick text);
CREATE TABLE orders (id int PRIMARY KEY, note text, region text, other text); {_IDENTITY};
CREATE TABLE versions (id int PRIMARY KEY, gone text, a text, b text); ALTER TABLE versions DROP gone;
CREATE TABLE entries (id int PRIMARY KEY, gone text, a text, b text); ALTER TABLE entries DROP gone;
CREATE TABLE left_behind (id int PRIMARY KEY, v text); INSERT INTO left_behind VALUES (1, 'v');
CREATE PUBLICATION p FOR TABLE people, orders, versions, entries, left_behind;
"""
_NEW = f"""
CREATE TABLE orders (id int PRIMARY KEY, other text, note text, region text); {_IDENTITY};
CREATE TABLE people (id int PRIMARY KEY, nick text, email text, plain text);
CREATE TABLE versions (id int PRIMARY KEY, a text, b text, c text);
CREATE TABLE entries (id int PRIMARY KEY, a text, b text, c text);
CREATE TABLE brand_new (id int PRIMARY KEY, v text); INSERT INTO brand_new VALUES (2, 'new');
CREATE PUBLICATION p FOR TABLE people, orders, versions, entries;
"""
_ROWS = f"""
INSERT INTO people (id, plain, email, nick)
    SELECT i, 'p' || i, '{CANARY}-' || i, '{CANARY}-nick' FROM generate_series(1, 4) i;
INSERT INTO orders (id, note, region, other)
    SELECT i, 'n' || i, CASE WHEN i % 2 = 0 THEN 'eu' ELSE 'us' END, 'o' FROM generate_series(1, 6) i;
INSERT INTO versions (id, a, b) SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 3) i;
INSERT INTO entries (id, a, b) SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 3) i;
"""
_CHANGES = f"""
UPDATE people SET email = '{CANARY}-new-' || id, plain = 'u' WHERE id = 2;
UPDATE orders SET region = 'eu' WHERE id = 3; UPDATE orders SET region = 'us' WHERE id = 4;
UPDATE versions SET a = a || 'u' WHERE id = 1; DELETE FROM versions WHERE id = 3;
UPDATE entries SET a = a || 'u' WHERE id = 1; DELETE FROM entries WHERE id = 3;
"""
_LATER = f"""
INSERT INTO people (id, plain, email, nick) VALUES (9, 'p', '{CANARY}-9', '{CANARY}');
DELETE FROM orders WHERE id = 2;
INSERT INTO orders (id, note, region) VALUES (10, 'n', 'eu'), (11, 'n', 'us');
UPDATE versions SET b = b || 'w' WHERE id = 1; UPDATE entries SET b = b || 'w' WHERE id = 1;
"""


def _rows(world: World, statement: str) -> set[tuple[Any, ...]]:
    with psycopg.connect(world.pipeline.conninfo) as session:
        return set(session.execute(statement.encode()).fetchall())


def _oids(world: World) -> dict[str, int]:
    return dict(
        _rows(
            world,
            "SELECT relname::text, oid::int FROM pg_class WHERE relkind = 'r' AND oid > 16383",
        )
    )


def _lake(world: World, table: str, columns: str, where: str = "true") -> set[tuple[Any, ...]]:
    world.refresh()
    name = quoted("lake", world.pipeline.namespace, table)
    found = world.pipeline.spark.sql(f"SELECT {columns} FROM {name} WHERE {where}")
    return {tuple(each) for each in found.collect()}


def _assert_equal(world: World) -> None:
    people = _rows(world, "SELECT id, plain, email, nick FROM people")
    assert _lake(world, "people", "id, plain, email, nick") == {
        (number, plain, hashed(email), "***") for number, plain, email, _ in people
    }
    columns = "id, note, region, other"
    assert _lake(world, "orders", columns) == _rows(
        world, f"SELECT {columns} FROM orders WHERE region = 'eu'"
    )
    found = _lake(world, "versions", "id, a, b", "_pgoutput_is_current")
    assert found == _rows(world, "SELECT id, a, b FROM versions")


def test_a_migration_with_the_oids_of_other_tables(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = new_server_home()
    with server(home / "old", 18) as old, server(home / "new", 18) as new:
        worlds = [
            World(
                Pipeline(
                    conninfo=each.conninfo(),
                    slot_name="moved",
                    publication_names=("p",),
                    namespace="moved",
                    staging=home / "staging",
                    catalog_properties=dict(lake_catalog_properties),
                    spark=spark,
                    capture_options={
                        "advance": "after_apply",
                        "columns": _MASKS,
                        "mask_secret": SECRET,
                        "filters": _FILTERS,
                    },
                    plan_options={"table_options": _MODES},
                ),
                ("p",),
            )
            for each in (old, new)
        ]
        before, after = worlds
        for world, tables in ((before, _OLD), (after, _NEW)):
            assert world.pipeline.reader
            world.sql(tables)
            world.sql(_ROWS)
        then, now = _oids(before), _oids(after)
        assert (then["people"], then["orders"]) == (now["orders"], now["people"])
        assert (then["versions"], then["entries"]) == (now["versions"], now["entries"])
        assert then["left_behind"] == now["brand_new"]
        before.run()
        for world in worlds:
            world.sql(_CHANGES)
        before.run()
        _assert_equal(before)
        for _ in range(8):
            after.sql("SELECT pg_switch_wal(); CREATE TABLE t (); DROP TABLE t")
        options = {"on_slot_lost": "difference", "adopted_system": _system(after)}
        _refuses_what_was_forgotten(after, options)
        entries = _lake(before, "entries", "id, a, b")
        batch = after.pipeline.stage(**options)
        after.pipeline.apply(batch)
        _assert_equal(after)
        assert _lake(after, "entries", "id, a, b") >= entries
        after.sql(_LATER)
        after.run()
        _assert_equal(after)
        old_versions = _lake(after, "versions", "id, a, b", "NOT _pgoutput_is_current")
        assert old_versions >= {(1, "a1", "b1"), (3, "a3", "b3")}
        assert plain_places(home / "staging") == []
        found = after.verify(mask_secret=SECRET)
        assert {each.table for each in found.tables if each.is_equal} == {
            f"public.{each}" for each in ("people", "orders", "versions", "entries")
        }, str(found)
        _has_no_rows_of_a_new_table(after)


def _has_no_rows_of_a_new_table(world: World) -> None:
    """The lake has a table with the OID of the new table. It came from another table of the old server."""
    world.sql("CREATE PUBLICATION unread FOR TABLE brand_new")
    (proof,) = world.verify(publication_names=("unread",)).tables
    assert proof.not_compared == "the lake does not have it", str(proof)
    world.sql("ALTER PUBLICATION p ADD TABLE brand_new")
    (proof,) = world.verify(tables=["public.brand_new"]).tables
    assert proof.is_equal, str(proof)


def _refuses_what_was_forgotten(world: World, options: dict[str, Any]) -> None:
    """An adoption has a DAG of its own, which may lack arguments."""
    forgotten: tuple[dict[str, Any], ...] = (
        {"columns": {}},
        {"columns": {"public.people.email": "hash"}},
        {"filters": {}},
    )
    for lacking in forgotten:
        with pytest.raises(ConfigurationError) as refused:
            world.pipeline.stage(**options, **lacking)
        assert CANARY not in str(refused.value)
        assert world.pipeline.confirmed_flush_lsn() is None, "nothing was made"
