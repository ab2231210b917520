"""advance="after_stage": the slot moves once a batch is sealed, and what it passed is found where it lies."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture import pipeline
from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.capture.staging import manifests
from airflow_provider_pgoutput.capture.stream.options import SQL, WALSENDER, StreamOptions
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeUnavailable,
    SlotAheadOfCheckpoint,
)
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source


@pytest.fixture
def lake(source: Source) -> Checkpoint:
    """The checkpoint after the first batch, a copy; since then two rows came."""
    source.execute(
        "CREATE TABLE kept (a int PRIMARY KEY)",
        "INSERT INTO kept VALUES (1)",
        "CREATE PUBLICATION sealed FOR TABLE kept",
    )
    first = stage(source, None)
    source.execute("INSERT INTO kept VALUES (2)", "INSERT INTO kept VALUES (3)")
    return checkpoint_of(first)


def given(lake: Checkpoint | None) -> dict[str, Any]:
    return {"checkpoint": lake, "advance": AFTER_STAGE, "publication_names": ("sealed",)}


def stage(source: Source, lake: Checkpoint | None, **options: Any) -> Manifest:
    return source.stage(**{**given(lake), **options})


def position(source: Source) -> Lsn:
    confirmed = source.confirmed()
    assert confirmed is not None
    return Lsn.parse(confirmed)


def keys(source: Source, batch: Manifest) -> list[int]:
    return [row["a"] for row in source.changes(batch, "public.kept")] if batch.tables else []


def test_another_word_is_refused(source: Source) -> None:
    with pytest.raises(ConfigurationError, match="after_stage"):
        source.request(advance="never")


@pytest.mark.parametrize("transport", [SQL, WALSENDER])
def test_the_slot_moves_and_the_batch_is_given_until_it_is_applied(
    source: Source, lake: Checkpoint, transport: str
) -> None:
    batch = stage(source, lake, transport=transport)
    assert position(source) == batch.end_lsn > lake.end_lsn
    source.execute("INSERT INTO kept VALUES (4)")
    # Whoever runs next, in whatever setting: the lake lacks this one.
    for options in ({}, {"advance": "after_apply"}, {"max_changes": 1}):
        assert stage(source, lake, **options).batch_id == batch.batch_id
    assert position(source) == batch.end_lsn
    after = stage(source, checkpoint_of(batch), transport=transport)
    assert (after.start_lsn, position(source)) == (batch.end_lsn, after.end_lsn)
    assert (keys(source, batch), keys(source, after)) == ([2, 3], [4])


def test_the_first_batch_waits_for_its_apply(source: Source) -> None:
    source.execute(
        "CREATE TABLE kept (a int PRIMARY KEY)", "CREATE PUBLICATION sealed FOR TABLE kept"
    )
    source.make_slot()
    begin = position(source)
    source.execute("INSERT INTO kept VALUES (1)")
    first = stage(source, None, initial_copy="never")
    assert position(source) == begin < first.end_lsn
    # Nothing but the slot says where a pipeline begins.
    assert stage(source, None, initial_copy="never").batch_id == first.batch_id
    assert keys(source, first) == [1]


def test_a_batch_that_begins_before_the_checkpoint_counts(source: Source, lake: Checkpoint) -> None:
    """Of two runs at once each seals its own; the shorter one is applied, the slot is at the longer's end."""
    source.execute("INSERT INTO kept VALUES (4)")
    batch = stage(source, lake)
    applied = Lsn(source.changes(batch, "public.kept")[1]["commit_lsn"])
    middle = dataclasses.replace(lake, end_lsn=applied)
    assert lake.end_lsn < middle.end_lsn < position(source)
    assert stage(source, middle).batch_id == batch.batch_id


def test_a_batch_that_lost_a_file_is_no_batch(source: Source, lake: Checkpoint) -> None:
    batch = stage(source, lake)
    (source.staging / batch.paths[0]).unlink()
    with pytest.raises(SlotAheadOfCheckpoint, match="on_slot_lost"):
        stage(source, lake)
    assert position(source) == batch.end_lsn
    copied = stage(source, lake, on_slot_lost=COPY)
    assert copied.start_lsn == lake.end_lsn
    assert sorted(row["a"] for row in source.copied(copied, "public.kept")) == [1, 2, 3]


def test_a_lake_that_went_back_takes_the_batches_in_their_order(
    source: Source, lake: Checkpoint
) -> None:
    """As with a backup of it: the slot is past several batches, and the staging area has them all."""
    batches, states = [], [lake]
    for key in (4, 5, 6):
        batches.append(stage(source, states[-1]))
        states.append(checkpoint_of(batches[-1]))
        source.execute(f"INSERT INTO kept VALUES ({key})")
    assert position(source) == batches[-1].end_lsn
    for state, batch in zip(states, batches, strict=False):
        assert stage(source, state).batch_id == batch.batch_id
        assert stage(source, state, on_slot_lost=COPY).batch_id == batch.batch_id
    assert keys(source, stage(source, states[-1])) == [6]
    (source.staging / batches[1].paths[0]).unlink()
    with pytest.raises(SlotAheadOfCheckpoint, match="cannot be read any more"):
        stage(source, lake)


