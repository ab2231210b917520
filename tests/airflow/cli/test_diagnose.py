"""``pgoutput doctor``: what does not agree between source, slot, lake and staging area."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.membership import PublishedSet, TableMembership
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.doctor.diagnose import examine
from airflow_provider_pgoutput.doctor.findings import RunningTask
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from airflow_provider_pgoutput.lake.state import open_catalog
from tests.airflow.cli.states import TARGET, doctor, manifest, position, published, seal, write

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg
    import pytest

    from airflow_provider_pgoutput.doctor.findings import Finding
    from tests.airflow.conftest import TestLake

    Session = psycopg.Connection[tuple[Any, ...]]


def test_a_healthy_pipeline_has_no_findings(
    healthy: Lsn, slot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(capsys, slot, "--staging-uri", str(tmp_path)) == (0, [])


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
    marks = (TableMembership(77, "public.t", ("all",)), TableMembership(80, "public.w", ("all",)))
    sealed = manifest(lake, slot, earlier, healthy, changes=1)
    seal(tmp_path, dataclasses.replace(sealed, published=PublishedSet((), marks)))
    _, findings = doctor(capsys, slot, "--staging-uri", str(tmp_path))
    found = {each["where"]: each for each in findings if "is gone" in each["what"]}
    gone = {where: each["severity"] for where, each in found.items()}
    assert gone["shop.public__u"] == "note"
    assert gone["shop.public__v"] == "note"
    assert gone["shop.public__w"] == "problem"
    assert "shop.public__renamed" in found["shop.public__v"]["what"]


def test_a_table_that_is_ahead_is_a_note(
    source: Session, healthy: Lsn, slot: str, lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    published(lake, slot, healthy, write(source))
    code, (finding,) = doctor(capsys, slot)
    assert (code, finding["where"]) == (0, TARGET)
    assert "died" in finding["what"]


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
