"""The page on errors of the source has a section for each of them, and its queries run on a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput import errors

if TYPE_CHECKING:
    from quickstart.postgres import EmbeddedPostgres

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "source_errors.md"
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_each_section_is_an_error_of_the_source() -> None:
    sections = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(sections) == len(set(sections)) > 10
    for name in sections:
        assert issubclass(getattr(errors, name), errors.PgoutputError)
    # What begins so is about a slot, a publication or the source.
    kinds = {
        name
        for name in dir(errors)
        if re.match(r"(Slot|Publication|Source|WrongSlot|Snapshot|MissingPrivilege)", name)
    }
    assert kinds - {"SourceUnavailable", "SourceError"} <= set(sections)


@pytest.mark.parametrize("query", QUERIES)
def test_its_queries_run(postgres_server: EmbeddedPostgres, query: str) -> None:
    with psycopg.connect(postgres_server.conninfo()) as session:
        cursor = session.execute(query.encode())
        assert cursor.description
