"""The page about types says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_pgoutput.capture.types.mapping import BUILTIN_TYPES, type_name
from tools.types_page import document_text, spark_type

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "types.md"


def test_the_page_is_what_the_code_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == document_text(), (
        "run: python -m tools.types_page > docs/reference/types.md"
    )


@pytest.mark.parametrize("oid", [16, 20, 25, 114, 1043, 1082, 1114, 1184, 1700, 2950, 3802, 3904])
def test_the_page_names_the_common_types(oid: int) -> None:
    assert oid in BUILTIN_TYPES
    assert f"\n| `{type_name(oid, -1, {})}` | " in document_text()


def test_spark_names_of_nested_types() -> None:
    assert spark_type("list<list<decimal(12, 2)>>") == "ARRAY<ARRAY<DECIMAL(12, 2)>>"
    assert spark_type("list<map<string, string>>") == "ARRAY<MAP<STRING, STRING>>"
