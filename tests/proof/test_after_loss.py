"""on_slot_lost="difference": after a loss only rows that differ are staged, and the lake is equal."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.answers import FAIL, SET_ASIDE
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.crash_points import watched
from airflow_provider_pgoutput.errors import BatchRefused, TableRefused
from tests.capture.test_masks import SECRET, hashed
from tests.faults.processes import apply_attached, stage_in_process, stopped_attached

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.manifest import Table
    from tests.conformance.pipeline import Batch
    from tests.proof.worlds import World

#: What a driver says of a table whose publishing is refused.
_FENCED = "Main moved since the branch was made. "
DIFFERENCE: dict[str, Any] = {"on_slot_lost": "difference"}
_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2), born timestamptz, tags text[]);
CREATE TABLE same (id int PRIMARY KEY, v text);
CREATE TABLE emptied (id bigint PRIMARY KEY, v text);
CREATE TABLE whole (id text PRIMARY KEY, v text, big text); ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
CREATE TABLE filtered (id int PRIMARY KEY, shown text, hidden text);
CREATE TABLE parts (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2024-01-01') TO ('2024-07-01');
CREATE TABLE parts_2 PARTITION OF parts DEFAULT;
CREATE TABLE "Odd ""na%me" ("sel%ect" text PRIMARY KEY, "a.b" text);
CREATE TABLE aside (id int PRIMARY KEY, d numeric(5,2));
CREATE TABLE keyless (a int, b text); ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE history (id int PRIMARY KEY, v text);
CREATE TABLE wider (id int PRIMARY KEY, v text);
CREATE TABLE renamed (id int PRIMARY KEY, v text);
CREATE TABLE rekeyed (id int PRIMARY KEY, k int NOT NULL UNIQUE, v text);
CREATE TABLE retyped (id int PRIMARY KEY, v int);
CREATE TABLE inserted (id int PRIMARY KEY, v text);
CREATE TABLE fresh (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR TABLE items, same, emptied, whole, filtered (id, shown) WHERE (id > 3), parts,
    "Odd ""na%me", aside, keyless, history, wider, renamed, rekeyed, retyped
    WITH (publish_via_partition_root);
CREATE PUBLICATION q FOR TABLE inserted WITH (publish = 'insert');
INSERT INTO items SELECT i, 'name ' || i, i * 1.25, '2024-01-01Z'::timestamptz + i * interval '1 h',
    ARRAY['a', NULL, i::text] FROM generate_series(1, 500) i;
INSERT INTO same SELECT i, 'v' FROM generate_series(1, 100) i;
INSERT INTO emptied SELECT i, 'v' FROM generate_series(1, 100) i;
INSERT INTO whole SELECT i, 'v', repeat(md5(i::text), 200) FROM generate_series(1, 50) i;
INSERT INTO filtered SELECT i, 'v' || i, 'h' FROM generate_series(1, 9) i;
INSERT INTO parts SELECT i, '2024-01-01'::date + i, 'v' FROM generate_series(1, 400) i;
INSERT INTO "Odd ""na%me" VALUES ('{', 'x'), ('%s''', NULL), ('"', 'y');
INSERT INTO aside VALUES (1, 1);
INSERT INTO keyless VALUES (1, 'x'), (2, 'y');
INSERT INTO history VALUES (1, 'v'), (2, 'v');
INSERT INTO wider VALUES (1, 'v'); INSERT INTO renamed VALUES (1, 'v');
INSERT INTO rekeyed VALUES (1, 1, 'v');
INSERT INTO retyped VALUES (1, 1); INSERT INTO inserted VALUES (1, 'v'), (2, 'v');
"""
#: What the slot would have sent.
_LOST = """
INSERT INTO items SELECT i, 'new', i, now(), '{}' FROM generate_series(501, 510) i;
UPDATE items SET name = 'changed', price = price + 0.01 WHERE id % 100 = 50;
UPDATE items SET id = id + 1000 WHERE id IN (1, 2);
DELETE FROM items WHERE id IN (3, 4, 5);
TRUNCATE emptied; INSERT INTO emptied VALUES (1, 'v'), (7, 'other'), (500, 'new');
DELETE FROM whole WHERE id = '3'; UPDATE whole SET v = 'changed' WHERE id = '4';
UPDATE filtered SET shown = 'changed' WHERE id = 5; UPDATE filtered SET id = 2000 WHERE id = 1;
UPDATE filtered SET id = -1 WHERE id = 6; UPDATE filtered SET hidden = 'changed';
UPDATE parts SET v = 'changed' WHERE id = 5; UPDATE parts SET at = '2025-01-01' WHERE id = 6;
DELETE FROM parts WHERE id = 300;
UPDATE "Odd ""na%me" SET "a.b" = 'z' WHERE "sel%ect" = '{'; DELETE FROM "Odd ""na%me" WHERE "sel%ect" = '"';
UPDATE aside SET d = 3 WHERE id = 2; INSERT INTO aside VALUES (4, 4);
INSERT INTO keyless VALUES (2, 'y'); DELETE FROM keyless WHERE a = 1;
UPDATE history SET v = 'changed' WHERE id = 1;
ALTER TABLE wider ADD n int DEFAULT 7; UPDATE wider SET n = 8;
ALTER TABLE renamed RENAME TO renamed_2; UPDATE renamed_2 SET v = 'changed';
ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (k); UPDATE rekeyed SET k = 2;
ALTER TABLE retyped ALTER v TYPE text USING 'v' || v;
DELETE FROM inserted WHERE id = 1; INSERT INTO inserted VALUES (3, 'v');
ALTER PUBLICATION p ADD TABLE fresh; INSERT INTO fresh VALUES (1, 'v'), (2, 'v');
"""
_COPIED = {
    "aside": "it is set aside",
    "keyless": "it has no key",
    "history": "it is a change log",
    "wider": "its columns were altered",
    "renamed_2": "it was renamed",
    "rekeyed": "it has no key, or another one",
    "retyped": "its columns were altered",
    "fresh": "the lake does not have it",
}
_LATER = """
UPDATE items SET name = 'later' WHERE id IN (50, 505, 1001); DELETE FROM items WHERE id IN (150, 506);
INSERT INTO items (id) VALUES (3), (600); INSERT INTO emptied VALUES (2, 'v');
DELETE FROM emptied WHERE id = 7;
UPDATE whole SET v = 'later' WHERE id IN ('4', '5'); UPDATE parts SET v = 'later' WHERE id IN (5, 6);
UPDATE same SET v = 'later' WHERE id = 1; UPDATE wider SET n = 9; UPDATE renamed_2 SET v = 'later';
UPDATE keyless SET b = 'later'; UPDATE fresh SET v = 'later' WHERE id = 1; UPDATE aside SET d = 5;
"""


