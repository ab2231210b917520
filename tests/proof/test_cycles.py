"""What the record says of tables that are compared in parts: whose turn it is, what differs, what is covered.

What is not here: the comparison of a part (``test_share.py``).
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.checkpoint import PROOFS_TABLE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.record import (
    NewestProof,
    last_shares,
    newest_proofs,
    record_proof,
)
from airflow_provider_pgoutput.proof.report import IS_A_LOG, Proof, TableProof
from airflow_provider_pgoutput.proof.share import Share, Turn
from tests.proof.counted_files import CountedFiles

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: Each test commits many times to a catalog.
pytestmark = pytest.mark.slow
_NAMESPACE, _SLOT, _TABLE = "lake", "shop", "public.t"


class Record:
    """The record of one table in a catalog of its own."""

    def __init__(self, home: Path) -> None:
        self.catalog = load_catalog(
            "lake",
            type="sql",
            uri=f"sqlite:///{home}/catalog.db",
            warehouse=home.as_uri(),
            **{"py-io-impl": "tests.proof.counted_files.CountedFiles"},
        )
        self.catalog.create_namespace(_NAMESPACE)

    def add(
        self,
        found: str,
        number: int | None = None,
        of: int = 0,
        *,
        names: Sequence[str] = (_TABLE,),
        early: bool = False,
    ) -> None:
        """A verification found tables, or a part of them, ``equal``, ``different`` or ``not compared``.

        :param early: an early version recorded it, without where the part before ended.
        """
        share = None if number is None else Turn(number, of, (number - 1) * 10).done(number * 10)
        if share is not None and early:
            share = replace(share, after=None)
        tables = tuple(_found(name, found, share) for name in names)
        record_proof(self.catalog, _NAMESPACE, Proof(_SLOT, "1", Lsn(16), tables))
        time.sleep(0.001)  # The record goes by its times.

    def next(self, of: int, *, goes_on: bool = False) -> Turn:
        """The part whose turn it is."""
        return self.turns(of, [_TABLE], goes_on=goes_on)[_TABLE]

    def turns(self, of: int, tables: Sequence[str], *, goes_on: bool = False) -> dict[str, Turn]:
        """The part of each table whose turn it is. ``opened`` has which files were read for that."""
        CountedFiles.opened.clear()
        last = last_shares(self.catalog, _NAMESPACE, _SLOT, of, tables=tables, goes_on=goes_on)
        self.opened = dict(CountedFiles.opened)
        return {name: Turn.following(1 / of, last.get(name)) for name in tables}

    def newest(self) -> NewestProof:
        """What people see. Whoever stops reading when all is known of the table sees the same."""
        whole = newest_proofs(self.catalog, _NAMESPACE, _SLOT)[_TABLE]
        assert newest_proofs(self.catalog, _NAMESPACE, _SLOT, [_TABLE])[_TABLE] == whole
        return whole


def _found(name: str, found: str, share: Share | None) -> TableProof:
    lake = Digest(1, 8 if found == "different" else 7)
    skipped = "it waits" if found == "not compared" else None
    return TableProof(name, "lake.t", Digest(1, 7), lake, not_compared=skipped, share=share)


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path)


def test_cycles_of_other_lengths_do_not_disturb_each_other(record: Record) -> None:
    for number in (1, 2, 3):
        assert record.next(4) == Turn(number, 4, None if number == 1 else (number - 1) * 10)
        record.add("equal", number, 4)
        record.add("equal", 1 if number != 2 else 2, 2)
    assert record.next(4).number == 4
    assert record.next(2).number == 2
    assert record.next(3).number == 1


def test_a_part_that_differs_keeps_its_turn(record: Record) -> None:
    record.add("equal", 1, 4)
    record.add("different", 2, 4)
    assert record.next(4) == Turn(2, 4, 10)
    assert record.next(4, goes_on=True) == Turn(3, 4, 20)
    record.add("equal")
    assert record.next(4) == Turn(3, 4, 20), "the whole table was equal since"


def test_a_part_that_an_early_version_found_different_begins_behind_the_part_before(
    record: Record,
) -> None:
    record.add("equal", 1, 4, early=True)
    for _ in range(2):
        record.add("different", 2, 4, early=True)
        assert record.next(4) == Turn(2, 4, 10)
        record.add("equal")
    record.add("different", 2, 4, early=True)
    assert record.next(4) == Turn(2, 4, 10)
    assert record.next(4, goes_on=True) == Turn(3, 4, 20)


def test_a_part_that_could_not_be_compared_keeps_its_turn(record: Record) -> None:
    record.add("equal", 1, 4)
    record.add("not compared")
    assert record.next(4) == Turn(2, 4, 10)


def test_a_table_that_was_never_compared_begins_with_the_first_part(record: Record) -> None:
    record.add("different", 1, 4)
    assert record.next(4).number == 1
    record.add("not compared", 1, 4)
    assert record.next(4) == record.next(4, goes_on=True) == Turn(1, 4)
    assert record.newest().share == Share(1, 4, 10, 0), "the comparison that was possible"
    assert record.next(3) == Turn(1, 3)


def test_a_part_keeps_its_turn_however_often_it_differs_or_is_not_compared(record: Record) -> None:
    record.add("equal", 1, 4)
    for found in ("different", "not compared", "different", "not compared"):
        record.add(found, 2, 4)
        assert record.next(4) == Turn(2, 4, 10)
    record.add("different")
    assert record.next(4) == Turn(2, 4, 10)
    record.add("equal")
    assert record.next(4) == Turn(2, 4, 10), "nothing was compared since that this could end"


def test_a_long_record_costs_no_more_than_a_short_one(record: Record) -> None:
    """Also where a table differs, or cannot be compared, in each run."""
    tables, opened = [_TABLE, "public.bad", "public.log", "public.quiet"], []
    record.add("equal", names=tables)
    for number in range(1, 13):
        share = Turn(number, 20, number * 10 - 10).done(number * 10)
        stuck = Turn(3, 20, 20).done(30)
        proofs = (
            _found(_TABLE, "equal", share),
            _found("public.bad", "different", stuck),
            _found("public.log", "not compared", stuck),
            _found("public.quiet", "equal", share),
        )
        record_proof(record.catalog, _NAMESPACE, Proof(_SLOT, "1", Lsn(16), proofs))
        turns = record.turns(20, tables)
        assert [turns[name].number for name in tables] == [number + 1, 3, 3, number + 1]
        assert turns["public.bad"] == Turn(3, 20, 20)
        opened.append(record.opened)
    assert opened == [opened[0]] * len(opened)
    assert opened[0][".parquet"] == 1
    record.turns(20, [*tables, "public.new"])
    assert record.opened[".parquet"] == 13, "a table that is verified for the first time"


def test_runs_of_another_cycle_are_not_read(record: Record) -> None:
    record.add("equal", 1, 2)
    for number in range(1, 9):
        record.add("equal", number, 20)
    assert record.next(2) == Turn(2, 2, 10)
    assert record.opened[".parquet"] == 1


def test_rows_that_somebody_deleted_do_not_count(record: Record) -> None:
    for number in (1, 2, 3):
        record.add("equal", number, 4)
    table = record.catalog.load_table(f"{_NAMESPACE}.pgoutput_proofs")
    table.delete("share_number = 3")
    assert record.next(4) == Turn(3, 4, 20)


def test_a_difference_stays_until_all_was_equal(record: Record) -> None:
    record.add("different")
    record.add("equal", 1, 4)
    assert record.newest().is_equal is False, "the difference may be in another part"
    record.add("not compared")
    assert record.newest().is_equal is False
    for number in (2, 3, 4):
        assert record.newest().is_equal is False
        record.add("equal", number, 4)
    assert record.newest().is_equal is True


def test_a_part_of_another_cycle_has_other_keys(record: Record) -> None:
    record.add("different", 3, 4)
    record.add("equal", 3, 10)
    assert record.newest().is_equal is False
    record.add("equal")
    record.add("not compared")
    assert record.newest().is_equal is None, "the difference is gone"


def test_a_whole_cycle_of_another_length_covers_a_difference(record: Record) -> None:
    record.add("different", 9, 10)
    for number in (1, 2):
        record.add("equal", number, 2)
    assert record.newest().is_equal is True


def test_a_table_is_covered_when_a_cycle_is_complete(record: Record) -> None:
    record.add("equal", 1, 2)
    assert record.newest().covered_since is None
    record.add("equal", 2, 2)
    covered = record.newest().covered_since
    assert covered is not None
    assert covered < record.newest().verified_at, "as old as its oldest part"
    record.add("equal", 1, 2)
    later = record.newest().covered_since
    assert later is not None
    assert later > covered
    record.add("equal")
    assert record.newest().covered_since == record.newest().verified_at


def test_the_newest_proofs_of_a_long_record_cost_no_more_than_those_of_a_short_one(
    record: Record,
) -> None:
    """A table that was compared in whole, one in two parts, and a change log."""
    tables, opened = [_TABLE, "public.parts", "public.log"], []
    for number in range(12):
        proofs = (
            _found(_TABLE, "equal", None),
            _found("public.parts", "equal", Turn(number % 2 + 1, 2).done(number * 10)),
            TableProof("public.log", "lake.log", not_compared=IS_A_LOG),
        )
        record_proof(record.catalog, _NAMESPACE, Proof(_SLOT, "1", Lsn(16), proofs))
        CountedFiles.opened.clear()
        newest = newest_proofs(record.catalog, _NAMESPACE, _SLOT, tables)
        opened.append(CountedFiles.opened[".parquet"])
        assert newest == newest_proofs(record.catalog, _NAMESPACE, _SLOT)
        time.sleep(0.001)
    assert opened == [2, *([2] * 11)]
    CountedFiles.opened.clear()
    found = newest_proofs(record.catalog, _NAMESPACE, _SLOT, [*tables, "public.new"])
    assert found == newest
    assert CountedFiles.opened[".parquet"] >= 12, "a table that was never verified"


def test_verifications_of_another_pipeline_do_not_count(record: Record) -> None:
    record.add("equal")
    record_proof(
        record.catalog,
        _NAMESPACE,
        Proof("other", "1", Lsn(32), (_found(_TABLE, "different", None),)),
    )
    assert record.newest().is_equal
    assert record.newest().lsn == Lsn(16)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 6))]
)
def test_whoever_stops_reading_early_sees_what_all_of_the_record_says(
    record: Record, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_provider_pgoutput.proof.record._ROWS_ONE_BY_ONE", 10)
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    for _ in range(15):
        of = chance.choice([0, 1, 2, 3])
        number = chance.randint(1, of) if of else None
        record.add(chance.choices(["equal", "different", "not compared"], (6, 2, 2))[0], number, of)
        record.newest()


def test_rows_that_somebody_wrote_again_hide_no_newer_verification(record: Record) -> None:
    """A delete of some rows writes the others of their file again, in the newest manifest."""
    for found in ("equal", "equal"):
        record.add(found)
    table = record.catalog.load_table((_NAMESPACE, PROOFS_TABLE))
    rows = table.scan().to_arrow()
    table.overwrite(rows)
    record.add("different")
    table.refresh()
    second = max(rows["verified_at"].to_pylist())
    table.delete(f"verified_at < '{second.isoformat()}'")
    now = table.current_snapshot()
    assert now is not None
    newest = max(now.manifests(table.io), key=lambda each: each.sequence_number or 0)
    assert newest.added_snapshot_id == now.snapshot_id, (
        "an order by numbers alone would begin there"
    )
    assert record.newest().is_equal is False
