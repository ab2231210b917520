"""The apply operator around a program that only looks like spark-submit: what it makes of the program's end.

What the program is given, is in ``test_apply_job.py``. The real one is in ``test_end_to_end.py``.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ForbiddenError

from airflow_provider_pgoutput.batch.manifest import SkippedTransaction
from airflow_provider_pgoutput.batch.membership import PublishedSet, TableMembership
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    ConnectionNotFound,
    LakeUnavailable,
    PublishRefused,
)
from tests.airflow.spark_submit_double import SLOT, Workshop

if TYPE_CHECKING:
    from tests.airflow.conftest import TestLake

CANARY = "canary-0xC0FFEE"


def test_it_applies_and_returns_what_was_done(workshop: Workshop, task_context: Any) -> None:
    published = {"published": {"shop.orders": 12}, "publish_seconds": 0.25}
    workshop.behave(result={"status": "applied", **published})
    outlet = Asset("orders")
    result = workshop.operator(outlets=[outlet]).execute(task_context)
    counts = {"inserts": 3, "updates": 0, "deletes": 1, "truncates": 0, "copied": 0, "rejected": 0}
    assert result == {
        "schema_version": 1,
        "slot_name": SLOT,
        "batch_id": workshop.manifest.batch_id,
        "start_lsn": "0/10",
        "end_lsn": "0/20",
        "applied": True,
        "changes": 4,
        "tables": {"public.orders": counts},
        "snapshots": {"shop.orders": 12},
    }
    told = task_context["outlet_events"][outlet].extra["pgoutput"]
    assert (told["slot_name"], told["end_lsn"], told["changes"]) == (SLOT, "0/20", 4)
    assert told["tables"] == {"public.orders": {"inserts": 3, "deletes": 1}}
    assert told["totals"] == {"inserts": 3, "deletes": 1}
    assert told["apply_seconds"] > 0
    assert told["publish_seconds"] == 0.25


def test_it_tells_what_is_set_aside(
    workshop: Workshop,
    lake: TestLake,
    task_context: Any,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    lake.record(SLOT, "0/10", start_lsn="0/8", set_aside={"public.orders": 1})
    workshop.behave(result={"status": "applied"})
    result = workshop.operator(on_table_refused="set_aside").execute(task_context)
    assert json.loads(workshop.seen()["job"])["on_table_refused"] == "set_aside"
    reason = "RowMissing: A row is missing. What to do: copy it."
    waits = {"public.orders": {"since_lsn": "0/8", "batches": 1, "reason": reason}}
    assert result["set_aside"] == waits
    assert "public.orders is set aside" in caplog.text
    # The batch has changes of this table alone, and the table did not get them.
    assert "Applied no changes, 0/10 to 0/20" in capfd.readouterr().out
    # An earlier try applied the batch.
    assert workshop.operator().execute(task_context)["set_aside"] == waits


def test_it_tells_which_tables_are_incomplete(
    workshop: Workshop, lake: TestLake, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lake.quarantine(SLOT, "public.orders", 1)
    lake.quarantine("another", "public.customers", 2)
    workshop.behave(result={"status": "applied"})
    result = workshop.operator(on_row_refused="quarantine").execute(task_context)
    assert result["incomplete"] == {"public.orders": {"keys": 2, "since_lsn": "0/11"}}
    assert "public.orders is incomplete: 2 keys in pgoutput_quarantine" in caplog.text
    # An earlier try applied the batch.
    again = workshop.operator(on_row_refused="quarantine").execute(task_context)
    assert again["incomplete"] == result["incomplete"]
    assert "before on_row_refused was 'fail'" not in caplog.text
    # The entries stay when the answer changes.
    again = workshop.operator().execute(task_context)
    assert again["incomplete"] == result["incomplete"]
    assert "before on_row_refused was 'fail'" in caplog.text


def test_a_login_without_a_right_to_a_quarantine_that_nobody_uses(
    workshop: Workshop,
    task_context: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def deny(_: SqlCatalog, identifier: Any) -> bool:
        asked.append(identifier)
        raise ForbiddenError

    monkeypatch.setattr(SqlCatalog, "table_exists", deny)
    workshop.behave(result={"status": "applied"})
    assert "incomplete" not in workshop.operator().execute(task_context)
    assert asked == [("shop", "pgoutput_quarantine")]
    assert "not known whether tables lack rows" in caplog.text
    with pytest.raises(AirflowFailException):
        workshop.operator(on_row_refused="quarantine").execute(task_context)


def test_another_answer_is_refused_when_the_dag_is_parsed(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="Unknown on_table_refused 'copy'"):
        workshop.operator(on_table_refused="copy")


def test_a_retry_submits_a_job_of_its_own(workshop: Workshop) -> None:
    """Airflow would reconnect to the job of another plan, or take a cleared task's for done."""
    assert workshop.operator().durable is False
    assert workshop.operator(durable=True).durable is True


