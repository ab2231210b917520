"""Which staged batches cover a range of LSNs, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.errors import BatchGap, BatchRefused

if TYPE_CHECKING:
    from pathlib import Path


class Archive:
    """Batches without tables; their positions are small numbers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def seal(self, start: int, end: int, system: str = "7", timeline: int = 1) -> Path:
        manifest = Manifest("s", system, timeline, "db", ("p",), Lsn(start), Lsn(end), ())
        path = self.folder / layout.manifest_path("s", Lsn(start), Lsn(end), manifest.batch_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(manifest.to_json())
        return path

    def found(
        self, first: int, last: int | None = None, system: str | None = None
    ) -> list[tuple[int, int]]:
        area = StagingArea(str(self.folder))
        end = None if last is None else Lsn(last)
        chain = batches_between(area, "s", Lsn(first), end, system)
        assert all(area.staging_uri in each.manifest_uri for each in chain)
        return [(int(each.start_lsn), int(each.end_lsn)) for each in chain]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    made = Archive(tmp_path)
    for start in (10, 20, 30, 40):
        made.seal(start, start + 10)
    return made


def test_batches_are_taken_whole_and_never_past_the_end(archive: Archive) -> None:
    everything = [(10, 20), (20, 30), (30, 40), (40, 50)]
    assert archive.found(10) == archive.found(19, 50) == everything
    assert archive.found(20, 40) == archive.found(25, 49) == [(20, 30), (30, 40)]


def test_a_batch_of_a_past_that_was_undone_is_not_taken(archive: Archive) -> None:
    """Sealed before the source was promoted at 45, and passed over since."""
    archive.seal(50, 70)
    archive.seal(50, 55, timeline=2)
    archive.seal(55, 80, timeline=2)
    assert archive.found(40) == [(40, 50), (50, 55), (55, 80)]
    assert archive.found(40, 75) == [(40, 50), (50, 55)]


def test_of_attempts_at_one_batch_the_longest_is_taken(archive: Archive) -> None:
    archive.seal(20, 35)
    archive.seal(30, 45)
    assert archive.found(20) == [(20, 35), (30, 45), (40, 50)]
    assert archive.found(20, 34) == [(20, 30)]


def test_the_copies_that_a_pipeline_began_with_come_first(archive: Archive) -> None:
    archive.seal(10, 10)
    assert archive.found(10, 30) == [(10, 10), (10, 20), (20, 30)]
    assert archive.found(15, 30) == [(10, 20), (20, 30)]
    alone = Archive(archive.folder / "alone")
    alone.seal(10, 10)
    assert alone.found(10) == [(10, 10)]


def test_a_hole_is_refused(archive: Archive) -> None:
    archive.seal(60, 70)
    for first, last in ((10, None), (10, 65), (5, None), (55, 70)):
        with pytest.raises(BatchGap, match="has no batch from"):
            archive.found(first, last)
    # Before the hole nothing is missing.
    assert archive.found(40, 50) == [(40, 50)]
    assert archive.found(60) == [(60, 70)]


def test_what_is_not_staged_is_refused(archive: Archive, tmp_path: Path) -> None:
    for first, last, message in (
        (70, None, "No staged batch holds 0/46"),
        (30, 35, "ends by 0/23"),
        (30, 60, "newest batch ends at 0/32, before 0/3C"),
    ):
        with pytest.raises(BatchRefused, match=message):
            archive.found(first, last)
    with pytest.raises(BatchRefused, match="No staged batch"):
        Archive(tmp_path / "empty").found(10)


def test_positions_of_another_system_mean_nothing(archive: Archive) -> None:
    archive.seal(15, 100, system="8")
    assert archive.found(10, system="7") == [(10, 20), (20, 30), (30, 40), (40, 50)]
    # Without a checkpoint the newest batch says whose the slot is.
    assert archive.found(15) == [(15, 100)]


def test_a_damaged_manifest_is_refused(archive: Archive) -> None:
    path = archive.seal(50, 60)
    path.write_text(path.read_text().replace('"timeline"', '"time_line"'))
    with pytest.raises(BatchRefused):
        archive.found(10)
    path.write_text("{")
    with pytest.raises(BatchRefused, match="not a manifest"):
        archive.found(10)
