"""Random sessions reach the lake with what users do to data on the way, all of it drawn from the seed.

The sessions are those of ``tests/capture/random_sessions.py``. Drawn are masks, filters, modes, names and
constant columns, names by pattern, two tables in one, and views of change logs. After each round the lake is
judged three times:

* by ``tests/chaos/oracle.py``, which reads source and lake without code of the package;
* a history by the versions that a change log of the same batches leads to, by definition;
* by a verification, which must find every table equal, as the judge does.

A view of a change log must show the source's rows. In each round a person comes, gets another key and goes.
At last all persons are erased: no file may hold one, and the judges must find all other rows as before.

No file of a table may have a plain value of a masked column. ``make torture LAKE=1 SEED=1 RUNS=20`` does
more.
"""

from __future__ import annotations

import dataclasses
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, HISTORY, UPSERT, TableOptions
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.log_rows import VIEW_SUFFIX
from airflow_provider_pgoutput.proof.verify import verify
from tests.apply.histories import OF_HISTORY, versions
from tests.capture.masked_torture import SECRET, OnTheWay, holds
from tests.capture.random_sessions import RandomSessions
from tests.chaos.histories import wrong_versions
from tests.chaos.in_lake import Way
from tests.chaos.oracle import Source, compare, compare_log, from_lake, read_lake, rows_of
from tests.conformance.compare import connect
from tests.conformance.erased import holders, run_erasure
from tests.conformance.pipeline import CATALOG
from tests.faults.workload import SETUP
from tests.proof.worlds import World

if TYPE_CHECKING:
    from tests.chaos.oracle import LakeRows, SourceTable
    from tests.conformance.pipeline import Pipeline

#: The one of the test suite has two histories, a change log with its view, masks and filters.
_SEEDS = [int(seed) for seed in os.environ.get("PGOUTPUT_SCHEMA_SEEDS", "2").split(",")]
_ROUNDS, _STEPS = 3, 60
#: A table like ``journal``, so that both can be written to one.
_LEDGER = (
    "CREATE TABLE ledger (LIKE journal INCLUDING ALL)",
    "INSERT INTO ledger SELECT i, 'v' || i FROM generate_series(4, 9) i",
    "ALTER PUBLICATION p ADD TABLE ledger",
)
_WORK_ON_LEDGER = (
    """INSERT INTO ledger SELECT id + 3, v FROM journal WHERE id % 2 = 0
       ON CONFLICT (id) DO UPDATE SET v = excluded.v""",
    "UPDATE ledger SET id = id + 1000 WHERE id = (SELECT min(id) FROM ledger)",
    "DELETE FROM ledger WHERE id % 5 = 0",
)
#: The server tells of a shape when the next row of the table changes.
_ANNOUNCED = ("INSERT INTO account(id) VALUES (9999)", "DELETE FROM account WHERE id = 9999")
_KEYED = ("account", "journal", "ledger")
_BOOKS = ("journal", "ledger")
#: A person's life in a table of the source. ``{0}`` is the first key, ``{1}`` the second.
_LIFE = (
    "INSERT INTO {table} (id, {text}) VALUES ({0}, '{person}')",
    "UPDATE {table} SET {text} = '{person} again' WHERE id = {0}",
    "UPDATE {table} SET id = {1} WHERE id = {0}",
    "DELETE FROM {table} WHERE id = {1}",
)
_TEXTS = {"account": "name", "journal": "v", "ledger": "v"}
#: The smallest text of its column, so that it is in the statistics of files.
_PERSON = "!a person"
#: No other number of a file has these digits.
_FIRST_PERSON = 1_910_347_100


