"""Every type in the catalogs of PostgreSQL 15 to 18 has its place in the lake and on the page about types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.types import builtin_types
from airflow_provider_pgoutput.capture.types.cast import ValuePolicy, column_caster
from airflow_provider_pgoutput.capture.types.mapping import (
    CATALOG_QUERY,
    lake_type,
    type_catalog,
    type_name,
)
from airflow_provider_pgoutput.capture.types.options import TypeOptions
from airflow_provider_pgoutput.capture.types.type_info import ATTRIBUTE_QUERY, with_attributes
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from tests.capture.types.special_values import INTERNAL
from tools.builtin_types import QUERY, module_text
from tools.types_page import document_text

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = TypeOptions(
    {
        "numeric": "decimal(38,9)",
        "uuid": "uuid",
        "composite": "struct",
        "interval": "struct",
        "time": "micros",
    }
)
_USER_TYPES = """
CREATE TYPE mood AS ENUM ('sad');
CREATE TYPE pair AS (a int, m mood, i interval);
CREATE TYPE outer_pair AS (p pair, ps pair[]);
CREATE TYPE floats AS RANGE (subtype = float8);
CREATE DOMAIN price AS numeric(12, 2);
CREATE DOMAIN prices AS price[];
CREATE DOMAIN a_pair AS outer_pair;
CREATE TABLE rows(a int, b text[]);
CREATE TABLE of_rows(r rows, rs rows[]);
"""


@pytest.mark.parametrize("major", [15, 16, 17, 18])
def test_every_type_of_a_version_has_a_caster_and_a_line_in_the_docs(
    server_home: Path, major: int
) -> None:
    server = EmbeddedPostgres(server_home, installation=find_or_fetch_installation(major))
    try:
        with psycopg.connect(server.start().conninfo(), autocommit=True) as session:
            _check(session, major)
    finally:
        server.destroy()


def _check(session: psycopg.Connection[Any], major: int) -> None:
    assert session.info.server_version // 10_000 == major
    session.execute(_USER_TYPES)
    row = session.execute(QUERY).fetchone()
    assert row is not None
    made: dict[str, Any] = {}
    exec(module_text(json.dumps(row[0])), made)  # noqa: S102  the text is ours
    assert made["BUILTIN_ROWS"] == builtin_types.BUILTIN_ROWS
    catalog = with_attributes(
        type_catalog(session.execute(CATALOG_QUERY).fetchall()),
        session.execute(ATTRIBUTE_QUERY).fetchall(),
    )
    page, policy, structs = document_text(), ValuePolicy(), 0
    types = session.execute(
        "SELECT oid::int8, typtype::text, typname::text, typelem::int8, format_type(oid, -1)"
        "  FROM pg_type"
    ).fetchall()
    assert len(types) > 500
    for oid, typtype, name, element, spelled in types:
        for options in (TypeOptions(), EVERYTHING):
            lake = lake_type(oid, -1, catalog, options.of("t", "c"))
            column = Column("c", oid, -1, type_name(oid, -1, catalog), lake)
            assert column.type_name.rpartition(".")[2] == spelled.rpartition(".")[2]
            column_caster(column, policy, types=catalog)
            structs += "struct<" in lake
        if oid < 10_000 and typtype in "brm" and not (name.startswith("_") and element):
            assert (name in INTERNAL) != (f"\n| `{column.type_name}` | " in page), name
    # Intervals, the composites, tables of which there are columns, and arrays and domains of these.
    assert structs >= 12
