"""Batches of a real server: what they hold, where they end, and that both transports agree."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import SQL, WALSENDER
from tests.capture.pipeline_support import checkpoint_of, checkpoint_with_shapes

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

TRANSPORTS = [SQL, WALSENDER]


def test_first_batch_holds_all_rows_and_starts_the_slot_where_it_ends(source: Source) -> None:
    source.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 1000) g")
    manifest = source.stage()
    assert source.copied(manifest, "public.t") == [
        {"a": number, "b": f"v{number}"} for number in range(1, 1001)
    ]
    assert manifest.start_lsn == manifest.end_lsn == Lsn.parse(str(source.confirmed()))
    (table,) = manifest.tables
    assert table.copy_lsn == str(manifest.start_lsn)
    assert table.versions[0].key_columns == ("a",)
    assert table.counts.copied == 1000


def test_a_lake_that_was_emptied_is_not_begun_with_changes_that_waited_for_the_old_one(
    source: Source,
) -> None:
    """Changes of a table that nobody copied would look like all of it."""
    source.execute("INSERT INTO t VALUES (1, 'x')")
    first = source.stage()
    source.execute("INSERT INTO t VALUES (2, 'y')")
    waiting = source.stage(checkpoint=checkpoint_of(first))
    again = source.stage()
    assert [row["a"] for row in source.copied(again, "public.t")] == [1, 2]
    assert again.start_lsn == waiting.start_lsn
    # It waits itself then, and an attempt that follows finds it.
    assert source.stage().batch_id == again.batch_id
    # To whoever loaded the lake from outside, changes are all that there is to bring.
    assert source.stage(initial_copy="never").start_lsn == first.end_lsn


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_batch_holds_what_committed_since_the_checkpoint(source: Source, transport: str) -> None:
    first = source.stage()
    source.execute(
        "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
        "UPDATE t SET b = 'z' WHERE a = 1",
        "UPDATE t SET a = 3 WHERE a = 2",
        "DELETE FROM t WHERE a = 3",
        "TRUNCATE t",
    )
    confirmed = source.confirmed()
    manifest = source.stage(checkpoint=checkpoint_of(first), transport=transport)
    rows = source.changes(manifest, "public.t")
    assert [(row["op"], row["a"], row["b"], row["old_kind"], row["o0"]) for row in rows] == [
        ("I", 1, "x", None, None),
        ("I", 2, "y", None, None),
        ("U", 1, "z", None, None),
        ("U", 3, "y", "K", 2),
        ("D", None, None, "K", 3),
        ("T", None, None, None, None),
    ]
    assert manifest.start_lsn == first.end_lsn
    assert manifest.transactions == 5
    assert source.confirmed() == confirmed


def test_both_transports_stage_the_same_rows(source: Source) -> None:
    source.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TABLE w(id bigint PRIMARY KEY, m mood, n numeric(12,2), x numeric, ts timestamptz,"
        " ar int[], by bytea, j jsonb, big text)",
        "ALTER TABLE w ALTER big SET STORAGE EXTERNAL",
        "ALTER PUBLICATION p ADD TABLE w",
    )
    first = source.stage()
    source.execute(
        "INSERT INTO w SELECT g, 'happy', g / 7.0, g * 1e30, 'infinity', ARRAY[g, NULL], '\\x00ff',"
        " '{\"a\": 1}', repeat('z', 3000) FROM generate_series(1, 500) g",
        "UPDATE w SET n = n + 1 WHERE id % 3 = 0",
        "DELETE FROM w WHERE id % 5 = 0",
    )
    checkpoint = checkpoint_of(first)
    staged: dict[str, Any] = {}
    for transport in TRANSPORTS:
        manifest = source.stage(checkpoint=checkpoint, transport=transport)
        (source.staging / source.slot_name / "manifests" / source.manifests()[-1]).unlink()
        (table,) = manifest.tables
        staged[transport] = (source.changes(manifest, "public.w"), table.counts)
    assert staged[SQL] == staged[WALSENDER]
    counts = staged[SQL][1]
    assert (counts.inserts, counts.updates, counts.deletes) == (500, 166, 100)
    assert counts.unchanged_toast == 166
    assert counts.rejected == 666


def test_rejected_values_keep_their_text_key_and_position(source: Source) -> None:
    from pyarrow import parquet

    source.execute(
        'CREATE TABLE r("k\\"" key" text PRIMARY KEY, ts timestamp)',
        "ALTER PUBLICATION p ADD TABLE r",
    )
    source.execute("""INSERT INTO r VALUES (E'a"b\\\\c\\n\\x01é', '0044-03-15 BC')""")
    first = source.stage()
    source.execute("INSERT INTO r VALUES ('k', 'infinity')")
    second = source.stage(checkpoint=checkpoint_of(first))
    rows = [
        row
        for manifest in (first, second)
        for file in manifest.rejected_files
        for row in parquet.read_table(source.staging / file.path).to_pylist()
    ]
    assert [row["op"] for row in rows] == ["C", "I"]
    import json

    assert json.loads(rows[0]["key"]) == {'k\\" key': 'a"b\\c\n\x01é'}
    assert rows[0]["raw_value"] == "0044-03-15 00:00:00 BC"
    assert (rows[0]["commit_lsn"], rows[0]["seq"]) == (None, None)
    assert rows[1]["raw_value"] == "infinity"
    assert rows[1]["commit_lsn"] == source.changes(second, "public.r")[0]["commit_lsn"]
    assert source.changes(second, "public.r")[0]["ts"] is None


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_limits_cut_after_commits_and_the_batches_join(source: Source, transport: str) -> None:
    first = source.stage()
    source.execute(
        *(f"INSERT INTO t VALUES ({each}0), ({each}1), ({each}2)" for each in range(1, 6))
    )
    (target,) = source.execute("SELECT pg_current_wal_flush_lsn()::text")[0]
    found, checkpoint = [], checkpoint_of(first)
    while checkpoint.end_lsn < Lsn.parse(target):
        manifest = source.stage(checkpoint=checkpoint, transport=transport, max_changes=4)
        assert manifest.start_lsn == checkpoint.end_lsn
        found.append(
            [row["a"] for table in manifest.tables for row in source.changes(manifest, table.name)]
        )
        checkpoint = checkpoint_of(manifest)
    assert [each for each in found if each] == [
        [10, 11, 12, 20, 21, 22],
        [30, 31, 32, 40, 41, 42],
        [50, 51, 52],
    ]


@pytest.mark.parametrize("options", [{"max_bytes": 1}, {"max_seconds": 1e-9}, {"max_changes": 1}])
def test_every_limit_gives_whole_transactions(source: Source, options: dict[str, Any]) -> None:
    first = source.stage()
    source.execute("INSERT INTO t VALUES (1), (2)", "INSERT INTO t VALUES (3)")
    manifest = source.stage(checkpoint=checkpoint_of(first), **options)
    assert [row["a"] for row in source.changes(manifest, "public.t")] == [1, 2]
    rest = source.stage(checkpoint=checkpoint_of(manifest))
    assert [row["a"] for row in source.changes(rest, "public.t")] == [3]


def test_rows_of_a_copy_share_an_lsn_and_are_not_torn(source: Source) -> None:
    first = source.stage()
    with (
        psycopg.connect(source.conninfo, autocommit=True) as session,
        session.cursor().copy("COPY t FROM STDIN") as copy,
    ):
        for number in range(3):
            copy.write_row((number, "x"))
    manifest = source.stage(checkpoint=checkpoint_of(first), max_changes=2)
    assert [row["a"] for row in source.changes(manifest, "public.t")] == [0, 1, 2]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_empty_batch_is_a_batch(source: Source, transport: str) -> None:
    first = source.stage()
    source.execute("CREATE TABLE u(a int)", "INSERT INTO u SELECT generate_series(1, 1000)")
    manifest = source.stage(checkpoint=checkpoint_of(first), transport=transport)
    assert manifest.tables == ()
    assert manifest.end_lsn > manifest.start_lsn == first.end_lsn


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_slot_behind_the_checkpoint_repeats_nothing(source: Source, transport: str) -> None:
    source.stage()
    checkpoint = checkpoint_of(source.stage(checkpoint=checkpoint_of(source.stage())))
    source.execute("INSERT INTO t VALUES (1)")
    checkpoint = checkpoint_of(source.stage(checkpoint=checkpoint))
    source.execute("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    manifest = source.stage(checkpoint=checkpoint, transport=transport, max_changes=1)
    assert [row["a"] for row in source.changes(manifest, "public.t")] == [2]


def test_versions_are_numbered_as_the_stream_announces_them(source: Source) -> None:
    first = source.stage()
    source.execute(
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE t ADD c int DEFAULT 7",
        "INSERT INTO t VALUES (2, 'y')",
        "ALTER TABLE t RENAME b TO bb",
        "INSERT INTO t VALUES (3, 'z')",
        "ALTER TABLE t DROP bb",
        "INSERT INTO t VALUES (4)",
    )
    manifest = source.stage(checkpoint=checkpoint_of(first))
    (table,) = manifest.tables
    assert [each.version for each in table.versions] == [1, 2, 3, 4]
    assert [[column.name for column in each.columns] for each in table.versions] == [
        ["a", "b"],
        ["a", "b", "c"],
        ["a", "bb", "c"],
        ["a", "c"],
    ]
    assert table.versions[3].columns[1].missing_value == "7"
    assert [row.get("c") for row in source.changes(manifest, "public.t")] == [None, 7, 7, 7]


def test_a_domain_that_is_gone_is_known_from_the_stream(source: Source) -> None:
    """The Type message of a domain names the type under it; the catalog has nothing any more."""
    source.execute(
        "CREATE DOMAIN whole AS int CHECK (VALUE > 0)",
        "CREATE DOMAIN smaller AS whole CHECK (VALUE < 10)",
        "CREATE TYPE mood AS ENUM ('glad')",
        "CREATE TABLE d(a int PRIMARY KEY, b smaller, c mood)",
        "ALTER PUBLICATION p ADD TABLE d",
    )
    batch = source.stage()
    source.execute(
        "INSERT INTO d VALUES (1, 5, 'glad')",
        "ALTER TABLE d ALTER b TYPE int, ALTER c TYPE text",
        "DROP DOMAIN smaller",
        "DROP TYPE mood",
        "INSERT INTO d VALUES (2, 50, 'sad')",
    )
    batch = source.stage(checkpoint=checkpoint_of(batch))
    (table,) = batch.tables
    assert [[each.lake_type for each in version.columns] for version in table.versions] == [
        ["int", "int", "string"]
    ] * 2
    rows = source.changes(batch, "public.d")
    assert [(each["a"], each["b"], each["c"]) for each in rows] == [(1, 5, "glad"), (2, 50, "sad")]


def test_the_initial_copy_is_exact_under_concurrent_writes(source: Source) -> None:
    source.execute("INSERT INTO t SELECT g, 'old' FROM generate_series(1, 20000) g")
    stop = threading.Event()

    def write() -> None:
        number = 0
        with psycopg.connect(source.conninfo, autocommit=True) as session:
            while not stop.is_set():
                number += 1
                session.execute(f"UPDATE t SET b = 'new{number}' WHERE a = {number % 20000 + 1}")
                session.execute(f"INSERT INTO t VALUES ({20000 + number}, 'new')")
                session.execute(f"DELETE FROM t WHERE a = {10000 + number}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        first = source.stage()
    finally:
        stop.set()
        writer.join()
    rows = {row["a"]: row["b"] for row in source.copied(first, "public.t")}
    second = source.stage(checkpoint=checkpoint_of(first))
    for table in second.tables:
        for row in source.changes(second, table.name):
            if row["op"] == "D":
                del rows[row["o0"]]
            elif row["op"] == "I":
                assert row["a"] not in rows
                rows[row["a"]] = row["b"]
            else:
                assert row["a"] in rows
                rows[row["a"]] = row["b"]
    assert rows == dict(source.execute("SELECT a, b FROM t"))


def test_the_copy_obeys_row_filters_column_lists_and_inheritance(source: Source) -> None:
    source.execute(
        "CREATE TABLE f(a int PRIMARY KEY, b int, c int)",
        "INSERT INTO f SELECT g, g, g FROM generate_series(1, 10) g",
        "CREATE PUBLICATION f2 FOR TABLE f (a, b) WHERE (a % 2 = 0)",
        "CREATE PUBLICATION f3 FOR TABLE f (a, b) WHERE (a % 5 = 0)",
        "CREATE TABLE parent(a int PRIMARY KEY)",
        "CREATE TABLE child(b int) INHERITS (parent)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (2, 2)",
        "CREATE PUBLICATION i FOR TABLE parent",
        "CREATE TABLE part(a int PRIMARY KEY) PARTITION BY RANGE (a)",
        "CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10)",
        "INSERT INTO part VALUES (5)",
        "CREATE PUBLICATION r FOR TABLE part WITH (publish_via_partition_root)",
    )
    manifest = source.stage(publication_names=["f2", "f3", "i", "r"])
    assert [table.name for table in manifest.tables] == [
        "public.f", "public.parent", "public.child", "public.part",
    ]  # fmt: skip
    assert source.copied(manifest, "public.f") == [
        {"a": each, "b": each} for each in (2, 4, 5, 6, 8, 10)
    ]
    assert source.copied(manifest, "public.parent") == [{"a": 1}]
    assert source.copied(manifest, "public.part") == [{"a": 5}]


def test_copied_values_equal_streamed_ones(source: Source) -> None:
    source.execute(
        "CREATE TYPE pair AS (x int, y text)",
        "CREATE DOMAIN posint AS int CHECK (value > 0)",
        "CREATE TABLE v(id int PRIMARY KEY, bo bool, i2 smallint, i8 bigint, f4 real, f8 float8, n numeric,"
        " d numeric(20,5), ch char(5), vc varchar(9), te text, by bytea, da date, ts timestamp,"
        " tz timestamptz, ti time, iv interval, u uuid, j json, jb jsonb, ip inet, ci cidr, na name,"
        ' mo money, bi bit(3), ar text[], p pair, po posint, r int4range, pt point, o oid, qc "char")',
        "ALTER PUBLICATION p ADD TABLE v",
    )
    source.make_slot()
    source.execute(
        "INSERT INTO v VALUES (1, true, -3, 9e15::bigint, 1.1, 1e-300, 'NaN', 12345.6789, 'ab', 'x y',"
        " 'é\n\t\"', '\\x0001ff', '2024-02-29', '2024-02-29 1:2:3.456789', '2024-02-29 1:2:3+05',"
        " '24:00', '1 mon -2 days', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{\"a\" : 1}', '{\"b\": null}',"
        " '10.0.0.1', '10.0.0.0/8', 'nm', 12.34, B'101', ARRAY['a', NULL, 'b c'], ROW(NULL, 'q'), 5, '[1,5)',"
        " '(1,2)', 4294967295, 'c')",
        "INSERT INTO v(id, p, f8, f4) VALUES (2, ROW(NULL, NULL), '-0', 'NaN')",
        "INSERT INTO v(id) VALUES (3)",
    )
    streamed = source.stage(initial_copy="never")
    copied = source.stage(slot_name=f"{source.slot_name}_copy")
    rows = source.changes(streamed, "public.v")
    names = [each.name for each in streamed.tables[0].versions[0].columns]
    assert repr(source.copied(copied, "public.v")) == repr(
        [{name: row[name] for name in names} for row in rows]
    )
    (table,) = [each for each in copied.tables if each.name == "public.v"]
    stream_columns = streamed.tables[0].versions[0].columns
    assert [(c.name, c.lake_type, c.type_name, c.identity) for c in table.versions[0].columns] == [
        (c.name, c.lake_type, c.type_name, c.identity) for c in stream_columns
    ]


def test_small_memory_gives_the_same_rows_in_more_row_groups(source: Source) -> None:
    first = source.stage()
    source.execute(
        "INSERT INTO t SELECT g, repeat(md5(g::text), 40) FROM generate_series(1, 20000) g"
    )
    manifest = source.stage(checkpoint=checkpoint_of(first), memory_mib=8)
    rows = source.changes(manifest, "public.t")
    assert len(rows) == 20000
    assert [row["seq"] for row in rows] == list(range(20000))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_limit_ends_a_read_that_has_nothing_more_to_give(source: Source, transport: str) -> None:
    """The reader waits for the source when the batch is full: nobody may wait for the other."""
    checkpoint = checkpoint_of(source.stage())
    for number in range(8):
        source.execute(f"INSERT INTO t VALUES ({number})")
        manifest = source.stage(checkpoint=checkpoint, transport=transport, max_changes=1)
        assert manifest.changes == 1
        checkpoint = checkpoint_of(manifest)


def test_a_partition_published_via_its_root_too_is_copied_once(source: Source) -> None:
    """The stream has such rows under the root only; a copy of the partition would never change."""
    source.execute(
        "CREATE TABLE r(a int PRIMARY KEY) PARTITION BY LIST (a)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES IN (1, 2) PARTITION BY LIST (a)",
        "CREATE TABLE r11 PARTITION OF r1 FOR VALUES IN (1)",
        "INSERT INTO r VALUES (1)",
        "CREATE PUBLICATION root FOR TABLE r WITH (publish_via_partition_root)",
        "CREATE PUBLICATION middle FOR TABLE r1 WITH (publish_via_partition_root)",
        "CREATE PUBLICATION leaf FOR TABLE r11",
    )
    names = ("leaf", "middle", "root")
    copy = source.stage(publication_names=names)
    assert [each.name for each in copy.tables] == ["public.r"]
    source.execute("UPDATE r SET a = a")
    batch = source.stage(publication_names=names, checkpoint=checkpoint_of(copy))
    assert [row["a"] for row in source.changes(batch, "public.r")] == [1]
    assert [each.name for each in batch.tables] == ["public.r"]


def test_each_warning_comes_once_in_a_run(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the publications are looked at again, and a batch is begun again with a copy."""

    def warned() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
        caplog.clear()
        assert sorted(found) == sorted(set(found))
        return found

    source.execute(
        "CREATE TABLE bare(a int)",
        "ALTER PUBLICATION p ADD TABLE bare",
        "ALTER PUBLICATION p SET (publish = 'insert, update')",
        "INSERT INTO t VALUES (1, 'x')",
    )
    first = source.stage()
    said = warned()
    assert sum("no replica identity" in each for each in said) == 1
    assert sum("does not publish" in each for each in said) == 1
    source.execute(
        "ALTER TABLE t ADD c float8 DEFAULT random()",
        "INSERT INTO t VALUES (2, 'y', 1)",
        "INSERT INTO bare VALUES (1)",
    )
    policy = SchemaPolicy(on_unknown_default="copy")
    lake = checkpoint_with_shapes(first)
    second = source.stage(checkpoint=lake, schema_policy=policy)
    assert second.tables[0].copy_lsn or second.tables[1].copy_lsn, "the batch was begun again"
    assert sum("no replica identity" in each for each in warned()) == 1
