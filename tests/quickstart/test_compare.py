"""The comparison sees every difference: a value, a duplicate, a NULL, a row too many or too few."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quickstart.compare import compare_rows

SCHEMA = pa.schema([("n", pa.int32()), ("word", pa.string())])


def _rows(*rows: tuple[int | None, str | None]) -> pa.Table:
    return pa.Table.from_pylist([{"n": n, "word": word} for n, word in rows], schema=SCHEMA)


def test_equal_rows_in_another_order_with_other_arrow_types_are_equal() -> None:
    lake = _rows((None, None), (2, "b"), (2, "b")).append_column("_pgoutput_seq", [[1, 2, 3]])
    lake = lake.set_column(1, "word", lake["word"].cast(pa.large_string()))
    found = compare_rows("t", _rows((2, "b"), (None, None), (2, "b")), lake)
    assert found.is_equal
    assert (found.source_rows, found.lake_rows) == (3, 3)


@pytest.mark.parametrize(
    ("lake", "missing", "surplus"),
    [
        (_rows((1, "a")), 1, 0),
        (_rows((1, "a"), (2, "b"), (2, "b")), 0, 1),
        (_rows((1, "a"), (2, "c")), 1, 1),
        (_rows((1, "a"), (2, None)), 1, 1),
        (_rows(), 2, 0),
    ],
)
def test_a_difference_is_counted_on_its_side(lake: pa.Table, missing: int, surplus: int) -> None:
    found = compare_rows("t", _rows((1, "a"), (2, "b")), lake)
    assert not found.is_equal
    assert (found.missing, found.surplus) == (missing, surplus)
