"""The hook against a real server: parameters, what it says about slots and publications, and secrets."""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    ConnectionNotFound,
    PublicationMissing,
)
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from quickstart.postgres import EmbeddedPostgres

    Define = Callable[[str, dict[str, Any]], None]
    Session = psycopg.Connection[tuple[Any, ...]]

CANARY = "canary-0xC0FFEE"


def test_extras_become_libpq_parameters_and_postgreshooks_own_do_not(
    set_connection: Define,
) -> None:
    set_connection(
        "source",
        {
            "conn_type": "postgres",
            "host": "db.example",
            "port": 6432,
            "login": "cdc",
            "password": "it's = \\secret",
            "schema": "app",
            "extra": {
                "sslmode": "verify-full",
                "sslrootcert": "/ca.pem",
                "keepalives": True,
                "cursor": "dictcursor",
                "sqlalchemy_scheme": "postgresql",
            },
        },
    )
    assert conninfo_to_dict(PgoutputHook("source").conninfo()) == {
        "host": "db.example",
        "port": "6432",
        "user": "cdc",
        "password": "it's = \\secret",
        "dbname": "app",
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
        "keepalives": "1",
        "connect_timeout": "30",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "6",
        "tcp_user_timeout": "90000",
        "fallback_application_name": "airflow-provider-pgoutput",
    }


def test_another_database_of_the_server_can_be_named(set_connection: Define) -> None:
    set_connection("source", {"conn_type": "postgres", "host": "localhost", "schema": "app"})
    conninfo = PgoutputHook("source", database="other").conninfo()
    assert conninfo_to_dict(conninfo)["dbname"] == "other"


def test_an_iam_token_becomes_the_password(
    set_connection: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    # The cloud is not here; everything up to its client is the real code.
    monkeypatch.setattr(PostgresHook, "get_iam_token", lambda _self, _conn: ("iam", CANARY, 5433))
    set_connection("source", {"conn_type": "postgres", "host": "localhost", "extra": {"iam": True}})
    found = conninfo_to_dict(PgoutputHook("source").conninfo())
    assert (found["user"], found["password"], found["port"]) == ("iam", CANARY, "5433")


@pytest.mark.parametrize(
    ("host", "sslmode", "used", "warned"),
    [
        ("db.example", None, "verify-full", False),
        ("localhost,db.example", None, "verify-full", False),
        ("db.example", "verify-ca", "verify-ca", False),
        ("db.example", "require", "require", True),
        ("db.example", "disable", "disable", True),
        ("localhost", None, None, False),
        ("127.0.0.1", None, None, False),
        ("/var/run/postgresql", None, None, False),
    ],
)
def test_a_remote_server_is_verified_unless_the_connection_says_otherwise(
    set_connection: Define,
    caplog: pytest.LogCaptureFixture,
    host: str,
    sslmode: str | None,
    used: str | None,
    warned: bool,
) -> None:
    extra = {"sslmode": sslmode} if sslmode else {}
    set_connection(
        "source", {"conn_type": "postgres", "host": host, "password": CANARY, "extra": extra}
    )
    with caplog.at_level(logging.DEBUG):
        found = conninfo_to_dict(PgoutputHook("source").conninfo())
    assert found.get("sslmode") == used
    assert ("does not verify its server" in caplog.text) is warned
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    ("body", "variable", "used", "warned"),
    [
        # What the environment or a service file says is said on purpose, too. The former is carried along:
        # executors of a copy have another one.
        ({"host": "db.example"}, ("PGSSLMODE", "require"), "require", True),
        ({"host": "db.example"}, ("PGSSLMODE", "verify-full"), "verify-full", False),
        ({"extra": {"service": "shop"}}, ("PGHOST", "db.example"), None, False),
        ({}, ("PGHOST", "db.example"), "verify-full", False),
        (
            {"host": "db", "extra": {"hostaddr": "127.0.0.1"}},
            ("PGHOST", "db.example"),
            None,
            False,
        ),
    ],
)
def test_where_else_a_server_and_its_verification_may_be_named(
    set_connection: Define,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    body: dict[str, Any],
    variable: tuple[str, str],
    used: str | None,
    warned: bool,
) -> None:
    monkeypatch.setenv(*variable)
    set_connection("source", {"conn_type": "postgres", **body})
    with caplog.at_level(logging.WARNING):
        assert conninfo_to_dict(PgoutputHook("source").conninfo()).get("sslmode") == used
    assert ("does not verify its server" in caplog.text) is warned


def test_a_connection_that_is_missing_or_of_another_type_is_refused(set_connection: Define) -> None:
    with pytest.raises(ConnectionNotFound, match="backend did not answer; otherwise create"):
        PgoutputHook("nobody_defined_this").conninfo()
    set_connection("source", {"conn_type": "mysql", "host": "localhost"})
    with pytest.raises(ConfigurationError, match="type postgres"):
        PgoutputHook("source").conninfo()


