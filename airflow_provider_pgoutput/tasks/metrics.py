"""The numbers of a pipeline for Airflow's metrics: StatsD, Datadog or OpenTelemetry, as Airflow is set up.

Each number is a gauge with the tag ``slot``. Airflow sends nothing if no metrics are set up.

Source: https://airflow.apache.org/docs/apache-airflow/stable/administration-and-deployment/logging-monitoring/metrics.html
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.airflow_versions import Stats
from airflow_provider_pgoutput.batch.xcom import totals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.xcom import BatchXCom

#: Bytes of WAL that the server kept for the slot when the task began.
RETAINED_BYTES = "pgoutput.retained_bytes"
#: Changed rows of the batch. Copied rows do not count.
BATCH_CHANGES = "pgoutput.batch_changes"
#: Values of the batch that did not fit their column.
REJECTED_VALUES = "pgoutput.rejected_values"
STAGE_SECONDS = "pgoutput.stage_seconds"
APPLY_SECONDS = "pgoutput.apply_seconds"
#: How far the lake is behind the source when an apply ends.
FRESHNESS_SECONDS = "pgoutput.freshness_seconds"
#: The age of the oldest proof. Of each table its newest verification counts.
PROOF_AGE_SECONDS = "pgoutput.proof_age_seconds"


def of_staged(batch: BatchXCom, tables: Mapping[str, Mapping[str, int]]) -> None:
    """Send the numbers that the stage task knows.

    :param tables: the counts of all tables. XCom does not have all of them.
    """
    numbers = {
        BATCH_CHANGES: batch["changes"],
        REJECTED_VALUES: totals(tables.values()).get("rejected", 0),
        STAGE_SECONDS: batch.get("stage_seconds"),
        RETAINED_BYTES: batch["slot"]["retained_bytes"] if "slot" in batch else None,
    }
    send(batch["slot_name"], numbers)


def of_applied(slot_name: str, complete_until: datetime | None, apply_seconds: float) -> None:
    """Send the numbers that the apply task knows.

    :param complete_until: the lake has all changes up to this time; None: it is not known.
    """
    numbers = {APPLY_SECONDS: apply_seconds}
    if complete_until is not None:
        numbers[FRESHNESS_SECONDS] = max((datetime.now(UTC) - complete_until).total_seconds(), 0)
    send(slot_name, numbers)


def send(slot_name: str, numbers: Mapping[str, float | None]) -> None:
    """Send gauges of a slot. A number that is None is left out."""
    for name, number in numbers.items():
        if number is not None:
            Stats.gauge(name, number, tags={"slot": slot_name})
