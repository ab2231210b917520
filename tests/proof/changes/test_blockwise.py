"""A verification that carries over what did not change, beside a real pipeline.

That sums are right shows in this: a table whose sums differ is read in whole, and then nothing is carried.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch.answers import SUCCEED
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.proof.record import CHANGES, TOTALS, row_of
from airflow_provider_pgoutput.proof.request import AUTO
from airflow_provider_pgoutput.proof.verify import verify
from tests.proof.changes.summaries import summarized, verified

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from quickstart.postgres import EmbeddedPostgres
    from tests.proof.worlds import World

#: A block has some twenty rows, so that tables with few rows have many blocks.
_TABLES = """
CREATE TABLE numbered (id int PRIMARY KEY, v text) WITH (fillfactor = 10, autovacuum_enabled = off);
CREATE TABLE named (name text PRIMARY KEY, v text) WITH (fillfactor = 10, autovacuum_enabled = off);
CREATE TABLE keyless (a int, b text) WITH (fillfactor = 10, autovacuum_enabled = off);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE parts (id int, at int, v text, PRIMARY KEY (id, at)) PARTITION BY LIST (at);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1) WITH (fillfactor = 10, autovacuum_enabled = off);
CREATE TABLE parts_2 PARTITION OF parts DEFAULT WITH (fillfactor = 10, autovacuum_enabled = off);
CREATE TABLE small (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE numbered, named, keyless, parts, small WITH (publish_via_partition_root);
INSERT INTO numbered SELECT i, 'value ' || i FROM generate_series(1, 25000) i;
INSERT INTO named SELECT 'name ' || i, 'value ' || i FROM generate_series(1, 25000) i;
INSERT INTO keyless SELECT i % 9999, 'value' FROM generate_series(1, 25000) i;
INSERT INTO parts SELECT i, 1 + i % 5 / 4, 'value ' || i FROM generate_series(1, 35000) i;
"""
_BIG = ("keyless", "named", "numbered", "parts")
#: Of each kind: values, keys, rows that go and rows that come, and the end of a table that is cut off.
_CHANGES = """
UPDATE numbered SET v = 'changed' WHERE id BETWEEN 100 AND 140;
UPDATE numbered SET id = -id WHERE id = 20000;
DELETE FROM numbered WHERE id = 7;
INSERT INTO numbered SELECT i, 'new' FROM generate_series(30000, 33000) i;
DELETE FROM named WHERE ctid >= '(1100,0)';
VACUUM named;
INSERT INTO named VALUES ('new', NULL);
UPDATE keyless SET b = 'changed' WHERE a = 5;
DELETE FROM keyless WHERE a = 8000;
UPDATE parts SET at = 2 WHERE id IN (1, 2);
UPDATE parts SET v = NULL WHERE id = 30000;
"""


@pytest.fixture(scope="module")
def world(postgres_server: EmbeddedPostgres, new_world: Callable[..., World]) -> Iterator[World]:
    with summarized(postgres_server):
        made = new_world(("p",))
        made.sql(_TABLES)
        made.run()
        yield made


@pytest.mark.slow
def test_what_did_not_change_is_carried_over(world: World) -> None:
    first = verified(world)
    assert all(each.is_equal for each in first.values())
    assert first["small"].carried is None
    for name in _BIG:
        carried = first[name].carried
        assert carried is not None
        assert carried.why_all == "nothing is kept of an earlier verification"
        assert row_of(first[name])["method"] == TOTALS
    for statement in filter(None, map(str.strip, _CHANGES.split(";"))):
        world.sql(statement)
    for each in verified(world).values():
        assert each.is_equal, each
    # A summary reaches from one checkpoint to the next. So what changed shortly before a verification is read
    # by the one after it, too.
    verified(world)
    again = verified(world)
    for name in _BIG:
        carried = again[name].carried
        assert carried is not None, name
        # Hint bits may be new.
        assert carried.why_all is None, (name, carried)
        assert carried.ranges_read < carried.of_ranges / 2, (name, carried)
        assert carried.files_read == 0, (name, carried)
        assert row_of(again[name])["method"] == CHANGES


def test_a_table_that_is_rewritten_is_read_in_whole(world: World) -> None:
    """REPACK of version 19 gives a table new files, too. Nothing of the old files is carried over."""
    verified(world)
    world.sql("UPDATE named SET v = 'before' WHERE name = 'name 10'")
    world.sql("CLUSTER named USING named_pkey")
    world.damage("UPDATE {}.named SET v = 'damaged' WHERE name = 'name 11'")
    different = verified(world)["named"].differences
    assert different is not None
    assert (different.missing, different.surplus, different.different) == (0, 0, 1)
    world.damage("UPDATE {}.named SET v = 'value 11' WHERE name = 'name 11'")
    assert verified(world)["named"].is_equal

    def run(lsn: Lsn) -> None:
        world.run(lsn)
        world.sql("VACUUM FULL named")

    # Between the snapshot and the reading.
    proof = verify(world.request(method=AUTO, on_difference=SUCCEED), run)
    (meanwhile,) = (each for each in proof.tables if each.table == "public.named")
    assert "has other files" in str(meanwhile.not_compared)
    after = verified(world)["named"]
    assert after.is_equal
    assert after.carried is not None
    assert after.carried.ranges_read == after.carried.of_ranges
    later = verified(world)["named"].carried
    assert later is not None
    assert later.why_all is None


@pytest.mark.slow
def test_wrong_kept_digests_cost_one_whole_reading(world: World) -> None:
    verified(world)
    (path,) = (
        each
        for each in world.pipeline.staging.rglob("proofs/*.json")
        if _is_of(world, each, "numbered")
    )
    kept = json.loads(path.read_text())
    for each in kept["ranges"]:
        each[1] += 1
    path.write_text(json.dumps(kept))
    wrong = verified(world)["numbered"]
    assert wrong.is_equal
    assert wrong.carried is None
    assert not path.exists()
    again = verified(world)["numbered"].carried
    assert again is not None
    assert again.ranges_read == again.of_ranges
    later = verified(world)["numbered"].carried
    assert later is not None
    assert later.ranges_read < later.of_ranges


def _is_of(world: World, path: Path, table: str) -> bool:
    with psycopg.connect(world.pipeline.conninfo) as session:
        found = session.execute("SELECT %s::regclass::oid", (table,)).fetchone()
    assert found is not None
    return path.stem == str(found[0])


@pytest.mark.slow
def test_changes_are_read_and_differences_found(world: World) -> None:
    verified(world)
    world.sql("UPDATE numbered SET v = 'once more' WHERE id BETWEEN 200 AND 240")
    found = verified(world)["numbered"]
    assert found.is_equal
    assert found.carried is not None
    assert 0 < found.carried.ranges_read < found.carried.of_ranges
    assert found.carried.files_read > 0
    # The pipeline does not get these changes, so only the source has them.
    world.sql("ALTER PUBLICATION p SET (publish = 'insert')")
    world.sql("UPDATE numbered SET v = 'unseen' WHERE id = 300")
    world.sql("DELETE FROM keyless WHERE a = 17")
    world.sql("ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')")
    world.damage("DELETE FROM {}.named WHERE name = 'name 77'")
    different = verified(world, keys_shown=5)
    numbers = {
        name: (each.differences.missing, each.differences.surplus, each.differences.different)
        for name, each in different.items()
        if each.differences is not None
    }
    assert numbers == {"numbered": (0, 0, 1), "keyless": (0, 3, 0), "named": (1, 0, 0)}
    assert different["parts"].is_equal
    # What differs is carried over no more than what is equal: it is found each time.
    assert {name for name, each in verified(world).items() if each.is_different} == set(numbers)


@pytest.mark.slow
def test_all_is_read_where_digests_cannot_be_carried_over(
    world: World, postgres_server: EmbeddedPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    verified(world)
    full = verified(world, full_every=1)["parts"].carried
    assert full is not None
    assert full.why_all == "it was the turn of a full verification"
    assert (full.ranges_read, full.files_read) == (full.of_ranges, full.of_files)
    world.sql("VACUUM FULL parts_2")
    rewritten = verified(world)["parts"].carried
    assert rewritten is not None
    assert rewritten.why_all == "the table, its lake table, PostgreSQL or this package changed"
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM SET summarize_wal = off")
        session.execute("SELECT pg_reload_conf()")
    none = verified(world)["parts"]
    assert none.is_equal
    assert none.carried is None
    assert "reads whole tables: summarize_wal is off" in caplog.text


def test_a_part_cannot_be_carried_over(world: World) -> None:
    with pytest.raises(ConfigurationError, match="compares whole tables"):
        world.request(method=AUTO, share=0.5)
    with pytest.raises(ConfigurationError, match="Unknown method 'some'"):
        world.request(method="some")
