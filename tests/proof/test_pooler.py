"""A verification needs a replication connection, which PgBouncer 1.18 does not pass on.

Timeouts of the role end no verification, through the pooler and past it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.errors import ConfigurationError
from tests.faults.network import Action, Fault, Proxy
from tests.pgbouncer import pgbouncer
from tests.reader_role import role_with_short_timeouts

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


@pytest.mark.parametrize("is_pooled", [False, True], ids=["direct", "pooler"])
def test_a_verification_outlasts_the_timeouts_of_the_role(
    new_world: Callable[..., World], server_home: Path, *, is_pooled: bool
) -> None:
    """The digest of the table takes longer than the limit, and its answer comes late in a transaction."""
    world = new_world(("p",))
    conninfo = world.pipeline.conninfo
    world.sql(
        "CREATE TABLE t (a int PRIMARY KEY, b text); CREATE PUBLICATION p FOR TABLE t;"
        "INSERT INTO t SELECT g, repeat('x', 5000) FROM generate_series(1, 20000) g"
    )
    world.run()
    hashes = "SELECT sum(pg_catalog.hashtextextended(b, 1)) FROM t"
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(Proxy(int(str(conninfo_to_dict(conninfo)["port"]))))
        direct = proxy.conninfo(world.pipeline.reader)
        both = {"conninfo": direct}
        if is_pooled:
            pooled = stack.enter_context(pgbouncer(server_home, direct, "session"))
            both = {"conninfo": pooled, "direct_conninfo": direct}
        stack.enter_context(role_with_short_timeouts(conninfo, 50))
        with (
            psycopg.connect(world.pipeline.reader) as plain,
            pytest.raises(psycopg.Error, match=r"due to .* timeout"),
        ):
            plain.execute(hashes)
        late = proxy.fault = Fault(Action.STALL, b"hashtextextended", seconds=1.0, times=8)
        proof = world.verify(**both)
        assert late.struck.is_set()
    assert [each.is_equal for each in proof.tables] == [True]
