"""The life of a pipeline in one cell: copy, changes, key changes, replay and maintenance, all rows compared.

The programs are those of the cell's own environments. Only the comparison runs here: psycopg reads
the source and pyiceberg the lake.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_provider_pgoutput.errors import SourceError
from quickstart.dag_runs import prepare_airflow, run_dag
from quickstart.place import DATABASE, NAMESPACE, PUBLICATION, SLOT_NAME, DemoPlace
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from quickstart.spark import local_conf
from tests.matrix.environments import FOLDER, Environments

if TYPE_CHECKING:
    from pathlib import Path

    from quickstart.dag_runs import DagRun

_TABLES = ("orders", "customers", "lines")
_SOURCE = f"""
    CREATE TABLE orders (id int PRIMARY KEY, customer text, price numeric(12, 2), made_at timestamptz,
                         paid boolean);
    CREATE TABLE customers (name text PRIMARY KEY, notes text);
    CREATE TABLE lines (a int, b int, amount float8, PRIMARY KEY (a, b));
    INSERT INTO orders SELECT i, 'customer ' || i % 10, i * 1.5, now() - i * interval '1 hour', i % 2 = 0
                         FROM generate_series(1, 500) i;
    INSERT INTO customers SELECT 'customer ' || i, repeat('x', i * 1000) FROM generate_series(0, 9) i;
    INSERT INTO lines SELECT i, j, i / (j + 1.0) FROM generate_series(1, 50) i, generate_series(1, 3) j;
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

Rows = dict[str, Counter[tuple[Any, ...]]]


@dataclass(frozen=True)
class _Place(DemoPlace):
    """The folders of one cell's pipeline, and the variables of its programs."""

    environments: Environments

    @property
    def state(self) -> Path:
        return FOLDER / "pipelines" / self.environments.cell.name

    def environment(self, server: EmbeddedPostgres) -> dict[str, str]:
        return super().environment(server) | self.environments.variables()

    def spark_conf(self) -> dict[str, str]:
        jars = {"spark.jars": ",".join(map(str, self.environments.jars()))}
        return local_conf(driver_memory="1g") | jars


def live(environments: Environments) -> None:
    """Run a whole pipeline and compare after each step.

    :raises SourceError: a DAG run or a command failed; the message holds the end of its log.
    :raises AssertionError: the lake is not what the source is.
    """
    place = _Place(DemoPlace.of_this_checkout().checkout, environments)
    installation = find_or_fetch_installation(environments.cell.postgres)
    with place.locked():
        place.clear()
        try:
            with EmbeddedPostgres(place.postgres_home(), installation=installation) as server:
                _live(place, server)
        finally:
            # It may lie outside of the cell's folder, where nobody looks. The logs of a failure stay.
            shutil.rmtree(place.postgres_home(), ignore_errors=True)
        place.clear()


def _live(place: _Place, server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute(f"CREATE DATABASE {DATABASE}")
    variables = place.environment(server)
    python = str(place.environments.python)
    prepare_airflow(variables, place.logs / "airflow-db.log", python=python)
    place.lake.create()
    _Life(place, server.conninfo(DATABASE), variables).run()


class _Life:
    def __init__(self, place: _Place, conninfo: str, variables: dict[str, str]) -> None:
        self._place = place
        self._conninfo = conninfo
        self._variables = variables
        self._runs = 0

    def run(self) -> None:
        """Live."""
        self._write(_SOURCE)
        first = self._run("pgoutput_to_iceberg", "slot and copy")
        assert first.copied > 0, "the first run copies"
        self._compare(NAMESPACE)
        self._write(_CHANGES)
        self._write(_KEY_CHANGES)
        second = self._run("pgoutput_to_iceberg", "changes and key changes")
        assert second.changes > 0, "the second run has changes"
        self._compare(NAMESPACE)
        given = {name: self._place.dag_conf()[name] for name in ("slot_name", "staging_uri")}
        pipeline = {**given, "namespace": NAMESPACE}
        into_another = {"from_lsn": first.start_lsn, "target_namespace": "again"}
        self._run("pgoutput_replay", "replay", **pipeline, **into_another)
        self._compare("again")
        self._run("pgoutput_maintenance", "maintenance", **pipeline)
        self._compare(NAMESPACE)
        self._commands()

    def _write(self, statements: str) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            session.execute(statements)

    def _run(self, dag_id: str, what: str, **conf: object) -> DagRun:
        self._runs += 1
        run = run_dag(
            self._place,
            self._variables,
            self._runs,
            python=str(self._place.environments.python),
            dag_id=dag_id,
            conf=conf or None,
        )
        say(f"  {what}: {run.seconds['total']:.0f} s")
        return run

    def _compare(self, namespace: str) -> None:
        from pyiceberg.catalog import load_catalog

        lake = self._place.lake
        catalog = load_catalog(lake.catalog_name, **lake.pyiceberg_properties())
        with psycopg.connect(self._conninfo) as session:
            source: Rows = {
                table: Counter(session.execute(f"SELECT * FROM {table}").fetchall())
                for table in _TABLES
            }
        found: Rows = {
            table: Counter(
                tuple(row.values())
                for row in catalog.load_table((namespace, table)).scan().to_arrow().to_pylist()
            )
            for table in _TABLES
        }
        assert all(source.values()), "each table has rows to compare"
        for table, rows in source.items():
            missing, surplus = rows - found[table], found[table] - rows
            problem = f"{namespace}.{table}: missing {missing.total()}, surplus {surplus.total()}"
            assert not missing, problem
            assert not surplus, problem

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
            staging = ["--staging-uri", str(self._place.staging)]
            found = self._output(*program, "doctor", *pipeline, *staging, "--output", "json")
            assert _rows(found) == [], found
        say(f"  commands: {time.monotonic() - began:.0f} s")

    def _output(self, *command: str) -> str:
        result = subprocess.run(
            command,
            check=False,
            env={**os.environ, **self._variables},
            capture_output=True,
            text=True,
        )
        if result.returncode != 0:
            raise SourceError(f"{command} failed: {result.stdout[-3000:]}{result.stderr[-3000:]}")
        return result.stdout


def _rows(output: str) -> list[dict[str, Any]]:
    """What a command printed as JSON. The program ``airflow`` prints lines of its log before it."""
    lines = output.splitlines()
    begins = next((i for i, line in enumerate(lines) if line.startswith("[")), 0)
    rows: list[dict[str, Any]] = json.loads("\n".join(lines[begins:]))
    return rows


def say(text: str) -> None:
    """Print one line of progress."""
    print(text, flush=True)
