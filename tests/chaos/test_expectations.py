"""What the judge of random programs expects: without a server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.histories import wrong_versions
from tests.chaos.in_lake import Column, Kind, Way
from tests.chaos.oracle import LakeRows, SourceTable

_SOURCE = SourceTable(
    "public", "t", 1, ("p",), [Column("id", Kind("int4", lake="int"), "id")], ("id",)
)


def _history(*versions: tuple[int, int, int | None, int]) -> LakeRows:
    """A history of versions: key, first LSN, last LSN, number in the transaction."""
    keys, began, ended, numbers = (list(each) for each in zip(*versions, strict=True))
    columns: dict[str, list[Any]] = {
        "id": keys,
        "_pgoutput_valid_from_lsn": began,
        "_pgoutput_valid_to_lsn": ended,
        "_pgoutput_is_current": [each is None for each in ended],
        "_pgoutput_seq": numbers,
    }
    return LakeRows(dict.fromkeys(columns, "long"), columns, len(keys))


def test_versions_that_follow_one_another_are_right() -> None:
    lake = _history(
        (1, 10, 20, 0), (1, 20, 20, 1), (1, 20, None, 2), (2, 5, 9, 0), (2, 30, None, 0)
    )
    assert wrong_versions(_SOURCE, lake, by_key=True) == []


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        (((1, 10, 25, 0), (1, 20, None, 0)), "valid at once"),
        (((1, 10, None, 0), (1, 20, None, 0)), "valid at once"),
        (((1, 10, 9, 0),), "ends before it begins"),
        (((1, 10, 10, 0), (1, 10, None, 0)), "two versions of one position"),
    ],
)
def test_versions_that_cannot_be_are_found(
    versions: tuple[tuple[int, int, int | None, int], ...], words: str
) -> None:
    (found,) = wrong_versions(_SOURCE, _history(*versions), by_key=True)
    assert words in found


def test_a_version_that_is_current_and_ended_is_found() -> None:
    lake = _history((1, 10, 20, 0))
    lake.columns["_pgoutput_is_current"] = [True]
    assert wrong_versions(_SOURCE, lake, by_key=True)


def test_a_slice_of_a_table_has_the_rows_with_its_texts() -> None:
    lake = LakeRows({"id": "int", "of": "string"}, {"id": [1, 2, 3], "of": ["a", "b", "a"]}, 3)
    assert list(lake.only({"of": "a"}).rows(["id"])) == [(1,), (3,)]


@pytest.mark.parametrize(
    ("mask", "masked"),
    [
        # Test case 2 of https://www.rfc-editor.org/rfc/rfc4231
        ("hash", b"5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        ("redact", b"***"),
        ("truncate(2)", b"wh"),
        ("null", None),
        ("", b"what do ya want for nothing?"),
    ],
)
def test_a_mask_of_a_text(mask: str, masked: bytes | None) -> None:
    way = Way(secret="Jefe")
    assert way.masked(b"what do ya want for nothing?", mask) == masked
