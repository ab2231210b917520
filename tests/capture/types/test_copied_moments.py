"""Dates and timestamps are copied in a form of their own: they become what the stream's text becomes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

from airflow_provider_pgoutput.errors import ValueRefused
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

#: Infinite, or outside the years 1 to 9999, or just inside.
DATES = [
    "infinity",
    "-infinity",
    "0001-12-31 BC",
    "0001-01-01",
    "9999-12-31",
    "10000-01-01",
    "5874897-12-31",
    "4713-11-24 BC",
    "2000-01-01",
    "1970-01-01",
    "1969-12-31",
]
TIMES = [
    *(each for each in DATES if each != "5874897-12-31"),
    "9999-12-31 23:59:59.999999",
    "294276-12-31 23:59:59.999999",
    "0044-03-15 12:00:00.5 BC",
    "2024-02-29 12:34:56.789012",
]


def rejected(source: Source, manifest: Manifest) -> list[tuple[Any, ...]]:
    tables = [parquet.read_table(source.staging / each.path) for each in manifest.rejected_files]
    rows = [row for each in tables for row in each.to_pylist()]
    kept = ("key", "column_name", "raw_value")
    return sorted((tuple(str(row[name]) for name in kept) for row in rows), key=repr)


def test_copied_and_changed_moments_are_the_same(source: Source) -> None:
    listed = ", ".join(f"('{each}', '{each}')" for each in TIMES)
    values = f"(VALUES {listed}, (NULL, NULL), ('infinity', NULL)) v(x, y)"
    days = ", ".join(f"('{each}')" for each in DATES)
    fill = (
        "INSERT INTO m SELECT row_number() OVER (), x::timestamp, y::timestamptz, NULL"
        f" FROM {values}"
    )
    source.execute(
        "CREATE TABLE m(a int PRIMARY KEY, x timestamp, y timestamptz(6), z date)",
        "ALTER PUBLICATION p ADD TABLE m",
    )
    with_days = (
        "INSERT INTO m SELECT 100 + row_number() OVER (), NULL, NULL, d::date"
        f" FROM (VALUES {days}) v(d)"
    )
    source.execute(fill, with_days)
    first = source.stage()
    source.execute("DELETE FROM m", fill, with_days)
    second = source.stage(checkpoint=checkpoint_of(first))
    copied = sorted(source.copied(first, "public.m"), key=lambda row: row["a"])
    inserted = [row for row in source.changes(second, "public.m") if row["op"] == "I"]
    assert len(copied) == len(TIMES) + 2 + len(DATES)
    assert copied == [{name: row[name] for name in copied[0]} for row in inserted]
    kept = rejected(source, first)
    assert len(kept) > 10
    assert kept == rejected(source, second)
    with pytest.raises(ValueRefused):
        source.stage(
            checkpoint=checkpoint_of(second),
            copy_tables=["public.m"],
            value_policy={"timestamp": "fail"},
        )
