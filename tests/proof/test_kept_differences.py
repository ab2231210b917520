"""A difference that was found stays in the report, whatever fails afterwards."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch.answers import REPAIR
from airflow_provider_pgoutput.errors import LakeDiffers
from airflow_provider_pgoutput.proof.repair import after_repair, repair
from airflow_provider_pgoutput.proof.verify import refuse_differences, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.proof.report import Proof, TableProof
    from tests.proof.worlds import World

_PLAIN = ("moved", "renamed", "gone", "archive", "once")
_TABLES = """
CREATE EXTENSION ltree SCHEMA public;
CREATE TABLE trees (path ltree PRIMARY KEY, v text);
INSERT INTO trees VALUES ('a', 'v'), ('a.b', 'v');
CREATE TABLE altered (id text PRIMARY KEY, v text);
INSERT INTO altered SELECT i, 'v' FROM generate_series(1, 9) i;
CREATE PUBLICATION p FOR TABLE moved, renamed, gone, altered, trees;
CREATE PUBLICATION a FOR TABLE archive WITH (publish = 'insert, update');
CREATE PUBLICATION o FOR TABLE once WITH (publish = 'insert');
"""


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    world = new_world(("p", "a", "o"))
    for name in _PLAIN:
        world.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        world.sql(f"INSERT INTO {name} SELECT i, 'v' FROM generate_series(1, 9) i")
    world.sql(_TABLES)
    world.run()
    return world


def _named(proof: Proof) -> dict[str, TableProof]:
    return {each.table.removeprefix("public."): each for each in proof.tables}


def test_a_table_that_cannot_be_compared_again_still_differs(world: World) -> None:
    names = ("moved", "renamed", "gone")
    world.damage(*(f"UPDATE {{}}.{name} SET v = 'damaged' WHERE id = 1" for name in names))
    request = world.request(on_difference=REPAIR, tables=[f"public.{name}" for name in names])
    proof = verify(request, world.run)
    assert all(each.to_repair is not None for each in proof.tables)

    def run() -> None:
        world.run()
        world.sql("ALTER TABLE renamed RENAME TO other; ALTER PUBLICATION p DROP TABLE gone")

    def wait(lsn: Lsn) -> None:
        world.run(lsn)
        world.sql("VACUUM FULL moved")

    found = _named(after_repair(proof, second := repair(request, proof, run=run, wait=wait)))
    assert found["other"].is_equal
    assert found["moved"].is_different
    assert found["gone"].is_different
    with pytest.raises(LakeDiffers) as raised:
        refuse_differences(request, after_repair(proof, second))
    assert (
        "it was not compared again: it has other files or other partitions than at the LSN"
        in str(raised.value)
    )
    assert "it was not compared again: no publication has it now" in str(raised.value)


def test_a_table_that_cannot_be_read_again_differs_without_counts(world: World) -> None:
    """Its digests differ. Then a column is renamed, so no range can be read.

    The key is no number. Of a number the least and the greatest would be read first, by another statement.
    """
    world.damage("UPDATE {}.altered SET v = 'damaged' WHERE id = '1'")
    with psycopg.connect(world.pipeline.conninfo) as holder:

        def wait(lsn: Lsn) -> None:
            world.run(lsn)
            holder.execute("LOCK TABLE altered IN ACCESS EXCLUSIVE MODE")
            thread.start()

        def queue() -> None:
            """Let the renaming wait behind the digest: it comes before the next statement then."""
            _await_waiting(world, 1)
            renaming.start()
            _await_waiting(world, 2)
            holder.rollback()

        renaming = threading.Thread(
            target=world.sql, args=("ALTER TABLE altered RENAME v TO w",), daemon=True
        )
        thread = threading.Thread(target=queue, daemon=True)
        request = world.request(tables=["public.altered"])
        proof = verify(request, wait)
        for each in (thread, renaming):
            each.join(60)
    (table,) = proof.tables
    assert table.is_different
    assert table.differences is None
    assert table.not_counted is not None
    assert table.not_counted.startswith("SnapshotLost: ")
    with pytest.raises(LakeDiffers, match=r"public\.altered differs .* could not be counted"):
        refuse_differences(request, proof)


def _await_waiting(world: World, count: int) -> None:
    """Until so many sessions wait for the lock of the table."""
    end = time.monotonic() + 60
    with psycopg.connect(world.pipeline.conninfo, autocommit=True) as session:
        while time.monotonic() < end:
            row = session.execute(
                "SELECT count(*) FROM pg_locks WHERE relation = 'altered'::regclass AND NOT granted"
            ).fetchone()
            if row == (count,):
                return
            time.sleep(0.02)
    raise TimeoutError(f"{count} sessions do not wait for the lock.")


def test_a_table_whose_keys_cannot_be_looked_for_differs(world: World) -> None:
    """The equality of its key is an operator outside of pg_catalog, where statements do not look."""
    world.damage("INSERT INTO {}.trees VALUES ('a.c', 'v')")
    request = world.request(on_difference=REPAIR, tables=["public.trees"])
    proof = verify(request, world.run)
    (table,) = proof.tables
    assert table.differences is not None
    assert table.differences.surplus == 1
    assert table.to_repair is None
    assert repair(request, proof) is None
    with pytest.raises(LakeDiffers, match=r"it is not repaired: .*operator does not exist"):
        refuse_differences(request, after_repair(proof, None))


def test_what_publications_leave_out_is_not_repaired(world: World) -> None:
    """An archive keeps what was deleted at the source."""
    world.sql("DELETE FROM archive WHERE id = 3; UPDATE once SET v = 'changed' WHERE id = 1")
    world.run()
    world.damage(
        "UPDATE {}.archive SET v = 'damaged' WHERE id = 1",
        "DELETE FROM {}.archive WHERE id = 2",
        "DELETE FROM {}.once WHERE id = 2",
    )
    request = world.request(on_difference=REPAIR, tables=["public.archive", "public.once"])
    proof = verify(request, world.run)
    keys = {
        name: sorted(each.to_repair.keys)
        for name, each in _named(proof).items()
        if each.to_repair is not None
    }
    assert keys == {"archive": [("1",), ("2",)], "once": [("2",)]}
    found = after_repair(proof, repair(request, proof, run=world.run, wait=world.run))
    of_archive, of_once = (_named(found)[name] for name in ("archive", "once"))
    assert of_archive.differences is not None
    assert of_once.differences is not None
    counts = [
        (each.missing, each.surplus, each.different)
        for each in (of_archive.differences, of_once.differences)
    ]
    assert counts == [(0, 1, 0), (0, 0, 1)]
    with pytest.raises(LakeDiffers) as raised:
        refuse_differences(request, found)
    said = "rows stay as they are, because its publications send no"
    assert f"its surplus {said} deletes or truncates" in str(raised.value)
    assert f"its different {said} updates" in str(raised.value)
    world.refresh()
    rows = {
        name: world.pipeline.spark.sql(
            f"SELECT id, v FROM lake.{world.pipeline.namespace}.{name} ORDER BY id"
        ).collect()
        for name in ("archive", "once")
    }
    whole = [(i, "v") for i in range(1, 10)]
    assert {name: [tuple(row) for row in found] for name, found in rows.items()} == dict.fromkeys(
        rows, whole
    )
