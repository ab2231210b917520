"""Writes rows of the checkpoint table through pyiceberg, where no Spark runs.

That is for batches without a change, and to rebuild the table. ``apply/table/checkpoint.py`` writes the rows
of batches that Spark applies.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.earlier_systems import to_text as earlier_text
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.own_tables import append_to_own_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from airflow_provider_pgoutput.batch.manifest import Manifest


def append_rows(
    catalog: Catalog,
    namespace: str,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, str] | None = None,
) -> None:
    """Append rows in one commit. If there is no table, it is made.

    :param rows: by column of ``CHECKPOINT``; a missing column is NULL, ``applied_at`` is the current time.
    :param summary: keys of the snapshot summary.
    :raises LakeUnavailable: the catalog failed, or its answer did not arrive.
    """
    now = datetime.now(UTC)
    append_to_own_table(
        catalog,
        namespace,
        lake_names.CHECKPOINT_TABLE,
        lake_names.CHECKPOINT,
        [{**row, "applied_at": now} for row in rows],
        summary,
    )


def record_empty_batch(
    catalog_name: str, catalog_properties: Mapping[str, str], job: ApplyJob, manifest: Manifest
) -> None:
    """Move the checkpoint past a batch that changes no table.

    A repeated task may write a second row for the batch. That changes no answer.

    :param catalog_properties: as ``pyiceberg.catalog.load_catalog`` takes them.
    :raises LakeUnavailable: the catalog failed; the task may run again.
    """
    # Imported here: pyiceberg takes a second to import.
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    row = row_of_empty_batch(job, manifest)
    with lake_errors("opened"):
        catalog = load_catalog(catalog_name, **dict(catalog_properties))
    append_rows(catalog, job.namespace, [row], lake_names.marker_of(manifest))


def row_of_empty_batch(job: ApplyJob, manifest: Manifest) -> dict[str, Any]:
    """The row that records a batch which changes no table."""
    assert manifest.is_empty
    row: dict[str, Any] = {
        "slot_name": manifest.slot_name,
        "system_identifier": manifest.system_identifier,
        "batch_id": manifest.batch_id,
        "start_lsn": manifest.start_lsn.sortable,
        "end_lsn": manifest.end_lsn.sortable,
        "dag_id": job.dag_id,
        "run_id": job.run_id,
        "manifest_uri": job.manifest_uri,
        "timeline": manifest.timeline,
        "adopted_from": earlier_text(manifest.adopted_from),
    }
    times = {
        "last_commit_time": manifest.last_commit_time,
        "complete_until": manifest.complete_until,
    }
    row |= {
        name: None if text is None else datetime.fromisoformat(text) for name, text in times.items()
    }
    return row | dict.fromkeys(
        ("inserts", "updates", "deletes", "truncates", "copied", "rejected"), 0
    )
