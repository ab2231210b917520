"""A key of the user's choice (``key_columns``) with NULL in it at the source, brought by a copy.

What is not here: values that their type in the lake does not hold (``tests/apply/rows/test_quarantine.py``).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.checkpoint import QUARANTINE_TABLE
from airflow_provider_pgoutput.errors import ValueRefused
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG
from tests.conformance.test_tables_set_aside import aside

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline

SOURCE = (
    "CREATE TABLE t (a int PRIMARY KEY, b int UNIQUE)",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "CREATE TABLE u (a int PRIMARY KEY, b int)",
    "INSERT INTO t VALUES (1, 1), (2, NULL), (3, NULL)",
    "INSERT INTO u VALUES (1, NULL)",
    "CREATE PUBLICATION p FOR TABLE t, u",
)


def test_a_copied_row_without_a_key_refuses_its_table(pipeline: Pipeline) -> None:
    answer = {"on_table_refused": "fail"}
    pipeline.capture_options.update(answer, key_columns={"public.t": ("b",)})
    pipeline.plan_options.update(answer)
    tables = Tables(pipeline)
    with pytest.raises(ValueRefused) as refused:
        tables.run(*SOURCE)
    assert (refused.value.table, refused.value.column) == ("public.t", "b")
    answer["on_table_refused"] = "set_aside"
    pipeline.capture_options.update(answer)
    pipeline.plan_options.update(answer)
    tables.run()
    assert {name: each.refusal.error for name, each in aside(pipeline).items()} == {
        "t": "ValueRefused"
    }
    tables.assert_equal("u")
    tables.run("UPDATE t SET b = a", "INSERT INTO u VALUES (2, 2)", copy_tables=("public.t",))
    assert aside(pipeline) == {}
    tables.assert_equal("t", "u")
    # The table is followed when such a row comes and is copied.
    tables.run("INSERT INTO t VALUES (4, NULL)", "UPDATE u SET b = 7", copy_tables=("public.t",))
    assert list(aside(pipeline)) == ["t"]
    tables.assert_equal("u")


def test_a_copied_row_without_a_key_goes_to_the_quarantine(pipeline: Pipeline) -> None:
    pipeline.capture_options.update(key_columns={"public.t": ("b",)})
    pipeline.plan_options.update(on_row_refused="quarantine")
    tables = Tables(pipeline)
    tables.run(*SOURCE)
    assert tables.lake_rows("t") == Counter([("1", "1")])
    assert _noted(pipeline) == Counter(['{"b":null}', '{"b":null}'])
    tables.assert_equal("u")
    # All values come, and a key with them.
    tables.run("UPDATE t SET b = 2 WHERE a = 2")
    assert tables.lake_rows("t") == Counter([("1", "1"), ("2", "2")])
    tables.run("DELETE FROM t WHERE a = 3", copy_tables=("public.t",))
    tables.assert_equal("t", "u")
    assert _noted(pipeline) == Counter()


def _noted(pipeline: Pipeline) -> Counter[str]:
    """The keys of the entries in the quarantine."""
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    found = catalog.load_table((pipeline.namespace, QUARANTINE_TABLE)).scan().to_arrow()
    return Counter(found.column("key").to_pylist())
