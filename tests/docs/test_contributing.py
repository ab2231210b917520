"""CONTRIBUTING.md and the pages of decisions name files that exist, and the recipes name enough of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
DECISIONS = ROOT / "docs" / "internals" / "decisions"
PAGES = sorted(DECISIONS.glob("*.md"))
_NAMED_FILE = re.compile(r"`([\w./]+\.(?:py|md|toml|lock))`")


def missing(text: str, *folders: Path) -> list[str]:
    """The files in backticks that are in none of the folders."""
    named = _NAMED_FILE.findall(text)
    return [each for each in named if not any((folder / each).exists() for folder in folders)]


def test_every_file_in_contributing_exists() -> None:
    assert missing(CONTRIBUTING.read_text(), ROOT) == []


@pytest.mark.parametrize("recipe", ["A new type", "A new argument", "A new refusal"])
def test_a_recipe_names_its_files(recipe: str) -> None:
    section = CONTRIBUTING.read_text().partition(f"\n## {recipe}\n")[2].partition("\n## ")[0]
    named = _NAMED_FILE.findall(section)
    assert any(each.startswith("airflow_provider_pgoutput/") for each in named)
    assert any(each.startswith("tests/") for each in named)


@pytest.mark.parametrize("page", [each.name for each in PAGES])
def test_every_file_in_a_decision_exists(page: str) -> None:
    text = (DECISIONS / page).read_text()
    assert missing(text, ROOT, ROOT / "airflow_provider_pgoutput") == []


@pytest.mark.parametrize("page", [each.name for each in PAGES if each.name != "README.md"])
def test_a_decision_has_its_parts_and_is_in_the_index(page: str) -> None:
    headings = re.findall(r"^## (.*)$", (DECISIONS / page).read_text(), re.MULTILINE)
    assert headings[0] == "Question"
    assert headings[1] in {"What was seen", "What was measured"}
    assert headings[2:] == ["Decision", "What it costs", "What would change our mind"]
    assert f"({page})" in (DECISIONS / "README.md").read_text()
