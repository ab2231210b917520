"""One run: a program against one or two pipelines, and the judgement at the end."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
import sqlite3
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from tests.chaos import known, options, slices, tables
from tests.chaos.drawing import Drawing
from tests.chaos.judge import Judge
from tests.chaos.on_the_way import OnTheWay
from tests.chaos.pipeline import Fault, Kills, Pipeline
from tests.chaos.program import Program, Style
from tests.chaos.publishing import create_statements
from tests.chaos.verification import verify
from tests.chaos.watch import number

if TYPE_CHECKING:
    from pathlib import Path

    from quickstart.postgres import EmbeddedPostgres
    from quickstart.spark import LocalLake
    from tests.chaos.driver import Driver
    from tests.chaos.tasks import Tasks

_MOST_ROUNDS_OF_COPIES = 3


@dataclass
class Result:
    """What became of a run."""

    version: int
    seed: int
    seconds: float = 0.0
    transactions: int = 0
    batches: int = 0
    changes: int = 0
    tables: int = 0
    rows: int = 0
    looks: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    #: What the verification said of tables, and the views of change logs that were compared.
    verified: Counter[str] = field(default_factory=Counter)
    #: What users do on the way in this run.
    on_the_way: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    #: The known fault that ended the run without a verdict.
    known: str = ""

    def to_json(self) -> str:
        """As a line."""
        return json.dumps(self.__dict__)


@dataclass
class Place:
    """What all runs share."""

    server: EmbeddedPostgres
    lake: LocalLake
    tasks: Tasks
    #: Starts verifications, which run beside the tasks of a pipeline.
    verifier: Tasks
    driver: Driver
    folder: Path
    #: Whether drivers are killed with their JVM, and the server is stopped.
    java: bool = True
    #: Whether the files of good runs stay, too.
    keep: bool = False
    #: Fewer steps, one pipeline, no kills of drivers: for the test suite.
    small: bool = False


class Run:
    """A run with a seed."""

    def __init__(self, place: Place, seed: int) -> None:
        self._place, self._seed = place, seed
        self._chance = random.Random(f"chaos {seed}")  # noqa: S311 - a run has to repeat itself
        self._version = place.server.major
        self._name = f"chaos_{self._version}_{seed}"
        self._folder = place.folder / self._name
        # What an earlier run with this seed left would stand in the way.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._conninfo = place.server.conninfo(self._name)
        self.result = Result(self._version, seed)

    def go(self) -> Result:
        """Run; faults are in the result."""
        began = time.monotonic()
        pipelines: list[Pipeline] = []
        program: Program | None = None
        log = (self._folder / "run.jsonl").open("w")

        def note(**what: Any) -> None:
            log.write(json.dumps({"t": round(time.time(), 3), **what}, default=str) + "\n")
            log.flush()

        try:
            self._make_database()
            style = self._make_tables()
            program = Program(
                self._conninfo, self._seed, style, self._version, self._folder / "program.jsonl"
            )
            note(style=style.__dict__, seed=self._seed)
            pipelines = self._make_pipelines(program, note)
            self._work(program, pipelines, note)
            self._judge(program, pipelines, note)
        except Fault as fault:
            named = [why for words, why in known.REFUSALS.items() if words in str(fault)]
            if named:
                self.result.known = named[0]
            else:
                self.result.faults.append(str(fault))
        except Exception:
            self.result.faults.append(traceback.format_exc())
        finally:
            self._end(program, pipelines)
            note(faults=self.result.faults)
            log.close()
        self.result.seconds = round(time.monotonic() - began, 1)
        return self.result

    def _make_database(self) -> None:
        with psycopg.connect(self._place.server.conninfo(), autocommit=True) as session:
            name = sql.Identifier(self._name)
            session.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
            session.execute(sql.SQL("CREATE DATABASE {}").format(name))
            settings = {"logical_decoding_work_mem": self._chance.choice(("64kB", "64kB", "64MB"))}
            if self._version >= 16 and self._chance.random() < 0.4:
                settings["debug_logical_replication_streaming"] = "immediate"
            if self._chance.random() < 0.2:
                settings["DateStyle"] = "German"
                settings["bytea_output"] = "escape"
            for setting, value in settings.items():
                session.execute(
                    sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                        name, sql.Identifier(setting), sql.Literal(value)
                    )
                )

    def _make_tables(self) -> Style:
        chance = self._chance
        kinds = [each for each in tables.KINDS if each.name not in known.TABLES]
        chosen = chance.sample(
            kinds, min(len(kinds), 2 if self._place.small else chance.randint(2, 5))
        )
        style_of_publication = chance.choice(("tables", "tables", "all", "schema", "two"))
        publications = ("p", "q") if style_of_publication == "two" else ("p",)
        self._of_all = style_of_publication in {"all", "schema"}
        style = Style.drawn(chance, publications, lists_tables=not self._of_all)
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            on_the_way = random.Random(f"tables {self._seed}")  # noqa: S311
            alike = slices.make(on_the_way) if on_the_way.random() < 0.3 else ()
            for statement in (*tables.setup(chance, chosen), *alike):
                session.execute(statement.encode())
            draw = Drawing(session, chance, self._version, 0, publications)
            via_root = chance.random() < 0.6
            for statement in create_statements(draw, style_of_publication, via_root):
                session.execute(statement.encode())
        if self._place.small:
            style = dataclasses.replace(style, steps=120)
        self._publications = publications
        return style

    def _make_pipelines(self, program: Program, note: Any) -> list[Pipeline]:
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            rows = session.execute(
                "SELECT schemaname || '.' || tablename FROM pg_publication_tables ORDER BY 1"
            ).fetchall()
        names = [name for (name,) in rows]
        found = []
        for place in range(1 if self._place.small else self._chance.choice((1, 1, 1, 2))):
            drawn = options.drawn(self._chance, self._version, names)
            views = random.Random(f"views {self._seed} {place}")  # noqa: S311
            drawn.plan["current_views"] = views.random() < 0.7
            way = OnTheWay(self._conninfo, self._publications)
            way.draw(random.Random(f"on the way {self._seed} {place}"), names, drawn)  # noqa: S311
            pipeline = Pipeline(
                conninfo=self._conninfo,
                slot_name=f"{self._name}_{place}",
                publications=self._publications,
                staging=self._folder / f"staging_{place}",
                catalog_properties=self._place.lake.pyiceberg_properties(),
                options=drawn,
                on_the_way=way,
                chance=random.Random(f"{self._seed} {place}"),  # noqa: S311
                tasks=self._place.tasks,
                driver=self._place.driver,
                program=program,
                crash_server=self._crash_server,
                note=note,
            )
            if self._of_all:
                pipeline.causes["publication of all tables"] = 1
            if any(name.partition(".")[2].startswith("parts") for name in names):
                pipeline.causes["partitions with identities of their own"] = 1
            if program.style.odd:
                pipeline.causes["odd values"] = 1
            self.result.on_the_way += way.words(drawn)
            note(pipeline=pipeline.slot_name, options=drawn.described(), way=way.arguments())
            found.append(pipeline)
        return found

    def _crash_server(self) -> None:
        self._place.server.restart("immediate")

    def _work(self, program: Program, pipelines: list[Pipeline], note: Any) -> None:
        chance = self._chance
        kills = Kills(
            stage=chance.choice((0, 0.3)),
            apply=chance.choice((0, 0.3)),
            java=float(self._place.java and chance.random() < 0.12),
            server=0.12 if self._place.java and chance.random() < 0.15 else 0,
        )
        if kills.java:
            kills.apply = 0.5
        if not self._place.small:
            kills.slot, kills.maintenance = chance.choice(((0, 0), (0.2, 0), (0, 0.2), (0, 0.2)))
        self._kills = kills
        note(kills=kills.__dict__)
        program.start()
        rounds = 2 if self._place.small else chance.randint(2, 3)
        for turn in range(rounds):
            # Most of the first part before the first copy, which is of something then.
            program.go_on_to((turn + 0.7) / rounds)
            program.wait_for((turn + 0.4) / rounds, 4)
            for pipeline in pipelines:
                pipeline.run(kills)
        program.stop()

    def _judge(self, program: Program, pipelines: list[Pipeline], note: Any) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            (end,) = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone() or (
                "0/0",
            )
        for pipeline in pipelines:
            judge = Judge(pipeline, program)
            pipeline.catch_up(number(end))
            for turn in range(_MOST_ROUNDS_OF_COPIES):
                verdict = judge.compare(excuses=turn == 0)
                note(pipeline=pipeline.slot_name, faults=verdict.faults, excused=verdict.excused)
                self.result.tables += verdict.tables
                self.result.rows += verdict.rows
                self.result.verified["views"] += verdict.views
                self.result.faults += [f"{pipeline.slot_name}: {each}" for each in verdict.faults]
                self.result.excused.update(reason for reason in verdict.excused.values())
                self.result.faults += [
                    f"{pipeline.slot_name}: {each}"
                    for each in verify(
                        pipeline, self._place.verifier, verdict, self.result.verified
                    )
                ]
                if not verdict.excused or self.result.faults:
                    break
                pipeline.copy_again(list(verdict.excused))
                pipeline.catch_up(number(end))
            if files := pipeline.left_files():
                self.result.faults.append(f"I7: files are left in the staging area: {files[:5]}")
            only_whole_kills = self._kills.java >= 1 or not self._kills.apply
            if only_whole_kills and (left := judge.left_branches()):
                self.result.faults.append(f"I7: branches are left: {left}")

    def _end(self, program: Program | None, pipelines: list[Pipeline]) -> None:
        result = self.result
        if program is not None:
            try:
                program.stop()
            except Exception:
                result.faults.append(f"the program ended: {traceback.format_exc()}")
            result.transactions, result.done = program.transactions, program.done
        for pipeline in pipelines:
            pipeline.watch.stop()
            result.batches += pipeline.batches
            result.changes += pipeline.changes
            result.looks += pipeline.watch.looks
            result.kills.update(pipeline.kills)
            result.refusals.update(pipeline.refused)
        self._clear()

    def _clear(self) -> None:
        """Drop the database, and of a good run everything."""
        with psycopg.connect(self._place.server.conninfo(), autocommit=True) as session:
            session.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
                (self._name,),
            )
            session.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = %s AND NOT temporary",
                (self._name,),
            )
            for (gid,) in session.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = %s", (self._name,)
            ).fetchall():
                with psycopg.connect(self._conninfo, autocommit=True) as inside:
                    inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
            session.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(
                    sql.Identifier(self._name)
                )
            )
        if not self.result.faults and not self._place.keep:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._forget_lake()

    def _forget_lake(self) -> None:
        with sqlite3.connect(self._place.lake.catalog_file, timeout=60) as catalog:
            for table in ("iceberg_tables", "iceberg_namespace_properties"):
                column = "table_namespace" if table == "iceberg_tables" else "namespace"
                catalog.execute(
                    f"DELETE FROM {table} WHERE {column} LIKE ?", (f"{self._name}\\_%",)
                )
        for path in (self._place.lake.home / "warehouse").glob(f"{self._name}_*"):
            shutil.rmtree(path, ignore_errors=True)
