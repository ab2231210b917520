"""Which partitions brought rows, whatever becomes of partition, role and server meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.publications import attached_partitions

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

_ROOT = "CREATE TABLE root (a int, b int) PARTITION BY RANGE (a)"
_ATTACH = "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES FROM (0) TO (10)"
_PARTITIONS = """
SELECT relid::oid::int8, 'public.root'::regclass::oid::int8 FROM pg_partition_tree('public.root') WHERE isleaf
"""


def _found(source: Source, role: str | None = None) -> dict[str, tuple[bool | None, bool | None]]:
    with sessions.connect(source.conninfo) as session:
        roots = dict(session.execute(_PARTITIONS).fetchall())
        if role is not None:
            session.execute(f"SET ROLE {role}")
        found = attached_partitions(session, roots)
    return {each.name: (each.has_older_rows, each.has_rows_of_attach) for each in found.values()}


def test_transactions_that_begin_meanwhile_make_no_row_older(source: Source) -> None:
    """Other sessions write all the time, and an age counts from the newest transaction."""
    source.execute(
        _ROOT, "CREATE TABLE leaf (a int, b int)", _ATTACH, "INSERT INTO root VALUES (1)"
    )
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(source.conninfo, autocommit=True) as session:
            while not ended.is_set():
                session.execute("SELECT pg_current_xact_id()")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        found = [_found(source) for _ in range(10)]
    finally:
        ended.set()
        thread.join()
    assert found == [{"public.leaf": (False, False)}] * 10


def test_a_partition_in_a_schema_that_the_role_may_not_use_is_not_read(source: Source) -> None:
    """Whoever reads through the root needs no right to the partition's schema."""
    name = 'hidden"%s'
    quoted = '"hidden""%s"."le%af"'
    source.execute(
        _ROOT,
        'CREATE SCHEMA "hidden""%s"',
        f"CREATE TABLE {quoted} (a int, b int)",
        f"INSERT INTO {quoted} VALUES (1)",
        f"ALTER TABLE root ATTACH PARTITION {quoted} FOR VALUES FROM (0) TO (10)",
        "DROP ROLE IF EXISTS partition_reader",
        "CREATE ROLE partition_reader",
        f"GRANT SELECT ON {quoted}, root TO partition_reader",
    )
    assert _found(source, "partition_reader") == {f"{name}.le%af": (None, None)}
    source.execute('GRANT USAGE ON SCHEMA "hidden""%s" TO partition_reader')
    assert _found(source, "partition_reader") == {f"{name}.le%af": (True, False)}
    source.execute("DROP OWNED BY partition_reader", "DROP ROLE partition_reader")


def test_rows_that_came_with_a_partition_that_was_made_and_given_away(source: Source) -> None:
    """It was made as a partition, so the stream has its rows. A new owner changes nothing in that."""
    source.execute(
        _ROOT,
        "DROP ROLE IF EXISTS partition_owner",
        "CREATE ROLE partition_owner",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);"
        " ALTER TABLE leaf OWNER TO partition_owner; INSERT INTO root VALUES (1)",
    )
    assert _found(source) == {}
    source.execute("DROP TABLE root", "DROP ROLE partition_owner")


def test_rows_that_are_written_again_after_the_attach_are_older(source: Source) -> None:
    source.execute(
        _ROOT,
        "CREATE TABLE leaf (a int, b int)",
        "INSERT INTO leaf VALUES (1)",
        _ATTACH,
        "ALTER TABLE root ALTER b TYPE bigint",
    )
    assert _found(source) == {"public.leaf": (True, False)}


def test_many_partitions_that_are_attached_with_their_own_root(source: Source) -> None:
    source.execute(
        _ROOT,
        "CREATE TABLE sub (a int, b int) PARTITION BY RANGE (a)",
        *(
            f"CREATE TABLE leaf_{number} PARTITION OF sub FOR VALUES FROM ({number}) TO ({number + 1})"
            for number in range(120)
        ),
        "INSERT INTO sub SELECT generate_series(0, 118, 2)",
        "ALTER TABLE root ATTACH PARTITION sub FOR VALUES FROM (0) TO (1000)",
    )
    assert _found(source) == {
        f"public.leaf_{number}": (number % 2 == 0, False) for number in range(120)
    }
