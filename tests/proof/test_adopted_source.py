"""F48: the lake goes on from another system with the same data, and the earlier one changes nothing any more.

Real servers: pg_upgrade takes several databases to version 18, each with its slot, and a subscription takes
one to a server whose LSNs are smaller. Judged by all rows of source and lake.

Source: https://www.postgresql.org/docs/current/app-pgresetwal.html
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE
from airflow_provider_pgoutput.batch.jobs import ReplayJob, TableOptions
from airflow_provider_pgoutput.batch.lsn import Lsn, LsnOffset
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.stream.options import WALSENDER
from airflow_provider_pgoutput.doctor.findings import PROBLEM
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError, SourceChanged
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG
from tests.docs.blocks import blocks_of
from tests.faults.processes import apply_attached, stage_in_process
from tests.faults.test_upgrades import server, upgraded
from tests.proof.worlds import World, world_at
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.doctor.findings import Finding
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.conformance.pipeline import Batch

_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, v text, n numeric(9, 2));
CREATE TABLE same (id int PRIMARY KEY, v text);
CREATE TABLE untouched (id int PRIMARY KEY, v text);
CREATE TABLE plain (a int, b text); ALTER TABLE plain REPLICA IDENTITY FULL;
CREATE TABLE history (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR TABLE items, same, untouched, plain, history;
"""
_ROWS = """
INSERT INTO items SELECT i, 'v', i FROM generate_series(1, 200) i;
INSERT INTO same SELECT i, 'v' FROM generate_series(1, 50) i;
INSERT INTO untouched SELECT i, 'v' FROM generate_series(1, 50) i;
INSERT INTO plain VALUES (1, 'x'); INSERT INTO history VALUES (1, 'v');
"""
_CHANGES = """
UPDATE items SET v = v || 'u' WHERE id % 50 = 0; DELETE FROM items WHERE id = (SELECT min(id) FROM items);
INSERT INTO items SELECT coalesce(max(id), 0) + 1, 'i', 0.5 FROM items;
UPDATE same SET v = v || 'u' WHERE id = 1;
INSERT INTO plain VALUES (2, 'y'); UPDATE history SET v = v || 'u';
"""
#: On the new server, before it is adopted.
_ONLY_THERE = """
UPDATE items SET v = 'there' WHERE id IN (60, 61); DELETE FROM items WHERE id = 70;
INSERT INTO items VALUES (1000, 'there', 1); INSERT INTO plain VALUES (3, 'there');
"""
_ALL = ("items", "same", "untouched", "plain")
#: The pipeline with a batch that is sealed at the old server and not applied.
_WAITS = "waits"
_NAMES = ("goes_on", "killed", _WAITS)
pytestmark = pytest.mark.further


class Move(NamedTuple):
    """A pipeline at the server from which its lake was filled, and at the one that takes its place."""

    before: World
    after: World
    waiting: Batch | None = None

    def options(self, **more: Any) -> dict[str, Any]:
        """What the operator asks for."""
        return {"on_slot_lost": "difference", "adopted_system": _system(self.after), **more}


def _query(world: World, statement: str) -> Any:
    with psycopg.connect(world.pipeline.conninfo, autocommit=True) as session:
        row = session.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def _system(world: World) -> str:
    return str(_query(world, "SELECT system_identifier FROM pg_control_system()"))


def _checkpoint(world: World) -> Checkpoint:
    found = world.pipeline.checkpoint()
    assert found is not None
    return found


def _advance(world: World) -> None:
    """As the operator does it."""
    pipeline, at = world.pipeline, _checkpoint(world)
    advance_slot(
        pipeline.reader,
        pipeline.slot_name,
        at.end_lsn,
        at.system_identifier,
        at.timeline,
        at.systems.lsn_offset,
    )


def _new_world(
    conninfo: str,
    name: str,
    spark: SparkSession,
    properties: Mapping[str, str],
    folder: pytest.TempPathFactory,
) -> World:
    options = {"public.history": TableOptions(mode="change_log")}
    world = world_at(conninfo, name, folder.mktemp(name), spark, properties, table_options=options)
    world.sql(_TABLES + _ROWS)
    world.run()
    world.sql(_CHANGES)
    world.run()
    return world


