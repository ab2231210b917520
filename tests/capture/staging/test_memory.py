"""What buffered rows keep in memory, against what is counted of them; and how many files are open."""

from __future__ import annotations

import functools
import os
import resource
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.sent_values import Casters
from airflow_provider_pgoutput.capture.staging.tables import StagedVersion, stage_block
from airflow_provider_pgoutput.capture.staging.writers import TableWriter, WriterPool
from airflow_provider_pgoutput.capture.types import numeric
from airflow_provider_pgoutput.capture.types.arrow_bytes import in_parts
from airflow_provider_pgoutput.capture.types.cast import ValuePolicy, binary_caster
from airflow_provider_pgoutput.errors import ValueRefused
from tests.capture.pgoutput import encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock

HOT, COLD = 1, 2
COLUMNS = (Column("a", 20, -1, "bigint", "long"), Column("b", 25, -1, "text", "string"))
VERSION = TableVersion(1, "public", "t", "d", COLUMNS, ("a",))


def blocks(chunks: int, hot_rows: int) -> Iterator[ChangeBlock]:
    """Chunks of many rows of one table and one of another."""
    decoder = Decoder()
    announced = [encode.relation(oid, [("a", 20), ("b", 25)]) for oid in (HOT, COLD)]
    for number in range(chunks):
        lsn = 1000 * (number + 1)
        hot = [encode.insert(HOT, [b"%d" % row, b"x" * 100]) for row in range(hot_rows)]
        cold = encode.insert(COLD, [b"%d" % number, b"cold"])
        bodies = [encode.begin(lsn), *announced, *hot, cold, encode.commit(lsn)]
        offsets = np.cumsum([0, *map(len, bodies)], dtype=np.int64)
        yield from decoder.decode(
            MessageChunk(np.frombuffer(b"".join(bodies), dtype=np.uint8), offsets)
        )


def version(oid: int) -> StagedVersion:
    return StagedVersion.of(oid, VERSION, ValuePolicy(), Casters())


def test_few_rows_of_a_table_do_not_keep_the_chunks_of_another(tmp_path: Path) -> None:
    staged = version(COLD)
    pool = WriterPool(64 << 20)
    writer = pool.add(
        TableWriter(
            StagingArea(str(tmp_path)),
            "f",
            "changes",
            staged.changes_schema,
            staged.changes_required,
        )
    )
    before, hot_bytes = pa.total_allocated_bytes(), 0
    for block in blocks(chunks=30, hot_rows=1000):
        assert block.seq.base is None, "a view of the numbers of all tables"
        rows = stage_block(staged, block).rows
        if block.relation.oid == COLD:
            pool.append(writer, rows)
        else:
            hot_bytes += rows.nbytes
    del block, rows
    held = pa.total_allocated_bytes() - before
    assert hot_bytes > 3_000_000
    assert held < 100_000
    pool.finish()
    read = parquet.read_table(tmp_path / writer.files[0].path)
    assert read.column("n0").to_pylist() == list(range(30))
    assert read.column("n1").to_pylist() == ["cold"] * 30


def test_rows_that_are_most_of_their_chunk_are_not_copied(tmp_path: Path) -> None:
    staged = version(HOT)
    writer = TableWriter(
        StagingArea(str(tmp_path)), "f", "changes", staged.changes_schema, staged.changes_required
    )
    hot = next(each for each in blocks(chunks=1, hot_rows=1000) if each.relation.oid == HOT)
    rows = stage_block(staged, hot).rows
    writer.append(rows)
    before = pa.total_allocated_bytes()
    writer.append(rows)
    assert pa.total_allocated_bytes() == before


SCHEMA = pa.schema([("commit_lsn", pa.int64()), ("n0", pa.string()), ("o0", pa.string())])


def one_row(number: int, *, old: bool = False) -> pa.RecordBatch:
    columns: dict[str, list[int | str]] = {"commit_lsn": [number], "n0": ["x"]}
    if old:
        columns["o0"] = ["y"]
    return pa.RecordBatch.from_pydict(columns)


def test_small_blocks_are_joined_in_order(tmp_path: Path) -> None:
    pool = WriterPool(64 << 20)
    area, required = StagingArea(str(tmp_path)), frozenset({"commit_lsn", "n0"})
    writer = pool.add(TableWriter(area, "f", "changes", SCHEMA, required))
    plain = pool.add(TableWriter(area, "g", "changes", SCHEMA, required))
    for number in range(1000):
        pool.append(writer, one_row(number, old=number % 100 == 7))
        pool.append(plain, one_row(number))
    alone = 2000 * (one_row(0).nbytes + 2000)
    assert writer.buffered_bytes + plain.buffered_bytes < alone / 10
    pool.finish()
    read = parquet.ParquetFile(tmp_path / writer.files[0].path)
    assert read.num_row_groups == 1
    assert read.read().column("commit_lsn").to_pylist() == list(range(1000))
    old = ["y" if number % 100 == 7 else None for number in range(1000)]
    assert read.read().column("o0").to_pylist() == old
    assert plain.files[0].columns == ("commit_lsn", "n0")


