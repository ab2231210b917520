"""The slot goes when its name was typed, and never otherwise."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.errors import SlotBusy
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from airflow_provider_pgoutput.operators.retire import PgoutputDropSlotOperator

if TYPE_CHECKING:
    import psycopg

    Session = psycopg.Connection[tuple[Any, ...]]


def drop(slot: str, **arguments: Any) -> PgoutputDropSlotOperator:
    return PgoutputDropSlotOperator(task_id="drop", slot_name=slot, **arguments)


def exists(session: Session, slot: str) -> bool:
    found = session.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", (slot,))
    return found.fetchone() is not None


@pytest.mark.parametrize("typed", [None, "", "yes", "another_slot", "None"])
def test_without_its_name_nothing_is_dropped(
    source: Session, slot: str, task_context: Any, typed: str | None
) -> None:
    with pytest.raises(AirflowFailException, match="without its name"):
        drop(slot, confirmation=typed).execute(task_context)
    assert exists(source, slot)


def test_with_its_name_it_is_dropped_once(source: Session, slot: str, task_context: Any) -> None:
    confirmed = str(PgoutputHook().slot(slot).confirmed_flush_lsn)
    task = drop(slot, confirmation=slot)
    assert task.execute(task_context) == {"slot_name": slot, "confirmed_flush_lsn": confirmed}
    assert not exists(source, slot)
    # As a retry whose first answer was lost.
    assert task.execute(task_context) == {"slot_name": slot, "confirmed_flush_lsn": None}


def test_a_slot_that_is_none_of_a_pipeline_stays(
    source: Session, slot: str, task_context: Any
) -> None:
    other = f"{slot}_physical"
    source.execute("SELECT pg_create_physical_replication_slot(%s)", (other,))
    try:
        with pytest.raises(AirflowFailException, match="physical"):
            drop(other, confirmation=other).execute(task_context)
        assert exists(source, other)
    finally:
        source.execute("SELECT pg_drop_replication_slot(%s)", (other,))


def test_a_slot_that_somebody_reads_is_tried_again_later(
    source: Session, slot: str, task_context: Any
) -> None:
    with contextlib.closing(PgoutputHook().get_conn(replication=True)) as walsender:
        walsender.execute(
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0"
            " (proto_version '1', publication_names 'nobody')"
        )
        with pytest.raises(SlotBusy):
            drop(slot, confirmation=slot).execute(task_context)
    assert exists(source, slot)
