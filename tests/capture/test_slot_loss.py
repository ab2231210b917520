"""on_slot_lost="copy": a batch of copies that spans what a slot cannot give any more."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.stream.options import SQL, WALSENDER, StreamOptions
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    PublicationChanged,
    SlotAheadOfCheckpoint,
    SlotLost,
    SlotNotFound,
    TableRefused,
)
from airflow_provider_pgoutput.proof.after_loss import LakeAfterLoss
from airflow_provider_pgoutput.proof.request import ProofRequest
from tests.capture.pipeline_support import checkpoint_of, checkpoint_with_shapes

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source


@pytest.fixture
def lake(source: Source) -> Checkpoint:
    """The checkpoint after the copy of two tables; since then a row came to each."""
    source.execute(
        "CREATE TABLE one (a int PRIMARY KEY)",
        "CREATE TABLE two (a int PRIMARY KEY)",
        "INSERT INTO one SELECT generate_series(1, 3)",
        "CREATE PUBLICATION loss FOR TABLE one, two",
    )
    first = source.stage(publication_names=("loss",))
    source.execute("INSERT INTO one VALUES (4)", "INSERT INTO two VALUES (4)")
    return checkpoint_of(first)


def stage(source: Source, lake: Checkpoint, **options: Any) -> Manifest:
    given = {"publication_names": ("loss",), "on_slot_lost": COPY, **options}
    return source.stage(checkpoint=lake, **given)


def drop(source: Source) -> None:
    source.drop_slot(source.slot_name)


def assert_all_is_copied(source: Source, batch: Manifest, lake: Checkpoint) -> None:
    """From the checkpoint on, every table whole, and the stream goes on from there without a gap."""
    assert batch.start_lsn == lake.end_lsn
    assert batch.end_lsn > lake.end_lsn
    assert {each.name for each in batch.tables if each.copy_lsn} == {"public.one", "public.two"}
    confirmed = source.confirmed()
    assert confirmed is not None
    assert lake.end_lsn < Lsn.parse(confirmed) <= batch.end_lsn
    source.execute("INSERT INTO one VALUES (100)", "INSERT INTO two VALUES (100)")
    after = stage(source, checkpoint_of(batch))
    assert not any(each.copy_lsn for each in after.tables)
    for name in ("one", "two"):
        table = f"public.{name}"
        staged = [row["a"] for row in source.copied(batch, table)]
        for each in (batch, after):
            if any(found.name == table for found in each.tables):
                staged += [row["a"] for row in source.changes(each, table)]
        assert sorted(staged) == [
            row[0] for row in source.execute(f"SELECT a FROM {name} ORDER BY a")
        ]


@pytest.mark.parametrize("transport", [SQL, WALSENDER])
def test_a_dropped_slot(source: Source, lake: Checkpoint, transport: str) -> None:
    drop(source)
    with pytest.raises(SlotNotFound, match="on_slot_lost"):
        stage(source, lake, on_slot_lost="fail")
    assert source.confirmed() is None
    batch = stage(source, lake, transport=transport)
    assert batch.end_lsn == Lsn.parse(source.confirmed() or "")
    assert_all_is_copied(source, batch, lake)


def test_an_invalidated_slot(source: Source, lake: Checkpoint) -> None:
    source.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
    try:
        for _segment in range(8):
            source.execute(
                "SELECT pg_logical_emit_message(false, 'loss', 'x')", "SELECT pg_switch_wal()"
            )
        source.execute("CHECKPOINT")
        with pytest.raises(SlotLost, match="on_slot_lost"):
            stage(source, lake, on_slot_lost="fail")
        batch = stage(source, lake)
    finally:
        source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    assert_all_is_copied(source, batch, lake)


@pytest.mark.parametrize("transport", [SQL, WALSENDER])
def test_a_slot_that_moved(source: Source, lake: Checkpoint, transport: str) -> None:
    """As when an attempt died after it made the slot: what commits from there on can be read."""
    drop(source)
    source.make_slot()
    source.execute("INSERT INTO two VALUES (5)")
    with pytest.raises(SlotAheadOfCheckpoint, match="on_slot_lost"):
        stage(source, lake, on_slot_lost="fail")
    batch = stage(source, lake, transport=transport)
    assert_all_is_copied(source, batch, lake)


def test_an_attempt_that_died_in_its_copy(source: Source, lake: Checkpoint) -> None:
    """What it sealed from the new slot on is taken over."""
    drop(source)
    options = {"publication_names": ("loss",), "on_slot_lost": COPY, "checkpoint": lake}
    assert source.stage_in_process("stage.after_files", **options) == -9
    made = source.confirmed()
    source.execute("INSERT INTO two VALUES (6)")
    batch = stage(source, lake)
    assert source.confirmed() == made
    assert_all_is_copied(source, batch, lake)


def test_a_copy_of_before_the_loss_is_not_taken_over(source: Source, lake: Checkpoint) -> None:
    """What committed between that copy and the new slot could not be read."""
    options = {"publication_names": ("loss",), "copy_tables": ("public.one",), "checkpoint": lake}
    assert source.stage_in_process("stage.after_files", **options) == -9
    source.execute("INSERT INTO one VALUES (7)")
    drop(source)
    assert_all_is_copied(source, stage(source, lake), lake)


def test_a_batch_that_was_sealed_before_the_loss_comes_first(
    source: Source, lake: Checkpoint
) -> None:
    sealed = stage(source, lake)
    assert not any(each.copy_lsn for each in sealed.tables)
    drop(source)
    assert stage(source, lake).batch_id == sealed.batch_id
    assert source.confirmed() is None
    assert_all_is_copied(source, stage(source, checkpoint_of(sealed)), checkpoint_of(sealed))


def test_a_slot_lost_before_anything_was_applied(source: Source) -> None:
    """There is no checkpoint yet; the first run simply begins anew."""
    source.execute("CREATE PUBLICATION loss FOR TABLE t", "INSERT INTO t VALUES (1, 'x')")
    source.stage(publication_names=("loss",))
    source.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '16MB'", "SELECT pg_reload_conf()")
    try:
        for _segment in range(8):
            source.execute(
                "SELECT pg_logical_emit_message(false, 'loss', 'x')", "SELECT pg_switch_wal()"
            )
        source.execute("CHECKPOINT")
        with pytest.raises(SlotLost):
            source.stage(publication_names=("loss",))
        again = source.stage(publication_names=("loss",), on_slot_lost=COPY)
    finally:
        source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    assert [row["a"] for row in source.copied(again, "public.t")] == [1]
    assert source.confirmed() == str(again.end_lsn)


def test_a_table_made_again_is_not_replaced_unasked(source: Source, lake: Checkpoint) -> None:
    source.execute("DROP TABLE two", "CREATE TABLE two (a int PRIMARY KEY)")
    source.execute("ALTER PUBLICATION loss ADD TABLE two")
    drop(source)
    known = {1: "public.two"}
    with pytest.raises(TableRefused):
        stage(source, dataclasses.replace(lake, tables=known))
    assert source.confirmed() is None
    batch = stage(source, dataclasses.replace(lake, tables=known), on_recreated_table=COPY)
    assert {each.name for each in batch.tables} == {"public.one", "public.two"}


def test_a_new_table_is_left_out_after_a_loss_where_it_shall(
    source: Source, lake: Checkpoint
) -> None:
    drop(source)
    oids = source.execute("SELECT oid::int FROM pg_class WHERE relname = 'one'")
    known = dataclasses.replace(lake, tables={oids[0][0]: "public.one"})
    with pytest.raises(TableRefused, match="the lake does not have it"):
        stage(source, known, on_new_table="fail")
    assert source.confirmed() is None
    batch = stage(source, known, on_new_table="ignore")
    assert {each.name for each in batch.tables} == {"public.one"}


def test_a_difference_needs_something_that_compares(source: Source, lake: Checkpoint) -> None:
    """What it finds is shown in ``tests/proof/test_after_loss.py``."""
    drop(source)
    with pytest.raises(ConfigurationError, match="needs a lake_comparison"):
        stage(source, lake, on_slot_lost="difference")


@pytest.mark.parametrize(("column", "mask"), [("a", "hash"), ("b", "drop"), ("b", "null")])
def test_a_table_whose_masks_hide_what_differs_is_copied(
    source: Source, caplog: pytest.LogCaptureFixture, column: str, mask: str
) -> None:
    """Of a key that is hashed nobody knows the row, and of other values the lake has none."""
    source.execute("INSERT INTO t VALUES (1, 'x')")
    masks = {"columns": {f"public.t.{column}": mask}, "mask_secret": b"a secret of this test"}
    first = source.stage(**masks)
    drop(source)
    source.execute("UPDATE t SET b = 'y'")
    catalog = {"type": "sql", "uri": f"sqlite:///{source.staging}.db"}
    asked = ProofRequest(
        conninfo=source.reader,
        slot_name=source.slot_name,
        publication_names=("p",),
        staging_uri=str(source.staging),
        namespace="n",
        catalog_name="c",
        catalog_properties=catalog,
    )
    batch = source.stage(
        **masks,
        checkpoint=checkpoint_with_shapes(first),
        on_slot_lost="difference",
        lake_comparison=LakeAfterLoss(asked),
    )
    assert (
        "public.t is copied: a column of its key is masked, or the lake has no values"
        in caplog.text
    )
    assert len(source.copied(batch, "public.t")) == 1


@pytest.mark.parametrize("slot", ["dropped", "moved"])
def test_partitions_published_under_another_name_stop_the_run(source: Source, slot: str) -> None:
    """A copy under other names would leave the tables of the former ones as they were, unseen."""
    source.execute(
        "CREATE TABLE root (a int PRIMARY KEY) PARTITION BY RANGE (a)",
        "CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (100)",
        "CREATE PUBLICATION loss FOR TABLE root",
    )
    lake = checkpoint_of(source.stage(publication_names=("loss",)))
    source.execute(
        "INSERT INTO root VALUES (1)", "ALTER PUBLICATION loss SET (publish_via_partition_root)"
    )
    drop(source)
    if slot == "moved":
        source.make_slot()
    confirmed = source.confirmed()
    with pytest.raises(PublicationChanged, match="publish_via_partition_root"):
        stage(source, lake)
    assert source.confirmed() == confirmed
    source.execute("ALTER PUBLICATION loss SET (publish_via_partition_root = false)")
    assert [row["a"] for row in source.copied(stage(source, lake), "public.leaf")] == [1]


def test_with_two_phase_the_slot_is_made_for_it(source: Source, lake: Checkpoint) -> None:
    drop(source)
    source.make_slot()
    batch = stage(source, lake, options=StreamOptions(two_phase=True))
    slot = f"pg_replication_slots WHERE slot_name = '{source.slot_name}'"
    assert source.execute(f"SELECT two_phase FROM {slot}") == [(True,)]
    assert batch.start_lsn == lake.end_lsn
    assert {each.name for each in batch.tables} == {"public.one", "public.two"}
