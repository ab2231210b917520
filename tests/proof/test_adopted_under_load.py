"""F48 under load: pgbench writes up to the switch to another server, and goes on there before the adoption.

The adoption itself runs beside pgbench, and so do the batches before and after it. Judged by all rows of
source and lake. Each table has a primary key, so none is copied.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.errors import ConfigurationError, SourceChanged
from tests.faults.test_upgrades import server, upgraded
from tests.proof.test_adopted_source import (
    Move,
    _adopted,
    _advance,
    _at,
    _checkpoint,
    _old_one_is_refused,
)
from tests.proof.worlds import World, world_at
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quickstart.postgres import EmbeddedPostgres

pytestmark = pytest.mark.further

_NAMES = ("accounts", "branches", "tellers", "history")
_TABLES = tuple(f"pgbench_{each}" for each in _NAMES)
#: ``items`` is there for ``_old_one_is_refused``.
_MADE = f"""
ALTER TABLE pgbench_history ADD id bigserial PRIMARY KEY;
CREATE TABLE items (id int PRIMARY KEY, v text, n numeric(9, 2));
CREATE TABLE same (id int PRIMARY KEY, v text);
CREATE TABLE plain (a int, b text); CREATE TABLE history (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR TABLE {", ".join(_TABLES)};
"""
_LEAST_TRANSACTIONS = 50


def _make_tables(of: EmbeddedPostgres) -> None:
    program = str(of.installation.program("pgbench"))
    subprocess.run([program, "-i", "-q", "-s", "1", of.conninfo()], check=True, capture_output=True)
    with psycopg.connect(of.conninfo(), autocommit=True) as session:
        session.execute(_MADE.encode())
    reader_conninfo(of.conninfo())


@contextlib.contextmanager
def _load(of: EmbeddedPostgres) -> Iterator[None]:
    """Two clients of pgbench write until the block ends. Then their last transactions have ended."""
    program = str(of.installation.program("pgbench"))
    before = _transactions(of)
    command = [program, "-n", "-c", "2", "-T", "100000", "--rate=100", of.conninfo()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as load:
        try:
            _wait(lambda: _transactions(of) > before + _LEAST_TRANSACTIONS)
            yield
            assert load.poll() is None, "pgbench ended"
        finally:
            load.kill()
    _wait(lambda: not _busy(of))


def _wait(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _value(of: EmbeddedPostgres, statement: str) -> Any:
    with psycopg.connect(of.conninfo(), autocommit=True) as session:
        row = session.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def _transactions(of: EmbeddedPostgres) -> int:
    return int(_value(of, "SELECT count(*) FROM pgbench_history"))


def _busy(of: EmbeddedPostgres) -> bool:
    return bool(
        _value(of, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'")
    )


def _run(world: World) -> None:
    world.run()
    _advance(world)


def _adopt_under_load(move: Move, new: EmbeddedPostgres) -> None:
    """The new server is written to before the adoption, while it runs, and after it."""
    world, before = move.after, _checkpoint(move.before)
    with _load(new):
        batch = world.pipeline.stage(**move.options())
        tables = {each.table_name: each for each in batch.manifest.tables}
        assert set(tables) == set(_TABLES)
        assert not any(each.copy_lsn for each in tables.values())
        accounts = tables["pgbench_accounts"].counts
        assert 0 < accounts.updates < 100_000, "only rows that differ, and what came since"
        world.pipeline.apply(batch)
        _adopted(move, before.system_identifier, before.end_lsn)
        _advance(world)
        with pytest.raises(SourceChanged, match="PgoutputAdoptSourceOperator"):
            move.before.pipeline.stage(on_slot_lost="difference")
        _run(world)
    _run(world)
    world.assert_equal(*_TABLES)
    proof = world.verify()
    assert {each.table for each in proof.tables if each.is_equal} == {
        f"public.{each}" for each in _TABLES
    }, str(proof)


@pytest.mark.parametrize("major", [16, 17, 18])
def test_f48_pg_upgrade_under_load(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    major: int,
) -> None:
    home = new_server_home()
    try:
        before = server(home / "old", major)
    except ConfigurationError as error:
        pytest.skip(str(error))
    with before as old:
        _make_tables(old)
        world = world_at(
            old.conninfo(), f"under_load_{major}", home / "staging", spark, lake_catalog_properties
        )
        with _load(old):
            _run(world)
            _run(world)
        at = world.pipeline.stage()
        world.pipeline.apply(at)
        # pg_upgrade refuses a slot that lacks changes.
        advance_slot(world.pipeline.reader, world.pipeline.slot_name, at.manifest.end_lsn)
        new = upgraded(home, old)
        with new, old:
            move = Move(world, _at(world, new.conninfo()))
            has_slot = move.after.pipeline.confirmed_flush_lsn() is not None
            assert has_slot == (major >= 17)
            _adopt_under_load(move, new)
            _old_one_is_refused(move)
            move.after.assert_equal(*_TABLES)


def test_f48_a_logical_migration_under_load(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
) -> None:
    """pgbench writes until the switch. What it wrote last was never staged from the old server."""
    home = new_server_home()
    with server(home / "old", 16) as old, server(home / "new", 18) as new:
        _make_tables(old)
        world = world_at(
            old.conninfo(), "migrated_under_load", home / "staging", spark, lake_catalog_properties
        )
        after = _at(world, new.conninfo())
        # The tables of the new server get other OIDs.
        for number in range(40):
            after.sql(f"CREATE TABLE earlier_{number} (); DROP TABLE earlier_{number}")
        _make_tables(new)
        after.sql(f"TRUNCATE {', '.join(_TABLES)}")
        with _load(old):
            _run(world)
            after.sql(f"CREATE SUBSCRIPTION s CONNECTION '{old.conninfo()}' PUBLICATION p")
            _run(world)
        end = _value(old, "SELECT pg_current_wal_lsn()::text")
        _wait(lambda: _caught_up(old, end))
        after.sql("DROP SUBSCRIPTION s")
        after.sql("SELECT setval('pgbench_history_id_seq', max(id)) FROM pgbench_history")
        assert _transactions(new) == _transactions(old)
        move = Move(world, after)
        _adopt_under_load(move, new)
        _old_one_is_refused(move)
        after.assert_equal(*_TABLES)


def _caught_up(old: EmbeddedPostgres, end: str) -> bool:
    statement = f"SELECT coalesce(bool_and(replay_lsn >= '{end}'), false) FROM pg_stat_replication"
    of_tables = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE 'pg_%_sync_%'"
    return bool(_value(old, statement)) and not _value(old, of_tables)
