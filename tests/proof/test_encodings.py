"""A server may keep text in another encoding than the lake; a digest is the same all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.source.catalog import read_types
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.proof.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.proof.digest import RowHash
    from quickstart.postgres import EmbeddedPostgres

TEXTS = ["Größe", "é" * 40, "plain", "", None]


@pytest.fixture(params=["LATIN1", "UTF8", "SQL_ASCII"])
def conninfo(request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres) -> Iterator[str]:
    name = f"encoding_{request.param.lower()}"
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute(
            f"CREATE DATABASE {name} ENCODING '{request.param}' LOCALE 'C' TEMPLATE template0"
        )
    yield postgres_server.conninfo(name)
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("is_md5", [False, True], ids=["server", "md5"])
def test_text_has_one_hash_in_each_encoding(conninfo: str, is_md5: bool) -> None:
    with connect(conninfo) as session:
        session.execute("CREATE EXTENSION hstore SCHEMA public")
        session.execute(
            "CREATE TABLE public.t (id int, v text, a text[], h public.hstore, n numeric(30,2))"
        )
        for number, text in enumerate(TEXTS):
            session.execute(
                "INSERT INTO public.t VALUES (%s, %s, ARRAY[%s::text, NULL],"
                " public.hstore(COALESCE(%s, ''), %s), 12.5)",
                (number, *[text] * 4),
            )
        types = read_types(session, attributes=True)
        oids: Any = session.execute(
            "SELECT atttypid::int8, atttypmod FROM pg_attribute"
            " WHERE attrelid = 'public.t'::regclass AND attnum > 1 ORDER BY attnum"
        ).fetchall()
        lake_types = ("string", "list<string>", "map<string, string>", "decimal(30, 2)")
        columns = [
            Column(name, oid, modifier, "", lake_type)
            for name, (oid, modifier), lake_type in zip("vahn", oids, lake_types, strict=True)
        ]
        source = SourceRows(Lsn(1), (), types, session, session, {}, is_md5=is_md5)
        row_hash: RowHash = source.row_hash(columns, 7)
        query = sql.SQL("SELECT {} FROM public.t ORDER BY id").format(row_hash.expression("t"))
        theirs = [value % 2**64 for (value,) in session.execute(query).fetchall()]
    lake = [
        pa.array(TEXTS, pa.string()),
        pa.array([[each, None] for each in TEXTS], pa.list_(pa.string())),
        pa.array([[(each or "", each)] for each in TEXTS], pa.map_(pa.string(), pa.string())),
        pa.array(["12.50"] * len(TEXTS)).cast(pa.decimal128(30, 2)),
    ]
    assert row_hash.of_rows(lake).tolist() == theirs
    assert len(set(theirs)) == len(TEXTS)
