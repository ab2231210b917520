"""B33: what the fold gives is proved before it is written, so no MERGE ever meets two rows with one key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.rows import apply_keyed
from airflow_provider_pgoutput.apply.rows.key_events import LIVE
from airflow_provider_pgoutput.apply.rows.segments import Segment
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.errors import BatchRefused, ValueRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT = Segment("public.t", (), (Column("id", 23, -1, "integer", "int"),), (0,), full=False)
COLUMNS = f"{staged.new(0)} int, {LIVE} boolean"


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ([(1, True), (2, True), (1, False)], BatchRefused, "two rows with one key"),
        ([(1, True), (None, True)], ValueRefused, "A row has no value in a key column"),
    ],
)
def test_rows_that_are_not_one_for_each_key_are_refused(
    spark: SparkSession, rows: list[tuple[int | None, bool]], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as refused:
        apply_keyed._prove(spark.createDataFrame(rows, COLUMNS), SEGMENT, ())
    assert "public.t" in str(refused.value)
    facts = apply_keyed._prove(spark.createDataFrame([(1, True), (2, False)], COLUMNS), SEGMENT, ())
    assert (facts.keys, facts.live) == (2, 1)