def _drop_slot(world: World) -> None:
    with psycopg.connect(world.pipeline.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_drop_replication_slot(%s)", (world.pipeline.slot_name,))


def _named(batch: Batch) -> dict[str, Table]:
    return {each.table_name: each for each in batch.manifest.tables}


def test_only_rows_that_differ_are_staged(
    new_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = new_world(("p", "q"), table_options={"public.history": TableOptions(mode="change_log")})
    world.pipeline.capture_options.update(
        on_table_refused="set_aside", value_policy={"decimal": "fail"}
    )
    world.sql(_TABLES)
    world.run()
    world.sql("UPDATE items SET price = 1 WHERE id = 499; INSERT INTO aside VALUES (2, 'NaN')")
    world.run()
    _drop_slot(world)
    world.sql(_LOST)
    with caplog.at_level(logging.INFO):
        batch = world.pipeline.stage(**DIFFERENCE)
    for name, why in _COPIED.items():
        assert f"public.{name} is copied: {why}" in caplog.text
    assert "'changed'" not in caplog.text, "no value is told"
    found = _named(batch)
    assert {name for name, each in found.items() if each.copy_lsn} == set(_COPIED)
    staged = {n: (e.counts.updates, e.counts.deletes) for n, e in found.items() if not e.copy_lsn}
    assert staged == {
        "items": (17, 5),
        "emptied": (2, 98),
        "whole": (1, 1),
        "filtered": (2, 1),
        "parts": (2, 2),
        'Odd "na%me': (1, 1),
        "inserted": (1, 1),
        "same": (0, 0),
    }
    world.pipeline.apply(batch)
    assert batch.manifest.end_lsn == world.pipeline.confirmed_flush_lsn()
    compared = ("items", "emptied", "whole", "parts", "same", "wider", "renamed_2", "aside")
    world.assert_equal(*compared)
    assert not [str(each) for each in world.verify().tables if not each.is_equal]
    world.sql(_LATER)
    batch = world.pipeline.stage(**DIFFERENCE)
    assert not any(each.copy_lsn for each in batch.manifest.tables), "a sound slot is read"
    world.pipeline.apply(batch)
    world.assert_equal(*compared)
    assert not world.verify().different


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    world = new_world(("p",))
    world.sql(
        "CREATE TABLE items (id int PRIMARY KEY, v text); CREATE TABLE others (id uuid PRIMARY KEY, v text);"
        "CREATE TABLE plain (a int); ALTER TABLE plain REPLICA IDENTITY FULL;"
        "INSERT INTO items SELECT i, 'v' FROM generate_series(1, 50) i;"
        "INSERT INTO others SELECT md5(i::text)::uuid, 'v' FROM generate_series(1, 50) i;"
        "CREATE PUBLICATION p FOR TABLE items, others, plain"
    )
    world.run()
    return world


_CHANGES = """
UPDATE items SET v = v || 'u' WHERE id % 7 = 0; DELETE FROM items WHERE id = (SELECT min(id) FROM items);
INSERT INTO items SELECT coalesce(max(id), 0) + 1, 'i' FROM items;
DELETE FROM others WHERE id = (SELECT id FROM others ORDER BY id LIMIT 1);
INSERT INTO others VALUES (gen_random_uuid(), 'i'); INSERT INTO plain VALUES (1);
"""


def _lost(world: World) -> None:
    world.sql(
        "INSERT INTO items SELECT i, 'v' FROM generate_series(1, 50) i ON CONFLICT DO NOTHING"
    )
    world.sql(_CHANGES)
    world.run()
    _drop_slot(world)
    world.sql(_CHANGES)


def _goes_on(world: World) -> None:
    """The lake is whole, and the next batch comes from the slot."""
    world.assert_equal("items", "others", "plain")
    world.sql(_CHANGES)
    batch = world.pipeline.stage()
    assert not any(each.copy_lsn for each in batch.manifest.tables)
    world.pipeline.apply(batch)
    world.assert_equal("items", "others", "plain")


@pytest.mark.parametrize(
    "point",
    [
        "stage.during_difference",
        *(
            pytest.param(f"stage.{each}", marks=pytest.mark.exhaustive)
            for each in (
                "after_slot",
                "after_difference",
                "after_files",
                "before_manifest",
                "after_manifest",
            )
        ),
    ],
)
def test_a_killed_run_is_repeated(world: World, point: str) -> None:
    _lost(world)
    assert stage_in_process(world.pipeline, point, **DIFFERENCE), f"{point} was not reached"
    world.sql(_CHANGES)
    for _ in range(2):
        world.pipeline.apply(world.pipeline.stage(**DIFFERENCE))
    _goes_on(world)


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", ["apply.between_publishes", "apply.before_checkpoint"])
def test_a_killed_apply_is_repeated(world: World, point: str) -> None:
    _lost(world)
    batch = world.pipeline.stage(**DIFFERENCE)
    assert apply_attached(world.pipeline, batch, point), f"{point} was not reached"
    world.pipeline.apply(world.pipeline.stage(**DIFFERENCE))
    _goes_on(world)


def test_a_batch_that_goes_past_the_slot_has_what_came_since(world: World) -> None:
    """A table is truncated before it is copied. Its copy has a later point, and the slot is read up to it."""
    _lost(world)
    done: list[str] = []

    def disturb(point: str) -> None:
        if point == "stage.after_difference" and not done:
            done.append(point)
            world.sql(f"TRUNCATE plain; {_CHANGES}")

    with watched(disturb):
        batch = world.pipeline.stage(**DIFFERENCE)
    confirmed = world.pipeline.confirmed_flush_lsn()
    assert confirmed is not None
    assert batch.manifest.end_lsn > confirmed
    found = _named(batch)
    assert found["plain"].copy_lsn
    assert found["items"].counts.inserts == 1, "from the slot"
    world.pipeline.apply(batch)
    _goes_on(world)


def test_a_table_that_was_made_again_is_copied(world: World) -> None:
    """It has the name of the earlier one, and another OID."""
    _lost(world)
    world.sql(
        "ALTER TABLE others RENAME TO earlier; CREATE TABLE others (id uuid PRIMARY KEY, v text);"
        "INSERT INTO others SELECT * FROM earlier; DROP TABLE earlier; ALTER PUBLICATION p ADD TABLE others"
    )
    batch = world.pipeline.stage(**DIFFERENCE, on_recreated_table="copy")
    assert {name for name, each in _named(batch).items() if each.copy_lsn} == {"others", "plain"}
    world.pipeline.apply(batch)
    _goes_on(world)


@pytest.mark.slow
def test_rows_with_masked_values_that_differ_are_staged(
    new_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    world = new_world(("p",))
    world.pipeline.capture_options.update(
        columns={
            "public.people.email": "hash",
            "public.people.phone": "truncate(2)",
            "public.people.name": "redact",
            "public.keyed.id": "hash",
            "public.less.v": "drop",
        },
        mask_secret=SECRET,
    )
    world.sql(
        "CREATE TABLE people (id int PRIMARY KEY, email text, phone text, name text, n int);"
        "CREATE TABLE keyed (id text PRIMARY KEY, n int); CREATE TABLE less (id int PRIMARY KEY, v text);"
        "INSERT INTO people SELECT i, 'mail ' || i, '+' || i, 'name', i FROM generate_series(10, 50) i;"
        "INSERT INTO keyed VALUES ('k', 1); INSERT INTO less VALUES (1, 'x');"
        "CREATE PUBLICATION p FOR TABLE people, keyed, less"
    )
    world.run()
    _drop_slot(world)
    world.sql(
        "UPDATE people SET email = 'other' WHERE id = 11; UPDATE people SET phone = '-' WHERE id = 12;"
        # The mask of these is the same.
        "UPDATE people SET phone = '+1 and more' WHERE id = 13; UPDATE people SET name = 'x' WHERE id = 14;"
        "UPDATE people SET name = NULL WHERE id = 15; DELETE FROM people WHERE id = 16"
    )
    batch = world.pipeline.stage(**DIFFERENCE)
    found = _named(batch)
    assert {name for name, each in found.items() if each.copy_lsn} == {"keyed", "less"}
    assert (found["people"].counts.updates, found["people"].counts.deletes) == (3, 1)
    assert (
        "a column of its key is masked, or the lake has no values of a masked column" in caplog.text
    )
    world.pipeline.apply(batch)
    proof = world.verify(mask_secret=SECRET)
    assert not proof.different
    assert {each.table: each.columns_left_out for each in proof.tables} == {
        "public.people": (),
        "public.keyed": (),
        "public.less": ("v",),
    }
    rows = world.pipeline.spark.sql(
        f"SELECT email, phone, name FROM lake.{world.pipeline.namespace}.people WHERE id IN (11, 15)"
        " ORDER BY id"
    ).collect()
    assert [tuple(each) for each in rows] == [
        (hashed("other"), "+1", "***"),
        (hashed("mail 15"), "+1", None),
    ]


def test_a_batch_of_differences_that_waits_gives_way_to_a_newer_comparison(world: World) -> None:
    """A row is changed and changed back. With both batches the lake would keep what was between."""
    world.sql("INSERT INTO items VALUES (9000, 'x') ON CONFLICT DO NOTHING")
    _lost(world)
    world.sql("UPDATE items SET v = 'y' WHERE id = 9000")
    waits = world.pipeline.stage(**DIFFERENCE)
    world.sql("UPDATE items SET v = 'x' WHERE id = 9000")
    # The new slot is lost, too. The batch that waits lacks the copy that is asked for, so it is not taken.
    _drop_slot(world)
    newer = world.pipeline.stage(**DIFFERENCE, copy_tables=["public.others"])
    assert newer.manifest.batch_id != waits.manifest.batch_id
    assert newer.manifest.start_lsn == waits.manifest.start_lsn
    with pytest.raises(BatchRefused):
        world.pipeline.apply(waits)
    world.pipeline.apply(newer)
    _goes_on(world)


@pytest.mark.slow
@pytest.mark.parametrize("publishes", ["before", "after"])
def test_a_driver_of_the_lost_slot_that_comes_back_changes_no_row(
    world: World, publishes: str
) -> None:
    """Its batch changes a row that the source has as the lake had it, so the comparison finds no difference.

    :param publishes: before or after the batch of differences is applied.
    """
    world.sql(
        "INSERT INTO items VALUES (9100, 'x'), (9101, 'x') ON CONFLICT (id) DO UPDATE SET v = 'x'"
    )
    world.run()
    world.sql("UPDATE items SET v = 'y' WHERE id = 9100")
    lost = world.pipeline.stage()
    with stopped_attached(world.pipeline, lost, "apply.after_prepare") as zombie:
        world.sql("UPDATE items SET v = 'x' WHERE id = 9100")
        _drop_slot(world)
        # The lost batch lacks the copy that is asked for, so the run does not return it.
        batch = world.pipeline.stage(**DIFFERENCE, copy_tables=["public.others"])
        assert not _named(batch)["items"].counts.changes
        plan = world.pipeline.plan(batch)
        if publishes == "before":
            zombie.resume()
            with pytest.raises(TableRefused, match="was compared with the source when the lake"):
                apply_batch(world.pipeline.spark, replace(plan, on_table_refused=FAIL))
            applied = apply_batch(world.pipeline.spark, replace(plan, on_table_refused=SET_ASIDE))
            assert "copy_tables=['public.items']" in applied.set_aside["public.items"]
            world.pipeline.apply(world.pipeline.stage(copy_tables=["public.items"]))
        else:
            world.pipeline.apply(batch)
            assert _FENCED in zombie.resume()
    _goes_on(world)


@pytest.mark.slow
def test_a_table_that_a_killed_apply_left_with_the_lost_batch_is_copied(world: World) -> None:
    """A replay would begin without that batch, and the rows that differ now would not do."""
    world.sql("INSERT INTO items VALUES (9200, 'x') ON CONFLICT (id) DO UPDATE SET v = 'x'")
    world.run()
    world.sql(
        "UPDATE items SET v = 'y' WHERE id = 9200; INSERT INTO others VALUES (gen_random_uuid(), 'y')"
    )
    lost = world.pipeline.stage()
    assert apply_attached(world.pipeline, lost, "apply.between_publishes")
    _drop_slot(world)
    # The lost batch lacks the copy that is asked for, so the run does not return it.
    batch = world.pipeline.stage(**DIFFERENCE, copy_tables=["public.plain"])
    copied = {name for name, each in _named(batch).items() if each.copy_lsn}
    assert copied in ({"plain", "items"}, {"plain", "others"}), "one of them had the lost batch"
    plan = world.pipeline.plan(batch)
    apply_batch(world.pipeline.spark, replace(plan, on_table_refused=FAIL))
    _goes_on(world)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "statement", ["TRUNCATE items", "ALTER TABLE items ALTER v TYPE varchar(100), ADD w int"]
)
def test_a_table_that_moves_while_it_is_compared_is_copied(
    world: World, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    _lost(world)
    done: list[str] = []

    def disturb(point: str) -> None:
        if point == "stage.during_difference" and not done:
            done.append(point)
            world.sql(
                f"{statement}; INSERT INTO items SELECT coalesce(max(id), 0) + 1, 'w' FROM items"
            )

    with watched(disturb):
        batch = world.pipeline.stage(**DIFFERENCE)
    assert "public.items has to be copied" in caplog.text
    assert {name for name, each in _named(batch).items() if each.copy_lsn} == {"items", "plain"}
    world.pipeline.apply(batch)
    world.sql("ALTER TABLE items DROP COLUMN IF EXISTS w")
    _goes_on(world)


@pytest.mark.exhaustive
def test_a_slot_past_the_lake_and_a_table_that_somebody_wants_copied(world: World) -> None:
    _lost(world)
    with psycopg.connect(world.pipeline.conninfo, autocommit=True) as session:
        session.execute(
            "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (world.pipeline.slot_name,)
        )
    world.sql(_CHANGES)
    batch = world.pipeline.stage(**DIFFERENCE, copy_tables=["public.others"])
    assert {name for name, each in _named(batch).items() if each.copy_lsn} == {"others", "plain"}
    world.pipeline.apply(batch)
    _goes_on(world)


def test_with_soft_delete_rows_that_are_gone_are_marked(new_world: Callable[..., World]) -> None:
    world = new_world(("s",), soft_delete=True)
    world.sql(
        "CREATE TABLE soft (id int PRIMARY KEY, v text); CREATE PUBLICATION s FOR TABLE soft;"
        "INSERT INTO soft SELECT i, 'v' FROM generate_series(1, 6) i"
    )
    world.run()
    world.sql("DELETE FROM soft WHERE id IN (1, 2)")
    world.run()
    _drop_slot(world)
    world.sql(
        "DELETE FROM soft WHERE id = 3; UPDATE soft SET v = 'w' WHERE id = 4;"
        "INSERT INTO soft VALUES (2, 'again'), (7, 'new')"
    )
    batch = world.pipeline.stage(**DIFFERENCE)
    assert not _named(batch)["soft"].copy_lsn
    world.pipeline.apply(batch)
    world.refresh()
    rows = world.pipeline.spark.sql(
        f"SELECT id, v, _pgoutput_op FROM lake.{world.pipeline.namespace}.soft ORDER BY id"
    ).collect()
    found: dict[int, tuple[Any, ...]] = {row["id"]: (row["v"], row["_pgoutput_op"]) for row in rows}
    assert {number for number, (_, op) in found.items() if op == "D"} == {1, 3}
    assert {number: v for number, (v, op) in found.items() if op != "D"} == {
        2: "again",
        4: "w",
        5: "v",
        6: "v",
        7: "new",
    }
