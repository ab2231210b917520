"""F48: a server that went back to an earlier LSN is adopted, and counts as another system from then on.

The server is a copy of the data directory from before the newest batch, and is promoted: as after a failover
to a standby that lagged behind, or a recovery to a point in time. Judged by all rows of source and lake.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import psycopg
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE
from airflow_provider_pgoutput.batch.earlier_systems import EarlierSystem
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.doctor.repair import rebuild_checkpoint
from airflow_provider_pgoutput.errors import ConfigurationError, SourceChanged
from tests.capture.source.test_timelines import promote
from tests.conformance.pipeline import CATALOG
from tests.docs.blocks import blocks_of
from tests.faults.processes import apply_attached
from tests.proof.test_adopted_source import _advance, _checkpoint, _problems, _query, _system
from tests.proof.worlds import World, world_at
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quickstart.postgres import EmbeddedPostgres

_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, v text);
CREATE TABLE plain (a int, b text); ALTER TABLE plain REPLICA IDENTITY FULL;
CREATE TABLE not_published (v text);
CREATE PUBLICATION p FOR TABLE items, plain;
INSERT INTO items SELECT i, 'v' FROM generate_series(1, 200) i; INSERT INTO plain VALUES (1, 'x');
"""
_CHANGES = """
UPDATE items SET v = v || 'u' WHERE id % 50 = 0; DELETE FROM items WHERE id = (SELECT min(id) FROM items);
INSERT INTO items SELECT max(id) + 1, 'i' FROM items; INSERT INTO plain VALUES (2, 'y');
"""
_ALL = ("items", "plain")
pytestmark = pytest.mark.further


class Copies:
    """Data directories of one server, of which one is in use."""

    def __init__(self, of: EmbeddedPostgres) -> None:
        self.server = of
        found = of.data_directory.stat()
        self._owner = found.st_uid, found.st_gid

    def keep(self, name: str) -> None:
        """Copy the data directory, as a standby has it."""
        self.server.stop()
        shutil.copytree(self.server.data_directory, self._kept(name), symlinks=True)
        self.server.start()

    def use(self, name: str, *, instead_of: str) -> None:
        """Put a copy in the place of the data directory. The server is down then."""
        self.server.stop()
        used = self.server.data_directory
        used.rename(self._kept(instead_of))
        self._kept(name).rename(used)
        for each in (used, *used.rglob("*")):
            shutil.chown(each, *self._owner)

    def _kept(self, name: str) -> Path:
        return self.server.home / name


def _goes_on(world: World) -> None:
    world.sql(_CHANGES)
    batch = world.pipeline.stage()
    assert not any(each.copy_lsn for each in batch.manifest.tables)
    world.pipeline.apply(batch)
    _advance(world)
    world.assert_equal(*_ALL)


