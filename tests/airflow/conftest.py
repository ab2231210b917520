"""Airflow connections for the tests of the doors, and the context of a task that is not running."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.airflow.example_pipeline import SOURCE, Pipeline
from tests.airflow.spark_submit_double import Workshop
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

Session = psycopg.Connection[tuple[Any, ...]]


def connection_json(conninfo: str, **extra: str) -> str:
    """An Airflow connection of type postgres for a libpq string."""
    given = conninfo_to_dict(conninfo)
    fields = {
        "host": "host",
        "port": "port",
        "login": "user",
        "password": "password",
        "schema": "dbname",
    }
    body = {ours: given.get(theirs) for ours, theirs in fields.items() if given.get(theirs)}
    if "port" in body:
        body["port"] = int(str(body["port"]))
    return json.dumps({"conn_type": "postgres", **body, "extra": extra})


@pytest.fixture
def set_connection(
    monkeypatch: pytest.MonkeyPatch, airflow_home: object
) -> Callable[[str, dict[str, Any]], None]:
    """Define an Airflow connection for the duration of a test."""

    def define(conn_id: str, body: dict[str, Any]) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(body))

    return define


@pytest.fixture
def source(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch, airflow_home: object
) -> Iterator[Session]:
    """A superuser's session in a fresh database, where ``postgres_default`` is the documented role."""
    reader = connection_json(reader_conninfo(postgres_database))
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", reader)
    with psycopg.connect(postgres_database, autocommit=True) as session:
        yield session


@pytest.fixture
def slot(source: Session, request: pytest.FixtureRequest) -> str:
    """A pgoutput slot in the database of ``source``."""
    name = f"slot_{abs(hash(request.node.nodeid)) % 10**12}"
    source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    return name


@dataclass
class OutletEvents:
    """What a task writes into ``context["outlet_events"]``."""

    events: dict[Any, SimpleNamespace] = field(default_factory=dict)
    #: Names of assets that were added to an alias, and what their events tell.
    added: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __getitem__(self, outlet: Any) -> SimpleNamespace:
        return self.events.setdefault(outlet, SimpleNamespace(extra=None, add=self._add))

    def _add(self, asset: Any, *, extra: dict[str, Any]) -> None:
        self.added.append((asset.uri, extra))


@pytest.fixture
def task_context() -> dict[str, Any]:
    """The part of a task's context that the doors read."""
    pushed: dict[str, Any] = {}
    return {
        "ti": SimpleNamespace(
            try_number=1,
            max_tries=2,
            get_first_reschedule_date=lambda _: None,
            # A task that takes more than five seconds tells how far it is.
            xcom_push=lambda key, value: pushed.update({key: value}),
            pushed=pushed,
        ),
        "dag_run": SimpleNamespace(dag_id="tests", run_id="manual__1", run_type="manual"),
        "outlet_events": OutletEvents(),
    }


@pytest.fixture
def lose_slot(source: Session) -> Iterator[Callable[[], None]]:
    """Make the server remove the WAL that every idle slot still needs."""

    def setting(value: str | None) -> None:
        if value is None:
            source.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        else:
            source.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        source.execute("SELECT pg_reload_conf()")

    def lose() -> None:
        setting("1MB")
        for _ in range(4):
            source.execute("SELECT pg_switch_wal(), pg_logical_emit_message(false, 't', 'x', true)")
        source.execute("CHECKPOINT")

    yield lose
    setting(None)


