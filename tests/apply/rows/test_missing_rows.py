"""A change of a row that the lake lacks is refused, and the table stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.errors import RowMissing
from tests.apply.build import Source, column
from tests.apply.drivers import loaded, name_of
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Relation


@pytest.mark.parametrize("toasted", [{"c": 1}, {"a": 9}])
def test_a_partial_update_of_a_row_that_is_not_there(
    spark: SparkSession, source: Source, table: Relation, toasted: dict[str, int]
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 2")
    head = loaded(spark, table).head
    table.update(a_is(2), toasted)
    with pytest.raises(RowMissing, match="copy the table again") as raised:
        apply_batch(spark, source.stage())
    assert raised.value.table == "public.t"
    assert loaded(spark, table).head == head


def test_a_deleted_row_without_a_key_that_is_not_there(spark: SparkSession, source: Source) -> None:
    full = source.table("f", (column("a"),), identity="f")
    full.insert(1)
    full.insert(2)
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(full).sql} WHERE a = 2")
    full.delete(a_is(2))
    with pytest.raises(RowMissing):
        apply_batch(spark, source.stage())
