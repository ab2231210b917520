"""Two pipelines write one table, in an Airflow with a scheduler and with real Spark drivers.

Each has a database, a slot and a DAG of its own, and their runs overlap. Then one of them is replayed in
place, and each is verified. That one prepares its rows again when the other one publishes first is shown by
``tests/apply/test_shared_tables.py``. This test takes four to eight minutes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.scheduled_airflow import ScheduledAirflow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.airflow.example_pipeline import Pipeline

_SHARDS = ("eu", "us")
_DAGS = """
from airflow.sdk import DAG
from airflow_provider_pgoutput.operators.replay import PgoutputReplayOperator
from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator
from airflow_provider_pgoutput.task_groups.pipeline import pgoutput_to_iceberg

for shard in ("eu", "us"):
    own = {"slot_name": "shard_" + shard, "staging_uri": "STAGING", "namespace": "shop"}
    written = {
        "table_options": {
            "public.orders": {"shared": True, "constant_columns": {"shard": shard}},
            "public.customers": {"mode": "history", "shared": True, "constant_columns": {"shard": shard}},
        }
    }
    with DAG("shard_" + shard, schedule=None, max_active_runs=1, default_args={"retries": 0}):
        pgoutput_to_iceberg(
            **own,
            postgres_conn_id="postgres_" + shard,
            publication_names=["shop"],
            apply_options=written,
        )
    with DAG("verify_" + shard, schedule=None):
        PgoutputVerifyOperator(
            **own, task_id="verify", postgres_conn_id="postgres_" + shard, publication_names=["shop"]
        )
    with DAG("replay_" + shard, schedule=None):
        PgoutputReplayOperator(
            **own, **written, task_id="replay", from_lsn="{{ dag_run.conf['from_lsn'] }}"
        )
"""
_TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, customer text, price numeric(12, 2));
CREATE TABLE customers (name text PRIMARY KEY, notes text);
INSERT INTO orders SELECT i, 'customer ' || i % 10, i * 1.5 FROM generate_series(1, 300) i;
INSERT INTO customers SELECT 'customer ' || i, repeat('x', i) FROM generate_series(0, 9) i;
CREATE PUBLICATION shop FOR TABLE orders, customers;
GRANT SELECT ON ALL TABLES IN SCHEMA public TO cdc_reader;
"""
_CHANGES = """
UPDATE orders SET price = price + {0} WHERE id % 7 = 0;
UPDATE orders SET id = id + 1000 WHERE id % 50 = {0} AND id < 1000;
DELETE FROM orders WHERE id % 11 = {0};
INSERT INTO orders SELECT 9000 + 100 * {0} + i, 'new', i FROM generate_series(1, 20) i;
UPDATE customers SET notes = notes || '{0}' WHERE name > 'customer 4';
"""
_ENDED = "SELECT count(*) FROM dag_run WHERE state IN ('success', 'failed')"

Rows = Counter[tuple[Any, ...]]