@pytest.fixture
def make_world(
    own_server: EmbeddedPostgres,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> Callable[[str], World]:
    """Make a pipeline with one batch."""

    def make(name: str) -> World:
        reader_conninfo(own_server.conninfo())
        world = world_at(own_server.conninfo(), name, tmp_path, spark, lake_catalog_properties)
        world.sql(_TABLES)
        world.run()
        _advance(world)
        return world

    return make


@pytest.mark.parametrize("is_past", [False, True])
def test_f48_a_server_that_lost_its_newest_wal_is_adopted(
    own_server: EmbeddedPostgres, make_world: Callable[[str], World], is_past: bool
) -> None:
    """The lake has changes that never happened there. The server may have written past the lake by now."""
    world, copies = make_world(f"went_back_{int(is_past)}"), Copies(own_server)
    copies.keep("standby")
    world.sql(_CHANGES + "UPDATE items SET v = 'lost' WHERE id < 9")
    world.run()
    before, system = _checkpoint(world), _system(world)
    copies.use("standby", instead_of="primary")
    promote(own_server)
    statement = blocks_of("how-to/another_system.md")[0].text
    assert _query(world, statement) == 2
    world.sql("UPDATE items SET v = 'kept' WHERE id = 150; DELETE FROM items WHERE id = 151")
    while (
        is_past and Lsn.parse(_query(world, "SELECT pg_current_wal_lsn()::text")) <= before.end_lsn
    ):
        world.sql("INSERT INTO not_published VALUES ('x'); SELECT pg_switch_wal()")
    with pytest.raises(SourceChanged, match="PgoutputAdoptSourceOperator"):
        world.pipeline.stage()
    options = {"on_slot_lost": "difference", "adopted_system": system}
    batch = world.pipeline.stage(**options)
    if is_past:
        assert apply_attached(world.pipeline, batch, "apply.between_publishes")
    # Failovers often come in pairs. The system keeps its name, although the timeline is the next one.
    promote(own_server)
    batch = world.pipeline.stage(**options)
    # The attempt before has published ``items``, so that it cannot be compared.
    copied = {"plain", "items"} if is_past else {"plain"}
    assert {each.table_name for each in batch.manifest.tables if each.copy_lsn} == copied
    (items,) = (each for each in batch.manifest.tables if each.table_name == "items")
    assert is_past or 0 < items.counts.updates < 20
    world.pipeline.apply(batch)
    at = _checkpoint(world)
    offset = "0/0" if is_past else "1/0"
    assert at.adopted_from == (EarlierSystem(system, str(before.end_lsn), offset),)
    assert (at.system_identifier, at.timeline) == (f"{system}@2", 3)
    _advance(world)
    world.assert_equal(*_ALL)
    with pytest.raises(ConfigurationError, match="is the source of the lake already"):
        world.pipeline.stage(**options)
    _goes_on(world)
    assert all(each.is_equal for each in world.verify().tables)
    assert _problems(world) == []
    _checkpoint_is_rebuilt(world)
    _goes_on(world)
    # A failover without a loss: the same system goes on.
    promote(own_server)
    _goes_on(world)
    _old_one_is_refused(world, copies)


def _checkpoint_is_rebuilt(world: World) -> None:
    """The checkpoint table is lost. With it goes what the lake adds to the LSNs of the server."""
    pipeline, at = world.pipeline, _checkpoint(world)
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    catalog.drop_table((pipeline.namespace, CHECKPOINT_TABLE))
    if at.systems.lsn_offset != NO_OFFSET:
        with pytest.raises(ConfigurationError, match="doctor --repair"):
            pipeline.stage()
    observed, _ = examine_pipeline(
        pipeline.reader,
        pipeline.slot_name,
        catalog,
        pipeline.namespace,
        StagingArea(pipeline.staging.as_uri()),
    )
    assert rebuild_checkpoint(catalog, pipeline.namespace, observed) <= at.end_lsn
    world.refresh()
    found = _checkpoint(world)
    assert (found.systems, found.timeline) == (at.systems, at.timeline)
    # Batches that the slot has passed are sealed. Each run applies one of them.
    while _checkpoint(world).end_lsn < at.end_lsn:
        world.run()


def _old_one_is_refused(world: World, copies: Copies) -> None:
    """The primary that was lost comes back with what it had."""
    copies.use("primary", instead_of="promoted")
    copies.server.start()
    world.sql(_CHANGES)
    before, system = world.pipeline.snapshot_ids(), _system(world)
    for options in ({}, {"on_slot_lost": "copy"}):
        with pytest.raises(SourceChanged):
            world.pipeline.stage(**options)
    with pytest.raises(ConfigurationError, match="was the source of the lake before"):
        world.pipeline.stage(on_slot_lost="difference", adopted_system=system)
    with pytest.raises(SourceChanged):
        world.verify()
    with pytest.raises(SourceChanged):
        _advance(world)
    assert world.pipeline.snapshot_ids() == before


def test_f48_a_server_that_went_back_on_its_timeline_is_not_adopted(
    own_server: EmbeddedPostgres, make_world: Callable[[str], World]
) -> None:
    """An old copy of the disk was put back. Nothing would tell it from the server that was."""
    world, copies = make_world("same_timeline"), Copies(own_server)
    copies.keep("backup")
    world.sql(_CHANGES)
    world.run()
    copies.use("backup", instead_of="lost")
    copies.server.start()
    with pytest.raises(SourceChanged, match="begin anew"):
        world.pipeline.stage()
    with pytest.raises(ConfigurationError, match="the server's is 1, the lake's 1"):
        world.pipeline.stage(on_slot_lost="difference", adopted_system=_system(world))
    with psycopg.connect(world.pipeline.conninfo, autocommit=True) as session:
        assert session.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (1,)
