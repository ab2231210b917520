"""Types that are altered: rows look otherwise at the source, and PostgreSQL sends nothing of it."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.capture import stage
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.errors import SnapshotLost, TableRefused
from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

COPY = SchemaPolicy(on_type_change="copy")


class Runs:
    """Batch after batch of a source, and the checkpoint that the lake would have of them."""

    def __init__(self, source: Source, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, "airflow_provider_pgoutput")
        self.source, self._caplog = source, caplog
        self.checkpoint: Checkpoint | None = None

    def run(self, *statements: str, **options: Any) -> Manifest:
        """Run statements, each in a transaction of its own, then stage a batch."""
        if statements:
            self.source.execute(*statements)
        self._caplog.clear()
        manifest = self.source.stage(checkpoint=self.checkpoint, **options)
        found = checkpoint_with_shapes(manifest)
        if self.checkpoint is not None:
            tables = {**(self.checkpoint.tables or {}), **(found.tables or {})}
            shapes = {**self.checkpoint.shapes, **found.shapes}
            found = dataclasses.replace(found, tables=tables, shapes=shapes)
        self.checkpoint = found
        return manifest

    @property
    def messages(self) -> list[str]:
        """What the last run logged, from warnings on."""
        return self._caplog.messages

    def altered(self) -> dict[str, str]:
        """Of which columns the last run warned, and what was altered."""
        found = {}
        for message in self._caplog.messages:
            if ": column " in message and " changed in all rows: " in message:
                column, _, what = message.partition(": column ")[2].partition(
                    " changed in all rows: "
                )
                found[column] = what.partition(". PostgreSQL")[0]
        return found


@pytest.fixture
def runs(source: Source, caplog: pytest.LogCaptureFixture) -> Runs:
    return Runs(source, caplog)


def copied(manifest: Manifest) -> list[str]:
    return [each.name for each in manifest.tables if each.copy_lsn is not None]


@pytest.mark.parametrize("alter", ["ADD ATTRIBUTE z int", "DROP ATTRIBUTE i"])
def test_an_altered_composite_in_the_key_is_refused_until_the_table_is_copied(
    runs: Runs, alter: str
) -> None:
    runs.source.execute(
        "CREATE TYPE cp AS (i int, t text)",
        "CREATE TABLE k(id cp PRIMARY KEY, v int)",
        "ALTER PUBLICATION p ADD TABLE k",
        "INSERT INTO k VALUES ('(1,a)', 1), ('(2,b)', 2), ('(3,c)', 3)",
    )
    runs.run()
    with pytest.raises(TableRefused, match="it changed in all rows") as refused:
        runs.run(
            f"ALTER TYPE cp {alter}", "DELETE FROM k WHERE v = 1", "UPDATE k SET v = 20 WHERE v = 2"
        )
    assert (refused.value.table, refused.value.column) == ("public.k", "id")
    assert "copy_tables=['public.k']" in str(refused.value)
    before = runs.checkpoint
    assert copied(runs.run(copy_tables=("public.k",))) == ["public.k"]
    assert not runs.altered()
    runs.checkpoint = before
    assert copied(runs.run(schema_policy=COPY)) == ["public.k"]
    # What was copied is known as it is now.
    runs.run("UPDATE k SET v = 30 WHERE v = 3")
    assert not runs.altered()


#: Columns by name: all that can be made of an enum and of a composite.
KINDS = {
    "e": "mood",
    "e_list": "mood[]",
    "e_domain": "liked",
    "e_domains": "liked[]",
    "e_composite": "tagged",
    "e_range": "moods",
    "e_ranges": "many_moods",
    "c": "addr",
    "c_list": "addr[]",
    "c_domain": "home",
    "c_composite": "person",
    "c_range": "addrs",
    "c_row": "other",
    "c_rows": "other[]",
    "plain": "text",
}
OF_ENUM = {each for each in KINDS if each.startswith("e")}
OF_COMPOSITE = {each for each in KINDS if each.startswith("c")}


def made_of_everything(source: Source) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in KINDS.items())
    source.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN liked AS mood",
        "CREATE TYPE tagged AS (n int, m mood)",
        "CREATE TYPE moods AS RANGE (subtype = mood, multirange_type_name = many_moods)",
        "CREATE TYPE addr AS (street text, n int)",
        "CREATE DOMAIN home AS addr",
        "CREATE TYPE person AS (name text, homes home[])",
        "CREATE TYPE addrs AS RANGE (subtype = addr)",
        "CREATE TABLE other(a int, b addr)",
        f"CREATE TABLE w(id int PRIMARY KEY, {columns})",
        "CREATE TABLE idle(id int PRIMARY KEY, c addr, e mood)",
        "ALTER PUBLICATION p ADD TABLE w, idle",
        "INSERT INTO w(id, c, e) VALUES (1, '(s,1)', 'ok')",
    )


def test_whatever_prints_otherwise_is_named(
    runs: Runs,
) -> None:
    made_of_everything(runs.source)
    runs.run()
    change = "UPDATE w SET plain = 'x'"

    def altered(*statements: str) -> dict[str, str]:
        runs.run(*statements, change)
        return runs.altered()

    # What only brings new values, or leaves the text as it is.
    assert not altered(
        "ALTER TYPE mood ADD VALUE 'glad'",
        "ALTER TYPE mood ADD VALUE 'mad' BEFORE 'sad'",
        "ALTER TYPE addr RENAME ATTRIBUTE n TO number",
        "ALTER TYPE addr OWNER TO CURRENT_USER",
        "ALTER DOMAIN liked SET DEFAULT 'ok'",
        "ALTER TABLE other ALTER a SET NOT NULL",
        "VACUUM FULL pg_enum",
    )
    for statements, columns, what in (
        (["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"], OF_ENUM, "was renamed"),
        (
            [
                "ALTER TYPE mood RENAME VALUE 'blue' TO 'x'",
                "ALTER TYPE mood RENAME VALUE 'x' TO 'blue'",
            ],
            OF_ENUM,
            "renamed back",
        ),
        # So many between two others that the server writes all labels again, whatever was done to them.
        (
            [f"ALTER TYPE mood ADD VALUE 'm{n}' BEFORE 'ok'" for n in range(30)],
            OF_ENUM,
            "may have been renamed meanwhile",
        ),
        (["ALTER TYPE addr ADD ATTRIBUTE zip text"], OF_COMPOSITE, "public.addr.zip was added"),
        (["ALTER TYPE addr DROP ATTRIBUTE zip"], OF_COMPOSITE, "public.addr.zip was dropped"),
        (
            ["ALTER TYPE addr ADD ATTRIBUTE y text", "ALTER TYPE addr DROP ATTRIBUTE y"],
            OF_COMPOSITE,
            "added, and dropped again",
        ),
        (["ALTER TABLE other ADD COLUMN z int"], {"c_row", "c_rows"}, "public.other.z was added"),
        (["ALTER TABLE other DROP COLUMN a"], {"c_row", "c_rows"}, "public.other.a was dropped"),
    ):
        found = altered(*statements)
        assert found.keys() == columns, statements
        assert all(what in each for each in found.values()), (statements, found)
        assert not altered()

    # A type and its schema may have other names: nothing looks otherwise.
    assert not altered(
        "ALTER TYPE mood RENAME TO feeling",
        "CREATE SCHEMA s",
        "ALTER TYPE addr SET SCHEMA s",
    )
    assert not any("converted" in each for each in runs.messages)
    # Of a table without rows in a batch it is said, too, until it has some.
    for _ in range(2):
        runs.run("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING")
        (message,) = (each for each in runs.messages if "without changes in this batch" in each)
        assert "public.idle.c (public.addr.zip was added" not in message
        assert "public.idle.e (a value of public.feeling was renamed)" in message
        assert "copy_tables=['public.idle']" in message
    assert copied(runs.run(schema_policy=COPY)) == ["public.idle"]
    runs.run("ALTER TYPE s.addr DROP ATTRIBUTE number", schema_policy=COPY)
    assert sorted(copied(runs.run(schema_policy=COPY))) == []


@pytest.mark.parametrize(
    ("identity", "kind", "value", "alter"),
    [
        ("key", "mood", "sad", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
        ("no key", "mood[]", "{sad}", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
        ("index", "inner_row", "(1)", "ALTER TABLE inner_row ADD z int"),
    ],
)
def test_whatever_rows_are_found_by_is_refused(
    runs: Runs, identity: str, kind: str, value: str, alter: str
) -> None:
    key = {
        "key": "ALTER TABLE k ADD PRIMARY KEY (v)",
        "no key": "ALTER TABLE k REPLICA IDENTITY FULL",
        "index": "ALTER TABLE k REPLICA IDENTITY USING INDEX k_v",
    }
    runs.source.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE inner_row(a int)",
        f"CREATE TABLE k(v {kind} NOT NULL, n int)",
        "CREATE UNIQUE INDEX k_v ON k(v)",
        key[identity],
        "ALTER PUBLICATION p ADD TABLE k",
        f"INSERT INTO k VALUES ('{value}', 1)",
    )
    runs.run()
    with pytest.raises(TableRefused, match="it changed in all rows") as refused:
        runs.run(alter, "INSERT INTO k SELECT v, 2 FROM k WHERE false", "UPDATE k SET n = 2")
    assert refused.value.column == "v"
    assert copied(runs.run(copy_tables=("public.k",))) == ["public.k"]
    runs.run("UPDATE k SET n = 3")
    assert not runs.altered()


def test_a_transaction_that_was_open_meanwhile_brings_rows_that_look_as_before(
    runs: Runs,
) -> None:
    runs.source.execute(
        "CREATE TYPE addr AS (street text, n int)", "ALTER TABLE t ADD c addr, ADD d addr"
    )
    runs.run("INSERT INTO t VALUES (0)")
    with psycopg.connect(runs.source.conninfo) as session:
        session.execute("INSERT INTO t VALUES (1, NULL, '(s,1)')")
        runs.run("ALTER TYPE addr ADD ATTRIBUTE zip text", "INSERT INTO t VALUES (2)")
        assert runs.altered() == dict.fromkeys("cd", "public.addr.zip was added")
        # Of another transaction no row can look so.
        runs.run("INSERT INTO t VALUES (3)")
        assert not runs.altered()
        session.execute("INSERT INTO t VALUES (4, NULL, '(s,1,)')")
        session.commit()
    manifest = runs.run("INSERT INTO t VALUES (5)")
    rows = {each["a"]: each["c"] for each in runs.source.changes(manifest, "public.t")}
    assert rows == {1: "(s,1)", 4: "(s,1,)", 5: None}
    assert runs.altered().keys() == {"c", "d"}
    assert all("transaction that was open" in each for each in runs.altered().values())
    runs.run("INSERT INTO t VALUES (6)")
    assert not runs.altered()


def test_a_type_that_is_altered_after_rows_of_a_column_that_is_new(runs: Runs) -> None:
    """No batch before knows how the type was defined. The catalog knows when it was written."""
    runs.source.execute(
        "CREATE TYPE mood AS ENUM ('sad')",
        "CREATE TYPE addr AS (street text, n int)",
        "CREATE DOMAIN liked AS mood",
    )
    runs.run("INSERT INTO t VALUES (1)")
    # The type is younger than rows of the batch, and older than those that have the column.
    runs.run(
        "UPDATE t SET b = 'x'",
        "CREATE TYPE late AS ENUM ('a')",
        "ALTER TABLE t ADD l late DEFAULT 'a', ADD ls late[]",
        "UPDATE t SET b = 'y'",
    )
    assert not runs.altered()
    runs.run(
        "ALTER TABLE t ADD m mood DEFAULT 'sad', ADD ms liked[], ADD c addr, ADD plain int",
        "UPDATE t SET c = '(s,1)'",
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        "ALTER TYPE addr ADD ATTRIBUTE zip text",
        "INSERT INTO t(a) VALUES (2)",
    )
    newer = "the definition of its type public.{} is newer than rows of this batch"
    assert runs.altered() == {
        "m": newer.format("mood"),
        "ms": newer.format("mood"),
        "c": newer.format("addr"),
    }
    runs.run("UPDATE t SET b = 'z'")
    assert not runs.altered()
    manifest = runs.run(
        "ALTER TABLE t ADD d addr DEFAULT '(s,1,)'",
        "UPDATE t SET b = 'd'",
        "ALTER TYPE addr DROP ATTRIBUTE n",
        "UPDATE t SET b = 'e'",
        schema_policy=COPY,
    )
    assert copied(manifest) == ["public.t"]


def test_what_is_altered_while_a_run_reads_is_said_at_its_end(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a table that the run has copied before is copied again where rows are found by the column."""
    runs.source.execute(
        "CREATE TYPE cp AS (i int)",
        "CREATE TABLE k(id cp PRIMARY KEY)",
        "ALTER PUBLICATION p ADD TABLE k",
        "INSERT INTO k VALUES ('(1)')",
        "ALTER TABLE t ADD c cp",
        "INSERT INTO t VALUES (1, NULL, '(1)')",
    )
    real, alter = stage._read, iter(("ADD ATTRIBUTE j int", "ADD ATTRIBUTE k int"))

    def after_a_migration(*given: Any) -> Any:
        found = real(*given)
        if what := next(alter, None):
            runs.source.execute(f"ALTER TYPE cp {what}")
        return found

    runs.run()
    monkeypatch.setattr(stage, "_read", after_a_migration)
    runs.run("UPDATE t SET b = 'x'")
    assert runs.altered() == {"c": "public.cp.j was added"}
    with pytest.raises(SnapshotLost, match="changed after the table was copied"):
        runs.run("INSERT INTO k VALUES ('(2,)')", copy_tables=("public.k",))
    assert copied(runs.run(copy_tables=("public.k",))) == ["public.k"]


