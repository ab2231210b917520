"""F48: tables set aside before an adoption, an adoption given up, and a checkpoint table lost after it.

Real servers: two of them get the same statements, so their tables have the same OIDs, as after pg_upgrade.
Judged by all rows of source and lake.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.doctor.repair import rebuild_checkpoint
from airflow_provider_pgoutput.errors import BatchGap, SourceChanged, TableRefused
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG, Pipeline
from tests.conformance.test_tables_set_aside import Killed
from tests.faults.test_upgrades import server
from tests.proof.worlds import World
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.doctor.findings import Finding, Observed
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from quickstart.postgres import EmbeddedPostgres

_NAMES = ("aside", "given_up", "lost")
_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, v text);
CREATE TABLE other (id int PRIMARY KEY, v text);
CREATE TABLE history (id int PRIMARY KEY, v text);
CREATE TABLE kept (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR TABLE items, other, history, kept;
INSERT INTO items SELECT i, 'v' FROM generate_series(1, 100) i;
INSERT INTO other SELECT i, 'v' FROM generate_series(1, 100) i;
INSERT INTO history VALUES (1, 'v'); INSERT INTO kept VALUES (1, 'v');
"""
_CHANGES = """
UPDATE items SET v = v || 'u' WHERE id % 20 = 0; DELETE FROM items WHERE id = (SELECT min(id) FROM items);
UPDATE other SET v = v || 'u' WHERE id % 30 = 0; INSERT INTO other SELECT max(id) + 1, 'i' FROM other;
UPDATE history SET v = v || 'u';
"""
#: On the new server, before it is adopted.
_ONLY_THERE = """
UPDATE items SET v = 'there' WHERE id IN (50, 51); DELETE FROM items WHERE id = 60;
INSERT INTO items VALUES (1000, 'there'); UPDATE other SET v = 'there' WHERE id = 70;
"""
_MIRRORS = ("items", "other", "kept")
pytestmark = pytest.mark.slow


class Move(NamedTuple):
    """A pipeline at the server from which its lake was filled, and at the one that takes its place."""

    before: World
    after: World

    def options(self) -> dict[str, Any]:
        """What the operator asks for."""
        with psycopg.connect(self.after.pipeline.conninfo, autocommit=True) as session:
            row = session.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
        assert row is not None
        return {"on_slot_lost": "difference", "adopted_system": str(row[0])}


@pytest.fixture(scope="module")
def servers(
    new_server_home: Callable[[], Path],
) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    home = new_server_home()
    with server(home / "old", 18) as old, server(home / "new", 18) as new:
        for each in (old, new):
            for name in _NAMES:
                with psycopg.connect(each.conninfo(), autocommit=True) as session:
                    session.execute(f"CREATE DATABASE {name}".encode())
                reader_conninfo(each.conninfo(name))
                with psycopg.connect(each.conninfo(name), autocommit=True) as session:
                    session.execute(_TABLES.encode())
        # Past the LSNs of the old one, also when that has gone on.
        with psycopg.connect(new.conninfo(), autocommit=True) as session:
            for _ in range(8):
                session.execute("SELECT pg_logical_emit_message(false, '', 'x')")
                session.execute("SELECT pg_switch_wal()")
        yield old, new


