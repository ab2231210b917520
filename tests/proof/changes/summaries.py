"""A server that keeps summaries of its WAL."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quickstart.postgres import EmbeddedPostgres


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


def _count(session: psycopg.Connection[tuple[int]]) -> int:
    (count,) = session.execute("SELECT count(*) FROM pg_available_wal_summaries()").fetchone() or (
        0,
    )
    return count
