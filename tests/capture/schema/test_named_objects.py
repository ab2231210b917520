"""Keys whose text is the name of another object: renaming the object changes the key of rows, unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.errors import TableRefused
from tests.capture.schema.test_altered_types import Runs, copied
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

COPY = SchemaPolicy(on_type_change="copy")
#: By type of the key: two values.
KINDS = {
    "regclass": ("'x1'", "'x2'"),
    "regclass[]": ("'{x1}'", "'{x2}'"),
    "regtype": ("'x1'", "'x2'"),
    "regproc": ("'now'", "'version'"),
    "regprocedure": ("'now()'", "'version()'"),
    "regnamespace": ("'public'", "'pg_catalog'"),
    "regrole": ("'postgres'", "'pg_monitor'"),
    "regconfig": ("'simple'", "'english'"),
    "named": ("'x1'", "'x2'"),
    "pair": ("'(x1,1)'", "'(x2,1)'"),
}


@pytest.fixture
def runs(source: Source, caplog: pytest.LogCaptureFixture) -> Runs:
    return Runs(source, caplog)


def begun(runs: Runs, kind: str, *, identity: str = "PRIMARY KEY") -> Manifest:
    one, two = KINDS[kind]
    runs.source.execute(
        "CREATE TABLE x1(i int)",
        "CREATE TABLE x2(i int)",
        "CREATE DOMAIN named AS regclass",
        "CREATE TYPE pair AS (c regclass, n int)",
        f"CREATE TABLE k(id {kind} {identity}, v int)",
        "ALTER PUBLICATION p ADD TABLE k",
        f"INSERT INTO k VALUES ({one}, 1), ({two}, 2)",
    )
    return runs.run()


def refused(runs: Runs, *statements: str, **options: Any) -> str:
    with pytest.raises(TableRefused, match="is the name of another object") as refusal:
        runs.run(*statements, **options)
    assert (refusal.value.table, refusal.value.column) == ("public.k", "id")
    return str(refusal.value)


@pytest.mark.parametrize("kind", slow_but_each(3, KINDS))
def test_changes_of_rows_whose_key_is_a_name_are_refused_or_copied(runs: Runs, kind: str) -> None:
    begun(runs, kind)
    assert any("column id" in each and "rows are found by" in each for each in runs.messages)
    # Nothing is asked of a batch without changes of the table.
    runs.run("INSERT INTO x1 VALUES (1)")
    words = refused(
        runs, "ALTER TABLE x1 RENAME TO y1", "UPDATE k SET v = 10 WHERE v = 1", "DELETE FROM k"
    )
    for way in ("copy_tables=['public.k']", "on_type_change='copy'", "key_columns"):
        assert way in words
    before = runs.checkpoint
    assert copied(runs.run(copy_tables=("public.k",))) == ["public.k"]
    runs.checkpoint = before
    assert copied(runs.run(schema_policy=COPY)) == ["public.k"]
    # An insert takes the place of a row of its key.
    assert copied(runs.run(f"INSERT INTO k VALUES ({KINDS[kind][1]}, 3)", schema_policy=COPY)) == [
        "public.k"
    ]
    assert copied(runs.run("TRUNCATE k")) == []


def test_a_key_that_the_user_chose_is_followed(runs: Runs) -> None:
    begun(runs, "regclass")
    manifest = runs.run("UPDATE k SET v = 10 WHERE v = 1", key_columns={"public.k": ["id"]})
    (table,) = manifest.tables
    assert (table.copy_lsn, table.counts.updates) == (None, 1)


def test_whole_rows_with_a_name_are_found_by_it(runs: Runs) -> None:
    begun(runs, "regclass", identity="")
    runs.source.execute("ALTER TABLE k REPLICA IDENTITY FULL")
    # No row is looked for.
    assert copied(runs.run("INSERT INTO k VALUES ('x1', 3)")) == []
    refused(runs, "UPDATE k SET v = 10 WHERE v = 1")


def test_a_name_that_finds_no_row_is_followed(runs: Runs) -> None:
    runs.source.execute(
        "CREATE TABLE k(v int PRIMARY KEY, id regclass)",
        "ALTER PUBLICATION p ADD TABLE k",
        "INSERT INTO k VALUES (1, 'k')",
    )
    runs.run()
    assert any("brings it in then" in each for each in runs.messages)
    assert copied(runs.run("UPDATE k SET v = 2")) == []
