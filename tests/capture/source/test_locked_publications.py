"""Published tables are listed from the catalogs if one of them is locked, as the server itself lists them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_published_tables
from airflow_provider_pgoutput.capture.source.keys import Keys
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

TABLES = (
    "CREATE SCHEMA other",
    "CREATE TABLE plain (a int PRIMARY KEY, b text, c int, g int GENERATED ALWAYS AS (a + 1) STORED)",
    "ALTER TABLE plain DROP c",
    "CREATE TABLE bare ()",
    "CREATE UNLOGGED TABLE unlogged (a int PRIMARY KEY)",
    "CREATE TABLE root (a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
    "CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE other.root_2 PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (a)",
    "CREATE TABLE other.root_21 PARTITION OF other.root_2 FOR VALUES FROM (10) TO (15)",
    "CREATE UNLOGGED TABLE root_3 PARTITION OF root FOR VALUES FROM (20) TO (30)",
    "CREATE TABLE parent (a int PRIMARY KEY)",
    "CREATE TABLE child (b int) INHERITS (parent)",
    "CREATE TABLE other.alone (a int PRIMARY KEY, b text)",
    "CREATE VIEW seen AS SELECT 1 AS a",
    "CREATE TABLE information_schema.mine (a int PRIMARY KEY)",
    "CREATE TABLE left_by (a int PRIMARY KEY) PARTITION BY RANGE (a)",
    "CREATE TABLE leaving PARTITION OF left_by FOR VALUES FROM (0) TO (10)",
)
VIA_ROOT = "WITH (publish_via_partition_root)"
#: Statements after CREATE PUBLICATION, of publications that are read together.
PUBLICATIONS: dict[str, tuple[str, ...]] = {
    "all": ("FOR ALL TABLES",),
    "all via root": (f"FOR ALL TABLES {VIA_ROOT}",),
    "schemas": ("FOR TABLES IN SCHEMA other", "FOR TABLES IN SCHEMA public"),
    "schemas via root": (f"FOR TABLES IN SCHEMA public, other {VIA_ROOT}",),
    "a schema without the root": (f"FOR TABLES IN SCHEMA other {VIA_ROOT}",),
    "tables": ("FOR TABLE plain, bare, root, ONLY parent",),
    "children": ("FOR TABLE parent",),
    "tables via root": (f"FOR TABLE plain, root, root_1, other.root_21 {VIA_ROOT}",),
    "a part": (f"FOR TABLE other.root_2 {VIA_ROOT}", "FOR TABLE root_1"),
    "both ways": (f"FOR TABLE root {VIA_ROOT}", "FOR TABLE root, other.alone"),
    "columns": ("FOR TABLE plain (b, a), root_1 (a)", "FOR TABLE other.alone (a)"),
    "columns via root": (f"FOR TABLE root (a), plain (a) {VIA_ROOT}",),
    "filters": (
        "FOR TABLE plain WHERE (a > 1), root_1 WHERE (a > 2)",
        "FOR TABLE plain WHERE (a < 9)",
        f"FOR TABLE other.root_2 WHERE (a > 3) {VIA_ROOT}",
    ),
    "a schema and its table": (
        "FOR TABLES IN SCHEMA other, TABLE other.alone WHERE (a > 1), plain",
    ),
    "nothing": ("",),
    "generated": ("FOR TABLE plain WITH (publish_generated_columns = stored)",),
    "a generated column": ("FOR TABLE plain (a, g)",),
}


@pytest.mark.parametrize("kind", PUBLICATIONS)
def test_both_lists_are_the_same(source: Source, kind: str) -> None:
    server = source.server()
    if "generated" in kind and server.major < 18:
        pytest.skip("version 18 and later publish generated columns")
    source.execute(*TABLES)
    _begin_to_detach(source, "left_by", "leaving")
    names = [f"q{number}" for number in range(len(PUBLICATIONS[kind]))]
    for name, of in zip(names, PUBLICATIONS[kind], strict=True):
        source.execute(f"CREATE PUBLICATION {name} {of}")
    with sessions.connect(source.conninfo) as session:
        found = [
            read_published_tables(session, server, names, Keys(), waits=waits)
            for waits in (True, False)
        ]
    assert found[0] == found[1]
    assert found[0] or kind == "nothing"


def _begin_to_detach(source: Source, root: str, partition: str) -> None:
    """Leave a DETACH CONCURRENTLY half done: the partition is still one, but not of its root any more."""
    with closing(psycopg.connect(source.conninfo)) as reader:
        reader.execute(f"SELECT FROM {root}")
        with closing(psycopg.connect(source.conninfo, autocommit=True)) as session:
            session.execute("SET statement_timeout = '300ms'")
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.execute(f"ALTER TABLE {root} DETACH PARTITION {partition} CONCURRENTLY")


def test_a_locked_table_is_followed_by_the_others_and_itself(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """DDL that is not committed holds the lock, and committed changes from before it are staged."""
    monkeypatch.setattr(sessions, "LOCK_TIMEOUT_SECONDS", 1)
    source.execute("CREATE TABLE held (a int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE held")
    checkpoint = checkpoint_of(source.stage())
    source.execute("INSERT INTO t VALUES (1, 'x')", "INSERT INTO held VALUES (1)")
    with closing(psycopg.connect(source.conninfo)) as session:
        session.execute("ALTER TABLE held ADD b int")
        batch = source.stage(checkpoint=checkpoint, on_table_refused="set_aside")
        assert [row["a"] for row in source.changes(batch, "public.t")] == [1]
        assert [row["a"] for row in source.changes(batch, "public.held")] == [1]
        if session.info.server_version >= 160000:
            assert "The published tables are read from the catalogs instead." in caplog.text
        session.execute("INSERT INTO held VALUES (2, 2)")
        session.commit()
    batch = source.stage(checkpoint=checkpoint_of(batch), on_table_refused="set_aside")
    assert [(row["a"], row["b"]) for row in source.changes(batch, "public.held")] == [(2, 2)]
