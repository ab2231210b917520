"""A sealed batch keeps its files; a manifest without its files is no batch."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.capture.source.catalog import Server
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.batch import BatchFacts, BatchInProgress
from airflow_provider_pgoutput.capture.staging.finished import CatalogAfter
from airflow_provider_pgoutput.capture.staging.manifests import (
    find_bridge,
    find_ending,
    find_sealed,
)
from airflow_provider_pgoutput.capture.staging.rejected import SCHEMA as REJECTED_SCHEMA
from airflow_provider_pgoutput.capture.types.cast import NULL_AND_KEEP, ValuePolicy
from airflow_provider_pgoutput.errors import LakeUnavailable
from tests.capture.pipeline_support import history_of

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.describe import Described
    from airflow_provider_pgoutput.capture.pgoutput.messages import Relation

START, END = Lsn(0x100), Lsn(0x200)
SERVER = Server(180000, "73", 1, "db", END, "logical")
VERSION = TableVersion(1, "public", "t", "d", (Column("a", 23, -1, "integer", "int"),), ("a",))


def undescribed(relation: Relation) -> Described:
    raise AssertionError("no relation is announced in a copy")


def staged(area: StagingArea, count: int = 2) -> BatchInProgress:
    """A batch with ``count`` copied rows whose files are complete."""
    batch = BatchInProgress(area, "s", START, "a", undescribed, ValuePolicy(NULL_AND_KEEP, {}), 8)
    table = batch.add_copy(1, VERSION, END)
    batch.copy_rows(table, pa.record_batch({"n0": pa.array(range(count), pa.int32())}), [])
    batch.finish_files()
    return batch


def facts_of(end: Lsn) -> BatchFacts:
    return BatchFacts(publication_names=("p",), end=end, catalog=CatalogAfter(history_of()))


def seal(batch: BatchInProgress, end: Lsn = END) -> Manifest:
    return batch.seal(lambda: SERVER, facts_of(end))[0]


def files(root: Path, manifest: Manifest) -> list[Path]:
    (table,) = manifest.tables
    return [root / file.path for version in table.versions for file in version.files]


def found(area: StagingArea) -> Manifest | None:
    sealed = find_sealed(area, "s", "73", START)
    return sealed and sealed[0]


def test_an_abandoned_batch_leaves_nothing(tmp_path: Path) -> None:
    staged(StagingArea(str(tmp_path))).abandon()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_batch_that_was_sealed_when_it_failed_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails when the manifest is in its place already: the batch exists."""
    area = StagingArea(str(tmp_path))
    batch = staged(area)
    real = os.fsync

    def fsync(number: int) -> None:
        if list(tmp_path.glob("s/manifests/*.json")):
            raise OSError(5, "Input/output error")
        real(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(LakeUnavailable):
            seal(batch)
    batch.abandon()
    sealed = found(area)
    assert sealed is not None
    assert all(path.exists() for path in files(tmp_path, sealed))


@pytest.mark.parametrize("damage", ["no folder", "no file", "another size"])
def test_a_manifest_without_its_files_is_passed_over_and_named(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    area = StagingArea(str(tmp_path))
    first = seal(staged(area))
    assert found(area) == first
    (path,) = files(tmp_path, first)
    if damage == "no folder":
        shutil.rmtree(tmp_path / "s/data")
    elif damage == "no file":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert found(area) is None
    (manifest,) = (tmp_path / "s/manifests").glob("*.json")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert manifest.name in caplog.text


def test_a_shorter_batch_counts_when_the_longer_one_lost_its_files(tmp_path: Path) -> None:
    area = StagingArea(str(tmp_path))
    shorter, longer = seal(staged(area, 1)), seal(staged(area, 2), Lsn(END + 1))
    assert found(area) == longer
    for path in files(tmp_path, longer):
        path.unlink()
    assert found(area) == shorter


@pytest.mark.parametrize("count", [2, 3])
def test_the_same_range_is_staged_anew_when_its_files_are_lost(tmp_path: Path, count: int) -> None:
    """The same content takes the old manifest's name, other content has a name of its own."""
    area = StagingArea(str(tmp_path))
    first = seal(staged(area, 2))
    shutil.rmtree(tmp_path / "s/data")
    second = seal(staged(area, count))
    assert found(area) == second
    assert files(tmp_path, second) != files(tmp_path, first)
    assert all(path.exists() for path in files(tmp_path, second))
    assert len(list((tmp_path / "s/manifests").glob("*.json"))) == 1 + (count == 3)


def test_rejected_values_are_files_of_the_batch_too(tmp_path: Path) -> None:
    area = StagingArea(str(tmp_path))
    batch = BatchInProgress(area, "s", START, "a", undescribed, ValuePolicy(NULL_AND_KEEP, {}), 8)
    batch.reject(pa.RecordBatch.from_pylist([{"raw_value": "NaN"}], REJECTED_SCHEMA))
    batch.finish_files()
    sealed = seal(batch)
    assert found(area) == sealed
    (file,) = sealed.rejected_files
    (tmp_path / file.path).unlink()
    assert found(area) is None


def test_a_batch_of_a_past_that_was_undone_bridges_nothing(tmp_path: Path) -> None:
    area = StagingArea(tmp_path.as_uri())
    seal(staged(area))
    middle, later = Lsn(0x180), dataclasses.replace(SERVER, timeline=2)

    def bridges(server: Server, confirmed: Lsn) -> bool:
        return find_bridge(area, "s", server, START, confirmed) is not None

    assert bridges(SERVER, middle)
    assert bridges(SERVER, END)
    assert not bridges(SERVER, Lsn(END + 1))
    # Restored to an earlier time, or promoted: only a slot that was synchronised is just there.
    assert not bridges(later, middle)
    assert bridges(later, END)
    assert not bridges(dataclasses.replace(SERVER, flush_lsn=middle), middle)
    assert not bridges(dataclasses.replace(SERVER, system_identifier="74"), END)


def test_a_batch_of_a_past_that_was_undone_is_not_found(tmp_path: Path) -> None:
    area = StagingArea(tmp_path.as_uri())
    seal(staged(area))
    assert find_sealed(area, "s", "73", START, server=SERVER) is not None
    for other in (
        dataclasses.replace(SERVER, timeline=2),
        dataclasses.replace(SERVER, flush_lsn=Lsn(END - 1)),
    ):
        assert find_sealed(area, "s", "73", START, server=other) is None


def test_a_batch_of_a_past_that_was_undone_does_not_stand_for_a_new_one(tmp_path: Path) -> None:
    area = StagingArea(tmp_path.as_uri())
    undone = seal(staged(area))
    now = dataclasses.replace(SERVER, timeline=2)
    batch = staged(area, 3)
    manifest, _ = batch.seal(lambda: now, facts_of(END))
    assert (manifest.timeline, manifest.batch_id) != (undone.timeline, undone.batch_id)
    again = find_sealed(area, "s", "73", START, server=now)
    assert again is not None
    assert again[0].batch_id == manifest.batch_id


def test_a_batch_of_a_past_that_was_undone_is_given_up(tmp_path: Path) -> None:
    """A late apply task or a replay would bring back what never happened."""
    area = StagingArea(tmp_path.as_uri())
    undone = seal(staged(area))
    now = dataclasses.replace(SERVER, timeline=2)
    middle = Lsn(START + 1)
    shorter, _ = staged(area, 3).seal(lambda: now, facts_of(middle))
    assert undone.end_lsn > shorter.end_lsn
    assert find_ending(area, "s", "73", END) is None
    # A run that was stopped before the promotion, and goes on now, takes nothing away.
    late = staged(area, 4).seal(lambda: SERVER, facts_of(END))[0]
    assert late.timeline == 1
    assert find_ending(area, "s", "73", middle) is not None