@pytest.fixture
def move(
    request: pytest.FixtureRequest,
    servers: tuple[EmbeddedPostgres, EmbeddedPostgres],
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> Move:
    """The pipeline of a database, with one batch."""
    old, new = servers
    pipeline = Pipeline(
        conninfo=old.conninfo(request.param),
        slot_name=f"half_{request.param}",
        publication_names=("p",),
        namespace=f"half_{request.param}",
        staging=tmp_path,
        catalog_properties=dict(lake_catalog_properties),
        spark=spark,
        capture_options={"advance": "after_apply", "on_table_refused": SET_ASIDE},
        plan_options={
            "table_options": {"public.history": TableOptions(mode="change_log")},
            "on_table_refused": SET_ASIDE,
        },
    )
    before = World(pipeline, ("p",))
    before.run()
    after = dataclasses.replace(pipeline, conninfo=new.conninfo(request.param))
    return Move(before, World(after, ("p",)))


def _checkpoint(world: World) -> Checkpoint:
    found = world.pipeline.checkpoint()
    assert found is not None
    return found


def _aside(world: World) -> dict[str, str]:
    """Which tables are set aside, and for what error."""
    found = _checkpoint(world).set_aside.values()
    return {each.table_name.removeprefix("public."): each.refusal.error for each in found}


def _rows(world: World, table: str) -> int:
    world.refresh()
    name = quoted("lake", world.pipeline.namespace, table)
    return world.pipeline.spark.table(name).count()


def _into(world: World, target: str) -> None:
    """Give the change log a new target."""
    options = TableOptions(mode="change_log", target=target)
    world.pipeline.plan_options["table_options"] = {"public.history": options}


def _changed(world: World, **options: Any) -> None:
    """The next run."""
    world.sql(_CHANGES)
    world.pipeline.apply(world.pipeline.stage(**options))


@contextlib.contextmanager
def _without_metadata(world: World, *tables: str) -> Iterator[None]:
    """Take the newest metadata file of tables away, and put it back."""
    pipeline, files = world.pipeline, []
    names = [TableName("lake", pipeline.namespace, each) for each in tables]

    def forget() -> None:
        for name in names:
            with contextlib.suppress(Py4JJavaError):
                pipeline.spark.catalog.refreshTable(name.sql)

    for name in names:
        table = IcebergTable.load(pipeline.spark, name)
        assert table is not None
        location = str(table.java.operations().current().metadataFileLocation())
        files.append(Path(urlsplit(location).path))
        files[-1].with_name(f".{files[-1].name}.crc").unlink(missing_ok=True)
        files[-1].rename(files[-1].with_suffix(".away"))
    forget()
    yield
    for file in files:
        file.with_suffix(".away").rename(file)
    forget()


@pytest.mark.parametrize("move", ["aside"], indirect=True)
def test_f48_a_table_set_aside_since_before_the_adoption_comes_back(
    move: Move, caplog: pytest.LogCaptureFixture
) -> None:
    """A mirror by itself, from the copy of the adoption. A change log would have a gap, so it does not."""
    before, after = move
    damaged = {"items": "TableDamaged", "history": "TableDamaged"}
    with _without_metadata(before, "items", "history"):
        _changed(before)
        assert _aside(before) == damaged
        after.sql(_ONLY_THERE)
        batch = after.pipeline.stage(**move.options())
        copied = {each.table_name for each in batch.manifest.tables if each.copy_lsn}
        assert copied == {"items", "history"}, "the others are compared"
        after.pipeline.apply(batch)
        assert _aside(after) == damaged
        caplog.clear()
        _changed(after)
        assert _aside(after) == damaged
    entries = _rows(after, "history")
    _changed(after)
    assert _aside(after) == {"history": "TableDamaged"}
    assert "no batch since then replaces the table's rows" in caplog.text
    assert "copy the table again (copy_tables=['public.history'])" in caplog.text
    after.assert_equal(*_MIRRORS)
    assert _rows(after, "history") == entries
    _changed(after)
    after.assert_equal(*_MIRRORS)
    _into(after, "history_2")
    _changed(after, copy_tables=("public.history",))
    assert _aside(after) == {}
    _changed(after)
    assert _rows(after, "history_2") == 2, "the copy, and an update"


def _observed(world: World) -> tuple[Observed, list[Finding]]:
    pipeline = world.pipeline
    return examine_pipeline(
        pipeline.reader,
        pipeline.slot_name,
        load_catalog(CATALOG, **pipeline.catalog_properties),
        pipeline.namespace,
        StagingArea(pipeline.staging.as_uri()),
        running=(),
    )


@contextlib.contextmanager
def _killed_at(wanted: str) -> Iterator[None]:
    def kill(point: str) -> None:
        if point == wanted:
            raise Killed

    with crash_points.watched(kill), pytest.raises(Killed):
        yield


@pytest.mark.parametrize("move", ["given_up"], indirect=True)
def test_f48_the_earlier_server_goes_on_after_an_adoption_that_was_given_up(move: Move) -> None:
    """The tables that its apply wrote to are refused until a copy replaces their rows."""
    before, after = move
    _changed(before)
    after.sql(_ONLY_THERE)
    batch = after.pipeline.stage(**move.options())
    with _killed_at("apply.before_checkpoint"):
        after.pipeline.apply(batch)
    _, findings = _observed(before)
    namespace = before.pipeline.namespace
    found = {e.where.removeprefix(f"{namespace}."): e for e in findings if "adopts" in e.what}
    assert found.keys() == {"items", "other", "history", "kept"}
    assert "copy_tables=['public.items']" in found["items"].advice
    entries = _rows(before, "history")
    _changed(before)
    assert _aside(before) == dict.fromkeys(("items", "other", "history"), "TableRefused")
    reason = _checkpoint(before).set_aside.values()
    assert all("began to write to the table and did not end" in str(e.refusal) for e in reason)
    copies = tuple(f"public.{each}" for each in ("items", "other", "history"))
    _changed(before, copy_tables=copies)
    before.assert_equal(*_MIRRORS)
    assert _aside(before) == {"history": "TableRefused"}
    assert _rows(before, "history") == entries
    _into(before, "history_2")
    _changed(before, copy_tables=("public.history",))
    assert _aside(before) == {}
    _changed(before)
    before.assert_equal(*_MIRRORS)
    assert _rows(before, "history_2") == 2, "the copy, and an update"
    named = [each.where for each in _observed(before)[1] if "adopts" in each.what]
    assert named == [f"{namespace}.kept"], "no batch changed it since"
    # It is adopted after all.
    after.pipeline.apply(after.pipeline.stage(**move.options()))
    after.assert_equal(*_MIRRORS)
    _changed(after)
    after.assert_equal(*_MIRRORS)
    assert _aside(after) == {}


def _lose_checkpoint(world: World) -> Observed:
    name = quoted("lake", world.pipeline.namespace, CHECKPOINT_TABLE)
    world.pipeline.spark.sql(f"DROP TABLE {name} PURGE")
    observed, _ = _observed(world)
    return observed


def _rebuild(world: World, observed: Observed) -> None:
    catalog = load_catalog(CATALOG, **world.pipeline.catalog_properties)
    rebuild_checkpoint(catalog, world.pipeline.namespace, observed)
    world.refresh()


def _refuses_to_rebuild_blindly(
    world: World, observed: Observed, kind: type[TableRefused | BatchGap], why: str
) -> None:
    """Without the staging area nobody knows which batch is where."""
    blind = dataclasses.replace(observed, manifests=(), staging_read=False)
    with pytest.raises(kind, match=why) as stop:
        _rebuild(world, blind)
    assert stop.value.advice == "give --staging-uri."


@pytest.mark.parametrize("move", ["lost"], indirect=True)
def test_f48_a_checkpoint_table_that_was_lost_after_an_adoption_is_rebuilt(move: Move) -> None:
    before, after = move
    _changed(before)
    start = _checkpoint(before)
    after.sql(_ONLY_THERE)
    batch = after.pipeline.stage(**move.options())
    with _killed_at("apply.between_publishes"):
        after.pipeline.apply(batch)
    # Lost when only one table had the batch. The lake is still the earlier system's.
    observed = _lose_checkpoint(after)
    _refuses_to_rebuild_blindly(after, observed, TableRefused, "several systems")
    _rebuild(after, observed)
    at = _checkpoint(after)
    assert (at.end_lsn, at.system_identifier) == (start.end_lsn, start.system_identifier)
    again = after.pipeline.stage(**move.options())
    assert again.manifest.batch_id == batch.manifest.batch_id
    after.pipeline.apply(again)
    after.assert_equal(*_MIRRORS)
    for is_newest in (True, False):
        # Right after the adoption, and after another batch.
        known = _checkpoint(after)
        observed = _lose_checkpoint(after)
        if is_newest:
            why = "past the start of the newest batch"
            _refuses_to_rebuild_blindly(after, observed, BatchGap, why)
        with pytest.raises(TableRefused, match="The connection leads to system") as stop:
            _rebuild(after, dataclasses.replace(observed, server=_observed(before)[0].server))
        assert f"{after.pipeline.namespace}.items" in str(stop.value.advice)
        _rebuild(after, observed)
        at = _checkpoint(after)
        assert at.system_identifier == known.system_identifier
        assert at.adopted_from == known.adopted_from
        assert at.set_aside == {}
        with pytest.raises(SourceChanged, match="PgoutputAdoptSourceOperator"):
            before.pipeline.stage()
        # A batch that is sealed comes first.
        after.run()
        _changed(after)
        after.assert_equal(*_MIRRORS)
    assert _aside(after) == {}
