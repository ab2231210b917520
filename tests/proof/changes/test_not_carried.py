"""Differences that no changed block and no new file shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyiceberg.catalog import load_catalog

from tests.conformance.pipeline import CATALOG
from tests.proof.changes.summaries import summarized, verified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quickstart.postgres import EmbeddedPostgres
    from tests.proof.worlds import World

_TABLES = """
CREATE TABLE other (id int);
CREATE TABLE naming (id int PRIMARY KEY, r regclass) WITH (fillfactor = 10, autovacuum_enabled = off);
CREATE TABLE plain (id int PRIMARY KEY, v text) WITH (fillfactor = 10, autovacuum_enabled = off);
CREATE PUBLICATION p FOR TABLE naming, plain;
INSERT INTO naming SELECT i, 'public.other' FROM generate_series(1, 35000) i;
INSERT INTO plain SELECT i, 'value ' || i FROM generate_series(1, 25000) i;
"""


@pytest.fixture
def world(postgres_server: EmbeddedPostgres, new_world: Callable[..., World]) -> Iterator[World]:
    with summarized(postgres_server):
        made = new_world(("p",))
        made.sql(_TABLES)
        made.run()
        yield made


def test_what_no_block_and_no_file_shows_is_found(
    world: World, postgres_server: EmbeddedPostgres
) -> None:
    # A copy of the database has the same OIDs and file nodes.
    copy = f"{world.pipeline.slot_name}_copy"
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute(
            f"CREATE DATABASE {copy} TEMPLATE {world.pipeline.slot_name} STRATEGY file_copy"
        )
    try:
        with psycopg.connect(postgres_server.conninfo(copy), autocommit=True) as session:
            session.execute("UPDATE plain SET v = 'only in the copy' WHERE id = 77")
            session.execute("CHECKPOINT")
        verified(world)
        again = verified(world)
        assert all(each.is_equal for each in again.values())
        assert again["plain"].carried is not None
        assert again["plain"].carried.why_all is None
        # The text of a regclass changes with the name of the table.
        assert again["naming"].carried is None
        world.sql("ALTER TABLE other RENAME TO another")
        assert verified(world)["naming"].is_different
        of_copy = make_conninfo(world.pipeline.reader, dbname=copy)
        found = verified(world, conninfo=of_copy)["plain"].differences
        assert found is not None
        assert found.different == 1
    finally:
        with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
            session.execute(f"DROP DATABASE {copy} WITH (FORCE)")
    # A file of which the digest is known is added a second time.
    assert verified(world)["plain"].is_equal
    catalog = load_catalog(CATALOG, **world.pipeline.catalog_properties)
    table = catalog.load_table((world.pipeline.namespace, "plain"))
    (task,) = table.scan().plan_files()
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(task.file)
    twice = verified(world)["plain"].differences
    assert twice is not None
    assert twice.surplus == 25_000


def test_a_file_that_is_carried_over_has_to_be_there_with_its_length(world: World) -> None:
    world.sql("UPDATE naming SET r = 'plain' WHERE id < 9; DELETE FROM plain WHERE id = 3")
    world.run()
    verified(world)
    assert verified(world)["plain"].carried is not None
    catalog = load_catalog(CATALOG, **world.pipeline.catalog_properties)
    table = catalog.load_table((world.pipeline.namespace, "plain"))
    for task in table.scan().plan_files():
        for each in (task.file, *task.delete_files):
            path = Path(urlsplit(each.file_path).path)
            content = path.read_bytes()
            path.write_bytes(content[:-1])
            cut = verified(world)["plain"]
            path.unlink()
            gone = verified(world)["plain"]
            path.write_bytes(content)
            assert cut.is_damaged
            assert f"The file {path.name} of the table has " in str(cut)
            assert gone.is_damaged
            assert f"The file {path.name} of the table is missing" in str(gone)
    whole = verified(world)["plain"]
    assert whole.is_equal
    assert whole.carried is not None
    assert whole.carried.files_read == 0
