"""ALTER TYPE of a type that columns of tables have, and another type in its place: no row is sent for it."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.errors import TableRefused
from tests.conformance.one_table import Lake, begun

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline


NARROW = "struct<street: string, n: int>"
WIDE = "struct<street: string, n: int, zip: string>"
OTHER = "struct<street: string, number: int>"


def changed(column: str, before: str, after: str) -> str:
    return f"the lake type of column {column} changed from {before} to {after}"


def test_attributes_come_in_place_go_like_columns_and_are_not_renamed_unseen(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "airflow_provider_pgoutput")
    pipeline.capture_options["type_options"] = {"composite": "struct"}
    lake = begun(pipeline)
    lake.execute("CREATE TYPE place AS (street text, n int)")
    lake.run(
        "ALTER TABLE t ADD c place, ADD l place[]",
        # None is NULL: pyiceberg 0.12 reads an empty one for each list of structs that is.
        "UPDATE t SET l = ARRAY[ROW('b', id)::place, NULL]",
        "UPDATE t SET c = ROW('a', 1) WHERE id < 3",
    )
    street = lake.table().schema().find_field("c.street").field_id
    files = lake.data_files()
    said = [
        lake.said(
            lake.run(
                "ALTER TYPE place ADD ATTRIBUTE zip text",
                "UPDATE t SET c = ROW('x', 5, 'z') WHERE id = 2",
                "INSERT INTO t(id, c, l) VALUES (4, ROW('y', 6, NULL), '{}')",
            )
        )
    ]
    assert lake.table().schema().find_field("c.street").field_id == street
    assert lake.rows("id", "c", "l") == [
        (1, ("a", 1, None), [("b", 1, None), None]),
        (2, ("x", 5, "z"), [("b", 2, None), None]),
        (3, None, [("b", 3, None), None]),
        (4, ("y", 6, None), []),
    ]
    assert files < lake.data_files(), "nothing that was there is written again"

    # What the lake has stays, as of a column that was dropped.
    said.append(
        lake.said(
            lake.run(
                "ALTER TYPE place DROP ATTRIBUTE zip",
                "UPDATE t SET c = ROW('q', 9) WHERE id = 1",
            )
        )
    )
    assert lake.rows("id", "c")[:2] == [(1, ("q", 9, None)), (2, ("x", 5, "z"))]

    # Whether an attribute was renamed, or went while another came, is not told.
    lake.execute("ALTER TYPE place RENAME ATTRIBUTE n TO number", "UPDATE t SET a = 0 WHERE id = 3")
    with pytest.raises(TableRefused, match="one of three") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", "c")
    manifest = lake.run(schema_policy=SchemaPolicy(on_type_change="copy"))
    assert manifest.tables[0].copy_lsn is not None
    said.append(lake.said(manifest))
    assert lake.agrees("id", "a", "b")
    assert lake.rows("id", "c") == [
        *((1, ("q", 9)), (2, ("x", 5)), (3, None), (4, ("y", 6))),
    ]

    assert said == [
        [changed("c", NARROW, WIDE), changed("l", f"list<{NARROW}>", f"list<{WIDE}>")],
        [changed("c", WIDE, NARROW), changed("l", f"list<{WIDE}>", f"list<{NARROW}>")],
        [changed("c", NARROW, OTHER), changed("l", f"list<{NARROW}>", f"list<{OTHER}>")],
    ]
    logged = {each.getMessage() for each in caplog.records}
    assert {f"public.t: {one}." for each in said for one in each} <= logged
    kept = lake.table("pgoutput_checkpoint").scan().to_arrow().column("schema_changes").to_pylist()
    assert {json.dumps(each) for each in said} <= set(kept)


@pytest.mark.parametrize("how", ["no key", "key"])
def test_an_attribute_by_which_rows_are_found_does_not_go_unseen(
    pipeline: Pipeline, how: str
) -> None:
    pipeline.capture_options["type_options"] = {"composite": "struct"}
    lake = Lake(pipeline)
    key = (
        "ALTER TABLE t ADD PRIMARY KEY (c)"
        if how == "key"
        else "ALTER TABLE t REPLICA IDENTITY FULL"
    )
    lake.execute(
        "CREATE TYPE place AS (street text, n int)",
        "CREATE TABLE t(c place, a int)",
        key,
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t VALUES (ROW('a', 1), 1), (ROW('b', 2), 2)",
    )
    lake.run()
    lake.execute("ALTER TYPE place DROP ATTRIBUTE n", "UPDATE t SET a = 3 WHERE a = 2")
    with pytest.raises(TableRefused, match="one of three") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", "c")
    manifest = lake.run(schema_policy=SchemaPolicy(on_type_change="copy"))
    assert manifest.tables[0].copy_lsn is not None
    assert lake.rows("c", "a") == [(("a",), 1), (("b",), 3)]


def test_types_that_are_text_in_the_lake_are_altered_and_replaced(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(pipeline)
    lake.execute(
        "CREATE TYPE cp AS (i int, t text)",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t(id cp PRIMARY KEY, v int, m mood[], a cp)",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t SELECT (g, 'a')::cp, g, '{sad}', (g, 'private')::cp FROM generate_series(1, 3) g",
    )
    lake.run()
    # Rows before and after in one batch: it was mood[] all the time.
    manifest = lake.run(
        "UPDATE t SET m = '{ok,sad}' WHERE v = 1",
        "ALTER TYPE mood RENAME TO old_mood",
        "CREATE TYPE mood AS ENUM ('ok', 'sad', 'glad')",
        "ALTER TABLE t ALTER m TYPE mood[] USING m::text[]::mood[]",
        "DROP TYPE old_mood",
        "UPDATE t SET m = '{glad}' WHERE v = 2",
    )
    assert lake.said(manifest) == [
        "column m changed from public.mood[] to another type of that name"
    ]
    assert lake.rows("v", "m") == [(1, ["ok", "sad"]), (2, ["glad"]), (3, ["sad"])]

    # The key of all rows is another one, and what was dropped is in the lake.
    lake.execute(
        "ALTER TYPE cp ADD ATTRIBUTE z int",
        "ALTER TYPE cp DROP ATTRIBUTE t",
        "DELETE FROM t WHERE v = 1",
        "UPDATE t SET v = 20 WHERE v = 2",
    )
    with pytest.raises(TableRefused, match="it changed in all rows") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", "id")
    lake.run(copy_tables=("public.t",))
    assert lake.agrees("v")
    assert lake.rows("id", "a", "v") == [("(2,)", "(2,)", 20), ("(3,)", "(3,)", 3)]
    caplog.clear()
    lake.run("DELETE FROM t WHERE v = 3", "UPDATE t SET v = 21 WHERE v = 20")
    assert lake.rows("id", "v") == [("(2,)", 21)]
    assert "in all rows" not in caplog.text


def test_keys_that_are_names_of_objects_are_not_lost_when_the_objects_are_renamed(
    pipeline: Pipeline,
) -> None:
    """Two tables change their names, and with them two keys, for which PostgreSQL sends no row."""
    lake = Lake(pipeline)
    lake.run(
        "CREATE TABLE one(i int)",
        "CREATE TABLE two(i int)",
        "CREATE TABLE t(id regclass PRIMARY KEY, v int)",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t VALUES ('one', 1), ('two', 2), ('t', 3)",
    )
    renamed = (
        "ALTER TABLE one RENAME TO other",
        "ALTER TABLE two RENAME TO one",
        "ALTER TABLE other RENAME TO two",
    )
    lake.execute(*renamed, "UPDATE t SET v = 10 WHERE v = 1", "DELETE FROM t WHERE v = 2")
    with pytest.raises(TableRefused, match="is the name of another object") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", "id")
    lake.run(copy_tables=("public.t",))
    assert lake.rows("id", "v") == [("public.t", 3), ("public.two", 10)]
    copying = SchemaPolicy(on_type_change="copy")
    manifest = lake.run(*renamed, "UPDATE t SET v = 11 WHERE v = 10", schema_policy=copying)
    assert manifest.tables[0].copy_lsn is not None
    assert lake.rows("id", "v") == [("public.one", 11), ("public.t", 3)]
    # The user says that no object is renamed from now on.
    manifest = lake.run(
        "UPDATE t SET v = 12 WHERE v = 11",
        "DELETE FROM t WHERE v = 3",
        key_columns={"public.t": ["id"]},
    )
    assert manifest.tables[0].copy_lsn is None
    assert lake.rows("id", "v") == [("public.one", 12)]
