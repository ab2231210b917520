"""Who may make a publication, as the tutorial and docs/how-to/postgresql.md say it."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "first_pipeline.md"
(PUBLICATION,) = re.findall(r"^CREATE PUBLICATION .*;$", PAGE.read_text(), re.MULTILINE)


def test_who_may_make_a_publication(postgres_database: str) -> None:
    with psycopg.connect(postgres_database, autocommit=True) as session:
        session.execute("CREATE ROLE owner_of_tables")
        try:
            _make_publications(session)
        finally:
            session.execute("RESET ROLE; DROP OWNED BY owner_of_tables; DROP ROLE owner_of_tables")


def _make_publications(session: psycopg.Connection[tuple[object, ...]]) -> None:
    session.execute("GRANT CREATE ON SCHEMA public TO owner_of_tables")
    session.execute("SET ROLE owner_of_tables")
    session.execute("CREATE TABLE orders (id int); CREATE TABLE customers (id int)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="database"):
        session.execute(PUBLICATION.encode())
    database = sql.Identifier(session.info.dbname)
    session.execute("RESET ROLE")
    session.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO owner_of_tables").format(database))
    session.execute("SET ROLE owner_of_tables")
    session.execute(PUBLICATION.encode())
    for kind in ("TABLES IN SCHEMA public", "ALL TABLES"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="superuser"):
            session.execute(f"CREATE PUBLICATION more FOR {kind}".encode())
