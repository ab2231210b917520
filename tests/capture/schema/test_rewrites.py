"""Which changes of a type keep the values of older rows, checked by a server that makes the changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgoutput.capture.schema.rewrites import keeps_values

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

KEPT = (
    ("smallint", "bigint", "15"),
    ("bigint", "integer", "15"),
    ("numeric(8,2)", "numeric(12,2)", "1.50"),
    ("character varying(4)", "character varying(9)", "a  "),
    ("character varying(4)", "text", "a  "),
    ("text", "character varying", "a  "),
    ("jsonb", "text", '{"a":1}'),
    ("json", "text", '{"a":1}'),
    ("uuid", "text", "6b29fc40-ca47-1067-b31d-00dd010662da"),
    (
        "timestamp(3) without time zone",
        "timestamp without time zone",
        "2026-01-01 00:00:00.123",
    ),
    ("time(0) with time zone", "time(3) with time zone", "01:02:03+00"),
)
#: With a value that becomes another one.
CHANGED = (
    ("json", "jsonb", '{"a":1}'),
    (
        "timestamp without time zone",
        "timestamp(0) without time zone",
        "2026-01-01 00:00:00.6",
    ),
    ("time(6) without time zone", "time(3) without time zone", "00:00:00.1239"),
    ("character(3)", "character(5)", "a"),
    ("character(3)", "text", "a"),
    ("text", "character varying(2)", "a   "),
    ("inet", "text", "10.0.0.1"),
    ("numeric(8,2)", "numeric(8,1)", "1.25"),
    ("double precision", "real", "0.123456789012"),
)


@pytest.mark.parametrize(("before", "after", "value"), KEPT)
def test_these_keep_values(before: str, after: str, value: str) -> None:
    assert keeps_values(before, after)
    assert keeps_values(before, after, as_text=True)
    assert keeps_values(before, before)


@pytest.mark.parametrize(("before", "after", "value"), CHANGED)
def test_of_these_it_is_not_said(before: str, after: str, value: str) -> None:
    assert not keeps_values(before, after)


def test_what_is_not_known_is_not_said_to_keep_values() -> None:
    assert not keeps_values("app.mood", "text")
    assert not keeps_values("app.price", "numeric(8,2)")
    assert not keeps_values("integer", "text")
    # The lake has it as the same number. Only its text is another.
    assert keeps_values("real", "double precision")
    assert not keeps_values("real", "double precision", as_text=True)


def test_the_server_agrees(source: Source) -> None:
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        for before, after, value in [*KEPT, *CHANGED]:
            session.execute(sql.SQL("CREATE TEMP TABLE x(v {})").format(sql.SQL(before)))
            session.execute("INSERT INTO x VALUES (%s)", (value,))
            # The output function, which no cast to text is.
            held = session.execute("SELECT concat('<', v, '>') FROM x").fetchall()
            session.execute(sql.SQL("ALTER TABLE x ALTER v TYPE {}").format(sql.SQL(after)))
            found = session.execute("SELECT concat('<', v, '>') FROM x").fetchall()
            session.execute("DROP TABLE x")
            assert (held == found) == ((before, after, value) in KEPT), (before, after)