def test_an_attribute_of_a_struct_that_another_took_the_place_of(runs: Runs) -> None:
    """What comes and goes is followed; one of the same name and type in its place would not be seen."""
    options = {"type_options": {"composite": "struct"}}
    runs.source.execute("CREATE TYPE pair AS (a int, n int)", "ALTER TABLE t ADD c pair")
    runs.run("INSERT INTO t VALUES (1, NULL, '(1,2)')", **options)
    change = "UPDATE t SET b = 'x'"
    runs.run("ALTER TYPE pair ADD ATTRIBUTE z int", change, **options)
    runs.run("ALTER TYPE pair DROP ATTRIBUTE z", change, **options)
    assert not runs.altered()
    runs.run(
        "ALTER TYPE pair DROP ATTRIBUTE n", "ALTER TYPE pair ADD ATTRIBUTE n int", change, **options
    )
    assert runs.altered() == {"c": "public.pair.n was dropped; public.pair.n was added"}


def test_what_a_lake_of_the_version_before_has_no_definitions_of_is_no_alarm(runs: Runs) -> None:
    runs.source.execute("CREATE TYPE mood AS ENUM ('sad')", "ALTER TABLE t ADD c mood")
    runs.run("INSERT INTO t VALUES (1, NULL, 'sad')")
    assert runs.checkpoint is not None
    shapes = {}
    for oid, shape in runs.checkpoint.shapes.items():
        body = json.loads(shape.to_json())
        del body["types"], body["type_oids"]
        old = Shape.from_json(json.dumps(body))
        assert old is not None
        shapes[oid] = old
    runs.checkpoint = dataclasses.replace(runs.checkpoint, shapes=shapes)
    rename = "ALTER TYPE mood RENAME VALUE '{}' TO '{}'"
    assert runs.run(rename.format("sad", "blue"), "UPDATE t SET b = 'x'").tables[0].records_columns
    assert not runs.altered()
    runs.run(rename.format("blue", "sad"), "UPDATE t SET b = 'y'")
    assert runs.altered().keys() == {"c"}


