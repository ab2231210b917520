"""The pages of scenarios are what the scenarios say, and name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance import page

_GUARANTEES = page.PAGE.parents[1] / "explanation" / "guarantees.md"


def test_the_pages_are_up_to_date() -> None:
    for path, text in page.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m tests.conformance.page"


def test_every_test_that_the_pages_name_exists() -> None:
    root = Path(page.__file__).resolve().parents[2]
    for document in (page.PAGE_OF_TESTS, _GUARANTEES):
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)", document.read_text(encoding="utf-8"))
        assert named, document
        for path, function in named:
            source = (root / path).read_text(encoding="utf-8")
            assert f"def {function}(" in source, f"{document.name}: {path}::{function}"
