"""What happens to a source beside its rows, from the server into the lake: lost slots, silence, late commits.

Scenarios C35, C36, C84, C93, C97, C101, C104, C105. What the stream holds in each case is looked at in
``tests/capture/test_server_states.py``.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import ConfigurationError, SlotLost
from tests.conformance.many_tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.conformance.pipeline import Pipeline


TABLE = ("CREATE TABLE t(a int PRIMARY KEY, b text)", "INSERT INTO t VALUES (1, 'copied')")


@pytest.fixture
def tables(pipeline: Pipeline) -> Tables:
    """A table that was copied."""
    tables = Tables(pipeline)
    tables.run(*TABLE, "CREATE PUBLICATION p FOR TABLE t")
    return tables


def wait_until(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def running(tables: Tables, **options: Any) -> Iterator[list[Manifest]]:
    """A run of the pipeline in a thread of its own, until the block ends; its batch, when it is there."""
    batches: list[Manifest] = []
    thread = threading.Thread(target=lambda: batches.append(tables.run(**options)))
    thread.start()
    try:
        yield batches
    finally:
        thread.join(120)
    assert batches, "the run failed or did not end"


#: By scenario: another publication, and what takes its columns of ``t`` from those of ``p`` and back.
LISTS = {
    "c35": (
        "FOR TABLE u, t (a, b)",
        "ALTER PUBLICATION q SET TABLE u, t (a, c)",
        "ALTER PUBLICATION q SET TABLE u, t (a, b)",
    ),
    "c36": (
        "FOR ALL TABLES",
        "ALTER PUBLICATION p SET TABLE t (a, b)",
        "ALTER PUBLICATION p SET TABLE t",
    ),
}


@pytest.mark.parametrize("scenario", list(LISTS))
def test_different_column_lists_stop_the_run(tables: Tables, scenario: str) -> None:
    """C35, C36: nothing reaches the lake; what was written under two lists is read under one of them."""
    others, apart, together = LISTS[scenario]
    columns = ("a", "b") if scenario == "c35" else ("a", "b", "c")
    both: dict[str, Any] = {"publication_names": ("p", "q")}
    tables.run(
        "ALTER TABLE t ADD c int",
        f"ALTER PUBLICATION p SET TABLE t ({', '.join(columns)})",
        "CREATE TABLE u(a int PRIMARY KEY)",
        f"CREATE PUBLICATION q {others}",
    )
    tables.run("INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (2, 'x', 3)", **both)
    tables.assert_equal("u")
    tables.execute(
        apart,
        "INSERT INTO t VALUES (3, 'y', 4)",
        "UPDATE t SET b = 'z' WHERE a = 1",
        "DELETE FROM u",
        "INSERT INTO u VALUES (2)",
    )
    tables.refused(ConfigurationError, "publish different columns of this table", **both)
    tables.execute(together)
    tables.refused(ConfigurationError, "cannot use different column lists", **both)
    tables.run()
    # What the other one alone holds was left out meanwhile, so it is copied.
    tables.run("INSERT INTO t VALUES (5, 'both', 5)", **both)
    tables.assert_equal("u")
    wanted = tables.execute(f"SELECT {', '.join(each + '::text' for each in columns)} FROM t")
    assert tables.lake_rows("t", columns=columns) == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize(
    "transport", ["sql", pytest.param("walsender", marks=pytest.mark.exhaustive)]
)
def test_c84_a_silent_publication_moves_the_checkpoint_alone(
    tables: Tables, transport: str
) -> None:
    """C84: the lake's tables stay as they are, and the slot lets go of the WAL."""
    heads = tables.state()[-1]
    tables.execute("CREATE TABLE u(a int)", "INSERT INTO u VALUES (1)")
    with psycopg.connect(tables.pipeline.conninfo) as session:
        session.execute("INSERT INTO t VALUES (2, 'rolled back')")
        session.rollback()
    tables.execute("INSERT INTO u VALUES (2)", "SELECT txid_current()")
    written = tables.pipeline.flush_lsn()
    batch = tables.run(transport=transport)
    assert not batch.tables
    checkpoint, confirmed = tables.pipeline.checkpoint(), tables.pipeline.confirmed_flush_lsn()
    assert checkpoint is not None
    assert confirmed is not None
    assert written <= confirmed <= checkpoint.end_lsn == batch.end_lsn
    after = tables.state()[-1]
    assert (after["t"], set(after)) == (heads["t"], set(heads))
    tables.run("INSERT INTO t VALUES (3, 'seen')", transport=transport)
    tables.assert_equal("t")


