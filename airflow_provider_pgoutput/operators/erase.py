"""The operator that erases rows of given keys from everything that the pipeline keeps."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.jobs import ErasureJob
from airflow_provider_pgoutput.errors import ConfigurationError, SlotBusy
from airflow_provider_pgoutput.hooks.connections import secret_of
from airflow_provider_pgoutput.links.pipeline import SparkApplicationLink
from airflow_provider_pgoutput.spark_submit.operator import LakeJobOperator
from airflow_provider_pgoutput.spark_submit.result import demanded
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.task_run import log_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.erasure.claim import ErasureClaim
    from airflow_provider_pgoutput.erasure.rows import AskedTable
    from airflow_provider_pgoutput.erasure.staged import StagedErasure

log = logging.getLogger(__name__)

_JOB_ID = "erasure"
#: A batch with the rows may be sealed while the task works. Then the task begins anew, but not for ever.
_ROUNDS = 3
#: What the pipeline does not have in its hands.
_NOT_OURS = (
    "the source: its rows, its WAL, its backups",
    "backups and older versions of objects, if the buckets of lake and staging area keep any",
    "Spark's event logs and Airflow's database, which have the keys that this task was given",
    "namespaces that a replay filled, and tables that others made of these",
)


class PgoutputEraseOperator(LakeJobOperator):
    """Erase the rows of given keys from the lake and from the staged batches, and report what remains.

    Use it when a person must be forgotten, after the rows were deleted at the source and the pipeline has
    applied that. The rows go from the tables, also those that are marked as deleted, from change logs, from
    the pipeline's own tables, and from all staged batches. Files that had them are written anew, and the old
    ones are deleted. So the tables cannot be read any more as they were before. The pipeline goes on
    afterwards. See ``docs/how-to/erase_rows.md``. The other arguments are those of ``LakeJobOperator``.

    :param rows: by the names of their tables at the source, the keys of the rows:
        ``{"public.customers": [{"id": 7}]}``. Each key gives all columns of the table's key, as JSON values
        or as texts that PostgreSQL prints. If a table has no key, any columns. If a row had several keys over
        time, all of them have to be named. (templated)
    :param confirmation: the slot's name again. The person who starts the run types it, for instance as
        ``"{{ params.confirmation }}"``. Any other text erases nothing. (templated)
    :param mask_conn_id: if a key is hashed: the ``mask_conn_id`` of the stage task. The keys in ``rows`` are
        plain. (templated)
    """

    ui_color = "#f0c8c0"
    operator_extra_links = (SparkApplicationLink(),)

    rows: Mapping[str, Any] | str
    confirmation: str | None
    mask_conn_id: str | None

    def __init__(
        self,
        *,
        rows: Mapping[str, Any] | str,
        confirmation: str | None = None,
        mask_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputEraseOperator._ERASURE_ARGUMENTS)

    _ERASURE_ARGUMENTS = arguments.names_of(__init__)
    template_fields: Sequence[str] = (*LakeJobOperator.template_fields, *_ERASURE_ARGUMENTS)
    template_fields_renderers = {  # noqa: RUF012
        **LakeJobOperator.template_fields_renderers,
        **arguments.renderers_of(__init__),
    }

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Erase the rows. Return counts by place, and what remains. No key and no value is in it."""
        with airflow_outcome(context):
            report = self._erase(context)
        for place, counts in {"staging area": report["staged"], **report["tables"]}.items():
            log.info("%s: %s", place, counts)
        for place, texts in report["remains"].items():
            for text in texts:
                log.warning("%s: there remain %s.", place, text)
        log.info("Not looked at: %s.", "; ".join(_NOT_OURS))
        return report

    def _erase(self, context: Context) -> dict[str, Any]:
        from airflow_provider_pgoutput.capture.staging.area import StagingArea
        from airflow_provider_pgoutput.erasure.claim import claimed
        from airflow_provider_pgoutput.erasure.rows import asked_tables

        slot_name = arguments.slot_name(self)
        rows = arguments.mapping(self.rows, "rows")
        if arguments.optional_text(self.confirmation) != slot_name:
            raise ConfigurationError(
                "Nothing was erased: the confirmation is not the slot's name.",
                slot=slot_name,
                advice="type the name of the slot as the confirmation.",
            )
        area, lake = StagingArea(arguments.staging_uri(self)), Lake.of(self)
        checkpoint = lake.checkpoint(slot_name)
        if checkpoint is None:
            raise ConfigurationError(
                "The lake has no checkpoint of this slot.",
                slot=slot_name,
                advice="name slot and namespace of the pipeline, and let it apply its first batch.",
            )
        secret = secret_of(arguments.optional_text(self.mask_conn_id))
        asked = asked_tables(rows, checkpoint, secret)
        with claimed(area, slot_name) as claim:
            staged, result = self._in_rounds(context, lake, claim, asked)
        self._warn_of(result["tables"])
        remains = {"staging area": staged[-1].remains, **result["remains"]}
        return {
            "schema_version": 1,
            "slot_name": slot_name,
            "checkpoint_lsn": str(checkpoint.end_lsn),
            "tables": result["tables"],
            "staged": {
                "batches": staged[-1].batches,
                "rewritten": sum(each.rewritten for each in staged),
                "rows_erased": sum(each.rows for each in staged),
                "copies_given_up": sum(each.copies for each in staged),
            },
            "remains": {place: texts for place, texts in remains.items() if texts},
            "not_ours": list(_NOT_OURS),
        }

    def _in_rounds(
        self, context: Context, lake: Lake, claim: ErasureClaim, asked: Sequence[AskedTable]
    ) -> tuple[list[StagedErasure], dict[str, Any]]:
        """Erase until no batch with the rows was sealed meanwhile.

        :return: what was found in the staging area each time, and Spark's last result.
        """
        from airflow_provider_pgoutput.erasure.rows import in_lake
        from airflow_provider_pgoutput.erasure.staged import erase_staged

        staged: list[StagedErasure] = []
        for _ in range(_ROUNDS):
            # Before the staged batches: an unknown column changes nothing.
            tables = in_lake(asked, lake.tables(claim.slot_name))
            staged.append(erase_staged(claim, asked))
            job = self.make_job(
                ErasureJob,
                context,
                lake,
                claim.area,
                slot_name=claim.slot_name,
                tables=tables,
                claim=claim.token,
            )
            result = self._erase_in_lake(context, lake, claim, job)
            staged.append(erase_staged(claim, asked))
            if not staged[-1].rows:
                return staged, result
            log.info("A batch with some of the rows was sealed meanwhile: once more.")
        raise SlotBusy(
            "Batches with the rows are sealed again and again.",
            slot=claim.slot_name,
            advice="delete the rows at the source first, and wait until the pipeline has applied that.",
        )

    def _erase_in_lake(
        self, context: Context, lake: Lake, claim: ErasureClaim, job: ErasureJob
    ) -> dict[str, Any]:
        """Have Spark do its part. The file of the job has the keys, so it goes afterwards."""
        area = claim.area
        with log_group(f"Erase rows of {lake.namespace} with Spark"):
            try:
                return demanded(self.run_job(context, area, lake, job, _JOB_ID))
            finally:
                # Also those of tasks that were killed. Those of a newer erasure are in use.
                entries = area.entries(layout.plan_folder(job.slot_name)) if claim.holds else []
                for entry in entries:
                    if entry.name.startswith(f"{_JOB_ID}-"):
                        area.delete_file(entry.path)

    def _warn_of(self, tables: Mapping[str, Mapping[str, int]]) -> None:
        """Warn of rows that may come back, or of which a part remains."""
        for target, counts in tables.items():
            if counts.get("still_current"):
                log.warning(
                    "%s still showed %d of the rows. If the source has them, the next update or copy brings"
                    " them back. If the source has deleted them and the pipeline has not read that yet, run"
                    " this task again after the next batch.",
                    target,
                    counts["still_current"],
                )
            if counts.get("moved"):
                log.warning(
                    "%s had %d changes that gave one of the rows another key, or came from one, and rows"
                    " does not name that key. Run this task with all keys that the row ever had.",
                    target,
                    counts["moved"],
                )
            if counts.get("without_key"):
                log.warning(
                    "%s has %d rejected values of tables without a key. Nobody can tell whose they are.",
                    target,
                    counts["without_key"],
                )
