"""The pages of bad input, security, guarantees and the source name tests and errors that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgoutput import errors
from airflow_provider_pgoutput.capture.stream.options import StreamOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "bad_input.md").read_text()


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("reference/bad_input.md", 50),
        ("explanation/security.md", 8),
        ("how-to/postgresql.md", 5),
        ("explanation/guarantees.md", 70),
    ],
)
def test_every_test_in_the_page_exists(page: str, count: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", (ROOT / "docs" / page).read_text())
    assert len(named) >= count
    for path, name in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path}::{name}"


def test_every_error_in_the_page_exists() -> None:
    # What happens is the last column but that of the tests; the tables differ in what is before it.
    rows = [line.split("|")[-3] for line in PAGE.splitlines() if line.startswith("| ")]
    named = re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", " ".join(rows))
    assert len(named) > 40
    for name in named:
        assert hasattr(errors, name), name


def test_every_id_has_a_row_or_a_reason() -> None:
    table, _, reasons = PAGE.partition("## Faults of a copy")
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    in_rows = set(re.findall(r"B\d\d", " ".join(cells)))
    named = re.findall(r"B\d\d", reasons)
    assert in_rows.isdisjoint(named)
    assert in_rows | set(named) == {f"B{number:02}" for number in range(1, 39)}


def test_an_unknown_option_is_no_argument() -> None:
    options: dict[str, Any] = {"max_slot_size": 1}
    with pytest.raises(TypeError, match="max_slot_size"):
        StreamOptions(**options)
