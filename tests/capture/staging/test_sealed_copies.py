"""Tables are sealed each on its own: what an attempt copied whole, the next one does not copy again.

The tables of such a batch were read at points of their own, so each needs the changes past its own point:
the tests write between the attempts and fold what was staged.
"""

from __future__ import annotations

import json
import subprocess
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.copy import plan, stage
from airflow_provider_pgoutput.capture.copy.read import TableCopy, copy_tables
from airflow_provider_pgoutput.capture.run import Run
from airflow_provider_pgoutput.capture.server import PostgresSource
from airflow_provider_pgoutput.capture.slot.replication_slot import ExportedSnapshot, create_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.stage import ServerRows, stage_copies
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.start import first
from airflow_provider_pgoutput.errors import SnapshotLost
from quickstart.servers import find_or_fetch_installation
from tests.capture.copy.test_table_copies import lake_with
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest, Table
    from tests.capture.pipeline_support import Source

KILLED = -9


def fold(source: Source, batches: list[Manifest], name: str, key: str | None) -> list[Any]:
    """The rows of a table after all batches, as (column, value) pairs in an order."""
    rows: dict[Any, dict[str, Any]] = {}
    for batch in batches:
        found = [each for each in batch.tables if each.name == name]
        if not found:
            continue
        if found[0].copy_lsn is not None:
            copied = enumerate(source.copied(batch, name))
            rows = {row[key] if key else ("copied", place): row for place, row in copied}
        columns = [each.name for each in found[0].versions[-1].columns]
        for change in source.changes(batch, name):
            if change["op"] == "T":
                rows.clear()
                continue
            position = (change["commit_lsn"], change["seq"])
            if change["op"] == "D":
                del rows[change["o0"]]
            else:
                new = {each: change[each] for each in columns}
                rows[new[key] if key else position] = new
    return sorted((tuple(sorted(row.items())) for row in rows.values()), key=repr)


def in_source(source: Source, name: str) -> list[Any]:
    rows = source.execute(f"SELECT to_jsonb(t) FROM {name} t")
    return sorted((tuple(sorted(row.items())) for (row,) in rows), key=repr)


def table(manifest: Manifest, name: str) -> Table:
    (found,) = [each for each in manifest.tables if each.name == name]
    return found


def seals(source: Source) -> list[Path]:
    return sorted((source.staging / source.slot_name / "copies").glob("*/*.json"))


def with_tables(source: Source) -> None:
    """Three tables of different sizes: ``t`` is the largest, so it is copied first."""
    source.execute(
        "INSERT INTO t SELECT g, repeat('t', 100) FROM generate_series(1, 3000) g",
        "CREATE TABLE u(a int PRIMARY KEY, b text)",
        "INSERT INTO u SELECT g, repeat('u', 100) FROM generate_series(1, 1000) g",
        "CREATE TABLE v(a int PRIMARY KEY, b numeric(12,2))",
        "INSERT INTO v SELECT g, CASE WHEN g = 7 THEN 'NaN'::numeric ELSE g END FROM generate_series(1, 9) g",
        "ALTER PUBLICATION p ADD TABLE u, v",
    )


def changed(source: Source, number: int) -> None:
    for name in ("t", "u", "v"):
        source.execute(
            f"DELETE FROM {name} WHERE a = {number}",
            f"UPDATE {name} SET b = '{number}' WHERE a = {number + 1}",
            f"INSERT INTO {name} VALUES ({90_000 + number}, '1')",
        )


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_a_killed_first_copy_repeats_only_what_was_not_sealed(
    source: Source, transport: str
) -> None:
    with_tables(source)
    options: dict[str, Any] = {"copy_connections": 1, "transport": transport}
    assert source.stage_in_process("stage.after_copied_table:1", **options) == KILLED
    start = Lsn.parse(str(source.confirmed()))
    changed(source, 1)
    assert source.stage_in_process("stage.after_copied_table:1", **options) == KILLED
    changed(source, 3)
    assert len(seals(source)) == 2
    manifest = source.stage(**options)
    points = [Lsn.parse(str(table(manifest, f"public.{name}").copy_lsn)) for name in "tuv"]
    assert manifest.start_lsn == start == points[0] < points[1] < points[2] == manifest.end_lsn
    # Changes past its own point come for each table, and none of what its copy holds.
    assert len(source.changes(manifest, "public.t")) == 6
    assert len(source.changes(manifest, "public.u")) == 3
    assert source.changes(manifest, "public.v") == []
    assert not seals(source)
    changed(source, 5)
    last = source.stage(checkpoint=checkpoint_of(manifest), transport=transport)
    for name in ("t", "u"):
        found = fold(source, [manifest, last], f"public.{name}", "a")
        assert found == in_source(source, name)
    # What a column could not hold is kept by the attempt that sealed, and once.
    assert sum(file.rows for file in manifest.rejected_files) == 1
    assert table(manifest, "public.v").counts.rejected == 1