def _at(world: World, conninfo: str) -> World:
    return World(dataclasses.replace(world.pipeline, conninfo=conninfo), world.publications)


def _moved(
    home: Path,
    major: int,
    names: tuple[str, ...],
    spark: SparkSession,
    properties: Mapping[str, str],
    folder: pytest.TempPathFactory,
) -> Iterator[dict[str, Move]]:
    """Pipelines of a server, before and after pg_upgrade. Both servers run."""
    with server(home / "old", major) as old:
        worlds, waiting = {}, {}
        # All of them at first: such a commit is one that each slot has to read.
        reader_conninfo(old.conninfo())
        for name in names:
            with psycopg.connect(old.conninfo(), autocommit=True) as session:
                session.execute(f"CREATE DATABASE {name}_{major}".encode())
            reader_conninfo(old.conninfo(f"{name}_{major}"))
        for name in names:
            database = f"{name}_{major}"
            world = _new_world(old.conninfo(database), database, spark, properties, folder)
            if name == _WAITS:
                world.sql(_CHANGES)
                waiting[name] = world.pipeline.stage()
            worlds[name] = world
        for name, world in worlds.items():
            # pg_upgrade refuses a slot that lacks changes.
            at = waiting[name].manifest.end_lsn if name in waiting else _checkpoint(world).end_lsn
            advance_slot(world.pipeline.reader, world.pipeline.slot_name, at)
        new = upgraded(home, old)
        with new, old:
            yield {
                name: Move(world, _at(world, new.conninfo(f"{name}_{major}")), waiting.get(name))
                for name, world in worlds.items()
            }


@pytest.fixture(scope="module")
def moves(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Move]]:
    """From version 18: pg_upgrade takes slots along from version 17 on."""
    yield from _moved(
        new_server_home(), 18, _NAMES, spark, lake_catalog_properties, tmp_path_factory
    )


def _goes_on(move: Move, **options: Any) -> None:
    """The next batches come from the new server alone."""
    world = move.after
    world.assert_equal(*_ALL)
    world.sql(_CHANGES + "UPDATE untouched SET v = 'later' WHERE id = 2;")
    batch = world.pipeline.stage(**options)
    assert not any(each.copy_lsn for each in batch.manifest.tables)
    world.pipeline.apply(batch)
    _advance(world)
    world.assert_equal(*_ALL)


def _old_one_is_refused(move: Move) -> None:
    """The earlier server comes back, and its pipeline would go on."""
    world = move.before
    world.sql(_CHANGES)
    before = world.pipeline.snapshot_ids()
    for options in ({}, {"on_slot_lost": "copy"}, {"on_slot_lost": "difference"}):
        with pytest.raises(SourceChanged, match="PgoutputAdoptSourceOperator"):
            world.pipeline.stage(**options)
    with pytest.raises(SourceChanged):
        _advance(world)
    with pytest.raises(SourceChanged):
        world.verify()
    with pytest.raises(ConfigurationError, match="was the source of the lake before"):
        world.pipeline.stage(on_slot_lost="difference", adopted_system=_system(world))
    assert world.pipeline.snapshot_ids() == before


def _adopted(move: Move, earlier: str, end: Lsn) -> None:
    at = _checkpoint(move.after)
    assert (at.system_identifier, at.timeline) == (_system(move.after), 1)
    assert [(each.system_identifier, each.end_lsn) for each in at.adopted_from] == [
        (earlier, str(end))
    ]


def _problems(world: World) -> list[Finding]:
    """What the doctor finds."""
    pipeline = world.pipeline
    _, found = examine_pipeline(
        pipeline.reader,
        pipeline.slot_name,
        load_catalog(CATALOG, **pipeline.catalog_properties),
        pipeline.namespace,
        StagingArea(pipeline.staging.as_uri()),
    )
    return [each for each in found if each.severity == PROBLEM]


