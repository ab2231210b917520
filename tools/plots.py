"""Plots of what the benchmark measured, as SVG: ``python -m tools.pictures`` draws those of the pages.

They are drawn from the JSON that ``make bench`` writes. ``docs/internals/figures.json`` is kept, in the same
form: figures of two tables of the pages.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any, Final

FIGURES: Final = Path(__file__).resolve().parents[1] / "docs" / "internals" / "figures.json"
#: Readers by their names in the JSON, and what the plot calls them.
READERS: Final = {
    "server": "server alone: decodes, sends nothing",
    "sql": "stage task",
    "pg_recvlogical": "pg_recvlogical: receives and drops",
}
_LEFT: Final = 250
_LONGEST: Final = 380
_BAR: Final = 14
_GAP: Final = 14
_TOP: Final = 74
_STYLE: Final = (
    "text{font:13px sans-serif;fill:#333}.name{text-anchor:end}.value{font-size:11px}"
    ".a{fill:#b9b2a0}.b{fill:#4a7ab5}.c{fill:#d08a5a}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.a{fill:#7a745f}.b{fill:#6f9fd8}.c{fill:#c98a60}}"
)
_COLOURS: Final = ("a", "b", "c")


def read(path: Path = FIGURES) -> dict[str, Any]:
    """What a benchmark wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def bars(title: str, legend: list[str], groups: dict[str, list[tuple[float, str]]]) -> str:
    """Horizontal bars from zero, in groups; the longest one has the whole width.

    :param legend: a name for each bar of a group, in order.
    :param groups: for each group its bars: value, and the text at the bar's end.
    """
    longest = max(value for group in groups.values() for value, _ in group)
    of_group = len(legend) * _BAR + _GAP
    height = _TOP + len(groups) * of_group
    drawn = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" width="760"'
            f' height="{height}" role="img">'
        ),
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="10" y="20">{escape(title)}</text>',
    ]
    for number, name in enumerate(legend):
        x = 10 + number * 250
        drawn.append(f'<rect class="{_COLOURS[number]}" x="{x}" y="36" width="12" height="12"/>')
        drawn.append(f'<text class="value" x="{x + 18}" y="46">{escape(name)}</text>')
    for place, (name, group) in enumerate(groups.items()):
        top = _TOP + place * of_group
        middle = top + len(group) * _BAR / 2 + 4
        drawn.append(f'<text class="name" x="{_LEFT - 8}" y="{middle:g}">{escape(name)}</text>')
        for number, (value, text) in enumerate(group):
            y, width = top + number * _BAR, max(1.0, value / longest * _LONGEST)
            drawn.append(
                f'<rect class="{_COLOURS[number]}" x="{_LEFT}" y="{y}" width="{width:.1f}"'
                f' height="{_BAR - 2}"/>'
            )
            drawn.append(
                f'<text class="value" x="{_LEFT + width + 6:.1f}" y="{y + 10}">{escape(text)}</text>'
            )
    return "\n".join([*drawn, "</svg>\n"])


def _rate(measured: dict[str, Any] | None) -> tuple[float, str]:
    if measured is None:
        return 0.0, "not measured"
    return measured["rows_per_s"], f"{measured['rows_per_s'] / 1000:,.0f} k/s"


def staging(result: dict[str, Any] | None = None) -> str:
    """Row changes in a second, by workload and reader."""
    result = result or read()
    groups = {
        f"{name}: {case['what']}" if "what" in case else name: [
            _rate(case.get(reader)) for reader in READERS
        ]
        for name, case in result["staging"].items()
    }
    return bars(
        "Staging: row changes in a second (longer is better)", list(READERS.values()), groups
    )


def apply(result: dict[str, Any] | None = None) -> str:
    """Seconds of an apply beside those of a bare MERGE."""
    result = result or read()
    groups = {
        case.get("what", name): [
            (case["merge_seconds"], f"{case['merge_seconds']:.1f} s"),
            (case["seconds"], f"{case['seconds']:.1f} s"),
        ]
        for name, case in result["apply"].items()
    }
    return bars(
        "Apply to a table of 100 M rows, format version 3: seconds (shorter is better)",
        ["bare MERGE of the folded rows", "apply"],
        groups,
    )