@pytest.mark.parametrize(
    "transport", [pytest.param("sql", marks=pytest.mark.exhaustive), "walsender"]
)
def test_c93_transactions_that_go_on_while_the_copy_waits_for_them(
    tables: Tables, transport: str
) -> None:
    """C93, F31: both wrote to the table before it was published, and write more while the run waits."""
    tables.execute("CREATE TABLE u(a int PRIMARY KEY)")
    with (
        psycopg.connect(tables.pipeline.conninfo) as first,
        psycopg.connect(tables.pipeline.conninfo) as second,
    ):
        first.execute("INSERT INTO u VALUES (11)")
        second.execute("INSERT INTO u VALUES (21)")
        tables.execute("ALTER PUBLICATION p ADD TABLE u")
        with running(tables, transport=transport) as batches:
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"
            wait_until(lambda: tables.execute(waiting))
            second.execute("INSERT INTO u VALUES (22)")
            second.execute("INSERT INTO t VALUES (2, 'of the same transaction')")
            second.commit()
            tables.execute("INSERT INTO u VALUES (99)")
            time.sleep(0.3)
            assert not batches, "the copy waits for the other one"
            first.execute("INSERT INTO u VALUES (12)")
            first.execute("DELETE FROM u WHERE a = 11")
            first.commit()
    assert tables.lake_rows("u") == {(each,): 1 for each in ("12", "21", "22", "99")}
    tables.run("UPDATE u SET a = 13 WHERE a = 12", transport=transport)
    tables.assert_equal("t", "u")
    tables.assert_repeatable()


def test_c97_a_lost_slot_stops_the_run_until_it_may_copy(tables: Tables) -> None:
    """C97: the lake stays as it was; with ``on_slot_lost`` it is the source again, and goes on."""
    slot = f"pg_replication_slots WHERE slot_name = '{tables.pipeline.slot_name}'"
    former = tables.source_rows("t")
    tables.execute(
        "DELETE FROM t WHERE a = 1",
        "INSERT INTO t VALUES (2, 'in the lost WAL')",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'",
        "SELECT pg_reload_conf()",
    )
    try:
        for _segment in range(8):
            tables.execute(
                "SELECT pg_logical_emit_message(false, 'c97', 'x')", "SELECT pg_switch_wal()"
            )
        tables.execute("CHECKPOINT")
    finally:
        tables.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    assert tables.execute(f"SELECT wal_status FROM {slot}") == [("lost",)]
    tables.refused(SlotLost, tables.pipeline.slot_name)
    tables.assert_holds("t", former)
    tables.run(on_slot_lost="copy")
    tables.assert_equal("t")
    tables.run("INSERT INTO t VALUES (3, 'streamed')", "UPDATE t SET b = 'y' WHERE a = 2")
    tables.assert_equal("t")
    tables.assert_repeatable()


def test_c101_commits_that_are_not_flushed_yet_come_later(tables: Tables) -> None:
    """C101: with ``synchronous_commit`` off the lake is the source at an earlier moment, and none is lost."""
    seen = [1]
    with psycopg.connect(tables.pipeline.conninfo, autocommit=True) as session:
        session.execute("SET synchronous_commit = off")
        for number in range(2, 42):
            session.execute("INSERT INTO t VALUES (%s, 'late')", (number,))
            if number % 10 == 0:
                batch = tables.run()
                seen.append(len(tables.lake_rows("t")))
                first = tables.execute(f"SELECT a::text, b FROM t ORDER BY t.a LIMIT {seen[-1]}")
                assert tables.lake_rows("t") == dict.fromkeys(first, 1)
                assert batch.end_lsn <= tables.pipeline.flush_lsn()
        wait_until(lambda: tables.pipeline.flush_lsn() >= inserted(session))
    tables.run()
    assert seen == sorted(seen)
    tables.assert_equal("t")


