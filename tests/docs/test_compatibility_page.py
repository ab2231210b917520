"""The page of versions has a row for each cell of the matrix, with its versions, and one for each lake."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from tests.lakes.lakes import LAKES
from tests.matrix.cells import CELLS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "compatibility.md"


def _rows(chapter: str) -> dict[str, list[str]]:
    """The rows of a table whose first column has a name in backticks."""
    return {
        row[0].strip("`"): row[1:]
        for line in chapter.splitlines()
        if line.startswith("| `")
        for row in [[each.strip() for each in line.strip("|").split("|")]]
    }


def _is_result(result: str, date: str) -> bool:
    return (result, date) == ("not run yet", "") or bool(
        re.fullmatch(r"equal, \d+ s|in part.*: .* equal", result)
        and re.fullmatch(r"\d{4}-\d{2}-\d{2}", date)
    )


def test_the_page_has_the_rows_of_the_matrix() -> None:
    rows = _rows(PAGE.read_text(encoding="utf-8").partition("\n## ")[0])
    assert list(rows) == [cell.name for cell in CELLS]
    for cell in CELLS:
        airflow, *versions, result, date = rows[cell.name]
        # A row that was run names the version that was installed.
        assert fnmatchcase(airflow, cell.airflow)
        assert versions == [cell.python, str(cell.postgres), cell.spark]
        assert _is_result(result, date)


def test_the_page_has_a_row_for_each_lake() -> None:
    chapter = PAGE.read_text(encoding="utf-8").partition("\n## Catalogs and object stores\n")[2]
    rows = _rows(chapter.partition("\n## ")[0])
    assert list(rows) == list(LAKES)
    for *_, result, date in rows.values():
        assert _is_result(result, date)


def test_the_readme_names_the_versions_that_were_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (3\.\d+\.[^|]*) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", readme, re.M)
    named = [[set(re.findall(r"[\d.]+", cell)) for cell in row] for row in found]
    for row in _rows(PAGE.read_text(encoding="utf-8").partition("\n## ")[0]).values():
        *versions, spark, result, _ = row
        wanted = [*versions, spark.rpartition(".")[0]]
        if result.startswith("equal"):
            assert any(
                all(one in cell for one, cell in zip(wanted, each, strict=True)) for each in named
            ), row
