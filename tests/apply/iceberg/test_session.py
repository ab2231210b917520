"""The sessions of a job and of its tables: a new one opens the catalog anew, so there are few."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg import session
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import ABC, a_is

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.apply.build import Source

_SPLITS = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")


@pytest.mark.parametrize("parallel_tables", [1, 3])
def test_the_tables_of_a_batch_share_their_sessions(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
    parallel_tables: int,
) -> None:
    opened = []
    real = session.cloned

    def counted(base: SparkSession) -> SparkSession:
        opened.append(base)
        return real(base)

    monkeypatch.setattr(session, "cloned", counted)
    tables = [source.table(f"t{n}", ABC, key=("a",)) for n in range(7)]
    for number in (1, 2):
        for table in tables:
            table.insert(number, "x", 0)
            if number > 1:
                table.update(a_is(1), {"c": number})
        opened.clear()
        apply_batch(spark, replace(source.stage(), parallel_tables=parallel_tables))
        # One is the job's own.
        assert 2 <= len(opened) <= 1 + parallel_tables
    for table in tables:
        assert lake_rows(table) == source_rows(table)


def test_a_session_that_failed_is_used_again_with_other_settings(spark: SparkSession) -> None:
    sessions = session.Sessions(spark)
    with pytest.raises(ZeroDivisionError), sessions.of_table(dict.fromkeys(_SPLITS, "1000")) as one:
        raise ZeroDivisionError
    with sessions.of_table(dict.fromkeys(_SPLITS, "2000")) as again:
        assert again is one
        assert {again.conf.get(key) for key in _SPLITS} == {"2000"}
        with sessions.of_table({}) as beside:
            assert beside is not again
            assert beside.conf.get(_SPLITS[0]) == sessions.spark.conf.get(_SPLITS[0])
