"""DDL in the moments of a copy that no lock covers: what is copied is the table that was meant, as it was.

What is not here: DDL between two attempts (``test_unused_seals.py``).
"""

from __future__ import annotations

import threading
import time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.batch.lsn import Lsn
from tests.capture.copy.test_table_copies import lake_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.capture.pipeline_support import Source


def once_at(point: str, source: Source, *statements: str) -> Callable[[str], None]:
    """Do something at the source when a crash point is reached for the first time."""
    waiting = list(statements)

    def reached(name: str) -> None:
        if name == point and waiting:
            done = tuple(waiting)
            waiting.clear()
            source.execute(*done)

    return reached


def test_a_column_that_comes_right_after_the_snapshot(source: Source) -> None:
    """A row between has not the column in the stream, and what it shows in it the source alone knows."""
    source.execute("INSERT INTO t VALUES (1, 'x')")
    between = (
        "INSERT INTO t VALUES (2, 'y')",
        "ALTER TABLE t ADD c int DEFAULT 5",
        "ALTER TABLE t DROP b",
        "ALTER TABLE t ADD b text",
    )
    with crash_points.watched(once_at("stage.after_slot", source, *between)):
        batch = source.stage()
    assert source.copied(batch, "public.t") == [
        {"a": 1, "c": 5, "b": None},
        {"a": 2, "c": 5, "b": None},
    ]
    (table,) = batch.tables
    assert table.copy_lsn == str(batch.end_lsn)
    assert source.changes(batch, "public.t") == []


def test_tables_that_swap_their_names_while_they_wait_to_be_copied(source: Source) -> None:
    """The copy is read by name, and the name is another table's by then."""
    source.execute(
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 400000) g",
        "CREATE TABLE orders(a int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1)",
        "CREATE TABLE other(a int PRIMARY KEY)",
        "INSERT INTO other VALUES (2)",
        "ALTER PUBLICATION p ADD TABLE orders",
    )
    swap = (
        "ALTER TABLE orders RENAME TO former",
        "ALTER TABLE other RENAME TO orders",
    )
    with crash_points.watched(once_at("stage.during_copy", source, *swap)):
        batch = source.stage(copy_connections=1)
    assert source.copied(batch, "public.former") == [{"a": 1}]
    assert {each.name for each in batch.tables} == {"public.t", "public.former"}


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("DROP TABLE late", None),
        ("ALTER TABLE late RENAME TO later", [1, "x", [1], "2.5"]),
        ("ALTER TABLE late RENAME b TO z", [1, "x", [1], "2.5"]),
        # The server has no array_send and no numeric_send for a text.
        ("ALTER TABLE late ALTER c TYPE text", [1, "x", "{1}", "2.5"]),
        ("ALTER TABLE late ALTER d TYPE text", [1, "x", [1], "2.5"]),
    ],
)
def test_a_table_that_is_altered_while_it_waits_to_be_copied(
    source: Source, statement: str, row: list[Any] | None
) -> None:
    """The others go on, and it is copied as it is then."""
    source.execute(
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 400000) g",
        "CREATE TABLE late(a int PRIMARY KEY, b text, c int[], d numeric(4, 1))",
        "INSERT INTO late VALUES (1, 'x', '{1}', 2.5)",
        "ALTER PUBLICATION p ADD TABLE late",
    )
    with crash_points.watched(once_at("stage.during_copy", source, statement)):
        batch = source.stage(copy_connections=1)
    copied = [
        [str(value) if isinstance(value, Decimal) else value for value in found.values()]
        for each in batch.tables
        if each.name != "public.t"
        for found in source.copied(batch, each.name)
    ]
    assert copied == ([] if row is None else [row])
    assert len(source.copied(batch, "public.t")) == 400_000


def test_a_table_that_was_read_is_locked_no_longer(source: Source) -> None:
    """A migration would wait for all other tables, and who reads the table behind it."""
    source.execute(
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 400000) g",
        "CREATE TABLE more AS SELECT * FROM t",
        "ALTER TABLE more ADD PRIMARY KEY (a)",
        "ALTER PUBLICATION p ADD TABLE more",
    )
    held: set[frozenset[str]] = set()
    # Autovacuum analyzes new tables, and holds locks of its own.
    query = (
        "SELECT relation::regclass::text FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'relation' AND granted AND backend_type = 'client backend'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND relation::regclass::text IN ('t', 'more') AND pid <> pg_backend_pid()"
    )

    def look(name: str) -> None:
        if name == "stage.during_copy":
            held.add(frozenset(row[0] for row in source.execute(query)))

    with crash_points.watched(look):
        source.stage(copy_connections=1)
    assert frozenset({"t"}) in held
    assert frozenset({"more"}) in held
    assert frozenset({"t", "more"}) not in held


def test_a_table_that_is_published_while_others_wait_to_be_copied(source: Source) -> None:
    """Its changes alone would look like all of it; the next run copies it."""
    first = source.stage()
    source.execute(
        "CREATE TABLE u(a int PRIMARY KEY)",
        "INSERT INTO u VALUES (1)",
        "CREATE TABLE late(a int PRIMARY KEY)",
        "INSERT INTO late VALUES (1)",
        "ALTER PUBLICATION p ADD TABLE u",
    )
    batches = []
    with psycopg.connect(source.conninfo) as open_transaction:
        open_transaction.execute("INSERT INTO u VALUES (2)")
        run = threading.Thread(
            target=lambda: batches.append(source.stage(checkpoint=lake_with(first)))
        )
        run.start()
        waits = "SELECT 1 FROM pg_replication_slots WHERE temporary"
        deadline = time.monotonic() + 60
        while not source.execute(waits):
            assert time.monotonic() < deadline, "no slot is made for the copy"
            time.sleep(0.01)
        source.execute("ALTER PUBLICATION p ADD TABLE late", "INSERT INTO late VALUES (2)")
        open_transaction.commit()
        run.join()
    (second,) = batches
    assert [row["a"] for row in source.copied(second, "public.u")] == [1, 2]
    assert {each.name for each in second.tables} == {"public.u"}
    third = source.stage(checkpoint=lake_with(first, second))
    assert [row["a"] for row in source.copied(third, "public.late")] == [1, 2]
    assert Lsn.parse(str(source.confirmed())) <= third.start_lsn
