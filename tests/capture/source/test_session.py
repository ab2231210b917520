"""C63: no default of a role, a database, the environment or the connection changes the bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.errors import meaning
from airflow_provider_pgoutput.capture.source.pinned import PINNED
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
    SourceLocked,
    SourceUnavailable,
    TemporaryFilesFull,
    WrongSlot,
)
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

#: What a role or a database may set. Superusers only may set those at the end.
HOSTILE = {
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "exit_on_error": "on",
    "client_min_messages": "error",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "plan_cache_mode": "force_generic_plan",
    "jit_above_cost": "0",
    "enable_hashjoin": "off",
    "enable_nestloop": "off",
    "enable_tidscan": "off",
    "enable_seqscan": "off",
    "synchronous_commit": "off",
    "lock_timeout": "1",
    "idle_session_timeout": "1",
    "idle_in_transaction_session_timeout": "1",
    "search_path": "odd",
    "xmloption": "document",
    "xmlbinary": "hex",
    "timezone_abbreviations": "India",
    "restrict_nonsystem_relation_kind": "view",
    "logical_decoding_work_mem": "64kB",
    "wal_sender_timeout": "0",
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/New_York",
    "extra_float_digits": "-10",
    "bytea_output": "escape",
    "client_encoding": "latin1",
    "statement_timeout": "1",
    "row_security": "on",
    "lc_monetary": "C",
    "session_replication_role": "replica",
    "track_activities": "off",
    "allow_system_table_mods": "on",
}
#: Settings that not every version has.
HOSTILE_IF_KNOWN = {
    "force_parallel_mode": "on",
    "debug_parallel_query": "on",
    # It is pinned once connected, as older servers refuse a connection that names it.
    "transaction_timeout": "2s",
    "event_triggers": "off",
}


def make_hostile(source: Source) -> str:
    """Let every session that begins from now on in the database have all the settings.

    :returns: ``options`` of a session that can still write.
    """
    (database,) = source.execute("SELECT current_database()")[0]
    with psycopg.connect(source.conninfo, autocommit=True) as owner:
        known = {row[0] for row in owner.execute("SELECT name FROM pg_settings").fetchall()}
        wanted = {**HOSTILE, **{k: v for k, v in HOSTILE_IF_KNOWN.items() if k in known}}
        # In one session: the next one has a millisecond for each statement.
        for name, value in wanted.items():
            owner.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                    sql.Identifier(database), sql.Identifier(name), sql.Literal(value)
                )
            )
    limits = [name for name in wanted if name.endswith("_timeout")]
    usual = {"default_transaction_read_only": "off", "synchronous_commit": "on"}
    return " ".join(f"-c {k}={v}" for k, v in (usual | dict.fromkeys(limits, "0")).items())


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_hostile_defaults_change_nothing(
    source: Source, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first copy and in the stream, and no warning of the server's is lost."""
    source.execute(
        "ALTER TABLE t ADD ts timestamptz, ADD iv interval, ADD f float8, ADD by bytea, ADD d date,"
        " ADD re regclass, ADD m money, ADD tags text[]",
        "ALTER PUBLICATION p SET TABLE t WHERE (tags IS DISTINCT FROM '{a,NULL}')",
        r"""CREATE PUBLICATION "it's \ ""odd" FOR TABLE t WHERE (tags IS DISTINCT FROM '{a,NULL}')""",
        "INSERT INTO t (a, tags, re) VALUES (1, '{a,NULL}', 't'), (2, '{a,\"NULL\"}', 't')",
    )
    reader = source.reader
    writers_options = make_hostile(source)
    monkeypatch.setenv("PGDATESTYLE", "SQL, MDY")
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    options = {
        "transport": transport,
        "conninfo": f"{reader} options='-c DateStyle=German'",
        "publication_names": ("p", r"""it's \ "odd"""),
    }
    first = source.stage(**options)
    (row,) = source.copied(first, "public.t")
    assert (row["a"], row["re"]) == (2, "public.t")
    with psycopg.connect(
        source.conninfo,
        autocommit=True,
        client_encoding="utf8",
        options=writers_options,
    ) as writer:
        writer.execute(
            "INSERT INTO public.t VALUES (3, '€', '2024-05-06 07:08:09.123456+00', '1 mon -2 days 3:00',"
            " 0.1, decode('00ff', 'hex'), '2024-05-06', 'public.t', '$1.50', '{x}')"
        )
    manifest = source.stage(checkpoint=checkpoint_of(first), **options)
    (row,) = source.changes(manifest, "public.t")
    assert row["b"] == "€"
    assert row["ts"].isoformat() == "2024-05-06T07:08:09.123456+00:00"
    assert row["iv"] == "1 mon -2 days +03:00:00"
    assert (row["f"], row["by"], str(row["d"])) == (0.1, b"\x00\xff", "2024-05-06")
    assert (row["re"], row["m"]) == ("public.t", "$1.50")
    # From version 18 on the server only warns of it, see client_min_messages.
    with psycopg.connect(source.conninfo, autocommit=True, options=writers_options) as writer:
        writer.execute("INSERT INTO public.t (a, tags) VALUES (4, '{x}')")
        writer.execute("CREATE PUBLICATION late FOR TABLE public.t")
    with pytest.raises(PublicationMissing, match="late"):
        source.stage(
            checkpoint=checkpoint_of(manifest), **{**options, "publication_names": ("p", "late")}
        )


def test_every_pinned_setting_is_read_back(source: Source) -> None:
    for connection in (
        sessions.connect(source.conninfo),
        sessions.connect(source.conninfo, replication=True),
    ):
        rows = connection.execute("SELECT name, setting FROM pg_settings").fetchall()
        shown = {name.lower(): setting.replace(" ", "") for name, setting in rows}
        wanted = {name: value.replace(" ", "") for name, value in PINNED.items()}
        assert {name: shown[name.lower()] for name in wanted} == wanted
        connection.close()


@pytest.mark.parametrize(
    ("sqlstate", "message", "error"),
    [
        ("55006", 'replication slot "s" is active for PID 7', SlotBusy),
        ("42710", 'replication slot "s" already exists', SlotBusy),
        ("72000", "snapshot too old", SnapshotLost),
        # In another language of the server: what passes is retried all the same.
        ("55P03", "breche Anweisung ab wegen Zeitüberschreitung einer Sperre", SourceLocked),
        ("42710", "Replikations-Slot »s« existiert bereits", SlotBusy),
        ("42704", "Snapshot »00000003-00000002-1« existiert nicht", SnapshotLost),
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


def test_the_connections_own_options_stay() -> None:
    """A proxy may go by them."""
    given = {"host": "h", "options": "endpoint=e"}
    assert sessions.parameters(given)["options"].startswith("endpoint=e -c ")
    unpinned = sessions.parameters(given, changed={"lc_monetary": None})["options"]
    assert "lc_monetary" not in unpinned
    assert "statement_timeout" in unpinned


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