def test_a_copy_in_a_later_run_repeats_only_what_was_not_sealed(source: Source) -> None:
    first = source.stage()
    with_tables(source)
    lake = checkpoint_of(first)
    options: dict[str, Any] = {"copy_tables": ["public.u", "public.v"], "copy_connections": 1}
    killed = source.stage_in_process("stage.after_copied_table", checkpoint=lake, **options)
    assert killed == KILLED
    changed(source, 1)
    second = source.stage(checkpoint=lake_with(first), **options)
    sealed, copied = (Lsn.parse(str(table(second, f"public.{name}").copy_lsn)) for name in "uv")
    assert sealed < copied
    changed(source, 3)
    last = source.stage(checkpoint=lake_with(first, second))
    for name in ("t", "u"):
        assert fold(source, [first, second, last], f"public.{name}", "a") == in_source(source, name)


def test_an_attempt_that_fails_keeps_its_sealed_tables(source: Source) -> None:
    with_tables(source)
    source.execute("CREATE TABLE w(a int)", "INSERT INTO w VALUES (1)")
    source.execute("ALTER PUBLICATION p ADD TABLE w WHERE (1 / (a - 1) > 0)")
    with pytest.raises(Exception, match="refused a statement"):
        source.stage(copy_connections=1)
    assert len(seals(source)) >= 1
    kept = {path.name for path in source.staging.rglob("*.parquet")}
    assert kept
    source.execute("ALTER PUBLICATION p DROP TABLE w")
    manifest = source.stage()
    assert table(manifest, "public.t").copy_lsn == str(manifest.start_lsn)
    assert len(source.copied(manifest, "public.t")) == 3000


def test_an_error_in_a_group_of_small_tables_keeps_those_before_it(source: Source) -> None:
    source.execute(
        "CREATE TABLE larger(a int PRIMARY KEY)",
        "INSERT INTO larger SELECT generate_series(1, 500)",
        "CREATE TABLE broken(a int PRIMARY KEY)",
        "INSERT INTO broken VALUES (1)",
        "ALTER PUBLICATION p ADD TABLE larger, broken WHERE (1 / (a - 1) > 0)",
    )
    with pytest.raises(Exception, match="refused a statement"):
        source.stage(copy_connections=1)
    sealed = {int(path.name.partition("-")[0]) for path in seals(source)}
    oids = "SELECT oid::int8 FROM pg_class WHERE relname IN ('t', 'larger')"
    assert sealed == {oid for (oid,) in source.execute(oids)}


@pytest.mark.parametrize(
    "between",
    [
        ["ALTER PUBLICATION p DROP TABLE t", "TRUNCATE t", "ALTER PUBLICATION p ADD TABLE t"],
        ["ALTER PUBLICATION p SET TABLE t WHERE (a > 10), u, v"],
        ["ALTER TABLE t ADD c int DEFAULT 5"],
        ["ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t REPLICA IDENTITY FULL"],
    ],
    ids=["left and came back", "other filter", "other columns", "other key"],
)
def test_a_seal_is_not_used_when_what_it_depends_on_changed(
    source: Source, between: list[str]
) -> None:
    with_tables(source)
    killed = source.stage_in_process("stage.after_copied_table", copy_connections=1)
    assert killed == KILLED
    source.execute(*between)
    manifest = source.stage()
    assert str(table(manifest, "public.t").copy_lsn) > str(manifest.start_lsn)
    rows = source.execute("SELECT count(*) FROM t")[0][0]
    filtered = "SET TABLE" in between[0]
    assert len(source.copied(manifest, "public.t")) == (rows - 10 if filtered else rows)


