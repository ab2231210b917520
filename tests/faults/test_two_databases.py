"""Two databases on two servers write one table at once, each by a pipeline of its own, and tasks are killed.

Killed is the Python process of a task, at a crash point of chance, as in ``test_kill_sweep.py``. Then the
slices of one source table are replayed in place, with a kill, while the other pipeline goes on. In most
batches all slices have few changes, so these are one commit. Batches that Python made, without PostgreSQL,
are in ``tests/apply/test_shared_tables.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table.snapshots import ancestors_of

from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.checkpoint import (
    SUMMARY_END_LSN,
    SUMMARY_SLOT,
)
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, TableOptions
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.archive import ArchivedBatch, batches_between
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.errors import CommitStateUnknown, LakeUnavailable, PublishRefused
from airflow_provider_pgoutput.slices import SUMMARY_SLICE, Slice
from tests import setting
from tests.conformance.pipeline import CATALOG, Pipeline
from tests.faults.crash_points import ELSEWHERE, crash_points
from tests.faults.processes import (
    advance_in_process,
    apply_attached,
    replay_attached,
    stage_in_process,
)
from tests.proof.worlds import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from quickstart.postgres import EmbeddedPostgres

_TENANTS = ("a", "b")
_SHARDS = ("eu", "us")
_SETUP = """
CREATE SCHEMA tenant_{0};
CREATE TABLE tenant_{0}.orders (id int PRIMARY KEY, v text, n int);
CREATE TABLE tenant_{0}.journal (id int PRIMARY KEY, v text);
INSERT INTO tenant_{0}.orders SELECT i, 'copied', i FROM generate_series(1, 20) i;
INSERT INTO tenant_{0}.journal SELECT i, 'copied' FROM generate_series(1, 5) i;
"""
#: Options of ``orders``, and which of its rows are current. ``journal`` is a change log in all of them.
_MODES: dict[str, tuple[dict[str, Any], str]] = {
    "upsert": ({}, "true"),
    "history": ({"mode": "history"}, "_pgoutput_is_current"),
    "soft delete, version 3": ({"soft_delete": True, "format_version": 3}, "_pgoutput_op <> 'D'"),
}
_CAPTURE = [each for each in crash_points("capture") if each not in ELSEWHERE]
_STAGE = [each for each in _CAPTURE if each.startswith("stage.")]
_ADVANCE = [each for each in _CAPTURE if each.startswith("advance.")]
_APPLY = [each for each in crash_points("apply") if each.startswith("apply.")]
_REPLAY = [each for each in crash_points("apply") if each.startswith("replay.")]
#: Every run passes them.
_SURE = {
    "stage.before_manifest",
    "stage.after_manifest",
    "apply.after_prepare",
    "apply.after_publish",
    "apply.before_checkpoint",
    "advance.before_move",
}
#: Errors after which Airflow runs a task again.
_TO_TRY_AGAIN = (CommitStateUnknown, LakeUnavailable, PublishRefused)
#: A task that is refused because the other pipeline writes is run again, as Airflow does.
_MOST_TRIES = 20

Rows = Counter[tuple[Any, ...]]


class _Shard:
    """A database, its pipeline, and the kills of its tasks."""

    def __init__(self, pipeline: Pipeline, shard: str, seed: int) -> None:
        self.pipeline, self.shard = pipeline, shard
        self.world = World(pipeline, ("p",))
        self.kills = 0
        #: Committed changes of ``journal``, by tenant.
        self.logged: Counter[str] = Counter()
        self._chance = random.Random(f"{shard} {seed}")  # noqa: S311 - a test has to repeat itself
        self._new = 1000

    def change(self) -> None:
        """Some transactions that change every table; now and then one with many changes."""
        with psycopg.connect(self.pipeline.conninfo, autocommit=True) as session:
            for tenant in self._chance.choices(_TENANTS, k=4) + list(_TENANTS):
                with session.transaction():
                    for _ in range(self._chance.randint(1, 3)):
                        session.execute(self._statement().format(tenant).encode())
                    self._new += 1
                    row = f"INSERT INTO tenant_{tenant}.orders VALUES ({self._new}, 'row', 1)"
                    session.execute(row.encode())
                    new = f"INSERT INTO tenant_{tenant}.journal VALUES ({self._new}, 'new')"
                    other = f"UPDATE tenant_{tenant}.journal SET v = v || '.' WHERE id % 5 = 1"
                    for statement in (new, other):
                        self.logged[tenant] += session.execute(statement.encode()).rowcount

    def _statement(self) -> str:
        chance, self._new = self._chance, self._new + 1
        kind = chance.choice(["insert", "update", "update", "move", "delete", "many", "truncate"])
        if kind == "truncate":
            return "TRUNCATE tenant_{0}.orders" if chance.random() < 0.2 else "SELECT"
        some = f"id % 10 = {chance.randrange(10)}"
        if kind == "many" and chance.random() < 0.3:
            self._new += 301
            many = f"SELECT {self._new} - i, 'many', i FROM generate_series(1, 300) i"
            return f"INSERT INTO tenant_{{0}}.orders {many}"
        return {
            "insert": f"INSERT INTO tenant_{{0}}.orders VALUES ({self._new}, 'new', 0)",
            "move": f"UPDATE tenant_{{0}}.orders SET id = id + 100000 WHERE id < 100000 AND {some}",
            "delete": f"DELETE FROM tenant_{{0}}.orders WHERE {some}",
        }.get(kind, f"UPDATE tenant_{{0}}.orders SET v = 'u{self._new}', n = -n WHERE {some}")

    def run(self) -> None:
        """Stage, apply and advance. One of the tasks is killed, and run again."""
        kind = self._chance.choices(("stage", "apply", "advance"), (4, 6, 1))[0]
        if kind == "stage":
            self._killed(stage_in_process, self._one_of(_STAGE), self.pipeline)
        batch = self.pipeline.stage()
        if kind == "apply":
            self._killed(apply_attached, self._one_of(_APPLY), self.pipeline, batch)
        self._until_it_ends(lambda: self.pipeline.apply(batch))
        if kind == "advance":
            self._killed(advance_in_process, self._one_of(_ADVANCE), self.pipeline)
        self.pipeline.advance()

    def work(self, rounds: int) -> None:
        for _ in range(rounds):
            self.change()
            self.run()

    def replay_one_slice(self, tenant: str) -> None:
        """Take the rows of a tenant's tables back to their copy, and apply the batches again."""
        tables = (f"tenant_{tenant}.orders", f"tenant_{tenant}.journal")
        job = dataclasses.replace(self.pipeline.replay_job(1), tables=tables)
        self._killed(replay_attached, self._one_of(_REPLAY), self.pipeline, job)
        self._until_it_ends(lambda: replay(self.pipeline.spark, job))

    def _one_of(self, points: list[str]) -> str:
        """A point, and which time that it is passed counts. At first one that every run passes."""
        sure = [each for each in points if each in _SURE]
        if sure and not self.kills:
            return self._chance.choice(sure)
        return f"{self._chance.choice(points)}:{self._chance.choice((1, 1, 2))}"

    def _killed(self, task: Callable[..., bool], point: str, *given: Any) -> None:
        """Run a task in a process that dies at a point, if it passes it."""
        try:
            self.kills += task(*given, point)
        except AssertionError as error:
            # The other pipeline wrote meanwhile, again and again, or SQLite was busy.
            if not any(f"errors.{each.__name__}: " in str(error) for each in _TO_TRY_AGAIN):
                raise

    def _until_it_ends(self, task: Callable[[], object]) -> None:
        for left in reversed(range(_MOST_TRIES)):
            try:
                task()
            except _TO_TRY_AGAIN:
                if not left:
                    raise
            else:
                return

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.pipeline.conninfo) as session:
            return session.execute(query.encode()).fetchall()

    def batches(self) -> list[ArchivedBatch]:
        """The batches up to the checkpoint, in order; there is no gap between them."""
        checkpoint = self.pipeline.checkpoint()
        assert checkpoint is not None
        assert checkpoint.begun_at is not None
        return batches_between(
            StagingArea(self.pipeline.staging.as_uri()),
            self.pipeline.slot_name,
            checkpoint.begun_at,
            checkpoint.end_lsn,
            checkpoint.system_identifier,
        )

    def slice_of(self, tenant: str) -> Slice:
        return Slice.of({"tenant": tenant, "shard": self.shard})


