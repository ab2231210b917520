"""``airflow pgoutput``: where a pipeline stands, what does not agree, and the repairs that are safe."""

from __future__ import annotations

import dataclasses
import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.cli import cli_parser
from airflow.models.connection import Connection
from airflow.utils.session import create_session
from pyiceberg.catalog import load_catalog
from sqlalchemy import delete

from airflow_provider_pgoutput.batch import checkpoint as words
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.membership import PublishedSet, TableMark
from airflow_provider_pgoutput.batch.table_version import Counts, StagedFile, TableVersion
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.doctor.diagnose import examine
from airflow_provider_pgoutput.doctor.findings import RunningTask
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.doctor.repair import remove_dead_branches
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.state import open_catalog
from tests.airflow.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg
    from conftest import TestLake
    from pyiceberg.table import Table as IcebergTable

    from airflow_provider_pgoutput.doctor.findings import Finding

    Session = psycopg.Connection[tuple[Any, ...]]

TARGET = "shop.public__t"
ROWS = pa.table({"id": pa.array([1, 2], pa.int32())})


@pytest.fixture
def lake(lake: TestLake, source: Session) -> TestLake:
    """A lake that is filled from the test's server."""
    row = source.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    assert row is not None
    lake.system_identifier = str(row[0])
    load_catalog(lake.catalog_name, **lake.properties).create_namespace_if_not_exists("shop")
    return lake


def position(session: Session) -> Lsn:
    row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def write(session: Session) -> Lsn:
    """Write something to the WAL and return the position after it."""
    session.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
    return position(session)


def published(
    lake: TestLake, slot: str, start: Lsn, end: Lsn, target: str = TARGET
) -> IcebergTable:
    """Write to a table what the publish of a batch leaves there."""
    catalog = load_catalog(lake.catalog_name, **lake.properties)
    properties = {
        words.PROPERTY_SLOT: slot,
        words.PROPERTY_SOURCE_TABLE: "public.t",
        words.PROPERTY_RELATION_OID: "77",
        words.PROPERTY_SYSTEM_IDENTIFIER: lake.system_identifier,
    }
    table = catalog.create_table_if_not_exists(target, ROWS.schema, properties=properties)
    batch_id = end.sortable * 4
    marker = {
        words.SUMMARY_SLOT: slot,
        words.SUMMARY_SYSTEM_IDENTIFIER: lake.system_identifier,
        words.SUMMARY_BATCH_ID: batch_id,
        words.SUMMARY_START_LSN: str(start),
        words.SUMMARY_END_LSN: str(end),
    }
    table.append(ROWS, snapshot_properties=marker)
    applied = f"{lake.system_identifier} {batch_id} {end}"
    with table.transaction() as change:
        change.set_properties({words.PROPERTY_APPLIED + slot: applied})
    return table


def doctor(
    capsys: pytest.CaptureFixture[str], slot: str, *arguments: str
) -> tuple[int, list[dict[str, str]]]:
    return run(capsys, "doctor", "--slot-name", slot, "--namespace", "shop", *arguments)


@pytest.fixture
def healthy(source: Session, slot: str, lake: TestLake) -> Lsn:
    """A pipeline whose last batch was applied and whose slot was advanced; where it is."""
    start, end = position(source), write(source)
    published(lake, slot, start, end)
    lake.record(slot, str(end), tables={"public.t": 77})
    advance_slot(PgoutputHook().conninfo(), slot, end, system_identifier=lake.system_identifier)
    return end


