"""One capture task as a program: its arguments come as JSON on standard input."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

from airflow_provider_pgoutput.batch.answers import DIFFERENCE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.retention import prune
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from tests.conformance.pipeline import lake_comparison


def main() -> None:
    """Run the task that standard input describes."""
    body = json.load(sys.stdin)
    checkpoint = read_checkpoint(
        "lake", body["catalog_properties"], body["namespace"], body["slot_name"]
    )
    if body["task"] == "advance":
        assert checkpoint is not None, "nothing was applied yet"
        advance_slot(body["conninfo"], body["slot_name"], checkpoint.end_lsn)
        return
    if body["task"] == "prune":
        assert checkpoint is not None, "nothing was applied yet"
        # What tables that are set aside lack stays.
        area = StagingArea(body["staging_uri"])
        prune(area, body["slot_name"], checkpoint, older_than=datetime.now(UTC))
        return
    stage_batch(
        CaptureRequest(
            conninfo=body["conninfo"],
            slot_name=body["slot_name"],
            publication_names=tuple(body["publication_names"]),
            staging_uri=body["staging_uri"],
            checkpoint=checkpoint,
            options=StreamOptions(**body["stream_options"]),
            **_options(body),
        )
    )


def _options(body: dict[str, Any]) -> dict[str, Any]:
    """What JSON has another form of as what it is, and what the lake is compared by."""
    options = dict(body["options"])
    if "mask_secret" in options:
        options["mask_secret"] = options["mask_secret"].encode()
    if options.get("on_slot_lost") == DIFFERENCE:
        options["lake_comparison"] = lake_comparison(
            body, body["catalog_properties"], body["namespace"]
        )
    if "start_lsn" in options:
        options["start_lsn"] = Lsn(options["start_lsn"])
    if "skip_lsns" in options:
        options["skip_lsns"] = tuple(Lsn(each) for each in options["skip_lsns"])
    return options


if __name__ == "__main__":
    main()
