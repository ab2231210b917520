"""Fixtures of the capture tests; the server comes from the suite's own conftest."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.capture.pipeline_support import Source

if TYPE_CHECKING:
    from pathlib import Path

_numbers = itertools.count(1)


@pytest.fixture
def source(postgres_database: str, tmp_path: Path) -> Source:
    """A table ``t`` published by ``p`` in an empty database, and a slot name that is free."""
    found = Source(postgres_database, f"capture_{next(_numbers)}", tmp_path / "staging")
    found.execute("CREATE TABLE t(a int PRIMARY KEY, b text)", "CREATE PUBLICATION p FOR TABLE t")
    return found