def test_options_of_a_table_that_is_not_published_are_warned_of_by_name(
    workshop: Workshop,
    task_context: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A table that the batch does not change is published all the same."""
    marks = tuple(
        TableMembership(oid, f"public.{name}", ()) for oid, name in ((1, "orders"), (2, "idle"))
    )
    workshop.seal(published=PublishedSet((), marks))
    options: dict[str, Any] = {"public.orders": {}, "public.idle": {}, "public.ordres": {}}
    with caplog.at_level(logging.WARNING):
        workshop.operator(table_options=options).execute(task_context)
    # A task's logger writes to one of the two. Which one depends on what ran before in this process.
    said = caplog.text + capsys.readouterr().out
    assert "not published: public.ordres. Their" in said


def test_a_login_that_spark_cannot_use_is_warned_of_by_name(
    workshop: Workshop,
    task_context: Any,
    set_connection: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    extra = {name: value for name, value in workshop.lake.properties.items() if name != "uri"}
    uri, extra = workshop.lake.properties["uri"], {**extra, "adls.client-secret": CANARY}
    set_connection("iceberg_default", {"conn_type": "iceberg", "host": uri, "extra": extra})
    with caplog.at_level(logging.WARNING):
        workshop.operator().execute(task_context)
    # A task's logger writes to one of the two. Which one depends on what ran before in this process.
    said = caplog.text + capsys.readouterr().out
    assert "does not: adls.client-secret." in said
    assert CANARY not in said


def test_a_batch_that_the_lake_has_already_is_not_given_to_spark(
    workshop: Workshop, task_context: Any
) -> None:
    """F16: the task of an old run is cleared; its staged files may be gone by then."""
    workshop.lake.record(SLOT, "0/30")
    workshop.manifest_path.unlink()
    outlet = Asset("orders")
    result = workshop.operator(outlets=[outlet]).execute(task_context)
    assert (result["applied"], result["end_lsn"], result["changes"]) == (False, "0/20", 4)
    assert result["tables"] == workshop.batch["tables"]
    # Only the try that applied the batch knew its snapshots.
    assert result["snapshots"] is None
    assert not workshop.was_started
    # That one may have ended before Airflow knew of its event.
    told = task_context["outlet_events"][outlet].extra["pgoutput"]
    assert (told["end_lsn"], told["changes"]) == ("0/20", 4)
    assert told["totals"] == told["tables"]["public.orders"] == {"inserts": 3, "deletes": 1}
    assert "apply_seconds" not in told


def test_totals_of_tables_that_did_not_arrive_are_left_open(
    workshop: Workshop, task_context: Any
) -> None:
    workshop.lake.record(SLOT, "0/30")
    workshop.batch["tables_left_out"] = 7
    outlet = Asset("orders")
    result = workshop.operator(outlets=[outlet]).execute(task_context)
    assert (result["tables"], result["tables_left_out"]) == (workshop.batch["tables"], 7)
    told = task_context["outlet_events"][outlet].extra["pgoutput"]
    assert told["changes"] == 4
    assert "totals" not in told
    assert told["tables"] == {"public.orders": {"inserts": 3, "deletes": 1}}
    assert told["tables_left_out"] == 7


@pytest.mark.parametrize(
    "tables", ["many", {"public.orders": 4}, {"public.orders": {"inserts": "4"}}]
)
def test_counts_that_did_not_arrive_are_left_open(
    workshop: Workshop, task_context: Any, tables: Any
) -> None:
    workshop.lake.record(SLOT, "0/30")
    del workshop.batch["changes"]
    workshop.batch["tables"] = tables
    result = workshop.operator().execute(task_context)
    assert (result["applied"], result["changes"], result["tables"]) == (False, None, None)


def test_a_batch_without_changes_moves_the_checkpoint_without_spark(
    workshop: Workshop, task_context: Any
) -> None:
    workshop.lake.record(SLOT, "0/10")
    times = {
        "last_commit_time": "2026-01-02T03:04:05.000006+00:00",
        "complete_until": "2026-01-02T03:04:06+00:00",
    }
    workshop.seal(tables=(), **times)
    result = workshop.operator().execute(task_context)
    assert not workshop.was_started
    assert (result["applied"], result["changes"], result["snapshots"]) == (True, 0, {})
    table = workshop.lake.checkpoint_table()
    row = table.scan(row_filter="end_lsn = '0000000000000020'").to_arrow().to_pylist()[0]
    assert (row["batch_id"], row["table_name"], row["inserts"]) == (
        workshop.manifest.batch_id,
        None,
        0,
    )
    assert (row["dag_id"], row["manifest_uri"]) == ("tests", workshop.batch["manifest_uri"])
    assert {name: row[name].isoformat() for name in times} == times
    summary = table.current_snapshot().summary
    assert (summary["pgoutput.slot"], summary["pgoutput.end-lsn"]) == (SLOT, "0/20")
    # Once more, as a cleared task does.
    assert workshop.operator().execute(task_context)["applied"] is False


def test_a_worker_that_may_not_write_leaves_an_empty_batch_to_spark(
    workshop: Workshop, task_context: Any
) -> None:
    workshop.lake.record(SLOT, "0/10")
    workshop.seal(tables=())
    workshop.lake.forbid_writes()
    workshop.behave(
        status=75, result={"status": "failed", "error": "PublishRefused", "message": "x"}
    )
    with pytest.raises(PublishRefused):
        workshop.operator().execute(task_context)
    assert workshop.was_started


def test_spark_records_what_an_empty_batch_was_told_to_leave_out(
    workshop: Workshop, task_context: Any
) -> None:
    """A checkpoint table of an earlier version has no column for it, and apply adds that."""
    workshop.lake.record(SLOT, "0/10")
    workshop.seal(tables=(), skipped=(SkippedTransaction("0/18", 3),))
    workshop.behave(
        status=75, result={"status": "failed", "error": "PublishRefused", "message": "x"}
    )
    with pytest.raises(PublishRefused):
        workshop.operator().execute(task_context)
    assert workshop.was_started


def test_a_batch_without_changes_after_a_gap_is_refused(
    workshop: Workshop, task_context: Any
) -> None:
    workshop.lake.record(SLOT, "0/8")
    workshop.seal(tables=())
    with pytest.raises(AirflowFailException, match=r"BatchGap: .* starts at 0/10.* 0/8"):
        workshop.operator().execute(task_context)
    assert not workshop.was_started


@pytest.mark.parametrize("system_identifier", [None, "8"])
def test_spark_decides_about_the_first_batch_and_that_of_another_system(
    workshop: Workshop, task_context: Any, system_identifier: str | None
) -> None:
    workshop.seal(tables=(), system_identifier=system_identifier or "7")
    if system_identifier is not None:
        workshop.lake.record(SLOT, "0/10")
    workshop.behave(status=65, result={"status": "failed", "error": "BatchGap", "message": "x"})
    with pytest.raises(AirflowFailException):
        workshop.operator().execute(task_context)
    assert workshop.was_started


def test_a_job_that_left_no_checkpoint_is_no_success(workshop: Workshop, task_context: Any) -> None:
    workshop.behave(checkpoint=False)
    with pytest.raises(LakeUnavailable, match="checkpoint does not hold the batch"):
        workshop.operator().execute(task_context)


def test_a_fatal_error_of_the_job_fails_the_task_at_once(
    workshop: Workshop, task_context: Any
) -> None:
    failure = {"status": "failed", "error": "BatchGap", "message": "It starts too late."}
    workshop.behave(status=65, result=failure, checkpoint=False)
    with pytest.raises(AirflowFailException, match=r"BatchGap: It starts too late\."):
        workshop.operator().execute(task_context)


def test_an_error_of_the_job_that_a_retry_can_help_is_retried(
    workshop: Workshop, task_context: Any
) -> None:
    failure = {"status": "failed", "error": "PublishRefused", "message": "It moved."}
    workshop.behave(status=75, result=failure, checkpoint=False)
    with pytest.raises(PublishRefused, match="It moved"):
        workshop.operator().execute(task_context)


@pytest.mark.parametrize(
    ("status", "error"),
    [(65, AirflowFailException), (66, AirflowFailException), (75, LakeUnavailable)],
)
def test_the_exit_status_tells_what_a_job_could_not_leave(
    workshop: Workshop, task_context: Any, status: int, error: type[Exception]
) -> None:
    """As where Spark's user may not write to the staging area."""
    workshop.behave(status=status, checkpoint=False)
    with pytest.raises(error, match="could not leave its result"):
        workshop.operator().execute(task_context)


@pytest.mark.parametrize(
    "result", [None, {"status": "failed", "error": "os.system", "message": "x"}, {}]
)
def test_a_job_that_died_without_a_word_is_retried(
    workshop: Workshop, task_context: Any, result: dict[str, Any] | None
) -> None:
    workshop.behave(status=137, result=result, checkpoint=False)
    with pytest.raises(AirflowException, match="Error code is: 137") as caught:
        workshop.operator().execute(task_context)
    assert not isinstance(caught.value, AirflowFailException)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch": None}, "No batch arrived"),
        ({"batch": {}}, "No batch arrived"),
        ({"batch": "not json"}, "not JSON"),
        ({"batch": object()}, "not a mapping"),
        ({"batch": "[" * 10**5}, "not JSON"),
        (
            {"table_options": {"public.orders": {"partitioned_by": ["a) --"]}}},
            "partition transform",
        ),
        ({"slot_name": "other"}, "another slot"),
        ({"staging_uri": "file:///elsewhere"}, "not in this pipeline's staging area"),
        ({"namespace": ""}, "namespace"),
        ({"metadata_columns": ["secret"]}, "Unknown metadata columns"),
        ({"table_options": '{"public.orders": {"no_such": 1}}'}, "does not exist"),
        ({"target_names": '{"a.b": "{1}"}'}, "groups that its pattern does not have"),
        ({"target_names": '{"a.b": 1}'}, "target_names"),
        ({"plan_options": {"no_such": 1}}, "does not exist"),
        ({"plan_options": {"parallel_tables": "0"}}, "parallel_tables is below 1"),
    ],
)
def test_what_cannot_work_fails_at_once_and_starts_nothing(
    workshop: Workshop, task_context: Any, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        workshop.operator(**changed).execute(task_context)
    assert not workshop.was_started


def test_a_wrong_pattern_is_seen_when_the_dag_is_parsed(workshop: Workshop) -> None:
    with pytest.raises(ConfigurationError, match="is no regular expression"):
        workshop.operator(target_names={"sales_(.*": "o"})
    # What a template gives is known when the task runs.
    workshop.operator(target_names={"{{ params.schema }}(.*": "o"})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mode": "histories"}, "Unknown mode"),
        ({"table_options": {"public.t": {"mode": "histories"}}}, "Unknown mode"),
        ({"table_options": {"public.t": {"constants": {"a": "b"}}}}, "does not exist: constants"),
        ({"table_options": {"public.t": {"shared": True}}}, "which rows are this table's"),
        ({"table_options": {"t": {"mode": "history"}}}, "names no table of a source"),
    ],
)
def test_wrong_options_of_tables_are_seen_when_the_dag_is_parsed(
    workshop: Workshop, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        workshop.operator(**changed)
    # What a template gives is known when the task runs.
    workshop.operator(
        mode="{{ params.mode }}", table_options={"public.t": {"mode": "{{ params.mode }}"}}
    )


def test_soft_delete_of_histories_is_refused_when_the_dag_file_is_parsed(
    workshop: Workshop,
) -> None:
    """Another mode of one table, or a template, is no reason."""
    with pytest.raises(ConfigurationError, match="all tables are in mode 'history'"):
        workshop.operator(mode="history", soft_delete=True)
    mirrored = {"public.orders": {"mode": "upsert"}}
    workshop.operator(mode="history", soft_delete=True, table_options=mirrored)
    workshop.operator(mode="history", soft_delete="{{ params.soft_delete }}")


@pytest.mark.parametrize("argument", ["conn_id", "iceberg_conn_id"])
def test_a_connection_that_airflow_does_not_give_is_asked_for_again(
    workshop: Workshop, task_context: Any, argument: str
) -> None:
    """Airflow says the same of one that nobody defined and of a secrets backend that is silent."""
    with pytest.raises(ConnectionNotFound, match="'no_such' was not found"):
        workshop.operator(**{argument: "no_such"}).execute(task_context)
    assert not workshop.was_started


def test_a_manifest_that_was_altered_or_is_gone_is_refused(
    workshop: Workshop, task_context: Any
) -> None:
    workshop.manifest_path.write_text(workshop.manifest.to_json().replace('"7"', '"8"'))
    with pytest.raises(AirflowFailException, match="was altered"):
        workshop.operator().execute(task_context)
    workshop.manifest_path.unlink()
    with pytest.raises(AirflowFailException, match="not in this pipeline's staging area"):
        workshop.operator().execute(task_context)
    assert not workshop.was_started


def test_a_backfill_run_is_refused(workshop: Workshop, task_context: Any) -> None:
    task_context["dag_run"].run_type = "backfill"
    with pytest.raises(AirflowFailException, match="backfill run"):
        workshop.operator().execute(task_context)
    assert not workshop.was_started


def test_the_arguments_are_unchanged_afterwards(workshop: Workshop, task_context: Any) -> None:
    """A try in the same process must start from what the user gave, not from the last try's files."""
    operator = workshop.operator(conf={"spark.mine": "1"})
    operator.execute(task_context)
    assert operator.conf == {"spark.mine": "1"}
    assert (operator.py_files, operator.properties_file, operator.application) == (None, None, "")
    assert os.environ.get("AWS_SECRET_ACCESS_KEY") is None


def test_a_task_that_is_killed_before_spark_was_started_needs_no_spark(workshop: Workshop) -> None:
    """As of a timeout while the lake is asked: what is templated is still text, or a template."""
    operator = workshop.operator(
        conf='{"spark.kubernetes.namespace": "etl"}', conn_id="{{ params.spark }}"
    )
    operator.on_kill()
    assert operator._hook is None
