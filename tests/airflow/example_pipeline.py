"""The example DAG with its own connections, source and lake, and what Airflow says of its runs."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from quickstart.spark import LocalLake, site_conf, spark_environment
from tests.airflow.canaries import CANARIES, files_below
from tests.reader_role import role_statements

if TYPE_CHECKING:
    import pytest

DAG_FOLDER = Path(__file__).parents[2] / "dags_examples"
#: The documented role, with the rights that "Named tables" of the page gives.
_ROLE = role_statements("The role", "cdc_reader", CANARIES["postgres password"])
SOURCE = f"""
    {_ROLE}
    CREATE SCHEMA sales;
    CREATE TABLE orders (id int PRIMARY KEY, customer text, price numeric(12, 2));
    CREATE TABLE customers (name text PRIMARY KEY, since timestamptz, notes text);
    CREATE TABLE sales.lines (a int, b int, amount float8, PRIMARY KEY (a, b));
    INSERT INTO orders SELECT i, 'customer ' || i % 10, i * 1.5 FROM generate_series(1, 500) i;
    INSERT INTO customers SELECT 'customer ' || i, now() - i * interval '1 day', repeat('x', i)
                      FROM generate_series(0, 9) i;
    INSERT INTO sales.lines SELECT i, j, i / (j + 1.0) FROM generate_series(1, 50) i,
                                                            generate_series(1, 3) j;
    CREATE PUBLICATION shop FOR ALL TABLES;
    GRANT USAGE ON SCHEMA sales TO cdc_reader;
    GRANT SELECT ON ALL TABLES IN SCHEMA public, sales TO cdc_reader;
