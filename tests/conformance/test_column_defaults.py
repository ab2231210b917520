"""Defaults of added columns that are lists, maps or structs: Iceberg knows none, so rows have them."""

from __future__ import annotations

import logging
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import ValueRefused
from tests.conformance.one_table import begun

if TYPE_CHECKING:
    from tests.conformance.one_table import Lake
    from tests.conformance.pipeline import Pipeline


#: By column: its type and default, and what every row shows in it.
DEFAULTS = {
    "words": (
        r"""text[] DEFAULT ARRAY['a', E'b,"c''\\`$\{', NULL, '']""",
        ["a", "b,\"c'\\`${", None, ""],
    ),
    "days": ("date[] DEFAULT '{2024-02-29,0001-01-01}'", [date(2024, 2, 29), date(1, 1, 1)]),
    "sums": ("numeric(6,2)[] DEFAULT '{1.50,NULL}'", [Decimal("1.50"), None]),
    "bits": (r"bytea[] DEFAULT ARRAY['\x00ff'::bytea]", [b"\x00\xff"]),
    "flags": ("bool[] DEFAULT '{t,f}'", [True, False]),
    "none": ("int[] DEFAULT '{}'", []),
    "pairs": ("""hstore DEFAULT 'k=>v, "it''s"=>NULL'""", {"k": "v", "it's": None}),
    "no_pairs": ("hstore DEFAULT ''", {}),
    "place": ("""place DEFAULT ROW(1, 'it''s "x"')""", (1, 'it\'s "x"')),
    "places": ("place[] DEFAULT ARRAY[ROW(NULL, 'x')::place, NULL]", [(None, "x"), None]),
    "vector": ("vector(2) DEFAULT '[1.5,-2]'", [1.5, -2.0]),
}


def added(lake: Lake) -> dict[str, object]:
    """Add the columns; what every row shows in those whose type the server has."""
    lake.execute("CREATE EXTENSION hstore", 'CREATE TYPE place AS (n int, "it\'s" text)')
    has_vectors = lake.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
    if has_vectors:
        lake.execute("CREATE EXTENSION vector")
    there = {name: both for name, both in DEFAULTS.items() if name != "vector" or has_vectors}
    columns = ", ".join(f"ADD {name} {default}" for name, (default, _) in there.items())
    lake.execute("INSERT INTO t VALUES (4, 40, 400)", f"ALTER TABLE t {columns}")
    return {name: shown for name, (_, shown) in there.items()}


@pytest.mark.parametrize("format_version", [2, 3])
def test_older_rows_show_them(pipeline: Pipeline, format_version: int) -> None:
    pipeline.plan_options["format_version"] = format_version
    pipeline.capture_options["type_options"] = {"composite": "struct"}
    lake = begun(pipeline)
    shown = added(lake)
    # Rows of before the columns, in the same batch and in the target, and rows of after them.
    lake.run("INSERT INTO t(id) VALUES (5)", "UPDATE t SET a = 11 WHERE id = 1")
    assert lake.table().format_version == format_version
    assert lake.rows("id", *shown) == [(number, *shown.values()) for number in range(1, 6)]
    lake.run("UPDATE t SET words = NULL WHERE id = 2", "DELETE FROM t WHERE id = 3")
    assert lake.rows("id", "words") == [
        (number, None if number == 2 else shown["words"]) for number in (1, 2, 4, 5)
    ]
    assert lake.agrees("id", "a", "b")


def test_one_that_no_list_holds_is_null_or_refused(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """Two dimensions; an insert since then has its own value in the side table."""
    lake.execute("ALTER TABLE t ADD c int[] DEFAULT '{{1,2},{3,4}}'")
    lake.execute("INSERT INTO t VALUES (4, 40, 400, '{5}')")
    with pytest.raises(ValueRefused, match="older rows show"):
        lake.run(value_policy={"default": "fail"})
    lake.run()
    assert lake.rows("id", "c") == [(1, None), (2, None), (3, None), (4, [5])]
    (warning,) = [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.WARNING and "older rows show" in each.getMessage()
    ]
    assert "public.t" in warning
    assert "column c" in warning
