"""A verification needs a replication connection, which PgBouncer 1.18 does not pass on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.errors import ConfigurationError
from tests.pgbouncer import pgbouncer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.proof.worlds import World


def test_a_verification_through_a_pooler_needs_a_direct_connection(
    new_world: Callable[..., World], server_home: Path
) -> None:
    world = new_world(("p",))
    direct = world.pipeline.reader
    with psycopg.connect(world.pipeline.conninfo, autocommit=True) as session:
        session.execute("CREATE TABLE t (a int PRIMARY KEY)")
        session.execute("INSERT INTO t VALUES (1), (2)")
        session.execute("CREATE PUBLICATION p FOR TABLE t")
    world.run()
    with pgbouncer(server_home, direct, "session") as pooled:
        with pytest.raises(ConfigurationError, match="connection pooler") as refused:
            world.verify(conninfo=pooled)
        assert "direct_conn_id" in str(refused.value)
        with psycopg.connect(world.pipeline.conninfo) as session:
            slots = session.execute("SELECT count(*) FROM pg_replication_slots WHERE temporary")
            assert slots.fetchone() == (0,), "nothing was made"
        proof = world.verify(conninfo=pooled, direct_conninfo=direct)
        assert [each.is_equal for each in proof.tables] == [True]
    with (
        pgbouncer(server_home, direct, "transaction") as pooled,
        pytest.raises(ConfigurationError, match=r"in transaction or statement mode|pool_mode"),
    ):
        world.verify(conninfo=pooled, direct_conninfo=direct)
