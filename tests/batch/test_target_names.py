"""Names of targets: by the rule, by option, and by pattern."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgoutput.batch.jobs import ApplyJob, TableOptions, job_from_json
from airflow_provider_pgoutput.errors import ConfigurationError

#: What a job must say.
WHERE: dict[str, Any] = {
    "manifest_uri": "m",
    "staging_uri": "s",
    "catalog_name": "lake",
    "namespace": "shop",
}


def job(target_names: dict[str, str], **options: TableOptions) -> ApplyJob:
    """A job as the driver reads it."""
    table_options = {f"public.{name}": each for name, each in options.items()}
    made = ApplyJob(**WHERE, target_names=target_names, table_options=table_options)
    found = job_from_json(made.to_json())
    assert found == made
    return made


@pytest.mark.parametrize(
    ("pattern", "template", "schema", "table", "target"),
    [
        (r"sales_(.*)\.orders", "orders_{1}", "sales_eu", "orders", "orders_eu"),
        (r"(.*)\.(.*)", "{2}_of_{1}", "sales", "orders", "orders_of_sales"),
        (r"(?P<shop>\w+)\.(?P<what>\w+)", "{what}__{shop}", "a", "b", "b__a"),
        (r"public\.(.*)", "raw_{1}", "public", "Odd name", "raw_Odd name"),
        (r".*", "{0}", "a", "b", "a.b"),
        # A group that took no part is empty.
        (r"(x_)?s\.(\w+)", "{1}{2}", "s", "t", "t"),
        # The whole name has to fit, and a dot is any character unless it is escaped.
        (r"sales\.order", "o", "sales", "orders", "sales__orders"),
        (r"sales.orders", "o", "sales", "orders", "o"),
        (r"sales\.orders", "o", "SALES", "orders", "SALES__orders"),
    ],
)
def test_the_name_of_a_target(
    pattern: str, template: str, schema: str, table: str, target: str
) -> None:
    assert job({pattern: template}).target_name(schema, table) == target


def test_the_first_pattern_that_fits_counts_and_an_option_goes_before_it() -> None:
    patterns = {r"public\.a.*": "first", r"public\.(.*)": "second_{1}"}
    found = job(patterns, ab=TableOptions(target="third"), ac=TableOptions(mode="change_log"))
    names = [found.target_name("public", name) for name in ("aa", "ab", "ac", "b")]
    assert names == ["first", "third", "first", "second_b"]
    assert found.target_name("other", "b") == "other__b"


@pytest.mark.parametrize(
    ("pattern", "template", "message"),
    [
        (r"sales_(.*\.orders", "o", "is no regular expression"),
        (r"sales\.orders", "o_{1}", r"groups that its pattern does not have: 1"),
        (r"(?P<shop>.*)\.t", "{store}", r"groups that its pattern does not have: store"),
        (r"(.*)\.t", "", "is no name of a table"),
        (r"(.*)\.t", "{1", "is no name of a table"),
        (r"(.*)\.t", "{{1}}", "is no name of a table"),
        (r"(.*)\.t", "{1.a}", "is no name of a table"),
    ],
)
def test_a_wrong_pattern_is_refused(pattern: str, template: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ApplyJob(**WHERE, target_names={pattern: template}).check()


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is empty for this table") as error:
        job({r"(.*)_?\.t": "{1}"}).target_name("", "t")
    assert error.value.table == ".t"