@dataclass
class TestLake:
    """A catalog of its own that is Airflow's connection ``iceberg_default``."""

    __test__ = False

    properties: dict[str, str]
    namespace: str = "shop"
    catalog_name: str = "iceberg_default"
    system_identifier: str = "7"

    def quarantine(self, slot_name: str, table: str, relation_oid: int) -> None:
        """Write entries of two keys, as an apply leaves them for rows that it cannot write."""
        from pyiceberg.catalog import load_catalog

        from airflow_provider_pgoutput.batch.checkpoint import QUARANTINE, QUARANTINE_TABLE
        from airflow_provider_pgoutput.lake.own_tables import append_to_own_table

        catalog = load_catalog(self.catalog_name, **self.properties)
        catalog.create_namespace_if_not_exists(self.namespace)
        row = {"slot_name": slot_name, "relation_oid": relation_oid, "table_name": table}
        rows = [
            {**row, "key": f'{{"a":{key}}}', "commit_lsn": lsn}
            for key, lsn in ((1, 0x12), (2, 0x11), (1, 0x13))
        ]
        append_to_own_table(catalog, self.namespace, QUARANTINE_TABLE, QUARANTINE, rows)

    def record(
        self,
        slot_name: str,
        end_lsn: str,
        batch_id: str = "b" * 64,
        tables: Mapping[str, int] | None = None,
        last_commit_time: datetime | None = None,
        complete_until: datetime | None = None,
        copied: int = 0,
        timeline: int | None = None,
        start_lsn: str = "0/0",
        set_aside: Mapping[str, int] | None = None,
        unstaged: Mapping[str, int] | None = None,
        error: str = "RowMissing",
        adopted_from: str | None = None,
    ) -> None:
        """Write the rows that an apply leaves: one for the batch, one for each table, by name and OID.

        :param set_aside: tables that did not get the batch.
        :param error: why not, as the name of an error's class.
        :param unstaged: tables that the stage task set aside.
        """
        from pyiceberg.catalog import load_catalog

        from airflow_provider_pgoutput.batch.lsn import Lsn
        from airflow_provider_pgoutput.batch.set_aside import Refusal
        from airflow_provider_pgoutput.lake.checkpoint_rows import append_rows

        catalog = load_catalog(self.catalog_name, **self.properties)
        catalog.create_namespace_if_not_exists(self.namespace)
        row: dict[str, Any] = {
            "slot_name": slot_name,
            "system_identifier": self.system_identifier,
            "batch_id": batch_id,
            "start_lsn": Lsn.parse(start_lsn).sortable,
            "end_lsn": Lsn.parse(end_lsn).sortable,
            "last_commit_time": last_commit_time,
            "complete_until": complete_until,
            "timeline": timeline,
            "dag_id": "tests",
            **dict.fromkeys(("inserts", "updates", "deletes", "truncates", "copied"), copied),
        }
        rows = [{**row, "adopted_from": adopted_from}]
        for table_name, relation_oid in (tables or {}).items():
            target = f"{self.namespace}.{table_name.replace('.', '__')}"
            of_table = {"table_name": table_name, "relation_oid": relation_oid, "target": target}
            rows.append({**row, **of_table})
        for refused, since in ((set_aside or {}, ""), (unstaged or {}, start_lsn)):
            refusal = Refusal(error, "A row is missing.", "copy it.", unstaged_since=since)
            for table_name, relation_oid in refused.items():
                lacking = {"table_name": table_name, "relation_oid": relation_oid}
                rows.append({**row, **lacking, "set_aside": refusal.to_text()})
        append_rows(catalog, self.namespace, rows)

    def forbid_writes(self) -> None:
        """Let nobody commit to a table any more."""
        with sqlite3.connect(self.properties["uri"].removeprefix("sqlite:///")) as database:
            database.execute(
                "CREATE TRIGGER read_only BEFORE UPDATE ON iceberg_tables"
                " BEGIN SELECT RAISE(ABORT, 'read only'); END"
            )

    def checkpoint_table(self) -> Any:
        """The checkpoint table, as pyiceberg loads it."""
        from pyiceberg.catalog import load_catalog

        from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE

        catalog = load_catalog(self.catalog_name, **self.properties)
        return catalog.load_table(f"{self.namespace}.{CHECKPOINT_TABLE}")


@pytest.fixture
def lake(tmp_path: Path, set_connection: Callable[[str, dict[str, Any]], None]) -> TestLake:
    """An empty lake."""
    (tmp_path / "warehouse").mkdir()
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse": (tmp_path / "warehouse").as_uri(),
    }
    extra = {name: value for name, value in properties.items() if name != "uri"}
    set_connection(
        "iceberg_default", {"conn_type": "iceberg", "host": properties["uri"], "extra": extra}
    )
    return TestLake(properties)


@pytest.fixture
def pipeline(
    tmp_path: Path, postgres_database: str, monkeypatch: pytest.MonkeyPatch, airflow_home: Path
) -> Iterator[Pipeline]:
    """The example DAG on a source with three tables; nothing is captured yet."""
    with psycopg.connect(postgres_database, autocommit=True) as session:
        session.execute(SOURCE)
        yield Pipeline(tmp_path, postgres_database, monkeypatch)
        session.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = 'shop'"
        )
        session.execute("DROP OWNED BY cdc_reader; DROP ROLE cdc_reader")


@pytest.fixture
def workshop(
    tmp_path: Path, lake: TestLake, set_connection: Callable[[str, dict[str, Any]], None]
) -> Workshop:
    set_connection("spark_default", {"conn_type": "spark", "host": "local[2]"})
    return Workshop(tmp_path, lake)