def _check(shards: list[_Shard], mode: str, rewound: tuple[Slice, ...] = ()) -> None:
    """Each slice has its source's rows and its own LSN, no batch is missing, and none is in it twice.

    :param rewound: these went back and got batches again.
    """
    pipeline, catalog = (
        shards[0].pipeline,
        load_catalog(CATALOG, **shards[0].pipeline.catalog_properties),
    )
    shards[0].world.refresh()
    now = _MODES[mode][1]
    current = _lake(pipeline, f"SELECT tenant, shard, id, v, n FROM {{}}.orders WHERE {now}")
    assert {tuple(row)[:2] for row in current} <= {(t, s) for t in _TENANTS for s in _SHARDS}
    of_log = "_pgoutput_commit_lsn, _pgoutput_seq, _pgoutput_op"
    log = _lake(pipeline, f"SELECT tenant, shard, {of_log}, id, v FROM {{}}.journal")
    for each in shards:
        batches = each.batches()
        for tenant in _TENANTS:
            place = (tenant, each.shard)
            found: Rows = Counter(tuple(row)[2:] for row in current if tuple(row)[:2] == place)
            wanted: Rows = Counter(each.rows(f"SELECT id, v, n FROM tenant_{tenant}.orders"))
            assert found == wanted, (place, found - wanted, wanted - found)
            entries = sorted(tuple(row)[2:] for row in log if tuple(row)[:2] == place)
            changes = [entry[:2] for entry in entries if entry[2] != "C"]
            assert len(changes) == len(set(changes)) == each.logged[tenant], place
            journal = dict(each.rows(f"SELECT id, v FROM tenant_{tenant}.journal"))
            assert {number: v for *_, number, v in entries} == journal
            for name in ("orders", "journal"):
                table = catalog.load_table((pipeline.namespace, name))
                ends = _ends(table, each.pipeline.slot_name, each.slice_of(tenant))
                of_source = f"tenant_{tenant}.{name}"
                staged = [batch.end_lsn for batch in batches if of_source in batch.tables.values()]
                assert set(ends) == set(staged), (place, name)
                assert ends[-1] == staged[-1], (place, name)
                if each.slice_of(tenant) not in rewound:
                    assert ends == staged, (place, name)


