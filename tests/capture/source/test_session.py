"""C63: no default of a role, a database, the environment or the connection changes the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import meaning
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    DecodedTooEarly,
    MissingPrivilege,
    PublicationMissing,
    SlotBusy,
    SlotLost,
    SlotNotFound,
    SnapshotLost,
    SourceError,
    SourceUnavailable,
    TemporaryFilesFull,
    WrongSlot,
)
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

HOSTILE = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/New_York",
    "extra_float_digits": "-10",
    "bytea_output": "escape",
    "client_encoding": "latin1",
    "statement_timeout": "1",
    "row_security": "on",
    "lc_monetary": "C",
}


@pytest.mark.postgres
@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_hostile_defaults_change_nothing(
    source: Source, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.execute(
        "ALTER TABLE t ADD ts timestamptz, ADD iv interval, ADD f float8, ADD by bytea, ADD d date"
    )
    checkpoint = checkpoint_of(source.stage())
    (database,) = source.execute("SELECT current_database()")[0]
    with psycopg.connect(source.conninfo, autocommit=True) as owner:
        # In one session: the next one has a millisecond for each statement.
        for name, value in HOSTILE.items():
            owner.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                    sql.Identifier(database), sql.Identifier(name), sql.Literal(value)
                )
            )
    monkeypatch.setenv("PGDATESTYLE", "SQL, MDY")
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with psycopg.connect(
        source.conninfo, autocommit=True, client_encoding="utf8", options="-c statement_timeout=0"
    ) as writer:
        writer.execute(
            "INSERT INTO t VALUES (1, '€', '2024-05-06 07:08:09.123456+00', '1 mon -2 days 3:00',"
            " 0.1, '\\x00ff', '2024-05-06')"
        )
    manifest = source.stage(
        checkpoint=checkpoint,
        transport=transport,
        conninfo=f"{source.conninfo}?options=-c%20DateStyle%3DGerman",
    )
    (row,) = source.changes(manifest, "public.t")
    assert row["b"] == "€"
    assert row["ts"].isoformat() == "2024-05-06T07:08:09.123456+00:00"
    assert row["iv"] == "1 mon -2 days +03:00:00"
    assert (row["f"], row["by"], str(row["d"])) == (0.1, b"\x00\xff", "2024-05-06")


@pytest.mark.postgres
def test_every_pinned_setting_is_read_back(source: Source) -> None:
    for connection in (
        sessions.connect(source.conninfo),
        sessions.connect(source.conninfo, replication=True),
    ):
        rows = connection.execute("SELECT name, setting FROM pg_settings").fetchall()
        shown = {name.lower(): setting.replace(" ", "") for name, setting in rows}
        assert {name: shown[name.lower()] for name in sessions.PINNED} == sessions.PINNED
        connection.close()


@pytest.mark.parametrize(
    ("sqlstate", "message", "error"),
    [
        ("55006", 'replication slot "s" is active for PID 7', SlotBusy),
        ("42710", 'replication slot "s" already exists', SlotBusy),
        ("72000", "snapshot too old", SnapshotLost),
        ("53100", 'could not write to file "base/x": No space left on device', SourceUnavailable),
        (
            "53100",
            'could not write to file "base/pgsql_tmp/pgsql_tmp7.0": No space left on device',
            TemporaryFilesFull,
        ),
        ("55000", 'can no longer access replication slot "s"', SlotLost),
        ("55000", 'can no longer get changes from replication slot "s"', SlotLost),
        ("55000", 'replication slot "s" was not created in this database', WrongSlot),
        ("55000", "cannot use physical replication slot for logical decoding", WrongSlot),
        ("55000", 'logical decoding requires "wal_level" >= "logical"', ConfigurationError),
        ("42704", 'publication "p" does not exist', PublicationMissing),
        ("22023", 'option "proto_version" = "1" is unknown', WrongSlot),
        ("57P01", "terminating connection due to administrator command", SourceUnavailable),
        ("08006", "server closed the connection unexpectedly", SourceUnavailable),
        ("28P01", "password authentication failed", ConfigurationError),
        ("XX001", "invalid page", SourceError),
        ("XX000", "could not open relation with OID 16391", SourceUnavailable),
        (None, "server closed the connection unexpectedly", SourceUnavailable),
        (None, "SSL connection has been closed unexpectedly", SourceUnavailable),
        (None, "SSL SYSCALL error: Connection reset by peer", SourceUnavailable),
        (None, "SSL error: unexpected eof while reading", SourceUnavailable),
        (None, "SSL error: decryption failed or bad record mac", SourceUnavailable),
        (None, "SSL error: certificate verify failed", ConfigurationError),
        (None, 'FATAL: no pg_hba.conf entry for host "1.2.3.4"', ConfigurationError),
        (None, "failed to resolve host 'certificates.invalid': [Errno -2]", SourceUnavailable),
        (None, 'could not translate host name "SSL.invalid" to address', SourceUnavailable),
        (None, 'FATAL: database "certificate" does not exist', ConfigurationError),
        (None, 'FATAL: too many connections for database "certificates"', SourceUnavailable),
        # Of a server that asks for TLS: with sslmode=prefer libpq tries again without it.
        (
            None,
            "FATAL: sorry, too many clients already failed: FATAL: no pg_hba.conf entry, no encryption",
            SourceUnavailable,
        ),
    ],
)
def test_what_the_server_says_has_a_class(
    sqlstate: str | None, message: str, error: type[Exception]
) -> None:
    assert type(meaning(sqlstate, message)) is error


@pytest.mark.parametrize(
    ("sqlstate", "message", "error", "advice"),
    [
        ("42704", 'publication "replication slot" does not exist', PublicationMissing, "create"),
        ("42704", 'replication slot "publication" does not exist', SlotNotFound, "slot_name"),
        ("42704", 'snapshot "00000003-00000002-1" does not exist', SnapshotLost, "new snapshot"),
        ("42704", 'type "s.publication" does not exist', SourceError, "server's log"),
        ("42704", 'type "txid_snapshot" does not exist', SourceError, "server's log"),
        ("42704", 'collation "replication slot" does not exist', SourceError, "server's log"),
        ("22023", 'invalid snapshot identifier: "1"', SnapshotLost, "new snapshot"),
        ("42501", "permission denied for table replication", MissingPrivilege, "GRANT SELECT"),
        ("42501", 'permission denied for table "for schema"', MissingPrivilege, "GRANT SELECT"),
        ("42501", "permission denied for schema replication", MissingPrivilege, "GRANT USAGE"),
        ("42501", "permission denied for function replication", MissingPrivilege, "GRANT EXECUTE"),
        ("42501", "permission denied to use replication slots", MissingPrivilege, "REPLICATION"),
        (
            "42501",
            "must be superuser or replication role to use replication slots",
            MissingPrivilege,
            "REPLICATION",
        ),
        (
            "42501",
            'query would be affected by row-level security policy for table "t"',
            MissingPrivilege,
            "BYPASSRLS",
        ),
    ],
)
def test_names_in_a_message_do_not_give_it_another_class(
    sqlstate: str, message: str, error: type[Exception], advice: str
) -> None:
    refused = meaning(sqlstate, message)
    assert type(refused) is error
    assert advice in str(refused)


@pytest.mark.parametrize(
    "message",
    [
        'could not map filenumber "base/1/2" to relation OID',
        "pg_attribute catalog is missing 1 attribute(s) for relation OID 3",
    ],
)
def test_the_advice_for_what_the_server_cannot_stream(message: str) -> None:
    refused = meaning("XX000", message)
    assert type(refused) is DecodedTooEarly
    assert "set streaming to off" in str(refused)


def test_a_session_that_is_not_pinned_keeps_the_connections_own_options() -> None:
    """A proxy may go by them."""
    given = {"host": "h", "options": "endpoint=e"}
    assert sessions.parameters(given, pinned=False)["options"] == "endpoint=e"
    assert sessions.parameters({"host": "h"}, pinned=False)["options"] == ""
    assert sessions.parameters(given)["options"].startswith("endpoint=e -c ")


def test_a_message_about_a_value_is_not_repeated() -> None:
    assert "canary" not in str(meaning("22P02", 'invalid input syntax for type integer: "canary"'))


def test_what_libpq_prints_becomes_one_line() -> None:
    printed = (
        "server closed the connection unexpectedly\n"
        "\tThis probably means the server terminated abnormally\n"
        "\tbefore or while processing the request.\n"
    )
    refused = meaning(None, printed)
    assert type(refused) is SourceUnavailable
    assert "\n" not in str(refused)
    assert "unexpectedly This probably means the server terminated abnormally" in str(refused)
