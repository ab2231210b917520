"""The stage operator against a real server and a lake without Spark: its XCom, its log, its refusals."""

from __future__ import annotations

import json
import logging
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.capture.copy import read
from airflow_provider_pgoutput.errors import ConnectionNotFound, LakeUnavailable
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from airflow_provider_pgoutput.tasks.received_batch import ReceivedBatch
from tests.airflow.conftest import connection_json
from tests.lakes.programs import free_port
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.airflow.conftest import TestLake

    Session = psycopg.Connection[tuple[Any, ...]]

SECRET_VALUE = "a-row's-own-business"


@pytest.fixture(autouse=True)
def orders(source: Session, lake: TestLake) -> None:
    row = source.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    assert row is not None
    lake.system_identifier = str(row[0])
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    source.execute("INSERT INTO orders VALUES (1, %s), (2, NULL)", (SECRET_VALUE,))
    source.execute("CREATE PUBLICATION shop FOR TABLE orders")


def stage(tmp_path: Path, **changed: Any) -> PgoutputStageOperator:
    arguments = {
        "task_id": "stage",
        "slot_name": "stage_test",
        "publication_names": '["shop"]',
        "staging_uri": (tmp_path / "staging").as_uri(),
        "namespace": "shop",
    }
    return PgoutputStageOperator(**(arguments | changed))


def record(lake: TestLake, batch: Any) -> None:
    """The lake as an apply of this batch leaves it."""
    tables = {each.name: each.relation_oid for each in manifest_of(batch).tables}
    lake.record(batch["slot_name"], batch["end_lsn"], tables=tables)


def manifest_of(batch: Any) -> Manifest:
    return Manifest.from_json(Path(batch["manifest_uri"].removeprefix("file://")).read_text())


