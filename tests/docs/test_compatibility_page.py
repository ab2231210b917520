"""The page of versions has a row for each cell of the matrix, with the cell's own versions."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from tests.matrix.cells import CELLS

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"


def test_the_page_has_the_rows_of_the_matrix() -> None:
    rows = {
        row[0].strip("`"): row[1:]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
        for row in [[each.strip() for each in line.strip("|").split("|")]]
    }
    assert list(rows) == [cell.name for cell in CELLS]
    for cell in CELLS:
        airflow, *versions, result, date = rows[cell.name]
        # A row that was run names the version that was installed.
        assert fnmatchcase(airflow, cell.airflow)
        assert versions == [cell.python, str(cell.postgres), cell.spark]
        assert (result, date) == ("not run yet", "") or (
            re.fullmatch(r"equal, \d+ s|in part: .* equal", result)
            and re.fullmatch(r"\d{4}-\d{2}-\d{2}", date)
        )
