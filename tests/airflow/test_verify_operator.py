"""The operator and the command that verify: they wait for the pipeline, record what they find, and may fail.

What a verification finds is tested beside a whole pipeline, in ``tests/proof``. Here the lake is written by
hand, and a thread moves its checkpoint to the mark, as a run of the pipeline does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from asgiref.sync import async_to_sync
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    ConnectionNotFound,
    LakeUnavailable,
    NothingCompared,
)
from airflow_provider_pgoutput.proof.record import newest_proofs
from airflow_provider_pgoutput.triggers.lake import PgoutputLakeTrigger
from tests.airflow.command_line import run
from tests.airflow.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator
    from tests.airflow.conftest import Session, TestLake


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["verified_at"])


@pytest.fixture
def shop(source: Session, slot: str, lake: TestLake, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(source, slot, lake, tmp_path / "staging")
    yield made
    made.stop()


def test_an_equal_table_is_proven_and_recorded(shop: Shop, task_context: Any) -> None:
    shop.start()
    found = shop.operator().execute(task_context)
    ((uri, told),) = task_context["outlet_events"].added
    assert uri.startswith("pgoutput-proof://")
    assert uri.endswith(f"/{told['pgoutput_proof']['slot_name']}")
    proof = told["pgoutput_proof"]
    assert (proof["lsn"], proof["tables"], proof["equal"]) == (found["lsn"], 1, 1)
    assert proof["different"] == 0
    assert proof["rows"] == found["tables"][0]["source_rows"] > 0
    (table,) = found["tables"]
    assert (table["table_name"], table["is_equal"], table["source_rows"]) == (
        "public.orders",
        True,
        3,
    )
    json.dumps(found)
    (row,) = shop.recorded()
    assert row["is_equal"] is True
    assert row["source_digest"] == row["lake_digest"]
    assert row["target"] == "shop.public__orders"
    assert row["missing"] is None
    assert row["run_id"] == "manual__1"
    assert int(row["lsn"], 16) > 0


@pytest.mark.slow
def test_a_table_that_differs_fails_the_task_and_is_recorded(
    shop: Shop, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop.damage()
    shop.start()
    with pytest.raises(
        AirflowFailException, match=r"LakeDiffers: public\.orders differs"
    ) as raised:
        shop.operator().execute(task_context)
    assert "1 missing, 0 surplus and 0 different rows" in str(raised.value)
    (row,) = shop.recorded()
    assert (row["is_equal"], row["missing"], row["source_rows"], row["lake_rows"]) == (
        False,
        1,
        3,
        2,
    )
    assert json.loads(row["keys"]) == ['{"id" : 2}']
    assert "What to do" in caplog.text
    # A task that fails makes no event. The page reads this.
    ((key, told),) = task_context["ti"].pushed.items()
    assert key.startswith("pgoutput_proof 127.0.0.1:")
    assert (told["different_tables"], told["lsn"]) == (["public.orders"], told["found"]["lsn"])
    assert [each["source_rows"] for each in told["found"]["tables"]] == [3]
    json.dumps(told)


def test_whoever_only_wants_to_know_is_told(shop: Shop, task_context: Any) -> None:
    shop.damage()
    shop.start()
    asked = {"method": "auto", "full_every": "3", "hash_function": "md5"}
    found = shop.operator(on_difference="succeed", keys_shown=0, **asked).execute(task_context)
    ((_, told),) = task_context["outlet_events"].added
    assert told["pgoutput_proof"]["different_tables"] == [found["tables"][0]["table_name"]]
    assert task_context["ti"].pushed == {}
    (table,) = found["tables"]
    assert (table["is_equal"], table["missing"], table["keys"]) == (False, 1, None)


def test_each_run_proves_the_next_part(shop: Shop, task_context: Any) -> None:
    shop.damage()
    shop.start()
    operator = shop.operator(on_difference="succeed", share="0.34")
    found = [operator.execute(task_context)["tables"][0] for _ in range(4)]
    assert [(each["share_number"], each["share_through"], each["is_equal"]) for each in found] == [
        (1, 1, True),
        (2, 2, False),
        (3, None, True),
        (1, 1, True),
    ]
    assert {(each["share_of"], each["method"]) for each in found} == {(3, "share")}
    catalog = load_catalog(shop.lake.catalog_name, **shop.lake.properties)
    newest = newest_proofs(catalog, shop.lake.namespace, shop.slot)["public.orders"]
    assert (newest.is_equal, str(newest.share)) == (False, "part 2 of 3")
    assert shop.operator(on_difference="repair").execute(task_context)["after_repair"]
    assert newest_proofs(catalog, shop.lake.namespace, shop.slot)["public.orders"].is_equal


@pytest.mark.slow
def test_a_table_that_differs_is_repaired_and_proven(shop: Shop, task_context: Any) -> None:
    shop.damage()
    shop.start()
    found = shop.operator(on_difference="repair", keys_shown=0).execute(task_context)
    assert shop.requested == [(("2",),)]
    (before,), (after,) = found["tables"], found["after_repair"]["tables"]
    assert (before["is_equal"], before["missing"], after["is_equal"]) == (False, 1, True)
    json.dumps(found)
    assert [row["is_equal"] for row in _in_order(shop.recorded())] == [False, True]


def test_nothing_is_asked_for_if_all_is_equal(shop: Shop, task_context: Any) -> None:
    shop.start()
    found = shop.operator(on_difference="repair").execute(task_context)
    assert shop.requested == []
    assert "after_repair" not in found


def test_a_pipeline_that_is_paused_ends_the_wait(shop: Shop, task_context: Any) -> None:
    with pytest.raises(LakeUnavailable, match="did not reach the LSN"):
        shop.operator(wait_seconds=1).execute(task_context)
    assert StagingArea(shop.staging_uri).names(layout.mark_folder(shop.slot)) == []


def test_a_table_with_an_altered_column_is_named_and_not_compared(
    shop: Shop, source: Session, task_context: Any
) -> None:
    source.execute("ALTER TABLE orders ALTER id TYPE text USING 'secret' || id")
    shop.start()
    with pytest.raises(NothingCompared, match=r"orders was not compared: .*has the old type"):
        shop.operator().execute(task_context)
    (row,) = shop.recorded()
    assert row["is_equal"] is row["source_rows"] is None
    assert "the lake has the old type" in row["not_compared"]


def deferred(operator: PgoutputVerifyOperator, context: Any) -> TaskDeferred:
    """What the task leaves when it begins to wait."""
    with pytest.raises(TaskDeferred) as found:
        operator.execute(context)
    return found.value


def kept(found: TaskDeferred) -> dict[str, Any]:
    assert isinstance(found.trigger, PgoutputLakeTrigger)
    assert found.trigger.held is not None
    return found.trigger.held


async def fired(found: TaskDeferred) -> dict[str, Any]:
    """The event of the trigger, made anew as by another triggerer."""
    path, arguments = found.trigger.serialize()
    assert path == f"{PgoutputLakeTrigger.__module__}.{PgoutputLakeTrigger.__qualname__}"
    given = json.loads(json.dumps(arguments)) | {"poll_interval_seconds": 0.1}
    async with asyncio.timeout(60):
        async for event in PgoutputLakeTrigger(**given).run():
            payload: dict[str, Any] = event.payload
            return payload
    raise AssertionError("there was no event")


def test_the_wait_holds_neither_a_worker_nor_a_session(
    shop: Shop, source: Session, task_context: Any
) -> None:
    found = deferred(shop.operator(deferrable=True), task_context)
    assert source.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE temporary"
    ).fetchone() == (0,)
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    assert source.execute(others).fetchone() == (0,)
    area = StagingArea(shop.staging_uri)
    assert len(area.names(layout.mark_folder(shop.slot))) == 1
    # What commits later is not compared.
    source.execute("INSERT INTO orders VALUES (4, 'later')")
    shop.start()
    event = async_to_sync(fired)(found)
    assert event == {"reached": True, "held": kept(found)}
    result = shop.operator(deferrable=True).execute_complete(task_context, event)
    (table,) = result["tables"]
    assert (table["is_equal"], table["source_rows"], table["lake_rows"]) == (True, 3, 3)
    assert result["lsn"] == kept(found)["lsn"]
    (row,) = shop.recorded()
    assert row["is_equal"] is True
    assert area.names(layout.mark_folder(shop.slot)) == []


DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator

with DAG("verify_deferred", schedule=None):
    PgoutputVerifyOperator(
        task_id="verify",
        slot_name="{slot}",
        publication_names="p",
        staging_uri="{staging_uri}",
        namespace="{namespace}",
        deferrable=True,
    )
"""