def test_the_first_run_copies_and_the_next_stages_what_is_new(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    first = stage(tmp_path).execute(task_context)
    assert first["tables"]["public.orders"]["copied"] == 2
    assert manifest_of(first).batch_id == first["batch_id"]

    record(lake, first)
    source.execute("UPDATE orders SET note = 'new' WHERE id = 2")
    source.execute("DELETE FROM orders WHERE id = 1")
    second = stage(tmp_path, transport="walsender").execute(task_context)
    assert second["start_lsn"] == first["end_lsn"]
    counts = second["tables"]["public.orders"]
    assert (counts["updates"], counts["deletes"], second["changes"]) == (1, 1, 2)

    # The first run made the slot.
    assert "slot" not in first
    assert second["slot"]["wal_status"] == "reserved"
    assert second["slot"]["retained_bytes"]
    for batch in (first, second):
        port = source.info.port
        assert batch["asset_uri"] == f"pgoutput://127.0.0.1:{port}/{source.info.dbname}/stage_test"
        assert datetime.fromisoformat(batch["complete_until"]) < datetime.now(UTC)
        assert batch["stage_seconds"] > 0


def test_a_limit_tells_how_far_the_lake_gets(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    record(lake, stage(tmp_path).execute(task_context))
    source.execute("INSERT INTO orders VALUES (3, 'x')")
    source.execute("INSERT INTO orders VALUES (4, 'x')")
    before = datetime.now(UTC)
    batch = stage(tmp_path, max_changes=1).execute(task_context)
    # The commit time of its last transaction, because the server has more.
    assert batch["changes"] == 1
    assert datetime.fromisoformat(batch["complete_until"]) < before


def test_each_session_takes_a_token_of_its_own(
    source: Session,
    postgres_database: str,
    tmp_path: Path,
    task_context: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With IAM a token is good for minutes: here it ends while the slot is made, before the copy is read."""
    from airflow.providers.postgres.hooks.postgres import PostgresHook

    tokens = ["first-token"]
    reader = conninfo_to_dict(reader_conninfo(postgres_database))
    role, port = str(reader["user"]), int(str(reader["port"]))

    def take_only(token: str) -> None:
        source.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(role), sql.Literal(token))
        )
        tokens.append(token)

    # The cloud is not here; everything up to its client is the real code.
    monkeypatch.setattr(
        PostgresHook, "get_iam_token", lambda _self, _connection: (role, tokens[-1], port)
    )
    by_token: dict[str, Any] = {name: value for name, value in reader.items() if name != "password"}
    connection = json.loads(connection_json(make_conninfo(**by_token)))
    connection["extra"] = {**connection.get("extra", {}), "iam": True}
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(connection))

    def at(point: str) -> None:
        if point == "stage.after_slot":
            take_only("second-token")

    take_only("first-token")
    try:
        with crash_points.watched(at):
            batch = stage(tmp_path).execute(task_context)
    finally:
        take_only(str(reader["password"]))
    assert tokens[-2] == "second-token"
    assert batch["tables"]["public.orders"]["copied"] == 2


def test_a_limit_ends_the_batch_at_a_commit(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    record(lake, stage(tmp_path).execute(task_context))
    for number in range(3, 8):
        source.execute("INSERT INTO orders VALUES (%s)", (number,))
    batch = stage(tmp_path, max_changes="2").execute(task_context)
    assert batch["changes"] == 2


def test_how_the_slot_is_read_may_be_given_as_text(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    record(lake, stage(tmp_path).execute(task_context))
    source.execute("INSERT INTO orders SELECT generate_series(3, 1000)")
    asked = stage(tmp_path, transport="auto", decode_parallelism="2")
    assert asked.execute(task_context)["changes"] == 998


def test_logical_messages_are_asked_for_as_text_too(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    record(lake, stage(tmp_path).execute(task_context))
    for prefix in ("outbox", "audit", "other"):
        source.execute("SELECT pg_logical_emit_message(true, %s, %s)", (prefix, SECRET_VALUE))
    wanted = stage(tmp_path, messages="true", message_prefixes='["outbox", "audit"]')
    assert manifest_of(wanted.execute(task_context)).logical_messages == 2


def test_its_xcom_is_small_json_that_the_next_tasks_accept(
    tmp_path: Path, task_context: Any
) -> None:
    batch = stage(tmp_path).execute(task_context)
    text = json.dumps(batch)
    assert len(text) < 1000
    assert set(batch) == {
        "schema_version", "slot_name", "batch_id", "start_lsn", "end_lsn", "manifest_uri", "changes",
        "tables", "complete_until", "stage_seconds", "asset_uri",
    }  # fmt: skip
    received = ReceivedBatch.required(text, "stage_test")
    assert received.manifest_uri == batch["manifest_uri"]


def test_its_log_folds_and_has_one_line_per_table_and_no_value(
    tmp_path: Path, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        stage(tmp_path).execute(task_context)
    lines = [record.getMessage() for record in caplog.records]
    opened = lines.index("::group::Stage slot stage_test")
    closed = lines.index("::endgroup::")
    assert opened < closed < lines.index("public.orders: 2 copied")
    assert SECRET_VALUE not in caplog.text


def test_changes_of_schema_and_values_that_do_not_fit_are_in_its_log_and_xcom(
    source: Session,
    lake: TestLake,
    tmp_path: Path,
    task_context: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    record(lake, stage(tmp_path).execute(task_context))
    for statement in (
        "UPDATE orders SET note = 'x' WHERE id = 1",
        "ALTER TABLE orders ADD due date, ADD total numeric(6, 2)",
        "INSERT INTO orders VALUES (3, 'y', 'infinity', 'NaN'), (4, 'z', '-infinity', 1)",
        "ALTER TABLE orders RENAME note TO remark",
        "ALTER TABLE orders DROP due, REPLICA IDENTITY FULL",
        "UPDATE orders SET total = 1.5 WHERE id = 4",
    ):
        source.execute(statement.encode())
    caplog.clear()
    with caplog.at_level(logging.INFO):
        batch = stage(tmp_path).execute(task_context)
    changes = [
        "column due was added, date",
        "column total was added, numeric(6,2)",
        "column due was dropped",
        "column note was renamed to remark",
        "the replica identity changed from d to f",
    ]
    assert sorted(batch["schema_changes"]["public.orders"]) == sorted(changes)
    lines = [each.getMessage() for each in caplog.records]
    for change in changes:
        assert lines.count(f"public.orders: {change}.") == 1
    assert batch["tables"]["public.orders"]["rejected"] == 3
    assert "public.orders: 2 inserts, 2 updates, 3 rejected" in lines
    (warned,) = [each.getMessage() for each in caplog.records if "did not fit" in each.getMessage()]
    assert warned.startswith("public.orders: 3 value(s)")
    assert "pgoutput_rejected_values" in warned
    assert "infinity" not in caplog.text


def test_what_cannot_work_fails_at_once_and_makes_no_slot(
    source: Session, tmp_path: Path, task_context: Any
) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "PublicationMissing: .*missing": {"publication_names": ["missing"]},
        "transport": {"transport": "pigeon"},
        "publication_names": {"publication_names": ""},
        "max_changes": {"max_changes": "many"},
        "decode_parallelism is 1 to 8": {"decode_parallelism": "0"},
        "slot name": {"slot_name": "Not A Slot"},
        "staging_uri": {"staging_uri": "relative/folder"},
        "pyiceberg": {"type_options": '{"json": "variant"}'},
        "'double'": {"type_options": {"numeric": "double"}},
        "texts to texts": {"column_types": '{"public.orders.id": 1}'},
        "names no published column: public.orders.typo": {
            "column_types": '{"public.orders.typo": "string"}'
        },
        r"column_types says 'uuid'": {"column_types": {"public.orders.id": "uuid"}},
    }
    for message, changed in wrong.items():
        with pytest.raises(AirflowFailException, match=message):
            stage(tmp_path, **changed).execute(task_context)
        assert source.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def test_a_catalog_that_refuses_or_is_silent_is_found_out_before_a_slot_is_made(
    source: Session,
    lake: TestLake,
    tmp_path: Path,
    task_context: Any,
    set_connection: Callable[[str, dict[str, Any]], None],
) -> None:
    """A SQL catalog in PostgreSQL: a wrong password, no right to make its tables, no database, no server."""
    source.execute("CREATE ROLE of_catalog LOGIN PASSWORD 'right'")
    try:
        server, port = f"127.0.0.1:{source.info.port}", free_port()
        here = source.info.dbname
        wrong: dict[str, tuple[str, type[Exception], str]] = {
            "password": (f"{SECRET_VALUE}@{server}/{here}", AirflowFailException, "LakeDenied: "),
            "right": (f"right@{server}/{here}", AirflowFailException, "LakeDenied: "),
            "database": (f"right@{server}/not_there", AirflowFailException, "ConfigurationError: "),
            "server": (f"right@127.0.0.1:{port}/{here}", LakeUnavailable, "catalog"),
        }
        for where, error, message in wrong.values():
            uri = f"postgresql+psycopg://of_catalog:{where}"
            extra = {"type": "sql", "warehouse": (tmp_path / "warehouse").as_uri()}
            set_connection("iceberg_default", {"conn_type": "iceberg", "host": uri, "extra": extra})
            with pytest.raises(error, match=message) as stop:
                stage(tmp_path).execute(task_context)
            assert SECRET_VALUE not in str(stop.value)
            assert source.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
    finally:
        source.execute("DROP ROLE of_catalog")


def test_a_connection_that_airflow_does_not_give_is_asked_for_again(
    tmp_path: Path, task_context: Any
) -> None:
    with pytest.raises(ConnectionNotFound, match="'nobody' was not found"):
        stage(tmp_path, postgres_conn_id="nobody").execute(task_context)


def test_options_that_do_not_go_together_fail_before_any_connection(
    tmp_path: Path, task_context: Any
) -> None:
    """The connections do not exist, and nobody gets as far as to notice."""
    wrong: dict[str, dict[str, Any]] = {
        "Unknown proto_version 5": {"proto_version": "5"},
        "Unknown value 'maybe' of streaming": {"streaming": "maybe"},
        "Unknown value 'local' of origin": {"origin": "local"},
        "proto_version 1 does not go with streaming": {"proto_version": 1, "streaming": "on"},
        "proto_version 3 does not go with streaming": {"proto_version": 3, "streaming": "parallel"},
        "proto_version 2 does not go with two_phase": {"proto_version": "2", "two_phase": "true"},
        "message_prefixes is given, and messages is off": {"message_prefixes": '["audit"]'},
        "streaming 'on' does not go with messages": {"streaming": "on", "messages": True},
        "binary is neither true nor false": {"binary": "perhaps"},
    }
    for message, changed in wrong.items():
        operator = stage(tmp_path, postgres_conn_id="nobody", iceberg_conn_id="no lake", **changed)
        with pytest.raises(AirflowFailException, match=message):
            operator.execute(task_context)


def test_what_a_run_is_given_counts_only_where_the_dag_takes_it(
    source: Session, tmp_path: Path, task_context: Any
) -> None:
    """B37: whoever may start the DAG cannot name another slot or position by the run's configuration."""
    task_context["dag_run"].conf = {"slot_name": "theirs", "start_lsn": "0/1", "copy_tables": ["x"]}
    task_context["params"] = task_context["dag_run"].conf
    batch = stage(tmp_path).execute(task_context)
    assert batch["slot_name"] == "stage_test"
    assert batch["tables"]["public.orders"]["copied"] == 2
    assert source.execute("SELECT slot_name FROM pg_replication_slots").fetchall() == [
        ("stage_test",)
    ]


def test_a_backfill_run_is_refused_before_anything_is_made(
    source: Session, tmp_path: Path, task_context: Any
) -> None:
    task_context["dag_run"].run_type = "backfill"
    with pytest.raises(AirflowFailException, match="backfill run"):
        stage(tmp_path).execute(task_context)
    assert source.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def test_a_slot_that_somebody_reads_is_tried_again_later(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    """F15: two runs at once; the second is told that the slot is busy, and no data is wrong."""
    import contextlib

    from airflow_provider_pgoutput.errors import SlotBusy
    from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook

    record(lake, stage(tmp_path).execute(task_context))
    with contextlib.closing(PgoutputHook().get_conn(replication=True)) as walsender:
        walsender.execute(
            "START_REPLICATION SLOT stage_test LOGICAL 0/0"
            " (proto_version '1', publication_names 'shop')"
        )
        with pytest.raises(SlotBusy):
            stage(tmp_path).execute(task_context)


def test_as_many_connections_copy_at_once_as_it_is_told(
    source: Session, tmp_path: Path, task_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first rows, when none of the others are taken, so that nobody gets to the end of a table."""
    monkeypatch.setattr(read, "_BATCH_BYTES", 1)
    for number in range(6):
        source.execute(
            f"CREATE TABLE many_{number} AS SELECT generate_series(1, 50) AS id".encode()
        )
        source.execute(f"ALTER PUBLICATION shop ADD TABLE many_{number}".encode())
    counts: list[int] = []

    def copying() -> int:
        row = source.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND query LIKE 'COPY (SELECT%' AND state <> 'idle'"
        ).fetchone()
        assert row is not None
        return int(row[0])

    def at(point: str) -> None:
        if point == "stage.during_copy" and not counts:
            deadline = time.monotonic() + 30
            while copying() < 4 and time.monotonic() < deadline:
                time.sleep(0.05)
            # One more would have begun by now.
            time.sleep(0.5)
            counts.append(copying())

    with crash_points.watched(at):
        batch = stage(tmp_path, copy_connections="4").execute(task_context)
    assert counts == [4]
    assert {each["copied"] for each in batch["tables"].values()} == {2, 50}
