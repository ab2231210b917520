"""What older rows show in a column, as SQL; what becomes of it: ``conformance/test_column_defaults.py``."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.apply.schema.defaults import missing_value
from airflow_provider_pgoutput.errors import TableRefused
from tests.apply.build import column


@pytest.mark.parametrize(
    ("lake_type", "text", "expected"),
    [
        ("list<string>", None, "CAST(NULL AS ARRAY<STRING>)"),
        ("list<string>", "{}", "CAST(array() AS ARRAY<STRING>)"),
        ("list<string>", "[]", "CAST(array() AS ARRAY<STRING>)"),
        ("list<binary>", r'["\\x00ff"]', "CAST(array(unhex('00ff')) AS ARRAY<BINARY>)"),
        ("map<string, string>", "", "CAST(map() AS MAP<STRING,STRING>)"),
        ("map<string, string>", "{}", "CAST(map() AS MAP<STRING,STRING>)"),
        (
            "list<string>",
            r'["it\u0027s \\ "]',
            r"CAST(array(CAST('it\'s \\ ' AS STRING)) AS ARRAY<STRING>)",
        ),
        (
            'struct<"it\'s": int>',
            "[null]",
            r"CAST(named_struct('it\'s', CAST(NULL AS INT)) AS STRUCT<`it's`: INT>)",
        ),
    ],
)
def test_parts_are_literals(lake_type: str, text: str | None, expected: str) -> None:
    assert missing_value(column("c", lake_type, text), "public.t") == expected


@pytest.mark.parametrize(
    ("lake_type", "text"),
    [
        ("list<string>", "{a}"),
        ("list<string>", '{"a": "b"}'),
        ("list<float>", "[1,2]"),
        ("map<string, string>", '"a"=>"b"'),
        ("struct<a: int>", "(1)"),
        ("struct<a: int, b: int>", '["1"]'),
    ],
)
def test_the_text_of_a_batch_of_before_is_refused_by_name(lake_type: str, text: str) -> None:
    with pytest.raises(TableRefused, match="staged again") as refused:
        missing_value(column("c", lake_type, text), "public.t")
    assert (refused.value.table, refused.value.column) == ("public.t", "c")
    assert text not in str(refused.value)
