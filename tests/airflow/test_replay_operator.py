"""The door to the archive: which batches it hands to Spark, with which plan, and what it refuses."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.earlier_systems import EarlierSystem, to_text
from airflow_provider_pgoutput.batch.jobs import ReplayJob, job_from_json
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import ConfigurationError, LakeUnavailable
from airflow_provider_pgoutput.operators.replay import PgoutputReplayOperator
from tests.airflow.spark_submit_double import SLOT, Workshop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.airflow.conftest import TestLake


@pytest.fixture
def workshop(
    tmp_path: Path, lake: TestLake, set_connection: Callable[[str, dict[str, Any]], None]
) -> Workshop:
    """Batches from 0/10 to 0/40; the lake is at 0/30."""
    set_connection("spark_default", {"conn_type": "spark", "host": "local[2]"})
    made = Workshop(tmp_path, lake)
    for start in (0x20, 0x30):
        manifest = Manifest(SLOT, "7", 1, "app", ("p",), Lsn(start), Lsn(start + 0x10), ())
        name = layout.manifest_path(SLOT, manifest.start_lsn, manifest.end_lsn, manifest.batch_id)
        (tmp_path / "staging" / name).write_text(manifest.to_json())
    lake.record(SLOT, "0/30")
    made.behave(result={"status": "applied", "published": {"x.orders": 5}}, checkpoint=False)
    return made


def operator(workshop: Workshop, **changed: Any) -> PgoutputReplayOperator:
    arguments = {
        "task_id": "replay",
        "slot_name": SLOT,
        "staging_uri": workshop.staging_uri,
        "namespace": "shop",
        "from_lsn": "0/10",
        "spark_binary": str(workshop.binary),
        "name": "test",
    }
    return PgoutputReplayOperator(**(arguments | changed))


def job_of(workshop: Workshop) -> tuple[ReplayJob, list[str]]:
    """The job that Spark got, and the ranges of its batches."""
    job = job_from_json(workshop.seen()["job"])
    assert isinstance(job, ReplayJob)
    names = [uri.rpartition("/")[2][:33] for uri in job.manifest_uris]
    return job, [f"{int(name[:16], 16):X}-{int(name[17:], 16):X}" for name in names]


@pytest.mark.parametrize("target_namespace", [None, "other"])
def test_batches_of_a_system_that_is_not_the_source_any_more_are_refused(
    workshop: Workshop, lake: TestLake, task_context: Any, target_namespace: str | None
) -> None:
    lake.system_identifier = "8"
    earlier = to_text((EarlierSystem("7", "0/30"),))
    lake.record(SLOT, "0/40", start_lsn="0/30", adopted_from=earlier)
    with pytest.raises(AirflowFailException, match="at 0/30 the lake adopted another system"):
        operator(workshop, from_lsn="0/20", target_namespace=target_namespace).execute(task_context)


def test_in_place_goes_to_the_checkpoint(
    workshop: Workshop, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        result = operator(workshop, table_options='{"public.orders": {"target": "o"}}').execute(
            task_context
        )
    said = r"Replayed 2 batches from 0/10 to 0/30 with \d+ changes in place, in \d+\.\d s \(\d+ changes/s\)\."
    assert re.fullmatch(said, caplog.messages[-1])
    job, ranges = job_of(workshop)
    assert ranges == ["10-20", "20-30"]
    assert (job.namespace, job.table_options["public.orders"].target) == ("shop", "o")
    assert (job.tables, job.in_place) == ((), True)
    assert result == {
        "schema_version": 1,
        "slot_name": SLOT,
        "start_lsn": "0/10",
        "end_lsn": "0/30",
        "batches": 2,
        "namespace": "shop",
        "snapshots": {"x.orders": 5},
    }


def test_another_namespace_gets_all_that_is_staged(workshop: Workshop, task_context: Any) -> None:
    """Templates render to text, so lists come as JSON too."""
    given = {"target_namespace": "again", "mode": "change_log", "tables": '["public.orders"]'}
    operator(workshop, from_lsn="0/25", **given).execute(task_context)
    job, ranges = job_of(workshop)
    assert ranges == ["20-30", "30-40"]
    assert (job.namespace, job.mode) == ("again", "change_log")
    assert (job.tables, job.in_place) == (("public.orders",), False)
    operator(workshop, to_lsn="0/2F", **given).execute(task_context)
    assert job_of(workshop)[1] == ["10-20"]


def test_what_cannot_work_starts_no_spark(workshop: Workshop, task_context: Any) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "No table is set aside": {"from_lsn": ""},
        "from_lsn is missing": {"from_lsn": None, "target_namespace": "again"},
        "from_lsn is not an LSN": {"from_lsn": "yesterday"},
        "to_lsn 0/10 is not past": {"to_lsn": "0/10", "target_namespace": "again"},
        "to_lsn is given without": {"to_lsn": "0/20"},
        "own namespace": {"target_namespace": "shop"},
        "not before the lake's checkpoint": {"from_lsn": "0/30"},
        "no checkpoint of the slot": {"slot_name": "other"},
        "has no batch from 0/8": {"from_lsn": "0/8"},
    }
    for message, changed in wrong.items():
        with pytest.raises(AirflowFailException, match=message):
            operator(workshop, **changed).execute(task_context)
    # These are known when the DAG file is parsed.
    of_dag: dict[str, dict[str, Any]] = {
        "option that does not exist": {"table_options": {"public.orders": {"colour": "red"}}},
        "Unknown mode": {"mode": "append"},
    }
    for message, changed in of_dag.items():
        with pytest.raises(ConfigurationError, match=message):
            operator(workshop, **changed)
    workshop.lake.record(SLOT, "0/35")
    with pytest.raises(AirflowFailException, match="end at 0/30, the lake is at 0/35"):
        operator(workshop).execute(task_context)
    assert not workshop.was_started


def test_why_spark_failed_is_said(workshop: Workshop, task_context: Any) -> None:
    failure = {"status": "failed", "error": "BatchRefused", "message": "The file is damaged."}
    workshop.behave(status=65, result=failure, checkpoint=False)
    with pytest.raises(AirflowFailException, match="BatchRefused: The file is damaged"):
        operator(workshop).execute(task_context)
    # As where spark-submit does not wait for the job's end.
    workshop.behave(status=0, result=failure, checkpoint=False)
    with pytest.raises(AirflowFailException, match="BatchRefused: The file is damaged"):
        operator(workshop).execute(task_context)


def test_a_job_that_left_no_word_did_not_succeed(workshop: Workshop, task_context: Any) -> None:
    workshop.behave(status=0, result=None, checkpoint=False)
    with pytest.raises(LakeUnavailable, match="left no result"):
        operator(workshop).execute(task_context)


def test_without_a_position_it_brings_back_what_is_set_aside(
    workshop: Workshop, lake: TestLake, task_context: Any
) -> None:
    """Spark's double changes nothing, so the tables still wait after each round."""
    with pytest.raises(AirflowFailException, match="No table is set aside"):
        operator(workshop, from_lsn=None).execute(task_context)
    lake.record(SLOT, "0/20", start_lsn="0/10", tables={"public.a": 1})
    lake.record(SLOT, "0/30", start_lsn="0/20", set_aside={"public.a": 1, "public.b": 2})
    with pytest.raises(AirflowFailException, match=r"Of the tables public\.c, none is set aside"):
        operator(workshop, from_lsn=None, tables=["public.c"]).execute(task_context)
    with pytest.raises(LakeUnavailable, match=r"these tables get them: public\.a"):
        operator(workshop, from_lsn=None, tables=["public.a"]).execute(task_context)
    job, ranges = job_of(workshop)
    assert ranges == ["20-30"]
    assert (job.tables, job.in_place, job.catch_up) == (("public.a",), True, True)


def test_what_a_table_lacks_and_nobody_has_any_more(
    workshop: Workshop, lake: TestLake, task_context: Any
) -> None:
    """The others come back. The error names the tables whose batches are gone, or were never staged."""
    lake.record(SLOT, "0/10", start_lsn="0/8", set_aside={"public.a": 1})
    lake.record(SLOT, "0/30", start_lsn="0/20", set_aside={"public.b": 2}, unstaged={"public.c": 3})
    workshop.behave(result={"status": "applied"}, checkpoint=False)
    with pytest.raises(
        AirflowFailException, match=r"that public\.a, public\.c lack are not whole.*copy_tables"
    ):
        operator(workshop, from_lsn=None).execute(task_context)
    job, ranges = job_of(workshop)
    assert (job.tables, ranges) == (("public.b",), ["20-30"])
