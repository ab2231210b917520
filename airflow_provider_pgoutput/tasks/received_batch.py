"""The batch that a task receives by XCom, checked. XCom only informs: the checkpoint decides what is done."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.checkpoint import refuse_gap
from airflow_provider_pgoutput.batch.layout import manifest_path, parse_manifest_name
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.xcom import SCHEMA_VERSION
from airflow_provider_pgoutput.capture.staging.sealed import sealed_batches
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError, LakeUnavailable
from airflow_provider_pgoutput.tasks.arguments import mapping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.staging.sealed import SealedBatch
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

_ADVICE = "clear the stage task of this run, so that it stages the batch again."


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A batch as ``BatchXCom`` describes it. The fields that name it agree with each other."""

    slot_name: str
    batch_id: str
    start_lsn: Lsn
    end_lsn: Lsn
    manifest_uri: str
    #: Number of row changes. It is for people only, so only its type was checked. None: it did not arrive.
    changes: int | None = None
    #: Counts of each table, by ``schema.table``. Also for people only.
    tables: dict[str, dict[str, int]] | None = None
    #: How many tables are not in ``tables``.
    tables_left_out: int = 0
    #: By ``schema.table``: why a copy that was asked for is not in the batch.
    refused_copies: dict[str, str] = field(default_factory=dict)
    #: See ``BatchXCom``; None: it is not known.
    complete_until: datetime | None = None
    #: ``BatchXCom`` as it arrived, for the facts that people read in the event of the pipeline's asset.
    xcom: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def optional(cls, value: Any, slot_name: str) -> ReceivedBatch | None:
        """Check a batch that may be missing.

        :raises BatchRefused: something is wrong with it.
        """
        body = mapping(value, "batch")
        return cls._checked(body, slot_name) if body else None

    @classmethod
    def required(cls, value: Any, slot_name: str) -> ReceivedBatch:
        """Check a batch that must be there.

        :raises BatchRefused: it is missing, or something is wrong with it.
        """
        batch = cls.optional(value, slot_name)
        if batch is None:
            raise BatchRefused(
                "No batch arrived from the stage task.", slot=slot_name, advice=_ADVICE
            )
        return batch

    @classmethod
    def _checked(cls, body: dict[str, Any], slot_name: str) -> ReceivedBatch:
        if body.get("schema_version") != SCHEMA_VERSION:
            raise BatchRefused(
                f"The batch has schema version {body.get('schema_version')!r}, but this version of the"
                f" package reads {SCHEMA_VERSION}.",
                slot=slot_name,
                advice=_ADVICE,
            )
        changes, left_out = body.get("changes"), body.get("tables_left_out", 0)
        try:
            batch = cls(
                slot_name=body["slot_name"],
                batch_id=body["batch_id"],
                start_lsn=Lsn.parse(body["start_lsn"]),
                end_lsn=Lsn.parse(body["end_lsn"]),
                manifest_uri=body["manifest_uri"],
                changes=changes if isinstance(changes, int) else None,
                tables=_counts_or_none(body.get("tables")),
                tables_left_out=left_out if isinstance(left_out, int) else 0,
                refused_copies=_texts(body.get("refused_copies")),
                complete_until=_time_or_none(body.get("complete_until")),
                xcom=body,
            )
            folder, _, name = batch.manifest_uri.rpartition("/")
        except (KeyError, AttributeError, ConfigurationError) as error:
            raise BatchRefused(
                "The batch lacks a field, or a field has another type.",
                slot=slot_name,
                advice=_ADVICE,
            ) from error
        if batch.slot_name != slot_name or not folder.endswith(f"/{slot_name}/manifests"):
            raise BatchRefused(
                "The batch belongs to another slot.",
                slot=slot_name,
                advice="give the stage, apply and advance tasks the same slot_name.",
            )
        if parse_manifest_name(name) != (batch.start_lsn, batch.end_lsn):
            raise BatchRefused(
                "The batch was altered: its LSNs are not the LSNs of its manifest.",
                slot=slot_name,
                lsn=batch.end_lsn,
                advice=_ADVICE,
            )
        return batch

    def is_applied(self, checkpoint: Checkpoint | None) -> bool:
        """Whether the lake holds the whole batch."""
        return checkpoint is not None and self.end_lsn <= checkpoint.end_lsn

    def refuse_if_left(self, area: StagingArea, checkpoint: Checkpoint) -> None:
        """Refuse a batch of an earlier system that ends past the adoption of another one.

        Its LSN may be below the checkpoint, and yet the lake does not have it. XCom does not name the system,
        so the manifest is read.

        :raises BatchRefused: it is such a batch.
        """
        found = self._sealed(area)
        # Only batches that the lake has are pruned.
        if found and checkpoint.systems.left(found.read().system_identifier, self.end_lsn):
            raise BatchRefused(
                f"The batch is of an earlier system, and the lake has adopted system"
                f" {checkpoint.system_identifier} at {checkpoint.systems.adopted_at}.",
                slot=self.slot_name,
                lsn=self.end_lsn,
                advice="the lake's tables have what the adopted system has. End what still stages or applies"
                " batches of the earlier system.",
            )

    def _sealed(self, area: StagingArea) -> SealedBatch | None:
        """The batch in the staging area; None: it is not there."""
        path = manifest_path(self.slot_name, self.start_lsn, self.end_lsn, self.batch_id)
        return next(
            (each for each in sealed_batches(area, self.slot_name) if each.path == path), None
        )

    def read_manifest(self, area: StagingArea) -> Manifest:
        """Read the batch's manifest.

        :raises BatchRefused: it belongs to another batch or another pipeline.
        """
        found = self._sealed(area)
        if found is None or self.manifest_uri != area.uri(found.path):
            raise BatchRefused(
                "The batch is not in this pipeline's staging area.",
                slot=self.slot_name,
                lsn=self.end_lsn,
                advice="give the stage and apply tasks the same staging_uri, and clear the stage task.",
            )
        manifest = found.read()
        if (manifest.slot_name, manifest.batch_id) != (self.slot_name, self.batch_id):
            raise BatchRefused(
                "The manifest belongs to another batch than the stage task named.",
                slot=self.slot_name,
                advice="clear the stage task of this run.",
            )
        return manifest

    def demand_applied(self, checkpoint: Checkpoint | None) -> Checkpoint:
        """Make sure that the lake holds the batch after Spark's job succeeded, and return the checkpoint.

        :raises LakeUnavailable: the lake does not hold it.
        """
        if checkpoint is None or not self.is_applied(checkpoint):
            raise LakeUnavailable(
                "Spark ended without an error, but the lake's checkpoint does not hold the batch. The"
                f" checkpoint is {'missing' if checkpoint is None else checkpoint.end_lsn}.",
                slot=self.slot_name,
                lsn=self.end_lsn,
                advice="make sure that the iceberg connection and Spark's conf name the same catalog.",
            )
        return checkpoint


