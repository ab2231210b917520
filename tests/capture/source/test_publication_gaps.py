"""A table that the publications lacked for a while is copied again, and another is not."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.capture.source.errors import skipped_publication
from airflow_provider_pgoutput.errors import PublicationChanged, PublicationMissing
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

SETUP = (
    "CREATE TABLE u(a int PRIMARY KEY, b text)",
    "CREATE SCHEMA s",
    "CREATE SCHEMA other",
    "CREATE TABLE s.v(a int PRIMARY KEY)",
    "CREATE TABLE root(a int PRIMARY KEY) PARTITION BY RANGE (a)",
    "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100)",
    "ALTER PUBLICATION p ADD TABLE u, root, TABLES IN SCHEMA s",
    "CREATE PUBLICATION q FOR TABLE t WHERE (a > 5)",
    "CREATE PUBLICATION everything FOR ALL TABLES",
)
#: What happens between two runs, and which tables have to be copied again because of it.
CASES: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "nothing": (("INSERT INTO u VALUES (1)", "VACUUM FREEZE u"), set()),
    "dropped_and_added": (
        ("ALTER PUBLICATION p DROP TABLE u", "ALTER PUBLICATION p ADD TABLE u"),
        {"public.u"},
    ),
    "other_tables_come_and_go": (
        (
            "CREATE TABLE w(a int)",
            "ALTER PUBLICATION p ADD TABLE w",
            "ALTER PUBLICATION p DROP TABLE w",
            "ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate')",
        ),
        set(),
    ),
    "set_to_the_same": (
        ("ALTER PUBLICATION p SET TABLE t, u, root, TABLES IN SCHEMA s",),
        set(),
    ),
    "a_filter_comes_and_goes": (
        (
            "ALTER PUBLICATION p SET TABLE t, u WHERE (a > 1), root, TABLES IN SCHEMA s",
            "ALTER PUBLICATION p SET TABLE t, u, root, TABLES IN SCHEMA s",
        ),
        {"public.u"},
    ),
    "out_of_the_schema_and_back": (
        ("ALTER TABLE s.v SET SCHEMA other", "ALTER TABLE other.v SET SCHEMA s"),
        {"s.v"},
    ),
    "the_schema_leaves_and_comes_back": (
        (
            "ALTER PUBLICATION p DROP TABLES IN SCHEMA s",
            "ALTER PUBLICATION p ADD TABLES IN SCHEMA s",
        ),
        {"s.v"},
    ),
    "the_table_is_altered": (
        ("ALTER TABLE s.v ADD b int", "CREATE INDEX ON s.v(b)", "ANALYZE s.v", "VACUUM FULL s.v"),
        set(),
    ),
    "detached_and_attached": (
        (
            "ALTER TABLE root DETACH PARTITION leaf",
            "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (100)",
        ),
        {"public.leaf"},
    ),
    "another_publication_without_a_filter": (("ALTER PUBLICATION q SET TABLE t",), set()),
}


def lake_with(batch: Manifest) -> Checkpoint:
    known = {table.relation_oid: table.name for table in batch.tables}
    return dataclasses.replace(checkpoint_of(batch), tables=known, batch_id=batch.batch_id)


def copied(batch: Manifest) -> set[str]:
    return {table.name for table in batch.tables if table.copy_lsn is not None}


@pytest.mark.parametrize("case", list(CASES))
def test_what_was_not_published_all_the_time_is_copied_again(
    source: Source, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    statements, wanted = CASES[case]
    source.execute(*SETUP)
    lake = lake_with(source.stage())
    source.execute(*statements)
    batch = source.stage(checkpoint=lake)
    assert copied(batch) == wanted
    for name in wanted:
        assert f"the publications lacked {name}" in caplog.text
    # The next run has nothing to make up for.
    known = {**(lake.tables or {}), **(lake_with(batch).tables or {})}
    source.execute("INSERT INTO t VALUES (7)")
    after = source.stage(checkpoint=dataclasses.replace(lake_with(batch), tables=known))
    assert copied(after) == set()


def test_a_publication_without_all_operations_fills_no_gap_of_another(source: Source) -> None:
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY)",
        "CREATE PUBLICATION inserts FOR ALL TABLES WITH (publish = 'insert')",
        "CREATE PUBLICATION whole FOR TABLE u",
    )
    names = ["inserts", "whole"]
    lake = lake_with(source.stage(publication_names=names))
    source.execute("ALTER PUBLICATION whole DROP TABLE u", "ALTER PUBLICATION whole ADD TABLE u")
    batch = source.stage(publication_names=names, checkpoint=lake)
    assert copied(batch) == {"public.u"}
    known = {**(lake.tables or {}), **(lake_with(batch).tables or {})}
    later = dataclasses.replace(lake_with(batch), tables=known)
    source.execute("INSERT INTO u VALUES (1)")
    assert copied(source.stage(publication_names=names, checkpoint=later)) == set()


def test_a_publication_that_brings_no_operation_brings_no_copy(source: Source) -> None:
    rows = "insert, update, delete"
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY)",
        f"CREATE PUBLICATION most FOR ALL TABLES WITH (publish = '{rows}')",
        f"CREATE PUBLICATION same FOR TABLE u WITH (publish = '{rows}')",
        "CREATE PUBLICATION truncates FOR TABLE u WITH (publish = 'truncate')",
    )
    lake = lake_with(source.stage(publication_names=["most"]))
    source.execute("INSERT INTO u VALUES (1)")
    batch = source.stage(publication_names=["most", "same"], checkpoint=lake)
    assert copied(batch) == set()
    later = dataclasses.replace(lake_with(batch), tables=lake.tables)
    source.execute("INSERT INTO u VALUES (2)")
    names = ["most", "same", "truncates"]
    assert copied(source.stage(publication_names=names, checkpoint=later)) == {"public.u"}


def test_more_rows_than_a_filter_let_through_are_copied(source: Source) -> None:
    source.execute(*SETUP)
    lake = lake_with(source.stage(publication_names=["q"]))
    # Still filtered, and not by more than before.
    filtered = source.stage(publication_names=["q"], checkpoint=lake)
    assert copied(filtered) == set()
    source.execute("INSERT INTO t VALUES (6)")
    # That batch may hold something already: the server itself writes to the WAL now and then.
    later = dataclasses.replace(lake_with(filtered), tables=lake.tables)
    both = source.stage(publication_names=["q", "everything"], checkpoint=later)
    assert "public.t" in copied(both)


def test_without_copies_a_gap_is_named(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.execute(*SETUP)
    first = source.stage(initial_copy="never")
    assert lake_with(first).tables == {}
    source.execute(
        "ALTER PUBLICATION p DROP TABLE u",
        "ALTER PUBLICATION p ADD TABLE u",
        "CREATE TABLE later(a int PRIMARY KEY)",
        "INSERT INTO later VALUES (1)",
        "ALTER PUBLICATION p ADD TABLE later",
    )
    batch = source.stage(initial_copy="never", checkpoint=lake_with(first))
    assert copied(batch) == set()
    for name in ("public.u", "public.later"):
        assert f"the publications lacked {name}" in caplog.text
    assert "copy_tables" in caplog.text
    assert "lacked public.t," not in caplog.text


VIA_ROOT = "FOR TABLE t, u, root, TABLES IN SCHEMA s WITH (publish_via_partition_root)"


@pytest.mark.parametrize(
    "change",
    [
        "ALTER PUBLICATION p SET (publish_via_partition_root)",
        # One transaction: no change can come between.
        f"DROP PUBLICATION p; CREATE PUBLICATION p {VIA_ROOT}",
        f"ALTER PUBLICATION p RENAME TO former; CREATE PUBLICATION p {VIA_ROOT}",
    ],
    ids=["altered", "made again", "another of its name"],
)
def test_partitions_published_under_another_name_stop_the_run(source: Source, change: str) -> None:
    source.execute(*SETUP)
    lake = lake_with(source.stage())
    source.execute("INSERT INTO root VALUES (1)")
    source.execute(change)
    confirmed = source.confirmed()
    for _attempt in range(2):
        with pytest.raises(PublicationChanged, match="publish_via_partition_root") as refusal:
            source.stage(checkpoint=lake)
        assert refusal.value.advice
    assert source.confirmed() == confirmed
    source.execute("ALTER PUBLICATION p SET (publish_via_partition_root = false)")
    batch = source.stage(checkpoint=lake, copy_tables=["public.leaf"])
    assert [row["a"] for row in source.copied(batch, "public.leaf")] == [1]


@pytest.mark.parametrize("on_new_table", ["copy", "ignore", "fail"])
def test_rows_that_came_under_another_name_meanwhile_stop_the_run(
    source: Source, on_new_table: str
) -> None:
    """The setting is the same before and after; only the stream shows that it was not all the time.

    The lake does not have the tables whose names they came under, and yet they are not of new ones.
    """
    source.execute(*SETUP, "ALTER PUBLICATION p SET (publish_via_partition_root)")
    lake = lake_with(source.stage())
    there = "ALTER PUBLICATION p SET (publish_via_partition_root = {})"
    source.execute(
        there.format("false"),
        "INSERT INTO root VALUES (1)",
        there.format("true"),
        "INSERT INTO root VALUES (2)",
    )
    confirmed = source.confirmed()
    with pytest.raises(PublicationChanged, match="for a while") as refusal:
        source.stage(checkpoint=lake, on_new_table=on_new_table)
    assert refusal.value.table == "public.root"
    assert source.confirmed() == confirmed
    batch = source.stage(checkpoint=lake, copy_tables=["public.root"])
    assert sorted(row["a"] for row in source.copied(batch, "public.root")) == [1, 2]
    # Now the other way round.
    source.execute(there.format("false"))
    leaves = lake_with(source.stage(slot_name=f"{source.slot_name}_leaves"))
    source.execute(
        there.format("true"),
        "INSERT INTO root VALUES (3)",
        there.format("false"),
        "INSERT INTO root VALUES (4)",
    )
    other = {
        "slot_name": f"{source.slot_name}_leaves",
        "checkpoint": leaves,
        "on_new_table": on_new_table,
    }
    with pytest.raises(PublicationChanged, match="for a while") as refusal:
        source.stage(**other)
    assert refusal.value.table == "public.leaf"
    batch = source.stage(**other, copy_tables=["public.leaf"])
    assert sorted(row["a"] for row in source.copied(batch, "public.leaf")) == [1, 2, 3, 4]
    source.execute(f"SELECT pg_drop_replication_slot('{source.slot_name}_leaves')")


def test_rows_of_a_partition_that_was_a_table_for_a_while_stop_the_run(source: Source) -> None:
    """The publication names all tables, so these rows were sent, and under the name of that table."""
    source.execute(
        "CREATE TABLE root(a int PRIMARY KEY) PARTITION BY RANGE (a)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "DROP PUBLICATION p",
        "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)",
    )
    lake = lake_with(source.stage())
    source.execute(
        "ALTER TABLE root DETACH PARTITION leaf",
        "INSERT INTO leaf VALUES (1)",
        "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (10)",
    )
    with pytest.raises(PublicationChanged, match="a table of its own for a while") as refusal:
        source.stage(checkpoint=lake, initial_copy="never")
    assert refusal.value.table == "public.root"
    batch = source.stage(checkpoint=lake)
    assert [row["a"] for row in source.copied(batch, "public.root")] == [1]


def test_a_generated_column_that_is_published_for_a_while_has_its_number(source: Source) -> None:
    """It is neither published before nor now. The column that is renamed meanwhile keeps its number."""
    (version,) = source.execute("SELECT current_setting('server_version_num')::int / 10000")[0]
    if version < 18:
        pytest.skip("publish_generated_columns came with PostgreSQL 18")
    source.execute(
        "CREATE TABLE g(a int PRIMARY KEY, b int, c int GENERATED ALWAYS AS (a) STORED, d int)",
        "ALTER PUBLICATION p SET TABLE g",
    )
    lake = lake_with(source.stage())
    source.execute(
        "ALTER PUBLICATION p SET (publish_generated_columns = stored)",
        "INSERT INTO g VALUES (1, 1, DEFAULT, 1)",
        "ALTER TABLE g RENAME b TO z",
        "ALTER TABLE g DROP c",
        "ALTER PUBLICATION p SET (publish_generated_columns = none)",
        "INSERT INTO g VALUES (2, 2, 2)",
    )
    (table,) = source.stage(checkpoint=lake).tables
    assert [
        {each.name: each.attribute_number for each in version.columns} for version in table.versions
    ] == [{"a": 1, "b": 2, "c": 3, "d": 4}, {"a": 1, "z": 2, "d": 4}]


def test_generated_columns_that_are_published_later_are_copied(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """No row that was sent before has them, and none is sent again."""
    (version,) = source.execute("SELECT current_setting('server_version_num')::int / 10000")[0]
    if version < 18:
        pytest.skip("this is about PostgreSQL 18")
    source.execute(
        *SETUP,
        "CREATE TABLE g(a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED)",
        "ALTER PUBLICATION p ADD TABLE g",
        "INSERT INTO g VALUES (1)",
    )
    lake = lake_with(source.stage())
    source.execute(
        "ALTER PUBLICATION p SET (publish_generated_columns = stored)", "INSERT INTO g VALUES (2)"
    )
    batch = source.stage(checkpoint=lake)
    assert copied(batch) == {"public.g"}
    assert "the publications lacked public.g" in caplog.text
    assert {row["a"]: row["b"] for row in source.copied(batch, "public.g")} == {1: 2, 2: 4}
    known = {**(lake.tables or {}), **(lake_with(batch).tables or {})}
    source.execute(
        "ALTER TABLE g ADD c int GENERATED ALWAYS AS (a * 3) STORED", "INSERT INTO g VALUES (3)"
    )
    after = source.stage(checkpoint=dataclasses.replace(lake_with(batch), tables=known))
    assert copied(after) == set()


def test_partitions_that_come_and_go_are_named(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Published via the root: what an attached table brought along is not in the stream."""
    source.execute(*SETUP, "ALTER PUBLICATION p SET (publish_via_partition_root)")
    lake = lake_with(source.stage())
    source.execute("CREATE TABLE born PARTITION OF root FOR VALUES FROM (100) TO (200)")
    batch = source.stage(checkpoint=lake)
    assert "partitions" not in caplog.text
    source.execute(
        "CREATE TABLE brought(a int PRIMARY KEY)",
        "INSERT INTO brought VALUES (200)",
        "ALTER TABLE root ATTACH PARTITION brought FOR VALUES FROM (200) TO (300)",
        "DROP TABLE born",
    )
    with psycopg.connect(source.conninfo) as session:
        session.execute("CREATE TABLE filled(a int PRIMARY KEY)")
        session.execute("INSERT INTO filled VALUES (300)")
        session.execute("ALTER TABLE root ATTACH PARTITION filled FOR VALUES FROM (300) TO (400)")
        session.execute("CREATE TABLE twin PARTITION OF root FOR VALUES FROM (400) TO (500)")
    source.execute("INSERT INTO t VALUES (1)")
    known = {**(lake.tables or {})}
    after = source.stage(checkpoint=dataclasses.replace(lake_with(batch), tables=known))
    assert copied(after) == {"public.root"}
    assert "were tables of their own and had rows: public.brought." in caplog.text
    # One partition went, so its rows may be those of this one.
    assert "were tables of their own: public.filled." in caplog.text
    assert "1 partitions of public.root were detached or dropped" in caplog.text


