"""Version 19 merges and splits partitions, by a double: the same steps in one transaction of this server.

``ALTER TABLE ... MERGE PARTITIONS`` and ``SPLIT PARTITION`` make a table, move the rows into it, drop the old
partitions and attach the table. The first betas sent the moved rows as inserts of that table, and no deletes.
No server of version 19 was run.

Source: https://www.postgresql.org/message-id/CAN4CZFNCU=t09M=+r2t9hHLJuujdM4oQ8hCK_Sx-GpfiwMAicw@mail.gmail.com
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

_ROOT = (
    "CREATE TABLE root(a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
    "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (20)",
    "INSERT INTO root VALUES (1, 'low'), (2, 'low'), (11, 'high')",
    "DROP PUBLICATION p",
)
_VIA_ROOT = "WITH (publish_via_partition_root)"
_MERGE = (
    "CREATE TABLE merged(LIKE root INCLUDING ALL)",
    "INSERT INTO merged SELECT * FROM low",
    "INSERT INTO merged SELECT * FROM high",
    "ALTER TABLE root DETACH PARTITION low",
    "ALTER TABLE root DETACH PARTITION high",
    "DROP TABLE low, high",
    "ALTER TABLE root ATTACH PARTITION merged FOR VALUES FROM (0) TO (20)",
)
_SPLIT = (
    "CREATE TABLE first(LIKE root INCLUDING ALL)",
    "CREATE TABLE second(LIKE root INCLUDING ALL)",
    "INSERT INTO first SELECT * FROM low WHERE a < 5",
    "INSERT INTO second SELECT * FROM low WHERE a >= 5",
    "ALTER TABLE root DETACH PARTITION low",
    "DROP TABLE low",
    "ALTER TABLE root ATTACH PARTITION first FOR VALUES FROM (0) TO (5)",
    "ALTER TABLE root ATTACH PARTITION second FOR VALUES FROM (5) TO (10)",
)


@pytest.fixture(params=["merge", "split"])
def moved(request: pytest.FixtureRequest) -> tuple[tuple[str, ...], str]:
    """The statements, and the partition that has the row 1 after them."""
    return (_MERGE, "merged") if request.param == "merge" else (_SPLIT, "first")


def _lake(batch: Manifest) -> Checkpoint:
    return dataclasses.replace(checkpoint_with_shapes(batch), batch_id=batch.batch_id)


def _in_one_transaction(source: Source, statements: tuple[str, ...]) -> None:
    with psycopg.connect(source.conninfo) as session:
        for statement in statements:
            session.execute(statement)


def _staged(source: Source, moved: tuple[tuple[str, ...], str]) -> tuple[Manifest, str]:
    """The batch of the move and of a change after it, which copies nothing; and the row's partition."""
    lake = _lake(source.stage())
    statements, partition = moved
    _in_one_transaction(source, statements)
    source.execute("UPDATE root SET b = 'after' WHERE a = 1")
    batch = source.stage(checkpoint=lake)
    assert _copied(batch) == set()
    return batch, partition


def _copied(batch: Manifest) -> set[str]:
    return {table.name for table in batch.tables if table.copy_lsn is not None}


def test_a_root_that_is_published_keeps_its_rows_and_goes_on(
    source: Source, moved: tuple[tuple[str, ...], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The moved rows are not sent. The run cannot know that the lake has them all, so it warns."""
    source.execute(*_ROOT, f"CREATE PUBLICATION p FOR TABLE root {_VIA_ROOT}")
    batch, partition = _staged(source, moved)
    assert [(row["a"], row["b"]) for row in source.changes(batch, "public.root")] == [(1, "after")]
    assert "public.root got partitions that were tables of their own: public." in caplog.text
    assert f"public.{partition}" in caplog.text
    assert "partitions of public.root were detached or dropped" in caplog.text


def test_moved_rows_that_are_sent_come_as_those_of_another_table(
    source: Source, moved: tuple[tuple[str, ...], str], caplog: pytest.LogCaptureFixture
) -> None:
    """All tables are published, so the new one was, too, before it became a partition.

    The root keeps its rows. What comes under the name of the partition is no row of the root.
    """
    source.execute(*_ROOT, f"CREATE PUBLICATION p FOR ALL TABLES {_VIA_ROOT}")
    batch, partition = _staged(source, moved)
    assert {each.name for each in batch.tables} == {"public.root", f"public.{partition}"}
    assert [(row["a"], row["b"]) for row in source.changes(batch, "public.root")] == [(1, "after")]
    assert {row["op"] for row in source.changes(batch, f"public.{partition}")} == {"I"}
    assert "public.root got partitions that were tables of their own: public." in caplog.text
    assert "partitions of public.root were detached or dropped" in caplog.text


def test_partitions_that_are_published_as_themselves_are_new_tables(
    source: Source, moved: tuple[tuple[str, ...], str]
) -> None:
    source.execute(*_ROOT, "CREATE PUBLICATION p FOR ALL TABLES")
    lake = _lake(source.stage())
    statements, partition = moved
    _in_one_transaction(source, statements)
    source.execute("UPDATE root SET b = 'after' WHERE a = 1")
    batch = source.stage(checkpoint=lake)
    name = f"public.{partition}"
    assert name in _copied(batch)
    assert (1, "after") in [(row["a"], row["b"]) for row in source.copied(batch, name)]