def _has_the_difference(batch: Batch, **more: tuple[int, int]) -> None:
    """Of tables with a key it has only the rows of ``_ONLY_THERE``.

    :param more: updates and deletes of other tables.
    """
    tables = batch.manifest.tables
    assert {each.table_name for each in tables if each.copy_lsn} == {"plain", "history"}
    assert {each.table_name for each in tables} == {*_ALL, "history"}
    staged = {
        e.table_name: (e.counts.updates, e.counts.deletes)
        for e in batch.manifest.changed_tables
        if not e.copy_lsn
    }
    assert staged == {"items": (3, 1), **more}


def _whole_way(move: Move, caplog: pytest.LogCaptureFixture) -> None:
    world, before = move.after, _checkpoint(move.before)
    kept = world.pipeline.confirmed_flush_lsn()
    with pytest.raises(SourceChanged, match="PgoutputAdoptSourceOperator"):
        world.pipeline.stage(on_slot_lost="copy")
    for wrong in ("1", before.system_identifier):
        with pytest.raises(ConfigurationError, match="new_system_identifier"):
            world.pipeline.stage(on_slot_lost="difference", adopted_system=wrong)
    assert world.pipeline.confirmed_flush_lsn() == kept, "nothing was made"
    assert "PgoutputAdoptSourceOperator" in _problems(world)[0].advice
    world.sql(_ONLY_THERE)
    with caplog.at_level(logging.INFO):
        batch = world.pipeline.stage(**move.options())
    assert "'there'" not in caplog.text, "no value is told"
    _has_the_difference(batch)
    manifest = batch.manifest
    assert manifest.start_lsn == before.end_lsn
    world.pipeline.apply(batch)
    _adopted(move, before.system_identifier, before.end_lsn)
    _advance(world)
    assert world.pipeline.confirmed_flush_lsn() == manifest.end_lsn
    with pytest.raises(ConfigurationError, match="is the source of the lake already"):
        world.pipeline.stage(**move.options())
    _goes_on(move)
    proof = world.verify()
    equal = {each.table for each in proof.tables if each.is_equal}
    assert equal == {f"public.{each}" for each in (*_ALL, "history")}
    assert _problems(world) == []
    _old_one_is_refused(move)
    _goes_on(move)


def test_f48_an_upgraded_server_with_its_slot_is_adopted(
    moves: dict[str, Move], caplog: pytest.LogCaptureFixture
) -> None:
    move = moves["goes_on"]
    assert move.after.pipeline.confirmed_flush_lsn() is not None, "pg_upgrade took the slot along"
    _whole_way(move, caplog)
    _is_replayed(move)


