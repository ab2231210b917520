"""Repairs what a verification found: the rows of the keys that differ are read from the source again.

1. A request in the staging area names the keys. The next run of the pipeline takes it up: it reads their rows
   in a new snapshot, and adds them to its batch as its last changes (``capture/copy/repair.py``). So they go
   through stage and apply like any change, and later changes win over them.
2. When the request is taken up, the same tables are verified once more, at a new LSN. That is the proof.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import FAIL, REPAIR
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.repairs import leave_request
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import LakeUnavailable
from airflow_provider_pgoutput.proof.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.staging.repairs import RepairRequest
    from airflow_provider_pgoutput.proof.report import Proof, TableProof
    from airflow_provider_pgoutput.proof.request import ProofRequest

log = logging.getLogger(__name__)


def repair(
    request: ProofRequest,
    proof: Proof,
    *,
    run: Callable[[], None] | None = None,
    wait: Callable[[Lsn], None] | None = None,
) -> Proof | None:
    """Let the pipeline repair the tables that differ, and verify them once more.

    :param proof: what the verification found.
    :param run: returns when a run of the pipeline may have taken the request up. None: the staging area is
        looked at again and again, until one has or ``wait_seconds`` are over.
    :param wait: see ``verify``.
    :returns: what the second verification found; None: no table is repaired.
    :raises LakeUnavailable: no run of the pipeline took the request up in time, or only a part of it.
    """
    tables = [each.to_repair for each in proof.tables if each.to_repair is not None]
    if request.on_difference != REPAIR or not tables:
        return None
    for each in tables:
        log.info("%s: the rows of %d keys are read again.", each.table, len(each.keys))
    area = StagingArea(request.staging_uri)
    left = leave_request(
        area, request.slot_name, proof.system_identifier, tables, request.wait_seconds
    )
    reach("verify.after_repair_request")
    try:
        if run is None:
            _wait_until_taken(left, request.wait_seconds)
        else:
            run()
        if left.is_waiting():
            raise LakeUnavailable(
                "The request for a repair still waits: no run of the pipeline took it up, or only a part.",
                slot=request.slot_name,
                lsn=proof.lsn,
                advice="see in the log of the stage task what was left for a later batch; look whether the"
                " pipeline runs, and whether it stages with this version of the package; then verify again.",
            )
    finally:
        left.remove()
    # By OID: a table may have been renamed, or it left the publications.
    oids = frozenset(each.relation_oid for each in tables)
    again = dataclasses.replace(request, tables=(), on_difference=FAIL, share=1.0)
    return verify(again, wait, relation_oids=oids)


def after_repair(first: Proof, second: Proof | None) -> Proof:
    """The result after a repair: of each table its newest comparison.

    :param first: the verification before the repair.
    :param second: the verification after it; None: no table was repaired.
    """
    if second is None:
        return first
    repaired = {each.relation_oid: each for each in second.tables}
    tables = tuple(
        each if each.to_repair is None else _newest(each, repaired.get(each.relation_oid))
        for each in first.tables
    )
    return dataclasses.replace(second, tables=tables, seconds=first.seconds + second.seconds)


def _newest(before: TableProof, after: TableProof | None) -> TableProof:
    """The newest comparison of a repaired table. If it was not compared again, its difference stays.

    :param after: None: no publication has the table any more.
    """
    if after is None or after.not_compared is not None:
        why = "no publication has it now" if after is None else after.not_compared
        return dataclasses.replace(before, not_repaired=f"it was not compared again: {why}")
    if after.is_different:
        return dataclasses.replace(after, not_repaired=before.not_repaired)
    return after


def _wait_until_taken(left: RepairRequest, seconds: float) -> None:
    end, pause = time.monotonic() + seconds, 1.0
    while left.is_waiting() and time.monotonic() < end:
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(2 * pause, 30.0)
