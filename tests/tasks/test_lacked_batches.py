"""Which staged batches an apply gives to tables that are tried again."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.set_aside import Refusal, SetAside
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from airflow_provider_pgoutput.tasks.lacked_batches import MOST_BATCHES, Lacked, lacked_batches

if TYPE_CHECKING:
    from pathlib import Path

SYSTEM = "7"


class Staged:
    """Batches of ten bytes each, and one that is about to be applied."""

    def __init__(self, folder: Path, batches: int, renamed_at: int | None = None) -> None:
        #: Where ``public.t1`` gets another name.
        self.renamed_at = renamed_at
        self.folder, self.area = folder, StagingArea(str(folder))
        self.uris = [self.seal(start) for start in range(10, 10 * batches + 10, 10)]
        self.end = Lsn(10 * batches + 10)

    def seal(self, start: int) -> str:
        path = self.path(manifest := self.manifest(start))
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(manifest.to_json())
        return self.area.uri(path)

    def manifest(self, start: int) -> Manifest:
        first = "t1" if self.renamed_at is None or start < self.renamed_at else "renamed"
        tables = tuple(
            Table(oid, "public", name, ()) for oid, name in ((1, first), (2, "t2"), (3, "t3"))
        )
        return Manifest("s", SYSTEM, 1, "db", ("p",), Lsn(start), Lsn(start + 10), tables)

    def path(self, manifest: Manifest) -> str:
        return layout.manifest_path("s", manifest.start_lsn, manifest.end_lsn, manifest.batch_id)

    def lacked(self, *waiting: SetAside) -> Lacked:
        checkpoint = Checkpoint(
            self.end, SYSTEM, set_aside={each.relation_oid: each for each in waiting}
        )
        return lacked_batches(self.area, checkpoint, self.manifest(int(self.end)), "new")


def aside(
    oid: int, since: int, error: str = "LakeDenied", *, lacks_unstaged: bool = False
) -> SetAside:
    refusal = Refusal(error, "The catalog forbids it.")
    return SetAside(oid, f"public.t{oid}", Lsn(since), 1, refusal, lacks_unstaged=lacks_unstaged)


def test_a_table_without_a_right_gets_all_that_it_lacks_and_the_new_batch(tmp_path: Path) -> None:
    staged = Staged(tmp_path, 3)
    found = staged.lacked(aside(1, 20), aside(2, 30), aside(3, 10, "RowMissing"))
    assert found == Lacked((*staged.uris[1:], "new"), ("public.t1", "public.t2"))


@pytest.mark.parametrize(
    "waiting",
    [(), (aside(1, 10, "TableRolledBack"),), (aside(1, 10, lacks_unstaged=True),)],
    ids=["nothing", "another cause", "not staged"],
)
def test_nothing_is_tried_again_that_cannot_come_back(
    tmp_path: Path, waiting: tuple[SetAside, ...]
) -> None:
    staged = Staged(tmp_path, 3)
    assert staged.lacked(*waiting) == Lacked()
    assert lacked_batches(staged.area, None, staged.manifest(40), "new") == Lacked()


def test_a_batch_that_adopts_another_system_brings_no_batch_of_the_earlier_one(
    tmp_path: Path,
) -> None:
    staged = Staged(tmp_path, 3)
    checkpoint = Checkpoint(staged.end, SYSTEM, set_aside={1: aside(1, 10)})
    adopting = dataclasses.replace(staged.manifest(40), system_identifier="8")
    assert lacked_batches(staged.area, checkpoint, adopting, "new") == Lacked()


def test_of_many_batches_only_the_first_are_read(tmp_path: Path) -> None:
    """A table whose trouble begins after these waits for a later run."""
    staged = Staged(tmp_path, MOST_BATCHES + 2)
    # The last one is not looked at, so it does no harm yet.
    damaged = staged.manifest(10 * MOST_BATCHES + 20)
    (tmp_path / staged.path(damaged)).write_text("damaged")
    late = aside(2, 10 * MOST_BATCHES + 10)
    found = staged.lacked(aside(1, 10), late)
    assert found == Lacked(tuple(staged.uris[:MOST_BATCHES]), ("public.t1",))


def test_batches_that_are_gone_stop_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    staged = Staged(tmp_path, 3)
    (tmp_path / staged.path(staged.manifest(20))).unlink()
    assert staged.lacked(aside(1, 10)) == Lacked()
    assert "public.t1 cannot be tried again: The staging area has no batch from" in caplog.text


def test_batches_that_are_gone_hold_up_no_table_that_lacks_later_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The batches of the first table were pruned, after ``set_aside_retention``."""
    staged = Staged(tmp_path, 4)
    for start in (10, 20):
        (tmp_path / staged.path(staged.manifest(start))).unlink()
    found = staged.lacked(aside(1, 10), aside(2, 30), aside(3, 40))
    assert found == Lacked((*staged.uris[2:], "new"), ("public.t2", "public.t3"))
    assert "public.t1 cannot be tried again: " in caplog.text
    assert "public.t2" not in caplog.text


def test_a_table_that_stays_refused_holds_up_no_other(tmp_path: Path) -> None:
    """It lacks more batches than a run brings back, and nobody gives the right to it."""
    staged = Staged(tmp_path, MOST_BATCHES + 2)
    waiting = aside(1, 10), aside(2, 10 * MOST_BATCHES + 10)
    tried: set[str] = set()
    for _ in range(2):
        tried.update(staged.lacked(*waiting).tables)
        staged.uris.append(staged.seal(int(staged.end)))
        staged.end = Lsn(staged.end + 10)
    assert tried == {"public.t1", "public.t2"}


def test_a_table_that_was_renamed_has_the_name_that_is_in_the_batches(tmp_path: Path) -> None:
    """The new name is in none of the first batches, and a replay refuses a name that is in no batch."""
    staged = Staged(tmp_path, MOST_BATCHES + 2, renamed_at=10 * MOST_BATCHES + 10)
    now = dataclasses.replace(aside(1, 10), table_name="public.renamed")
    assert staged.lacked(now, aside(2, 10)).tables == ("public.t1", "public.t2")
