"""Which tests the pages of evidence name: the scenarios, and what is promised.

``make test`` runs them, and all that need neither Spark nor Airflow. The others get the mark ``further``.
Tests of a minute that the pages name get a mark by hand: ``slow`` if continuous integration runs them, else
``further``.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The pages that say which test shows what.
PAGES = (
    ROOT / "docs" / "internals" / "conformance_tests.md",
    ROOT / "docs" / "explanation" / "guarantees.md",
)


def named(text: str) -> set[tuple[str, str]]:
    """Files below the root, each with a function, or with an empty text if a page names the whole file."""
    return set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", text))


def named_by_pages() -> set[tuple[str, str]]:
    """What all pages of evidence name."""
    return set().union(*(named(page.read_text(encoding="utf-8")) for page in PAGES))
