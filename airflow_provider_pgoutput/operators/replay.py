"""Airflow's door to the archive: batches that were staged before are applied again, with no slot read.

Which batches: ``capture/staging/archive.py``. What Spark does with them: ``apply/replay.py``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import ReplayJob
from airflow_provider_pgoutput.errors import BatchGap, ConfigurationError
from airflow_provider_pgoutput.spark_submit.operator import SparkApplyOperator
from airflow_provider_pgoutput.spark_submit.result import demanded
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.task_run import log_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.staging.archive import ArchivedBatch
    from airflow_provider_pgoutput.capture.staging.area import StagingArea


class PgoutputReplayOperator(SparkApplyOperator):
    """Apply staged batches again, from a saved LSN on, and return what that did.

    Without ``target_namespace`` the tables are rebuilt in place: they go back to where they were at
    ``from_lsn``, and forward to where the lake is. What others wrote to them since is undone (with
    ``soft_delete`` and from a copy: is marked as deleted). Pause the pipeline's DAG meanwhile; a run of it
    would be refused, and would lose nothing.

    With ``target_namespace`` the batches go into tables of that namespace, made as needed, in any mode.
    A table in mode ``upsert`` must begin with its copy, so with the batch that holds it.

    Batches are taken whole: the first one holds ``from_lsn``, and the last one does not go past ``to_lsn``.
    Gaps, damaged files and missing copies are refused before anything is written. Run again after a
    failure it goes on, or begins again where that is safe. The other arguments are those of
    ``SparkApplyOperator``.

    :param from_lsn: where to begin, as PostgreSQL writes it: ``16/B374D848``. (templated)
    :param to_lsn: where to end; needs ``target_namespace``. None: the newest batch in another namespace, the
        lake's checkpoint in place. (templated)
    :param tables: the tables to replay, ``["schema.table"]``; None: all of the batches'. (templated)
    :param target_namespace: namespace to write to; None: in place. (templated)
    """

    template_fields: Sequence[str] = (
        *SparkApplyOperator.template_fields,
        "from_lsn",
        "to_lsn",
        "tables",
        "target_namespace",
    )
    ui_color = "#f3d9f0"

    def __init__(
        self,
        *,
        from_lsn: str,
        to_lsn: str | None = None,
        tables: Sequence[str] | str | None = None,
        target_namespace: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.from_lsn = from_lsn
        self.to_lsn = to_lsn
        self.tables = tables
        self.target_namespace = target_namespace

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Choose the batches and have Spark apply them."""
        with airflow_outcome():
            slot_name = arguments.required_text(self.slot_name, "slot_name")
            from_lsn, to_lsn = self._range()
            lake = Lake.open(self.iceberg_conn_id, self.catalog_name, self.namespace)
            from airflow_provider_pgoutput.capture.staging.area import StagingArea

            area = StagingArea(arguments.required_text(self.staging_uri, "staging_uri"))
            batches = self._batches(area, lake, slot_name, from_lsn, to_lsn)
            target = arguments.optional_text(self.target_namespace)
            job = self.make_job(
                ReplayJob,
                context,
                lake if target is None else dataclasses.replace(lake, namespace=target),
                area,
                manifest_uris=tuple(each.manifest_uri for each in batches),
                source_tables=arguments.optional_text_list(self.tables, "tables"),
                in_place=target is None,
            )
            self.log.info(
                "%d batches from %s to %s, %s changes, go %s.",
                len(batches),
                batches[0].start_lsn,
                batches[-1].end_lsn,
                f"{sum(each.changes for each in batches):,}",
                "over what the tables hold" if target is None else f"to namespace {target}",
            )
            with log_group(f"Replay {len(batches)} batches with Spark"):
                result = demanded(self.run_job(context, area, lake, job, batches[-1].batch_id))
        return {
            "schema_version": 1,
            "slot_name": slot_name,
            "start_lsn": str(batches[0].start_lsn),
            "end_lsn": str(batches[-1].end_lsn),
            "batches": len(batches),
            "namespace": job.namespace,
            "snapshots": result.get("published", {}),
        }

    def _range(self) -> tuple[Lsn, Lsn | None]:
        from_lsn = arguments.lsn(self.from_lsn, "from_lsn")
        to_lsn = arguments.lsn(self.to_lsn, "to_lsn")
        target = arguments.optional_text(self.target_namespace)
        if from_lsn is None:
            raise ConfigurationError("The argument from_lsn is missing.", advice="give from_lsn.")
        if to_lsn is not None and to_lsn <= from_lsn:
            raise ConfigurationError(
                f"to_lsn {to_lsn} is not past from_lsn {from_lsn}.", advice="swap or correct them."
            )
        if target is None and to_lsn is not None:
            raise ConfigurationError(
                "to_lsn is given without target_namespace: tables that end before the lake's checkpoint would"
                " miss changes for good.",
                advice="leave to_lsn out, or name another namespace.",
            )
        if target == arguments.required_text(self.namespace, "namespace"):
            raise ConfigurationError(
                "target_namespace is the pipeline's own namespace.",
                advice="leave it out to rebuild the tables in place, or name another namespace.",
            )
        return from_lsn, to_lsn

    def _batches(
        self, area: StagingArea, lake: Lake, slot_name: str, from_lsn: Lsn, to_lsn: Lsn | None
    ) -> list[ArchivedBatch]:
        from airflow_provider_pgoutput.capture.staging.archive import batches_between

        checkpoint = lake.checkpoint(slot_name)
        system = checkpoint.system_identifier if checkpoint else None
        if arguments.optional_text(self.target_namespace) is not None:
            return batches_between(area, slot_name, from_lsn, to_lsn, system)
        if checkpoint is None:
            raise ConfigurationError(
                f"The lake has no checkpoint of the slot in namespace {lake.namespace}, so nothing says how"
                " far its tables were.",
                slot=slot_name,
                advice="check the namespace; `airflow pgoutput doctor --repair` rebuilds a lost checkpoint;"
                " or name another namespace in target_namespace.",
            )
        if from_lsn >= checkpoint.end_lsn:
            raise ConfigurationError(
                f"from_lsn {from_lsn} is not before the lake's checkpoint {checkpoint.end_lsn}.",
                slot=slot_name,
                advice="give an earlier LSN; what is past the checkpoint is the apply task's work.",
            )
        # Sealed batches past the checkpoint are the next run's.
        batches = batches_between(area, slot_name, from_lsn, checkpoint.end_lsn, system)
        if batches[-1].end_lsn != checkpoint.end_lsn:
            raise BatchGap(
                f"The staged batches end at {batches[-1].end_lsn}, the lake is at {checkpoint.end_lsn}.",
                slot=slot_name,
                lsn=batches[-1].end_lsn,
                advice="bring the batches between back from a backup; or copy the tables again"
                " (copy_tables).",
            )
        return batches
