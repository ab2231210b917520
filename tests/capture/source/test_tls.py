"""A server that takes TLS only, with a certificate of a test authority, and clients that verify it.

The server is one of version 17, whatever version the other tests use: the wheel of version 18 is built
without TLS.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from psycopg.conninfo import make_conninfo

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart.binaries import server_account
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from tests.capture.pipeline_support import Source, checkpoint_of
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

#: The only name in the server's certificate; it is reached by its address.
NAME = "source.test"
_YEAR = dt.timedelta(days=365)


class Authority:
    """Signs certificates of servers."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = self._signed(self._name, self._key, authority=True)

    def server(self, *, expired: bool = False) -> tuple[str, str]:
        """A certificate for ``NAME`` and its key, as PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return self._signed(subject, key, expired=expired), private.decode()

    def _signed(
        self,
        subject: x509.Name,
        key: EllipticCurvePrivateKey,
        *,
        authority: bool = False,
        expired: bool = False,
    ) -> str:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _YEAR)
            .not_valid_after(now + (-_YEAR / 2 if expired else _YEAR))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        )
        return (
            builder.sign(self._key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
            .decode()
        )


class TlsServer:
    """The server, and the files of its authority and of one that nobody knows."""

    def __init__(self, home: Path) -> None:
        self.authority, self.trusted, self.unknown = Authority("ours"), home / "ca", home / "other"
        self.trusted.write_text(self.authority.certificate)
        self.unknown.write_text(Authority("of somebody else").certificate)
        self._files = {"ssl_cert_file": home / "server.crt", "ssl_key_file": home / "server.key"}
        self.postgres = EmbeddedPostgres(
            home / "server",
            installation=find_or_fetch_installation(17),
            settings={"fsync": "off", "ssl": "on"}
            | {name: str(path) for name, path in self._files.items()},
        )
        self._write_certificate()

    def start(self) -> None:
        self.postgres.start()
        hba = self.postgres.data_directory / "pg_hba.conf"
        hba.write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        self._reload()

    def show(self, *, expired: bool) -> None:
        """Show another certificate from now on."""
        self._write_certificate(expired=expired)
        self._reload()

    def _write_certificate(self, *, expired: bool = False) -> None:
        account = server_account()
        for path, text in zip(
            self._files.values(), self.authority.server(expired=expired), strict=True
        ):
            path.write_text(text)
            path.chmod(0o600)
            if account is not None:
                os.chown(path, account.uid, account.gid)

    def _reload(self) -> None:
        before = self._loaded_at("pg_reload_conf()")
        while self._loaded_at("true") <= before:
            time.sleep(0.05)

    def _loaded_at(self, also: str) -> dt.datetime:
        """When a session that begins now finds that the configuration was loaded."""
        with psycopg.connect(
            self.postgres.conninfo(), sslmode="require", autocommit=True
        ) as session:
            row = session.execute(f"SELECT pg_conf_load_time(), {also}").fetchone()
        assert row is not None
        loaded_at: dt.datetime = row[0]
        return loaded_at


@pytest.fixture(scope="module")
def server(new_server_home: Callable[[], Path]) -> Iterator[TlsServer]:
    found = TlsServer(new_server_home())
    try:
        found.start()
        yield found
    finally:
        found.postgres.destroy()


@pytest.fixture
def source(server: TlsServer, tmp_path: Path) -> Iterator[Source]:
    """A published table, and a slot that goes after the test."""
    administrator = make_conninfo(server.postgres.conninfo(), sslmode="require")
    found = Source(administrator, "tls", tmp_path / "staging")
    found.execute(
        "CREATE TABLE t(a int PRIMARY KEY, b text)",
        "INSERT INTO t VALUES (1, 'copied')",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    yield found
    found.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
        "DROP PUBLICATION p",
        "DROP TABLE t",
    )


def verified(source: Source, server: TlsServer, **changed: str) -> str:
    """The reader's parameters with every protection on, and what a test changes of them."""
    given = {
        "host": NAME,
        "hostaddr": "127.0.0.1",
        "sslmode": "verify-full",
        "sslrootcert": str(server.trusted),
        "channel_binding": "require",
    }
    return make_conninfo(reader_conninfo(source.conninfo), **{**given, **changed})


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_a_pipeline_runs_with_everything_verified(
    source: Source, server: TlsServer, transport: str
) -> None:
    """The copy and both transports: psycopg and ADBC have a libpq each."""
    conninfo = verified(source, server)
    for connection in (sessions.connect(conninfo), sessions.connect_adbc(conninfo)):
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            assert cursor.fetchall() == [(True, "TLSv1.3")]
    first = source.stage(conninfo=conninfo)
    assert [row["b"] for row in source.copied(first, "public.t")] == ["copied"]
    source.execute("INSERT INTO t VALUES (2, 'streamed')")
    second = source.stage(conninfo=conninfo, checkpoint=checkpoint_of(first), transport=transport)
    assert [row["b"] for row in source.changes(second, "public.t")] == ["streamed"]


@pytest.mark.parametrize(
    ("changed", "expired", "said"),
    [
        ({"sslrootcert": "unknown"}, False, "certificate verify failed"),
        ({"host": "127.0.0.1"}, False, "does not match host name"),
        ({"sslrootcert": "/nowhere/ca.pem"}, False, "does not exist"),
        ({}, True, "certificate verify failed"),
        ({"sslmode": "disable", "channel_binding": "prefer"}, False, "no encryption"),
    ],
)
def test_what_cannot_be_verified_is_refused_in_one_line(
    source: Source, server: TlsServer, changed: dict[str, str], expired: bool, said: str
) -> None:
    """B20: a wrong or missing authority, another server's certificate, an expired one, no TLS."""
    if changed.get("sslrootcert") == "unknown":
        changed = {"sslrootcert": str(server.unknown)}
    server.show(expired=expired)
    try:
        with pytest.raises(ConfigurationError, match=said) as caught:
            source.stage(conninfo=verified(source, server, **changed))
        advice = str(caught.value).partition("What to do:")[2]
        assert ("TLS" if "sslmode" in changed else "sslrootcert") in advice
        assert "reader-of-the-tests" not in str(caught.value)
        assert source.confirmed() is None
        with pytest.raises(ConfigurationError, match=said):
            sessions.connect_adbc(verified(source, server, **changed))
    finally:
        server.show(expired=False)
