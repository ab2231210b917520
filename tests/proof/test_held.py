"""Totals of the source that are held until the lake has reached the LSN, beside a real pipeline."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.errors import LakeUnavailable, SlotNotFound
from airflow_provider_pgoutput.proof.comparison import BatchSpansLsn
from airflow_provider_pgoutput.proof.held import HeldTotals, complete, hold, release
from airflow_provider_pgoutput.proof.verify import MOST_LSNS, refuse_more_lsns, verify
from tests.faults.processes import run_program
from tests.proof.session_engine import SessionEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.proof.files.file_hash import HashedFiles, HashJob
    from airflow_provider_pgoutput.proof.request import ProofRequest
    from tests.proof.worlds import World

_TASK = Path(__file__).with_name("held_task.py")
_TABLES = """
CREATE TABLE items (id int PRIMARY KEY, v text, n numeric(8, 2));
CREATE TABLE named (name text PRIMARY KEY, v text);
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE versions (id int PRIMARY KEY, v text);
CREATE TABLE logged (id int PRIMARY KEY, v text);
CREATE TABLE filtered (id int PRIMARY KEY, shown text, hidden text);
CREATE TABLE emptied (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE items, named, keyless, versions, logged, emptied,
    filtered (id, shown) WHERE (id > 3);
INSERT INTO items SELECT i, 'v' || i, i / 4.0 FROM generate_series(1, 90) i;
INSERT INTO named SELECT 'ü' || i, 'v' FROM generate_series(1, 30) i;
INSERT INTO keyless SELECT i % 5, 'twice' FROM generate_series(1, 40) i;
INSERT INTO versions SELECT i, 'v' FROM generate_series(1, 9) i;
INSERT INTO logged SELECT i, 'v' FROM generate_series(1, 9) i;
INSERT INTO emptied SELECT i FROM generate_series(1, 9) i;
INSERT INTO filtered SELECT i, 'v', 'h' FROM generate_series(1, 9) i;
"""
_CHANGES = """
UPDATE items SET v = v || '.' WHERE id % 9 = 1;
INSERT INTO named VALUES (md5(random()::text), NULL);
DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless);
UPDATE versions SET v = v || '.' WHERE id < 5;
UPDATE logged SET v = v || '.' WHERE id < 5;
UPDATE filtered SET shown = shown || '.', hidden = 'h' WHERE id = 5;
"""


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    world = new_world(
        ("p",),
        table_options={
            "public.versions": TableOptions(mode="history"),
            "public.logged": TableOptions(mode="change_log"),
        },
    )
    world.sql(_TABLES)
    world.run()
    return world


def held(world: World) -> tuple[ProofRequest, HeldTotals]:
    """Totals at an LSN behind changes that the lake does not have yet, as a database keeps them."""
    world.sql(_CHANGES)
    request = world.request()
    found = hold(request)
    kept = HeldTotals.from_body(json.loads(json.dumps(found.to_body())))
    assert kept is not None
    return request, kept


def assert_proven(request: ProofRequest, totals: HeldTotals) -> None:
    """All tables are equal at the LSN, by their totals alone."""
    found, rest = complete(request, totals)
    assert not rest
    assert found.lsn == totals.lsn
    assert all(each.is_equal for each in found.tables), [*map(str, found.tables)]
    assert {each.relation_oid for each in found.tables} == totals.totals.keys()


def reach_lsn(world: World, request: ProofRequest, totals: HeldTotals) -> None:
    """Let the pipeline end a batch at the LSN, and go on behind it."""
    world.sql(_CHANGES)
    world.run()
    checkpoint = world.pipeline.checkpoint()
    assert checkpoint is not None
    assert checkpoint.end_lsn == totals.lsn, "the batch ends at the mark"
    release(request, totals)


def test_all_kinds_of_tables_are_proven_at_the_lsn(world: World) -> None:
    request, totals = held(world)
    # The file with the rows of the snapshot goes; its total was computed before.
    world.sql("TRUNCATE emptied")
    reach_lsn(world, request, totals)
    world.run()
    assert_proven(request, totals)
    found, _ = complete(request, totals)
    rows = {each.table: each.source.rows for each in found.tables if each.source is not None}
    assert len(rows) == 7
    assert rows["public.emptied"] == 9
    assert rows["public.filtered"] == 6


@pytest.mark.slow
def test_no_difference_is_hidden_and_none_is_invented(world: World) -> None:
    request, totals = held(world)
    reach_lsn(world, request, totals)
    world.damage(
        "UPDATE {}.items SET n = n + 0.01 WHERE id = 7",
        "UPDATE {}.named SET v = NULL WHERE name = 'ü8'",
        "UPDATE {}.versions SET v = 'wrong' WHERE id = 6",
    )
    # The total of a table is good only for the columns that it was made of.
    world.sql("ALTER TABLE keyless RENAME b TO c")
    found, rest = complete(request, totals)
    names = {each.table for each in found.tables}
    assert names == {"public.emptied", "public.filtered", "public.logged"}
    assert all(each.is_equal for each in found.tables)
    again = verify(request, world.run, relation_oids=rest)
    assert {each.table for each in again.different} == {
        "public.items",
        "public.named",
        "public.versions",
    }
    assert len(again.tables) == 4
    everything = frozenset({*rest, *(each.relation_oid for each in found.tables)})
    promoted = dataclasses.replace(totals, timeline=totals.timeline + 1)
    assert complete(request, promoted)[1] == everything
    world.damage(
        "UPDATE {}.items SET n = n - 0.01 WHERE id = 7",
        "UPDATE {}.named SET v = 'v' WHERE name = 'ü8'",
        "UPDATE {}.versions SET v = 'v' WHERE id = 6 AND _pgoutput_is_current",
    )


def test_a_batch_past_the_lsn_proves_nothing(world: World) -> None:
    request, totals = held(world)
    release(request, totals)
    world.sql(_CHANGES)
    world.run()
    with pytest.raises(BatchSpansLsn) as spans:
        complete(request, totals)
    refuse_more_lsns(request, MOST_LSNS - 1, spans.value)
    with pytest.raises(LakeUnavailable, match="went past the LSN of the verification 3 times"):
        refuse_more_lsns(request, MOST_LSNS, spans.value)


def test_a_lake_before_the_lsn_proves_nothing(world: World) -> None:
    request, totals = held(world)
    with pytest.raises(LakeUnavailable, match="did not reach the LSN"):
        complete(request, totals)
    release(request, totals)
    world.run()


def test_a_task_that_is_killed_leaves_a_mark_that_expires_and_nothing_else(world: World) -> None:
    request = dataclasses.replace(world.request(), wait_seconds=1)
    body = dataclasses.asdict(request)
    assert run_program(_TASK, body, "verify.after_totals")
    area = StagingArea(request.staging_uri)
    (name,) = area.names(layout.mark_folder(request.slot_name))
    mark = layout.parse_mark_name(name)
    assert mark is not None
    # Totals may take hours, whatever the wait behind them is. The mark must not expire before that.
    assert 23 * 3600 < mark[1] - time.time() < 25 * 3600
    world.run()
    checkpoint = world.pipeline.checkpoint()
    assert checkpoint is not None
    assert checkpoint.end_lsn == mark[0]
    area.delete_file(f"{layout.mark_folder(request.slot_name)}/{name}")
    request, totals = held(world)
    reach_lsn(world, request, totals)
    body = dataclasses.asdict(request) | {"held": totals.to_body()}
    assert run_program(_TASK, body, "verify.after_wait")
    found, rest = complete(request, totals)
    assert len(found.tables) + len(rest) == 7


def test_two_verifications_wait_at_once(world: World) -> None:
    """Each has a mark and an LSN of its own, and the end of one wait does not end that of the other."""
    first, second = held(world), held(world)
    assert first[1].lsn < second[1].lsn
    reach_lsn(world, *first)
    reach_lsn(world, *second)
    world.run()
    for each in (first, second):
        assert_proven(*each)


class Watching(SessionEngine):
    """Looks which transactions are open at the source while files are hashed."""

    def __init__(self, spark: SparkSession, conninfo: str) -> None:
        super().__init__(spark)
        self.open: list[str] = []
        self._conninfo = conninfo

    def hashed(self, job: HashJob) -> HashedFiles:
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            found = session.execute(
                "SELECT query FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
                " AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)"
            )
            self.open += [query for (query,) in found]
        return super().hashed(job)


def test_no_transaction_is_open_at_the_source_while_the_lake_is_hashed(
    world: World, spark: SparkSession
) -> None:
    """To hash large tables may take hours, and a transaction would keep old row versions at the source."""
    request, totals = held(world)
    reach_lsn(world, request, totals)
    engine = Watching(spark, world.pipeline.conninfo)
    assert_proven(dataclasses.replace(request, hash_engine=engine), totals)
    assert engine.jobs
    assert engine.open == []


@pytest.mark.parametrize("answer", ["copy", "difference"])
def test_a_slot_that_is_lost_during_the_wait(new_world: Callable[..., World], answer: str) -> None:
    """The new slot begins past the LSN, so the lake is never at it. Another LSN is taken."""
    world = new_world(("lost",))
    world.sql(
        "CREATE TABLE items (id int PRIMARY KEY, v text); CREATE TABLE quiet (id int PRIMARY KEY);"
        "CREATE PUBLICATION lost FOR TABLE items, quiet;"
        "INSERT INTO items SELECT i, 'v' FROM generate_series(1, 90) i; INSERT INTO quiet VALUES (1)"
    )
    world.run()
    change = "UPDATE items SET v = v || '.' WHERE id % 9 = 1"
    world.sql(change)
    request = world.request()
    totals = hold(request)
    world.sql(f"SELECT pg_drop_replication_slot('{world.pipeline.slot_name}'); {change}")
    with pytest.raises(SlotNotFound):
        world.pipeline.stage()
    with pytest.raises(LakeUnavailable, match="did not reach the LSN"):
        complete(request, totals)
    world.pipeline.apply(world.pipeline.stage(on_slot_lost=answer))
    with pytest.raises(BatchSpansLsn):
        complete(request, totals)
    release(request, totals)
    world.sql(change)
    again = hold(request, totals.lsns + 1)
    world.damage("UPDATE {}.items SET v = 'wrong' WHERE id = 2")
    world.sql(change)
    world.run()
    found, rest = complete(request, again)
    assert [each.table for each in found.tables] == ["public.quiet"]
    release(request, again)
    second = verify(request, world.run, relation_oids=rest)
    assert [each.table for each in second.different] == ["public.items"]