def inserted(session: psycopg.Connection[Any]) -> Lsn:
    row = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def test_c104_transactions_that_are_open_when_the_slot_is_made(pipeline: Pipeline) -> None:
    """C104: each row once, in the copy or as a change, whatever began, locked or altered meanwhile."""
    tables = Tables(pipeline)
    tables.execute(*TABLE, "CREATE PUBLICATION p FOR TABLE t", "INSERT INTO t VALUES (2, 'held')")
    conninfo = pipeline.conninfo
    with (
        psycopg.connect(conninfo) as writer,
        psycopg.connect(conninfo) as nested,
        psycopg.connect(conninfo) as leaving,
        psycopg.connect(conninfo) as locking,
    ):
        writer.execute("INSERT INTO t VALUES (10, 'before')")
        # Its top transaction has written nothing itself.
        nested.execute("SAVEPOINT s")
        nested.execute("INSERT INTO t VALUES (20, 'nested')")
        nested.execute("RELEASE s")
        leaving.execute("INSERT INTO t VALUES (30, 'rolled back')")
        # Two lockers: the row names a multixact.
        locking.execute("SELECT FROM t WHERE a = 2 FOR KEY SHARE")
        writer.execute("UPDATE t SET b = 'locked by two' WHERE a = 2")
        with running(tables) as batches:
            wait_until(lambda: tables.execute("SELECT 1 FROM pg_replication_slots"))
            time.sleep(0.3)
            assert not batches, "the slot waits for them"
            writer.execute("INSERT INTO t VALUES (11, 'while it waits')")
            writer.commit()
            tables.execute("INSERT INTO t VALUES (40, 'of nobody waited for')")
            nested.execute("UPDATE t SET b = 'changed' WHERE a = 20")
            nested.commit()
            leaving.rollback()
            locking.commit()
    tables.run()
    tables.assert_equal("t")
    with psycopg.connect(conninfo) as writer:
        writer.execute("INSERT INTO t VALUES (50, 'old shape')")
        ddl = threading.Thread(
            target=lambda: tables.execute(
                "ALTER TABLE t ADD c int DEFAULT 5", "UPDATE t SET c = 7 WHERE a = 1"
            )
        )
        ddl.start()
        time.sleep(0.2)
        writer.execute("INSERT INTO t VALUES (51, 'old shape')")
        writer.commit()
        ddl.join(30)
    tables.run("INSERT INTO t VALUES (52, 'new shape', 6)")
    tables.assert_equal("t")
    tables.assert_repeatable()


def test_c105_a_commit_that_is_in_the_wal_and_has_not_ended(pipeline: Pipeline) -> None:
    """C105 without injection points: a commit is held after the commit log is written, and not before it.

    It waits for a standby that there is not, while the slot is made, and again while that of a copy is.
    """
    tables = Tables(pipeline)
    assert pipeline.reader, "its role is made by the first run, and would wait for the standby, too"
    tables.execute(*TABLE, "CREATE PUBLICATION p FOR TABLE t")
    for key, options in ((10, {}), (20, {"copy_tables": ("public.t",)})):
        tables.execute(
            "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"
        )
        # Commits wait when the checkpointer has read the configuration, which it does before a checkpoint.
        tables.execute("CHECKPOINT")
        commits = threading.Thread(
            target=tables.execute, args=(f"INSERT INTO t VALUES ({key}, 'committed late')",)
        )
        commits.start()
        try:
            wait_until(
                lambda: tables.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                )
            )
            with running(tables, **options) as batches:
                wait_until(
                    lambda: tables.execute("SELECT 1 FROM pg_replication_slots WHERE active")
                )
                time.sleep(0.5)
                assert not batches, "the slot waits for the commit"
                assert not tables.execute(f"SELECT 1 FROM t WHERE a = {key}"), "nobody sees it yet"
                tables.execute(
                    "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"
                )
                commits.join(30)
        finally:
            tables.execute(
                "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"
            )
        tables.assert_equal("t")
    tables.run("UPDATE t SET b = 'later' WHERE a > 1")
    tables.assert_equal("t")
