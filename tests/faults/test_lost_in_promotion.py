"""F51: an apply dies after it published a batch in some tables, and a promotion loses the WAL of that batch.

The standby is a copy of the primary's data directory from before the batch. Judged by all rows of source and
lake.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.capture.source.test_timelines import promote
from tests.conformance.pipeline import Pipeline
from tests.conformance.test_tables_set_aside import Killed
from tests.proof.worlds import World
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from quickstart.postgres import EmbeddedPostgres

_TABLES = """
CREATE TABLE first (id int PRIMARY KEY, v text);
CREATE TABLE second (id int PRIMARY KEY, v text);
CREATE TABLE third (id int PRIMARY KEY, v text);
CREATE TABLE not_published (v text);
CREATE PUBLICATION p FOR TABLE first, second, third;
INSERT INTO first SELECT i, 'v' FROM generate_series(1, 20) i;
INSERT INTO second SELECT i, 'v' FROM generate_series(1, 20) i;
INSERT INTO third SELECT i, 'v' FROM generate_series(1, 20) i;
"""
_ALL = ("first", "second", "third")


def _changes(*, by: str, ids: str, tables: tuple[str, ...]) -> str:
    each = "UPDATE {table} SET v = '{by}' WHERE id {ids};"
    emit = f"SELECT pg_logical_emit_message(true, 'p', '{by}');"
    return emit + " ".join(each.format(table=table, by=by, ids=ids) for table in tables)


@pytest.fixture
def world(
    own_server: EmbeddedPostgres,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> World:
    """A pipeline with one batch."""
    reader_conninfo(own_server.conninfo())
    pipeline = Pipeline(
        conninfo=own_server.conninfo(),
        slot_name="lost_in_promotion",
        publication_names=("p",),
        namespace=f"lost_in_promotion_{request.node.callspec.params['is_past']}",
        staging=tmp_path / "staging",
        catalog_properties=dict(lake_catalog_properties),
        spark=spark,
        capture_options={
            "advance": "after_apply",
            "on_table_refused": SET_ASIDE,
            "options": StreamOptions(messages=True),
        },
        plan_options={"on_table_refused": SET_ASIDE},
    )
    found = World(pipeline, ("p",))
    found.sql(_TABLES)
    found.run()
    return found


def _publish_some(world: World) -> tuple[str, Lsn]:
    """Apply a batch until it is published in one table; return that table, and where the batch ends."""

    def kill(name: str) -> None:
        if name == "apply.between_publishes":
            raise Killed

    before = world.pipeline.snapshot_ids()
    batch = world.pipeline.stage()
    with crash_points.watched(kill), pytest.raises(Killed):
        world.pipeline.apply(batch)
    after = world.pipeline.snapshot_ids()
    (table,) = (each for each in _ALL if before[each] != after[each])
    return table, batch.manifest.end_lsn


@pytest.mark.parametrize(
    "is_past",
    [
        pytest.param(False, id="ends before"),
        pytest.param(True, id="ends past", marks=pytest.mark.slow),
    ],
)
def test_f51_a_table_with_lost_changes_is_set_aside_and_a_copy_brings_it_back(
    world: World, own_server: EmbeddedPostgres, is_past: bool
) -> None:
    """Whether the promoted server's first batch ends before the lost one or past it."""
    server = own_server
    server.stop()
    standby = server.home / "standby"
    shutil.copytree(server.data_directory, standby, symlinks=True)
    owner = server.data_directory.stat()
    server.start()
    world.sql("INSERT INTO not_published SELECT repeat('x', 1000) FROM generate_series(1, 1000)")
    world.sql(_changes(by="lost", ids="<= 10", tables=_ALL))
    lost, lost_end = _publish_some(world)
    server.stop()
    shutil.rmtree(server.data_directory)
    standby.rename(server.data_directory)
    for each in (server.data_directory, *server.data_directory.rglob("*")):
        shutil.chown(each, owner.st_uid, owner.st_gid)
    promote(server)
    others = tuple(each for each in _ALL if each != lost)
    if is_past:
        world.sql("SELECT pg_switch_wal()")
    # The table with the lost changes has none of its own here, and so no batch looks at it.
    world.sql(_changes(by="kept", ids="> 5", tables=others))
    batch = world.pipeline.stage()
    assert (batch.manifest.end_lsn > lost_end) == is_past
    world.pipeline.apply(batch)
    world.assert_equal(*others)
    world.sql(_changes(by="later", ids="> 15", tables=_ALL))
    world.run()
    world.assert_equal(*others)
    checkpoint = world.pipeline.checkpoint()
    assert checkpoint is not None
    (aside,) = checkpoint.set_aside.values()
    assert aside.table_name == f"public.{lost}"
    assert aside.refusal.error == "TableRefused"
    assert "In a promotion" in aside.refusal.message
    batch = world.pipeline.stage(copy_tables=(f"public.{lost}",))
    world.pipeline.apply(batch)
    world.assert_equal(*_ALL)
    messages = world.pipeline.spark.table(
        f"lake.{world.pipeline.namespace}.pgoutput_messages"
    ).collect()
    assert sorted(bytes(each["content"]).decode() for each in messages) == ["kept", "later"]
