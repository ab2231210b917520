"""Tables cut in ranges of blocks: every row once, whatever a table is made of."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.capture.copy import plan
from airflow_provider_pgoutput.capture.copy.plan import TableStorage, block_ranges, read_storage
from airflow_provider_pgoutput.capture.copy_job import BlockRange
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

BLOCK = 8192


def storage(*blocks: int, has_blocks: bool = True) -> TableStorage:
    return TableStorage(blocks, sum(blocks) * BLOCK, has_blocks=has_blocks)


@pytest.mark.parametrize(
    "found",
    [
        storage(),
        storage(0),
        storage(1),
        storage(1000),
        storage(1000, 3, 0, 40),
        storage(7, 7, 7),
        TableStorage((3,), 10_000 * BLOCK, has_blocks=True),
    ],
)
def test_ranges_cover_every_block_once(found: TableStorage) -> None:
    ranges = block_ranges(found, part_bytes=10 * BLOCK)
    assert ranges[0].first == 0
    assert ranges[-1].end is None
    for before, after in itertools.pairwise(ranges):
        assert before.end == after.first
        assert before.first < after.first
    # None is much larger than was asked for, as long as blocks can be told apart.
    for each in ranges[:-1]:
        assert each.end is not None
        read = sum(min(size, each.end) - min(size, each.first) for size in found.blocks)
        assert read <= 11 + len(found.blocks)


def test_what_is_no_heap_is_read_whole() -> None:
    assert block_ranges(storage(1000, has_blocks=False), 10 * BLOCK) == [BlockRange(0, None)]


def test_one_large_table_is_read_by_all_connections(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PART_BYTES", 16 * BLOCK)
    source.execute(
        "INSERT INTO t SELECT g, repeat('x', g % 900) FROM generate_series(1, 20000) g",
        "DELETE FROM t WHERE a % 7 = 0",
        "UPDATE t SET b = 'moved' WHERE a % 5 = 0",
    )
    with psycopg.connect(source.conninfo) as session:
        oid = source.execute("SELECT 't'::regclass::oid::int8")[0][0]
        assert len(block_ranges(read_storage(session, [oid])[oid])) > 20
    manifest = source.stage(copy_connections=4)
    found = sorted((row["a"], row["b"]) for row in source.copied(manifest, "public.t"))
    assert found == source.execute("SELECT a, b FROM t ORDER BY a")


@pytest.mark.parametrize("via_root", [True, False])
def test_partitions_filters_and_children_are_cut_as_well(
    source: Source, monkeypatch: pytest.MonkeyPatch, via_root: bool
) -> None:
    monkeypatch.setattr(plan, "PART_BYTES", 4 * BLOCK)
    source.execute(
        "CREATE TABLE r(a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100)",
        # Its columns lie in another order.
        "CREATE TABLE r2(b text, a int NOT NULL)",
        "ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (100) TO (9000)",
        "CREATE TABLE r3 PARTITION OF r DEFAULT",
        "INSERT INTO r SELECT g, repeat('y', 100) FROM generate_series(0, 9999) g",
        "CREATE TABLE parent(a int, b text)",
        "CREATE TABLE child(c int) INHERITS (parent)",
        "INSERT INTO parent SELECT g, repeat('p', 100) FROM generate_series(1, 3000) g",
        "INSERT INTO child SELECT -g, repeat('c', 100), g FROM generate_series(1, 3000) g",
        f"CREATE PUBLICATION parts FOR TABLE r {'WHERE (a % 3 = 0)' if via_root else ''}"
        f" WITH (publish_via_partition_root = {via_root})",
        "CREATE PUBLICATION lone FOR TABLE ONLY parent WHERE (a % 2 = 0)",
        "CREATE PUBLICATION other FOR TABLE ONLY parent WHERE (a % 5 = 0)",
    )
    manifest = source.stage(publication_names=("parts", "lone", "other"), copy_connections=3)
    names = sorted(table.name for table in manifest.tables)
    leaves = ["public.r"] if via_root else ["public.r1", "public.r2", "public.r3"]
    assert names == ["public.parent", *leaves]
    found = sorted(row["a"] for name in leaves for row in source.copied(manifest, name))
    assert found == list(range(0, 10_000, 3 if via_root else 1))
    parents = sorted(row["a"] for row in source.copied(manifest, "public.parent"))
    assert parents == [a for a in range(1, 3001) if a % 2 == 0 or a % 5 == 0]
    # Nothing is left out between the copy and the first changes.
    source.execute("INSERT INTO parent VALUES (10, 'new'), (11, 'filtered')")
    checkpoint = checkpoint_of(manifest)
    second = source.stage(
        publication_names=("parts", "lone", "other"), checkpoint=checkpoint, initial_copy="never"
    )
    assert [row["a"] for row in source.changes(second, "public.parent")] == [10]
