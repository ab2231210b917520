"""Rows that differ are read again by the pipeline, and the lake is equal afterwards."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.answers import REPAIR
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.repairs import (
    KeysOfTable,
    RepairRequest,
    leave_request,
    waiting_requests,
)
from airflow_provider_pgoutput.crash_points import watched
from airflow_provider_pgoutput.errors import LakeDiffers, LakeUnavailable
from airflow_provider_pgoutput.proof.repair import after_repair, repair
from airflow_provider_pgoutput.proof.verify import refuse_differences, verify
from tests.faults.processes import stage_in_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.proof.report import Proof, TableProof
    from tests.proof.worlds import World

_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2), weight float8, born timestamptz,
    tags text[], doc jsonb);
CREATE TABLE odd (id int PRIMARY KEY, price numeric(10,2), weight float8, born timestamptz, tags text[]);
CREATE TABLE whole (id bigint PRIMARY KEY, v text, big text); ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE filtered (id int PRIMARY KEY, shown text, hidden text);
CREATE TABLE parts (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2024-01-01') TO ('2024-07-01');
CREATE TABLE parts_2 PARTITION OF parts DEFAULT;
CREATE TABLE keys (a numeric(10,2), b timestamptz, c char(5), d boolean, e date, f uuid, g float8, h bytea,
    i text, v text, PRIMARY KEY (a, b, c, d, e, f, g, h, i));
CREATE TABLE "Odd ""na%me" ("sel%ect" text PRIMARY KEY, "a.b" text);
CREATE TABLE chosen (id int NOT NULL, v text);
ALTER TABLE chosen REPLICA IDENTITY FULL;
CREATE TABLE keyless (a int, b text); ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE lists (k int[] PRIMARY KEY, v text);
CREATE TABLE history (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR TABLE items, odd, whole, filtered (id, shown) WHERE (id > 3), parts, keys,
    "Odd ""na%me", chosen, keyless, lists, history WITH (publish_via_partition_root);
CREATE PUBLICATION q FOR TABLE filtered (id, shown) WHERE (id = 2) WITH (publish_via_partition_root);
INSERT INTO items SELECT i, 'name ' || i, i * 1.25, i / 8.0, '2024-01-01Z'::timestamptz + i * interval '1 h',
    ARRAY['a', NULL, i::text], jsonb_build_object('i', i) FROM generate_series(1, 500) i;
INSERT INTO odd VALUES (1, 'NaN', '-0', 'infinity', '{{a},{b}}'), (2, 1, 0, '2024-01-01Z', '{}');
INSERT INTO whole SELECT i, 'v', repeat(md5(i::text), 200) FROM generate_series(1, 50) i;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
INSERT INTO filtered SELECT i, 'v' || i, 'h' FROM generate_series(1, 9) i;
INSERT INTO parts SELECT i, '2024-01-01'::date + i, 'v' FROM generate_series(1, 400) i;
INSERT INTO keys SELECT i / 4.0, '2024-01-01Z'::timestamptz + i * interval '1 us', 'c' || i, i % 2 = 0,
    '2024-01-01'::date + i, md5(i::text)::uuid, i / 8.0, decode(md5(i::text), 'hex'), 'i' || i, 'v'
    FROM generate_series(1, 20) i;
INSERT INTO "Odd ""na%me" VALUES ('{', 'x'), ('%s''', NULL), ('"', 'y');
INSERT INTO chosen SELECT i, 'v' FROM generate_series(1, 9) i;
INSERT INTO keyless VALUES (1, 'x'), (2, 'y');
INSERT INTO lists VALUES ('{1,2}', 'x'), ('{3}', 'y');
INSERT INTO history VALUES (1, 'v');
"""
#: What damages the lake, as SQL of Spark.
_DAMAGE = (
    "UPDATE {}.items SET name = 'other' WHERE id = 7",
    "UPDATE {}.items SET born = born + INTERVAL 1 MICROSECOND WHERE id = 20",
    "UPDATE {}.odd SET weight = 0.0D WHERE id = 1",
    "UPDATE {}.odd SET tags = array(NULL) WHERE id = 2",
    "DELETE FROM {}.items WHERE id IN (11, 12)",
    "INSERT INTO {0}.items SELECT * FROM {0}.items WHERE id = 13",
    "INSERT INTO {0}.items SELECT 5000, name, price, weight, born, tags, doc FROM {0}.items WHERE id = 14",
    "DELETE FROM {}.whole WHERE id = 3",
    "UPDATE {}.whole SET big = NULL WHERE id = 4",
    "INSERT INTO {}.whole VALUES (77, 'v', 'big')",
    "UPDATE {}.filtered SET shown = 'other' WHERE id = 2",
    "INSERT INTO {}.filtered VALUES (1, 'v1')",
    "DELETE FROM {}.filtered WHERE id = 9",
    "UPDATE {}.parts SET v = 'other' WHERE id IN (5, 300)",
    "INSERT INTO {0}.parts SELECT id + 1000, at, v FROM {0}.parts WHERE id = 300",
    "UPDATE {}.keys SET v = 'other' WHERE a = 0.25",
    "DELETE FROM {}.keys WHERE a = 0.5",
    "INSERT INTO {0}.keys SELECT a + 100, b, c, d, e, f, g, h, i, v FROM {0}.keys WHERE a = 0.75",
    "INSERT INTO {0}.keys SELECT a, b, c, NOT d, e, f, g, h, i, v FROM {0}.keys WHERE a = 1",
    "UPDATE {}.`Odd \"na%me` SET `a.b` = 'other'",
    "INSERT INTO {}.`Odd \"na%me` VALUES ('surplus''', 'z')",
    "UPDATE {}.chosen SET v = 'other' WHERE id = 2",
    "INSERT INTO {}.chosen VALUES (99, 'z')",
)
_IRREPARABLE = (
    "INSERT INTO {}.keyless VALUES (2, 'y')",
    "INSERT INTO {}.lists VALUES (array(9), 'z')",
)
_REPAIRED = ("items", "odd", "whole", "filtered", "parts", "keys", 'Odd "na%me', "chosen")


