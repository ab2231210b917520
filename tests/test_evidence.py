"""What the pages of evidence name, and which tests are left to ``make further``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import evidence


def test_functions_and_files_are_found() -> None:
    text = (
        "see `tests/apply/test_a.py::test_x[C01-one]` and `tests/faults/test_b.py`, not tests/c.py"
    )
    assert evidence.named(text) == {
        ("tests/apply/test_a.py", "test_x"),
        ("tests/faults/test_b.py", ""),
    }


@pytest.mark.slow
def test_what_no_page_names_and_what_takes_a_minute_is_left_out() -> None:
    """Both files need Spark. A page names all of the first one, but its random programs take a minute."""
    assert ("tests/apply/rows/test_quarantine.py", "") in evidence.named_by_pages()
    collected = _collected(
        "further and not exhaustive",
        "tests/apply/rows/test_quarantine.py",
        "tests/apply/test_replay.py",
    )
    assert collected
    named = [each for each in collected if "test_quarantine" in each]
    assert named
    assert all("test_random_programs" in each for each in named)


def _collected(marks: str, *files: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, *files]
    printed = subprocess.run(
        command, cwd=evidence.ROOT, capture_output=True, text=True, check=False
    )
    return [line for line in printed.stdout.splitlines() if "::" in line]
