"""The operator that has Spark apply one batch. The Spark application is ``apply/main.py``."""

from __future__ import annotations

import dataclasses
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias

from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.jobs import ApplyJob
from airflow_provider_pgoutput.batch.xcom import MOST_TABLES, batch_xcom, table_counts
from airflow_provider_pgoutput.errors import LakeDenied, LakeUnavailable
from airflow_provider_pgoutput.hooks.connections import is_asset_uri
from airflow_provider_pgoutput.links.pipeline import ManifestLink, PageLink, SparkApplicationLink
from airflow_provider_pgoutput.spark_submit.operator import SparkApplyOperator
from airflow_provider_pgoutput.tasks import arguments, lineage, metrics
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.received_batch import ReceivedBatch, moves_checkpoint_only
from airflow_provider_pgoutput.tasks.run_event import ALIAS, RunFacts, tell_assets
from airflow_provider_pgoutput.tasks.set_aside import log_incomplete, log_returned, log_set_aside
from airflow_provider_pgoutput.tasks.task_run import (
    log_group,
    log_tables,
    refuse_backfill,
    summary,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint


#: Up to so many changed and copied rows in a batch, Java's optimising compiler costs more than it saves.
_ROWS_OF_A_SHORT_JOB = 100_000
#: Arguments of its own that are templated.
_APPLY_ARGUMENTS = ("batch", "on_table_refused")


class PgoutputApplyOperator(SparkApplyOperator):
    """Apply a staged batch to Iceberg tables with Spark, and return what it did.

    If the lake already holds the batch, the task does nothing. So a task of an old run may be cleared. If the
    batch changes no table, the task writes only the checkpoint, without Spark. At the end the task reads the
    checkpoint, and succeeds only if the checkpoint holds the batch. The other arguments are those of
    ``SparkApplyOperator``.

    One of its outlets is the asset alias ``pgoutput``. While the task runs, it adds the pipeline as an asset,
    ``pgoutput://host:port/database/slot``. The asset's event has the facts of the run; see
    ``docs/reference/events.md``.

    :param batch: the batch as ``PgoutputStageOperator`` returned it. (templated)
    :param table_assets: also add an asset for each table that got rows,
        ``iceberg://catalog/namespace/table``, of 200 at most.
    :param on_table_refused: the batch cannot be applied to one table. ``set_aside``: it is applied to the
        others, and the task ends well, with a warning. The table stays as it is. It gets no later batch
        either, until ``PgoutputReplayOperator`` or a copy (``copy_tables``) brings it back. If the catalog
        forbids writing to it, or one of its files is missing or damaged, it comes back by itself when
        somebody gives the right or puts the file back. ``fail``: the task fails, and the batch is not
        applied. (templated)
    """

    template_fields: Sequence[str] = (
        *SparkApplyOperator.template_fields,
        *_APPLY_ARGUMENTS,
    )
    template_fields_renderers = {  # noqa: RUF012
        **SparkApplyOperator.template_fields_renderers,
        "batch": "json",
    }

    operator_extra_links = (PageLink(), ManifestLink(), SparkApplicationLink())

    batch: Any
    on_table_refused: str

    def __init__(
        self,
        *,
        batch: Any,
        table_assets: bool = False,
        on_table_refused: str = SET_ASIDE,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), _APPLY_ARGUMENTS)
        if AssetAlias(ALIAS) not in self.outlets:
            self.outlets = [*self.outlets, AssetAlias(ALIAS)]
        #: Of the batch; None: it is not known yet.
        self.manifest_uri: str | None = None
        #: What it moved, for OpenLineage; None: nothing.
        self._moved: tuple[Manifest, str, Lake] | None = None
        self.table_assets = table_assets
        arguments.check_answers(self)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Apply the batch, unless the lake holds it already."""
        with airflow_outcome(context):
            refuse_backfill(context)
            from airflow_provider_pgoutput.capture.staging.area import StagingArea

            slot_name = arguments.slot_name(self)
            batch = ReceivedBatch.required(self.batch, slot_name)
            self.manifest_uri = batch.manifest_uri
            lake = Lake.of(self)
            before = lake.checkpoint(slot_name)
            if before is not None and before.adopted_from:
                batch.refuse_if_left(StagingArea(arguments.staging_uri(self)), before)
            if before is not None and batch.is_applied(before):
                self.log.info(
                    "Batch %s ends at %s and the lake is at %s: it was applied before.",
                    batch.batch_id[:16],
                    batch.end_lsn,
                    before.end_lsn,
                )
                set_aside = log_set_aside(before)
                # An earlier try applied it, and may have ended before it told Airflow about the assets.
                known = batch.tables if batch.tables_left_out == 0 else None
                incomplete = self._incomplete(lake, slot_name)
                facts = RunFacts(
                    batch,
                    lake.namespace,
                    known,
                    batch.changes,
                    set_aside=tuple(set_aside),
                    incomplete=len(incomplete),
                )
                self._tell_assets(context, lake, facts)
                return _result(
                    batch,
                    batch.changes,
                    batch.tables,
                    batch.tables_left_out,
                    set_aside=set_aside,
                    incomplete=incomplete,
                    applied=False,
                )
            area = StagingArea(arguments.staging_uri(self))
            manifest = batch.read_manifest(area)
            job = self._job(context, lake, area, batch.manifest_uri, manifest, before)
            self._warn_of_unknown(job, manifest)
            result: dict[str, Any] = {}
            started = time.monotonic()
            if not (
                before is not None
                and moves_checkpoint_only(manifest, before)
                and self._recorded(lake, job, manifest)
            ):
                with log_group(f"Apply batch {batch.batch_id[:16]} with Spark"):
                    is_short = not job.retried_tables and _rows(manifest) <= _ROWS_OF_A_SHORT_JOB
                    done = self.run_job(context, area, lake, job, batch.batch_id, is_short=is_short)
                    result = done or {}
            after = batch.demand_applied(lake.checkpoint(slot_name))
            log_returned(before, after)
            set_aside = log_set_aside(after)
            incomplete = self._incomplete(lake, slot_name)
            seconds = time.monotonic() - started
        counts = table_counts(manifest)
        # What the tables that are set aside would have got is in the batch, and not in the lake.
        aside = {each.table_name for each in after.set_aside.values()}
        got = [each for each in manifest.tables if each.name not in aside]
        applied = dataclasses.replace(manifest, tables=tuple(got))
        log_tables(table_counts(applied))
        published = result.get("published", {})
        facts = RunFacts(
            batch,
            lake.namespace,
            counts,
            manifest.changes,
            staged_bytes=sum(manifest.sizes),
            apply_seconds=round(seconds, 3),
            publish_seconds=result.get("publish_seconds"),
            snapshots=published,
            set_aside=tuple(set_aside),
            incomplete=len(incomplete),
        )
        self._tell_assets(context, lake, facts)
        self._moved = manifest, str(batch.xcom.get("asset_uri", "")), lake
        self.log.info("%s", summary("Applied", applied, seconds))
        metrics.of_applied(slot_name, batch.complete_until, seconds)
        shown = batch_xcom(manifest, batch.manifest_uri)
        left_out = shown.get("tables_left_out", 0)
        snapshots = dict(islice(published.items(), MOST_TABLES))
        return _result(
            batch,
            manifest.changes,
            shown["tables"],
            left_out,
            snapshots,
            set_aside=set_aside,
            incomplete=incomplete,
            applied=True,
        )

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """For Airflow's OpenLineage provider, see ``docs/reference/events.md``. None: nothing was applied."""
        if self._moved is None:
            return None
        manifest, pipeline_uri, lake = self._moved
        if not is_asset_uri(pipeline_uri):
            # A batch of an older version, or one that was edited.
            return None
        staging_uri = arguments.staging_uri(self)
        targets = lake.targets_by_oid(manifest.slot_name, manifest.batch_id)
        return lineage.of_applied(manifest, pipeline_uri, staging_uri, lake.catalog, targets)

    def _job(
        self,
        context: Context,
        lake: Lake,
        area: StagingArea,
        manifest_uri: str,
        manifest: Manifest,
        before: Checkpoint | None,
    ) -> ApplyJob:
        """The job that applies the batch, and tries tables again that lack a right.

        :param before: the checkpoint before the batch.
        """
        from airflow_provider_pgoutput.tasks.lacked_batches import lacked_batches

        lacked = lacked_batches(area, before, manifest, manifest_uri)
        return self.make_job(
            ApplyJob,
            context,
            lake,
            area,
            manifest_uri=manifest_uri,
            on_table_refused=arguments.answer(self.on_table_refused, "on_table_refused"),
            retried_tables=lacked.tables,
            lacked_uris=lacked.uris,
        )

    def _incomplete(self, lake: Lake, slot_name: str) -> dict[str, Any]:
        """What XCom says about tables with rows in the quarantine, also if it is not used any more."""
        answer = arguments.answer(self.on_row_refused, "on_row_refused")
        return log_incomplete(lake, slot_name, answer)

    def _warn_of_unknown(self, job: ApplyJob, manifest: Manifest) -> None:
        """Warn of tables that have options and are not published. Most likely their names are misspelt."""
        if manifest.published is None:
            return
        published = {each.name for each in manifest.published.tables}
        changed = {each.name for each in manifest.tables}
        if unknown := sorted(job.table_options.keys() - published - changed):
            self.log.warning(
                "table_options names tables that are not published: %s. Their options have no effect.",
                ", ".join(unknown),
            )

    def _recorded(self, lake: Lake, job: ApplyJob, manifest: Manifest) -> bool:
        """Move the checkpoint past a batch that changes no table. False: the worker may not write it."""
        try:
            lake.record_empty_batch(job, manifest)
        except (LakeUnavailable, LakeDenied) as error:
            # Spark writes the row, then. If this write succeeded all the same, a second row does no harm.
            self.log.warning("%s Spark writes the checkpoint.", error)
            return False
        self.log.info("The batch changes no table: only the checkpoint was written, without Spark.")
        return True

    def _tell_assets(self, context: Context, lake: Lake, facts: RunFacts) -> None:
        if self.table_assets:
            # The lake says it. An earlier try may have published some of them, and ended before it told.
            targets = lake.targets_of(facts.batch.slot_name, facts.batch.batch_id)
            facts = dataclasses.replace(facts, targets=targets)
        tell_assets(context, self.outlets, facts, catalog=lake.catalog.name)


def _rows(manifest: Manifest) -> int:
    return manifest.changes + sum(table.counts.copied for table in manifest.tables)


def _result(
    batch: ReceivedBatch,
    changes: int | None,
    tables: Mapping[str, Any] | None,
    tables_left_out: int,
    snapshots: Mapping[str, int] | None = None,
    *,
    set_aside: Mapping[str, Any],
    incomplete: Mapping[str, Any],
    applied: bool,
) -> dict[str, Any]:
    """What the task returns. None: an earlier try applied the batch, and only that try knew the value.

    :param set_aside: left out of the result if it is empty. So is ``incomplete``.
    """
    found = {
        "schema_version": 1,
        "slot_name": batch.slot_name,
        "batch_id": batch.batch_id,
        "start_lsn": str(batch.start_lsn),
        "end_lsn": str(batch.end_lsn),
        "applied": applied,
        "changes": changes,
        "tables": tables,
        "snapshots": snapshots,
    }
    if tables_left_out:
        found["tables_left_out"] = tables_left_out
    if set_aside:
        found["set_aside"] = set_aside
    if incomplete:
        found["incomplete"] = incomplete
    return found