def test_a_healthy_pipeline_has_no_findings(
    healthy: Lsn, slot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(capsys, slot, "--staging-uri", str(tmp_path)) == (0, [])


def test_status_shows_each_table(
    healthy: Lsn, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows = run(capsys, "status", "--slot-name", slot, "--namespace", "shop")
    assert code == 0
    assert [(row["table"], row["lsn"]) for row in rows] == [
        ("(all)", str(healthy)),
        ("public.t", str(healthy)),
    ]


def test_connections_of_the_metadata_database_are_found(
    healthy: Lsn,
    slot: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Most are kept there, and outside of a task Airflow looks there only when it is told to."""
    stored = []
    for conn_id in ("postgres_default", "iceberg_default"):
        body = os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"]
        monkeypatch.delenv(f"AIRFLOW_CONN_{conn_id.upper()}")
        stored.append(Connection.from_json(body, conn_id=f"kept_{conn_id}"))
    with create_session() as session:
        session.add_all(stored)
    lake = ("--iceberg-conn-id", "kept_iceberg_default", "--catalog-name", "iceberg_default")
    at = ("--slot-name", slot, "--namespace", "shop", *lake)
    try:
        assert run(capsys, "doctor", "--postgres-conn-id", "kept_postgres_default", *at) == (0, [])
        assert run(capsys, "status", *at)[0] == 0
        assert run(capsys, "lsn-at", "2026-02-01", *at)[0] == 0
    finally:
        with create_session() as session:
            session.execute(delete(Connection).where(Connection.conn_id.like("kept_%")))
    assert "_AIRFLOW_PROCESS_CONTEXT" not in os.environ


def test_the_batches_around_a_time(lake: TestLake, capsys: pytest.CaptureFixture[str]) -> None:
    def noon(minute: int) -> datetime:
        return datetime(2026, 1, 31, 12, minute, tzinfo=UTC)

    # The second batch was empty; a row of a table says nothing new.
    for end, time in (("0/10", noon(0)), ("0/20", None), ("0/30", noon(20)), ("0/40", noon(40))):
        lake.record("past", end, tables={"public.t": 1}, last_commit_time=time)
    at = ("--slot-name", "past", "--namespace", "shop")

    def ends(time: str) -> list[tuple[str, str]]:
        code, rows = run(capsys, "lsn-at", time, *at)
        assert code == 0
        return [(row["batch"], row["end_lsn"]) for row in rows]

    assert ends("2026-01-31T12:19:59") == [("before", "0/20"), ("reaches past", "0/30")]
    # A transaction that committed at the time itself is not past it.
    assert ends("2026-01-31T13:20:00+01:00") == [("before", "0/30"), ("reaches past", "0/40")]
    assert ends("2026-01-30T00:00:00Z") == [("reaches past", "0/10")]
    assert ends("2026-02-01") == [("before", "0/40")]
    # Nobody knows when that was copied, until a batch with a time follows.
    lake.record("past", "0/50", copied=3)
    assert ends("2026-02-01") == [("before", "0/40"), ("reaches past", "0/50")]
    lake.record("past", "0/60", last_commit_time=noon(50))
    assert ends("2026-01-31T12:45:00") == [("before", "0/40"), ("reaches past", "0/50")]
    assert ends("2026-02-01") == [("before", "0/60")]
    # The same where there were changes beside the copy.
    lake.record("past", "0/70", copied=3, last_commit_time=noon(51))
    assert ends("2026-01-31T12:55:00") == [("before", "0/60"), ("reaches past", "0/70")]
    lake.record("past", "0/80", last_commit_time=noon(56))
    assert ends("2026-01-31T12:57:00") == [("before", "0/80")]
    assert run(capsys, "lsn-at", "noon", *at)[0] == 2
    assert run(capsys, "lsn-at", "2026-02-01", "--slot-name", "x", "--namespace", "shop")[0] == 2


def test_a_slot_that_is_behind_is_a_note(
    source: Session, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.record(slot, str(write(source)))
    code, (finding,) = doctor(capsys, slot)
    assert (code, finding["severity"], finding["where"]) == (0, "note", "slot")
    assert "advance" in finding["do"]


def test_what_a_run_under_way_leaves_for_a_while_is_not_told_as_something_to_do(
    source: Session,
    healthy: Lsn,
    slot: str,
    lake: TestLake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The next batch is sealed, a table has it, the slot is read and behind, and nobody died."""
    lake.record(slot, str(later := write(source)), tables={"public.t": 77})
    published(lake, slot, later, end := write(source))
    seal(tmp_path, manifest(lake, slot, later, end, changes=1))
    catalog = open_catalog(lake.catalog_name, lake.properties)
    area = StagingArea(str(tmp_path))
    conninfo = PgoutputHook().conninfo()
    observed, idle = examine_pipeline(conninfo, slot, catalog, "shop", area, running=())
    assert {each.where for each in idle} == {"slot", TARGET, "staging"}
    assert any("died" in each.what for each in idle)
    assert observed.slot is not None

    def told(task: RunningTask, **seen: Any) -> list[Finding]:
        return examine(dataclasses.replace(observed, running=(task,), **seen))

    # ``lake.record`` names this DAG.
    (dag_id,) = {each.dag_id for each in observed.lake.recorded or ()}
    apply = RunningTask(str(dag_id), "apply", "manual__1", "PgoutputApplyOperator")
    (note,) = told(apply)
    assert (note.severity, note.where) == ("note", "run")
    assert f"{dag_id}.apply (manual__1)" in note.what
    busy = dataclasses.replace(observed.slot, active_pid=7)
    assert [each.where for each in told(apply, slot=busy)] == ["run"]
    # The sensor only waits, and another pipeline's run explains nothing here.
    for other in (
        apply._replace(operator="PgoutputChangesSensor"),
        apply._replace(dag_id="another"),
    ):
        assert told(other) == idle
    # What no run leaves is told beside it.
    ahead = dataclasses.replace(observed.slot, confirmed_flush_lsn=Lsn(end + 1))
    assert "problem" in {each.severity for each in told(apply, slot=ahead)}
    # Without an answer of Airflow's, advice begins with what has to be looked at first.
    unknown = examine(dataclasses.replace(observed, running=None))
    assert all(each.advice.startswith("if no run is under way") for each in unknown)
    assert doctor(capsys, slot, "--staging-uri", str(tmp_path))[0] == 0


def test_a_replay_under_way_explains_a_table_that_went_back(
    source: Session, healthy: Lsn, slot: str, lake: TestLake
) -> None:
    lake.record(slot, str(write(source)), tables={"public.t": 77})
    catalog = open_catalog(lake.catalog_name, lake.properties)
    conninfo = PgoutputHook().conninfo()
    observed, idle = examine_pipeline(conninfo, slot, catalog, "shop", None, running=())
    assert "rolled back" in " ".join(each.what for each in idle)
    task = RunningTask("another", "replay", "manual__1", "PgoutputReplayOperator")
    (note,) = examine(dataclasses.replace(observed, running=(task,)))
    assert note.where == "run"


def test_with_nothing_wrong_there_is_one_sentence(
    healthy: Lsn, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--slot-name", slot, "--namespace", "shop", "--output", "table"]
    for command, namespace, sentence in (
        (
            "doctor",
            "shop",
            f"slot {slot}, the checkpoint ({healthy}) and 1 tables of the lake agree",
        ),
        ("doctor", "empty", "nothing was applied from it yet"),
        ("status", "empty", "was applied to namespace empty yet"),
    ):
        arguments[3] = namespace
        given = cli_parser.get_parser().parse_args(["pgoutput", command, *arguments])
        given.func(given)
        (line,) = capsys.readouterr().out.strip().splitlines()
        assert sentence in line


def test_a_slot_that_was_dropped_or_made_again_is_a_problem(
    source: Session, healthy: Lsn, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    code, (finding,) = doctor(capsys, slot)
    assert (code, finding["where"]) == (1, "slot")
    assert "does not exist" in finding["what"]
    write(source)
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    code, (finding,) = doctor(capsys, slot)
    assert code == 1
    assert "cannot be read any more" in finding["what"]


def test_another_system_is_a_problem(
    source: Session, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.system_identifier = "42"
    start, end = position(source), write(source)
    published(lake, slot, start, end)
    lake.record(slot, str(end), tables={"public.t": 77})
    code, findings = doctor(capsys, slot)
    assert code == 1
    assert any("filled from 42" in each["what"] for each in findings)


def test_a_source_that_went_back_is_a_problem(
    source: Session, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.record(slot, "FF/0")
    code, findings = doctor(capsys, slot)
    assert code == 1
    assert "ahead of the source" in findings[0]["what"]
    assert "restored" in findings[0]["do"]
    assert "another namespace" in findings[0]["do"]


def test_a_source_of_another_history_is_a_problem(
    source: Session, healthy: Lsn, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has written past the lake since, so positions alone do not tell."""
    published(lake, slot, healthy, later := write(source))
    lake.record(slot, str(later), timeline=7)
    write(source)
    code, findings = doctor(capsys, slot)
    (finding,) = (each for each in findings if each["severity"] == "problem")
    assert (code, finding["where"]) == (1, "source")
    assert "timeline 7, which is not part of its history" in finding["what"]


def test_a_source_that_does_not_answer_is_a_problem(
    healthy: Lsn, slot: str, set_connection: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "x"}
    set_connection("postgres_default", nobody)
    code, (finding,) = doctor(capsys, slot)
    assert (code, finding["where"]) == (1, "source")


def test_tables_that_are_gone_or_went_back_are_problems(
    source: Session, healthy: Lsn, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    later = write(source)
    lake.record(slot, str(later), tables={"public.t": 77, "public.u": 78})
    code, findings = doctor(capsys, slot)
    problems = {each["where"]: each["what"] for each in findings if each["severity"] == "problem"}
    assert code == 1
    assert set(problems) == {TARGET, "shop.public__u"}
    assert "rolled back" in problems[TARGET]
    assert "gone" in problems["shop.public__u"]
    advice = {each["where"]: each["do"] for each in findings}
    replay = f"PgoutputReplayOperator(from_lsn='{healthy}', tables=['public.t'])"
    assert replay in advice[TARGET]
    assert "copy_tables=['public.t']" in advice[TARGET]


def test_a_table_whose_source_left_and_that_was_dropped_is_a_note(
    source: Session,
    healthy: Lsn,
    slot: str,
    lake: TestLake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    earlier = Lsn(healthy - 1)
    lake.record(slot, str(earlier), tables={"public.u": 78, "public.v": 79, "public.w": 80})
    lake.record(slot, str(healthy), tables={"public.t": 77, "public.renamed": 79})
    marks = (TableMark(77, "public.t", ("all",)), TableMark(80, "public.w", ("all",)))
    sealed = manifest(lake, slot, earlier, healthy, changes=1)
    seal(tmp_path, dataclasses.replace(sealed, published=PublishedSet((), marks)))
    _, findings = doctor(capsys, slot, "--staging-uri", str(tmp_path))
    found = {each["where"]: each for each in findings if "is gone" in each["what"]}
    gone = {where: each["severity"] for where, each in found.items()}
    assert gone["shop.public__u"] == "note"
    assert gone["shop.public__v"] == "note"
    assert gone["shop.public__w"] == "problem"
    assert "shop.public__renamed" in found["shop.public__v"]["what"]


def test_rows_of_tables_alone_are_no_checkpoint_that_was_lost(
    source: Session, healthy: Lsn, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a replay of some tables leaves them."""
    lake.record(slot, str(healthy), tables={"public.t": 77})
    catalog = load_catalog(lake.catalog_name, **lake.properties)
    catalog.load_table(f"shop.{words.CHECKPOINT_TABLE}").delete("table_name is null")
    _, findings = doctor(capsys, slot)
    (finding,) = (each for each in findings if each["where"] == "checkpoint")
    assert finding["severity"] == "note"
    assert "a replay of some tables" in finding["what"]
    assert doctor(capsys, slot, "--repair")[0] == 0
    assert read_checkpoint(lake.catalog_name, lake.properties, "shop", slot) is None


def test_a_table_that_is_ahead_is_a_note(
    source: Session, healthy: Lsn, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    published(lake, slot, healthy, write(source))
    code, (finding,) = doctor(capsys, slot)
    assert (code, finding["where"]) == (0, TARGET)
    assert "died" in finding["what"]


def drop_checkpoint(lake: TestLake) -> None:
    catalog = load_catalog(lake.catalog_name, **lake.properties)
    catalog.drop_table(f"shop.{words.CHECKPOINT_TABLE}")


def test_a_lost_checkpoint_is_rebuilt_from_the_tables(
    source: Session,
    healthy: Lsn,
    slot: str,
    lake: TestLake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drop_checkpoint(lake)
    staging = ("--staging-uri", str(tmp_path))
    code, (finding,) = doctor(capsys, slot)
    assert (code, finding["where"]) == (1, "checkpoint")
    # Whether a batch that the slot has passed waits there is not known without a look.
    assert doctor(capsys, slot, "--repair")[0] == 2
    # Nor whether all tables have the newest one, without its manifest or one that came after it.
    assert doctor(capsys, slot, *staging, "--repair")[0] == 2
    seal(tmp_path, manifest(lake, slot, healthy, write(source), changes=1))
    assert doctor(capsys, slot, *staging, "--repair")[0] == 0
    found = read_checkpoint(lake.catalog_name, lake.properties, "shop", slot)
    assert found is not None
    assert (found.end_lsn, found.system_identifier) == (healthy, lake.system_identifier)
    assert found.tables == {77: "public.t"}


def test_no_checkpoint_is_made_of_tables_that_were_rolled_back(
    source: Session, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would say that the table has what it lacks."""
    start, between, end = write(source), write(source), write(source)
    first = published(lake, slot, start, between).refresh().current_snapshot()
    assert first is not None
    newest = published(lake, slot, between, end).refresh().current_snapshot()
    assert newest is not None
    catalog = load_catalog(lake.catalog_name, **lake.properties)

    def set_main(snapshot_id: int) -> None:
        catalog.load_table(TARGET).manage_snapshots().set_current_snapshot(snapshot_id).commit()

    set_main(first.snapshot_id)
    assert doctor(capsys, slot, "--repair")[0] == 2
    code, findings = doctor(capsys, slot)
    problems = {each["where"]: each["what"] for each in findings}
    assert (code, set(problems)) == (1, {"checkpoint", TARGET})
    assert "rolled back" in problems[TARGET]
    advice = next(each["do"] for each in findings if each["where"] == TARGET)
    undo = f"CALL <catalog>.system.set_current_snapshot('{TARGET}', {newest.snapshot_id})"
    assert undo in advice
    set_main(newest.snapshot_id)
    assert doctor(capsys, slot, "--repair")[0] == 0


def test_a_batch_that_some_tables_lack_is_before_them_again(
    source: Session, slot: str, lake: TestLake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stage task moved the slot, the apply died after one of two tables, the checkpoint was lost."""
    start, end = write(source), write(source)
    published(lake, slot, start, end)
    advance_slot(PgoutputHook().conninfo(), slot, end, system_identifier=lake.system_identifier)
    seal(tmp_path, manifest(lake, slot, start, end, changes=1))
    assert doctor(capsys, slot, "--staging-uri", str(tmp_path), "--repair")[0] == 0
    found = read_checkpoint(lake.catalog_name, lake.properties, "shop", slot)
    assert found is not None
    assert found.end_lsn == start


def test_a_checkpoint_of_a_slot_that_lags_starts_with_the_newest_batch(
    source: Session, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    start, end = write(source), write(source)
    published(lake, slot, start, end)
    assert doctor(capsys, slot, "--repair")[0] == 0
    found = read_checkpoint(lake.catalog_name, lake.properties, "shop", slot)
    assert found is not None
    assert found.end_lsn == start


def manifest(
    lake: TestLake, slot: str, start: Lsn, end: Lsn, *, changes: int = 0, path: str = ""
) -> Manifest:
    version = TableVersion(1, "public", "t", "d", (), ())
    if path:
        file = StagedFile("changes", path, 1, 5, "0" * 64, ())
        version = dataclasses.replace(version, files=(file,))
    table = Table(77, "public", "t", (version,), Counts(inserts=changes))
    tables = (table,) if changes else ()
    return Manifest(slot, lake.system_identifier, 1, "db", ("p",), start, end, tables)


def seal(staging: Path, sealed: Manifest) -> None:
    folder = staging / sealed.slot_name / "manifests"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{sealed.start_lsn.sortable}-{sealed.end_lsn.sortable}-{sealed.batch_id[:16]}.json"
    (folder / name).write_text(sealed.to_json())


def test_a_slot_that_is_past_the_tables_is_explained_by_batches_that_are_staged(
    source: Session,
    healthy: Lsn,
    slot: str,
    lake: TestLake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    later = write(source)
    advance_slot(PgoutputHook().conninfo(), slot, later, system_identifier=lake.system_identifier)
    drop_checkpoint(lake)
    staging = ("--staging-uri", str(tmp_path))
    assert doctor(capsys, slot, *staging, "--repair")[0] == 2

    def rebuilt() -> Lsn:
        assert doctor(capsys, slot, *staging, "--repair")[0] == 0
        found = read_checkpoint(lake.catalog_name, lake.properties, "shop", slot)
        assert found is not None
        drop_checkpoint(lake)
        return found.end_lsn

    seal(tmp_path, manifest(lake, slot, healthy, later))
    assert rebuilt() == later
    # The slot has passed a batch that nobody applied: the next run finds it.
    seal(tmp_path, manifest(lake, slot, healthy, later, changes=1))
    assert rebuilt() == healthy


def test_what_waits_in_the_staging_area_is_named(
    source: Session,
    healthy: Lsn,
    slot: str,
    lake: TestLake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    staging = ("--staging-uri", str(tmp_path))
    first, second, third = write(source), write(source), write(source)
    seal(tmp_path, manifest(lake, slot, healthy, first, changes=1))
    code, (finding,) = doctor(capsys, slot, *staging)
    assert (code, finding["severity"], finding["where"]) == (0, "note", "staging")
    assert "not applied" in finding["what"]
    seal(tmp_path, manifest(lake, slot, second, third, changes=1))
    code, findings = doctor(capsys, slot, *staging)
    assert code == 1
    assert "is missing" in findings[1]["what"]
    orphan = f"{slot}/manifests/{second.sortable}-{third.sortable}-"
    assert orphan in findings[1]["do"], "the slot still holds what lies between"
    lost = manifest(
        lake, slot, first, second, changes=1, path=f"{slot}/data/x/1-v1/changes.parquet"
    )
    seal(tmp_path, lost)
    _, findings = doctor(capsys, slot, *staging)
    assert any("Files of the batch" in each["what"] for each in findings)
    (
        tmp_path / slot / "manifests" / f"{first.sortable}-{third.sortable}-{'0' * 16}.json"
    ).write_text("{")
    code, findings = doctor(capsys, slot, *staging)
    assert code == 1
    assert any("cannot be read" in each["what"] for each in findings)


def test_a_slot_that_has_passed_a_sealed_batch_is_a_note(
    source: Session,
    healthy: Lsn,
    slot: str,
    lake: TestLake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    staging = ("--staging-uri", str(tmp_path))
    later = write(source)
    advance_slot(PgoutputHook().conninfo(), slot, later, system_identifier=lake.system_identifier)
    assert doctor(capsys, slot, *staging)[0] == 1
    lost = manifest(lake, slot, healthy, later, changes=1, path=f"{slot}/data/x/changes.parquet")
    seal(tmp_path, lost)
    assert doctor(capsys, slot, *staging)[0] == 1
    seal(tmp_path, manifest(lake, slot, healthy, later, changes=1))
    code, findings = doctor(capsys, slot, *staging)
    notes = [each["what"] for each in findings if each["where"] == "slot"]
    assert (code, len(notes)) == (0, 1)
    assert "only the staging area" in notes[0]


def test_branches_of_dead_attempts_are_named_and_removed(
    source: Session, healthy: Lsn, slot: str, lake: TestLake
) -> None:
    catalog = open_catalog(lake.catalog_name, lake.properties)
    table = catalog.load_table(TARGET)
    head = table.current_snapshot()
    assert head is not None
    change = table.manage_snapshots().create_branch(head.snapshot_id, "pgoutput_dead_1")
    change.create_branch(head.snapshot_id, "users_own").commit()
    observed, findings = examine_pipeline(PgoutputHook().conninfo(), slot, catalog, "shop", None)
    assert not findings
    later = dataclasses.replace(observed, now=observed.now + timedelta(days=2))
    (finding,) = examine(later)
    assert finding.repairable
    assert "pgoutput_dead_1" in finding.what
    assert remove_dead_branches(catalog, later) == 1
    assert set(catalog.load_table(TARGET).metadata.refs) == {"main", "users_own"}


def test_help_needs_no_connection(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli_parser.get_parser().parse_args(["pgoutput", "--help"])
    assert "doctor" in capsys.readouterr().out
