"""The apply task tries tables again that are set aside because a right is missing.

What is not here: what Spark does with them (``tests/conformance/test_rights_given_again.py``).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import LakeDenied
from tests.airflow.spark_submit_double import SLOT, Workshop

if TYPE_CHECKING:
    import pytest

    from tests.airflow.conftest import TestLake


def test_a_table_without_a_right_is_tried_again(
    workshop: Workshop, lake: TestLake, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The job has the batch that the table lacks, and the new one."""
    caplog.set_level("INFO")
    applied = workshop.manifest
    workshop.seal(start_lsn=Lsn.parse("0/8"), end_lsn=Lsn.parse("0/10"))
    earlier = workshop.batch
    workshop.seal(start_lsn=applied.start_lsn, end_lsn=applied.end_lsn)
    lake.record(
        SLOT, "0/10", start_lsn="0/8", set_aside={"public.orders": 1}, error=LakeDenied.__name__
    )
    workshop.behave(result={"status": "applied"}, tables={"public.orders": 1})
    assert "set_aside" not in workshop.operator().execute(task_context)
    job = json.loads(workshop.seen()["job"])
    assert job["retried_tables"] == ["public.orders"]
    assert job["lacked_uris"] == [earlier["manifest_uri"], workshop.batch["manifest_uri"]]
    assert "Not set aside any more: public.orders." in caplog.text
