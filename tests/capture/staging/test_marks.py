"""Marks: whoever stages next ends its batch there, and they expire by themselves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.marks import leave_mark, next_mark

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(tmp_path.as_uri())


def test_the_first_mark_inside_a_batch_counts(area: StagingArea) -> None:
    for lsn in (10, 30, 20):
        leave_mark(area, "s", Lsn(lsn), 60)
    assert next_mark(area, "s", Lsn(5), Lsn(40)) == 10
    # A batch that ended at a mark is followed by one that starts there.
    assert next_mark(area, "s", Lsn(10), Lsn(40)) == 20
    assert next_mark(area, "s", Lsn(10), Lsn(20)) is None
    assert next_mark(area, "s", Lsn(30), Lsn(40)) is None


def test_a_mark_of_another_slot_does_not_count(area: StagingArea) -> None:
    leave_mark(area, "other", Lsn(10), 60)
    assert next_mark(area, "s", Lsn(5), Lsn(40)) is None


def test_a_mark_that_is_removed_is_gone_and_may_be_removed_again(area: StagingArea) -> None:
    mark = leave_mark(area, "s", Lsn(10), 60)
    mark.remove()
    mark.remove()
    assert next_mark(area, "s", Lsn(5), Lsn(40)) is None


def test_a_mark_expires_and_the_next_one_clears_it_away(area: StagingArea) -> None:
    path = layout.mark_path("s", Lsn(10), int(time.time()) - 1, "0" * 16)
    area.write_whole(path, b"{}")
    assert next_mark(area, "s", Lsn(5), Lsn(40)) is None
    mark = leave_mark(area, "s", Lsn(20), 60)
    assert [
        f"{layout.mark_folder('s')}/{name}" for name in area.names(layout.mark_folder("s"))
    ] == [mark.path]


def test_a_file_that_is_no_mark_does_not_disturb(area: StagingArea) -> None:
    area.write_whole(f"{layout.mark_folder('s')}/README.json", b"{}")
    assert next_mark(area, "s", Lsn(5), Lsn(40)) is None


def test_marks_that_cannot_be_read_stop_no_batch(
    area: StagingArea, caplog: pytest.LogCaptureFixture
) -> None:
    """As when another user of the machine left one: a file in the place of the folder fails alike."""
    area.write_whole(layout.mark_folder("s"), b"{}")
    assert next_mark(area, "s", Lsn(5), Lsn(40)) is None
    assert "this batch ignores them" in caplog.text
