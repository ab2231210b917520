"""The last task of a pipeline: it fails while a table is set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.batch.layout import manifest_path
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.operators.check_tables import PgoutputCheckTablesOperator
from airflow_provider_pgoutput.task_groups.pipeline import pgoutput_to_iceberg

if TYPE_CHECKING:
    from tests.airflow.conftest import TestLake


def test_it_fails_as_long_as_a_table_is_set_aside(lake: TestLake, task_context: Any) -> None:
    task = PgoutputCheckTablesOperator(task_id="check", slot_name="s", namespace="shop")
    task.execute(task_context)
    lake.record("s", "0/20", start_lsn="0/10", tables={"public.t": 7})
    task.execute(task_context)
    lake.record("s", "0/30", start_lsn="0/20", set_aside={"public.t": 7})
    with pytest.raises(AirflowFailException, match=r"TableRefused: Set aside: public\.t\."):
        task.execute(task_context)
    lake.record("s", "0/30", start_lsn="0/20", tables={"public.t": 7})
    task.execute(task_context)


def test_it_fails_if_a_copy_was_refused(
    lake: TestLake, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    lake.record("s", "0/30", start_lsn="0/20", tables={"public.t": 7})
    batch = {
        "schema_version": 1,
        "slot_name": "s",
        "batch_id": "b" * 64,
        "start_lsn": "0/20",
        "end_lsn": "0/30",
        "manifest_uri": f"file:///a/{manifest_path('s', Lsn(0x20), Lsn(0x30), 'b' * 64)}",
    }

    def check(batch: Any) -> None:
        PgoutputCheckTablesOperator(
            task_id="check", slot_name="s", namespace="shop", batch=batch
        ).execute(task_context)

    check(batch)
    with pytest.raises(AirflowFailException, match=r"TableRefused: Not copied: public\.t\."):
        check({**batch, "refused_copies": {"public.t": "MissingPrivilege: The role may not."}})
    assert "public.t was not copied, as copy_tables asks. MissingPrivilege" in caplog.text


def test_the_task_group_ends_with_it() -> None:
    with DAG("d", schedule=None):
        group = pgoutput_to_iceberg(
            slot_name="s",
            publication_names="p",
            staging_uri="/staging",
            namespace="shop",
            on_table_refused="set_aside",
            fail_when_set_aside=True,
        )
    tasks = {each.label: each for each in group}
    upstream = {"pgoutput_to_iceberg.advance", "pgoutput_to_iceberg.stage"}
    assert tasks["check_tables"].upstream_task_ids == upstream
    assert tasks["apply"].on_table_refused == "set_aside"
