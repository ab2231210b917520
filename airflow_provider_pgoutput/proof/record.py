"""The record of verifications, in a table of the lake: one row for each table that was looked at."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.checkpoint import PROOFS, PROOFS_TABLE
from airflow_provider_pgoutput.lake.own_tables import append_to_own_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.proof.report import Proof, TableProof

METHOD = "totals"


def record_proof(
    catalog: Catalog,
    namespace: str,
    proof: Proof,
    *,
    dag_id: str | None = None,
    run_id: str | None = None,
) -> None:
    """Append what a verification found. Nothing decides by it: it is for people, and their queries.

    :raises LakeUnavailable: the catalog does not take the rows.
    """
    of_proof = {
        "slot_name": proof.slot_name,
        "system_identifier": proof.system_identifier,
        "lsn": proof.lsn.sortable,
        "verified_at": datetime.now(UTC),
        "method": METHOD,
        "dag_id": dag_id,
        "run_id": run_id,
    }
    rows = [of_proof | row_of(each) for each in proof.tables]
    if rows:
        append_to_own_table(catalog, namespace, PROOFS_TABLE, PROOFS, rows)


def row_of(proof: TableProof) -> dict[str, Any]:
    """What the record has of one table."""
    row: dict[str, Any] = {
        "table_name": proof.table,
        "target": proof.target,
        "is_equal": None if proof.not_compared else proof.is_equal,
        "not_compared": proof.not_compared,
        "was_rolled_back": proof.was_rolled_back,
        "columns_left_out": json.dumps(proof.columns_left_out) if proof.columns_left_out else None,
        "seconds": proof.seconds,
    }
    for side, digest in (("source", proof.source), ("lake", proof.lake)):
        if digest is not None:
            row |= {f"{side}_rows": digest.rows, f"{side}_digest": f"{digest.total:016x}"}
    if proof.differences is not None:
        found = dataclasses.asdict(proof.differences)
        row |= found | {"keys": json.dumps(found["keys"]) if found["keys"] else None}
    return row