@pytest.mark.parametrize("name", ["sslmod", "we ird'"])
def test_an_extra_that_libpq_does_not_know_is_named_without_its_value(
    set_connection: Define, name: str
) -> None:
    body = {"conn_type": "postgres", "host": "localhost", "extra": {name: CANARY, "sslmode": "x"}}
    set_connection("source", body)
    with pytest.raises(ConfigurationError, match=f"libpq does not know: {name}\\.") as caught:
        PgoutputHook("source").conninfo()
    assert CANARY not in str(caught.value)
    ok, message = PgoutputHook("source").test_connection()
    assert (ok, message) == (False, str(caught.value))


def test_a_slot_is_described_as_the_server_sees_it(source: Session, slot: str) -> None:
    before = PgoutputHook().slot(slot)
    assert before.slot is not None
    assert (before.slot.plugin, before.slot.active_pid) == ("pgoutput", None)
    assert before.slot.database == source.info.dbname
    source.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))")
    after = PgoutputHook().slot(slot)
    assert before.lag_bytes is not None
    assert after.lag_bytes is not None
    assert after.lag_bytes - before.lag_bytes >= 100_000
    assert after.confirmed_flush_lsn == before.confirmed_flush_lsn


def test_a_slot_that_does_not_exist_is_no_error(source: Session) -> None:
    status = PgoutputHook().slot("not_yet")
    assert status.slot is None
    assert status.lag_bytes is None
    assert status.current_lsn > 0


def test_a_slots_name_is_checked_before_anything_is_opened() -> None:
    with pytest.raises(ConfigurationError, match="not a slot name"):
        PgoutputHook("nobody_defined_this").slot("x'; DROP TABLE t; --")


def test_publications_are_described(source: Session) -> None:
    source.execute("CREATE TABLE b (i int); CREATE TABLE a (i int)")
    source.execute("CREATE PUBLICATION published FOR TABLE b, a WITH (publish = 'insert')")
    (publication,) = PgoutputHook().publications(["published"])
    assert (publication.inserts, publication.updates, publication.all_tables) == (
        True,
        False,
        False,
    )
    assert PgoutputHook().published_tables("published") == ("public.a", "public.b")
    with pytest.raises(PublicationMissing, match="other"):
        PgoutputHook().publications(["published", "other"])


def test_sessions_are_pinned_whatever_the_database_says(source: Session) -> None:
    from psycopg import sql

    database = sql.Identifier(source.info.dbname)
    source.execute(sql.SQL("ALTER DATABASE {} SET DateStyle = 'German'").format(database))
    with PgoutputHook().get_conn() as session:
        assert session.execute("SHOW DateStyle").fetchone() == ("ISO, YMD",)
    with contextlib.closing(PgoutputHook().get_conn(replication=True)) as walsender:
        row = walsender.execute("IDENTIFY_SYSTEM").fetchone()
        assert row is not None
        assert row[3] == source.info.dbname


def test_the_test_button_says_what_is_missing(
    source: Session, set_connection: Define, postgres_server: EmbeddedPostgres
) -> None:
    ok, message = PgoutputHook().test_connection()
    assert ok
    assert "wal_level=logical" in message

    source.execute("CREATE ROLE nobody_special LOGIN PASSWORD 'word'")
    try:
        body = json.loads(_environment_connection())
        set_connection("weak", {**body, "login": "nobody_special", "password": "word"})
        ok, message = PgoutputHook("weak").test_connection()
        assert not ok
        assert "REPLICATION" in message
    finally:
        source.execute("DROP ROLE nobody_special")

    set_connection(
        "wrong", {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "password": CANARY}
    )
    ok, message = PgoutputHook("wrong").test_connection()
    assert not ok
    assert CANARY not in message


def test_a_role_that_may_replicate_by_membership_as_on_rds_is_not_reported_as_lacking_it(
    source: Session, set_connection: Define
) -> None:
    source.execute("CREATE ROLE rds_replication; CREATE ROLE team IN ROLE rds_replication")
    source.execute("CREATE ROLE member LOGIN PASSWORD 'word'")
    try:
        body = json.loads(_environment_connection())
        set_connection("member", {**body, "login": "member", "password": "word"})
        ok, message = PgoutputHook("member").test_connection()
        assert not ok
        assert "rds_replication" in message
        source.execute("GRANT team TO member")
        ok, message = PgoutputHook("member").test_connection()
        assert ok
        assert "may replicate" in message
    finally:
        source.execute("DROP ROLE member, team, rds_replication")


def _environment_connection() -> str:
    import os

    return os.environ["AIRFLOW_CONN_POSTGRES_DEFAULT"]