def test_a_slot_that_somebody_moved_further_is_refused(source: Source, lake: Checkpoint) -> None:
    batch = stage(source, lake)
    source.execute(
        "INSERT INTO kept VALUES (4)",
        f"SELECT pg_replication_slot_advance('{source.slot_name}', pg_current_wal_flush_lsn())",
    )
    assert position(source) > batch.end_lsn
    with pytest.raises(SlotAheadOfCheckpoint, match="cannot be read any more"):
        stage(source, lake)


def test_copies_cannot_be_added_to_what_is_sealed(source: Source, lake: Checkpoint) -> None:
    batch = stage(source, lake)
    for on_slot_lost in ("fail", COPY):
        with pytest.raises(SlotAheadOfCheckpoint, match="remove its manifest") as refusal:
            stage(source, lake, copy_tables=["public.kept"], on_slot_lost=on_slot_lost)
        assert source.manifests()[1] in str(refusal.value)
    after = stage(source, checkpoint_of(batch), copy_tables=["public.kept"])
    assert [row["a"] for row in source.copied(after, "public.kept")] == [1, 2, 3]


def test_a_batch_is_given_up_by_who_removes_it(source: Source, lake: Checkpoint) -> None:
    stage(source, lake)
    (source.staging / source.slot_name / "manifests" / source.manifests()[1]).unlink()
    copied = stage(source, lake, on_slot_lost=COPY, copy_tables=["public.kept"])
    assert sorted(row["a"] for row in source.copied(copied, "public.kept")) == [1, 2, 3]


def test_what_was_sealed_before_the_slot_was_lost_is_applied(
    source: Source, lake: Checkpoint
) -> None:
    batch = stage(source, lake)
    source.execute(
        f"SELECT pg_drop_replication_slot('{source.slot_name}')", "INSERT INTO kept VALUES (4)"
    )
    assert stage(source, lake, on_slot_lost=COPY).batch_id == batch.batch_id
    after = stage(source, checkpoint_of(batch), on_slot_lost=COPY)
    assert sorted(row["a"] for row in source.copied(after, "public.kept")) == [1, 2, 3, 4]
    assert position(source) == after.end_lsn


def test_a_lost_checkpoint_is_no_beginning(source: Source, lake: Checkpoint) -> None:
    stage(source, lake)
    with pytest.raises(SlotAheadOfCheckpoint, match="doctor --repair"):
        stage(source, None)
    with pytest.raises(SlotAheadOfCheckpoint, match="doctor --repair"):
        stage(source, None, initial_copy="never")


def test_the_slot_is_not_moved_over_files_that_are_gone(
    source: Source, lake: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = position(source)
    real = manifests.make_sure

    def make_sure(area: StagingArea, manifest: Manifest, uri: str) -> None:
        (source.staging / manifest.paths[0]).unlink()
        real(area, manifest, uri)

    monkeypatch.setattr(pipeline, "make_sure", make_sure)
    with pytest.raises(LakeUnavailable, match="not moved"):
        stage(source, lake)
    assert position(source) == before
    monkeypatch.undo()
    assert keys(source, stage(source, lake)) == [2, 3]


def test_a_run_that_died_before_the_move_is_repeated(source: Source, lake: Checkpoint) -> None:
    begin = position(source)
    assert source.stage_in_process("advance.before_move", **given(lake))
    assert position(source) == begin
    assert source.stage_in_process("advance.after_move", **given(lake))
    moved, sealed = position(source), source.manifests()
    batch = stage(source, lake)
    assert (moved, sealed) == (batch.end_lsn, source.manifests())
    assert keys(source, batch) == [2, 3]


def test_what_is_prepared_waits_in_the_staging_area(source: Source) -> None:
    source.execute(
        "CREATE TABLE kept (a int PRIMARY KEY)", "CREATE PUBLICATION sealed FOR TABLE kept"
    )
    options = {"options": StreamOptions(two_phase=True)}
    first = stage(source, None, **options)
    with_it = "BEGIN; INSERT INTO kept VALUES (1); PREPARE TRANSACTION 'after stage'"
    source.execute(with_it)
    prepared = stage(source, checkpoint_of(first), **options)
    assert position(source) == prepared.end_lsn
    assert keys(source, prepared) == []
    source.execute("COMMIT PREPARED 'after stage'")
    committed = stage(source, checkpoint_of(prepared), **options)
    assert keys(source, committed) == [1]
    assert position(source) == committed.end_lsn
