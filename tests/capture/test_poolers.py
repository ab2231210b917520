"""PgBouncer between the pipeline and the server: what works through it, and what is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.errors import ConfigurationError
from tests.capture.pipeline_support import checkpoint_with_shapes
from tests.pgbouncer import pgbouncer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.capture.pipeline_support import Source

#: What an owner of a pooler may have set so that drivers with startup options get in.
_IGNORES_OPTIONS = "ignore_startup_parameters = options"


@pytest.fixture
def pooled(source: Source, server_home: Path) -> Iterator[str]:
    """Leads to a pooler in session mode, which refuses startup options."""
    with pgbouncer(server_home, source.reader, "session") as conninfo:
        yield conninfo


def test_changes_are_read_through_a_pooler_and_tables_copied_past_it(
    source: Source, pooled: str
) -> None:
    both = {"conninfo": pooled, "direct_conninfo": source.reader}
    source.execute("INSERT INTO t VALUES (1, 'copied')")
    first = source.stage(**both)
    assert source.copied(first, "public.t") == [{"a": 1, "b": "copied"}]

    source.execute(
        "INSERT INTO t VALUES (2, 'streamed')",
        "CREATE TABLE u(a int PRIMARY KEY, m money)",
        "INSERT INTO u VALUES (3, 4)",
        "ALTER PUBLICATION p ADD TABLE u",
    )
    second = source.stage(
        checkpoint=checkpoint_with_shapes(first), decode_parallelism=2, part_bytes=64, **both
    )
    assert [row["b"] for row in source.changes(second, "public.t")] == ["streamed"]
    assert [row["a"] for row in source.copied(second, "public.u")] == [3]
    left = source.execute("SELECT slot_name FROM pg_replication_slots WHERE temporary")
    assert left == [], "the pooler would keep the session, and with it a temporary slot"

    # Without another way to the server the pooler serves as long as nothing has to be copied.
    source.execute("INSERT INTO t VALUES (5, 'alone')")
    third = source.stage(checkpoint=checkpoint_with_shapes(second), conninfo=pooled)
    assert [row["b"] for row in source.changes(third, "public.t")] == ["alone"]


def test_settings_hold_where_the_pooler_takes_none_at_the_start(
    source: Source, pooled: str
) -> None:
    timeouts = [
        name
        for (name,) in source.execute(
            "SELECT name FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')"
        )
    ]
    for name, value in {**dict.fromkeys(timeouts, "1s"), "DateStyle": "German"}.items():
        source.execute(f"ALTER ROLE cdc SET {name} = '{value}'")
    try:
        with sessions.connect(pooled) as session:
            assert session.execute("SHOW DateStyle").fetchone() == ("ISO, YMD",)
        # As a copy does it: one transaction, longer than the role's limit.
        with sessions.connect_adbc(pooled) as adbc, adbc.cursor() as cursor:
            adbc.adbc_connection.set_autocommit(False)
            cursor.execute("SELECT '2001-02-03'::date::text, pg_sleep(1.2)::text")
            assert cursor.fetchall() == [("2001-02-03", "")]
            adbc.adbc_connection.set_autocommit(True)
    finally:
        source.execute("ALTER ROLE cdc RESET ALL")


@pytest.mark.parametrize("needs", ["new slot", "new table", "lost slot", "walsender"])
def test_what_needs_a_replication_connection_is_refused_before_anything_is_made(
    source: Source, pooled: str, needs: str
) -> None:
    options: dict[str, object] = {}
    if needs != "new slot":
        first = source.stage()
        options["checkpoint"] = checkpoint_with_shapes(first)
    if needs == "new table":
        source.execute("CREATE TABLE u(a int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE u")
    elif needs == "lost slot":
        source.drop_slot(source.slot_name)
        options["on_slot_lost"] = "copy"
    elif needs == "walsender":
        options["transport"] = "walsender"
    before = source.manifests(), source.confirmed()
    with pytest.raises(ConfigurationError) as refused:
        source.stage(conninfo=pooled, **options)
    _names_both(str(refused.value), source, pooled)
    assert "direct_conn_id" in str(refused.value)
    assert (source.manifests(), source.confirmed()) == before


@pytest.mark.parametrize("settings", ["", _IGNORES_OPTIONS, "server_round_robin = 1"])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_whose_clients_share_sessions_is_refused(
    source: Source, server_home: Path, mode: str, settings: str
) -> None:
    with pgbouncer(server_home, source.reader, mode, settings) as conninfo:
        with _used_by_others(conninfo), pytest.raises(ConfigurationError) as refused:
            source.stage(conninfo=conninfo)
        assert source.confirmed() is None
        if mode == "transaction":
            _names_both(str(refused.value), source, conninfo)
        else:
            assert "pooler" in str(refused.value)


def _used_by_others(conninfo: str) -> psycopg.Connection[tuple[object, ...]]:
    """Lets the pooler have several sessions of the server that are free."""
    others = [psycopg.connect(conninfo, autocommit=True) for _ in range(3)]
    for each in others:
        each.execute("SELECT 1")
    for each in others[1:]:
        each.close()
    return others[0]


def _names_both(text: str, source: Source, pooled: str) -> None:
    assert "pooler" in text
    for conninfo in (source.reader, pooled):
        assert f"port {conninfo_to_dict(conninfo)['port']}" in text
