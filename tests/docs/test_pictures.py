"""The pictures of the pages are those that the program draws, and each is on a page."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

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