class _Shards:
    """The two databases and the Airflow."""

    def __init__(self, pipeline: Pipeline, airflow: ScheduledAirflow, conninfos: dict[str, str]):
        self._pipeline, self._airflow, self._conninfos = pipeline, airflow, conninfos
        self._runs = 0

    def change(self, shard: str, statements: str) -> None:
        with psycopg.connect(self._conninfos[shard]) as session:
            session.execute(statements.encode())

    def run(self, *dags: str, **conf: str) -> None:
        """Trigger DAGs one right after the other, and wait until all of their runs ended well."""
        for dag in dags:
            self._airflow.run("-m", "airflow", "dags", "trigger", dag, "--conf", json.dumps(conf))
        self._runs += len(dags)
        self._airflow.wait_for(_ENDED, self._runs)
        failed = self._airflow.rows("SELECT dag_id, state FROM dag_run WHERE state = 'failed'")
        assert failed == [], self._logs()

    def _logs(self) -> str:
        files = sorted(self._airflow.home.glob("logs/dag_id=*/run_id=*/task_id=*/*.log"))
        return "".join(each.read_text(encoding="utf-8")[-3000:] for each in files[-6:])

    def compare(self) -> None:
        """Each slice has the rows of its database."""
        catalog = self._pipeline.lake_catalog()
        held = {
            name: catalog.load_table(("shop", name)).scan().to_arrow().to_pylist()
            for name in ("orders", "customers")
        }
        for shard in _SHARDS:
            with psycopg.connect(self._conninfos[shard]) as session:
                orders: Rows = Counter(session.execute("SELECT * FROM orders").fetchall())
                customers: Rows = Counter(session.execute("SELECT * FROM customers").fetchall())
            assert orders == Counter(
                (row["id"], row["customer"], row["price"])
                for row in held["orders"]
                if row["shard"] == shard
            )
            assert customers == Counter(
                (row["name"], row["notes"])
                for row in held["customers"]
                if row["shard"] == shard and row["_pgoutput_is_current"]
            )
        assert {row["shard"] for rows in held.values() for row in rows} == set(_SHARDS)

    def versions(self, shard: str) -> int:
        """How many versions the history has of a shard."""
        table = self._pipeline.lake_catalog().load_table(("shop", "customers"))
        return [row["shard"] for row in table.scan().to_arrow().to_pylist()].count(shard)

    def ends(self, shard: str) -> list[str]:
        """Where the batches of a shard end, in order."""
        rows = self._pipeline.lake_catalog().load_table(("shop", "pgoutput_checkpoint")).scan()
        found = {
            row["end_lsn"]
            for row in rows.to_arrow().to_pylist()
            if row["slot_name"] == f"shard_{shard}"
        }
        return sorted(found)


@pytest.fixture
def databases(pipeline: Pipeline) -> Iterator[dict[str, str]]:
    """A database for each shard: what a superuser connects with."""
    found = {}
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        for shard in _SHARDS:
            name = f"{conninfo_to_dict(pipeline.conninfo)['dbname']}_{shard}"
            session.execute(f"CREATE DATABASE {name}".encode())
            found[shard] = make_conninfo(pipeline.conninfo, dbname=name)
            with psycopg.connect(found[shard], autocommit=True) as inside:
                inside.execute(_TABLES.encode())
    yield found
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        for conninfo in found.values():
            name = str(conninfo_to_dict(conninfo)["dbname"])
            session.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                (name,),
            )
            session.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.submit
@pytest.mark.further
def test_two_pipelines_at_once_into_one_table(
    pipeline: Pipeline, databases: dict[str, str], tmp_path: Path
) -> None:
    more = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}
    for shard, conninfo in databases.items():
        name = conninfo_to_dict(conninfo)["dbname"]
        given = json.loads(os.environ["AIRFLOW_CONN_POSTGRES_DEFAULT"])
        more[f"AIRFLOW_CONN_POSTGRES_{shard.upper()}"] = json.dumps({**given, "schema": name})
    home = tmp_path / "airflow"
    home.mkdir()
    airflow = ScheduledAirflow(home, more=more)
    airflow.prepare(_DAGS.replace("STAGING", pipeline.staging_uri))
    shards = _Shards(pipeline, airflow, databases)
    both = [f"shard_{each}" for each in _SHARDS]
    with airflow.api_server(), airflow.scheduler():
        shards.run(*both)
        shards.compare()
        for number in (1, 2):
            for shard in _SHARDS:
                shards.change(shard, _CHANGES.format(number))
            shards.run(*both)
            shards.compare()
        # The rows of one shard go back to the copy, and the changes are applied again.
        before = shards.versions("eu"), shards.versions("us")
        assert before == (20, 20)
        shards.run("replay_eu", from_lsn=shards.ends("eu")[0])
        shards.compare()
        assert (shards.versions("eu"), shards.versions("us")) == before
        # Both go on after that, while each is verified.
        for shard in _SHARDS:
            shards.change(shard, _CHANGES.format(3))
            shards.run(f"verify_{shard}", f"shard_{shard}")
        shards.compare()
    proven = pipeline.lake_catalog().load_table(("shop", "pgoutput_proofs")).scan().to_arrow()
    found = Counter((row["slot_name"], row["is_equal"]) for row in proven.to_pylist())
    assert found == {(each, True): 2 for each in both}
