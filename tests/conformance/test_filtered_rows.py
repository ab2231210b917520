"""Filters from PostgreSQL to the lake: the table has the rows that pass, and verifications compare these.

What is not here: staging, which has more ways in (``tests/capture/filters/``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_ROW_FILTER
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from airflow_provider_pgoutput.proof.repair import repair
from airflow_provider_pgoutput.proof.verify import verify
from tests.conformance.one_table import Lake
from tests.conformance.pipeline import CATALOG
from tests.proof.worlds import World

if TYPE_CHECKING:
    from airflow_provider_pgoutput.proof.report import TableProof
    from tests.conformance.pipeline import Pipeline

CONDITION = "(region = 'eu' AND amount >= 10) OR at > '2030-01-01 00:00:00+00'"
ALL = ("id", "region", "amount", "at")


def make(lake: Lake) -> None:
    lake.execute(
        "CREATE TABLE t(id int PRIMARY KEY, region text, amount numeric(10,2), at timestamptz)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
        "INSERT INTO t SELECT i, (ARRAY['eu', 'us', NULL])[i % 3 + 1], i % 25,"
        " CASE WHEN i % 20 = 0 THEN 'infinity'::timestamptz END FROM generate_series(1, 200) i",
    )


def passing(lake: Lake, condition: str) -> set[tuple[object, ...]]:
    # The lake has NULL for what its type cannot hold.
    return set(
        lake.execute(
            f"SELECT id, region, amount, CASE WHEN isfinite(at) THEN at END FROM t WHERE {condition}"
        )
    )


def proof_of(world: World) -> TableProof:
    (proof,) = verify(world.request(on_difference="succeed", keys_shown=9), world.run).tables
    return proof


@pytest.mark.slow
def test_filtered_rows(pipeline: Pipeline) -> None:
    lake = Lake(pipeline)
    make(lake)
    pipeline.capture_options.update(filters={"public.t": CONDITION})
    lake.run()
    assert set(lake.rows(*ALL)) == passing(lake, CONDITION)
    lake.run(
        "UPDATE t SET amount = amount + 8 WHERE id % 2 = 0",
        "UPDATE t SET region = 'us', id = id + 1000 WHERE id % 5 = 0",
        "UPDATE t SET region = 'eu', id = id + 2000 WHERE id % 7 = 0",
        "DELETE FROM t WHERE id % 11 = 0",
        "INSERT INTO t VALUES (5001, 'eu', 10, NULL), (5002, 'eu', 9.99, NULL), (5003, NULL, 10, NULL)",
    )
    assert set(lake.rows(*ALL)) == passing(lake, CONDITION)
    assert "\"region\\\" = 'eu'" in lake.table().properties[PROPERTY_ROW_FILTER]

    # A verification needs no argument: the table says which rows to compare.
    world = World(pipeline, ("p",))
    proof = proof_of(world)
    assert proof.is_equal, str(proof)
    assert f"{len(passing(lake, CONDITION))} rows" in str(proof)
    name = f"{CATALOG}.{pipeline.namespace}.t"
    world.damage(f"DELETE FROM {name} WHERE id = 5001", f"INSERT INTO {name} (id) VALUES (5002)")
    proof = proof_of(world)
    assert proof.is_different
    assert proof.differences is not None
    assert len(proof.differences.keys) == 2
    assert "5001" in str(proof.differences.keys)
    assert "5002" in str(proof.differences.keys)
    request = world.request(on_difference="repair")
    second = repair(request, verify(request, world.run), run=world.run, wait=world.run)
    assert second is not None
    assert second.tables[0].is_equal
    assert set(lake.rows(*ALL)) == passing(lake, CONDITION)

    _needs_a_copy(lake, world)


def _needs_a_copy(lake: Lake, world: World) -> None:
    """Another filter is refused by capture, and by the lake itself if the checkpoint does not know it."""
    pipeline, other = lake.pipeline, {"public.t": "region = 'us'"}
    lake.execute("UPDATE t SET amount = amount + 1")
    with pytest.raises(ConfigurationError, match="were filtered in another way"):
        pipeline.stage(filters=other)
    found = pipeline.checkpoint()
    assert found is not None
    assert all(shape.row_filter for shape in found.shapes.values())
    forgotten = {"checkpoint": found.__class__(found.end_lsn, found.system_identifier)}
    batch = pipeline.stage(filters=other, **forgotten)
    before = pipeline.snapshot_ids()
    with pytest.raises(TableRefused, match="passed another filter") as refused:
        pipeline.apply(batch)
    assert "copy_tables=['public.t']" in str(refused.value)
    assert pipeline.snapshot_ids() == before

    lake.run(filters=other, copy_tables=("public.t",))
    pipeline.capture_options.update(filters=other)
    assert set(lake.rows(*ALL)) == passing(lake, "region = 'us'")
    lake.run("UPDATE t SET region = 'us' WHERE id < 10")
    assert set(lake.rows(*ALL)) == passing(lake, "region = 'us'")
    assert proof_of(world).is_equal
    # Without a filter the copy brings all rows, and the property says so.
    pipeline.capture_options.update(filters={})
    lake.run(copy_tables=("public.t",))
    assert lake.agrees("id", "region", "amount")
    assert lake.table().properties[PROPERTY_ROW_FILTER] == ""
    assert proof_of(world).is_equal


def test_after_a_lost_slot_only_passing_rows_are_compared(pipeline: Pipeline) -> None:
    lake = Lake(pipeline)
    make(lake)
    pipeline.capture_options.update(filters={"public.t": CONDITION})
    lake.run()
    world = World(pipeline, ("p",))
    lake.execute(
        f"SELECT pg_drop_replication_slot('{pipeline.slot_name}')",
        # Into the filter, out of it, inside and outside.
        "UPDATE t SET region = 'eu', amount = 50 WHERE id = 4",
        "UPDATE t SET region = 'us' WHERE id = 12",
        "UPDATE t SET amount = 77 WHERE id = 15",
        "UPDATE t SET amount = 78 WHERE region = 'us' AND at IS NULL AND id > 30",
    )
    batch = pipeline.stage(on_slot_lost="difference")
    (table,) = batch.manifest.tables
    assert table.copy_lsn is None
    assert (table.counts.updates, table.counts.deletes) == (2, 1)
    pipeline.apply(batch)
    assert set(lake.rows(*ALL)) == passing(lake, CONDITION)
    lake.run(
        "UPDATE t SET region = 'eu', amount = 20 WHERE id % 3 = 0", "DELETE FROM t WHERE id < 9"
    )
    assert set(lake.rows(*ALL)) == passing(lake, CONDITION)
    assert proof_of(world).is_equal


@pytest.mark.slow
def test_a_replay_in_place_from_before_another_filter_is_refused(pipeline: Pipeline) -> None:
    lake = Lake(pipeline)
    make(lake)
    lake.run(filters={"public.t": CONDITION})
    lake.run("UPDATE t SET amount = 11", filters={"public.t": CONDITION})
    lake.run(filters={"public.t": "amount = 11"}, copy_tables=("public.t",))
    rows = lake.rows(*ALL)
    for first in (0, 1):
        with pytest.raises(TableRefused, match="passed another filter") as refused:
            replay(pipeline.spark, pipeline.replay_job(first))
        assert "with the filter of now" in str(refused.value)
        assert lake.rows(*ALL) == rows
    replay(pipeline.spark, pipeline.replay_job(2))
    assert lake.rows(*ALL) == rows