def _lake(pipeline: Pipeline, query: str) -> list[Any]:
    return pipeline.spark.sql(query.format(f"{CATALOG}.{pipeline.namespace}")).collect()


def _ends(table: Table, slot: str, slice_: Slice) -> list[Lsn]:
    """Where the batches end that a slice got, in order."""
    found = []
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if slice_.id in said.get(SUMMARY_SLICE, "").split():
            assert said[SUMMARY_SLOT] == slot
            found.append(Lsn.parse(said[SUMMARY_END_LSN]))
    return found[::-1]


@pytest.fixture
def two_shards(
    postgres_database: str,
    own_server: EmbeddedPostgres,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> Callable[[int], list[_Shard]]:
    """Two databases with the same tables, and their pipelines. Nothing is captured yet."""

    def make(seed: int) -> list[_Shard]:
        made = []
        options = _MODES[_mode(seed)][0]
        for shard, conninfo in zip(
            _SHARDS, (postgres_database, own_server.conninfo()), strict=True
        ):
            tables = {
                f"tenant_{tenant}.{table}": TableOptions(
                    constant_columns={"shard": shard},
                    mode=CHANGE_LOG if table == "journal" else options.get("mode"),
                )
                for tenant in _TENANTS
                for table in ("orders", "journal")
            }
            pipeline = Pipeline(
                conninfo=conninfo,
                slot_name=f"two_{shard}_{seed}",
                publication_names=("p",),
                namespace=f"two_databases_{seed}_{setting.advance}",
                staging=tmp_path / shard,
                catalog_properties=lake_catalog_properties,
                spark=spark,
                plan_options={
                    "shared_names": {r"tenant_(?P<tenant>.+)\.(.+)": "{2}"},
                    "table_options": tables,
                    **{name: value for name, value in options.items() if name != "mode"},
                },
            )
            pipeline.staging.mkdir()
            with psycopg.connect(conninfo, autocommit=True) as session:
                for tenant in _TENANTS:
                    session.execute(_SETUP.format(tenant).encode())
                session.execute("CREATE PUBLICATION p FOR TABLES IN SCHEMA tenant_a, tenant_b")
            made.append(_Shard(pipeline, shard, seed))
        return made

    return make


def _mode(seed: int) -> str:
    return [*_MODES][seed % len(_MODES)]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=pytest.mark.further if seed else pytest.mark.slow)
        for seed in range(6)
    ],
)
def test_two_databases_at_once_under_kills(
    two_shards: Callable[[int], list[_Shard]], seed: int
) -> None:
    shards = two_shards(seed)
    eu, us = shards
    _at_once(eu.run, us.run)
    rounds = 4 if seed else 1
    _at_once(functools.partial(eu.work, rounds), functools.partial(us.work, rounds))
    _check(shards, _mode(seed))
    again = _TENANTS[seed % 2]
    _at_once(functools.partial(eu.replay_one_slice, again), functools.partial(us.work, 1))
    _check(shards, _mode(seed), (eu.slice_of(again),))
    for each in shards:
        each.change()
        # It makes a run.
        assert [str(proof) for proof in each.world.verify().tables if not proof.is_equal] == []
    _check(shards, _mode(seed), (eu.slice_of(again),))
    assert eu.kills
    assert us.kills


def _at_once(*works: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(works)) as threads:
        for each in [threads.submit(work) for work in works]:
            each.result()
