"""The life of a pipeline in one cell: copy, changes of all kinds, a verification, replays and maintenance.

The programs are those of the cell's own environments; pyiceberg reads the lake there, too. psycopg reads the
source here, and here all rows are compared after each step. ``tests/lakes`` lets a pipeline live the same in
other catalogs.
"""

from __future__ import annotations

import enum
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.errors import SourceError
from quickstart.dag_runs import prepare_airflow, run_dag
from quickstart.place import DATABASE, NAMESPACE, PUBLICATION, SLOT_NAME, DemoPlace
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from quickstart.spark import site_conf
from tests.matrix.environments import FOLDER, Environments
from tests.spark_log import spark_lines

if TYPE_CHECKING:
    from quickstart.dag_runs import DagRun

_TABLES = ("orders", "customers", "lines", "visits")
_SOURCE = f"""
    CREATE TABLE orders (id int PRIMARY KEY, customer text, price numeric(12, 2), made_at timestamptz,
                         paid boolean);
    CREATE TABLE customers (name text PRIMARY KEY, notes text);
    CREATE TABLE lines (a int, b int, amount float8, PRIMARY KEY (a, b));
    CREATE TABLE visits (id int PRIMARY KEY, page text);
    INSERT INTO orders SELECT i, 'customer ' || i % 10, i * 1.5, now() - i * interval '1 hour', i % 2 = 0
                         FROM generate_series(1, 500) i;
    INSERT INTO customers SELECT 'customer ' || i, repeat('x', i * 1000) FROM generate_series(0, 9) i;
    INSERT INTO lines SELECT i, j, i / (j + 1.0) FROM generate_series(1, 50) i, generate_series(1, 3) j;
    INSERT INTO visits SELECT i, 'page ' || i FROM generate_series(1, 40) i;
    CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES;
"""
_CHANGES = """
    INSERT INTO orders SELECT i, NULL, i * 2, 'epoch', NULL FROM generate_series(501, 600) i;
    UPDATE orders SET price = price + 1 WHERE id % 7 = 0;
    DELETE FROM lines WHERE a = 3;
    ALTER TABLE customers ADD COLUMN city text;
    UPDATE customers SET city = 'Łódź' WHERE name LIKE '%3';
"""
_KEY_CHANGES = """
    UPDATE orders SET id = id + 10000 WHERE id % 11 = 0;
    UPDATE lines SET b = b + 1 WHERE a = 5 AND b = 3;
    UPDATE lines SET b = b + 1 WHERE a = 5 AND b = 2;
    UPDATE customers SET name = 'somebody' WHERE name LIKE '%4';
    DELETE FROM customers WHERE name LIKE '%5';
    INSERT INTO customers VALUES ('customer 4', 'again', NULL);
"""
#: A table that the lake held as empty would look as if nothing had been read, so it gets rows again.
_TRUNCATE = """
    UPDATE visits SET page = 'seen' WHERE id < 5;
    TRUNCATE visits;
    INSERT INTO visits SELECT i, 'after' FROM generate_series(3, 9) i;
"""
#: Three transactions.
_ALL_CHANGES = (_CHANGES, _KEY_CHANGES, _TRUNCATE)
_PUFFIN = "PUFFIN"
_READ_ROWS = Path(__file__).with_name("read_rows.py")

Rows = dict[str, Counter[tuple[Any, ...]]]


@dataclass(frozen=True)
class Place(DemoPlace):
    """The folders of one pipeline, and the variables of its programs. Its catalog is a SQLite file."""

    environments: Environments

    @property
    def state(self) -> Path:
        return FOLDER / "pipelines" / self.environments.cell.name

    def environment(self, server: EmbeddedPostgres) -> dict[str, str]:
        return super().environment(server) | self.environments.variables()

    def spark_conf(self) -> dict[str, str]:
        jars = {"spark.jars": ",".join(map(str, self.environments.jars()))}
        return site_conf(driver_memory="1g") | jars

    def make_lake(self, server: EmbeddedPostgres) -> None:
        """Make what has to be there before the first run."""
        self.lake.create()

    def catalog(self) -> tuple[str, dict[str, str]]:
        """The catalog's name and its properties, for pyiceberg."""
        return self.lake.catalog_name, self.lake.pyiceberg_properties()

    @property
    def replayed(self) -> str:
        """The namespace of the tables that a replay makes."""
        return "again"

    def secrets(self) -> set[str]:
        """What no log may have, beside the password of the source."""
        return set()

    def leave_orphan(self) -> Path | None:
        """Put an old file among those of a table, which maintenance has to remove; None: it removes none."""
        return None


class Part(enum.IntEnum):
    """How far a life goes. Each part has the ones before it."""

    BEGINNING = 1  #: A copy, and changes of all kinds.
    MAIN = 2  #: A verification beside the pipeline, a replay and the maintenance.
    WHOLE = 3  #: A replay into tables of version 3, and the commands.


