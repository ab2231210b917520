"""The operator that fires when a pipeline passes a limit, also while the pipeline is paused."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import LakeUnavailable
from airflow_provider_pgoutput.lake.state import open_catalog
from airflow_provider_pgoutput.operators.check_health import PgoutputCheckHealthOperator
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.record import record_proof
from airflow_provider_pgoutput.proof.report import Proof, TableProof
from airflow_provider_pgoutput.proof.share import Share

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.airflow.conftest import TestLake


def check(slot: str, **limits: Any) -> PgoutputCheckHealthOperator:
    return PgoutputCheckHealthOperator(task_id="check", slot_name=slot, namespace="shop", **limits)


def test_without_limits_it_only_tells_what_it_saw(
    slot: str, lake: TestLake, task_context: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = check(slot).execute(task_context)
    printed = capfd.readouterr()
    said = " ".join((printed.out + printed.err).split())
    assert "bytes of WAL for it; how old the lake is, is not known; no proof is whole." in said
    assert seen["retained_bytes"] >= 0
    assert (seen["age_seconds"], seen["proof_age_seconds"]) == (None, None)


def test_wal_that_the_server_keeps(
    slot: str, source: psycopg.Connection[Any], lake: TestLake, task_context: Any
) -> None:
    for _ in range(3):
        source.execute("SELECT pg_logical_emit_message(true, 't', repeat('x', 100000))")
    passed = check(slot, max_retained_bytes="200000")
    with pytest.raises(
        AirflowFailException, match=r"LimitPassed: The server keeps 3\d\d,\d{3} bytes of WAL"
    ):
        passed.execute(task_context)
    assert check(slot, max_retained_bytes=1 << 30).execute(task_context)["retained_bytes"] > 300000
    warned = check(slot, max_retained_bytes=200000, on_limit_passed="warn")
    assert warned.execute(task_context)["retained_bytes"] > 300000


def test_a_slot_that_is_lost_or_gone(
    slot: str, lose_slot: Callable[[], None], lake: TestLake, task_context: Any
) -> None:
    with pytest.raises(AirflowFailException, match="LimitPassed: The slot does not exist"):
        check("nobody_made_it").execute(task_context)
    lose_slot()
    with pytest.raises(AirflowFailException, match="SlotLost"):
        check(slot).execute(task_context)


def test_the_lake_is_too_far_behind(slot: str, lake: TestLake, task_context: Any) -> None:
    with pytest.raises(AirflowFailException, match="No batch was applied yet"):
        check(slot, max_age=3600).execute(task_context)
    # As a table of an early version has it: when the batch was applied, but not up to when it has all.
    lake.record(slot, "0/20", start_lsn="0/10")
    assert check(slot, max_age=timedelta(hours=1)).execute(task_context)["age_seconds"] < 600
    with pytest.raises(AirflowFailException, match=r"The lake is 0:0.* behind the source"):
        check(slot, max_age="0").execute(task_context)
    # The slot is behind the lake: then its server is another one, which has more to give.
    lake.record(slot, "F/0", start_lsn="0/20")
    with pytest.raises(AirflowFailException, match=r"The lake is 0:0.* behind the source"):
        check(slot, max_age="0").execute(task_context)


def test_a_rebuilt_checkpoint_does_not_say_how_old_the_lake_is(
    slot: str, lake: TestLake, task_context: Any
) -> None:
    lake.record(slot, "0/20", batch_id="rebuilt")
    with pytest.raises(AirflowFailException, match="It is not known how old the lake is"):
        check(slot, max_age=3600).execute(task_context)
    # The batch was still staged, so its manifest said it.
    two_hours_ago = datetime.now(UTC) - timedelta(hours=2)
    lake.record(slot, "0/20", batch_id="rebuilt", complete_until=two_hours_ago)
    with pytest.raises(AirflowFailException, match=r"The lake is 2:00:\d\d behind the source"):
        check(slot, max_age=3600).execute(task_context)


def test_batches_that_do_not_keep_up_raise_the_alarm(
    slot: str, lake: TestLake, task_context: Any
) -> None:
    """A batch was applied just now. A limit ended it, so it has old changes only."""
    two_hours_ago = datetime.now(UTC) - timedelta(hours=2)
    lake.record(slot, "0/20", start_lsn="0/10", complete_until=two_hours_ago)
    # A replay writes an older batch once more. That makes the lake no older.
    lake.record(slot, "0/10", complete_until=two_hours_ago - timedelta(days=1))
    with pytest.raises(AirflowFailException, match=r"The lake is 2:00:\d\d behind the source"):
        check(slot, max_age=timedelta(hours=1)).execute(task_context)
    seen = check(slot, max_age=timedelta(hours=3)).execute(task_context)
    assert 7200 <= seen["age_seconds"] < 7800


def test_a_source_that_wrote_nothing_since_raises_no_alarm(
    slot: str, source: psycopg.Connection[Any], lake: TestLake, task_context: Any
) -> None:
    start = "0/10"
    # The server may write WAL of its own at any time. Then it is asked once more.
    for _ in range(20):
        moved = source.execute(
            "SELECT end_lsn FROM pg_replication_slot_advance(%s, pg_current_wal_lsn())", (slot,)
        ).fetchone()
        assert moved is not None
        if (end := str(moved[0])) != start:
            lake.record(slot, end, start_lsn=start)
            start = end
        with contextlib.suppress(AirflowFailException):
            check(slot, max_age="0").execute(task_context)
            break
    else:
        pytest.fail("a source that wrote nothing raised the alarm")
    source.execute("SELECT pg_logical_emit_message(true, 't', 'something new')")
    with pytest.raises(AirflowFailException, match=r"The lake is 0:0.* behind the source"):
        check(slot, max_age="0").execute(task_context)


def test_the_newest_proof_is_too_old_or_differs(
    slot: str, lake: TestLake, task_context: Any
) -> None:
    lake.record(slot, "0/20", start_lsn="0/10")
    with pytest.raises(AirflowFailException, match="The lake was never verified"):
        check(slot, max_proof_age=3600).execute(task_context)
    verify(lake, slot, Digest(1, 7))
    seen = check(slot, max_proof_age=timedelta(hours=1)).execute(task_context)
    assert seen["proof_age_seconds"] < 600
    with pytest.raises(AirflowFailException, match=r"public\.t was last verified 0:0"):
        check(slot, max_proof_age="0").execute(task_context)
    verify(lake, slot, Digest(1, 8))
    with pytest.raises(AirflowFailException, match=r"found differences in public\.t\."):
        check(slot).execute(task_context)


def test_a_part_is_no_proof_of_the_whole_table(
    slot: str, lake: TestLake, task_context: Any
) -> None:
    lake.record(slot, "0/20", start_lsn="0/10")
    verify(lake, slot, Digest(1, 7), Share(1, 2, 10))
    with pytest.raises(AirflowFailException, match=r"public\.t was never verified in whole"):
        check(slot, max_proof_age=3600).execute(task_context)
    verify(lake, slot, Digest(1, 7), Share(2, 2))
    check(slot, max_proof_age=3600).execute(task_context)


def verify(lake: TestLake, slot: str, found: Digest, share: Share | None = None) -> None:
    """Record a verification that found these rows in the lake."""
    table = TableProof("public.t", "shop.t", source=Digest(1, 7), lake=found, share=share)
    catalog = open_catalog(lake.catalog_name, lake.properties)
    record_proof(catalog, lake.namespace, Proof(slot, lake.system_identifier, Lsn(32), (table,)))


def test_a_lake_that_does_not_answer_hides_nothing_of_the_slot(
    slot: str, task_context: Any, set_connection: Callable[[str, dict[str, Any]], None]
) -> None:
    nobody = {"type": "rest", "uri": "http://127.0.0.1:1"}
    set_connection("iceberg_default", {"conn_type": "iceberg", "extra": nobody})
    with pytest.raises(
        AirflowFailException, match=r"The slot does not exist\. The lake was not looked at"
    ):
        check("nobody_made_it").execute(task_context)
    with pytest.raises(LakeUnavailable):
        check(slot).execute(task_context)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"on_limit_passed": "{{ 'ring' }}"}, "Unknown on_limit_passed"),
        ({"max_age": "an hour"}, "max_age is neither a timedelta nor a number of seconds"),
    ],
)
def test_a_wrong_argument_is_refused(
    slot: str, lake: TestLake, task_context: Any, limits: dict[str, str], said: str
) -> None:
    with pytest.raises(AirflowFailException, match=said):
        check(slot, **limits).execute(task_context)