@pytest.mark.further
def test_a_dag_run_defers_the_wait_and_goes_on(
    shop: Shop, airflow_home: Path, tmp_path: Path
) -> None:
    """What the task leaves goes through Airflow's database, and a run of Airflow calls the trigger."""
    (tmp_path / "dags").mkdir()
    names = {
        "slot": shop.slot,
        "staging_uri": shop.staging_uri,
        "namespace": shop.lake.namespace,
    }
    (tmp_path / "dags" / "verify_deferred.py").write_text(DAG_FILE.format(**names))
    shop.start()
    result = subprocess.run(
        [sys.executable, "-m", "airflow", "dags", "test", "verify_deferred"],
        env={**os.environ, "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert "Waiting for a run of the pipeline that brings the lake to LSN" in result.stdout
    (row,) = shop.recorded()
    assert row["is_equal"] is True
    assert row["dag_id"] == "verify_deferred"


def test_a_difference_after_a_deferred_wait_is_looked_into_at_another_lsn(
    shop: Shop, task_context: Any
) -> None:
    shop.damage()
    found = deferred(shop.operator(deferrable=True), task_context)
    shop.start()
    event = async_to_sync(fired)(found)
    with pytest.raises(AirflowFailException, match="1 missing, 0 surplus and 0 different rows"):
        shop.operator(deferrable=True).execute_complete(task_context, event)
    (row,) = shop.recorded()
    assert row["is_equal"] is False
    assert json.loads(row["keys"]) == ['{"id" : 2}']
    assert int(row["lsn"], 16) > Lsn.parse(kept(found)["lsn"])


def test_a_table_that_is_altered_during_a_deferred_wait_is_compared_once_more(
    shop: Shop, source: Session, task_context: Any
) -> None:
    found = deferred(shop.operator(deferrable=True), task_context)
    source.execute("ALTER TABLE orders ADD COLUMN more int")
    shop.start()
    event = async_to_sync(fired)(found)
    result = shop.operator(deferrable=True).execute_complete(task_context, event)
    (table,) = result["tables"]
    assert table["is_equal"]
    assert json.loads(table["columns_left_out"]) == ["more"]
    assert Lsn.parse(result["lsn"]) > Lsn.parse(kept(found)["lsn"])


@pytest.mark.parametrize("change", [{"of_another_version": 1}, {"salt": None}])
def test_a_wait_that_another_version_of_the_package_began_begins_anew(
    shop: Shop, task_context: Any, change: dict[str, Any]
) -> None:
    found = deferred(shop.operator(deferrable=True), task_context)
    held = {k: v for k, v in {**kept(found), **change}.items() if v is not None}
    with pytest.raises(TaskDeferred) as again:
        shop.operator(deferrable=True).execute_complete(
            task_context, {"reached": True, "held": held}
        )
    assert Lsn.parse(kept(again.value)["lsn"]) >= Lsn.parse(kept(found)["lsn"])
    assert kept(again.value)["lsns"] == 1
    shop.start()
    event = async_to_sync(fired)(again.value)
    result = shop.operator(deferrable=True).execute_complete(task_context, event)
    assert [table["is_equal"] for table in result["tables"]] == [True]


def test_a_deferred_wait_for_a_pipeline_that_does_not_run_ends(
    shop: Shop, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    operator = shop.operator(deferrable=True, wait_seconds="0.5")
    found = deferred(operator, task_context)
    event = async_to_sync(fired)(found)
    assert event["reached"] is False
    with pytest.raises(LakeUnavailable, match="did not reach the LSN"):
        operator.execute_complete(task_context, event)
    area = StagingArea(shop.staging_uri)
    assert area.names(layout.mark_folder(shop.slot)) == []


def test_a_catalog_that_does_not_answer_is_asked_again_until_the_time_is_over(
    shop: Shop, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    found = deferred(shop.operator(deferrable=True, wait_seconds="1"), task_context)
    assert isinstance(found.trigger, PgoutputLakeTrigger)
    found.trigger.iceberg_conn_id = "nobody"
    assert async_to_sync(fired)(found)["reached"] is False


def test_a_catalog_that_is_silent_does_not_hold_a_deferred_wait(
    shop: Shop, task_context: Any, set_connection: Any
) -> None:
    """It takes the connection and never answers. The wait ends all the same, and the task looks by itself."""
    found = deferred(shop.operator(deferrable=True, wait_seconds="1"), task_context)
    assert isinstance(found.trigger, PgoutputLakeTrigger)
    found.trigger.iceberg_conn_id = "silent"

    async def event(silent: socket.socket) -> dict[str, Any]:
        with silent:
            return await fired(found)

    silent = socket.create_server(("127.0.0.1", 0))
    uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
    set_connection("silent", {"conn_type": "iceberg", "host": uri, "extra": {"type": "rest"}})
    assert async_to_sync(event)(silent)["reached"] is False


def test_what_only_a_snapshot_can_tell_waits_in_the_worker(shop: Shop, task_context: Any) -> None:
    shop.start()
    result = shop.operator(deferrable=True, share="0.5").execute(task_context)
    assert result["tables"][0]["is_equal"]


def test_a_wrong_argument_is_refused(shop: Shop, task_context: Any) -> None:
    with pytest.raises(ConfigurationError, match="Unknown on_difference 'perhaps'"):
        shop.operator(on_difference="perhaps")
    rendered = shop.operator(on_difference="{{ params.answer }}")
    rendered.on_difference = "perhaps"
    with pytest.raises(AirflowFailException, match="Unknown on_difference 'perhaps'"):
        rendered.execute(task_context)


def test_wrong_arguments_of_a_spark_job_are_refused_before_it_starts(
    shop: Shop, task_context: Any
) -> None:
    with pytest.raises(AirflowFailException, match="spark_from_bytes"):
        shop.operator(spark_from_bytes="many").execute(task_context)
    with pytest.raises(ConnectionNotFound, match="'nobody' was not found"):
        shop.operator(spark_from_bytes=0, spark_conn_id="nobody").execute(task_context)


def test_the_command_prints_a_line_for_each_table(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.start()
    given = ["--slot-name", shop.slot, "--namespace", "shop", "--staging-uri", shop.staging_uri]
    given += ["--publication-names", "p", "--keys-shown", "3", "--wait-seconds", "60"]
    code, rows = run(capsys, "verify", *given)
    assert (code, rows[0]["equal"], rows[0]["rows"]) == (0, "true", "3")
    shop.damage()
    code, rows = run(capsys, "verify", *given)
    assert (code, rows[0]["equal"], rows[0]["keys"]) == (1, "false", '{"id" : 2}')
    assert [row["is_equal"] for row in _in_order(shop.recorded())] == [True, False]
    code, rows = run(capsys, "verify", *given, "--repair")
    assert (code, rows[0]["equal"], rows[0]["rows"]) == (0, "true", "3")
