"""The operator that applies staged batches of the past again. It reads no slot.

``capture/staging/archive.py`` finds the batches. ``apply/replay.py`` is what Spark does with them.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import ReplayJob
from airflow_provider_pgoutput.batch.xcom import MOST_TABLES
from airflow_provider_pgoutput.errors import (
    BatchGap,
    BatchRefused,
    ConfigurationError,
    LakeUnavailable,
)
from airflow_provider_pgoutput.links.pipeline import SparkApplicationLink
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
    from airflow_provider_pgoutput.batch.set_aside import SetAside
    from airflow_provider_pgoutput.capture.staging.archive import ArchivedBatch
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

log = logging.getLogger(__name__)

#: How often a replay goes on with what the pipeline applied to the other tables meanwhile.
_MOST_ROUNDS = 10


class PgoutputReplayOperator(SparkApplyOperator):
    """Apply staged batches again from an LSN on, and return what was done.

    Without ``from_lsn`` tables that are set aside come back: they get the batches that they lack. The
    pipeline may run meanwhile. If the cause is still there for a table, that table stays set aside, the
    others come back, and the task fails.

    With ``from_lsn`` and without ``target_namespace`` the tables are rebuilt in place. They go back to where
    they were at ``from_lsn``, and then forward to where the lake is. This undoes what others wrote to them
    since. (With ``soft_delete``, and if the replay begins with a copy, rows of others are marked as deleted.)
    Pause the pipeline's DAG meanwhile. A run of it would be refused, and nothing would be lost.

    With ``target_namespace`` the batches go into tables of that namespace, in any mode. Missing tables are
    created. For a table in mode ``upsert`` the replay must begin with the batch that holds the table's copy.

    Batches are applied whole. The first one holds ``from_lsn``, and the last one does not go past ``to_lsn``.
    Gaps, damaged files and missing copies are refused before anything is written. After a failure run the
    task again. It goes on where it stopped, or begins again where that is safe. The other arguments are those
    of ``SparkApplyOperator``.

    :param from_lsn: where to begin, as PostgreSQL writes it: ``16/B374D848``; None: bring back the tables
        that are set aside. If there is none, the task fails. (templated)
    :param to_lsn: where to end, only with ``target_namespace``; None: at the newest batch, or in place at the
        lake's checkpoint. (templated)
    :param tables: tables to replay by their names at the source, ``["schema.table"]``; None: with
        ``from_lsn`` all tables of the batches, without it all that are set aside. (templated)
    :param target_namespace: namespace to write to; None: the pipeline's own. (templated)
    """

    ui_color = "#f3d9f0"
    operator_extra_links = (SparkApplicationLink(),)

    from_lsn: str | None
    to_lsn: str | None
    tables: Sequence[str] | str | None
    target_namespace: str | None

    def __init__(
        self,
        *,
        from_lsn: str | None = None,
        to_lsn: str | None = None,
        tables: Sequence[str] | str | None = None,
        target_namespace: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputReplayOperator._REPLAY_ARGUMENTS)

    _REPLAY_ARGUMENTS = arguments.names_of(__init__)
    template_fields: Sequence[str] = (*SparkApplyOperator.template_fields, *_REPLAY_ARGUMENTS)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]
        """Choose the batches and have Spark apply them."""
        with airflow_outcome(context):
            slot_name = arguments.slot_name(self)
            lake = Lake.of(self)
            from airflow_provider_pgoutput.capture.staging.area import StagingArea

            area = StagingArea(arguments.staging_uri(self))
            tables = arguments.optional_text_list(self.tables, "tables")
            if arguments.lsn(self.from_lsn, "from_lsn") is None:
                return self._bring_back(context, area, lake, slot_name, tables)
            from_lsn, to_lsn = self._range()
            batches = self._batches(area, lake, slot_name, from_lsn, to_lsn)
            target = arguments.optional_text(self.target_namespace)
            return self._replay(
                context,
                area,
                lake,
                batches,
                tables=tables,
                in_place=target is None,
                target=target,
            )

    def _bring_back(
        self,
        context: Context,
        area: StagingArea,
        lake: Lake,
        slot_name: str,
        tables: tuple[str, ...],
    ) -> dict[str, Any]:
        """Apply to tables that are set aside what they lack, also what the pipeline stages meanwhile."""
        if arguments.optional_text(self.target_namespace) or arguments.optional_text(self.to_lsn):
            raise ConfigurationError(
                "The argument from_lsn is missing.",
                slot=slot_name,
                advice="give from_lsn; or, to bring back tables that are set aside, leave target_namespace"
                " and to_lsn out, too.",
            )
        checkpoint = self._checkpoint(lake, slot_name)
        waiting = _chosen(checkpoint, tables)
        if not waiting:
            raise ConfigurationError(
                f"Of the tables {', '.join(tables)}, none is set aside."
                if tables
                else "No table is set aside.",
                slot=slot_name,
                advice="give from_lsn to apply batches again to tables that have them.",
            )
        result: dict[str, Any] = {}
        waiting, lost = self._without_lost(area, checkpoint, slot_name, waiting)
        for _ in range(_MOST_ROUNDS):
            if not waiting:
                break
            from_lsn = min(each.replay_lsn for each in waiting)
            batches = self._until_checkpoint(area, checkpoint, slot_name, from_lsn)
            names = tuple(sorted(each.table_name for each in waiting))
            self.log.info("Set aside, and brought back now: %s.", ", ".join(names))
            result = self._replay(
                context, area, lake, batches, tables=names, in_place=True, catch_up=True
            )
            checkpoint = self._checkpoint(lake, slot_name)
            still = {each.relation_oid for each in waiting}
            waiting = [
                each
                for each in checkpoint.set_aside.values()
                if each.relation_oid in still and not each.needs_copy
            ]
            if waiting:
                self.log.info("The pipeline applied another batch meanwhile: going on with it.")
        if lost is not None:
            raise lost
        if not waiting:
            return result
        raise LakeUnavailable(
            f"The pipeline applies batches faster than these tables get them: "
            f"{', '.join(each.table_name for each in waiting)}.",
            slot=slot_name,
            advice="nothing; the next try goes on where this one ended. If it lasts, pause the pipeline's DAG"
            " meanwhile.",
        )

    def _without_lost(
        self, area: StagingArea, checkpoint: Checkpoint, slot_name: str, waiting: list[SetAside]
    ) -> tuple[list[SetAside], BatchGap | None]:
        """The tables whose batches are all staged, and the error that names the others."""
        found: list[SetAside] = []
        lost = [each for each in waiting if each.needs_copy]
        reason = "the stage task set tables aside, and did not stage their changes." if lost else ""
        staged = [each for each in waiting if not each.needs_copy]
        for since in sorted({each.replay_lsn for each in staged}):
            tables = [each for each in staged if each.replay_lsn == since]
            try:
                self._until_checkpoint(area, checkpoint, slot_name, since)
            except (BatchGap, BatchRefused) as error:
                reason = reason or error.message
                lost += tables
            else:
                found += tables
        if not lost:
            return found, None
        names = ", ".join(sorted(each.table_name for each in lost))
        return found, BatchGap(
            f"The batches that {names} lack are not whole: {reason}",
            slot=slot_name,
            lsn=min(each.since_lsn for each in lost),
            advice="copy these tables again (copy_tables), or bring the batches back from a backup.",
        )

    def _replay(
        self,
        context: Context,
        area: StagingArea,
        lake: Lake,
        batches: Sequence[ArchivedBatch],
        *,
        tables: tuple[str, ...],
        in_place: bool,
        catch_up: bool = False,
        target: str | None = None,
    ) -> dict[str, Any]:
        """Have Spark apply batches, and return what the task returns."""
        job = self.make_job(
            ReplayJob,
            context,
            lake if target is None else dataclasses.replace(lake, namespace=target),
            area,
            manifest_uris=tuple(each.manifest_uri for each in batches),
            tables=tables,
            in_place=in_place,
            catch_up=catch_up,
        )
        changes = sum(each.changes for each in batches)
        what = (
            f"{len(batches)} batches from {batches[0].start_lsn} to {batches[-1].end_lsn} with {changes:,}"
            f" changes {'in place' if target is None else f'into namespace {target}'}"
        )
        self.log.info("Replay %s.", what)
        began = time.monotonic()
        with log_group(f"Replay {len(batches)} batches with Spark"):
            result = demanded(self.run_job(context, area, lake, job, batches[-1].batch_id))
        seconds = time.monotonic() - began
        log.info(
            "Replayed %s, in %.1f s (%s changes/s).", what, seconds, f"{changes / seconds:,.0f}"
        )
        return {
            "schema_version": 1,
            "slot_name": arguments.slot_name(self),
            "start_lsn": str(batches[0].start_lsn),
            "end_lsn": str(batches[-1].end_lsn),
            "batches": len(batches),
            "namespace": job.namespace,
            "snapshots": dict(islice(result.get("published", {}).items(), MOST_TABLES)),
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
                " lack changes for good.",
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
        if arguments.optional_text(self.target_namespace) is not None:
            from airflow_provider_pgoutput.capture.staging.archive import batches_between

            known = lake.checkpoint(slot_name)
            _refuse_across_adoption(known, slot_name, from_lsn)
            system = known.system_identifier if known else None
            return batches_between(area, slot_name, from_lsn, to_lsn, system)
        checkpoint = self._checkpoint(lake, slot_name)
        _refuse_across_adoption(checkpoint, slot_name, from_lsn)
        if from_lsn >= checkpoint.end_lsn:
            raise ConfigurationError(
                f"from_lsn {from_lsn} is not before the lake's checkpoint {checkpoint.end_lsn}.",
                slot=slot_name,
                advice="give an earlier LSN; the apply task applies what is past the checkpoint.",
            )
        return self._until_checkpoint(area, checkpoint, slot_name, from_lsn)

    def _checkpoint(self, lake: Lake, slot_name: str) -> Checkpoint:
        checkpoint = lake.checkpoint(slot_name)
        if checkpoint is None:
            raise ConfigurationError(
                f"The lake has no checkpoint of the slot in namespace {lake.namespace}, so it is not known"
                " how far its tables are.",
                slot=slot_name,
                advice="check the namespace; `pgoutput doctor --repair` rebuilds a lost checkpoint;"
                " or name another namespace in target_namespace.",
            )
        return checkpoint

    def _until_checkpoint(
        self, area: StagingArea, checkpoint: Checkpoint, slot_name: str, from_lsn: Lsn
    ) -> list[ArchivedBatch]:
        """The batches up to the checkpoint. The next run of the pipeline applies the sealed ones past it."""
        from airflow_provider_pgoutput.capture.staging.archive import batches_between

        end, system = checkpoint.end_lsn, checkpoint.system_identifier
        batches = batches_between(area, slot_name, from_lsn, end, system)
        if batches[-1].end_lsn != end:
            raise BatchGap(
                f"The staged batches end at {batches[-1].end_lsn}, the lake is at {end}.",
                slot=slot_name,
                lsn=batches[-1].end_lsn,
                advice="restore the missing batches from a backup; or copy the tables again (copy_tables).",
            )
        return batches


def _refuse_across_adoption(checkpoint: Checkpoint | None, slot_name: str, from_lsn: Lsn) -> None:
    """Refuse to begin with batches of a system that another one has replaced as the source.

    :raises ConfigurationError: ``from_lsn`` lies before the LSN at which the newest system was adopted.
    """
    adopted_at = checkpoint.systems.adopted_at if checkpoint else None
    if adopted_at is not None and from_lsn < adopted_at:
        raise ConfigurationError(
            f"from_lsn is {from_lsn}, and at {adopted_at} the lake adopted another system as its source. A"
            " replay does not go across that.",
            slot=slot_name,
            lsn=from_lsn,
            advice=f"give {adopted_at} or a later LSN. Tags show the tables as they were before.",
        )


def _chosen(checkpoint: Checkpoint, tables: tuple[str, ...]) -> list[SetAside]:
    """The tables that are set aside, or those of them that are named."""
    return [
        each for each in checkpoint.set_aside.values() if not tables or each.table_name in tables
    ]