@pytest.mark.slow
def test_the_budget_counts_what_small_blocks_take_beside_their_values(tmp_path: Path) -> None:
    budget, area = 1 << 20, StagingArea(str(tmp_path))
    pool = WriterPool(budget)
    writers = [
        pool.add(TableWriter(area, f"f{number}", "changes", SCHEMA, frozenset(SCHEMA.names)))
        for number in range(300)
    ]
    values = 0
    for number in range(3000):
        rows = one_row(number, old=True)
        values += rows.nbytes
        pool.append(writers[number % 300], rows)
        assert sum(each.buffered_bytes for each in writers) <= budget
    assert values < budget / 4
    assert any(tmp_path.iterdir()), "nothing was written"
    pool.finish()
    assert [sum(file.rows for file in each.files) for each in writers] == [10] * 300


@contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """This process may open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each) for each in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("budget", [64 << 20, 1 << 20], ids=["written at the end", "written often"])
def test_a_batch_of_many_tables_needs_few_descriptors(tmp_path: Path, budget: int) -> None:
    area, tables = StagingArea(str(tmp_path)), 400
    pool = WriterPool(budget)
    writers = [
        pool.add(TableWriter(area, f"f{number}", "changes", SCHEMA, frozenset(SCHEMA.names)))
        for number in range(tables)
    ]
    with few_descriptors(130):
        for number in range(3 * tables):
            pool.append(writers[number % tables], one_row(number, old=True))
        pool.finish()
    for number, writer in enumerate(writers):
        read = [parquet.read_table(tmp_path / each.path) for each in writer.files]
        found = [lsn for each in read for lsn in each.column("commit_lsn").to_pylist()]
        assert found == [number, number + tables, number + 2 * tables]


@pytest.mark.slow
def test_tables_that_are_sealed_by_themselves_need_few_descriptors(tmp_path: Path) -> None:
    area = StagingArea(str(tmp_path))
    pool = WriterPool(64 << 20)
    writers = [
        pool.add(TableWriter(area, f"f{number}", "copy", SCHEMA, frozenset(SCHEMA.names)))
        for number in range(200)
    ]
    with few_descriptors(130):
        for number, writer in enumerate(writers):
            pool.append(writer, one_row(number, old=True))
        pool.drop(writers[:10])
        pool.finish_some(writers[10:])
    assert pool.writers == []
    assert [len(each.files) for each in writers] == [0] * 10 + [1] * 190
    pool.finish()


def numerics(count: int) -> ChangeBlock:
    """Inserts of 1e1000 in binary form."""
    value = struct.pack("!hhHHh", 1, 250, 0, 0, 1)
    bodies = [encode.begin(1000), encode.relation(HOT, [("a", 1700)])]
    for _ in range(count):
        row = encode.insert(HOT, [value])
        bodies.append(row.replace(b"t" + struct.pack("!i", 10), b"b" + struct.pack("!i", 10)))
    bodies.append(encode.commit(1000))
    offsets = np.cumsum([0, *map(len, bodies)], dtype=np.int64)
    chunk = MessageChunk(np.frombuffer(b"".join(bodies), dtype=np.uint8), offsets)
    return Decoder().decode(chunk)[0]


@pytest.mark.parametrize("lake_type", ["string", "decimal(38, 9)"])
def test_numbers_that_are_long_as_text_are_staged_in_parts(
    monkeypatch: pytest.MonkeyPatch, lake_type: str
) -> None:
    monkeypatch.setattr(numeric, "_MAX_TEXT_BYTES", 20_000)
    column = Column("a", 1700, -1, "numeric", lake_type)
    table = TableVersion(1, "public", "t", "d", (column,), ())
    casters = Casters(binary=functools.partial(binary_caster, types={}))
    staged = StagedVersion.of(HOT, table, ValuePolicy(), casters)
    parts = list(in_parts(functools.partial(stage_block, staged), numerics(100)))
    assert len(parts) > 5
    seqs = [seq for part in parts for seq in part.rows.column("seq").to_pylist()]
    assert seqs == list(range(100))
    wanted = "1" + "0" * 1000
    if lake_type == "string":
        found = [text for part in parts for text in part.rows.column("n0").to_pylist()]
    else:
        found = [
            text
            for part in parts
            for each in part.rejected
            for text in each["raw_value"].to_pylist()
        ]
        assert sum(part.counts.rejected for part in parts) == 100
    assert found == [wanted] * 100
    monkeypatch.setattr(numeric, "_MAX_TEXT_BYTES", 1000)
    with pytest.raises(ValueRefused, match="longer than 1 GiB"):
        list(in_parts(functools.partial(stage_block, staged), numerics(2)))
