"""Writes the results of ``python -m tests.engines`` into a page, between two marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quickstart.jars import ICEBERG_SPARK_RUNTIME
from tests.engines.lake import KINDS
from tests.engines.tables import TABLES

if TYPE_CHECKING:
    from datetime import date
    from pathlib import Path

    from tests.engines.__main__ import Result
    from tests.engines.lake import Kind

NAMES = {
    "spark": f"Spark with Iceberg {ICEBERG_SPARK_RUNTIME.version}",
    "pyiceberg": "pyiceberg",
    "duckdb": "DuckDB with its Iceberg extension",
    "chdb": "ClickHouse (chDB)",
    "polars": "Polars, native reader",
    "daft": "Daft",
    "trino": "Trino",
}
#: More tables are counted only.
_MOST_NAMES = 4
BEGIN, END = "<!-- make engines: begin -->", "<!-- make engines: end -->"


def write_page(page: Path, versions: dict[str, str], results: list[Result], day: date) -> None:
    """Replace what is between the marks."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} lacks the marks {BEGIN} and {END}.")
    page.write_text(f"{before}{BEGIN}\n{block(versions, results, day)}\n{END}{after}")


def block(versions: dict[str, str], results: list[Result], day: date) -> str:
    """The results as Markdown."""
    moments = ", ".join(dict.fromkeys(each.moment for each in results))
    each_table = f"Each of the {len(TABLES)} tables was read at these moments: {moments}."
    lines = [
        f"Read on {day.isoformat()}. {each_table}",
        "",
        f"| engine | {' | '.join(map(str, KINDS))} |",
        f"|---|{'---|' * len(KINDS)}",
    ]
    for engine, version in sorted(versions.items(), key=lambda each: [*NAMES].index(each[0])):
        cells = (_cell(engine, kind, results) for kind in KINDS)
        lines.append(f"| {NAMES[engine]}, {version} | {' | '.join(cells)} |")
    lines += ["", "The tables:", "", "| table | what is in it |", "|---|---|"]
    lines += [f"| `{each.name}` | {each.about} |" for each in TABLES]
    return "\n".join(lines)


def _cell(engine: str, kind: Kind, results: list[Result]) -> str:
    """All right, or what happened to which tables."""
    faults: dict[str, set[str]] = {}
    for each in results:
        if (each.engine, each.kind) == (engine, kind) and each.fault:
            faults.setdefault(each.fault.partition(":")[0], set()).add(f"`{each.table}`")
    said = [f"**{what}**: {_listed(sorted(names))}" for what, names in sorted(faults.items())]
    return "; ".join(said or ["right"])


def _listed(names: list[str]) -> str:
    return (
        ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} of {len(TABLES)} tables"
    )