def live(place: Place, part: Part = Part.WHOLE) -> None:
    """Run a whole pipeline, or its first parts, and compare after each step.

    :raises SourceError: a DAG run or a command failed; the message holds the end of its log.
    :raises AssertionError: the lake is not what the source is.
    """
    installation = find_or_fetch_installation(place.environments.cell.postgres)
    with place.locked():
        place.clear()
        try:
            with EmbeddedPostgres(place.postgres_home(), installation=installation) as server:
                _live(place, server, part)
        finally:
            # It may lie outside of the cell's folder, where nobody looks. The logs of a failure stay.
            shutil.rmtree(place.postgres_home(), ignore_errors=True)
        place.clear()


def _live(place: Place, server: EmbeddedPostgres, part: Part) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute(f"CREATE DATABASE {DATABASE}")
    place.make_lake(server)
    variables = place.environment(server)
    python = str(place.environments.python)
    prepare_airflow(variables, place.logs / "airflow-db.log", python=python)
    life = _Life(place, server.conninfo(DATABASE), variables)
    start_lsn = life.copy()
    if part is Part.MAIN:
        # It costs fewer runs: the pipeline carries all changes while the verification waits.
        life.verify(*_ALL_CHANGES)
    else:
        life.change()
    if part is Part.WHOLE:
        life.verify(source_goes_on=True)
    if part is not Part.BEGINNING:
        life.go_on(start_lsn, part)
    life.find_no_secret()