def test_a_seal_that_is_damaged_or_without_its_files_is_not_used(source: Source) -> None:
    with_tables(source)
    options = {"copy_connections": 1}
    assert source.stage_in_process("stage.after_copied_table:3", **options) == KILLED
    by_oid = {int(path.name.partition("-")[0]): path for path in seals(source)}
    oids = dict(
        source.execute("SELECT relname, oid::int8 FROM pg_class WHERE relname IN ('t', 'u')")
    )
    body = json.loads(by_oid[oids["t"]].read_text())
    (source.staging / body["files"][0]["path"]).unlink()
    damaged = by_oid[oids["u"]]
    damaged.write_text(damaged.read_text().replace('"copied": 1000', '"copied": 999'))
    changed(source, 1)
    manifest = source.stage()
    for name in ("t", "u"):
        assert Lsn.parse(str(table(manifest, f"public.{name}").copy_lsn)) > manifest.start_lsn
        assert fold(source, [manifest], f"public.{name}", "a") == in_source(source, name)
    assert table(manifest, "public.v").copy_lsn == str(manifest.start_lsn)


def copied_in(source: Source, snapshot: ExportedSnapshot, **options: Any) -> Manifest:
    """The first batch, whose tables are read in this snapshot as long as that goes."""
    with sessions.connect(source.conninfo) as session:
        server = PostgresSource(
            source.request(**options),
            StagingArea(str(source.staging)),
            session,
            read_server(session, source.reader),
        )
        run = Run(server, ServerRows(server), server.read_facts())
        start = first(server.request, snapshot.consistent_point)
        return stage_copies(run, start, run.facts.tables, snapshot)[0]


