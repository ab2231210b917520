"""Tables that are published later, or copied again: in the batch of all others, at a point of their own."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import ConfigurationError, LakeUnavailable, TableRefused
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source


def lake_with(*batches: Manifest) -> Checkpoint:
    """The checkpoint of a lake that holds these batches."""
    known = {table.relation_oid: table.name for batch in batches for table in batch.tables}
    return dataclasses.replace(checkpoint_of(batches[-1]), tables=known)


def test_a_table_published_later_is_copied_while_others_flow(source: Source) -> None:
    first = source.stage()
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY, b text)",
        "INSERT INTO u SELECT g, 'old' FROM generate_series(1, 100) g",
        "INSERT INTO t VALUES (1, 'before')",
        "ALTER PUBLICATION p ADD TABLE u",
        "INSERT INTO u VALUES (101, 'published')",
        "UPDATE u SET b = 'changed' WHERE a = 5",
    )
    second = source.stage(checkpoint=lake_with(first))
    assert [row["a"] for row in source.changes(second, "public.t")] == [1]
    assert sorted(row["a"] for row in source.copied(second, "public.u")) == list(range(1, 102))
    # What the copy holds already is not staged as changes.
    assert source.changes(second, "public.u") == []
    (table,) = [each for each in second.tables if each.name == "public.u"]
    assert table.copy_lsn is not None
    assert second.start_lsn < Lsn.parse(table.copy_lsn) <= second.end_lsn
    source.execute("INSERT INTO u VALUES (102, 'after')")
    third = source.stage(checkpoint=lake_with(first, second))
    assert [row["a"] for row in source.changes(third, "public.u")] == [102]
    assert source.copied(third, "public.u") == []


def test_a_column_that_comes_while_the_snapshot_is_waited_for_is_copied(source: Source) -> None:
    """Making the copy's slot waits for open transactions, and a migration may commit meanwhile."""
    first = source.stage()
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY)",
        "INSERT INTO u VALUES (1), (2)",
        "ALTER PUBLICATION p ADD TABLE u",
    )
    staged: list[Manifest] = []
    with psycopg.connect(source.conninfo) as holding:
        holding.execute("INSERT INTO t VALUES (1, 'open')")
        run = threading.Thread(
            target=lambda: staged.append(source.stage(checkpoint=lake_with(first)))
        )
        run.start()
        while not source.execute(
            "SELECT 1 FROM pg_replication_slots WHERE slot_name LIKE 'pgoutput_copy_%'"
        ):
            time.sleep(0.01)
        source.execute("ALTER TABLE u ADD b int", "UPDATE u SET b = a * 10")
        holding.commit()
        run.join()
    (second,) = staged
    copied = source.copied(second, "public.u")
    assert sorted((row["a"], row["b"]) for row in copied) == [(1, 10), (2, 20)]


def test_changes_during_the_copy_come_behind_it(source: Source) -> None:
    """Every row once: in the copy or as a change past its point, while somebody goes on writing."""
    first = source.stage()
    source.execute("CREATE TABLE u(a int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE u")
    stopping = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        with psycopg.connect(source.conninfo, autocommit=True) as session:
            while not stopping.is_set():
                session.execute("INSERT INTO u VALUES (%s)", (written,))
                written += 1
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while written < 100:
            assert writer.is_alive()
            time.sleep(0.01)
        batches = [first, source.stage(checkpoint=lake_with(first))]
    finally:
        stopping.set()
        writer.join()
    batches.append(source.stage(checkpoint=lake_with(*batches)))
    rows = [row["a"] for row in source.copied(batches[1], "public.u")]
    assert rows
    for batch in batches[1:]:
        if any(each.name == "public.u" for each in batch.tables):
            rows += [row["a"] for row in source.changes(batch, "public.u")]
    assert sorted(rows) == list(range(written))


