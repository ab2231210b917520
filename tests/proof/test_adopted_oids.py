"""F48: an OID names a table of one server only. On another server another table may have it.

Real servers, which get the same statements in place of a migration. Judged by all rows of source and lake.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.jobs import TableOptions
from tests.faults.processes import apply_attached
from tests.faults.test_upgrades import server
from tests.proof.test_adopted_again import _oid
from tests.proof.test_adopted_source import Move, _at, _checkpoint
from tests.proof.worlds import World, world_at
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.further

_ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, v text);
INSERT INTO items SELECT i, 'v' FROM generate_series(1, 50) i;
"""


def _go_past(world: World) -> None:
    """Write WAL, so that the server's LSNs are past those of the first one."""
    for _ in range(8):
        world.sql("SELECT pg_logical_emit_message(false, 'forward', '')")
        world.sql("SELECT pg_switch_wal()")


def _use_oids(world: World) -> None:
    """Let the next tables get OIDs that the first server has not given."""
    for each in range(40):
        world.sql(f"CREATE TABLE earlier_{each} (); DROP TABLE earlier_{each}")


def _kill_adoption(move: Move) -> None:
    """Its apply writes the numbers of the columns, and no rows."""
    batch = move.after.pipeline.stage(**move.options())
    assert apply_attached(move.after.pipeline, batch, "apply.after_columns")


def _adopt(move: Move) -> None:
    """No table is copied."""
    batch = move.after.pipeline.stage(**move.options())
    assert all(each.is_difference for each in batch.manifest.tables)
    move.after.pipeline.apply(batch)


def test_f48_column_numbers_of_a_server_that_was_thrown_away_count_no_more(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
) -> None:
    """The server that is adopted has the same OIDs, and its columns stand in another order."""
    home = new_server_home()
    columns = {
        "one": "a text, b text",
        "two": "a text, b text",
        "three": "b text, a text",
    }
    with contextlib.ExitStack() as running:
        servers = {name: running.enter_context(server(home / name, 18)) for name in columns}
        first = world_at(
            servers["one"].conninfo(),
            "thrown_away",
            home / "staging",
            spark,
            lake_catalog_properties,
        )
        second, third = (_at(first, servers[name].conninfo()) for name in ("two", "three"))
        for world, text in zip((first, second, third), columns.values(), strict=True):
            reader_conninfo(world.pipeline.conninfo)
            if world is not first:
                _use_oids(world)
                _go_past(world)
            world.sql(
                f"CREATE TABLE items (id int PRIMARY KEY, {text});"
                "INSERT INTO items (id, a, b) SELECT i, 'a', 'b' FROM generate_series(1, 50) i;"
                "CREATE PUBLICATION p FOR TABLE items"
            )
        assert _oid(second, "items") == _oid(third, "items") != _oid(first, "items")
        first.run()
        _kill_adoption(Move(first, second))
        _adopt(Move(first, third))
        third.assert_equal("items")
        third.sql("UPDATE items SET a = 'new' WHERE id = 7")
        third.run()
        third.assert_equal("items")


@pytest.mark.slow
def test_f48_a_column_made_anew_after_an_adoption_that_was_given_up_has_its_values(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
) -> None:
    home = new_server_home()
    with server(home / "one", 18) as one, server(home / "two", 18) as two:
        first = world_at(
            one.conninfo(), "made_anew", home / "staging", spark, lake_catalog_properties
        )
        second = _at(first, two.conninfo())
        _use_oids(second)
        for world in (first, second):
            reader_conninfo(world.pipeline.conninfo)
            world.sql(f"{_ITEMS} CREATE PUBLICATION p FOR TABLE items")
        _go_past(second)
        first.run()
        _kill_adoption(Move(first, second))
        first.sql("CREATE TABLE noise ()")
        first.run()
        second.sql(
            "ALTER TABLE items DROP v; ALTER TABLE items ADD v text; UPDATE items SET v = 'v';"
            "UPDATE items SET v = 'new' WHERE id = 3"
        )
        _adopt(Move(first, second))
        second.assert_equal("items")


@pytest.mark.parametrize("initial_copy", ["never", "always"])
def test_f48_a_table_is_not_passed_over_for_one_that_had_its_oid(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    initial_copy: str,
) -> None:
    home = new_server_home()
    with server(home / "one", 18) as one, server(home / "two", 18) as two:
        first = world_at(
            one.conninfo(),
            f"passed_over_{initial_copy}",
            home / "staging",
            spark,
            lake_catalog_properties,
        )
        second = _at(first, two.conninfo())
        for world in (first, second):
            reader_conninfo(world.pipeline.conninfo)
        first.sql(
            "CREATE TABLE gone (id int PRIMARY KEY, v text); INSERT INTO gone VALUES (1, '1');"
            f"{_ITEMS} CREATE PUBLICATION p FOR TABLE gone, items"
        )
        second.sql(f"{_ITEMS} CREATE PUBLICATION p FOR TABLE items")
        _go_past(second)
        first.run()
        oid = _oid(first, "gone")
        assert oid == _oid(second, "items")
        first.sql("ALTER TABLE gone ALTER v TYPE int USING v::int")
        first.sql("INSERT INTO gone VALUES (3, 7)")
        first.sql("DROP TABLE gone")
        first.run()
        assert oid in _checkpoint(first).passed_over
        _adopt(Move(first, second))
        second.assert_equal("items")
        assert oid not in _checkpoint(second).passed_over
        second.sql("UPDATE items SET v = 'later' WHERE id = 7")
        batch = second.pipeline.stage(initial_copy=initial_copy)
        assert [each.copy_lsn for each in batch.manifest.tables] == [None]
        second.pipeline.apply(batch)
        second.assert_equal("items")


def test_f48_a_change_log_is_not_set_aside_for_a_table_that_had_its_oid(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
) -> None:
    home = new_server_home()
    with server(home / "one", 18) as one, server(home / "two", 18) as two:
        first = world_at(
            one.conninfo(),
            "aside_by_oid",
            home / "staging",
            spark,
            lake_catalog_properties,
            table_options={"public.entries": TableOptions(mode="change_log")},
            on_table_refused=SET_ASIDE,
        )
        first.pipeline.capture_options["on_table_refused"] = SET_ASIDE
        second = _at(first, two.conninfo())
        broken = (
            "CREATE TABLE broken (id int PRIMARY KEY, v text); INSERT INTO broken VALUES (1, '1');"
        )
        entries = "CREATE TABLE entries (id int PRIMARY KEY, v text); INSERT INTO entries VALUES (1, '1');"
        publication = "CREATE PUBLICATION p FOR TABLE broken, entries"
        for world in (first, second):
            reader_conninfo(world.pipeline.conninfo)
        first.sql(broken + entries + publication)
        second.sql(entries + broken + publication)
        _go_past(second)
        first.run()
        assert _oid(first, "broken") == _oid(second, "entries")
        first.sql("ALTER TABLE broken ALTER v TYPE int USING 1")
        first.sql("INSERT INTO broken VALUES (2, 2)")
        first.run()
        aside = [each.table_name for each in _checkpoint(first).set_aside.values()]
        assert aside == ["public.broken"]
        second.sql("ALTER TABLE broken ALTER v TYPE int USING 1")
        second.pipeline.apply(second.pipeline.stage(**Move(first, second).options()))
        assert "public.entries" not in [
            each.table_name for each in _checkpoint(second).set_aside.values()
        ]
        second.refresh()
        assert spark.table("lake.aside_by_oid.entries").count() == 2, "a copy of each server"
