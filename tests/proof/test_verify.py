"""A verification beside a real pipeline: equal tables are proven, and each kind of damage is found."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.answers import REPAIR
from airflow_provider_pgoutput.batch.checkpoint import QUARANTINE, QUARANTINE_TABLE
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.errors import ConfigurationError, LakeUnavailable
from airflow_provider_pgoutput.lake.own_tables import append_to_own_table
from airflow_provider_pgoutput.proof.verify import verify
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.proof.report import TableProof
    from tests.proof.worlds import World

_COLUMNS = (
    "id int, name text, price numeric(10,2), total numeric(30,4), weight float8, code char(5),"
    " born timestamptz, tags text[], doc jsonb, PRIMARY KEY (id)"
)
_ROWS = """SELECT i, 'name ' || i % 50, i * 1.25, i * 1000000.0001, i / 8.0, 'c' || i % 9,
    '2024-01-01Z'::timestamptz + i * interval '1 hour', ARRAY['a', NULL, i::text],
    jsonb_build_object('i', i) FROM generate_series(1, 900) AS i"""
#: Values that are particular: what the lake cannot hold, zeros, NULL.
_ODD_ROWS = """VALUES
    (901, '', 'NaN'::numeric, NULL, -0.0::float8, '', 'infinity'::timestamptz, '{}'::text[], NULL),
    (902, NULL, 0, 0, 0.0, NULL, '0044-03-15 BC', '{{a},{b}}'::text[], '[]'),
    (903, 'NULL', -1.5, -0.0001, 'NaN', 'x', '9999-12-31 23:59:59.999999Z', NULL, 'null'),
    (904, NULL, 'NaN'::numeric, 1, -0.0, 'x', '-infinity', '{NULL}', '{}')"""
#: What damages one row, as SQL of Spark, by the key of the row that has another value then.
MUTATIONS = {
    7: "UPDATE {} SET name = 'name 8' WHERE id = 7",
    20: "UPDATE {} SET born = born + INTERVAL 1 MICROSECOND WHERE id = 20",
    21: "UPDATE {} SET tags = array('a', '', '21') WHERE id = 21",
    22: "UPDATE {} SET total = total + 0.0001 WHERE id = 22",
    23: "UPDATE {} SET doc = '{{\"i\":23}}' WHERE id = 23",
    901: "UPDATE {} SET weight = 0.0D WHERE id = 901",
    902: "UPDATE {} SET name = '' WHERE id = 902",
    903: "UPDATE {} SET code = 'x' WHERE id = 903",
    904: "UPDATE {} SET price = 0 WHERE id = 904",
}
#: What is wrong, and the damage.
MORE_MUTATIONS = {
    "two rows exchange values": "UPDATE {} SET price = CASE id WHEN 3 THEN 5.00 ELSE 3.75 END"
    " WHERE id IN (3, 4)",
    "a row is missing": "DELETE FROM {} WHERE id = 11",
    "a row is there twice": "INSERT INTO {0} SELECT * FROM {0} WHERE id = 12",
    "a row is invented": "INSERT INTO {0} SELECT 5000, name, price, total, weight, code, born, tags, doc"
    " FROM {0} WHERE id = 13",
}
MANY = ("UPDATE {} SET total = total + 1 WHERE id <= 300", "DELETE FROM {} WHERE id > 880")
#: Damages of a change log. Row 1 has the value of an entry that it had under another key.
OF_LOG = (
    "UPDATE {} SET v = 'other' WHERE id = 2 AND _pgoutput_op = 'C'",
    "UPDATE {} SET v = 'other' WHERE id = 2 AND v = 'changed'",
    "DELETE FROM {} WHERE id = 3 AND _pgoutput_op = 'U'",
    "DELETE FROM {} WHERE id = 9 AND _pgoutput_op = 'D'",
    "DELETE FROM {} WHERE id = 8",
)
_OTHERS = """
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE filtered (id int PRIMARY KEY, shown text, hidden text);
CREATE TABLE computed (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED);
CREATE TABLE parts (id int, at date, v text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2024-01-01') TO ('2024-07-01');
CREATE TABLE parts_2 PARTITION OF parts DEFAULT;
CREATE TABLE "Odd ""name" ("select" int PRIMARY KEY, "a.b" text, "ünï c" text);
CREATE TABLE "dot.ted" (id int PRIMARY KEY, "x.y" text);
CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE history (id int PRIMARY KEY, v text, n int);
ALTER TABLE history ALTER v SET STORAGE EXTERNAL;
CREATE TABLE rolled (id int PRIMARY KEY, v text);
CREATE TABLE altered (id int PRIMARY KEY, v int);
CREATE TABLE twice (a int, b text);
ALTER TABLE twice REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR TABLE filtered (id, shown) WHERE (id > 3), computed, keyless, parts,
    "Odd ""name", "dot.ted", empty, history, rolled, twice, items, many,
    altered WITH (publish_via_partition_root);
INSERT INTO keyless VALUES (1, 'x'), (1, 'x'), (2, NULL);
INSERT INTO filtered SELECT i, 'v' || i, 'h' FROM generate_series(1, 9) i;
INSERT INTO computed VALUES (1, 2), (2, NULL);
INSERT INTO parts SELECT i, '2024-01-01'::date + i, 'v' FROM generate_series(1, 400) i;
INSERT INTO "Odd ""name" VALUES (1, 'x', 'y'), (2, NULL, '');
INSERT INTO "dot.ted" VALUES (1, 'x');
INSERT INTO history SELECT i, repeat('v', 3000), 0 FROM generate_series(1, 9) i;
INSERT INTO rolled VALUES (1, 'v');
INSERT INTO altered VALUES (1, 1);
INSERT INTO twice VALUES (1, 'x'), (2, 'y');
"""
#: Changes of the second batch.
_CHANGES = """
UPDATE keyless SET b = 'changed' WHERE a = 2;
UPDATE filtered SET shown = 'changed', hidden = 'changed' WHERE id = 5;
UPDATE filtered SET id = 0 WHERE id = 6;
UPDATE computed SET a = 7 WHERE id = 1;
UPDATE parts SET at = '2024-02-01', v = 'moved' WHERE id = 300;
DELETE FROM "Odd ""name" WHERE "select" = 2;
UPDATE history SET v = 'changed' WHERE id = 1;
UPDATE history SET n = 1 WHERE id < 4;
UPDATE history SET id = id + 10 WHERE id < 3;
UPDATE history SET id = 13 - id WHERE id > 10;
DELETE FROM history WHERE id = 9;
UPDATE rolled SET v = 'changed';
"""
#: Tables of the lake that no mutation touches.
UNTOUCHED = ("keyless", "filtered", "computed", "parts", 'Odd "name', "dot.ted", "empty")


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    """Two batches of all tables, applied."""
    world = new_world(("p",), table_options={"public.history": TableOptions(mode="change_log")})
    names = ("items", "many")
    made = "".join(
        f"CREATE TABLE {name} ({_COLUMNS}); INSERT INTO {name} {_ROWS};" for name in names
    )
    world.sql(made + _OTHERS)
    world.run()
    more = "".join(
        f"INSERT INTO {name} {_ODD_ROWS};"
        f"UPDATE {name} SET price = price + 0.01 WHERE id % 100 = 50;"
        for name in names
    )
    world.sql(_CHANGES + more)
    world.run()
    return world


@pytest.fixture(scope="module")
def before(world: World) -> dict[str, TableProof]:
    """What a verification finds, beside writes that commit after its LSN."""

    def wait(lsn: Lsn) -> None:
        world.sql("INSERT INTO keyless VALUES (3, 'after the LSN'); INSERT INTO empty VALUES (1)")
        world.run(lsn)
        checkpoint = world.pipeline.checkpoint()
        assert checkpoint is not None
        assert checkpoint.end_lsn == lsn, "the batch ends at the mark"

    world.sql("INSERT INTO keyless VALUES (9, 'before the LSN')")
    proof = verify(world.request(), wait)
    world.run()
    return {each.table.removeprefix("public."): each for each in proof.tables}


@pytest.mark.slow
def test_all_tables_are_proven_equal(before: dict[str, TableProof]) -> None:
    compared = [each for each in before.values() if each.not_compared is None]
    assert not [str(each) for each in compared if not each.is_equal]
    assert len(compared) == len(UNTOUCHED) + 6
    rows = {name: each.source.rows for name, each in before.items() if each.source is not None}
    assert rows["items"] == 904
    assert rows["keyless"] == 4
    assert rows["empty"] == 0
    assert rows["history"] == 8, "the current rows of a change log"
    assert rows["filtered"] == 5, "the row filter holds on both sides"
    assert not any(each.columns_left_out for each in compared)
    assert not any(each.was_rolled_back for each in compared)


@pytest.fixture(scope="module")
def damaged(world: World, before: dict[str, TableProof]) -> dict[str, TableProof]:
    """What a verification finds after each table was damaged in its own way."""
    spark, namespace = world.pipeline.spark, world.pipeline.namespace
    for statement in (*MUTATIONS.values(), *MORE_MUTATIONS.values()):
        spark.sql(statement.format(f"lake.{namespace}.items"))
    for statement in MANY:
        spark.sql(statement.format(f"lake.{namespace}.many"))
    spark.sql(f"INSERT INTO lake.{namespace}.twice VALUES (2, 'y')")
    for statement in OF_LOG:
        spark.sql(statement.format(f"lake.{namespace}.history"))
    catalog = load_catalog(CATALOG, **world.pipeline.catalog_properties)
    # An apply left two rows out, and said so.
    table = before["items"].table
    checkpoint = world.pipeline.checkpoint()
    assert checkpoint is not None
    assert checkpoint.tables is not None
    (oid,) = [oid for oid, name in checkpoint.tables.items() if name == table]
    entry = {"slot_name": world.pipeline.slot_name, "relation_oid": oid, "table_name": table}
    entries = [{**entry, "key": f'{{"id":{key}}}', "commit_lsn": 1} for key in (3, 4, 4)]
    append_to_own_table(catalog, namespace, QUARANTINE_TABLE, QUARANTINE, entries)
    rolled = catalog.load_table((namespace, "rolled"))
    first = min(rolled.snapshots(), key=lambda each: each.sequence_number or 0)
    spark.sql(f"CALL lake.system.rollback_to_snapshot('{namespace}.rolled', {first.snapshot_id})")
    found = world.verify(keys_shown=50)
    return {each.table.removeprefix("public."): each for each in found.tables}


@pytest.mark.slow
def test_each_damaged_row_is_found_and_its_key_is_named(damaged: dict[str, TableProof]) -> None:
    found = damaged["items"].differences
    assert found is not None
    assert (found.missing, found.surplus, found.different) == (1, 2, len(MUTATIONS) + 2)
    assert "2 keys are in pgoutput_quarantine" in str(damaged["items"])
    assert "pgoutput_quarantine" not in str(damaged["many"])
    named = [json.loads(each)["id"] for each in found.keys]
    assert sorted(named) == sorted([*MUTATIONS, 3, 4, 11, 12, 5000])


def test_many_differences_are_counted(damaged: dict[str, TableProof]) -> None:
    found = damaged["many"].differences
    assert found is not None
    assert (found.missing, found.surplus, found.different) == (24, 0, 300)
    assert found.ranges_looked_at == found.ranges
    assert len(found.keys) == 50


def test_a_damaged_change_log_is_found_and_not_repaired(
    world: World, damaged: dict[str, TableProof]
) -> None:
    found = damaged["history"].differences
    assert found is not None
    assert (found.missing, found.surplus, found.different) == (1, 1, 3)
    assert sorted(json.loads(each)["id"] for each in found.keys) == [1, 2, 3, 8, 9]
    (again,) = world.verify(tables=["public.history"], on_difference=REPAIR).tables
    assert again.to_repair is None
    assert "it is a change log; copy the table (copy_tables)" in str(again)


def test_a_row_twice_in_a_table_without_key_is_found(damaged: dict[str, TableProof]) -> None:
    found = damaged["twice"].differences
    assert found is not None
    assert (found.missing, found.surplus, found.different) == (0, 1, 0)
    assert found.keys == ()


def test_a_rolled_back_table_is_found_and_named(damaged: dict[str, TableProof]) -> None:
    assert damaged["rolled"].was_rolled_back
    assert not damaged["rolled"].is_equal
    assert "rolled the table back" in str(damaged["rolled"])


def test_tables_that_nobody_damaged_stay_equal(damaged: dict[str, TableProof]) -> None:
    assert all(damaged[name].is_equal for name in UNTOUCHED)


def test_no_value_is_in_the_report_and_no_key_without_being_asked(world: World) -> None:
    found = world.verify(tables=["public.items"])
    (table,) = found.tables
    assert table.differences is not None
    assert table.differences.keys == ()
    assert "name 8" not in f"{found} {table} {found!r}"


def test_rows_that_are_marked_as_deleted_are_not_compared(new_world: Callable[..., World]) -> None:
    world = new_world(("s",), soft_delete=True)
    world.delete_softly()
    (table,) = world.verify().tables
    assert table.is_equal
    assert table.source is not None
    assert table.source.rows == 6
    world.damage("UPDATE {}.soft SET _pgoutput_op = 'D' WHERE id = 9")
    (table,) = world.verify().tables
    assert table.differences is not None
    assert table.differences.missing == 1


def test_another_lsn_is_taken_when_a_batch_went_past_the_first(world: World) -> None:
    """Here because a version of the package that knows no marks staged it."""
    area, seen = StagingArea(world.pipeline.staging.as_uri()), []

    def wait(lsn: Lsn) -> None:
        folder = layout.mark_folder(world.pipeline.slot_name)
        (mark,) = area.names(folder)
        seen.append(lsn)
        if len(seen) == 1:
            area.delete_file(f"{folder}/{mark}")
        world.sql("INSERT INTO keyless VALUES (4, 'past the LSN')")
        world.run(lsn)

    world.sql("INSERT INTO keyless VALUES (4, 'before the LSN')")
    proof = verify(world.request(tables=["public.keyless"]), wait)
    assert seen == [seen[0], proof.lsn]
    assert proof.tables[0].is_equal
    assert area.names(layout.mark_folder(world.pipeline.slot_name)) == []


def test_a_column_that_was_altered_since_its_last_row_does_not_stop_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.sql("ALTER TABLE altered ALTER v TYPE text USING 'secret'; INSERT INTO empty VALUES (7)")
    proof = world.verify(tables=["public.altered", "public.empty"])
    found = {each.table: each for each in proof.tables}
    assert "the type of a column was altered" in str(found["public.altered"])
    assert not found["public.altered"].is_equal
    assert found["public.empty"].is_equal
    assert proof.different == ()
    assert "secret" not in caplog.text


def test_a_table_with_new_files_is_not_compared(world: World) -> None:
    """A snapshot from before TRUNCATE would see no row, and the server gives no error."""

    def wait(lsn: Lsn) -> None:
        world.run(lsn)
        world.sql("VACUUM FULL computed")

    proof = verify(world.request(tables=["public.computed", "public.filtered"]), wait)
    found = {each.table: each for each in proof.tables}
    assert found["public.filtered"].is_equal
    assert "it has other files or other partitions than at the LSN" in str(found["public.computed"])


def test_a_pipeline_that_does_not_run_is_waited_for_so_long(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with pytest.raises(LakeUnavailable, match="did not reach"):
        verify(world.request(wait_seconds=0.5))
    assert "Waiting for a run of the pipeline that brings the lake to LSN" in caplog.text
    area = StagingArea(world.pipeline.staging.as_uri())
    assert area.names(layout.mark_folder(world.pipeline.slot_name)) == []


def test_what_cannot_be_compared_is_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match=r"do not have public\.nowhere"):
        world.verify(tables=["public.nowhere"])
    with pytest.raises(ConfigurationError, match="no batch of the slot"):
        verify(world.request(namespace="nowhere"))