def test_a_transaction_open_at_add_table_is_not_torn(source: Source) -> None:
    """Scenario C93: the server alone loses what such a transaction wrote before the table was added."""
    first = source.stage()
    source.execute("CREATE TABLE u(a int PRIMARY KEY)")
    with psycopg.connect(source.conninfo) as one, psycopg.connect(source.conninfo) as two:
        one.execute("INSERT INTO u VALUES (11)")
        two.execute("INSERT INTO u VALUES (21)")
        source.execute("ALTER PUBLICATION p ADD TABLE u")
        one.execute("INSERT INTO u VALUES (12)")
        two.execute("INSERT INTO u VALUES (22)")
        two.execute("INSERT INTO t VALUES (1)")
        found: list[Manifest] = []
        run = threading.Thread(
            target=lambda: found.append(source.stage(checkpoint=lake_with(first)))
        )
        run.start()
        time.sleep(1)
        assert run.is_alive(), "the copy waits for the open transactions"
        two.commit()
        one.commit()
        run.join(timeout=60)
    source.execute("INSERT INTO u VALUES (99)")
    last = source.stage(checkpoint=lake_with(first, *found))
    rows = [row["a"] for row in source.copied(found[0], "public.u")]
    rows += [row["a"] for row in source.changes(last, "public.u")]
    assert sorted(rows) == [11, 12, 21, 22, 99]


