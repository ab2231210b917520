"""The slot moves to the checkpoint and nowhere else, whatever arrives by XCom (F17, F18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from airflow_provider_pgoutput.operators.advance import PgoutputAdvanceSlotOperator

if TYPE_CHECKING:
    import psycopg

    from tests.airflow.conftest import TestLake

    Session = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def lake(lake: TestLake, source: Session) -> TestLake:
    """A lake that is filled from the test's server."""
    row = source.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    assert row is not None
    lake.system_identifier = str(row[0])
    return lake


def advance(slot: str, **arguments: Any) -> PgoutputAdvanceSlotOperator:
    return PgoutputAdvanceSlotOperator(
        task_id="advance", slot_name=slot, namespace="shop", **arguments
    )


def batch(slot: str, end_lsn: str, **changed: Any) -> dict[str, Any]:
    start, end = Lsn(0).sortable, Lsn.parse(end_lsn).sortable
    return {
        "schema_version": 1,
        "slot_name": slot,
        "batch_id": "b" * 64,
        "start_lsn": "0/0",
        "end_lsn": end_lsn,
        "manifest_uri": f"file:///staging/{slot}/manifests/{start}-{end}-{'b' * 16}.json",
        "changes": 0,
        "tables": {},
        **changed,
    }


def confirmed(slot: str) -> str:
    return str(PgoutputHook().slot(slot).confirmed_flush_lsn)


def commit(session: Session) -> str:
    """Write something and return the position after it."""
    session.execute("SELECT pg_logical_emit_message(true, 'test', 'x')")
    row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    return str(row[0])


def test_it_moves_to_the_checkpoint(
    source: Session, slot: str, lake: TestLake, task_context: Any
) -> None:
    end_lsn = commit(source)
    lake.record(slot, end_lsn)
    result = advance(slot, batch=batch(slot, end_lsn)).execute(task_context)
    assert result == {"slot_name": slot, "confirmed_flush_lsn": end_lsn}
    assert confirmed(slot) == end_lsn


def test_again_is_no_error(source: Session, slot: str, lake: TestLake, task_context: Any) -> None:
    """F19: the server moved and its answer was lost."""
    end_lsn = commit(source)
    lake.record(slot, end_lsn)
    task = advance(slot, batch=batch(slot, end_lsn))
    assert task.execute(task_context) == task.execute(task_context)


@pytest.mark.parametrize("received", ["older", "nothing"])
def test_an_older_batch_or_none_moves_to_the_checkpoint_all_the_same(
    source: Session, slot: str, lake: TestLake, task_context: Any, received: str
) -> None:
    """F16, F17: a cleared old run, a deleted XCom."""
    older, newer = commit(source), commit(source)
    lake.record(slot, older)
    lake.record(slot, newer)
    value = batch(slot, older) if received == "older" else None
    advance(slot, batch=value).execute(task_context)
    assert confirmed(slot) == newer


def test_a_newer_batch_never_moves_the_slot(
    source: Session, slot: str, lake: TestLake, task_context: Any
) -> None:
    """F17: an edited XCom; F18: the advance task ran before the apply task."""
    applied, staged = commit(source), commit(source)
    before = confirmed(slot)
    lake.record(slot, applied)
    with pytest.raises(
        AirflowFailException, match=r"was not applied.*run the apply task"
    ) as caught:
        advance(slot, batch=batch(slot, staged)).execute(task_context)
    assert slot in str(caught.value)
    assert staged in str(caught.value)
    assert confirmed(slot) == before


def test_before_the_first_apply_nothing_moves(
    source: Session, slot: str, lake: TestLake, task_context: Any
) -> None:
    """F18: a mis-wired DAG on its first run."""
    staged = commit(source)
    before = confirmed(slot)
    with pytest.raises(AirflowFailException, match=r"was not applied.*run the apply task"):
        advance(slot, batch=batch(slot, staged)).execute(task_context)
    with pytest.raises(AirflowFailException, match="no checkpoint"):
        advance(slot).execute(task_context)
    assert confirmed(slot) == before


def test_the_checkpoint_of_another_slot_counts_for_nothing(
    source: Session, slot: str, lake: TestLake, task_context: Any
) -> None:
    lake.record("another_slot", commit(source))
    before = confirmed(slot)
    with pytest.raises(AirflowFailException, match="no checkpoint"):
        advance(slot).execute(task_context)
    assert confirmed(slot) == before


_ALTERED = [
    ({"slot_name": "another_slot"}, "another slot"),
    ({"schema_version": 99}, "schema version 99"),
    ({"end_lsn": "0/1"}, "was altered"),
    ({"start_lsn": "0/1"}, "was altered"),
    ({"end_lsn": "soon"}, "another type"),
    ({"manifest_uri": 5}, "another type"),
    ({"manifest_uri": "file:///etc/passwd"}, "another slot"),
]


@pytest.mark.parametrize(("changed", "message"), _ALTERED)
def test_an_altered_batch_stops_the_task(
    source: Session,
    slot: str,
    lake: TestLake,
    task_context: Any,
    changed: dict[str, Any],
    message: str,
) -> None:
    end_lsn = commit(source)
    lake.record(slot, end_lsn)
    before = confirmed(slot)
    with pytest.raises(AirflowFailException, match=message):
        advance(slot, batch=batch(slot, end_lsn) | changed).execute(task_context)
    assert confirmed(slot) == before


def test_a_slot_of_the_same_name_on_another_server_is_not_moved(
    source: Session, slot: str, lake: TestLake, task_context: Any
) -> None:
    """A mis-wired connection: moving that slot would lose the changes of somebody else's pipeline."""
    lake.system_identifier = "7"
    lake.record(slot, commit(source))
    before = confirmed(slot)
    with pytest.raises(AirflowFailException, match=r"SourceChanged: .*lake was filled from 7"):
        advance(slot).execute(task_context)
    assert confirmed(slot) == before


def test_a_backfill_run_is_refused(
    source: Session, slot: str, lake: TestLake, task_context: Any
) -> None:
    lake.record(slot, commit(source))
    before = confirmed(slot)
    task_context["dag_run"].run_type = "backfill"
    with pytest.raises(AirflowFailException, match=r"backfill run.*cannot go back"):
        advance(slot).execute(task_context)
    assert confirmed(slot) == before


def test_a_lake_that_does_not_answer_is_no_missing_checkpoint(
    source: Session, slot: str, lake: TestLake, task_context: Any, set_connection: Any
) -> None:
    from airflow_provider_pgoutput.errors import LakeUnavailable

    set_connection(
        "iceberg_default",
        {"conn_type": "iceberg", "host": "http://127.0.0.1:9", "extra": {"type": "rest"}},
    )
    with pytest.raises(LakeUnavailable):
        advance(slot).execute(task_context)
