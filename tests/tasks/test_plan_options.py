"""Options of a plan in each form that a template gives them; what a plan refuses is in ``tests/batch``."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.tasks.plan_options import plan_fields, table_options


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        (None, {}),
        ({"drop_columns": "False"}, {"drop_columns": False}),
        ({"drop_columns": "true"}, {"drop_columns": True}),
        ('{"drop_columns": true}', {"drop_columns": True}),
        ({"parallel_tables": "4"}, {"parallel_tables": 4}),
        ({"tag_retention_days": "30"}, {"tag_retention_days": 30}),
        ({"tag_retention_days": "None"}, {}),
        ({"format_version": "3"}, {"format_version": 3}),
        ({"write_mode": " copy-on-write "}, {"write_mode": "copy-on-write"}),
        ({"keep_retyped_columns": "true"}, {"keep_retyped_columns": True}),
    ],
)
def test_options_mean_what_their_text_says(given: Any, meaning: dict[str, Any]) -> None:
    assert plan_fields(given) == meaning


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drop_columns": "perhaps"}, "plan_options.drop_columns is neither"),
        ({"parallel_tables": "four"}, "plan_options.parallel_tables is not a whole number"),
        ({"tag_retention_days": "-1"}, "plan_options.tag_retention_days is not a whole number"),
        ({"write_mode": ""}, "plan_options.write_mode is missing"),
        ({"no_such": 1}, "option that does not exist: no_such"),
        # These are arguments, or the operator's own.
        ({"mode": "upsert"}, "option that does not exist: mode"),
        ({"maintenance": {}}, "option that does not exist: maintenance"),
    ],
)
def test_what_is_no_option_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        plan_fields(given)


@pytest.mark.parametrize(
    ("given", "meaning"),
    [
        ({}, TableOptions()),
        ('{"mode": "upsert"}', TableOptions(mode="upsert")),
        ({"target": "", "keep_retyped_columns": "None"}, TableOptions()),
        ({"partitioned_by": " region "}, TableOptions(partitioned_by=("region",))),
        ({"partitioned_by": "bucket(4, id)"}, TableOptions(partitioned_by=("bucket(4, id)",))),
        ({"partitioned_by": '["a", "b"]'}, TableOptions(partitioned_by=("a", "b"))),
        ({"partitioned_by": ""}, TableOptions()),
        ({"properties": {"a": 1, "b": True}}, TableOptions(properties={"a": "1", "b": "true"})),
    ],
)
def test_options_of_a_table_mean_what_their_text_says(given: Any, meaning: TableOptions) -> None:
    assert table_options({"public.t": given}) == {"public.t": meaning}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, r"table_options\[public\.t\] is not a mapping"),
        ({"no_such": 1}, r"table_options\[public\.t\] has an option that does not exist: no_such"),
        ({"properties": 3}, r"table_options\[public\.t\]\.properties is not a mapping"),
        ({"partitioned_by": 3}, r"table_options\[public\.t\]\.partitioned_by is not a list"),
    ],
)
def test_what_is_no_option_of_a_table_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        table_options({"public.t": given})
