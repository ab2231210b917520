"""A server that keeps summaries of its WAL, and verifications that use them."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_provider_pgoutput.batch.answers import SUCCEED
from airflow_provider_pgoutput.proof.request import AUTO
from airflow_provider_pgoutput.proof.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.proof.report import TableProof
    from quickstart.postgres import EmbeddedPostgres
    from tests.proof.worlds import World


@contextlib.contextmanager
def summarized(server: EmbeddedPostgres) -> Iterator[None]:
    """Let the server summarize its WAL until the block ends."""
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM SET summarize_wal = on")
        session.execute("SELECT pg_reload_conf()")
        # The first summary begins at a checkpoint.
        deadline = time.monotonic() + 60
        while not _count(session):
            assert time.monotonic() < deadline, "no summary came"
            session.execute("CHECKPOINT")
            time.sleep(0.2)
    yield
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM RESET summarize_wal")
        session.execute("SELECT pg_reload_conf()")


def verified(world: World, **more: Any) -> dict[str, TableProof]:
    """Verify by what changed; a checkpoint brings the summaries up to the LSN."""

    def run(_: Lsn) -> None:
        world.run()
        with psycopg.connect(world.pipeline.conninfo, autocommit=True) as session:
            session.execute("CHECKPOINT")

    proof = verify(world.request(method=AUTO, on_difference=SUCCEED, **more), run)
    return {each.table.removeprefix("public."): each for each in proof.tables}


def _count(session: psycopg.Connection[tuple[int]]) -> int:
    (count,) = session.execute("SELECT count(*) FROM pg_available_wal_summaries()").fetchone() or (
        0,
    )
    return count
