"""Tables of several schemas get their names in the lake by a pattern: copies, changes, a new schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.conformance.many_tables import Tables

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline

_SHOPS = ("sales_eu", "sales_us")


def test_names_by_pattern(pipeline: Pipeline) -> None:
    tables = Tables(pipeline, logs=["sales_us.orders"])
    options = pipeline.plan_options
    options["target_names"] = {r"sales_(.*)\.orders": "orders"}
    tables.execute(
        "CREATE TABLE people(a int PRIMARY KEY, b text)",
        *(f"CREATE SCHEMA {shop}" for shop in _SHOPS),
        *(f"CREATE TABLE {shop}.orders(a int PRIMARY KEY, b text)" for shop in _SHOPS),
        *(f"INSERT INTO {shop}.orders VALUES (1, '{shop}'), (2, 'x')" for shop in _SHOPS),
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    # One name for two tables is refused before anything is written.
    with pytest.raises(ConfigurationError, match=r"Its target .*orders is also that of sales_"):
        tables.run()
    assert not any(pipeline.snapshot_ids().values())
    options["target_names"] = {r"sales_(.*)\.orders": "orders_{1}"}
    tables.run()

    def equal() -> None:
        tables.assert_equal("public.people")
        for shop in _SHOPS:
            target = f"orders_{shop.removeprefix('sales_')}"
            tables.assert_holds(
                f"{shop}.orders", tables.source_rows(f"{shop}.orders"), target=target
            )

    equal()
    tables.run(
        "INSERT INTO people VALUES (1, 'p')",
        *(f"UPDATE {shop}.orders SET b = 'y' WHERE a = 2" for shop in _SHOPS),
        "UPDATE sales_eu.orders SET a = 10 WHERE a = 1",
    )
    equal()
    # A schema that is made later gets its table by the same pattern.
    tables.run(
        "CREATE SCHEMA sales_uk",
        "CREATE TABLE sales_uk.orders(a int PRIMARY KEY, b text)",
        "INSERT INTO sales_uk.orders VALUES (1, 'uk')",
    )
    tables.assert_holds(
        "sales_uk.orders", tables.source_rows("sales_uk.orders"), target="orders_uk"
    )
    tables.assert_repeatable()
    # Another pattern would be another table without the old rows.
    options["target_names"] = {r"sales_(.*)\.orders": "{1}_orders"}
    tables.execute("INSERT INTO sales_eu.orders VALUES (3, 'z')")
    tables.refused(TableRefused, "until now it was written to")
    options["target_names"] = {r"sales_(.*)\.orders": "orders_{1}"}
    tables.run()
    equal()