def test_a_batch_of_the_version_before_is_read_and_the_publication_watched(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Its manifest says nothing of memberships: what may have changed is named, as it was then."""
    first = source.stage()
    (path,) = (source.staging / source.slot_name / "manifests").glob("*")
    body = json.loads(path.read_text())
    for name in ("published", "loaded_lsn"):
        del body[name]
    path.write_text(json.dumps(body))
    assert Manifest.from_json(path.read_text()).batch_id == first.batch_id
    source.execute("ALTER PUBLICATION p DROP TABLE t", "ALTER PUBLICATION p ADD TABLE t")
    batch = source.stage(checkpoint=lake_with(first))
    assert copied(batch) == set()
    assert "took up public.t" in caplog.text


def test_a_publication_that_the_server_skipped_is_known_in_any_language(source: Source) -> None:
    """The words are those of ``lc_messages``, which a plain role cannot set."""
    heard: list[PublicationMissing | None] = []
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.add_notice_handler(lambda notice: heard.append(skipped_publication(notice)))
        session.execute(
            "DO $$ BEGIN"
            " RAISE WARNING 'Laden der Publikation wird uebersprungen' USING ERRCODE = '55000';"
            " RAISE WARNING 'something else'; RAISE NOTICE 'told' USING ERRCODE = '55000';"
            " END $$"
        )
    assert [each is not None for each in heard] == [True, False, False]
    assert "uebersprungen" in str(heard[0])
    assert "drop the slot" in str(heard[0])


@pytest.mark.parametrize("is_one_transaction", [True, False])
@pytest.mark.parametrize("names", ["ALL TABLES", "TABLE root"])
def test_a_root_is_copied_again_if_a_table_with_rows_became_its_partition(
    source: Source, names: str, is_one_transaction: bool
) -> None:
    """The stream has these rows under the name of the table, or not at all."""
    lake = _lake_of_a_root(source, names)
    _make_and_attach(source, is_one_transaction, "INSERT INTO leaf VALUES (1), (2)")
    source.execute("DELETE FROM root WHERE a = 2")
    batch = source.stage(checkpoint=lake)
    assert copied(batch) == {"public.root"}
    assert [row["a"] for row in source.copied(batch, "public.root")] == [1]


@pytest.mark.parametrize("is_one_transaction", [True, False])
def test_rows_of_a_table_that_became_a_partition_stop_a_run_that_copies_nothing(
    source: Source, is_one_transaction: bool
) -> None:
    lake = _lake_of_a_root(source, "ALL TABLES")
    _make_and_attach(source, is_one_transaction, "INSERT INTO leaf VALUES (1)")
    with pytest.raises(PublicationChanged, match="a table of its own for a while") as refusal:
        source.stage(checkpoint=lake, initial_copy="never")
    assert refusal.value.table == "public.root"
    batch = source.stage(checkpoint=lake, copy_tables=["public.root"], initial_copy="never")
    assert [row["a"] for row in source.copied(batch, "public.root")] == [1]


@pytest.mark.parametrize("has_rows", [False, True])
def test_a_table_that_became_a_partition_without_rows_needs_no_copy(
    source: Source, has_rows: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs that make partitions ahead of time do so; what is written later comes as rows of the root.

    If it has rows when a run first sees it, a warning names it: not all that it brought can be seen then.
    """
    lake = _lake_of_a_root(source, "TABLE root")
    _make_and_attach(source, False, "TRUNCATE leaf")
    if has_rows:
        source.execute("INSERT INTO root VALUES (1)")
    batch = source.stage(checkpoint=lake)
    assert copied(batch) == set()
    assert ("were tables of their own: public.leaf." in caplog.text) == has_rows
    if has_rows:
        assert [row["a"] for row in source.changes(batch, "public.root")] == [1]


def test_a_partition_that_the_role_may_not_read_is_named(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """A policy of row security hides rows from those who do not own the table."""
    lake = _lake_of_a_root(source, "TABLE root")
    _make_and_attach(source, False, "INSERT INTO leaf VALUES (1)")
    source.execute("ALTER TABLE leaf ENABLE ROW LEVEL SECURITY")
    batch = source.stage(checkpoint=lake)
    assert copied(batch) == set()
    assert "got partitions that were tables of their own: public.leaf." in caplog.text


def _lake_of_a_root(source: Source, names: str) -> Checkpoint:
    source.execute(
        "CREATE TABLE root(a int PRIMARY KEY) PARTITION BY RANGE (a)",
        "DROP PUBLICATION p",
        f"CREATE PUBLICATION p FOR {names} WITH (publish_via_partition_root)",
    )
    return lake_with(source.stage())


def _make_and_attach(source: Source, is_one_transaction: bool, statement: str) -> None:
    steps = (
        "CREATE TABLE leaf(a int PRIMARY KEY)",
        statement,
        "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (10)",
    )
    source.execute(*(["; ".join(steps)] if is_one_transaction else steps))
