"""What PostgreSQL guarantees of an output plugin, seen by a reader; see docs/explanation/guarantees.md.

Source: https://www.postgresql.org/docs/current/logicaldecoding-output-plugin.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.capture.advance import advance_slot
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from quickstart.postgres import EmbeddedPostgres
    from tests.capture.pipeline_support import Source

both_transports = pytest.mark.parametrize("transport", ["sql", "walsender"])


@both_transports
def test_transactions_come_in_the_order_of_their_commits(source: Source, transport: str) -> None:
    """Whole, one after the other, however they were interleaved; any of them may be a batch's last."""
    first = source.stage(transport=transport)
    with psycopg.connect(source.conninfo) as early, psycopg.connect(source.conninfo) as late:
        early.execute("INSERT INTO t VALUES (1)")
        late.execute("INSERT INTO t VALUES (2)")
        early.execute("INSERT INTO t VALUES (3)")
        late.commit()
        early.execute("INSERT INTO t VALUES (4)")
        early.commit()
    how = {"checkpoint": checkpoint_of(first), "transport": transport}
    cut = source.stage(max_changes=1, **how)
    assert [row["a"] for row in source.changes(cut, "public.t")] == [2]
    rest = source.stage(checkpoint=checkpoint_of(cut), transport=transport)
    rows = source.changes(rest, "public.t")
    assert [row["a"] for row in rows] == [1, 3, 4]
    assert len({row["commit_lsn"] for row in rows}) == 1


@both_transports
def test_what_was_rolled_back_never_comes(source: Source, transport: str) -> None:
    """Neither a transaction nor a savepoint; what a savepoint kept stands where it was executed."""
    first = source.stage(transport=transport)
    with psycopg.connect(source.conninfo) as session:
        session.execute("INSERT INTO t VALUES (1)")
        session.rollback()
        session.execute("INSERT INTO t VALUES (3)")
        session.execute("SAVEPOINT s")
        session.execute("INSERT INTO t VALUES (4)")
        session.execute("ROLLBACK TO s")
        session.execute("INSERT INTO t VALUES (5)")
        session.execute("RELEASE s")
        session.execute("INSERT INTO t VALUES (6)")
        session.commit()
        session.execute("INSERT INTO t VALUES (7)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            session.execute("INSERT INTO t VALUES (7)")
        session.rollback()
    batch = source.stage(checkpoint=checkpoint_of(first), transport=transport)
    assert [row["a"] for row in source.changes(batch, "public.t")] == [3, 5, 6]


@both_transports
def test_unlogged_and_temporary_tables_never_come(source: Source, transport: str) -> None:
    source.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    first = source.stage(publication_names=["everything"], transport=transport)
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute("CREATE UNLOGGED TABLE quick(a int PRIMARY KEY)")
        session.execute("CREATE TEMPORARY TABLE mine(a int PRIMARY KEY)")
        session.execute("INSERT INTO quick VALUES (1)")
        session.execute("INSERT INTO mine VALUES (1)")
        session.execute("INSERT INTO t VALUES (1)")
    batch = source.stage(
        publication_names=["everything"], checkpoint=checkpoint_of(first), transport=transport
    )
    assert [each.name for each in batch.tables] == ["public.t"]


@both_transports
def test_what_a_crashed_server_sends_again_is_not_staged_again(
    source: Source, postgres_server: EmbeddedPostgres, transport: str
) -> None:
    """A crash may take the slot's position back; a batch begins at the checkpoint all the same."""
    batch = source.stage(transport=transport)
    source.execute("CREATE TABLE unpublished(a int)", "INSERT INTO t VALUES (1)")
    holder = psycopg.connect(source.conninfo)
    holder.execute("INSERT INTO unpublished VALUES (1)")
    source.execute("CHECKPOINT")
    for number in (2, 3):
        source.execute(f"INSERT INTO t VALUES ({number})")
        batch = source.stage(checkpoint=checkpoint_of(batch), transport=transport)
        advance_slot(source.reader, source.slot_name, batch.end_lsn)
    advanced = source.confirmed()
    postgres_server.stop("immediate")
    holder.close()
    postgres_server.start()
    assert source.confirmed() != advanced, "the server kept the position: this test shows nothing"
    source.execute("INSERT INTO t VALUES (4)")
    batch = source.stage(checkpoint=checkpoint_of(batch), transport=transport)
    assert [row["a"] for row in source.changes(batch, "public.t")] == [4]
