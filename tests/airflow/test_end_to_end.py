"""The example DAG as it is, against a real server, a real spark-submit and a real lake.

One test follows one pipeline through its life, because every apply costs a start of Spark.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgoutput.quickstart.spark import LocalLake, local_conf, spark_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import DAG

    Session = psycopg.Connection[tuple[Any, ...]]

pytestmark = [pytest.mark.submit, pytest.mark.postgres, pytest.mark.airflow]

CANARY = "canary-0xC0FFEE-password"
DAG_FILE = Path(__file__).parents[2] / "dags_examples" / "pgoutput_to_iceberg.py"
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
            "AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps(source),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(iceberg),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }
        for name, value in variables.items():
            environment.setenv(name, value)
        self.dag = registered_dag()
        self._day = datetime(2026, 1, 1, tzinfo=UTC)

    def run(self, **changed: Any) -> dict[str, Any]:
        """Run the DAG once; the values that its tasks returned, or the states of a failed run."""
        self._day += timedelta(days=1)
        conf = {
            "slot_name": "shop",
            "publication_names": ["shop"],
            "staging_uri": self.staging_uri,
            "namespace": "shop",
            **changed,
        }
        run = self.dag.test(run_conf=conf, logical_date=self._day)
        tasks = run.get_task_instances()
        states = {task.task_id.rpartition(".")[2]: task.state for task in tasks}
        assert set(states.values()) == {"success"}, states
        return {
            task.task_id.rpartition(".")[2]: task.xcom_pull(task_ids=task.task_id) for task in tasks
        }

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


def registered_dag() -> DAG:
    """The example DAG, known to Airflow's database as if its bundle had been parsed."""
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
    bag = DagBag(str(DAG_FILE))
    assert not bag.import_errors
    for task in bag.dags["pgoutput_to_iceberg"].tasks:
        task.retries = 0  # What fails here shall be seen.
    sync_bag_to_db(bag, bundle_name="tests", bundle_version="1")
    return bag.dags["pgoutput_to_iceberg"]


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


def test_a_pipeline_from_its_first_run_to_a_cleared_old_one(
    pipeline: Pipeline, capfd: pytest.CaptureFixture[str]
) -> None:
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

    written = "".join(capfd.readouterr())
    assert "public.orders: 500 copied" in written
    assert "::group::" in written
    nothing_leaked(written, os.environ["AIRFLOW_HOME"], pipeline)


def cleared_old_run_is_a_no_op(pipeline: Pipeline, old_batch: dict[str, Any]) -> None:
    """F16: the apply and advance tasks of the first run again, after the second; no staging is left."""
    from types import SimpleNamespace

    shutil.rmtree(Path(pipeline.staging_uri.removeprefix("file://")) / "shop" / "data")
    context: Any = {
        "ti": SimpleNamespace(try_number=2),
        "dag_run": SimpleNamespace(dag_id="d", run_id="r", run_type="manual"),
    }
    again: dict[str, Any] = {}
    for name in ("apply", "advance"):
        task = pipeline.dag.get_task(f"pgoutput_to_iceberg.{name}")
        fresh = type(task)(
            task_id=name,
            batch=old_batch,
            slot_name="shop",
            namespace="shop",
            **({"staging_uri": pipeline.staging_uri} if name == "apply" else {}),
        )
        again[name] = fresh.execute(context)
    assert again["apply"]["applied"] is False


def confirmed(session: Session) -> str:
    row = session.execute(
        "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'shop'"
    ).fetchone()
    assert row is not None
    return str(row[0])


def nothing_leaked(written: str, airflow_home: str, pipeline: Pipeline) -> None:
    """No password and no value of a row is in a log, an XCom, a rendered template or the staging."""
    import sqlite3

    assert CANARY not in written
    assert "customer 3" not in written
    with sqlite3.connect(f"file:{airflow_home}/airflow.db?mode=ro", uri=True) as database:
        kept = "\n".join(line for line in database.iterdump() if not line.startswith("CREATE"))
    assert "pgoutput_to_iceberg" in kept
    assert CANARY not in kept
    assert "customer 3" not in kept
    staging = Path(pipeline.staging_uri.removeprefix("file://"))
    texts = [path.read_text() for path in staging.rglob("*.json")]
    assert texts
    assert all(CANARY not in text for text in texts)