def test_f48_an_upgraded_server_without_a_slot_is_adopted(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = _moved(
        new_server_home(), 16, ("goes_on",), spark, lake_catalog_properties, tmp_path_factory
    )
    for moves in made:
        assert moves["goes_on"].after.pipeline.confirmed_flush_lsn() is None
        _whole_way(moves["goes_on"], caplog)


def _is_replayed(move: Move) -> None:
    """A replay in place begins where the new system was adopted. The operator refuses an earlier LSN."""
    pipeline, at = move.after.pipeline, _checkpoint(move.after)
    adopted_at = at.systems.adopted_at
    assert adopted_at is not None
    batches = batches_between(
        StagingArea(pipeline.staging.as_uri()),
        pipeline.slot_name,
        adopted_at,
        at.end_lsn,
        at.system_identifier,
    )
    assert {each.system_identifier for each in batches} == {at.system_identifier}
    job = ReplayJob(
        staging_uri=pipeline.staging.as_uri(),
        catalog_name=CATALOG,
        namespace=pipeline.namespace,
        manifest_uris=tuple(each.manifest_uri for each in batches),
        tables=tuple(f"public.{each}" for each in _ALL),
        in_place=True,
        **pipeline.plan_options,
    )
    replay(pipeline.spark, job)
    _goes_on(move)


@contextlib.contextmanager
def _hidden(world: World, batch: Batch) -> Iterator[None]:
    """A staging area in which a batch cannot be seen yet."""
    path = world.pipeline.staging / batch.manifest.path
    hidden = path.rename(path.with_suffix(".hidden"))
    yield
    hidden.rename(path)


def test_f48_batches_of_the_earlier_system_come_first_or_never(moves: dict[str, Move]) -> None:
    """One was sealed and not applied. It is applied before the new system is adopted, or not at all."""
    move = moves[_WAITS]
    world, first, kept = move.after, move.waiting, move.after.pipeline.confirmed_flush_lsn()
    assert first is not None
    world.sql(_ONLY_THERE)
    found = world.pipeline.stage(**move.options(advance="after_stage"))
    assert found.manifest.batch_id == first.manifest.batch_id
    assert world.pipeline.confirmed_flush_lsn() == kept, "the slot knows nothing of that batch"
    with _hidden(world, first):
        compared_too_early = world.pipeline.stage(**move.options())
    world.pipeline.apply(first)
    with pytest.raises(SourceChanged):
        _advance(world)
    at, tables = _checkpoint(world), world.pipeline.snapshot_ids()
    assert at.end_lsn == first.manifest.end_lsn
    with pytest.raises(BatchRefused, match="Then adopt the new one again"):
        world.pipeline.apply(compared_too_early)
    assert world.pipeline.snapshot_ids() == tables
    # The earlier server lives on, and stages one more.
    move.before.sql(_CHANGES)
    late = move.before.pipeline.stage()
    with _hidden(world, late):
        world.pipeline.apply(world.pipeline.stage(**move.options()))
    _adopted(move, at.system_identifier, at.end_lsn)
    tables = world.pipeline.snapshot_ids()
    # Also one that was applied before.
    for each in (late, first):
        with pytest.raises(BatchRefused, match="has adopted system"):
            world.pipeline.apply(each)
    assert world.pipeline.snapshot_ids() == tables
    _goes_on(move)
    # An apply of the earlier system that ran all the time writes its row now. It does not count, wherever it
    # ends.
    at = _checkpoint(world)
    for end_lsn in (late.manifest.end_lsn, Lsn(2**40)):
        _record_late(world, first, end_lsn)
    assert _checkpoint(world) == at
    _goes_on(move)


def _record_late(world: World, batch: Batch, end_lsn: Lsn) -> None:
    """Write the row of a batch to the checkpoint table once more, with another end."""
    pipeline = world.pipeline
    world.refresh()
    name = quoted("lake", pipeline.namespace, CHECKPOINT_TABLE)
    rows = pipeline.spark.table(name).where(F.col("table_name").isNull())
    of_batch = rows.where(F.col("batch_id") == batch.manifest.batch_id).limit(1)
    of_batch.withColumn("end_lsn", F.lit(end_lsn.sortable)).writeTo(name).append()
    world.refresh()


def test_f48_a_killed_adoption_is_repeated(moves: dict[str, Move]) -> None:
    move = moves["killed"]
    world, earlier = move.after, _checkpoint(move.before)
    world.sql(_ONLY_THERE)
    for point in ("stage.after_slot", "stage.during_difference", "stage.after_manifest"):
        assert stage_in_process(world.pipeline, point, **move.options()), point
        world.sql("INSERT INTO items SELECT max(id) + 1, 'killed', 2 FROM items")
    batch = world.pipeline.stage(**move.options())
    for point in ("apply.between_publishes", "apply.before_checkpoint"):
        assert apply_attached(world.pipeline, batch, point), point
        again = world.pipeline.stage(**move.options())
        assert again.manifest.batch_id == batch.manifest.batch_id, "the sealed batch is taken"
    assert apply_attached(world.pipeline, batch, "apply.after_checkpoint")
    world.pipeline.apply(batch)
    _adopted(move, earlier.system_identifier, earlier.end_lsn)
    # The slot begins at the end of the batch, so nothing depends on the advance task.
    world.pipeline.apply(world.pipeline.stage())
    _goes_on(move)


def _migrated(old: World, new: World) -> None:
    """Take all rows to another server by a subscription, as a migration does.

    Tables of the new server have other OIDs than all those of the old one. A column of ``items`` has another
    number, too.
    """
    for number in range(40):
        new.sql(f"CREATE TABLE earlier_{number} (); DROP TABLE earlier_{number}")
    new.sql(
        "CREATE TABLE same (id int PRIMARY KEY, v text); CREATE TABLE history (id int PRIMARY KEY, v text);"
        "CREATE TABLE items (id int PRIMARY KEY, gone int, v text, n numeric(9, 2));"
        "ALTER TABLE items DROP gone;"
        "CREATE TABLE plain (a int, b text); ALTER TABLE plain REPLICA IDENTITY FULL;"
        "CREATE TABLE untouched (id int PRIMARY KEY, v text);"
        "CREATE PUBLICATION p FOR TABLE items, same, untouched, plain, history"
    )
    new.sql(f"CREATE SUBSCRIPTION s CONNECTION '{old.pipeline.conninfo}' PUBLICATION p")
    deadline = time.monotonic() + 60
    while _query(new, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'"):
        assert time.monotonic() < deadline, "the subscription does not come to an end"
        time.sleep(0.2)
    new.sql("DROP SUBSCRIPTION s")


def test_f48_a_server_with_smaller_lsns_is_adopted(
    new_server_home: Callable[[], Path],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Its tables have other OIDs, and are compared all the same."""
    home = new_server_home()
    with server(home / "old", 16) as old, server(home / "new", 18) as new:
        before = _new_world(
            old.conninfo(), "migrated", spark, lake_catalog_properties, tmp_path_factory
        )
        # Later a column of the new server gets the name of one that the lake has of the old one.
        before.sql(
            "ALTER TABLE items ADD older int DEFAULT 5; UPDATE items SET older = id WHERE id < 9"
        )
        before.run()
        before.sql("ALTER TABLE items DROP older; UPDATE items SET n = 7 WHERE id < 5")
        for _ in range(5):
            before.sql(
                "SELECT pg_switch_wal(); INSERT INTO untouched SELECT max(id) + 1 FROM untouched"
            )
        before.run()
        after = _at(before, new.conninfo())
        _migrated(before, after)
        move, at = Move(before, after), _checkpoint(before)
        assert Lsn.parse(_query(after, "SELECT pg_current_wal_lsn()::text")) < at.end_lsn
        system = _system(after)
        assert str(_query(after, blocks_of("how-to/another_system.md")[1].text)) == system
        after.sql(_ONLY_THERE)
        batch = after.pipeline.stage(**move.options())
        _has_the_difference(batch)
        # The apply dies before it has published a table. The old server goes on, until it is adopted again.
        assert apply_attached(after.pipeline, batch, "apply.after_columns")
        before.sql("UPDATE same SET v = 'late' WHERE id = 7")
        before.run()
        before.assert_equal(*_ALL)
        at = _checkpoint(before)
        batch = after.pipeline.stage(**move.options())
        _has_the_difference(batch, same=(1, 0))
        assert apply_attached(after.pipeline, batch, "apply.between_publishes")
        after.pipeline.apply(batch)
        _adopted(move, at.system_identifier, at.end_lsn)
        assert _checkpoint(after).systems.lsn_offset == LsnOffset(1 << 32)
        assert _problems(after) == []
        _goes_on(move)
        _goes_on(move, transport=WALSENDER)
        after.sql(
            "ALTER TABLE items ADD older int; UPDATE items SET older = 1 WHERE id = 60;"
            "ALTER TABLE items RENAME n TO amount; UPDATE items SET id = 5000 WHERE id = 61"
        )
        after.run()
        after.assert_equal("items")
        equal = {each.table for each in after.verify().tables if each.is_equal}
        assert equal == {f"public.{each}" for each in (*_ALL, "history")}
        _old_one_is_refused(move)