def test_a_type_that_changes_between_two_snapshots_means_another_copy(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``t`` is sealed, and changes its type before the other tables are read."""
    with_tables(source)
    options: dict[str, Any] = {"copy_connections": 1}
    assert source.stage_in_process("stage.after_copied_table:1", **options) == KILLED
    take: Any = vars(stage)["create_slot"]

    def altered(*arguments: Any, **named: Any) -> Any:
        source.execute(
            "ALTER TABLE t ALTER b TYPE bytea USING b::bytea",
            "UPDATE t SET b = 'new' WHERE a = 1",
        )
        return take(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(stage, "create_slot", altered)
        with pytest.raises(SnapshotLost, match="after the table was copied"):
            source.stage(**options)
    found = table(source.stage(**options), "public.t")
    assert [each.columns[1].lake_type for each in found.versions] == ["binary"]
    assert found.counts.copied == 3000


def test_a_lost_snapshot_is_followed_by_another(source: Source) -> None:
    with_tables(source)
    with create_slot(source.conninfo, source.slot_name, source.server()) as snapshot:
        snapshot.close()
        changed(source, 1)
        manifest = copied_in(source, snapshot)
    assert manifest.start_lsn < manifest.end_lsn
    for name in ("t", "u"):
        assert table(manifest, f"public.{name}").copy_lsn == str(manifest.end_lsn)
        assert fold(source, [manifest], f"public.{name}", "a") == in_source(source, name)


#: A type of the user's own that is stored as int8 is, so that a column can become one without a rewrite.
LIKE_INT8 = (
    "CREATE TYPE likewise",
    "CREATE FUNCTION likewise_in(cstring) RETURNS likewise AS 'int8in' LANGUAGE internal IMMUTABLE STRICT",
    "CREATE FUNCTION likewise_out(likewise) RETURNS cstring AS 'int8out' LANGUAGE internal IMMUTABLE STRICT",
    "CREATE FUNCTION likewise_send(likewise) RETURNS bytea AS 'int8send' LANGUAGE internal IMMUTABLE STRICT",
    "CREATE TYPE likewise (INPUT = likewise_in, OUTPUT = likewise_out, SEND = likewise_send, LIKE = int8)",
    "CREATE CAST (int8 AS likewise) WITHOUT FUNCTION AS ASSIGNMENT",
)


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("int8", int.from_bytes(b"canaries"), "likewise"),
        ("timestamptz", "'2020-01-01'", "timestamp"),
    ],
)
def test_a_type_that_changed_without_a_rewrite_means_another_snapshot(
    source: Source, before: str, value: str | int, after: str
) -> None:
    """Between the look at the catalog and the first row; the error quotes no value."""
    source.execute(
        *LIKE_INT8, f"ALTER TABLE t ADD c {before}", f"INSERT INTO t VALUES (1, 'x', {value})"
    )
    with (
        create_slot(source.conninfo, source.slot_name, source.server()) as snapshot,
        sessions.connect(source.conninfo) as session,
    ):
        server = PostgresSource(
            source.request(),
            StagingArea(str(source.staging)),
            session,
            read_server(session, source.reader),
        )
        (published,) = server.read_tables()
        source.execute("SET TimeZone = 'UTC'", f"ALTER TABLE t ALTER c TYPE {after}")
        point = snapshot.consistent_point
        batch = server.new_batch(point)
        version = server.describer.published(published)
        order = TableCopy(published, batch.add_copy(published.relation_oid, version, point))
        with pytest.raises(SnapshotLost) as lost:
            list(copy_tables(source.conninfo, snapshot.name, [order], 1))
        batch.abandon()
        assert (lost.value.table, lost.value.column) == ("public.t", "c")
        assert "canaries" not in "".join(traceback.format_exception(lost.value))
        manifest = copied_in(source, snapshot)
    assert len(source.copied(manifest, "public.t")) == 1


@pytest.mark.parametrize(
    "rewrite",
    [
        ["ALTER TABLE t ALTER b TYPE varchar USING b || '!'"],
        ["TRUNCATE t", "INSERT INTO t SELECT g, 'new' FROM generate_series(1, 50) g"],
        ["TRUNCATE t"],
        ["VACUUM FULL t"],
        ["ALTER TABLE t ADD c int DEFAULT (random() * 100)::int"],
    ],
    ids=["ALTER TYPE", "TRUNCATE and INSERT", "TRUNCATE", "VACUUM FULL", "ADD COLUMN"],
)
def test_a_table_that_was_rewritten_since_the_snapshot_is_read_in_a_new_one(
    source: Source, rewrite: list[str]
) -> None:
    """The old snapshot sees a rewritten table without rows, and nothing says so."""
    with_tables(source)
    with create_slot(source.conninfo, source.slot_name, source.server()) as snapshot:
        source.execute(*rewrite)
        manifest = copied_in(source, snapshot)
    assert Lsn.parse(str(table(manifest, "public.t").copy_lsn)) > snapshot.consistent_point
    assert table(manifest, "public.u").copy_lsn == str(snapshot.consistent_point)
    assert fold(source, [manifest], "public.t", "a") == in_source(source, "t")


def test_pgbench_runs_during_the_whole_copy(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed once on the way, in parts, over several connections; then every row is compared."""
    monkeypatch.setattr(plan, "PART_BYTES", 64 * 8192)
    pgbench = str(find_or_fetch_installation(18).program("pgbench"))
    uri = source.conninfo
    subprocess.run(
        [pgbench, "-i", "-q", "-s", "2", "--fillfactor=80", uri], check=True, capture_output=True
    )
    tables = ("accounts", "branches", "tellers", "history")
    listed = ", ".join(f"pgbench_{each}" for each in tables)
    source.execute(f"ALTER PUBLICATION p SET TABLE {listed}")
    command = [pgbench, "-c", "4", "-T", "600", "--rate=300", uri]
    options: dict[str, Any] = {"copy_connections": 3}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as load:
        try:
            while not source.execute("SELECT count(*) FROM pgbench_history")[0][0]:
                assert load.poll() is None, load.stderr and load.stderr.read()
                time.sleep(0.05)
            assert source.stage_in_process("stage.after_copied_table", **options) == KILLED
            time.sleep(0.5)
            batches = [source.stage(**options)]
            assert load.poll() is None
        finally:
            load.terminate()
    # The server may still commit what pgbench asked for.
    source.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'pgbench'"
    )
    assert len({each.copy_lsn for each in batches[0].tables}) == 2
    batches.append(source.stage(checkpoint=lake_with(*batches)))
    assert batches[-1].changes > 0
    for name, key in zip(tables, ("aid", "bid", "tid", None), strict=True):
        found = fold(source, batches, f"public.pgbench_{name}", key)
        query = f"SELECT * FROM pgbench_{name}"
        names = [
            each.name for each in table(batches[0], f"public.pgbench_{name}").versions[0].columns
        ]
        rows = (dict(zip(names, row, strict=True)) for row in source.execute(query))
        assert found == sorted((tuple(sorted(row.items())) for row in rows), key=repr)
