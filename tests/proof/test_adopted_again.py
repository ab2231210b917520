"""F48: OIDs that come back. A table is made again, and then one server after the other is adopted.

Real servers, which get the same statements in place of a migration. Judged by all rows of source and lake.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.faults.processes import apply_attached
from tests.faults.test_upgrades import server
from tests.proof.test_adopted_source import Move, _at, _problems, _query
from tests.proof.worlds import World, world_at
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


pytestmark = pytest.mark.further

_AGAIN = """
CREATE TABLE again (id int PRIMARY KEY, v text);
INSERT INTO again SELECT i, 'v' FROM generate_series(1, 50) i;
"""
_TABLES = f"""
CREATE TABLE items (id int PRIMARY KEY, gone int, v text, kept text DEFAULT 'old');
ALTER TABLE items DROP gone;
INSERT INTO items SELECT i, 'v' FROM generate_series(1, 50) i;
{_AGAIN}
CREATE PUBLICATION p FOR TABLE items, again;
"""
_CHANGES = "UPDATE items SET v = v || 'u' WHERE id = 7; UPDATE again SET v = v || 'u' WHERE id = 8"
_ALL = ("items", "again")


def _make(world: World, segments: int = 0, *, other_oids: bool = False) -> None:
    """Make the tables of a server.

    :param segments: of WAL that it writes, so that its LSNs are past those of the next servers.
    """
    reader_conninfo(world.pipeline.conninfo)
    for each in range(40 if other_oids else 0):
        world.sql(f"CREATE TABLE earlier_{each} (); DROP TABLE earlier_{each}")
    world.sql(_TABLES)
    for _ in range(segments):
        world.sql("SELECT pg_logical_emit_message(false, 'forward', '')")
        world.sql("SELECT pg_switch_wal()")


def _oid(world: World, table: str) -> int:
    return int(_query(world, f"SELECT '{table}'::regclass::oid::int"))


def _adopt(move: Move) -> None:
    """Nothing is copied, and the next batches come from the new server."""
    world = move.after
    world.sql("UPDATE items SET v = v || 'there' WHERE id = 9")
    batch = world.pipeline.stage(**move.options())
    assert {e.table_name for e in batch.manifest.tables if e.is_difference} == set(_ALL)
    world.pipeline.apply(batch)
    world.assert_equal(*_ALL)
    assert _problems(world) == []
    world.sql(_CHANGES)
    world.run()
    world.assert_equal(*_ALL)
    assert all(each.is_equal for each in world.verify().tables)


def test_f48_the_third_server_has_the_oids_of_the_first_one(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
) -> None:
    home = new_server_home()
    with contextlib.ExitStack() as running:
        servers = [
            running.enter_context(server(home / name, 18)) for name in ("one", "two", "three")
        ]
        first = world_at(
            servers[0].conninfo(), "adopted_again", home / "staging", spark, lake_catalog_properties
        )
        second, third = (_at(first, each.conninfo()) for each in servers[1:])
        _make(first, 8)
        _make(second, other_oids=True)
        _make(third)
        first.run()
        first.sql(f"DROP TABLE again; {_AGAIN} ALTER PUBLICATION p ADD TABLE again; {_CHANGES}")
        first.pipeline.apply(first.pipeline.stage(on_recreated_table="copy"))
        for world in (second, third):
            world.sql(_CHANGES)
        assert _oid(first, "items") == _oid(third, "items") != _oid(second, "items")
        _adopt(Move(first, second))
        third.sql(_CHANGES)
        _adopt(Move(second, third))
        checkpoint = third.pipeline.checkpoint()
        assert checkpoint is not None
        offsets = [each.next_lsn_offset for each in checkpoint.adopted_from]
        assert offsets == ["1/0", "2/0"], "each system has its own"


def test_f48_values_of_user_columns_stay_after_an_adoption_that_was_given_up(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
) -> None:
    """Its apply wrote the numbers of the new server's columns, and no rows."""
    home = new_server_home()
    with server(home / "one", 18) as one, server(home / "two", 18) as two:
        first = world_at(
            one.conninfo(), "given_up_columns", home / "staging", spark, lake_catalog_properties
        )
        second = _at(first, two.conninfo())
        _make(first, 8)
        _make(second, other_oids=True)
        first.run()
        for world in (first, second):
            world.sql("ALTER PUBLICATION p SET TABLE items (id, v), again")
        first.sql("UPDATE items SET v = v || 'u' WHERE id = 3")
        # Such a table has left its publication and come back, so it would be copied.
        first.pipeline.apply(first.pipeline.stage(initial_copy="never"))
        first.damage(
            "ALTER TABLE {}.items ADD COLUMN mine string",
            "UPDATE {}.items SET mine = 'mine'",
        )
        batch = second.pipeline.stage(**Move(first, second).options())
        assert apply_attached(second.pipeline, batch, "apply.after_columns")
        first.sql(_CHANGES)
        first.run()
        first.assert_equal(*_ALL)
        assert _mine(first) == 50
        second.sql(_CHANGES)
        _adopt(Move(first, second))
        assert _mine(second) == 50
        # A column list leaves ``kept`` out since. Changed rows keep their values, also on the new server.
        second.refresh()
        assert spark.table("lake.given_up_columns.items").where("kept = 'old'").count() == 50


def _mine(world: World) -> int:
    world.refresh()
    name = f"lake.{world.pipeline.namespace}.items"
    return int(world.pipeline.spark.table(name).where("mine = 'mine'").count())
