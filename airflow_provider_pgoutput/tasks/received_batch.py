"""What arrived by XCom, checked before anybody acts on it. It informs; the checkpoint decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.checkpoint import refuse_gap
from airflow_provider_pgoutput.batch.layout import manifest_path, parse_manifest_name
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.xcom import SCHEMA_VERSION
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError, LakeUnavailable
from airflow_provider_pgoutput.tasks.arguments import mapping

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

_ADVICE = "clear the stage task of this run, so that it stages the batch again."


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """The fields of ``BatchXCom`` that name a batch, consistent with each other, and its counts."""

    slot_name: str
    batch_id: str
    start_lsn: Lsn
    end_lsn: Lsn
    manifest_uri: str
    #: For people only, so not checked beyond its type; None: it did not arrive.
    changes: int | None = None
    #: The same, by ``schema.table``.
    tables: dict[str, Any] | None = None

    @classmethod
    def optional(cls, value: Any, slot_name: str) -> ReceivedBatch | None:
        """Check a batch that may be missing.

        :raises BatchRefused: when it is there and something is wrong with it.
        """
        body = mapping(value, "batch")
        return cls._checked(body, slot_name) if body else None

    @classmethod
    def required(cls, value: Any, slot_name: str) -> ReceivedBatch:
        """Check a batch that must be there.

        :raises BatchRefused: when it is missing, or something is wrong with it.
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
                f"The batch has schema version {body.get('schema_version')!r}, this version of the"
                f" package reads {SCHEMA_VERSION}.",
                slot=slot_name,
                advice=_ADVICE,
            )
        changes, tables = body.get("changes"), body.get("tables")
        try:
            batch = cls(
                slot_name=body["slot_name"],
                batch_id=body["batch_id"],
                start_lsn=Lsn.parse(body["start_lsn"]),
                end_lsn=Lsn.parse(body["end_lsn"]),
                manifest_uri=body["manifest_uri"],
                changes=changes if isinstance(changes, int) else None,
                tables=tables if isinstance(tables, dict) else None,
            )
            folder, _, name = batch.manifest_uri.rpartition("/")
        except (KeyError, AttributeError, ConfigurationError) as error:
            raise BatchRefused(
                "The batch lacks a field or has one of another type.",
                slot=slot_name,
                advice=_ADVICE,
            ) from error
        if batch.slot_name != slot_name or not folder.endswith(f"/{slot_name}/manifests"):
            raise BatchRefused(
                "The batch is of another slot.",
                slot=slot_name,
                advice="give the stage, apply and advance tasks the same slot_name.",
            )
        if parse_manifest_name(name) != (batch.start_lsn, batch.end_lsn):
            raise BatchRefused(
                "The batch was altered: its LSNs are not those of its manifest.",
                slot=slot_name,
                lsn=batch.end_lsn,
                advice=_ADVICE,
            )
        return batch

    def is_applied(self, checkpoint: Checkpoint | None) -> bool:
        """Whether the lake holds all of it."""
        return checkpoint is not None and self.end_lsn <= checkpoint.end_lsn

    def read_manifest(self, area: StagingArea) -> Manifest:
        """Read the manifest and make sure that it is the batch's and the pipeline's.

        :raises BatchRefused: when it is not.
        """
        path = manifest_path(self.slot_name, self.start_lsn, self.end_lsn, self.batch_id)
        folder, _, name = path.rpartition("/")
        if self.manifest_uri != area.uri(path) or name not in area.names(folder):
            raise BatchRefused(
                "The batch is not in this pipeline's staging area.",
                slot=self.slot_name,
                lsn=self.end_lsn,
                advice="give the stage and apply tasks the same staging_uri, and clear the stage task.",
            )
        manifest = Manifest.from_json(area.read(path))
        if (manifest.slot_name, manifest.batch_id) != (self.slot_name, self.batch_id):
            raise BatchRefused(
                "The manifest is of another batch than the stage task named.",
                slot=self.slot_name,
                advice="clear the stage task of this run.",
            )
        return manifest

    def demand_applied(self, checkpoint: Checkpoint | None) -> None:
        """Make sure that a job which ended well has left its batch in the lake.

        :raises LakeUnavailable: when it has not.
        """
        if not self.is_applied(checkpoint):
            raise LakeUnavailable(
                "Spark ended without an error, but the lake's checkpoint does not hold the batch: it is"
                f" {'missing' if checkpoint is None else checkpoint.end_lsn}.",
                slot=self.slot_name,
                lsn=self.end_lsn,
                advice="make sure that the iceberg connection and Spark's conf name the same catalog.",
            )


def moves_checkpoint_only(manifest: Manifest, before: Checkpoint) -> bool:
    """Whether nothing but the checkpoint has to move, from where it is.

    :raises BatchGap: a batch before it was never applied.
    """
    if not manifest.is_empty or manifest.system_identifier != before.system_identifier:
        return False
    if manifest.skipped:
        # A checkpoint table of an earlier version has no column for it yet; Spark's side adds it.
        return False
    refuse_gap(manifest, before.end_lsn)
    return True


def confirmable(
    slot_name: str, checkpoint: Checkpoint | None, batch: ReceivedBatch | None
) -> Checkpoint:
    """The checkpoint, when the slot may be moved to it.

    :param batch: that of the run; None: the run did not say.
    :raises BatchRefused: when the batch was not applied, or no batch ever was.
    """
    if batch is not None and not batch.is_applied(checkpoint):
        raise BatchRefused(
            "The batch was not applied: the lake's checkpoint is"
            f" {'missing' if checkpoint is None else checkpoint.end_lsn}, the batch ends at"
            f" {batch.end_lsn}. The slot was not moved.",
            slot=slot_name,
            lsn=batch.end_lsn,
            advice="run the apply task before this one (PgoutputApplyOperator, same slot_name,"
            " namespace and iceberg_conn_id); if it did run, the XCom of the stage task was"
            " altered: clear the stage task.",
        )
    if checkpoint is None:
        raise BatchRefused(
            "The lake has no checkpoint for this slot, so nothing may be forgotten yet.",
            slot=slot_name,
            advice="run the stage and apply tasks first, with the same slot_name and namespace.",
        )
    return checkpoint