class _Lake:
    """A pipeline with what is drawn for it, and its judges."""

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self._chance = random.Random(f"on the way {seed}")  # noqa: S311 - a test has to repeat itself
        self._pipeline = pipeline
        self._drawn = OnTheWay.drawn(self._chance)
        self._ways: dict[str, Way] = {}
        self._modes: dict[str, str] = {}
        #: By name: the LSN of the newest copy, and how often it was copied.
        self._copied: dict[str, int] = {}
        self._copies: Counter[str] = Counter()
        self._draw()
        #: Writes change logs of the same batches.
        self._logs = dataclasses.replace(
            pipeline,
            namespace=f"{pipeline.namespace}_logs",
            plan_options={"mode": CHANGE_LOG, "on_table_refused": "set_aside"},
        )
        self._persons: list[int] = []
        self.found: Counter[str] = Counter(self._modes.values())
        self.found["masks"] = sum(map(len, self._drawn.masks.values()))
        self.found["filters"] = len(self._drawn.filters)

    def _draw(self) -> None:
        chance, plan = self._chance, self._pipeline.plan_options
        is_shared = chance.random() < 0.6
        if is_shared or chance.random() < 0.5:
            self._drawn.take_over("ledger", "journal")
        options = {name: TableOptions() for name in (*_KEYED, "bag")}
        for name in options:
            mode = UPSERT if name == "bag" else chance.choice((UPSERT, HISTORY, HISTORY))
            if name in _BOOKS and chance.random() < 0.25:
                mode = CHANGE_LOG
            if name == "ledger" and is_shared:
                mode = self._modes["journal"]
            renamed = {}
            if name == "account" and chance.random() < 0.6:
                renamed = {"name": "called", "id": "number"}
            constants = {"came_from": name} if chance.random() < 0.4 and name == "account" else {}
            options[name] = TableOptions(
                mode=mode, renamed_columns=renamed, constant_columns=constants
            )
            self._modes[name] = mode
        if is_shared and chance.random() < 0.5:
            plan["shared_names"] = {r"public\.(?P<book>journal|ledger)": "books"}
        elif is_shared:
            for name in _BOOKS:
                options[name] = dataclasses.replace(
                    options[name], shared=True, target="books", constant_columns={"book": name}
                )
        for name, each in options.items():
            constants = {"book": name} if is_shared and name in _BOOKS else each.constant_columns
            self._ways[f"public.{name}"] = Way(
                self._drawn.masks.get(name, {}),
                SECRET,
                self._drawn.filters.get(name, ""),
                each.renamed_columns,
                constants,
                is_shared=is_shared and name in _BOOKS,
            )
        if chance.random() < 0.3:
            plan["target_names"] = {r"public\.(.*)": "t_{1}"}
        plan.update(
            table_options={f"public.{name}": each for name, each in options.items()},
            soft_delete=chance.random() < 0.4,
            format_version=chance.choice((2, 3)),
            write_mode=chance.choice(("merge-on-read", "copy-on-write")),
            drop_columns=chance.random() < 0.5,
            on_table_refused="set_aside",
        )
        self._pipeline.capture_options.update(
            self._drawn.arguments(),
            schema_policy=SchemaPolicy("copy", "copy", "copy"),
            options=StreamOptions(binary=chance.random() < 0.5),
            transport=chance.choice(("sql", "walsender")),
        )
        plan["current_views"] = CHANGE_LOG in self._modes.values()

    def run(self, **options: Any) -> Lsn:
        """Stage a batch and apply it to both lakes; return its end."""
        batch = self._pipeline.stage(**options)
        for table in batch.manifest.tables:
            if table.copy_lsn is not None:
                self._copied[table.name] = int(Lsn.parse(table.copy_lsn))
                self._copies[table.name] += 1
        self._pipeline.apply(batch)
        if HISTORY in self._modes.values():
            self._logs.apply(batch)
        self.found["batches"] += 1
        return batch.manifest.end_lsn

    def catch_up(self) -> None:
        """Until the lake is where the source is now. Then copy what was set aside."""
        most = self._chance.choice((5, 20, None))
        target = self._pipeline.flush_lsn()
        while self.run(max_changes=most) < target:
            pass
        checkpoint = self._pipeline.checkpoint()
        assert checkpoint is not None
        if aside := sorted({each.table_name for each in checkpoint.set_aside.values()}):
            self.found["set aside"] += len(aside)
            assert aside == ["public.account"]
            self.run(copy_tables=aside)
        if self._chance.random() < 0.5:
            self._pipeline.advance()

    def let_a_person_live(self) -> None:
        """A person comes into each table, gets another key and goes, in one batch or in many."""
        first = _FIRST_PERSON + 2 * len(self._persons)
        self._persons.append(first)
        for statement in _LIFE:
            with connect(self._pipeline.conninfo) as session:
                for table, text in _TEXTS.items():
                    session.execute(
                        statement.format(first, first + 1, table=table, text=text, person=_PERSON)
                    )
            if self._chance.random() < 0.3:
                self.run()

    def erase(self) -> None:
        """Erase all persons. Then no byte of tables and staged batches holds one."""
        keys = [number for first in self._persons for number in (first, first + 1)]
        rows = {f"public.{table}": [{"id": each} for each in keys] for table in _KEYED}
        texts = [_PERSON, *(str(each) for each in keys)]
        way = Way({"id": "hash"}, SECRET)
        texts += [text for each in texts if (text := way.masked_text("id", each))]
        lakes = [self._pipeline, *([self._logs] if HISTORY in self._modes.values() else [])]
        for lake in lakes:
            self.found["erased"] += sum(run_erasure(lake, rows, SECRET.encode()).rows.values())
        for lake in lakes:
            assert holders(lake, *texts) == []

    def judge(self) -> None:
        """Compare every table in every way."""
        catalog = load_catalog(CATALOG, **self._pipeline.catalog_properties)
        source = Source(self._pipeline.conninfo, {}, self._ways.__getitem__)
        try:
            for table in source.tables(("p",)):
                self._judge(catalog, table)
        finally:
            source.close()
            catalog.close()

    def _judge(self, catalog: Any, table: SourceTable) -> None:
        way, mode = self._ways[table.full_name], self._modes[table.name]
        plan = self._pipeline.plan_options
        name = "books" if way.is_shared else table.name
        if "target_names" in plan and not way.is_shared:
            name = f"t_{name}"
        loaded = catalog.load_table((self._pipeline.namespace, name))
        lake = read_lake(loaded)
        if way.is_shared:
            lake = lake.only(way.constants)
        if mode == CHANGE_LOG:
            assert compare_log(table, lake, self._copied[table.full_name]) == []
            self._compare_view(table, name, lake.types)
        else:
            difference = compare(table, lake)
            assert difference is None, f"{table.name}: {difference}"
        if mode == HISTORY:
            assert wrong_versions(table, lake, by_key=True) == []
            self._compare_versions(catalog, table, lake)
        patterns = self._drawn.patterns(table.name)
        for path in Path(unquote(urlparse(loaded.location()).path)).rglob("*"):
            assert not path.is_file() or not holds(path, patterns), (table.name, path)
        self.found["rows"] += lake.count

    def _compare_view(self, table: SourceTable, log: str, types: dict[str, str]) -> None:
        """The view of a change log shows the rows of the source."""
        reader = self._pipeline.spark.newSession()
        reader.conf.set("spark.sql.session.timeZone", "UTC")
        view = reader.table(f"{CATALOG}.{self._pipeline.namespace}.{log}{VIEW_SUFFIX}")
        shown = rows_of(view.toArrow(), types).only(self._ways[table.full_name].constants)
        difference = compare(table, shown)
        assert difference is None, f"the view of {table.name}: {difference}"
        self.found["views"] += 1

    def _compare_versions(self, catalog: Any, table: SourceTable, lake: LakeRows) -> None:
        """A history has the versions that follow from the change log."""
        if self._copies[table.full_name] > 1:
            # A later copy tells versions apart by all columns, also those that are gone.
            return
        kept = ("id", "name", "large", "amount") if table.name == "account" else ("id", "v")
        columns = [each for each in table.columns if each.source_name in kept]
        source_names = [each.source_name for each in columns]
        log = catalog.load_table((self._logs.namespace, table.name)).scan().to_arrow().to_pylist()
        for entry in log:
            for column in ("_pgoutput_unchanged", "_pgoutput_old_key"):
                entry[column] = dict(entry[column] or ()) if "key" in column else entry[column]
        kinds = {each.source_name: int if each.kind.lake == "int" else str for each in columns}
        wanted = Counter(versions(log, source_names, kinds, ("id",)))
        found = Counter(lake.rows([*(each.name for each in columns), *OF_HISTORY]))
        plain = Counter({_plain(row): count for row, count in wanted.items()})
        assert found == plain, (table.name, found - plain, plain - found)
        self.found["versions"] += found.total()

    def verify(self) -> None:
        """The verification agrees with the judge."""

        def wait(lsn: Lsn) -> None:
            while self.run() < lsn:
                pass

        world = World(self._pipeline, ("p",))
        proof = verify(world.request(mask_secret=SECRET.encode()), wait)
        assert len(proof.tables) == len(self._modes)
        assert [str(each) for each in proof.tables if not each.is_equal] == []
        self.found["proofs"] += 1


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values as ``read_lake`` returns them."""
    return tuple(from_lake(each) for each in row)


@pytest.mark.slow
@pytest.mark.parametrize("seed", _SEEDS)
def test_random_sessions_reach_the_lake_with_what_users_do(pipeline: Pipeline, seed: int) -> None:
    with connect(pipeline.conninfo) as session:
        for statement in (*SETUP, *_LEDGER):
            session.execute(statement)
    lake = _Lake(pipeline, seed)
    lake.run()
    with RandomSessions(pipeline.conninfo, seed) as sessions:
        for _ in range(_ROUNDS):
            sessions.run(_STEPS)
            with connect(pipeline.conninfo) as session:
                for statement in (*_WORK_ON_LEDGER, *_ANNOUNCED):
                    session.execute(statement)
            lake.let_a_person_live()
            lake.catch_up()
            lake.judge()
            lake.verify()
    lake.erase()
    lake.judge()
    lake.verify()
    print(f"seed {seed}: {dict(lake.found)}")
