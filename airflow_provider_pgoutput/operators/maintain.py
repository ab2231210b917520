"""The operator that joins files and removes old snapshots. The work itself is in ``apply/maintain.py``."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import MaintenanceJob
from airflow_provider_pgoutput.links.pipeline import SparkApplicationLink
from airflow_provider_pgoutput.spark_submit.operator import LakeJobOperator
from airflow_provider_pgoutput.spark_submit.result import demanded
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.task_run import log_group, log_tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

log = logging.getLogger(__name__)

_JOB_ID = "maintenance"


class PgoutputMaintenanceOperator(LakeJobOperator):
    """Keep the tables of a pipeline fast and small with Iceberg's own procedures, and return what was done.

    It joins small data files and applies deletes, rewrites manifests, expires snapshots and removes orphaned
    files. It does so for every table that the slot's pipeline made, and for the tables of the checkpoint, the
    messages and the rejected values. The tables keep the LSN that they have reached. The task may run beside
    the pipeline, in a DAG of its own. If another commit comes in between, a step of maintenance is left for
    the next time, and an apply prepares its table again. The other arguments are those of
    ``LakeJobOperator``.

    :param tables: tables to maintain by their names at the source, ``["schema.table"]``; None: all.
        (templated)
    :param compact: rewrite data files and manifests. (templated)
    :param compact_options: options of ``rewrite_data_files``, as text:
        ``{"min-input-files": "2", "target-file-size-bytes": "268435456"}``. (templated)
    :param snapshot_retention: a snapshot stays at least for this long; None: no snapshot is expired. A
        snapshot with a tag stays as long as the tag, see ``tag_retention_days`` in
        ``docs/reference/tables.md``.
    :param keep_snapshots: at least this many snapshots stay. (templated)
    :param orphan_retention: files in a table's folders that no snapshot names are removed when they are this
        old, at least a day; None: no such file is removed. Use it only if no table of another namespace or
        catalog has files in these folders: they would be removed.
    """

    ui_color = "#dcebd5"
    operator_extra_links = (SparkApplicationLink(),)

    snapshot_retention: timedelta | None
    orphan_retention: timedelta | None

    def __init__(
        self,
        *,
        tables: Sequence[str] | str | None = None,
        compact: bool | str = True,
        compact_options: Mapping[str, Any] | str | None = None,
        snapshot_retention: timedelta | None = timedelta(days=5),
        keep_snapshots: int | str = 1,
        orphan_retention: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputMaintenanceOperator._MAINTENANCE_ARGUMENTS)

    _MAINTENANCE_ARGUMENTS = arguments.names_of(__init__)
    template_fields: Sequence[str] = (
        *LakeJobOperator.template_fields,
        *arguments.templated_of(__init__),
    )
    template_fields_renderers = {  # noqa: RUF012
        **LakeJobOperator.template_fields_renderers,
        **arguments.renderers_of(__init__),
    }

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Have Spark do it. Return counts by table, and the tables that are not finished."""
        with airflow_outcome(context):
            from airflow_provider_pgoutput.capture.staging.area import StagingArea

            slot_name = arguments.slot_name(self)
            lake = Lake.of(self)
            area = StagingArea(arguments.staging_uri(self))
            job = self.make_job(
                MaintenanceJob,
                context,
                lake,
                area,
                slot_name=slot_name,
                snapshot_retention_seconds=_seconds(self.snapshot_retention),
                orphan_retention_seconds=_seconds(self.orphan_retention),
                **arguments.values_of(self, self._MAINTENANCE_ARGUMENTS, MaintenanceJob),
            )
            began = time.monotonic()
            with log_group(f"Maintain the tables of {lake.namespace} with Spark"):
                result = demanded(self.run_job(context, area, lake, job, _JOB_ID))
        tables, busy = result.get("tables", {}), list(result.get("busy", ()))
        log_tables(tables)
        if busy:
            self.log.warning(
                "Others wrote to these tables meanwhile, so some steps are left for the next time: %s.",
                ", ".join(busy),
            )
        log.info(
            "Maintained %s tables of %s in %.1f s.",
            f"{len(tables):,}",
            lake.namespace,
            time.monotonic() - began,
        )
        return {"schema_version": 1, "slot_name": slot_name, "tables": tables, "busy": busy}


def _seconds(duration: timedelta | None) -> int | None:
    return None if duration is None else int(duration.total_seconds())
