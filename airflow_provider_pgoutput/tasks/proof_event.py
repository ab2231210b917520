"""The asset event of a verification. By it the page of the pipeline can say when the tables were compared.

The event is of an asset of its own, and not of the pipeline's asset. A verification brings no new rows, so a
DAG that waits for the pipeline's asset must not run after it. A task that fails makes no event. It leaves the
facts in XCom instead, which Airflow also keeps of tasks that fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, AssetAlias

from airflow_provider_pgoutput.hooks.connections import PROOF_SCHEME, proof_uri

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection, Context

    from airflow_provider_pgoutput.proof.report import Proof

SCHEMA_VERSION = 1
#: The key in ``extra``.
KEY = "pgoutput_proof"
ALIAS = "pgoutput_proof"
_MOST_NAMES = 5


def tell_proof(context: Context, connection: Connection, proof: Proof) -> None:
    """Write what was found into the event of the verification's asset.

    :param connection: Airflow's connection of the source.
    """
    uri = proof_uri(connection, proof.slot_name)
    alias = context["outlet_events"][AssetAlias(ALIAS)]
    alias.add(Asset(name=uri, uri=uri), extra={KEY: proof_extra(proof)})


def tell_difference(
    context: Context, connection: Connection, proof: Proof, found: Mapping[str, Any]
) -> None:
    """Leave what was found in XCom, before the task fails because of it.

    :param connection: Airflow's connection of the source.
    :param found: what the task would return.
    """
    context["ti"].xcom_push(
        key=difference_key(proof_uri(connection, proof.slot_name)),
        value={**proof_extra(proof), "found": dict(found)},
    )


def difference_key(uri: str) -> str:
    """The key of that XCom. Airflow 3.1.1 does not find a key with a slash.

    :param uri: of the verification's asset.
    """
    return f"{KEY} {uri.removeprefix(PROOF_SCHEME)}".replace("/", " ")


def proof_extra(proof: Proof) -> dict[str, Any]:
    """What the event says about a verification, ready for JSON."""
    equal = [each for each in proof.tables if each.is_equal and not each.not_compared]
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "slot_name": proof.slot_name,
        "lsn": str(proof.lsn),
        "tables": len(proof.tables),
        "equal": len(equal),
        "different": len(proof.different),
        # How many tables were compared in part only, see the argument share.
        "parts": sum(1 for each in proof.tables if each.share and not each.not_compared),
        "not_compared": sum(1 for each in proof.tables if each.not_compared),
        "rows": sum(each.source.rows for each in equal if each.source is not None),
        "seconds": round(proof.seconds, 3),
    }
    if proof.different:
        body["different_tables"] = sorted(each.table for each in proof.different)[:_MOST_NAMES]
    if damaged := sorted(each.table for each in proof.tables if each.is_damaged):
        body["damaged_tables"] = damaged[:_MOST_NAMES]
    return body