"""
TABLES = {
    "public.orders": "orders",
    "public.customers": "customers",
    "sales.lines": "sales__lines",
}

Rows = dict[str, Counter[tuple[Any, ...]]]


@dataclass(frozen=True)
class RunState:
    """What Airflow knows of a DAG run."""

    run_id: str
    #: State and number of the try, by the task's name; the state None: not scheduled yet.
    tasks: dict[str, tuple[str | None, int]]
    #: What the tasks returned.
    values: dict[str, Any]


class Pipeline:
    """The example DAG with its connections, its source and its lake."""

    def __init__(self, home: Path, conninfo: str, environment: pytest.MonkeyPatch) -> None:
        self.conninfo = conninfo
        self.lake = LocalLake(home / "lake").create()
        self.staging_uri = (home / "staging").as_uri()
        given = conninfo_to_dict(conninfo)
        source = {
            "conn_type": "postgres",
            "host": given["host"],
            "port": int(str(given["port"])),
            "login": "cdc_reader",
            "password": CANARIES["postgres password"],
            "schema": given["dbname"],
            "extra": {"sslpassword": CANARIES["postgres sslpassword"]},
        }
        iceberg = {
            "conn_type": "iceberg",
            "password": CANARIES["iceberg password"],
            "extra": {
                **self.lake.pyiceberg_properties(),
                "catalog-name": "lake",
                "header.Authorization": f"Bearer {CANARIES['iceberg header.Authorization']}",
                **{
                    name: CANARIES[f"iceberg {name}"]
                    for name in (
                        "token",
                        "credential",
                        "header.X-Mine",
                        "s3.access-key-id",
                        "s3.secret-access-key",
                        "s3.session-token",
                        "adls.connection-string",
                        "my-own-property",
                    )
                },
            },
        }
        spark = {"conn_type": "spark", "host": "local[2]", "password": CANARIES["spark password"]}
        spark_conf = home / "spark-conf"
        spark_conf.mkdir()
        self.event_logs = home / "event-logs"
        self.event_logs.mkdir()
        defaults = site_conf("1g") | {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.event_logs.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.ssl.ui.keyStorePassword": CANARIES["spark keystore"],
        }
        (spark_conf / "spark-defaults.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in defaults.items())
        )
        # A secrets backend, as in production: connections in the environment are for all to inherit.
        self._connections = home / "connections.json"
        self._connections.write_text(
            json.dumps(
                {"postgres_default": source, "iceberg_default": iceberg, "spark_default": spark}
            )
        )
        variables = spark_environment() | {
            "SPARK_CONF_DIR": str(spark_conf),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAG_FOLDER),
            "AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps(source),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(iceberg),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        }
        for name, value in variables.items():
            environment.setenv(name, value)
        self.log = ""

    def conf(self, **changed: Any) -> str:
        """What the DAG run is given, as JSON."""
        return json.dumps(
            {
                "slot_name": "shop",
                "publication_names": ["shop"],
                "staging_uri": self.staging_uri,
                "namespace": "shop",
                **changed,
            }
        )

    def run(self, **changed: Any) -> dict[str, Any]:
        """Run the DAG once, as ``airflow dags test`` does; the values that its tasks returned."""
        command = ["airflow", "dags", "test", "pgoutput_to_iceberg", "-c", self.conf(**changed)]
        status = self.python("-m", *command)
        assert status == 0, self.log[-5000:]
        newest = newest_run()
        assert list(newest.tasks.values()) == [("success", 1)] * 3, (newest, self.log[-5000:])
        return newest.values

    def replay(self, **given: Any) -> dict[str, Any]:
        """Run the other example DAG once; what its task returned."""
        conf = {
            "slot_name": "shop",
            "staging_uri": self.staging_uri,
            "namespace": "shop",
            **given,
        }
        command = ["airflow", "dags", "test", "pgoutput_replay", "-c", json.dumps(conf)]
        assert self.python("-m", *command) == 0, self.log[-5000:]
        newest = newest_run()
        assert newest.tasks == {"replay": ("success", 1)}, (newest, self.log[-5000:])
        found: dict[str, Any] = newest.values["replay"]
        return found

    def python(self, *arguments: str) -> int:
        """Run a Python program to its end and keep what it prints; its exit status."""
        result = subprocess.run(
            [sys.executable, *arguments],
            check=False,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.log += result.stdout
        return result.returncode

    def start(self, log: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Begin a Python program that prints into a file, with further variables of the environment."""
        with log.open("w") as output:
            return subprocess.Popen(
                [sys.executable, *arguments],
                env={**self._environment(), **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        """Of a program that finds the connections where it looks for secrets, and not among its variables."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("AIRFLOW_CONN_")
        }
        backend = {
            "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
            "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps(
                {"connections_file_path": str(self._connections)}
            ),
        }
        return environment | backend

    def source_rows(self) -> Rows:
        """Every row of the source, by table."""
        with psycopg.connect(self.conninfo) as session:
            return {
                table: Counter(session.execute(f"SELECT * FROM {table}").fetchall())
                for table in TABLES
            }

    def lake_rows(self, namespace: str = "shop", without: str = "") -> Rows:
        """Every row of a namespace of the lake, by table of the source, all but one of them."""
        catalog = self.lake_catalog()
        return {
            source: Counter(
                tuple(row.values())
                for row in catalog.load_table((namespace, target)).scan().to_arrow().to_pylist()
            )
            for source, target in TABLES.items()
            if source != without
        }

    def lake_catalog(self) -> Any:
        """The lake, read by another engine than Spark."""
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **self.lake.pyiceberg_properties())

    def assert_equal(self) -> None:
        """Every row of the source is in the lake, and no other."""
        wanted = self.source_rows()
        assert all(wanted.values())
        assert self.lake_rows() == wanted


def newest_run() -> RunState:
    """What Airflow's database says of the DAG run that was made last."""
    return run_state(_run_ids()[-1])


def run_before_newest() -> RunState:
    """What Airflow's database says of the DAG run that was made before the last one."""
    return run_state(_run_ids()[-2])


def _run_ids() -> list[str]:
    """All DAG runs in their order, those of other tests too: they have Airflow's database in common."""
    with metadata_database() as database:
        return [run_id for (run_id,) in database.execute("SELECT run_id FROM dag_run ORDER BY id")]


def run_state(run_id: str) -> RunState:
    """What Airflow's database says of a DAG run."""
    with metadata_database() as database:
        tasks = database.execute(
            "SELECT task_id, state, try_number FROM task_instance WHERE run_id = ?", (run_id,)
        ).fetchall()
        values = database.execute(
            "SELECT task_id, value FROM xcom WHERE run_id = ? AND key = 'return_value'", (run_id,)
        ).fetchall()
    return RunState(
        run_id,
        {task_id.rpartition(".")[2]: (state, number) for task_id, state, number in tasks},
        {task_id.rpartition(".")[2]: parsed(value) for task_id, value in values},
    )


def metadata_database() -> contextlib.closing[sqlite3.Connection]:
    """Airflow's own database, to read only."""
    path = Path(os.environ["AIRFLOW_HOME"]) / "airflow.db"
    return contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True))


def kept_rows(table: str) -> list[str]:
    """What a table of Airflow's database holds of the DAG run that was made last, row by row."""
    with metadata_database() as database:
        newest = "SELECT run_id FROM dag_run ORDER BY id DESC LIMIT 1"
        rows = database.execute(f"SELECT * FROM {table} WHERE run_id = ({newest})").fetchall()
    return [repr(row) for row in rows]


def airflow_files() -> dict[str, bytes]:
    """Every file of Airflow's home folder, by its path in a copy.

    Another process copies them: one that closes a SQLite file takes the locks from its own connections.
    https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cp", "-R", os.environ["AIRFLOW_HOME"], folder], check=True)
        found = files_below(Path(folder))
    assert any(path.endswith("airflow.db") for path in found)
    return found


def parsed(value: str) -> Any:
    """An XCom, which the database keeps as JSON in JSON."""
    found = json.loads(value)
    return json.loads(found) if isinstance(found, str) else found
