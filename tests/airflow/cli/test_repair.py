"""``pgoutput doctor --repair``: the repairs that are safe, and what it refuses to repair."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch import checkpoint as words
from airflow_provider_pgoutput.batch.earlier_systems import EarlierSystem
from airflow_provider_pgoutput.batch.passed_over import PassedOver
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.doctor.diagnose import examine
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.doctor.repair import remove_dead_branches
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.state import open_catalog
from tests.airflow.cli.states import (
    TARGET,
    doctor,
    drop_checkpoint,
    manifest,
    published,
    seal,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg
    import pytest

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from tests.airflow.conftest import TestLake

    Session = psycopg.Connection[tuple[Any, ...]]


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
    # So a source that went back before it is still refused.
    assert found.timeline == 1
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


def test_after_an_adoption_a_manifest_tells_which_systems_the_tables_follow(
    source: Session, slot: str, lake: TestLake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin, adopted, start, end, later = (write(source) for _ in range(5))
    present, lake.system_identifier = lake.system_identifier, "42"
    kept = published(lake, slot, begin, adopted, target="shop.public__v")
    with kept.transaction() as change:
        change.set_properties(
            {words.PROPERTY_RELATION_OID: "79", words.PROPERTY_SOURCE_TABLE: "public.v"}
        )
    lake.system_identifier = present
    published(lake, slot, start, end)
    staging = ("--staging-uri", str(tmp_path))
    for arguments in ((), staging):
        assert doctor(capsys, slot, *arguments, "--repair")[0] == 2
    earlier = (EarlierSystem("42", str(adopted)),)
    sealed = manifest(lake, slot, start, later, changes=1)
    seal(tmp_path, dataclasses.replace(sealed, adopted_from=earlier))
    code, findings = doctor(capsys, slot, *staging, "--repair")
    assert (code, {each["where"] for each in findings}) == (0, {"slot", "staging", TARGET})
    found = read_checkpoint(lake.catalog_name, lake.properties, "shop", slot)
    assert found is not None
    assert (found.end_lsn, found.system_identifier, found.adopted_from) == (start, present, earlier)


def test_a_rebuilt_checkpoint_has_what_was_passed_over(
    source: Session,
    slot: str,
    lake: TestLake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the stage task, which the manifest says, and by the apply task, which the tables say."""
    begin, start, between, end = (write(source) for _ in range(4))
    published(lake, slot, begin, start)
    newest = published(lake, slot, between, end, target="shop.public__v")
    with newest.transaction() as change:
        change.set_properties({words.PROPERTY_RELATION_OID: "79"})
    sealed = manifest(lake, slot, start, between, changes=1, path="x.parquet")
    (table,) = sealed.tables
    (version,) = table.versions
    (file,) = version.files
    file = dataclasses.replace(file, min_commit_lsn=str(start), max_commit_lsn=str(start))
    table = dataclasses.replace(
        table, is_gone=True, versions=(dataclasses.replace(version, files=(file,)),)
    )
    by_stage = PassedOver(78, "public.u", str(start), 1, "It cannot be followed.")
    seal(tmp_path, dataclasses.replace(sealed, tables=(table,), passed_over=(by_stage,)))
    assert doctor(capsys, slot, "--staging-uri", str(tmp_path), "--repair")[0] == 0
    found = read_checkpoint(lake.catalog_name, lake.properties, "shop", slot)
    assert found is not None
    assert (found.end_lsn, found.passed_over) == (between, {77: str(start), 78: str(start)})
    assert f"lack changes from before {start}: public.t" in caplog.text
    # Without the manifest nobody knows, and the tables are named.
    drop_checkpoint(lake)
    caplog.clear()
    assert doctor(capsys, slot, "--repair")[0] == 0
    assert f"lack changes from before {between}: public.t" in caplog.text


def test_a_rebuilt_checkpoint_has_what_was_set_aside(
    source: Session,
    slot: str,
    lake: TestLake,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The tables' own markers show which staged batches they lack."""
    begin, start, between, end = (write(source) for _ in range(4))
    published(lake, slot, begin, start)
    newest = published(lake, slot, between, end, target="shop.public__v")
    with newest.transaction() as change:
        change.set_properties(
            {words.PROPERTY_RELATION_OID: "79", words.PROPERTY_SOURCE_TABLE: "public.v"}
        )
    seal(tmp_path, manifest(lake, slot, start, between, changes=1))
    code, findings = doctor(capsys, slot, "--staging-uri", str(tmp_path), "--repair")
    (finding,) = (each for each in findings if each["where"] == "public.t")
    assert code == 1
    assert "lacks this batch" in finding["what"]
    found = read_checkpoint(lake.catalog_name, lake.properties, "shop", slot)
    assert found is not None
    (waits,) = found.set_aside.values()
    assert (found.end_lsn, waits.table_name, waits.since_lsn) == (between, "public.t", start)


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
