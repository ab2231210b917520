"""Which blocks changed, as the server's WAL summaries say, and on what else a digest depends."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.proof.changes.kept import KeptDigests
from airflow_provider_pgoutput.proof.changes.summaries import ChangedRanges, WalSummaries
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.source_rows import source_rows
from tests.proof.changes.summaries import summarized

if TYPE_CHECKING:
    from quickstart.postgres import EmbeddedPostgres

_TABLE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t (id int PRIMARY KEY, m mood, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL)
    WITH (fillfactor = 10, autovacuum_enabled = off);
CREATE PUBLICATION p FOR TABLE t;
INSERT INTO t SELECT i, 'ok' FROM generate_series(1, 20000) i;
"""


def test_summaries_name_the_blocks_that_changed(
    postgres_server: EmbeddedPostgres, postgres_database: str
) -> None:
    with (
        summarized(postgres_server),
        connect(postgres_database) as pinned,
        psycopg.connect(postgres_database, autocommit=True) as session,
    ):
        session.execute(_TABLE.encode())
        server = read_server(pinned, postgres_database)

        def lsn() -> Lsn:
            row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None
            return Lsn.parse(row[0])

        def changed(since: Lsn, upto: Lsn, seconds: float = 60.0) -> ChangedRanges | str:
            row = session.execute("SELECT pg_relation_filenode('t')::int8").fetchone()
            assert row is not None
            summaries = WalSummaries(pinned, server.timeline, upto, seconds)
            return summaries.changed(since, [row[0]], 64)

        session.execute("CHECKPOINT")
        before = lsn()
        session.execute("UPDATE t SET m = 'sad' WHERE ctid >= '(130,0)' AND ctid < '(131,0)'")
        after = lsn()
        early = changed(before, after, 0.1)
        assert isinstance(early, str)
        assert "did not reach the LSN" in early
        session.execute("CHECKPOINT")
        found = changed(before, after)
        assert isinstance(found, ChangedRanges)
        assert 2 in found.among(100)
        assert len(found.among(100)) < 4
        assert found.all_from is None
        session.execute("DELETE FROM t WHERE ctid >= '(256,0)'")
        session.execute("VACUUM t")
        cut = lsn()
        session.execute("CHECKPOINT")
        found = changed(after, cut)
        assert isinstance(found, ChangedRanges)
        assert found.all_from == 4
        assert {4, 5, 6} <= {*found.among(7)}
        # A table whose last verification is too long ago says nothing about the next one.
        summaries = WalSummaries(pinned, server.timeline, cut, 60.0)
        assert summaries.changed(Lsn(1), [1], 64) == "the server has no WAL summary from 0/1 on"
        assert isinstance(summaries.changed(after, [1], 64), ChangedRanges)


def test_what_else_a_digest_depends_on(
    postgres_server: EmbeddedPostgres, postgres_database: str
) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as session:
        session.execute(_TABLE.encode())
        statements = (
            "VACUUM FULL t",
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
            "ALTER TABLE t ADD n int DEFAULT 7",
            "TRUNCATE t",
        )

        def definition() -> Any:
            with connect(postgres_database) as facts:
                server = read_server(facts, postgres_database)
            with source_rows(postgres_database, postgres_database, server, ["p"]) as source:
                assert source.since is None
                return source.definition(source.tables[0])

        seen = [definition()]
        session.execute("UPDATE t SET m = 'ok'")
        assert definition() == seen[0]
        for statement in statements:
            session.execute(statement.encode())
            seen.append(definition())
        assert all(one != other for one, other in itertools.pairwise(seen))


def test_ranges_add_up_to_the_table(
    postgres_server: EmbeddedPostgres, postgres_database: str
) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as session:
        session.execute(_TABLE.encode())
        session.execute("DELETE FROM t WHERE id % 3 = 0")
        with connect(postgres_database) as facts:
            server = read_server(facts, postgres_database)
        with source_rows(
            postgres_database, postgres_database, server, ["p"], is_blockwise=True
        ) as source:
            assert source.since is not None
            assert source.since <= source.lsn
            (table,) = source.tables
            row_hash = source.row_hash([Column("id", 23, -1, "", "int")], 7)
            count = -(-max(source.storage(table).blocks) // 64)
            ranges = source.digests_by_block(table, row_hash, 64, list(range(count)))
            assert len(ranges) == count > 10
            assert sum(ranges.values(), Digest()) == source.digest(table, row_hash)
            one = source.digests_by_block(table, row_hash, 64, [5])
            assert one == {5: ranges[5]}


def test_what_is_kept_comes_back() -> None:
    kept = KeptDigests(
        "7", 1, Lsn(9), Lsn(8), "f", 3, 2, 64, (Digest(1, 2), Digest()), {"a b": Digest(3, 4)}
    )
    assert KeptDigests.from_json(kept.to_json().encode()) == kept
    for damaged in (
        b"{",
        b"{}",
        b"[]",
        kept.to_json().replace('"version": 1', '"version": 2').encode(),
    ):
        assert KeptDigests.from_json(damaged) is None
    assert ChangedRanges(frozenset({1, 9}), 5).among(7) == [1, 5, 6]
    assert ChangedRanges(frozenset({1, 9})).among(7) == [1]
