"""How often a run asks the server, as the server's own log counts it."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.capture.source.catalog import read_published_tables, read_server
from airflow_provider_pgoutput.capture.source.keys import Keys
from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from quickstart.postgres import EmbeddedPostgres
    from tests.capture.pipeline_support import Source

_LOGGED = re.compile(r"(?:statement|execute \S+): (.*?)(?=\n\d{4}-\d\d-\d\d )", re.S)
_END = "SELECT 'the run is over'"
#: Queries for these are the expensive ones where many tables are published.
_PUBLISHED_TABLES = "FROM pg_catalog.pg_publication_tables"
_PLACES = "relfilenode"
#: All that a run asks that finds nothing to read, its sessions' settings among it.
_OF_AN_EMPTY_RUN = 34
#: And what older rows show in columns, once for all tables.
_WHEN_TABLES_CHANGED = 38
#: At most: the first run, which copies one table, and a run that finds changes of a table with partitions.
#: They were 73 and 39, however many partitions there were. One more for each would be far above.
_OF_A_COPY_OF_ONE_TABLE = 83
_WHEN_A_ROOT_CHANGED = 49
#: At most: a first run of many tables, 79 when it was counted, and what each table with rows adds: a
#: transaction of four statements and its COPY. One question more for each table would be far above.
_OF_A_COPY = 89
_OF_A_COPIED_TABLE = 5


class ServerLog:
    """What the server logs of the sessions in one database."""

    def __init__(self, server: EmbeddedPostgres, source: Source) -> None:
        self._path = server.log_path
        self._source = source
        ((database,),) = source.execute("SELECT current_database()")
        source.execute(
            sql.SQL("ALTER DATABASE {} SET log_statement = 'all'")
            .format(sql.Identifier(database))
            .as_string()
        )

    def of_run(self, last: Manifest | None = None) -> tuple[Manifest, Counter[str]]:
        """Stage what follows a batch, or the first one; that, and the statements of the run."""
        before = self._path.stat().st_size
        staged = self._source.stage(checkpoint=last and checkpoint_with_shapes(last))
        self._source.execute(_END)
        logged = self._path.read_bytes()[before:].decode()
        return staged, Counter(_LOGGED.findall(logged[: logged.index(_END)]))


@pytest.fixture
def server_log(source: Source, postgres_server: EmbeddedPostgres) -> ServerLog:
    return ServerLog(postgres_server, source)


def asked(statements: Counter[str], what: str) -> int:
    return sum(count for text, count in statements.items() if what in text)


def publish(source: Source, tables: int) -> None:
    """Publish so many tables, the one of the fixture among them."""
    names = range(1, tables)
    source.execute(
        f"""DO $$ BEGIN FOR n IN 1..{len(names)} LOOP
              EXECUTE format('CREATE TABLE t_%s(a int PRIMARY KEY, b text)', n);
            END LOOP; END $$"""
    )
    if names:
        source.execute("ALTER PUBLICATION p ADD TABLE " + ", ".join(f"t_{n}" for n in names))


def change(source: Source, tables: int) -> None:
    """Write to each table before and after it got a column, in one transaction."""
    source.execute(
        f"""DO $$ BEGIN FOR n IN 1..{tables - 1} LOOP
              EXECUTE format('INSERT INTO t_%s VALUES (1, ''x'')', n);
              EXECUTE format('ALTER TABLE t_%s ADD COLUMN c int DEFAULT 7', n);
              EXECUTE format('INSERT INTO t_%s VALUES (2, ''y'', 8)', n);
            END LOOP; END $$"""
    )


@pytest.mark.parametrize("tables", [1, 60, pytest.param(1000, marks=pytest.mark.further)])
def test_an_empty_run_asks_as_often_however_many_tables_are_published(
    source: Source, server_log: ServerLog, tables: int
) -> None:
    """It reads the published tables when it begins. No table has rows, so none is looked at again."""
    publish(source, tables)
    first = source.stage()
    assert len(first.tables) == tables
    staged, statements = server_log.of_run(first)
    assert staged.tables == ()
    assert asked(statements, _PUBLISHED_TABLES) == 1
    assert asked(statements, _PLACES) == 2
    assert statements.total() == _OF_AN_EMPTY_RUN, statements


@pytest.mark.parametrize("tables", [10, 100, pytest.param(1000, marks=pytest.mark.further)])
def test_a_run_asks_as_often_however_many_tables_changed(
    source: Source, server_log: ServerLog, tables: int
) -> None:
    """Each table changes in two versions, and the catalog knows what older rows show in the second one."""
    publish(source, tables)
    first = source.stage()
    change(source, tables)
    staged, statements = server_log.of_run(first)
    assert [len(each.versions) for each in staged.tables] == [2] * (tables - 1)
    assert {each.versions[1].columns[2].missing_value for each in staged.tables} == {"7"}
    assert statements.total() == _WHEN_TABLES_CHANGED, statements


@pytest.mark.parametrize("tables", [20, 100])
def test_a_copy_asks_for_small_tables_together(
    source: Source, server_log: ServerLog, tables: int
) -> None:
    """Half of the tables have rows, and COPY reads each of these. Nothing reads the others."""
    publish(source, tables)
    with_rows = tables // 2
    source.execute(
        f"""DO $$ BEGIN FOR n IN 1..{with_rows} LOOP
              EXECUTE format('INSERT INTO t_%s VALUES (1, ''x'')', n);
            END LOOP; END $$"""
    )
    first, statements = server_log.of_run()
    copied = sum(each.counts.copied for each in first.tables)
    assert (len(first.tables), copied) == (tables, with_rows)
    copies = {
        text: count
        for text, count in statements.items()
        if " FROM ONLY " in text and text.startswith("COPY")
    }
    assert sum(copies.values()) == with_rows
    # What is checked before tables are sealed is asked once for the empty ones, and once for each connection.
    assert asked(statements, _PLACES) == 7
    assert statements.total() <= _OF_A_COPY + _OF_A_COPIED_TABLE * with_rows, statements


@pytest.mark.parametrize("leaves", [3, 60, pytest.param(1200, marks=pytest.mark.further)])
def test_a_table_is_one_table_however_many_partitions_it_has(
    source: Source, server_log: ServerLog, leaves: int
) -> None:
    """Published through its root: runs ask as often, and manifest and XCom name the root alone."""
    source.execute(
        "CREATE TABLE r(a int PRIMARY KEY, b text) PARTITION BY LIST (a)",
        f"""DO $$ BEGIN FOR n IN 1..{leaves} LOOP
              EXECUTE format('CREATE TABLE r_%s PARTITION OF r FOR VALUES IN (%s)', n, n);
            END LOOP; END $$""",
        f"INSERT INTO r SELECT n, 'x' FROM generate_series(1, {leaves}) n",
        "ALTER PUBLICATION p SET TABLE r",
        "ALTER PUBLICATION p SET (publish_via_partition_root)",
    )
    with psycopg.connect(source.reader, autocommit=True) as session:
        (published,) = read_published_tables(session, read_server(session, ""), ["p"], Keys())
    assert published.name == "public.r"

    first, statements = server_log.of_run()
    assert statements.total() <= _OF_A_COPY_OF_ONE_TABLE, statements
    source.execute("UPDATE r SET b = 'y'")
    batch, statements = server_log.of_run(first)
    assert statements.total() <= _WHEN_A_ROOT_CHANGED, statements
    for manifest, counts in ((first, Counts(copied=leaves)), (batch, Counts(updates=leaves))):
        assert [(each.name, each.counts) for each in manifest.tables] == [("public.r", counts)]
        shown = batch_xcom(manifest, "uri")
        assert shown["tables"].keys() == {"public.r"}
        assert "tables_left_out" not in shown