def _named(proof: Proof) -> dict[str, TableProof]:
    return {each.table.removeprefix("public."): each for each in proof.tables}


def _damage(world: World, *statements: str) -> None:
    world.damage(*statements)


def _repaired(world: World, *tables: str, **more: Any) -> Proof:
    """Verify and repair while the pipeline runs; what the second verification found."""
    names = tuple(f"public.{each}" for each in tables)
    request = world.request(on_difference=REPAIR, tables=names, **more)
    proof = verify(request, world.run)
    second = repair(request, proof, run=world.run, wait=world.run)
    assert second is not None
    return second


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    world = new_world(("p", "q"), table_options={"public.history": TableOptions(mode="change_log")})
    world.pipeline.capture_options["key_columns"] = {"public.chosen": ["id"]}
    world.sql(_TABLES)
    world.run()
    world.sql(
        "UPDATE items SET price = price + 0.01 WHERE id % 100 = 50; DELETE FROM parts WHERE id = 9"
    )
    world.run()
    return world


def test_each_damaged_row_is_repaired_and_proven(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    _damage(world, *_DAMAGE, *_IRREPARABLE)
    request = world.request(on_difference=REPAIR)
    with caplog.at_level(logging.INFO):
        proof = verify(request, world.run)
        found = _named(proof)
        assert {name for name, each in found.items() if each.to_repair} == set(_REPAIRED)
        assert found["keyless"].not_repaired == "it has no key"
        assert found["lists"].not_repaired == "A column of the key is list<int> in the lake."
        assert found["history"].is_equal, "a change log: its current rows"
        batches = []

        def run() -> None:
            batches.append(world.pipeline.stage())
            world.pipeline.apply(batches[-1])

        second = repair(request, proof, run=run, wait=world.run)
    assert second is not None
    assert not [str(each) for each in second.tables if not each.is_equal]
    assert {each.table for each in second.tables} == {f"public.{name}" for name in _REPAIRED}
    counts = {each.table_name: each.counts for each in batches[0].manifest.tables}
    assert (counts["items"].updates, counts["items"].deletes) == (5, 1)
    assert (counts["keys"].updates, counts["keys"].deletes) == (2, 2)
    for name in ("items", "whole", "parts", "keys", "chosen"):
        world.assert_equal(name)
    with pytest.raises(LakeDiffers, match="it is not repaired: it has no key") as raised:
        refuse_differences(request, after_repair(proof, second))
    assert "public.items" not in str(raised.value)
    for text in ("name 7", "surplus'"):
        assert text not in caplog.text + repr(proof) + str(proof), "no value and no key is told"
    world.sql(
        "UPDATE items SET name = 'later' WHERE id IN (7, 12); DELETE FROM whole WHERE id IN (3, 4);"
        "UPDATE whole SET v = 'later' WHERE id = 5; UPDATE chosen SET v = 'later'"
    )
    world.run()
    assert all(
        each.is_equal for each in world.verify(tables=["public.items", "public.whole"]).tables
    )


def test_what_commits_later_wins(world: World) -> None:
    """Here between the verification and the repair, and after it, for keys that are repaired."""
    _damage(
        world,
        "UPDATE {}.items SET name = 'damaged' WHERE id BETWEEN 100 AND 110",
        "DELETE FROM {}.items WHERE id BETWEEN 111 AND 120",
        "INSERT INTO {0}.items SELECT id + 6000, name, price, weight, born, tags, doc FROM {0}.items"
        " WHERE id BETWEEN 121 AND 130",
        "UPDATE {}.whole SET v = 'damaged' WHERE id BETWEEN 10 AND 20",
    )
    changes = """
        UPDATE items SET name = '{0}' WHERE id IN (100, 111);
        DELETE FROM items WHERE id IN (101, 112);
        UPDATE items SET id = id + 7000 WHERE id IN (102, 113);
        INSERT INTO items (id, name) VALUES ({1}, '{0}'), ({1} + 10000, 'new');
        UPDATE whole SET v = '{0}' WHERE id = 10;
        UPDATE whole SET id = id + 1000 WHERE id = {2};
        DELETE FROM whole WHERE id = {2} + 1;
    """
    request = world.request(on_difference=REPAIR, tables=["public.items", "public.whole"])

    def wait(lsn: Lsn) -> None:
        world.run(lsn)
        world.sql(changes.format("before the repair", 6121, 12))

    proof = verify(request, wait)

    def run() -> None:
        world.run()
        world.sql(
            changes.format("after the repair", 6122, 14)
            .replace("(100, 111)", "(100, 103, 115)")
            .replace("(101, 112)", "(104, 116)")
            .replace("(102, 113)", "(105, 117)")
        )

    second = repair(request, proof, run=run, wait=world.run)
    assert second is not None
    assert not [str(each) for each in second.tables if not each.is_equal]
    for name in ("items", "whole"):
        world.assert_equal(name)


def test_a_request_that_nobody_takes_up_is_taken_away(world: World) -> None:
    _damage(world, "DELETE FROM {}.items WHERE id = 200")
    request = world.request(on_difference=REPAIR, tables=["public.items"], wait_seconds=1)
    proof = verify(request, world.run)
    with pytest.raises(LakeUnavailable, match="no run of the pipeline took it up"):
        repair(request, proof)
    assert not waiting_requests(_area(world), world.pipeline.slot_name)
    assert _repaired(world, "items").tables[0].is_equal


def test_a_repair_asked_for_twice_is_done_twice(world: World) -> None:
    _damage(world, "DELETE FROM {}.items WHERE id IN (201, 202)")
    request = world.request(on_difference=REPAIR, tables=["public.items"])
    (table,) = verify(request, world.run).tables
    assert table.to_repair is not None
    requests = [_request(world, table.to_repair) for _ in range(2)]
    world.run()
    assert not any(each.is_waiting() for each in requests)
    _request(world, table.to_repair)
    world.sql("UPDATE items SET name = 'changed' WHERE id = 201")
    world.run()
    assert world.verify(tables=["public.items"]).tables[0].is_equal
    world.assert_equal("items")


@pytest.mark.parametrize(
    "point",
    [
        "stage.after_repair_read",
        pytest.param("stage.after_repair_snapshot", marks=pytest.mark.exhaustive),
        pytest.param("stage.after_files", marks=pytest.mark.exhaustive),
        "stage.before_repair_removed",
    ],
)
def test_a_killed_repair_is_repeated(world: World, point: str) -> None:
    _damage(world, "UPDATE {}.items SET name = 'damaged' WHERE id IN (210, 211)")
    request = world.request(on_difference=REPAIR, tables=["public.items"])
    (table,) = verify(request, world.run).tables
    assert table.to_repair is not None
    left = _request(world, table.to_repair)
    assert stage_in_process(world.pipeline, point), f"no task reaches {point}"
    world.sql("UPDATE items SET name = 'later' WHERE id = 210")
    for _ in range(2):
        world.run()
    assert not left.is_waiting()
    assert world.verify(tables=["public.items"]).tables[0].is_equal


def test_a_marked_batch_leaves_the_repair_to_the_next(world: World) -> None:
    _damage(world, "DELETE FROM {}.items WHERE id = 220")
    request = world.request(on_difference=REPAIR, tables=["public.items"])
    (table,) = verify(request, world.run).tables
    assert table.to_repair is not None
    left: list[RepairRequest] = []

    def wait(lsn: Lsn) -> None:
        assert table.to_repair is not None
        left.append(_request(world, table.to_repair))
        world.run(lsn)

    found = verify(world.request(tables=["public.items"]), wait)
    assert found.tables[0].differences is not None, (
        "the batch ended at the mark, without the repair"
    )
    assert left[0].is_waiting()
    world.run()
    assert world.verify(tables=["public.items"]).tables[0].is_equal


def test_a_batch_that_a_limit_ends_leaves_the_repair_to_a_later_one(world: World) -> None:
    _damage(world, "DELETE FROM {}.items WHERE id = 230")
    left = _request(world, KeysOfTable(_oid(world, "items"), "public.items", ("id",), (("230",),)))
    world.sql("UPDATE odd SET price = 7 WHERE id = 2")
    world.sql("UPDATE odd SET price = 8 WHERE id = 2")
    batch = world.pipeline.stage(max_changes=1)
    assert [each.table_name for each in batch.manifest.tables] == ["odd"]
    assert left.is_waiting()
    world.pipeline.apply(batch)
    world.run()
    assert not left.is_waiting()
    assert world.verify(tables=["public.items", "public.odd"]).different == ()


def test_a_request_that_fits_no_more_stops_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    items, parts = _oid(world, "items"), _oid(world, "parts")
    wrong = (
        KeysOfTable(items, "public.items", ("name",), (("name 1",),)),
        KeysOfTable(7, "public.gone", ("id",), (("1",),)),
        KeysOfTable(parts, "public.parts", ("id", "at"), (("x", "y"),)),
    )
    _request(world, *wrong)
    good = KeysOfTable(items, "public.items", ("id",), (("1",), ("99999",)))
    leave_request(_area(world), world.pipeline.slot_name, "1", [good], 60)
    folder = layout.repair_folder(world.pipeline.slot_name)
    _area(world).write_whole(f"{folder}/9999999999-{'0' * 16}.json", b"[]")
    world.sql("UPDATE items SET name = 'changed' WHERE id = 1")
    world.run()
    assert "its key has other columns" in caplog.text
    assert "public.gone is not repaired: it is not published" in caplog.text
    assert "public.parts is not repaired" in caplog.text
    assert "of another system" in caplog.text
    assert "is no request for a repair" in caplog.text
    _area(world).delete_file(f"{folder}/9999999999-{'0' * 16}.json")
    assert _area(world).names(folder) == []
    assert world.verify(tables=["public.items", "public.parts"]).different == ()


def test_a_table_that_is_rewritten_meanwhile_is_left_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot from before VACUUM FULL sees no row: each key would look deleted."""
    _damage(world, "UPDATE {}.parts SET v = 'damaged' WHERE id = 50")
    request = world.request(on_difference=REPAIR, tables=["public.parts"])
    (table,) = verify(request, world.run).tables
    assert table.to_repair is not None
    _request(world, table.to_repair)

    def rewrite(point: str) -> None:
        if point == "stage.after_repair_snapshot":
            world.sql("VACUUM FULL parts_1")

    with watched(rewrite):
        world.run()
    assert "public.parts is not repaired: it was altered, or its rows were moved" in caplog.text
    (table,) = world.verify(tables=["public.parts"]).tables
    assert table.differences is not None
    assert (table.differences.missing, table.differences.different) == (0, 1)
    assert _repaired(world, "parts").tables[0].is_equal


def test_rows_that_are_marked_as_deleted_and_columns_of_users_stay(
    new_world: Callable[..., World],
) -> None:
    world = new_world(("s",), soft_delete=True)
    world.sql(
        "CREATE TABLE soft (id int PRIMARY KEY, v text); CREATE PUBLICATION s FOR TABLE soft;"
        "INSERT INTO soft SELECT i, 'v' FROM generate_series(1, 9) i"
    )
    world.run()
    world.sql("DELETE FROM soft WHERE id = 1")
    world.run()
    _damage(
        world,
        "ALTER TABLE {}.soft ADD COLUMN note string",
        "UPDATE {}.soft SET note = CONCAT('n', id)",
        "UPDATE {}.soft SET _pgoutput_op = 'D' WHERE id = 2",
        "UPDATE {}.soft SET v = 'damaged' WHERE id = 3",
        "DELETE FROM {}.soft WHERE id = 4",
        "UPDATE {}.soft SET _pgoutput_op = 'I' WHERE id = 1",
    )
    assert _repaired(world, "soft").tables[0].is_equal
    world.refresh()
    rows = world.pipeline.spark.sql(
        f"SELECT id, v, note, _pgoutput_op FROM lake.{world.pipeline.namespace}.soft ORDER BY id"
    ).collect()
    found = {row["id"]: (row["v"], row["note"], row["_pgoutput_op"]) for row in rows}
    assert found[1] == ("v", "n1", "D")
    assert found[2] == ("v", "n2", "U")
    assert found[3] == ("v", "n3", "U")
    assert found[4] == ("v", None, "U")
    assert len(rows) == 9


def _area(world: World) -> StagingArea:
    return StagingArea(world.pipeline.staging.as_uri())


def _request(world: World, *tables: KeysOfTable) -> RepairRequest:
    checkpoint = world.pipeline.checkpoint()
    assert checkpoint is not None
    system = checkpoint.system_identifier
    return leave_request(_area(world), world.pipeline.slot_name, system, tables, 600)


def _oid(world: World, table: str) -> int:
    with psycopg.connect(world.pipeline.conninfo) as session:
        row = session.execute("SELECT %s::regclass::oid::int8", (table,)).fetchone()
    assert row is not None
    return int(row[0])
