"""What the stage operator makes of its arguments: each of them reaches the request of capture.

What is not here: what capture does with a request (``tests/capture``), and refusals (``test_stage.py``).
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, XComArg
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.batch.answers import ANSWERS
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator
from airflow_provider_pgoutput.operators.replay import PgoutputReplayOperator
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from airflow_provider_pgoutput.proof.after_loss import LakeAfterLoss
from airflow_provider_pgoutput.proof.request import ProofRequest
from airflow_provider_pgoutput.spark_submit.copy_engine import CopyingOperator, SparkCopy
from airflow_provider_pgoutput.tasks import arguments
from tests.airflow.conftest import TestLake, connection_json

if TYPE_CHECKING:
    from collections.abc import Callable

#: Every argument, each with another value than its default and as a template gives it: as text.
GIVEN = {
    "slot_name": "other_slot",
    "publication_names": '["one", "two"]',
    "staging_uri": "file:///other/staging",
    "namespace": "other_namespace",
    "postgres_conn_id": "other_source",
    "iceberg_conn_id": "other_iceberg",
    "catalog_name": "other_lake",
    "transport": "auto",
    "decode_parallelism": "3",
    "proto_version": "3",
    "streaming": "off",
    "two_phase": "true",
    "binary": "true",
    "messages": "true",
    "message_prefixes": '["audit"]',
    "origin": "none",
    "max_changes": "11",
    "max_bytes": "12",
    "max_seconds": "13",
    "initial_copy": "never",
    "start_lsn": "0/14",
    "on_recreated_table": "copy",
    "on_slot_lost": "difference",
    "on_table_refused": "set_aside",
    "advance": "after_stage",
    "failover": "true",
    "skip_lsns": '["0/15"]',
    "copy_tables": '["s.copied"]',
    "value_policy": '{"default": "fail"}',
    "type_options": '{"uuid": "uuid"}',
    "column_types": '{"s.t.c": "string"}',
    "key_columns": '{"s.t": ["k"]}',
    "on_unknown_default": "default",
    "on_type_change": "copy",
    "on_unsure_column": "ignore",
    "memory_mib": "16",
    "copy_connections": "5",
    "copy_engine": "spark",
    "spark_conn_id": "other_spark",
    "spark_copy_from_bytes": "17",
    "spark_copy_conf": '{"spark.cores.max": "18"}',
}
#: What does not go with these: a lake that begins without a copy does not tell which tables are new.
NOT_WITH_NEVER = {"on_new_table": "ignore"}
#: What does not go with these either: rows that others loaded have no mask, for example.
MASKED = {"columns": '{"s.t.m": "hash"}', "mask_conn_id": "the_secret"}
FILTERED = {"filters": '{"s.t": "a = 1"}'}
#: Of capture alone, or of the operator that adopts another source; no argument is for them.
OWN = {"part_bytes", "tell", "adopted_system"}


def names_of(operator: Any) -> set[str]:
    parameters = inspect.signature(operator.__init__).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


def defaults_of(given: Any) -> set[str]:
    """Names of the fields that have the value that they have without being given one."""
    plain = {
        each.name: each.default_factory() if callable(each.default_factory) else each.default
        for each in dataclasses.fields(given)
    }
    return {name for name, value in plain.items() if getattr(given, name) == value} - OWN


def test_every_argument_is_templated_and_here() -> None:
    names = names_of(PgoutputStageOperator) | names_of(CopyingOperator)
    given = {*GIVEN, *NOT_WITH_NEVER, *MASKED, *FILTERED}
    assert names == given == set(PgoutputStageOperator.template_fields)


def test_an_argument_without_a_field_is_one_of_a_connection() -> None:
    given = GIVEN | NOT_WITH_NEVER | MASKED | FILTERED
    operator = PgoutputStageOperator(task_id="stage", **given)
    read = {
        name: value
        for kind in (CaptureRequest, StreamOptions, SchemaPolicy)
        for name, value in arguments.values_of(operator, operator._STAGE_ARGUMENTS, kind).items()
    }
    of_connections = {
        "namespace",
        "postgres_conn_id",
        "iceberg_conn_id",
        "catalog_name",
        "mask_conn_id",
    }
    assert names_of(PgoutputStageOperator) - read.keys() == of_connections, (
        "an argument needs a field of its name in capture/request.py"
    )
    assert (read["max_seconds"], read["columns"]) == (13, {"s.t.m": "hash"})


@pytest.mark.parametrize("name", sorted(ANSWERS.keys() & GIVEN.keys()))
def test_a_wrong_answer_fails_when_the_dag_is_parsed(name: str) -> None:
    needed = {
        each: GIVEN[each] for each in ("slot_name", "publication_names", "staging_uri", "namespace")
    }
    with pytest.raises(ConfigurationError, match=f"Unknown {name} 'perhaps'"):
        PgoutputStageOperator(task_id="stage", **needed, **{name: "perhaps"})
    # What a template gives is known later.
    PgoutputStageOperator(task_id="stage", **needed, **{name: "{{ params.answer }}"})


@pytest.mark.parametrize("operator", [PgoutputApplyOperator, PgoutputReplayOperator])
def test_a_wrong_answer_of_an_apply_fails_when_the_dag_is_parsed(operator: Any) -> None:
    needed = {each: GIVEN[each] for each in ("slot_name", "staging_uri", "namespace")}
    if operator is PgoutputApplyOperator:
        needed["batch"] = "{{ ti.xcom_pull('stage') }}"
    with pytest.raises(ConfigurationError, match="Unknown on_row_refused 'perhaps'"):
        operator(task_id="apply", **needed, on_row_refused="perhaps")


@pytest.fixture
def request_of(
    lake: TestLake, set_connection: Callable[[str, dict[str, Any]], None], task_context: Any
) -> Callable[..., CaptureRequest]:
    """The request that an operator of a DAG makes in a task."""
    other = dataclasses.replace(lake, namespace="other_namespace", catalog_name="other_lake")
    other.record("other_slot", "0/99")
    extra = {name: value for name, value in lake.properties.items() if name != "uri"}
    uri = lake.properties["uri"]
    set_connection("other_iceberg", {"conn_type": "iceberg", "host": uri, "extra": extra})
    set_connection("other_spark", {"conn_type": "spark", "host": "spark://there", "port": 7077})

    def make(schedule: Any, **given: Any) -> CaptureRequest:
        with DAG("any_dag", schedule=schedule):
            operator = PgoutputStageOperator(task_id="any_task", **given)
        return operator._request(task_context)

    return make


def test_every_argument_reaches_the_request(
    request_of: Callable[..., CaptureRequest], lake: TestLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooler = json.loads(connection_json("host=there dbname=shop"))
    pooler["extra"] = {**pooler.get("extra", {}), "direct_conn_id": "past_the_pooler"}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER_SOURCE", json.dumps(pooler))
    monkeypatch.setenv("AIRFLOW_CONN_PAST_THE_POOLER", connection_json("host=past dbname=shop"))
    found = request_of(timedelta(minutes=7), **GIVEN)
    expected: dict[str, Any] = {
        "slot_name": "other_slot",
        "publication_names": ("one", "two"),
        "staging_uri": "file:///other/staging",
        "transport": "auto",
        "decode_parallelism": 3,
        "options": StreamOptions(
            proto_version=3,
            streaming="off",
            two_phase=True,
            binary=True,
            messages=True,
            message_prefixes=("audit",),
            origin="none",
        ),
        "max_changes": 11,
        "max_bytes": 12,
        "max_seconds": 13,
        "initial_copy": "never",
        "start_lsn": Lsn(0x14),
        "on_recreated_table": "copy",
        "on_slot_lost": "difference",
        "on_table_refused": "set_aside",
        "advance": "after_stage",
        "failover": True,
        "seconds_between_runs": 420,
        "skip_lsns": (Lsn(0x15),),
        "copy_tables": ("s.copied",),
        "value_policy": {"default": "fail"},
        "type_options": {"uuid": "uuid"},
        "column_types": {"s.t.c": "string"},
        "key_columns": {"s.t": ("k",)},
        "schema_policy": SchemaPolicy("default", "copy", "ignore"),
        "memory_mib": 16,
        "copy_connections": 5,
        "copy_engine": SparkCopy(
            "other_spark", 17, {"spark.cores.max": "18"}, "airflow-any_dag-any_task-copy"
        ),
    }
    assert isinstance(found.lake_comparison, LakeAfterLoss)
    asked = found.lake_comparison.request
    expected["lake_comparison"] = LakeAfterLoss(
        ProofRequest(
            conninfo=found.conninfo,
            slot_name="other_slot",
            publication_names=("one", "two"),
            staging_uri="file:///other/staging",
            namespace="other_namespace",
            catalog_name="other_lake",
            catalog_properties=asked.catalog_properties,
            on_difference="repair",
        )
    )
    assert asked.catalog_properties["uri"] == lake.properties["uri"]
    for name, value in expected.items():
        assert getattr(found, name) == value, name
    left_out = defaults_of(found) | defaults_of(found.options) | defaults_of(found.schema_policy)
    of_masks = {"columns", "mask_secret"}
    assert left_out == {*NOT_WITH_NEVER, *of_masks, *FILTERED}, (
        "an argument that goes nowhere would not be noticed"
    )
    assert isinstance(found.conninfo, str)
    parameters = conninfo_to_dict(found.conninfo)
    assert (parameters["host"], parameters["dbname"]) == ("there", "shop")
    # Read from the lake that the arguments name.
    assert found.checkpoint is not None
    assert found.checkpoint.end_lsn == Lsn(0x99)
    assert found.attempt.startswith("1-")
    plain = {
        name: text for name, text in GIVEN.items() if name not in {"initial_copy", "start_lsn"}
    }
    assert request_of(None, **plain, **NOT_WITH_NEVER).on_new_table == "ignore"
    assert isinstance(found.direct_conninfo, str)
    assert conninfo_to_dict(found.direct_conninfo)["host"] == "past"
    looked_at = {
        *of_masks,
        *FILTERED,
        *expected,
        *NOT_WITH_NEVER,
        "conninfo",
        "direct_conninfo",
        "checkpoint",
        "attempt",
    }
    assert looked_at | OWN == {each.name for each in dataclasses.fields(CaptureRequest)}


def test_masks_reach_the_request(
    request_of: Callable[..., CaptureRequest],
    set_connection: Callable[[str, dict[str, Any]], None],
) -> None:
    secret = "a secret of this test"
    set_connection("other_source", json.loads(connection_json("host=there dbname=shop")))
    set_connection("the_secret", {"conn_type": "generic", "password": secret})
    needed = {
        name: GIVEN[name] for name in ("slot_name", "publication_names", "staging_uri", "namespace")
    }
    lake = {name: GIVEN[name] for name in ("postgres_conn_id", "iceberg_conn_id", "catalog_name")}
    found = request_of(None, **needed, **lake, **MASKED)
    assert found.columns == {"s.t.m": "hash"}
    assert found.mask_secret == secret.encode()
    assert secret not in repr(found)
    # The lake may have hashes of a column that was dropped at the source, and is not named any more.
    unnamed = request_of(None, **needed, **lake, mask_conn_id="the_secret")
    assert unnamed.mask_secret == secret.encode()
    with pytest.raises(ConfigurationError, match="copy on Spark does not mask"):
        request_of(
            None, **needed, **lake, **MASKED, copy_engine="spark", spark_conn_id="other_spark"
        )
    set_connection("the_secret", {"conn_type": "generic", "password": "short"})
    with pytest.raises(ConfigurationError, match="could be guessed"):
        request_of(None, **needed, **lake, **MASKED)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"s.t.c": "md5"}, "is no mask"),
        ({"s.t.c": "truncate(0)"}, "is no mask"),
        ({"t.c": "redact"}, "not the name of a column"),
        ('{"s.t.c": 1}', "not a mapping of texts"),
        ({"s.t.c": "hash"}, "mask_conn_id is missing"),
    ],
)
def test_a_wrong_mask_fails_when_the_dag_is_parsed(columns: Any, words: str) -> None:
    needed = {
        each: GIVEN[each] for each in ("slot_name", "publication_names", "staging_uri", "namespace")
    }
    with pytest.raises(ConfigurationError, match=words):
        PgoutputStageOperator(task_id="stage", **needed, columns=columns)


def test_filters_reach_the_request(
    request_of: Callable[..., CaptureRequest],
    set_connection: Callable[[str, dict[str, Any]], None],
) -> None:
    set_connection("other_source", json.loads(connection_json("host=there dbname=shop")))
    needed = {
        name: GIVEN[name]
        for name in (
            *("slot_name", "publication_names", "staging_uri", "namespace"),
            *("postgres_conn_id", "iceberg_conn_id", "catalog_name"),
        )
    }
    found = request_of(None, **needed, **FILTERED)
    assert found.filters == {"s.t": "a = 1"}
    assert {name: str(each) for name, each in found.conditions.items()} == {"s.t": '"a" = 1'}
    with pytest.raises(ConfigurationError, match="filters does not go with two_phase"):
        request_of(None, **needed, **FILTERED, two_phase=True)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"s.t": "a LIKE 'x'"}, r"filters\['s.t'\] is not understood at character 3"),
        ({"t": "a = 1"}, "not the name of a table"),
        ('{"s.t": 1}', "not a mapping of texts"),
    ],
)
def test_a_wrong_filter_fails_when_the_dag_is_parsed(filters: Any, words: str) -> None:
    needed = {
        each: GIVEN[each] for each in ("slot_name", "publication_names", "staging_uri", "namespace")
    }
    with pytest.raises(ConfigurationError, match=words):
        PgoutputStageOperator(task_id="stage", **needed, filters=filters)


def test_a_filter_that_is_known_later_is_no_error_of_the_dag_file() -> None:
    needed = {
        each: GIVEN[each] for each in ("slot_name", "publication_names", "staging_uri", "namespace")
    }
    with DAG("of_filters", schedule=None):
        later: Any = XComArg(EmptyOperator(task_id="before"))
        for number, filters in enumerate(
            ("{{ params.filters }}", {"s.t": "{{ params.filter }}"}, later)
        ):
            PgoutputStageOperator(task_id=f"stage_{number}", **needed, filters=filters)


def test_a_mask_that_is_known_later_is_no_error_of_the_dag_file() -> None:
    needed = {
        each: GIVEN[each] for each in ("slot_name", "publication_names", "staging_uri", "namespace")
    }
    with DAG("of_masks", schedule=None):
        later: Any = XComArg(EmptyOperator(task_id="before"))
        for number, columns in enumerate(
            ("{{ params.columns }}", {"s.t.c": "{{ params.mask }}"}, later)
        ):
            PgoutputStageOperator(task_id=f"stage_{number}", **needed, columns=columns)
