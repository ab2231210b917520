"""The pictures of the pages are those that the program draws, and each is on a page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tools import plots
from tools.pictures import FOLDER, PICTURES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_one_that_is_drawn(name: str) -> None:
    drawn = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == PICTURES[name](), "run python -m tools.pictures"
    assert ET.fromstring(drawn).tag.endswith("svg")  # noqa: S314 - our own file


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_on_a_page(name: str) -> None:
    pages = [each.read_text(encoding="utf-8") for each in (ROOT / "docs").rglob("*.md")]
    assert any(f"images/{name}.svg)" in page for page in pages)


def test_the_plots_show_the_figures_of_the_pages() -> None:
    result = plots.read()
    staging = (ROOT / "docs" / "explanation" / "performance.md").read_text(encoding="utf-8")
    section = staging.partition("\n### All workloads\n")[2]
    rows = re.findall(
        r"^\| (W\d)\b[^|]*\| ([\d,]+) k/s \| ([\d,]+) k/s \| ([\d,]+) k/s", section, re.M
    )
    assert [(name, *(int(each.replace(",", "")) for each in rest)) for name, *rest in rows] == [
        (
            name,
            *(
                round(case[each]["rows_per_s"] / 1000)
                for each in ("server", "pg_recvlogical", "sql")
            ),
        )
        for name, case in result["staging"].items()
    ]
    measurements = (ROOT / "docs" / "internals" / "measurements.md").read_text(encoding="utf-8")
    table = measurements.partition("\n## Apply\n")[2].partition("\n## ")[0]
    seconds = re.findall(r"^\| [^|]* \| ([\d.]+) s \| ([\d.]+) s \|", table, re.MULTILINE)
    assert [(float(one), float(other)) for one, other in seconds] == [
        (case["seconds"], case["merge_seconds"]) for case in result["apply"].values()
    ]


def test_a_plot_is_drawn_of_what_the_benchmark_writes() -> None:
    """Without the words of the kept figures, and with more that it measures."""
    reader = {"rows_per_s": 1000.0, "seconds": 2.0, "peak_mib": None}
    case = {"rows": 2000, "server": reader, "sql": reader, "sql_parallel_1": reader}
    result = {
        "staging": {"W1": {**case, "pg_recvlogical": reader}, "W2": case},
        "apply": {"random": {"seconds": 2.0, "merge_seconds": 4.0, "ratio_to_merge": 2.0}},
    }
    for drawn in (plots.staging(result), plots.apply(result)):
        assert ET.fromstring(drawn).tag.endswith("svg")  # noqa: S314 - our own text
