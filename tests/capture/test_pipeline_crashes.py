"""F01 to F06 on the capture side: killed between two durable steps, then run again."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import LakeUnavailable
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

KILLED = -9


@pytest.mark.parametrize(
    "point", ["stage.after_slot", "stage.during_copy", "stage.after_files", "stage.after_manifest"]
)
def test_a_first_run_that_was_killed_is_repeated(source: Source, point: str) -> None:
    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 100) g")
    assert source.stage_in_process(point) == KILLED
    assert len(source.manifests()) == (point == "stage.after_manifest")
    confirmed = source.confirmed()
    source.execute("INSERT INTO t VALUES (101, 'x')")
    manifest = source.stage()
    assert source.confirmed() == confirmed == str(manifest.start_lsn)
    assert len(source.manifests()) == 1
    rows = [row["a"] for row in source.copied(manifest, "public.t")]
    second = source.stage(checkpoint=checkpoint_of(manifest))
    for table in second.tables:
        rows += [row["a"] for row in source.changes(second, table.name)]
    assert rows == list(range(1, 102))


@pytest.mark.parametrize(
    "point", ["stage.before_read", "stage.after_chunk", "stage.after_files", "stage.after_manifest"]
)
@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_a_later_run_that_was_killed_is_repeated(
    source: Source, point: str, transport: str
) -> None:
    checkpoint = checkpoint_of(source.stage())
    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 100) g")
    confirmed = source.confirmed()
    assert source.stage_in_process(point, checkpoint=checkpoint, transport=transport) == KILLED
    sealed = point == "stage.after_manifest"
    assert len(source.manifests()) == 1 + sealed
    source.execute("INSERT INTO t VALUES (101, 'x')")
    manifest = source.stage(checkpoint=checkpoint, transport=transport)
    assert source.confirmed() == confirmed
    assert len(source.manifests()) == 2
    rows = [row["a"] for row in source.changes(manifest, "public.t")]
    assert rows == list(range(1, 101 if sealed else 102))
    again = source.stage(checkpoint=checkpoint, transport=transport)
    assert again == manifest


@pytest.mark.parametrize("error", [SystemExit(143), OSError(5, "Input/output error")])
def test_a_run_that_ends_right_after_sealing_loses_nothing(
    source: Source, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """A task that is told to stop, or a disk that fails, once the manifest is in its place."""
    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 100) g")
    real = os.fsync

    def fsync(number: int) -> None:
        if source.manifests() and source.manifests()[-1].endswith(".json"):
            raise error
        real(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises((SystemExit, LakeUnavailable)):
            source.stage()
    assert len(source.manifests()) == 1
    manifest = source.stage()
    assert len(source.manifests()) == 1
    assert [row["a"] for row in source.copied(manifest, "public.t")] == list(range(1, 101))


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_a_batch_that_lost_its_files_is_staged_again(source: Source, transport: str) -> None:
    first = source.stage()
    checkpoint = checkpoint_of(first)
    source.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 100) g")
    lost = source.stage(checkpoint=checkpoint, transport=transport)
    shutil.rmtree(source.staging / source.slot_name / "data")
    source.execute("INSERT INTO t VALUES (101, 'x')")
    manifest = source.stage(checkpoint=checkpoint, transport=transport)
    assert manifest.start_lsn == lost.start_lsn
    assert len(source.manifests()) == 3
    rows = [row["a"] for row in source.changes(manifest, "public.t")]
    assert rows == list(range(1, 102))
    assert source.stage(checkpoint=checkpoint, transport=transport) == manifest
