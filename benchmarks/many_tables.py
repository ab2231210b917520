"""``python -m benchmarks.many_tables``: whole runs of the example DAG with many tables.

PostgreSQL, Airflow and Spark are those of the quick start. Three cases: ``--tables`` publishes so many tables
with ten rows each. Of the tables of ``--empty`` all but every hundredth are empty. ``--leaves`` publishes one
partitioned table with so many partitions through its root. Without any of the three all are run.

Each case has a first run, which makes all tables in the lake, runs in which tables with rows get so many
changes, and runs with nothing to do. Prints for each task, as JSON: seconds, CPU seconds of the worker and of
the Spark driver, the most memory, open files and sessions in the database; and how large the batch was.
Medians of seconds, the worst of everything else. Afterwards rows of source and lake are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg

from benchmarks.lake import say
from benchmarks.task_watch import TaskWatch
from quickstart.compare import compare_tables
from quickstart.dag_runs import TASKS, newest_result, prepare_airflow, run_dag
from quickstart.place import DAG_ID, DATABASE, NAMESPACE, PUBLICATION, DemoPlace
from quickstart.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TABLES, EMPTY, LEAVES, CHANGES = 1000, 4000, 1200, 10
FIRST_RUN, CHANGED, NOTHING_TO_DO = "first run", "changes", "nothing to do"
#: Of a table that is not empty.
ROWS = 10
#: Keys of a partition.
_SPAN = 1_000_000
#: A transaction takes locks for each table that it makes.
_TABLES_A_TRANSACTION = 500
_WORKER = b"\0dags\0test\0"

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Place(DemoPlace):
    """The folders of one case."""

    home: Path

    @property
    def state(self) -> Path:
        """All files of the case."""
        return self.home


class Tables:
    """Published tables of which every so many have rows."""

    def __init__(self, session: psycopg.Connection[Any], number: int, every: int = 1) -> None:
        self._session = session
        self._filled = range(0, number, every)
        self._next_row = 1
        self.names = [f"t{n}" for n in range(number)]
        self.filled_names = [f"t{n}" for n in self._filled]

    def create(self) -> None:
        """Make them all, with their first rows."""
        self._make()
        self._session.execute(
            f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES"
            " WITH (publish_via_partition_root = true)".encode()
        )
        self._insert(ROWS)

    def change(self, changes: int) -> None:
        """Update as many rows of each as it had first, at most half of the changes; insert the rest."""
        updated = min(changes // 2, ROWS)
        self._insert(changes - updated)
        self._each(self._filled, lambda n: self._update_statement(n, updated))

    def nothing(self) -> None:
        """Write WAL, and no row that is published."""
        self._session.execute(b"SELECT pg_log_standby_snapshot()")

    def _make(self) -> None:
        self._each(
            range(len(self.names)),
            lambda n: f"CREATE TABLE t{n} (id bigint PRIMARY KEY, a int, b text)",
        )

    def _table(self, number: int) -> tuple[str, int]:
        """Where rows are written, and the number before the first key."""
        return f"t{number}", 0

    def _insert(self, rows: int) -> None:
        first, self._next_row = self._next_row, self._next_row + rows

        def statement(number: int) -> str:
            table, before = self._table(number)
            return (
                f"INSERT INTO {table} SELECT {before} + i, i, 'text ' || i"
                f" FROM generate_series({first}, {first + rows - 1}) i"
            )

        self._each(self._filled, statement)

    def _update_statement(self, number: int, rows: int) -> str:
        table, before = self._table(number)
        return f"UPDATE {table} SET a = a + 1 WHERE id BETWEEN {before + 1} AND {before + rows}"

    def _each(self, numbers: range, statement: Callable[[int], str]) -> None:
        for start in range(0, len(numbers), _TABLES_A_TRANSACTION):
            with self._session.transaction():
                for number in numbers[start : start + _TABLES_A_TRANSACTION]:
                    self._session.execute(statement(number).encode())


class Leaves(Tables):
    """One table with so many partitions, each with rows."""

    def __init__(self, session: psycopg.Connection[Any], number: int) -> None:
        super().__init__(session, number)
        self.names = self.filled_names = ["r"]

    def _make(self) -> None:
        self._session.execute(
            b"CREATE TABLE r (id bigint PRIMARY KEY, a int, b text) PARTITION BY RANGE (id)"
        )
        self._each(
            self._filled,
            lambda n: (
                f"CREATE TABLE r_{n} PARTITION OF r"
                f" FOR VALUES FROM ({n * _SPAN}) TO ({(n + 1) * _SPAN})"
            ),
        )

    def _table(self, number: int) -> tuple[str, int]:
        return "r", number * _SPAN


class Pipeline:
    """The example DAG with a server, a lake and an Airflow of its own."""

    def __init__(self, place: Place, server: EmbeddedPostgres) -> None:
        self._place = place
        self._server = server
        self._environment = place.environment(server)
        self._runs = 0
        prepare_airflow(self._environment, place.logs / "airflow-db.log")
        place.lake.create()

    def run(self) -> Figures:
        """Run the DAG once; the figures of its tasks and of its batch."""
        self._runs += 1
        with TaskWatch(_WORKER, self._server.conninfo(), DATABASE) as watch:
            run = run_dag(self._place, self._environment, self._runs)
        found: Figures = {
            task: {"seconds": run.seconds[task], **watch.figures(*run.spans[task])}
            for task in TASKS
        }
        batch = newest_result(self._place.airflow_database, DAG_ID, "stage") or {}
        manifest = Path(urlsplit(batch["manifest_uri"]).path)
        found["batch"] = {
            "tables": len(batch["tables"]) + batch.get("tables_left_out", 0),
            "changes": run.changes,
            "manifest_bytes": manifest.stat().st_size,
            "xcom_bytes": len(json.dumps(batch)),
            # Without the start of Airflow's part of the task.
            "stage_seconds": batch.get("stage_seconds", 0),
        }
        return found

    def check(self, tables: Tables) -> None:
        """Every table has its table in the lake, and those with rows have the same rows."""
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - slow to import

        lake = self._place.lake
        catalog = load_catalog(lake.catalog_name, **lake.pyiceberg_properties())
        made = {name for _, name in catalog.list_tables(NAMESPACE)}
        # The pipeline's own tables are there as well, and no partition is.
        own = {name for name in made if name.startswith("pgoutput")}
        if made - own != set(tables.names):
            raise RuntimeError(f"The lake has {len(made - own)} tables for {len(tables.names)}.")
        pairs = [(f"public.{name}", f"{NAMESPACE}.{name}") for name in tables.filled_names]
        for each in compare_tables(self._server.conninfo(DATABASE), catalog, pairs):
            if not each.is_equal:
                raise RuntimeError(f"{each.table} lacks {each.missing}, has {each.surplus} more.")


@contextlib.contextmanager
def source_of(server: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    """A session in a new database."""
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute(f"CREATE DATABASE {DATABASE}".encode())
    with psycopg.connect(server.conninfo(DATABASE), autocommit=True) as session:
        yield session


def run_case(
    folder: Path,
    name: str,
    tables_of: Callable[[psycopg.Connection[Any]], Tables],
    options: argparse.Namespace,
) -> dict[str, Figures]:
    """All runs of one case."""
    place = Place(DemoPlace.of_this_checkout().checkout, folder)
    place.clear()
    with EmbeddedPostgres(place.postgres_home()) as server, source_of(server) as session:
        tables = tables_of(session)
        tables.create()
        pipeline = Pipeline(place, server)

        def run(what: str) -> Figures:
            found = pipeline.run()
            # A long run that is stopped has told what it found.
            say(f"{name}, {what}: {json.dumps(found)}")
            return found

        runs: dict[str, list[Figures]] = {FIRST_RUN: [run(FIRST_RUN)]}
        for _ in range(options.repetitions):
            tables.change(options.changes)
            runs.setdefault(CHANGED, []).append(run(CHANGED))
            tables.nothing()
            runs.setdefault(NOTHING_TO_DO, []).append(run(NOTHING_TO_DO))
        pipeline.check(tables)
    return {what: _summary(found) for what, found in runs.items()}


def _summary(runs: list[Figures]) -> Figures:
    """Medians of seconds, and the worst of all else."""

    def one(part: str, figure: str) -> float:
        values = [run[part][figure] for run in runs if figure in run[part]]
        return round(statistics.median(values), 2) if "seconds" in figure else max(values)

    return {part: {figure: one(part, figure) for figure in runs[0][part]} for part in runs[0]}


def run(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Figures]]:
    """All cases that are asked for."""
    if options.tables is options.empty is options.leaves is None:
        options.tables, options.empty, options.leaves = TABLES, EMPTY, LEAVES
    cases: dict[str, Callable[[psycopg.Connection[Any]], Tables]] = {}
    if options.tables:
        cases["tables"] = lambda session: Tables(session, options.tables)
    if options.empty:
        cases["empty"] = lambda session: Tables(session, options.empty, every=100)
    if options.leaves:
        cases["leaves"] = lambda session: Leaves(session, options.leaves)
    return {name: run_case(folder / name, name, of, options) for name, of in cases.items()}


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_tables", description=__doc__)
    parser.add_argument("--tables", type=int, help=f"with rows in each; {TABLES} if all cases run")
    parser.add_argument("--empty", type=int, help=f"most of them empty; {EMPTY}")
    parser.add_argument("--leaves", type=int, help=f"partitions of one table; {LEAVES}")
    parser.add_argument("--changes", type=int, default=CHANGES, help="of each table or partition")
    parser.add_argument("--repetitions", type=int, default=1, help="of all but the first run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-runs-", dir="/var/tmp") as folder:
        # The server's account has to enter it.
        Path(folder).chmod(0o755)
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
