"""Masked columns: the server makes the texts that capture makes of what it gets, and hashes them alike."""

from __future__ import annotations

import hashlib
import hmac
import logging
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.masks import Mask
from airflow_provider_pgoutput.proof.digest import RowHash
from airflow_provider_pgoutput.proof.forms.masked import tell_secret
from tests.capture.types.special_values import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.capture.source.session import Session

_SECRETS = (b"a secret of these tests, long enough", bytes(range(1, 100)))


def _hmac(secret: bytes) -> Callable[[str], str]:
    return lambda text: hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


_MASKS: tuple[tuple[str, bytes | None, Callable[[str], str]], ...] = (
    *((Mask("hash").recorded(secret), secret, _hmac(secret)) for secret in _SECRETS),
    ("redact", None, lambda _: "***"),
    ("truncate(3)", None, lambda text: text[:3]),
)


def _hashes(session: Session, kind: str, texts: list[str | None], row_hash: RowHash) -> list[Any]:
    """What the server prints of each value, and its hash of the masked value."""
    query = sql.SQL(
        "SELECT v, {} FROM unnest({}::text[]::{}[]) WITH ORDINALITY AS t(v, n) ORDER BY n"
    ).format(row_hash.expression("t"), sql.Literal(texts), sql.Identifier("pg_catalog", kind))
    result = session.execute(query).pgresult
    assert result is not None
    rows = [(result.get_value(row, 0), result.get_value(row, 1)) for row in range(result.ntuples)]
    return [
        (None if text is None else text.decode(), int(hashed or b"") % 2**64)
        for text, hashed in rows
    ]


@pytest.mark.parametrize("mask", _MASKS, ids=("hash", "long secret", "redact", "truncate"))
def test_both_sides_mask_every_type_alike(
    postgres_database: str, mask: tuple[str, bytes | None, Callable[[str], str]]
) -> None:
    recorded, secret, masked = mask
    with connect(postgres_database) as session:
        session.execute("BEGIN")
        if secret is not None:
            tell_secret(session, secret)
        oids = dict(session.execute("SELECT typname, oid FROM pg_catalog.pg_type").fetchall())
        seen = 0
        for kind, texts in VALUES.items():
            column = Column("v", oids[kind], -1, "", "string", mask=recorded)
            row_hash = RowHash.of([column], {}, 7)
            try:
                with session.transaction():
                    found = _hashes(session, kind, [*texts, None], row_hash)
            except psycopg.errors.FeatureNotSupported:
                assert kind == "xml", "the tests' servers may lack libxml"
                continue
            lake = pa.array([None if text is None else masked(text) for text, _ in found])
            assert row_hash.of_rows([lake]).tolist() == [hashed for _, hashed in found], kind
            seen += 1
    assert seen > 50


def test_no_statement_has_the_secret(
    postgres_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = _SECRETS[0]
    column = Column("v", 25, -1, "", "string", mask=Mask("hash").recorded(secret))
    statement = sql.SQL("SELECT {}, query FROM pg_stat_activity, (VALUES ('x')) AS t(v)").format(
        RowHash.of([column], {}, 7).expression("t")
    )
    with connect(postgres_database) as session, caplog.at_level(logging.DEBUG):
        session.execute("BEGIN")
        tell_secret(session, secret)
        texts = [text for _, text in session.execute(statement).fetchall()]
        session.execute("COMMIT")
        # The session may be given to somebody else.
        assert session.execute("SHOW pgoutput.mask_outer").fetchone() == ("",)
    assert any("pgoutput.mask_outer" in text for text in texts)
    blocks = [bytes(b ^ pad for b in secret.ljust(64, b"\0")).hex() for pad in (0x36, 0x5C)]
    for shown in (*texts, caplog.text):
        assert not any(each in shown for each in (secret.decode(), *blocks))
