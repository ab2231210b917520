"""What counts as a sealed batch, in which order, and what a damaged one is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.capture.staging.archive import batches_between, newest_readable
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.manifests import find_ending, find_sealed
from airflow_provider_pgoutput.capture.staging.sealed import sealed_batches
from airflow_provider_pgoutput.errors import BatchRefused

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path))


def made(start: int, end: int, slot_name: str = "s") -> Manifest:
    return Manifest(slot_name, "7", 1, "db", ("p",), Lsn(start), Lsn(end), ())


def path_of(manifest: Manifest) -> str:
    return layout.manifest_path("s", manifest.start_lsn, manifest.end_lsn, manifest.batch_id)


def write(area: StagingArea, *manifests: Manifest) -> None:
    for each in manifests:
        area.write_whole(path_of(each), each.to_json().encode())


def test_batches_are_in_the_order_of_their_ends(area: StagingArea) -> None:
    write(area, made(30, 40), made(10, 60), made(20, 40), made(10, 20))
    ends = [(each.start_lsn, each.end_lsn) for each in sealed_batches(area, "s")]
    assert ends == [(10, 20), (20, 40), (30, 40), (10, 60)]
    assert sealed_batches(area, "other") == []


def test_other_files_and_empty_ones_are_no_batches(area: StagingArea) -> None:
    write(area, made(10, 20))
    folder = layout.manifest_folder("s")
    area.write_whole(f"{folder}/notes.txt", b"mine")
    area.write_whole(f"{path_of(made(20, 30))}.0123.tmp", b"{")
    area.create(path_of(made(30, 40))).finish()
    assert [each.read() for each in sealed_batches(area, "s")] == [made(10, 20)]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(made(10, 20).to_json().encode()[:-20], id="cut off"),
        pytest.param(b"\xff\xfe\xfd", id="no text"),
        pytest.param(made(10, 20).to_json().replace('"7"', '"8"').encode(), id="altered"),
        pytest.param(made(10, 30).to_json().encode(), id="of another range"),
        pytest.param(made(10, 20, slot_name="t").to_json().encode(), id="of another slot"),
    ],
)
def test_everybody_refuses_a_damaged_manifest_and_names_it(
    area: StagingArea, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = path_of(made(10, 20))
    area.write_whole(path, content)
    (sealed,) = sealed_batches(area, "s")
    for read in (
        sealed.read,
        lambda: find_sealed(area, "s", "7", Lsn(10)),
        lambda: find_ending(area, "s", "7", Lsn(20)),
        lambda: batches_between(area, "s", Lsn(10)),
    ):
        with pytest.raises(BatchRefused) as refused:
            read()
        assert area.uri(path) in str(refused.value)
        assert "remove the file" in str(refused.value)
    with caplog.at_level(logging.WARNING):
        assert newest_readable(area, "s", "7", Lsn(20)) is None
    assert area.uri(path) in caplog.text


def test_the_newest_batch_is_the_one_that_ends_last(area: StagingArea) -> None:
    """A slot that was read again leaves a batch that starts earlier and ends later."""
    write(area, made(30, 40), made(20, 50))
    assert newest_readable(area, "s", "7", Lsn(50)) == made(20, 50)
    assert newest_readable(area, "s", "7", Lsn(45)) == made(30, 40)
