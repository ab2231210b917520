"""The example DAG as it is, against a real server, a real spark-submit and a real lake.

One test follows one pipeline through its life, because every apply costs a start of Spark.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.operators.advance import PgoutputAdvanceSlotOperator
from airflow_provider_pgoutput.operators.apply import PgoutputApplyOperator
from airflow_provider_pgoutput.quickstart.spark import LocalLake, local_conf, spark_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    Session = psycopg.Connection[tuple[Any, ...]]

pytestmark = [pytest.mark.submit, pytest.mark.postgres, pytest.mark.airflow]

CANARY = "canary-0xC0FFEE-password"
DAG_FOLDER = Path(__file__).parents[2] / "dags_examples"
TABLES = {
    "public.orders": "shop.orders",
    "public.customers": "shop.customers",
    "sales.lines": "shop.sales__lines",
}


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
            "password": CANARY,
            "schema": given["dbname"],
        }
        iceberg = {
            "conn_type": "iceberg",
            "extra": {
                **self.lake.pyiceberg_properties(),
                "catalog-name": "lake",
                "header.Authorization": f"Bearer {CANARY}",
            },
        }
        spark_conf = home / "spark-conf"
        spark_conf.mkdir()
        (spark_conf / "spark-defaults.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in local_conf("1g").items())
        )
        variables = spark_environment() | {
            "SPARK_CONF_DIR": str(spark_conf),
            "AIRFLOW__CORE__DAGS_FOLDER": str(DAG_FOLDER),
            "AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps(source),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(iceberg),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }
        for name, value in variables.items():
            environment.setenv(name, value)
        self.log = ""

    def run(self, **changed: Any) -> dict[str, Any]:
        """Run the DAG once, as ``airflow dags test`` does; the values that its tasks returned."""
        conf = {
            "slot_name": "shop",
            "publication_names": ["shop"],
            "staging_uri": self.staging_uri,
            "namespace": "shop",
            **changed,
        }
        command = ["airflow", "dags", "test", "pgoutput_to_iceberg", "-c", json.dumps(conf)]
        result = subprocess.run(
            [sys.executable, "-m", *command],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.log += result.stdout
        assert result.returncode == 0, result.stdout[-5000:]
        with metadata_database() as database:
            ((run_id,),) = database.execute("SELECT run_id FROM dag_run ORDER BY id DESC LIMIT 1")
            tasks = database.execute(
                "SELECT task_id, state, try_number FROM task_instance WHERE run_id = ?", (run_id,)
            ).fetchall()
            values = database.execute(
                "SELECT task_id, value FROM xcom WHERE run_id = ? AND key = 'return_value'",
                (run_id,),
            ).fetchall()
        assert [task[1:] for task in tasks] == [("success", 1)] * 3, (tasks, self.log[-5000:])
        return {task_id.rpartition(".")[2]: parsed(value) for task_id, value in values}

    def assert_equal(self) -> None:
        """Every row of the source is in the lake, and no other."""
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("lake", **self.lake.pyiceberg_properties())
        with psycopg.connect(self.conninfo) as session:
            for source, target in TABLES.items():
                rows = session.execute(f"SELECT * FROM {source}").fetchall()
                found = catalog.load_table(target).scan().to_arrow().to_pylist()
                assert rows, source
                assert Counter(rows) == Counter(tuple(row.values()) for row in found), source


def metadata_database() -> contextlib.closing[sqlite3.Connection]:
    """Airflow's own database, to read only."""
    path = Path(os.environ["AIRFLOW_HOME"]) / "airflow.db"
    return contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True))


def parsed(value: str) -> Any:
    """An XCom, which the database keeps as JSON in JSON."""
    found = json.loads(value)
    return json.loads(found) if isinstance(found, str) else found


@pytest.fixture
def pipeline(
    tmp_path: Path, postgres_database: str, monkeypatch: pytest.MonkeyPatch, airflow_home: Path
) -> Iterator[Pipeline]:
    with psycopg.connect(postgres_database, autocommit=True) as session:
        session.execute(f"CREATE ROLE cdc_reader LOGIN REPLICATION PASSWORD '{CANARY}'")
        session.execute(
            """
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
        )
        yield Pipeline(tmp_path, postgres_database, monkeypatch)
        session.execute("SELECT pg_drop_replication_slot('shop')")
        session.execute("DROP OWNED BY cdc_reader; DROP ROLE cdc_reader")


def test_a_pipeline_from_its_first_run_to_a_cleared_old_one(pipeline: Pipeline) -> None:
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        first = pipeline.run()
        assert first["stage"]["tables"]["public.orders"]["copied"] == 500
        pipeline.assert_equal()

        session.execute("UPDATE orders SET price = price + 1 WHERE id % 7 = 0")
        session.execute("UPDATE orders SET id = id + 10000 WHERE id % 11 = 0")
        session.execute("DELETE FROM sales.lines WHERE a = 3")
        session.execute("INSERT INTO customers VALUES ('new', 'epoch', NULL)")
        second = pipeline.run()
        assert second["stage"]["start_lsn"] == first["stage"]["end_lsn"]
        assert second["apply"]["applied"] is True
        assert second["apply"]["changes"] == second["stage"]["changes"] > 0
        assert second["advance"]["confirmed_flush_lsn"] == second["stage"]["end_lsn"]
        pipeline.assert_equal()

        cleared_old_run_is_a_no_op(pipeline, first["stage"])
        pipeline.assert_equal()
        assert confirmed(session) == second["advance"]["confirmed_flush_lsn"]

        idle = pipeline.run(transport="walsender")
        assert idle["stage"]["changes"] == 0
        assert idle["advance"]["confirmed_flush_lsn"] == idle["stage"]["end_lsn"]

    assert "public.orders: 500 copied" in pipeline.log
    assert "::group::Stage slot shop" in pipeline.log
    nothing_leaked(pipeline)


def cleared_old_run_is_a_no_op(pipeline: Pipeline, old_batch: dict[str, Any]) -> None:
    """F16: the apply and advance tasks of the first run again, after the second; no staging is left."""
    shutil.rmtree(Path(pipeline.staging_uri.removeprefix("file://")) / "shop" / "data")
    context: Any = {
        "ti": SimpleNamespace(try_number=2),
        "dag_run": SimpleNamespace(dag_id="d", run_id="r", run_type="manual"),
    }
    common: dict[str, Any] = {"batch": old_batch, "slot_name": "shop", "namespace": "shop"}
    apply = PgoutputApplyOperator(task_id="apply", staging_uri=pipeline.staging_uri, **common)
    assert apply.execute(context)["applied"] is False
    PgoutputAdvanceSlotOperator(task_id="advance", **common).execute(context)


def confirmed(session: Session) -> str:
    row = session.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'shop'"
    ).fetchone()
    assert row is not None
    return str(row[0])


def nothing_leaked(pipeline: Pipeline) -> None:
    """No password and no value of a row is in a log, an XCom, a rendered template or the staging."""
    assert CANARY not in pipeline.log
    assert "customer 3" not in pipeline.log
    with metadata_database() as database:
        kept = "\n".join(line for line in database.iterdump() if not line.startswith("CREATE"))
    assert "pgoutput_to_iceberg" in kept
    assert CANARY not in kept
    assert "customer 3" not in kept
    staging = Path(pipeline.staging_uri.removeprefix("file://"))
    texts = [path.read_text() for path in staging.rglob("*.json")]
    assert texts
    assert all(CANARY not in text for text in texts)
