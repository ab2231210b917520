"""One pipeline under test: a slot, its staging area and its namespace, driven step by step.

Every method is one task of the DAG, called as the operators call it. What is not here: any judgement
of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.come_back import apply_and_bring_back
from airflow_provider_pgoutput.batch.answers import DIFFERENCE, REPAIR
from airflow_provider_pgoutput.batch.jobs import ApplyJob, ReplayJob
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET, Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint, read_checkpoint
from airflow_provider_pgoutput.proof.after_loss import LakeAfterLoss
from airflow_provider_pgoutput.proof.request import ProofRequest
from airflow_provider_pgoutput.tasks.lacked_batches import lacked_batches
from tests import setting
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.archive import ArchivedBatch

CATALOG = "lake"


@dataclass(frozen=True, slots=True)
class Batch:
    """A sealed batch and where its manifest is."""

    manifest: Manifest
    uri: str


def lake_comparison(
    stage: Mapping[str, Any], catalog_properties: Mapping[str, str], namespace: str
) -> LakeAfterLoss:
    """What compares the lake with the source after a lost slot.

    :param stage: arguments of ``CaptureRequest``.
    """
    of_source = ("conninfo", "slot_name", "publication_names", "staging_uri")
    return LakeAfterLoss(
        ProofRequest(
            **{name: stage[name] for name in of_source},
            namespace=namespace,
            catalog_name=CATALOG,
            catalog_properties=catalog_properties,
            on_difference=REPAIR,
            mask_secret=stage.get("mask_secret"),
        )
    )


@dataclass(frozen=True)
class Pipeline:
    """The tasks of one DAG run, without Airflow."""

    #: Of a superuser, who changes what is to be captured; the tasks connect as ``reader``.
    conninfo: str
    slot_name: str
    publication_names: tuple[str, ...]
    namespace: str
    staging: Path
    catalog_properties: dict[str, str]
    spark: SparkSession
    #: Fields of ``CaptureRequest`` and of ``ApplyJob`` over the defaults.
    capture_options: dict[str, Any] = field(default_factory=dict)
    plan_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the slot and move it as the run of the tests is asked to, unless this one says it."""
        self.capture_options.setdefault("advance", setting.advance)
        self.capture_options.setdefault("transport", setting.transport)

    @property
    def reader(self) -> str:
        """What the tasks connect with: the documented role, which is no superuser."""
        return reader_conninfo(self.conninfo)

    def checkpoint(self) -> Checkpoint | None:
        """How far the lake is."""
        return read_checkpoint(CATALOG, self.catalog_properties, self.namespace, self.slot_name)

    def catch_up_job(self, **options: Any) -> ReplayJob:
        """What the replay task orders, so that the tables that are set aside get what they lack.

        :param options: fields of the job, in place of the pipeline's own.
        """
        checkpoint = self.checkpoint()
        assert checkpoint is not None
        waiting = checkpoint.set_aside.values()
        batches = batches_between(
            StagingArea(self.staging.as_uri()),
            self.slot_name,
            min(each.replay_lsn for each in waiting),
            checkpoint.end_lsn,
            checkpoint.system_identifier,
        )
        tables = tuple(sorted(each.table_name for each in waiting))
        return self._replay_job(batches, **{"tables": tables, "catch_up": True, **options})

    def replay_job(self, first: int) -> ReplayJob:
        """A replay in place, from one of the batches up to the checkpoint.

        :param first: number of the batch, from 0.
        """
        checkpoint = self.checkpoint()
        assert checkpoint is not None
        assert checkpoint.begun_at is not None
        batches = batches_between(
            StagingArea(self.staging.as_uri()),
            self.slot_name,
            checkpoint.begun_at,
            checkpoint.end_lsn,
            checkpoint.system_identifier,
        )
        return self._replay_job(batches[first:])

    def _replay_job(self, batches: Sequence[ArchivedBatch], **options: Any) -> ReplayJob:
        fields: dict[str, Any] = {
            "staging_uri": self.staging.as_uri(),
            "catalog_name": CATALOG,
            "namespace": self.namespace,
            "manifest_uris": tuple(each.manifest_uri for each in batches),
            "in_place": True,
        }
        given = {k: v for k, v in self.plan_options.items() if k != "on_table_refused"}
        return ReplayJob(**{**fields, **given, **options})

    def stage(self, **options: Any) -> Batch:
        """Stage one batch."""
        arguments = {
            "conninfo": self.reader,
            "slot_name": self.slot_name,
            "publication_names": self.publication_names,
            "staging_uri": self.staging.as_uri(),
            "checkpoint": self.checkpoint(),
        }
        given = {**arguments, **self.capture_options, **options}
        if given.get("on_slot_lost") == DIFFERENCE:
            given["lake_comparison"] = lake_comparison(
                given, self.catalog_properties, self.namespace
            )
        return Batch(*stage_batch(CaptureRequest(**given))[:2])

    def plan(self, batch: Batch) -> ApplyJob:
        """What the apply operator would write for this batch."""
        area = StagingArea(self.staging.as_uri())
        lacked = lacked_batches(area, self.checkpoint(), batch.manifest, batch.uri)
        fields = {
            "manifest_uri": batch.uri,
            "staging_uri": self.staging.as_uri(),
            "catalog_name": CATALOG,
            "namespace": self.namespace,
            "retried_tables": lacked.tables,
            "lacked_uris": lacked.uris,
        }
        return ApplyJob(**{**fields, **self.plan_options})

    def apply(self, batch: Batch) -> None:
        """Apply one batch in this process's Spark session."""
        apply_and_bring_back(self.spark, self.plan(batch))

    def advance(self) -> None:
        """Let the server recycle what the lake holds."""
        checkpoint = self.checkpoint()
        assert checkpoint is not None, "nothing was applied yet"
        advance_slot(
            self.reader,
            self.slot_name,
            checkpoint.end_lsn,
            offset=checkpoint.systems.lsn_offset,
        )

    def drain(self, target: Lsn, **options: Any) -> list[Batch]:
        """Stage and apply batch after batch until the lake is at ``target``."""
        batches: list[Batch] = []
        while not batches or batches[-1].manifest.end_lsn < target:
            batches.append(self.stage(**options))
            self.apply(batches[-1])
        return batches

    def flush_lsn(self) -> Lsn:
        """Where the server's durable WAL ends now."""
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            row = session.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def confirmed_flush_lsn(self) -> Lsn | None:
        """Where the slot is, as the lake counts; None: there is no slot."""
        checkpoint = self.checkpoint()
        offset = NO_OFFSET if checkpoint is None else checkpoint.systems.lsn_offset
        with psycopg.connect(self.conninfo, autocommit=True) as session:
            row = session.execute(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
                (self.slot_name,),
            ).fetchone()
        return offset.of_lake(row[0]) if row else None

    def snapshot_ids(self) -> dict[str, int | None]:
        """The current snapshot of every table in the namespace, read by another engine than Spark."""
        catalog = load_catalog(CATALOG, **self.catalog_properties)
        found: dict[str, int | None] = {}
        if not catalog.namespace_exists(self.namespace):
            return found
        for identifier in catalog.list_tables(self.namespace):
            snapshot = catalog.load_table(identifier).current_snapshot()
            found[identifier[-1]] = snapshot.snapshot_id if snapshot else None
        return found
