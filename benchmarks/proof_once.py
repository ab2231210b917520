"""Verifies a lake in a process that does nothing else, so that CPU time and memory are the verification's.

``python -m benchmarks.proof_once`` reads its order as JSON from standard input and prints its figures as its
last line. The verification waits for a run of the pipeline. This process makes that run itself, for it has
nothing to stage. Its time does not count.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from airflow_provider_pgoutput.batch.jobs import ApplyJob
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.checkpoint_rows import record_empty_batch
from airflow_provider_pgoutput.lake.state import open_catalog
from airflow_provider_pgoutput.proof.request import AUTO, FULL, ProofRequest
from airflow_provider_pgoutput.proof.verify import verify
from benchmarks.stage_once import cpu_seconds, peak_mib

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.lsn import Lsn

CATALOG = "lake"


@dataclass
class _Run:
    """A run of the pipeline without changes, and what it took."""

    order: dict[str, Any]
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __call__(self, _: Lsn) -> None:
        started, cpu = time.perf_counter(), cpu_seconds()
        order = self.order
        namespace, properties = order["namespace"], order["catalog_properties"]
        staged = stage_batch(
            CaptureRequest(
                conninfo=order["conninfo"],
                slot_name=order["slot"],
                publication_names=(order["publication"],),
                staging_uri=order["staging_uri"],
                checkpoint=read_checkpoint(CATALOG, properties, namespace, order["slot"]),
                attempt="bench",
            )
        )
        job = ApplyJob(
            manifest_uri=staged.manifest_uri,
            staging_uri=order["staging_uri"],
            catalog_name=CATALOG,
            namespace=namespace,
        )
        record_empty_batch(CATALOG, properties, job, staged.manifest)
        if order.get("method") == AUTO:
            # In a server that works, this comes by itself after a while. No part of it counts.
            with psycopg.connect(order["conninfo"], autocommit=True) as session:
                session.execute("CHECKPOINT")
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += cpu_seconds() - cpu


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Seconds, CPU seconds and memory of a verification, and how many rows it found different."""
    request = ProofRequest(
        conninfo=order["conninfo"],
        slot_name=order["slot"],
        publication_names=(order["publication"],),
        staging_uri=order["staging_uri"],
        namespace=order["namespace"],
        catalog_name=CATALOG,
        catalog_properties=order["catalog_properties"],
        method=order.get("method", FULL),
    )
    # Time starts when the imports are done, as in a running worker. pyiceberg is imported when it is needed.
    import pyiceberg.io.pyarrow  # noqa: F401, PLC0415

    open_catalog(CATALOG, order["catalog_properties"])
    of_pipeline = _Run(order)
    cpu_before, started = cpu_seconds(), time.perf_counter()
    proof = verify(request, of_pipeline)
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu_before
    (table,) = proof.tables
    if table.not_compared is not None or table.source is None:
        raise RuntimeError(str(table))
    found = table.differences
    return {
        "seconds": seconds - of_pipeline.seconds,
        "cpu_seconds": cpu - of_pipeline.cpu_seconds,
        "peak_mib": peak_mib(),
        "rows": table.source.rows,
        "carried": None if table.carried is None else dataclasses.asdict(table.carried),
        "different_rows": 0 if found is None else found.missing + found.surplus + found.different,
    }


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