def _time_or_none(value: Any) -> datetime | None:
    """A time with its zone; None: the value is something else."""
    try:
        found = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None


def _counts_or_none(value: Any) -> dict[str, dict[str, int]] | None:
    """Counts by table; None: they are something else."""
    known = isinstance(value, dict) and all(
        isinstance(counts, dict) and all(isinstance(count, int) for count in counts.values())
        for counts in value.values()
    )
    return value if known else None


def _texts(value: Any) -> dict[str, str]:
    """Texts by table; empty: they are something else, or there are none."""
    found = value if isinstance(value, dict) else {}
    return {str(name): str(text) for name, text in found.items()}


def moves_checkpoint_only(manifest: Manifest, before: Checkpoint) -> bool:
    """Whether only the checkpoint has to move, because the batch changes no table.

    :raises BatchGap: the batch does not follow the checkpoint.
    """
    if not manifest.is_empty or manifest.system_identifier != before.system_identifier:
        return False
    if manifest.skipped:
        # The checkpoint table of an earlier version may lack the column for it. Spark adds the column.
        return False
    refuse_gap(manifest, before.end_lsn)
    return True


def confirmable(
    slot_name: str, checkpoint: Checkpoint | None, batch: ReceivedBatch | None
) -> Checkpoint:
    """The checkpoint, after a check that the slot may be moved to it.

    :param checkpoint: None: the lake has none for the slot.
    :param batch: the batch of the run. None: no batch arrived.
    :raises BatchRefused: the batch was not applied, or no batch ever was.
    """
    if batch is not None and not batch.is_applied(checkpoint):
        raise BatchRefused(
            "The batch was not applied: the lake's checkpoint is"
            f" {'missing' if checkpoint is None else checkpoint.end_lsn}, and the batch ends at"
            f" {batch.end_lsn}. The slot was not moved.",
            slot=slot_name,
            lsn=batch.end_lsn,
            advice="run the apply task before this one (PgoutputApplyOperator, with the same slot_name,"
            " namespace and iceberg_conn_id); if it did run, the XCom of the stage task was"
            " altered: clear the stage task.",
        )
    if checkpoint is None:
        raise BatchRefused(
            "The lake has no checkpoint for this slot, so the slot may not be moved yet.",
            slot=slot_name,
            advice="run the stage and apply tasks first, with the same slot_name and namespace.",
        )
    return checkpoint
