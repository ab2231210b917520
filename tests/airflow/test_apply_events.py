"""What the apply operator tells Airflow: events of assets, and metrics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import AssetAlias

from airflow_provider_pgoutput import airflow_versions
from tests.airflow.spark_submit_double import SLOT, Workshop


def test_it_adds_the_pipeline_and_its_tables_as_assets(
    workshop: Workshop, task_context: Any
) -> None:
    published = {"status": "applied", "published": {"shop.public__orders": 12}}
    workshop.behave(result=published, tables={"public.orders": 1})
    uri = "pgoutput://db:5432/app/shop"
    workshop.batch["asset_uri"] = uri
    operator = workshop.operator(table_assets=True)
    assert operator.outlets == [AssetAlias("pgoutput")]
    operator.execute(task_context)
    (pipeline, told), (table, told_of_table) = task_context["outlet_events"].added
    assert (pipeline, told["pgoutput"]["end_lsn"]) == (uri, "0/20")
    assert table == "iceberg://iceberg_default/shop/public__orders"
    assert told_of_table["pgoutput"]["snapshot_id"] == 12

    task_context["outlet_events"].added.clear()
    # An earlier try may have ended before it told.
    operator.execute(task_context)
    assert [name for name, _ in task_context["outlet_events"].added] == [uri, table]
    (_, (_, told_of_table)) = task_context["outlet_events"].added
    assert "snapshot_id" not in told_of_table["pgoutput"]


def test_its_numbers_go_to_airflows_metrics(
    workshop: Workshop, task_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[str, float] = {}

    def gauge(name: str, value: float, *, tags: dict[str, str]) -> None:
        assert tags == {"slot": SLOT}
        sent[name] = value

    monkeypatch.setattr(airflow_versions.Stats, "gauge", gauge)
    workshop.behave(result={"status": "applied"})
    until = datetime.now(UTC) - timedelta(seconds=90)
    workshop.batch["complete_until"] = until.isoformat()
    workshop.operator().execute(task_context)
    assert 90 <= sent["pgoutput.freshness_seconds"] < 150
    assert sent["pgoutput.apply_seconds"] > 0


@pytest.mark.parametrize("until", ["yesterday", 7, "2026-11-26T10:00:00"])
def test_a_time_that_was_edited_stops_nothing(
    workshop: Workshop, task_context: Any, until: Any
) -> None:
    workshop.behave(result={"status": "applied"})
    workshop.batch["complete_until"] = until
    assert workshop.operator().execute(task_context)["applied"]
