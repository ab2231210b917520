"""The door to an erasure: who may start it, the job that Spark gets, and what is left of the keys."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.jobs import (
    ErasedColumn,
    ErasedTable,
    ErasureJob,
    job_from_json,
)
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.shape import KnownColumn, Shape
from airflow_provider_pgoutput.errors import LakeUnavailable
from airflow_provider_pgoutput.lake.checkpoint_rows import append_rows
from airflow_provider_pgoutput.operators.erase import PgoutputEraseOperator
from tests.airflow.spark_submit_double import SLOT, Workshop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.airflow.conftest import TestLake

#: No log, no error and no XCom has it.
KEY = 918273645
ROWS = json.dumps({"public.orders": [{"id": KEY}]})


@pytest.fixture
def workshop(
    tmp_path: Path, lake: TestLake, set_connection: Callable[[str, dict[str, Any]], None]
) -> Workshop:
    set_connection("spark_default", {"conn_type": "spark", "host": "local[2]"})
    made = Workshop(tmp_path, lake)
    catalog = load_catalog(lake.catalog_name, **lake.properties)
    catalog.create_namespace_if_not_exists("shop")
    properties = {
        lake_names.PROPERTY_SLOT: SLOT,
        lake_names.PROPERTY_SOURCE_TABLE: "public.orders",
        lake_names.PROPERTY_RELATION_OID: "1",
        # A number became a text, and the numbers stay in a column of their own.
        lake_names.PROPERTY_COLUMNS: '{"relation_oid": 1, "fields": {"1": 2}, "retired": {"1": [1]}}',
    }
    schema = Schema(NestedField(1, "id_before", LongType()), NestedField(2, "id", StringType()))
    catalog.create_table(("shop", "orders"), schema, properties=properties)
    shape = Shape((KnownColumn(1, "id", "text", "string"),), ("id",), "d")
    batch = {
        "slot_name": SLOT,
        "system_identifier": "7",
        "batch_id": made.manifest.batch_id,
        "start_lsn": Lsn.parse("0/10").sortable,
        "end_lsn": Lsn.parse("0/20").sortable,
    }
    of_table = {
        "table_name": "public.orders",
        "relation_oid": 1,
        "target": "shop.orders",
        "columns": shape.to_json(),
    }
    append_rows(catalog, "shop", [batch, {**batch, **of_table}])
    counts = {"rows_erased": 2, "still_current": 1}
    made.behave(
        result={
            "status": "applied",
            "tables": {"shop.orders": counts},
            "remains": {"shop.orders": ["tag theirs of somebody else, until it is removed"]},
        },
        checkpoint=False,
    )
    return made


def operator(workshop: Workshop, **changed: Any) -> PgoutputEraseOperator:
    arguments = {
        "task_id": "erase",
        "slot_name": SLOT,
        "staging_uri": workshop.staging_uri,
        "namespace": "shop",
        "rows": ROWS,
        "confirmation": SLOT,
        "spark_binary": str(workshop.binary),
        "name": "test",
    }
    return PgoutputEraseOperator(**(arguments | changed))


def test_the_job_has_the_keys_and_nothing_else_does(
    workshop: Workshop, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    result = operator(workshop).execute(task_context)
    job = job_from_json(workshop.seen()["job"])
    assert isinstance(job, ErasureJob)
    column = ErasedColumn("id", str(KEY), ("id", "id_before"))
    assert job == ErasureJob(
        catalog_name="iceberg_default",
        namespace="shop",
        staging_uri=job.staging_uri,
        dag_id="tests",
        run_id=job.run_id,
        slot_name=SLOT,
        tables=(ErasedTable("orders", "public.orders", 1, ((column,),)),),
        claim=job.claim,
    )
    assert result["tables"] == {"shop.orders": {"rows_erased": 2, "still_current": 1}}
    assert result["staged"] == {
        "batches": 1,
        "rewritten": 0,
        "rows_erased": 0,
        "copies_given_up": 0,
    }
    assert list(result["remains"]) == ["shop.orders"]
    assert len(result["not_ours"]) == 4
    assert "shop.orders still showed 1 of the rows" in caplog.text
    # The job's file is gone.
    left = [each for each in (workshop.home / "staging").rglob("*") if each.is_file()]
    assert [each.suffix for each in left] == [".json"]
    for place in (caplog.text, json.dumps(result), left[0].read_text()):
        assert str(KEY) not in place


def test_the_keys_go_also_after_a_failure(workshop: Workshop, task_context: Any) -> None:
    workshop.behave(status=0, result=None, checkpoint=False)
    with pytest.raises(LakeUnavailable, match="left no result"):
        operator(workshop).execute(task_context)
    assert workshop.was_started
    assert not list((workshop.home / "staging").rglob("erasure-*"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"confirmation": "shop2"}, "Nothing was erased: the confirmation"),
        ({"confirmation": None}, "Nothing was erased: the confirmation"),
        ({"rows": "{}"}, "rows is empty"),
        ({"rows": "7"}, "rows is not a mapping"),
        ({"rows": {"public.other": [{"id": KEY}]}}, "does not know it"),
        ({"rows": {"public.orders": [{"name": KEY}]}}, "no column of the table"),
        ({"namespace": "other"}, "no checkpoint of this slot"),
    ],
)
def test_what_cannot_work_fails_at_once_and_starts_nothing(
    workshop: Workshop, task_context: Any, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message) as failed:
        operator(workshop, **changed).execute(task_context)
    assert not workshop.was_started
    assert str(KEY) not in str(failed.value)