def test_a_generated_column_with_another_expression(runs: Runs) -> None:
    (version,) = runs.source.execute("SELECT current_setting('server_version_num')::int")[0]
    if version < 180000:
        pytest.skip("generated columns are published from PostgreSQL 18 on")
    runs.source.execute(
        "CREATE TABLE g(a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED)",
        "CREATE PUBLICATION q FOR TABLE g WITH (publish_generated_columns = stored)",
        "INSERT INTO g VALUES (1)",
    )
    options = {"publication_names": ("q",)}
    runs.run(**options)
    runs.run("INSERT INTO g VALUES (2)", **options)
    runs.run("ALTER TABLE g RENAME a TO c", "INSERT INTO g VALUES (3)", **options)
    assert not runs.altered()
    change = "ALTER TABLE g ALTER b SET EXPRESSION AS (c * {})"
    runs.run(change.format(3), "INSERT INTO g VALUES (4)", **options)
    assert runs.altered() == {"b": "it has another expression"}
    change = change.format(4)
    assert copied(runs.run(change, "INSERT INTO g VALUES (5)", schema_policy=COPY, **options))
    runs.run("ALTER TABLE g ALTER b DROP EXPRESSION", "INSERT INTO g VALUES (6, 6)", **options)
    assert not runs.altered()
