"""What the lake cannot know from the stream is said: a publication that changed, a table that cannot."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.capture.membership import warn_of_membership_changes
from airflow_provider_pgoutput.capture.source.catalog import read_published_tables, read_server
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.source.publications import (
    read_publications,
    warn_of_missing_identity,
    warn_of_unsent_partitions,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


@pytest.fixture
def session(postgres_database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t(a int primary key)")
        connection.execute("CREATE TABLE u(a int primary key deferrable)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")
        # What began before that and still writes (autovacuum) would keep the slot's catalog_xmin before it.
        while others_write(connection):
            time.sleep(0.05)
        connection.execute(
            "SELECT pg_create_logical_replication_slot('membership_' || current_database(), 'pgoutput')"
        )
        yield connection


def others_write(session: psycopg.Connection[Any]) -> bool:
    locks = "SELECT pid FROM pg_locks WHERE locktype = 'transactionid' AND pid <> pg_backend_pid()"
    return bool(session.execute(locks).fetchall())


def changed(session: psycopg.Connection[Any]) -> tuple[str, ...]:
    slot_name = f"membership_{session.info.dbname}"
    return warn_of_membership_changes(session, slot_name, ["p"])


def test_a_publication_older_than_the_slot_is_no_news(session: psycopg.Connection[Any]) -> None:
    session.execute("INSERT INTO t VALUES (1)")
    assert changed(session) == ()


def test_a_table_that_came_back_is_named(session: psycopg.Connection[Any]) -> None:
    session.execute("ALTER PUBLICATION p DROP TABLE t")
    session.execute("ALTER PUBLICATION p ADD TABLE t")
    assert changed(session) == ("public.t",)


def test_a_change_of_the_published_operations_is_named(session: psycopg.Connection[Any]) -> None:
    session.execute("ALTER PUBLICATION p SET (publish = 'insert')")
    assert changed(session) == ("p",)


def test_a_deferrable_primary_key_is_a_key_but_no_replica_identity(
    session: psycopg.Connection[Any],
) -> None:
    session.execute("ALTER PUBLICATION p ADD TABLE u")
    tables = read_published_tables(session, read_server(session, ""), ["p"], Keys())
    assert {table.name: table.key_columns for table in tables} == {
        "public.t": ("a",),
        "public.u": ("a",),
    }
    assert warn_of_missing_identity(read_publications(session, ["p"]), tables) == ("public.u",)


def test_partitions_that_the_server_never_sends_are_named(session: psycopg.Connection[Any]) -> None:
    """A root that FOR TABLE names is published, whatever its partitions are."""
    for statement in (
        "CREATE TABLE r(a int) PARTITION BY RANGE (a)",
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (a)",
        "CREATE UNLOGGED TABLE r_10 PARTITION OF r_1 FOR VALUES FROM (10) TO (20)",
        "CREATE FOREIGN DATA WRAPPER w",
        "CREATE SERVER s FOREIGN DATA WRAPPER w",
        "CREATE FOREIGN TABLE r_2 PARTITION OF r FOR VALUES FROM (20) TO (30) SERVER s",
        # A child that is no partition is a table of its own. The copy of its parent does not have its rows.
        "CREATE TABLE parent(a int)",
        "CREATE UNLOGGED TABLE child() INHERITS (parent)",
        "CREATE PUBLICATION via_root FOR TABLE r, ONLY parent WITH (publish_via_partition_root)",
        "CREATE PUBLICATION by_leaf FOR TABLE r",
    ):
        session.execute(statement)
    server = read_server(session, "")

    def unsent(publication: str) -> tuple[str, ...]:
        tables = read_published_tables(session, server, [publication], Keys())
        return warn_of_unsent_partitions(session, tables)

    assert unsent("via_root") == ("public.r_10", "public.r_2")
    assert unsent("by_leaf") == ("public.r_10", "public.r_2")
    session.execute("ALTER TABLE r_10 SET LOGGED")
    assert unsent("via_root") == ("public.r_2",)