def test_a_table_is_copied_again_when_asked(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (1, 'x')")
    first = source.stage()
    source.execute("UPDATE t SET b = 'y'", "ALTER TABLE t ADD c int DEFAULT 3")
    again = source.stage(checkpoint=lake_with(first), copy_tables=["public.t"], max_changes=1)
    assert source.copied(again, "public.t") == [{"a": 1, "b": "y", "c": 3}]
    assert source.changes(again, "public.t") == []


def test_what_is_asked_for_must_be_published(source: Source) -> None:
    first = source.stage()
    with pytest.raises(ConfigurationError, match=r"not published: public\.nobody"):
        source.stage(checkpoint=lake_with(first), copy_tables=["public.nobody"])


def test_a_renamed_table_is_asked_for_by_its_name_of_today(source: Source) -> None:
    first = source.stage()
    source.execute("ALTER TABLE t RENAME TO moved")
    with pytest.raises(ConfigurationError, match=r"public\.t is public\.moved now"):
        source.stage(checkpoint=lake_with(first), copy_tables=["public.t"])


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_new_tables_are_left_out_until_they_are_named(
    source: Source, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``ignore``: also one that was published for a while only, of which a part would be in the stream."""
    first = source.stage()
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY)",
        "CREATE TABLE v(a int PRIMARY KEY)",
        "INSERT INTO u VALUES (1)",
        "INSERT INTO v VALUES (1)",
        "ALTER PUBLICATION p ADD TABLE u, v",
        "INSERT INTO u VALUES (2)",
        "INSERT INTO v VALUES (2)",
        "ALTER PUBLICATION p DROP TABLE v",
        "INSERT INTO t VALUES (1, 'beside')",
    )
    ignore: dict[str, Any] = {"on_new_table": "ignore", "transport": transport}
    second = source.stage(checkpoint=lake_with(first), **ignore)
    assert [each.name for each in second.tables] == ["public.t"]
    assert [row["a"] for row in source.changes(second, "public.t")] == [1]
    assert "left out until copy_tables names them: public.u" in caplog.text
    assert "Changes of public.v are left out" in caplog.text
    source.execute("INSERT INTO u VALUES (3)")
    lake = lake_with(first, second)
    copied = source.stage(checkpoint=lake, copy_tables=["public.u"], **ignore)
    assert sorted(row["a"] for row in source.copied(copied, "public.u")) == [1, 2, 3]
    # From now on the lake knows it.
    source.execute("INSERT INTO u VALUES (4)")
    later = source.stage(checkpoint=lake_with(first, second, copied), **ignore)
    assert [row["a"] for row in source.changes(later, "public.u")] == [4]


def test_new_tables_stop_the_run_where_they_shall(source: Source) -> None:
    """``fail``: nothing is staged, and the slot stays, until the table is named or no longer published."""
    first = source.stage()
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY)",
        "INSERT INTO u VALUES (1)",
        "ALTER PUBLICATION p ADD TABLE u",
        "INSERT INTO u VALUES (2)",
        "INSERT INTO t VALUES (1, 'beside')",
    )
    confirmed, lake = source.confirmed(), lake_with(first)
    for _attempt in range(2):
        with pytest.raises(TableRefused, match="the lake does not have it") as refusal:
            source.stage(checkpoint=lake, on_new_table="fail")
        assert refusal.value.table == "public.u"
        assert refusal.value.advice
    assert source.confirmed() == confirmed
    second = source.stage(checkpoint=lake, on_new_table="fail", copy_tables=["public.u"])
    assert sorted(row["a"] for row in source.copied(second, "public.u")) == [1, 2]
    source.execute("INSERT INTO u VALUES (3)")
    third = source.stage(checkpoint=lake_with(first, second), on_new_table="fail")
    assert [row["a"] for row in source.changes(third, "public.u")] == [3]


def recreate(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (8, 'of the former table')", "DROP TABLE t")
    source.execute("CREATE TABLE t(a int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source.execute("ALTER PUBLICATION p ADD TABLE t", "INSERT INTO t VALUES (2)")


def test_a_table_that_was_made_again_is_not_copied_unasked(source: Source) -> None:
    lake = lake_with(source.stage())
    recreate(source)
    for _attempt in range(2):
        with pytest.raises(TableRefused, match="created again") as refusal:
            source.stage(checkpoint=lake)
        assert refusal.value.table == "public.t"
    for options in ({"copy_tables": ["public.t"]}, {"on_recreated_table": "copy"}):
        batch = source.stage(checkpoint=lake, **options)
        # The changes of the former table, which the copy replaces, are not in the batch.
        (table,) = batch.tables
        assert table.copy_lsn is not None
        assert sorted(row["a"] for row in source.copied(batch, "public.t")) == [1, 2]
        assert source.changes(batch, "public.t") == []
    # From now on the lake knows it.
    source.execute("INSERT INTO t VALUES (3)")
    again = source.stage(checkpoint=lake_with(batch))
    assert [row["a"] for row in source.changes(again, "public.t")] == [3]


def test_a_renamed_table_is_copied_too_when_another_takes_its_name(source: Source) -> None:
    lake = lake_with(source.stage())
    source.execute("INSERT INTO t VALUES (1)", "ALTER TABLE t RENAME TO t_old")
    source.execute("CREATE TABLE t(a int PRIMARY KEY)", "INSERT INTO t VALUES (2)")
    source.execute("ALTER PUBLICATION p ADD TABLE t")
    batch = source.stage(checkpoint=lake, on_recreated_table="copy")
    # The copy of the new one replaces what the lake has under the name, which is the former one's rows.
    assert [row["a"] for row in source.copied(batch, "public.t_old")] == [1]
    assert [row["a"] for row in source.copied(batch, "public.t")] == [2]


#: What becomes of ``s.t`` before another table takes its name: it is published no more.
ROTATED = {
    "into another schema": ("ALTER TABLE s.t SET SCHEMA archive",),
    "under another name": ("ALTER TABLE s.t RENAME TO old", "ALTER PUBLICATION q DROP TABLE s.old"),
    "with rows under it": (
        "ALTER TABLE s.t RENAME TO old",
        "UPDATE s.old SET b = 'last'",
        "ALTER PUBLICATION q DROP TABLE s.old",
    ),
}


@pytest.mark.parametrize("options", [{"copy_tables": ["s.t"]}, {"on_recreated_table": "copy"}])
@pytest.mark.parametrize("case", list(ROTATED))
def test_a_table_that_left_its_name_and_the_publication_is_not_in_the_batch(
    source: Source, case: str, options: dict[str, Any]
) -> None:
    """Apply would refuse it as renamed, run after run: it cannot be copied, as nobody publishes it."""
    what = "TABLES IN SCHEMA s" if case == "into another schema" else "TABLE s.t"
    source.execute(
        "CREATE SCHEMA s",
        "CREATE SCHEMA archive",
        "CREATE TABLE s.t(a int PRIMARY KEY, b text)",
        "INSERT INTO s.t VALUES (1, 'first')",
        f"CREATE PUBLICATION q FOR {what}",
    )
    lake = lake_with(source.stage(publication_names=["p", "q"]))
    source.execute("UPDATE s.t SET b = 'changed'", *ROTATED[case])
    source.execute("CREATE TABLE s.t(a int PRIMARY KEY, b text)")
    if what == "TABLE s.t":
        source.execute("ALTER PUBLICATION q ADD TABLE s.t")
    source.execute("INSERT INTO s.t VALUES (2, 'new')", "INSERT INTO t VALUES (7, 'beside')")
    batch = source.stage(publication_names=["p", "q"], checkpoint=lake, **options)
    assert {each.name: each.copy_lsn is not None for each in batch.tables} == {
        "public.t": False,
        "s.t": True,
    }
    assert source.copied(batch, "s.t") == [{"a": 2, "b": "new"}]
    assert source.changes(batch, "s.t") == []


def test_without_an_initial_copy_later_tables_are_not_copied_either(source: Source) -> None:
    first = source.stage(initial_copy="never")
    source.execute("CREATE TABLE u(a int PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    source.execute("ALTER PUBLICATION p ADD TABLE u", "INSERT INTO u VALUES (2)")
    second = source.stage(checkpoint=lake_with(first), initial_copy="never")
    assert [row["a"] for row in source.changes(second, "public.u")] == [2]


def test_a_sealed_batch_gives_way_to_one_with_the_copy(source: Source) -> None:
    """The sealed one may be what apply refuses until the table is copied again."""
    first = source.stage()
    source.execute("INSERT INTO t VALUES (1, 'x')")
    lake = lake_with(first)
    refused = source.stage(checkpoint=lake)
    source.execute("INSERT INTO t VALUES (2, 'y')")
    assert source.stage(checkpoint=lake).batch_id == refused.batch_id
    again = source.stage(checkpoint=lake, copy_tables=["public.t"])
    assert sorted(row["a"] for row in source.copied(again, "public.t")) == [1, 2]
    assert again.start_lsn == refused.start_lsn
    # Another attempt of the same run finds it.
    assert source.stage(checkpoint=lake, copy_tables=["public.t"]).batch_id == again.batch_id


@pytest.mark.parametrize("why", ["another copy", "a transaction to leave out"])
def test_a_copy_that_was_asked_for_is_made_by_the_batch_that_takes_its_place(
    source: Source, why: str
) -> None:
    """The run that asked for it counts as applied when the lake is past its batch."""
    source.execute("CREATE TABLE u(a int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE u")
    lake = lake_with(source.stage())
    source.execute("INSERT INTO t VALUES (1, 'x')", "INSERT INTO u VALUES (1)")
    asked = source.stage(checkpoint=lake, copy_tables=["public.t"])
    source.execute("INSERT INTO t VALUES (2, 'y')")
    if why == "another copy":
        options: dict[str, Any] = {"copy_tables": ["public.u"]}
    else:
        (changed,) = source.changes(asked, "public.u")
        options = {"skip_lsns": [Lsn(changed["commit_lsn"])]}
    following = source.stage(checkpoint=lake, **options)
    assert following.batch_id != asked.batch_id
    assert sorted(row["a"] for row in source.copied(following, "public.t")) == [1, 2]


def test_no_batch_is_sealed_without_the_files_of_its_copies(source: Source) -> None:
    """Somebody deletes one before the manifest is written. The next attempt copies the table again."""
    source.execute("INSERT INTO t VALUES (1, 'x')")

    def delete_copies(reached: str) -> None:
        if reached == "stage.after_files":
            for file in source.staging.rglob("copy-*.parquet"):
                file.unlink()

    with (
        crash_points.watched(delete_copies),
        pytest.raises(LakeUnavailable, match="staged files of copied tables are gone"),
    ):
        source.stage()
    assert not list(source.staging.rglob("manifests/*.json"))
    assert source.copied(source.stage(), "public.t") == [{"a": 1, "b": "x"}]
