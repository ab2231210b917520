"""The pages of scenarios are what the scenarios say, and name tests that exist."""

from __future__ import annotations

from tests import evidence
from tests.conformance import page


def test_the_pages_are_up_to_date() -> None:
    for path, text in page.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run: python -m tests.conformance.page"


def test_every_test_that_the_pages_name_exists() -> None:
    assert page.PAGE_OF_TESTS in evidence.PAGES
    for document in evidence.PAGES:
        named = evidence.named(document.read_text(encoding="utf-8"))
        assert named, document
        for path, function in named:
            source = (evidence.ROOT / path).read_text(encoding="utf-8")
            assert not function or f"def {function}(" in source, (
                f"{document.name}: {path}::{function}"
            )
