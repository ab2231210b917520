"""Where the first batch begins when the lake was loaded from outside: checked, never moved forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    SlotAheadOfCheckpoint,
    SlotNotFound,
    SourceChanged,
)
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

TRANSPORTS = ("sql", "walsender")


def written(source: Source) -> Lsn:
    return Lsn.parse(source.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def position(source: Source) -> Lsn:
    confirmed = source.confirmed()
    assert confirmed is not None
    return Lsn.parse(confirmed)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_the_first_batch_begins_at_start_lsn(source: Source, transport: str) -> None:
    """What the slot holds from before is not staged again, and limits wait until the load is passed."""
    source.make_slot()
    source.execute("INSERT INTO t VALUES (1, 'in the load')")
    start = written(source)
    source.execute("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    options: dict[str, Any] = {
        "initial_copy": "never", "start_lsn": start, "max_changes": 1, "transport": transport,
    }  # fmt: skip
    first = source.stage(**options)
    assert (first.start_lsn, first.loaded_lsn) == (start, str(start))
    assert [row["a"] for row in source.changes(first, "public.t")] == [2, 3]
    assert [table.copy_lsn for table in first.tables] == [None]
    assert source.stage(**options).batch_id == first.batch_id
    # Once there is a checkpoint, that decides, and the limits hold.
    source.execute("INSERT INTO t VALUES (4)", "INSERT INTO t VALUES (5)")
    second = source.stage(checkpoint=checkpoint_of(first), **options)
    assert [row["a"] for row in source.changes(second, "public.t")] == [4]


def test_a_checkpoint_that_was_rebuilt_does_not_cut_the_first_batch(source: Source) -> None:
    """The load may hold all of it: whatever it found of a row, the last state has to win."""
    source.make_slot()
    start = position(source)
    source.execute("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    server = source.execute("SELECT system_identifier::text FROM pg_control_system()")[0][0]
    batch = source.stage(
        checkpoint=Checkpoint(start, server),
        initial_copy="never",
        start_lsn=start,
        max_changes=1,
    )
    assert batch.loaded_lsn == str(batch.start_lsn)
    assert [row["a"] for row in source.changes(batch, "public.t")] == [1, 2]


def test_tables_that_came_since_the_slot_was_made_are_named(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute("CREATE TABLE u(a int PRIMARY KEY)")
    source.make_slot()
    source.execute("INSERT INTO u VALUES (1)", "ALTER PUBLICATION p ADD TABLE u")
    source.stage(initial_copy="never", start_lsn=position(source))
    assert "took up public.u since the slot's position" in caplog.text
    assert "took up public.t" not in caplog.text


def test_a_slot_that_is_past_start_lsn_is_refused(source: Source) -> None:
    start = written(source)
    source.execute("INSERT INTO t VALUES (1)")
    source.make_slot()
    confirmed = source.confirmed()
    with pytest.raises(SlotAheadOfCheckpoint, match="start_lsn") as refusal:
        source.stage(initial_copy="never", start_lsn=start)
    assert str(confirmed) in str(refusal.value)
    assert refusal.value.advice
    assert source.confirmed() == confirmed
    assert source.manifests() == []
    source.stage(initial_copy="never", start_lsn=position(source))


def test_a_position_that_the_source_has_not_written_is_refused(source: Source) -> None:
    source.make_slot()
    with pytest.raises(SourceChanged, match="start_lsn"):
        source.stage(initial_copy="never", start_lsn=Lsn(2**62))


def test_no_slot_is_made_for_a_start_lsn(source: Source) -> None:
    """A slot that is made now begins past the load."""
    with pytest.raises(SlotNotFound, match="before the tables are loaded"):
        source.stage(initial_copy="never", start_lsn=written(source))
    assert source.confirmed() is None


def test_with_two_phase_the_slot_stands_at_start_lsn(source: Source) -> None:
    source.execute(
        f"SELECT pg_create_logical_replication_slot('{source.slot_name}', 'pgoutput', false, true)"
    )
    options = {"initial_copy": "never", "options": StreamOptions(two_phase=True)}
    start = position(source)
    source.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(ConfigurationError, match="two_phase"):
        source.stage(start_lsn=written(source), **options)
    batch = source.stage(start_lsn=start, **options)
    assert [row["a"] for row in source.changes(batch, "public.t")] == [1]


def test_tables_can_be_copied_although_the_others_were_loaded(source: Source) -> None:
    source.execute("CREATE TABLE u(a int PRIMARY KEY)", "ALTER PUBLICATION p ADD TABLE u")
    source.execute("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
    source.make_slot()
    source.execute("INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (2)")
    options: dict[str, Any] = {"initial_copy": "never", "start_lsn": position(source)}
    assert source.stage(**options).changes == 2
    batch = source.stage(copy_tables=["public.u"], **options)
    assert [row["a"] for row in source.changes(batch, "public.t")] == [2]
    assert sorted(row["a"] for row in source.copied(batch, "public.u")) == [1, 2]
    assert source.changes(batch, "public.u") == []


def test_a_failover_slot_is_made_where_the_server_has_them(source: Source) -> None:
    with psycopg.connect(source.conninfo) as session:
        has_failover = session.info.server_version >= 170000
    if not has_failover:
        with pytest.raises(ConfigurationError, match="17"):
            source.stage(failover=True)
        assert source.confirmed() is None
        return
    source.stage(failover=True, options=StreamOptions(two_phase=True))
    (facts,) = source.execute(
        f"SELECT failover, two_phase FROM pg_replication_slots WHERE slot_name = '{source.slot_name}'"
    )
    assert facts == (True, True)


@pytest.mark.parametrize(
    "options",
    [
        {"initial_copy": True},
        {"initial_copy": "sometimes"},
        {"start_lsn": Lsn(7)},
        {"initial_copy": "never", "start_lsn": Lsn(0)},
        {"on_recreated_table": "guess"},
        {"on_new_table": "guess"},
        {"on_new_table": "ignore", "initial_copy": "never"},
    ],
)
def test_arguments_of_the_copy_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        CaptureRequest("", "s", ["p"], "/x", **options)
