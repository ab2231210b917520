"""Stages one batch in a process that does nothing else, so that its CPU time and memory are staging's.

``python -m benchmarks.stage_once`` reads its order as JSON from standard input and prints a
``Measurement`` as its last line. Time starts when the imports are done, as in a running worker;
memory counts everything.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_pgoutput.batch.answers import DIFFERENCE, REPAIR
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_pgoutput.proof.after_loss import LakeAfterLoss
from airflow_provider_pgoutput.proof.request import ProofRequest


def run(order: dict[str, Any]) -> dict[str, float]:
    """Stage from the slot's own position to the end of the WAL; seconds, CPU seconds, memory, rows.

    With ``copy_connections`` the order is for a first run: the slot is made and the tables are copied. With
    ``namespace_after_loss`` the slot is lost, and the rows that differ from the lake are staged.
    """
    if "namespace_after_loss" in order:
        return measured(_after_loss(order))
    connections = order.get("copy_connections")
    request = CaptureRequest(
        conninfo=order["conninfo"],
        slot_name=order["slot"],
        publication_names=(order["publication"],),
        staging_uri=order["staging_uri"],
        checkpoint=None if connections else position(order["conninfo"], order["slot"]),
        transport=order["transport"],
        options=StreamOptions(**order["options"]),
        attempt="bench",
        copy_connections=connections or 1,
        decode_parallelism=order.get("decode_parallelism"),
        columns=order.get("columns", {}),
        mask_secret=b"a secret of the benchmark",
    )
    return measured(request)


def _after_loss(order: dict[str, Any]) -> CaptureRequest:
    namespace = order["namespace_after_loss"]
    properties, slot = order["catalog_properties"], order["slot"]
    common: dict[str, Any] = {
        "conninfo": order["conninfo"],
        "slot_name": slot,
        "publication_names": (order["publication"],),
        "staging_uri": order["staging_uri"],
    }
    proof = ProofRequest(
        **common,
        namespace=namespace,
        catalog_name="lake",
        catalog_properties=properties,
        on_difference=REPAIR,
    )
    return CaptureRequest(
        **common,
        checkpoint=read_checkpoint("lake", properties, namespace, slot),
        on_slot_lost=DIFFERENCE,
        lake_comparison=LakeAfterLoss(proof),
        attempt="bench",
    )


def measured(request: CaptureRequest) -> dict[str, float]:
    """Stage; seconds, CPU seconds, memory, rows."""
    cpu_before = cpu_seconds()
    started = time.perf_counter()
    manifest = stage_batch(request).manifest
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds() - cpu_before,
        "peak_mib": peak_mib(),
        "rows": manifest.changes + sum(table.counts.copied for table in manifest.tables),
    }


def position(conninfo: str, slot: str) -> Checkpoint:
    """The checkpoint of a lake that holds everything before the slot's position."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(
            "SELECT confirmed_flush_lsn::text, system_identifier::text"
            " FROM pg_replication_slots, pg_control_system() WHERE slot_name = %s",
            (slot,),
        ).fetchone()
    assert row is not None, "the benchmark made the slot"
    return Checkpoint(end_lsn=Lsn.parse(row[0]), system_identifier=row[1])


def cpu_seconds() -> float:
    """User and system time of this process, all threads, and of processes it waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def peak_mib() -> float:
    """Highest resident set of this process.

    Linux lets ``ru_maxrss`` start with what the parent had before exec, so the kernel's own
    high-water mark of this very program is read where there is one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps(run(json.load(sys.stdin))))
