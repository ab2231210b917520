"""``start_lsn`` once the lake has a checkpoint: the slot is read again, as far back as it holds all."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import (
    BatchRefused,
    ConfigurationError,
    PgoutputError,
    SlotAheadOfCheckpoint,
    SlotBusy,
    SlotNotFound,
)
from tests.capture.pipeline_support import checkpoint_of, checkpoint_with_shapes

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source


def keys(source: Source, batch: Manifest) -> list[int]:
    return [row["a"] for row in source.changes(batch, "public.t")] if batch.tables else []


def insert(source: Source, *numbers: int) -> None:
    source.execute(*(f"INSERT INTO t VALUES ({each}, 'x')" for each in numbers))


def refuse(
    source: Source, error: type[PgoutputError], match: str, checkpoint: Checkpoint, **options: Any
) -> PgoutputError:
    """Nothing is sealed, given up or moved by a run that is refused."""
    before = source.manifests(), source.confirmed()
    with pytest.raises(error, match=match) as stop:
        source.stage(checkpoint=checkpoint, **options)
    assert (source.manifests(), source.confirmed()) == before
    assert stop.value.advice
    return stop.value


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_what_the_lake_has_is_staged_again_with_what_it_lacks(
    source: Source, transport: str
) -> None:
    first = source.stage()
    insert(source, 1, 2)
    second = source.stage(checkpoint=checkpoint_of(first))
    insert(source, 3)
    third = source.stage(checkpoint=checkpoint_of(second))
    insert(source, 4)
    # Without limits: else the next run might read the same again.
    again = source.stage(
        checkpoint=checkpoint_of(third),
        start_lsn=second.end_lsn,
        transport=transport,
        max_changes=1,
    )
    assert (again.start_lsn, keys(source, again)) == (second.end_lsn, [3, 4])
    assert again.loaded_lsn is None
    # What is applied stays: a replay finds it.
    assert len(source.manifests()) == 4
    assert source.confirmed() == str(first.end_lsn)
    # From a position in the middle of a batch that nobody staged as such.
    middle = Lsn.parse(source.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    insert(source, 5)
    fourth = source.stage(checkpoint=checkpoint_of(again))
    insert(source, 6)
    again = source.stage(checkpoint=checkpoint_of(fourth), start_lsn=middle, transport=transport)
    assert keys(source, again) == [5, 6]


def test_a_batch_that_waits_gives_way_to_one_with_other_options(source: Source) -> None:
    lake = checkpoint_of(source.stage())
    insert(source, 1)
    waiting = source.stage(checkpoint=lake)
    wanted: dict[str, Any] = {"message_prefixes": ("p",)}
    insert(source, 2)
    assert source.stage(checkpoint=lake).batch_id == waiting.batch_id
    source.execute("SELECT pg_logical_emit_message(true, 'p', 'said')")
    options = {"options": StreamOptions(messages=True, **wanted)}
    assert source.stage(checkpoint=lake, **options).batch_id == waiting.batch_id
    # Limits would end it before the one that it replaces.
    again = source.stage(
        checkpoint=lake, start_lsn=lake.end_lsn, max_changes=1, max_bytes=1, **options
    )
    assert keys(source, again) == [1, 2]
    assert len(source.messages(again)) == 1
    assert len(source.manifests()) == 2
    assert source.stage(checkpoint=lake, **options).batch_id == again.batch_id


@pytest.mark.parametrize("what", ["manifest", "file"])
def test_a_batch_that_was_damaged_gives_way(source: Source, what: str) -> None:
    lake = checkpoint_of(source.stage())
    insert(source, 1)
    waiting = source.stage(checkpoint=lake)
    if what == "manifest":
        name = source.manifests()[-1]
        (source.staging / source.slot_name / "manifests" / name).write_bytes(b"\xff{")
        with pytest.raises(BatchRefused) as refusal:
            source.stage(checkpoint=lake)
        assert name in str(refusal.value)
        assert refusal.value.advice
        assert (refusal.value.slot, refusal.value.lsn) == (source.slot_name, str(waiting.end_lsn))
    else:
        path = source.staging / waiting.paths[0]
        path.write_bytes(bytes(path.stat().st_size))
        # Of the same size, so that only apply, which hashes it, finds out.
        assert source.stage(checkpoint=lake).batch_id == waiting.batch_id
    insert(source, 2)
    again = source.stage(checkpoint=lake, start_lsn=lake.end_lsn)
    assert keys(source, again) == [1, 2]
    assert source.stage(checkpoint=lake).batch_id == again.batch_id
    # Whoever looks through all manifests finds none that is damaged.
    assert chain(source, lake.end_lsn)[1:] == [again.batch_id]


def chain(source: Source, from_lsn: Lsn) -> list[str]:
    """Batches that a replay would apply."""
    area = StagingArea(source.staging.as_uri())
    return [each.batch_id for each in batches_between(area, source.slot_name, from_lsn)]


def test_a_damaged_manifest_of_what_is_applied_does_not_stand_in_the_way(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    first = source.stage()
    insert(source, 1)
    second = source.stage(checkpoint=checkpoint_of(first))
    name = source.manifests()[-1]
    (source.staging / source.slot_name / "manifests" / name).write_bytes(b"{}")
    insert(source, 2)
    lake = checkpoint_of(second)
    with caplog.at_level(logging.WARNING):
        assert keys(source, source.stage(checkpoint=lake)) == [2]
    assert name in caplog.text
    again = source.stage(checkpoint=lake, start_lsn=first.end_lsn)
    assert keys(source, again) == [1, 2]
    assert chain(source, first.end_lsn)[-1] == again.batch_id


def commits(source: Source, batch: Manifest) -> list[Lsn]:
    return [Lsn(row["commit_lsn"]) for row in source.changes(batch, "public.t")]


@pytest.mark.parametrize("known", ["manifest", "checkpoint"])
def test_what_was_left_out_is_left_out_again(source: Source, known: str) -> None:
    """Else a replay would bring it back. What is asked for beyond counts only where the lake is not yet."""
    lake = checkpoint_of(source.stage())
    insert(source, 1, 2, 3)
    applied, left_out, _ = commits(source, source.stage(checkpoint=lake))
    second = source.stage(checkpoint=lake, skip_lsns=(left_out,))
    assert keys(source, second) == [1, 3]
    later = checkpoint_of(second)
    if known == "checkpoint":
        for name in source.manifests():
            (source.staging / source.slot_name / "manifests" / name).unlink()
        later = dataclasses.replace(later, skipped=(json.dumps({str(left_out): 1}),))
    before = source.manifests()
    insert(source, 4, 5)
    to_come = commits(source, source.stage(checkpoint=later))[0]
    again = source.stage(
        checkpoint=later, start_lsn=lake.end_lsn, skip_lsns=(applied, to_come), attempt="again"
    )
    assert keys(source, again) == [1, 3, 5]
    assert {each.commit_lsn for each in again.skipped} == {str(left_out), str(to_come)}
    # What is applied stays in the archive; what holds the other one, and is not applied, goes.
    assert set(before) < set(source.manifests())
    assert len(source.manifests()) == len(before) + 1


@pytest.mark.parametrize("known", ["manifest", "checkpoint"])
def test_a_position_before_a_copy_is_refused(source: Source, known: str) -> None:
    first = source.stage()
    insert(source, 1)
    second = source.stage(checkpoint=checkpoint_of(first), copy_tables=("public.t",))
    insert(source, 2)
    third = source.stage(checkpoint=checkpoint_of(second))
    lake = checkpoint_of(third)
    if known == "checkpoint":
        lake = dataclasses.replace(lake, copied_until=second.end_lsn)
        for name in source.manifests():
            (source.staging / source.slot_name / "manifests" / name).unlink()
    refuse(source, ConfigurationError, "was copied", lake, start_lsn=first.end_lsn)
    assert keys(source, source.stage(checkpoint=lake, start_lsn=second.end_lsn)) == [2]


def test_a_retry_finds_what_moved_the_slot_before_it_died(source: Source) -> None:
    first = source.stage()
    insert(source, 1)
    lake = checkpoint_of(source.stage(checkpoint=checkpoint_of(first)))
    insert(source, 2)
    options = {"advance": AFTER_STAGE, "start_lsn": first.end_lsn}
    again = source.stage(checkpoint=lake, **options)
    assert source.confirmed() == str(again.end_lsn)
    assert source.stage(checkpoint=lake, **options).batch_id == again.batch_id
    # It is not applied, so the next run gives it, too.
    assert source.stage(checkpoint=lake, advance=AFTER_STAGE).batch_id == again.batch_id


def test_an_older_position_is_refused_and_the_archive_advised(source: Source) -> None:
    first = source.stage()
    insert(source, 1)
    second = source.stage(checkpoint=checkpoint_of(first))
    lake = checkpoint_of(second)
    advance_slot(source.reader, source.slot_name, lake.end_lsn)
    insert(source, 2)
    stop = refuse(
        source, SlotAheadOfCheckpoint, "start_lsn", lake, start_lsn=Lsn(second.end_lsn - 1)
    )
    assert "PgoutputReplayOperator" in str(stop)
    refuse(source, ConfigurationError, "the lake is at", lake, start_lsn=Lsn(lake.end_lsn + 8))
    assert keys(source, source.stage(checkpoint=lake, start_lsn=lake.end_lsn)) == [2]
    source.drop_slot(source.slot_name)
    for way in ("fail", "copy"):
        refuse(source, SlotNotFound, "start_lsn", lake, start_lsn=lake.end_lsn, on_slot_lost=way)


def test_a_batch_that_the_slot_has_passed_cannot_be_read_again(source: Source) -> None:
    first = source.stage()
    insert(source, 1)
    lake = checkpoint_of(source.stage(checkpoint=checkpoint_of(first), advance=AFTER_STAGE))
    insert(source, 2)
    waiting = source.stage(checkpoint=lake, advance=AFTER_STAGE)
    options = {"advance": AFTER_STAGE, "start_lsn": first.end_lsn}
    refuse(source, SlotAheadOfCheckpoint, "start_lsn", lake, **options)
    # It may be what an attempt left that was asked for the same.
    options["start_lsn"] = lake.end_lsn
    assert source.stage(checkpoint=lake, **options).batch_id == waiting.batch_id


def test_columns_that_changed_since_are_refused(source: Source) -> None:
    first = source.stage()
    insert(source, 1)
    second = source.stage(checkpoint=checkpoint_of(first))
    source.execute("ALTER TABLE t ADD c int", "INSERT INTO t VALUES (2, 'x', 3)")
    third = source.stage(checkpoint=checkpoint_with_shapes(second))
    (table,) = third.tables
    lake = dataclasses.replace(
        checkpoint_with_shapes(third), shaped_at={table.relation_oid: third.end_lsn}
    )
    stop = refuse(source, ConfigurationError, "columns", lake, start_lsn=second.end_lsn)
    assert stop.table == "public.t"
    assert str(third.end_lsn) in str(stop)
    unknown = dataclasses.replace(lake, shaped_at={})
    refuse(source, ConfigurationError, "does not know", unknown, start_lsn=second.end_lsn)
    insert(source, 4)
    for each in (lake, unknown):
        assert keys(source, source.stage(checkpoint=each, start_lsn=third.end_lsn)) == [4]


def test_with_two_phase_what_was_prepared_before_has_to_be_known(source: Source) -> None:
    options = {"options": StreamOptions(two_phase=True)}
    first = source.stage(**options)
    insert(source, 1)
    second = source.stage(checkpoint=checkpoint_of(first), **options)
    insert(source, 2)
    lake = checkpoint_of(second)
    middle = Lsn(first.end_lsn + 1)
    refuse(source, ConfigurationError, "two_phase", lake, start_lsn=middle, **options)
    # What was prepared before, the batch that ended there knows.
    again = source.stage(checkpoint=lake, start_lsn=first.end_lsn, **options)
    assert keys(source, again) == [1, 2]
    again = source.stage(checkpoint=lake, start_lsn=lake.end_lsn, **options)
    assert keys(source, again) == [2]
    (source.staging / source.slot_name / "manifests" / source.manifests()[0]).unlink()
    refuse(source, ConfigurationError, "two_phase", lake, start_lsn=first.end_lsn, **options)


def test_two_phase_is_not_switched_on_while_the_slot_is_behind(source: Source) -> None:
    first = source.stage()
    insert(source, 1)
    lake = checkpoint_of(source.stage(checkpoint=checkpoint_of(first)))
    options = {"options": StreamOptions(two_phase=True), "start_lsn": first.end_lsn}
    refuse(source, SlotBusy, "switched on at the checkpoint", lake, **options)


def test_a_copy_that_an_earlier_attempt_sealed_before_the_checkpoint_is_made_anew(
    source: Source,
) -> None:
    first = source.stage()
    insert(source, 1)
    copies = {"copy_tables": ("public.t",), "checkpoint": checkpoint_of(first)}
    assert source.stage_in_process("stage.after_files", **copies) < 0
    insert(source, 2)
    lake = checkpoint_of(source.stage(checkpoint=checkpoint_of(first)))
    copies |= {"checkpoint": lake, "start_lsn": first.end_lsn}
    (table,) = source.stage(**copies).tables
    assert Lsn.parse(str(table.copy_lsn)) >= lake.end_lsn


def test_the_position_of_a_load_may_stay(source: Source) -> None:
    """With ``never`` it is passed over once the lake is past it; another one is read again from."""
    source.make_slot()
    start = Lsn.parse(str(source.confirmed()))
    options = {"initial_copy": "never", "start_lsn": start}
    insert(source, 1)
    first = source.stage(**options)
    lake = dataclasses.replace(checkpoint_of(first), begun_at=start)
    insert(source, 2)
    second = source.stage(checkpoint=lake, **options)
    assert keys(source, second) == [2]
    lake = dataclasses.replace(checkpoint_of(second), begun_at=start)
    again = source.stage(checkpoint=lake, **{**options, "start_lsn": first.end_lsn})
    assert keys(source, again) == [2]
    # Tables of the load that did not change yet are still known for what they are.
    assert again.loaded_lsn == str(start)
    # A checkpoint table that was rebuilt begins later than the load: the last batch knows better.
    lake = dataclasses.replace(checkpoint_of(second), begun_at=second.end_lsn)
    again = source.stage(checkpoint=lake, **{**options, "start_lsn": first.end_lsn})
    assert (again.start_lsn, keys(source, again)) == (first.end_lsn, [2])