class _Life:
    def __init__(self, place: Place, conninfo: str, variables: dict[str, str]) -> None:
        self._place = place
        self._conninfo = conninfo
        self._variables = variables
        self._numbers = itertools.count(1)

    def copy(self) -> str:
        """Copy the tables; return the LSN at which the copy began."""
        self._write(_SOURCE)
        first = self._run("pgoutput_to_iceberg", "slot and copy")
        assert first.copied > 0, "the first run copies"
        log = (self._place.logs / "run-1.log").read_text(encoding="utf-8")
        assert spark_lines(log) == [], "only errors of Spark stand in a task's log"
        self._compare(NAMESPACE)
        return first.start_lsn

    def change(self) -> None:
        """Carry changes of all kinds."""
        self._write(*_ALL_CHANGES)
        second = self._run("pgoutput_to_iceberg", "changes, key changes, truncate")
        assert second.changes > 0, "the second run has changes"
        self._compare(NAMESPACE)

    def verify(self, *transactions: str, source_goes_on: bool = False) -> None:
        """Verify beside the pipeline. The verification waits for a run, so the pipeline goes on.

        :param transactions: are committed before the verification begins.
        :param source_goes_on: the source changes during the verification, too.
        """
        self._write(*transactions)
        conf = self._place.dag_conf()
        with ThreadPoolExecutor(1) as pool:
            proven = pool.submit(self._run, "pgoutput_verify", "verification", **conf)
            while not proven.done():
                if source_goes_on:
                    self._write("UPDATE orders SET paid = NOT paid WHERE id % 3 = 0")
                self._run("pgoutput_to_iceberg", "run beside the verification")
            run = proven.result()
        if source_goes_on:
            # A batch that ends where the verification compares leaves later changes to the next run.
            self._run("pgoutput_to_iceberg", "run after the verification")
        log = (self._place.logs / f"run-{run.number}.log").read_text(encoding="utf-8")
        assert f"{len(_TABLES)} of {len(_TABLES)} tables" in log, log[-3000:]
        self._compare(NAMESPACE)

    def go_on(self, start_lsn: str, part: Part) -> None:
        """Replay what was staged since an LSN, maintain the tables, and ask the commands."""
        given = {name: self._place.dag_conf()[name] for name in ("slot_name", "staging_uri")}
        pipeline = {**given, "namespace": NAMESPACE}
        again = self._place.replayed
        into_another = {"from_lsn": start_lsn, "target_namespace": again}
        self._run("pgoutput_replay", "replay", **pipeline, **into_another)
        self._compare(again)
        if part is Part.WHOLE:
            self._replay_in_version_3({**pipeline, "from_lsn": start_lsn})
        orphan = self._place.leave_orphan()
        self._run("pgoutput_maintenance", "maintenance", **pipeline)
        self._compare(NAMESPACE)
        assert orphan is None or not orphan.exists(), "maintenance removes orphaned files"
        if part is Part.WHOLE:
            self._commands()

    def _replay_in_version_3(self, pipeline: dict[str, object]) -> None:
        """Replay into tables of Iceberg's format version 3, whose deletes are deletion vectors."""
        version_3 = {"properties": {"format-version": "3"}}
        options = {f"public.{table}": version_3 for table in _TABLES}
        again = f"{self._place.replayed}_3"
        into_another = {"target_namespace": again, "table_options": options}
        self._run("pgoutput_replay", "replay in format version 3", **pipeline, **into_another)
        facts = self._compare(again).values()
        assert {each["format_version"] for each in facts} == {3}
        formats = {name for each in facts for name in each["delete_formats"]}
        assert formats == {_PUFFIN}, "deletes are deletion vectors"

    def _write(self, *transactions: str) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            for each in transactions:
                session.execute(each)

    def _run(self, dag_id: str, what: str, **conf: object) -> DagRun:
        number = next(self._numbers)
        run = run_dag(
            self._place,
            self._variables,
            number,
            python=str(self._place.environments.python),
            dag_id=dag_id,
            conf=conf or None,
        )
        say(f"  {what}: {run.seconds['total']:.0f} s")
        return run

    def _compare(self, namespace: str) -> dict[str, Any]:
        """Compare all rows; return what the tables are made of, by table."""
        with psycopg.connect(self._conninfo) as session:
            source: Rows = {
                table: Counter(session.execute(f"SELECT * FROM {table}").fetchall())
                for table in _TABLES
            }
        assert all(source.values()), "each table has rows to compare"
        with tempfile.TemporaryDirectory() as folder:
            facts = self._read_lake(namespace, folder)
            found: Rows = {
                table: Counter(tuple(row.values()) for row in _read(Path(folder, f"{table}.arrow")))
                for table in _TABLES
            }
        for table, rows in source.items():
            missing, surplus = rows - found[table], found[table] - rows
            problem = f"{namespace}.{table}: missing {missing.total()}, surplus {surplus.total()}"
            assert not missing, problem
            assert not surplus, problem
        return facts

    def _read_lake(self, namespace: str, folder: str) -> dict[str, Any]:
        """Let the cell's Python write the rows of the lake into a folder."""
        name, properties = self._place.catalog()
        request = {
            "catalog": name,
            "properties": properties,
            "namespace": namespace,
            "tables": _TABLES,
            "folder": folder,
        }
        program = [str(self._place.environments.python), str(_READ_ROWS)]
        facts: dict[str, Any] = json.loads(self._output(*program, given=json.dumps(request)))
        return facts

    def _commands(self) -> None:
        """The command line agrees that all is well. Airflow has provider commands from 3.2 on."""
        began = time.monotonic()
        pipeline = ["--slot-name", SLOT_NAME, "--namespace", NAMESPACE]
        bin_folder = self._place.environments.airflow / "bin"
        programs = [[str(bin_folder / "pgoutput")]]
        if not self._place.environments.cell.airflow.startswith("3.1."):
            programs.append([str(bin_folder / "airflow"), "pgoutput"])
        for program in programs:
            rows = _rows(self._output(*program, "status", *pipeline, "--output", "json"))
            targets = {row["target"] for row in rows}
            assert {f"{NAMESPACE}.{table}" for table in _TABLES} <= targets, rows
            staging = ["--staging-uri", str(self._place.dag_conf()["staging_uri"])]
            found = self._output(*program, "doctor", *pipeline, *staging, "--output", "json")
            assert _rows(found) == [], found
        say(f"  commands: {time.monotonic() - began:.0f} s")

    def find_no_secret(self) -> None:
        """No log has a password or a key: neither those of the tasks nor what the programs printed."""
        files = [
            each
            for folder in (self._place.logs, self._place.airflow_home / "logs")
            for each in folder.rglob("*")
            if each.is_file()
        ]
        assert files, "there are logs to look into"
        secrets = {each.encode() for each in self._secrets()}
        for file in files:
            text = file.read_bytes()
            assert not any(each in text for each in secrets), f"{file} has a secret"

    def _secrets(self) -> set[str]:
        password = conninfo_to_dict(self._conninfo)["password"]
        return {str(password), *self._place.secrets()}

    def _output(self, *command: str, given: str = "") -> str:
        result = subprocess.run(
            command,
            input=given,
            check=False,
            env={**os.environ, **self._variables},
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise SourceError(f"{command} failed: {result.stdout[-3000:]}{result.stderr[-3000:]}")
        printed = result.stdout + result.stderr
        assert not any(each in printed for each in self._secrets()), f"{command} printed a secret"
        return result.stdout


def _read(path: Path) -> list[dict[str, Any]]:
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows


def _rows(output: str) -> list[dict[str, Any]]:
    """What a command printed as JSON. The program ``airflow`` prints lines of its log before it."""
    lines = output.splitlines()
    begins = next((i for i, line in enumerate(lines) if line.startswith("[")), 0)
    rows: list[dict[str, Any]] = json.loads("\n".join(lines[begins:]))
    return rows


def say(text: str) -> None:
    """Print one line of progress."""
    print(text, flush=True)
