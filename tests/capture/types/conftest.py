"""One pinned session for all tests of types, as hypothesis calls a test many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.capture.types.oracle import pin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quickstart.postgres import EmbeddedPostgres

_DATABASE = "types_oracle"
_SET_UP = """
CREATE TYPE public.mood AS ENUM ('sad', 'ok', 'very "happy"');
CREATE TYPE public.pair AS (a int, "b c" text);
CREATE TYPE public.floats AS RANGE (subtype = float8);
CREATE DOMAIN public.price AS numeric(12, 2) CHECK (VALUE > 0);
CREATE DOMAIN public.small_price AS public.price CHECK (VALUE < 100);
CREATE DOMAIN public.names AS text[];
CREATE DOMAIN public.corner AS box;
CREATE DOMAIN public.boxes AS box[];
CREATE SCHEMA "Odd ""schema";
CREATE TYPE "Odd ""schema"."select" AS ENUM ('x');
"""


@pytest.fixture(scope="session")
def session(postgres_server: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as administrator:
        administrator.execute(f"CREATE DATABASE {_DATABASE}")
    with psycopg.connect(postgres_server.conninfo(_DATABASE), autocommit=True) as connection:
        connection.execute(_SET_UP)
        # Not every packaged server brings them; tests that need one skip where it is missing.
        for (name,) in connection.execute(
            "SELECT name FROM pg_available_extensions WHERE name IN ('hstore', 'citext', 'ltree', 'vector')"
        ).fetchall():
            connection.execute(f"CREATE EXTENSION {name} SCHEMA public")
        pin(connection)
        yield connection
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as administrator:
        administrator.execute(f"DROP DATABASE {_DATABASE} WITH (FORCE)")
