"""Up to which LSN a table has its changes, by its snapshots and its property."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch import checkpoint as words
from airflow_provider_pgoutput.batch.applied import (
    Marker,
    Snapshot,
    StandsAt,
    find_applied,
    find_at,
    find_batch_end,
    property_of,
    start_of_first,
    start_of_next,
)
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.table_version import Counts, TableVersion

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOT = "orders"


def ours(number: int, end: int, *, slot: str = SLOT, has_parent: bool = True) -> Snapshot:
    """A snapshot of the batch that ends at ``end``."""
    summary = {
        words.SUMMARY_SLOT: slot,
        words.SUMMARY_SYSTEM_IDENTIFIER: "7",
        words.SUMMARY_BATCH_ID: f"b{end}",
        words.SUMMARY_START_LSN: str(Lsn(end - 16)),
        words.SUMMARY_END_LSN: str(Lsn(end)),
    }
    return Snapshot(100 + number, number, has_parent, summary)


def theirs(number: int, *, has_parent: bool = True) -> Snapshot:
    """A snapshot of another writer."""
    return Snapshot(100 + number, number, has_parent, {"operation": "replace"})


def marker(end: int) -> Marker:
    return Marker("7", f"b{end}", Lsn(end))


def published(end: int, number: int | None) -> str:
    """The property after the publish of the batch that ends at ``end``."""
    return f"7 b{end} {Lsn(end)}" + ("" if number is None else f" {number}")


@pytest.mark.parametrize(
    ("history", "text", "found", "lacks_published", "was_rolled_back"),
    [
        pytest.param([], None, None, False, False, id="an empty table"),
        pytest.param([ours(2, 32)], published(32, 2), 32, False, False, id="the head is ours"),
        pytest.param(
            [theirs(3), ours(2, 32)], published(32, 2), 32, False, False, id="others wrote after us"
        ),
        pytest.param(
            [ours(3, 48, slot="other"), ours(2, 32)],
            published(32, 2),
            32,
            False,
            False,
            id="another slot wrote after us",
        ),
        pytest.param([theirs(3)], published(32, 2), 32, False, False, id="our snapshot expired"),
        pytest.param(
            [theirs(3)], published(32, None), 32, False, False, id="an early version published it"
        ),
        pytest.param([theirs(3)], None, None, False, False, id="we never published"),
        pytest.param(
            [theirs(3, has_parent=False)],
            published(32, 2),
            None,
            False,
            True,
            id="the whole history is of others",
        ),
        pytest.param([], published(32, 2), None, False, True, id="main is gone"),
        pytest.param(
            [ours(2, 32)], published(48, 3), 32, False, True, id="rolled back to a batch of ours"
        ),
        pytest.param(
            [theirs(3)],
            published(48, 4),
            None,
            True,
            True,
            id="rolled back to a snapshot of others, and ours expired",
        ),
    ],
)
def test_what_a_table_holds(
    history: list[Snapshot],
    text: str | None,
    found: int | None,
    lacks_published: bool,
    was_rolled_back: bool,
) -> None:
    applied = find_applied(SLOT, history, text)
    assert applied.marker == (None if found is None else marker(found))
    assert applied.lacks_published is lacks_published
    assert applied.was_rolled_back is was_rolled_back


def test_a_snapshot_of_ours_says_where_its_batch_starts() -> None:
    found = find_applied(SLOT, [theirs(3), ours(2, 32)], None).marker
    assert found is not None
    assert (found.start_lsn, found.snapshot_id) == (Lsn(16), 102)


def test_the_property_does_not_say_where_its_batch_starts() -> None:
    found = find_applied(SLOT, [theirs(3)], published(32, 2)).marker
    assert found is not None
    assert (found.start_lsn, found.snapshot_id) == (None, None)


def test_snapshots_before_the_newest_batch_are_not_read() -> None:
    """Each one costs calls to Java."""

    def history() -> Iterator[Snapshot]:
        yield ours(2, 32)
        pytest.fail("an older snapshot is read")

    assert find_applied(SLOT, history(), None).marker == marker(32)


def test_what_a_publish_writes_is_read_back() -> None:
    manifest = Manifest(SLOT, "7", 1, "shop", ("p",), Lsn(16), Lsn(32), ())
    text = property_of(manifest, 5)
    assert find_applied(SLOT, [theirs(6)], text).marker == Marker("7", manifest.batch_id, Lsn(32))
    assert find_applied(SLOT, [theirs(4)], text).lacks_published


@pytest.mark.parametrize("has_expired", [False, True])
@pytest.mark.parametrize(
    ("batch_id", "recorded", "reaches"),
    [
        pytest.param("b32", 16, 32, id="the same batch again"),
        pytest.param("b48", 32, 32, id="the checkpoint has it"),
        pytest.param("b48", 16, 24, id="it was staged anew"),
        pytest.param("b48", None, 24, id="it was the first one"),
        pytest.param("b48", 28, 28, id="the slot was read again"),
    ],
)
def test_what_a_batch_passed_over_comes_with_the_one_that_replaces_it(
    batch_id: str, recorded: int | None, reaches: int, has_expired: bool
) -> None:
    """Unless the checkpoint has the batch: then only a copy brings it."""
    snapshot = ours(2, 32)
    snapshot = dataclasses.replace(
        snapshot, summary={**snapshot.summary, words.SUMMARY_UNTIL_LSN: str(Lsn(24))}
    )
    history = [theirs(3)] if has_expired else [snapshot]
    found = find_applied(SLOT, history, f"{published(32, 2)} {Lsn(24)}").marker
    assert found is not None
    known = None if recorded is None else Lsn(recorded)
    assert found.reaches(batch_id, known) == Lsn(reaches)


def test_the_commits_of_a_table_say_what_the_batch_passes_over() -> None:
    version = TableVersion(0, "public", "t", "d", (), ())
    table = Table(7, "public", "t", (version,), Counts(), copy_lsn="0/10")
    manifest = Manifest(SLOT, "7", 1, "shop", ("p",), Lsn(16), Lsn(32), (table,))
    assert words.SUMMARY_UNTIL_LSN not in words.marker_of(manifest, table)
    summary = words.marker_of(manifest, table.until(Lsn(24)))
    assert summary[words.SUMMARY_UNTIL_LSN] == str(Lsn(24))
    text = property_of(manifest, 5, summary[words.SUMMARY_UNTIL_LSN])
    found = find_applied(SLOT, [theirs(6)], text).marker
    assert found is not None
    assert (found.until_lsn, found.timeline) == (Lsn(24), 1)
    found = find_applied(SLOT, [theirs(6)], property_of(manifest, 5)).marker
    assert found is not None
    assert (found.until_lsn, found.timeline) == (None, 1)
    snapshot = dataclasses.replace(theirs(6), summary=summary)
    found = find_applied(SLOT, [snapshot], None).marker
    assert found is not None
    assert (found.until_lsn, found.timeline) == (Lsn(24), 1)


@pytest.mark.parametrize(
    ("history", "lsn", "found"),
    [
        pytest.param([], 32, StandsAt(None), id="an empty table"),
        pytest.param([ours(2, 32)], 32, StandsAt(102), id="its last batch ends there"),
        pytest.param([ours(2, 32)], 99, StandsAt(102), id="no later batch changed it"),
        pytest.param([theirs(3), ours(2, 32)], 40, StandsAt(103), id="others wrote after us"),
        pytest.param([theirs(3)], 40, StandsAt(103), id="our snapshots expired"),
        pytest.param(
            [ours(4, 48), theirs(3), ours(2, 32)], 32, StandsAt(102), id="a later batch has commits"
        ),
        pytest.param(
            [ours(4, 48), ours(2, 32)], 40, StandsAt(102, marker(48)), id="a batch spans it"
        ),
        pytest.param([ours(4, 48)], 32, StandsAt(None, None, came_later=True), id="it came later"),
        pytest.param(
            [ours(3, 48, slot="other"), ours(2, 32)], 32, StandsAt(103), id="another slot wrote"
        ),
    ],
)
def test_which_snapshot_stands_at_an_lsn(
    history: list[Snapshot], lsn: int, found: StandsAt
) -> None:
    newest = find_applied(SLOT, history, None).marker
    assert find_at(SLOT, history, Lsn(lsn), newest) == found


def test_no_snapshot_stands_before_a_batch_whose_snapshots_expired() -> None:
    """An erasure expires all but the head, and the head may have changes past the LSN."""
    history = [theirs(3)]
    newest = find_applied(SLOT, history, published(48, 2)).marker
    assert find_at(SLOT, history, Lsn(40), newest) == StandsAt(None, newest, came_later=True)
    assert find_at(SLOT, history, Lsn(48), newest) == StandsAt(103)


#: Any batch of the slot.
BATCH = Manifest(SLOT, "7", 1, "shop", ("p",), Lsn(16), Lsn(32), ())


@pytest.mark.parametrize(
    ("history", "tagged", "lsn", "found"),
    [
        pytest.param([theirs(3), ours(2, 32)], [], 32, 102, id="a batch ends there"),
        pytest.param([ours(3, 48), ours(2, 32)], [], 40, 102, id="the next batch ends later"),
        pytest.param([theirs(3), ours(2, 32)], [], 40, None, id="a later snapshot may be gone"),
        pytest.param([ours(4, 64)], [ours(2, 32), ours(3, 48)], 48, 103, id="under a tag"),
        pytest.param([ours(3, 48), ours(2, 32, slot="other")], [], 32, None, id="of another slot"),
        pytest.param([], [], 32, None, id="an empty table"),
    ],
)
def test_a_table_goes_back_only_to_a_snapshot_that_is_certain(
    history: list[Snapshot], tagged: list[Snapshot], lsn: int, found: int | None
) -> None:
    assert find_batch_end(BATCH, history, tagged, Lsn(lsn)) == found
    other = dataclasses.replace(BATCH, system_identifier="8")
    assert find_batch_end(other, history, tagged, Lsn(lsn)) is None


def test_where_the_next_and_the_first_batch_of_a_table_start() -> None:
    history = [ours(4, 64), theirs(3), ours(2, 32), ours(1, 16, has_parent=False)]
    assert start_of_next(BATCH, history, 103) == Lsn(48)
    assert start_of_next(BATCH, history, 101) == Lsn(16)
    assert start_of_next(BATCH, history, 104) is None
    assert start_of_next(BATCH, history, 999) is None
    assert start_of_first(SLOT, history) == Lsn(0)
    assert start_of_first(SLOT, history[:-1]) is None
