"""The steps of a replay: its batches in order, each with the tables to apply it to.

All batches are opened and checked here, before ``replay.py`` writes anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch, open_batch
from airflow_provider_pgoutput.apply.table.target import (
    Target,
    every_target,
    ignores_case,
    refuse_unfit,
    shared,
)
from airflow_provider_pgoutput.errors import (
    BatchGap,
    BatchRefused,
    TableRefused,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ReplayJob
    from airflow_provider_pgoutput.batch.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Step:
    """One batch of a replay and the tables that it is applied to."""

    batch: StagedBatch
    targets: tuple[Target, ...]


def plan_steps(spark: SparkSession, job: ReplayJob) -> list[Step]:
    """Open the batches of a replay and name the targets of each.

    :raises BatchRefused: a batch is damaged or of another slot, or no batch holds a chosen table.
    :raises BatchGap: a batch is missing between two others.
    :raises ConfigurationError: two of the tables have one target.
    :raises TableRefused: a table was renamed at the source and would go to two targets.
    """
    any_case = ignores_case(spark, job.catalog_name)
    batches: list[StagedBatch] = []
    for uri in job.manifest_uris:
        batches.append(open_batch(spark, job, uri))
        if len(batches) > 1:
            _refuse_break(batches[-2].manifest, batches[-1].manifest)
    tables = [table for batch in batches for table in batch.manifest.tables]
    # By OID: a table that was renamed is still one table, and either name may be given.
    chosen = {each.relation_oid for each in tables if each.name in job.tables}
    steps: list[Step] = []
    for batch in batches:
        found = [
            each
            for each in every_target(job, batch.manifest)
            if not job.tables or each.source.relation_oid in chosen
        ]
        if clashing := shared(found, any_case=any_case):
            raise clashing[-1][1]
        steps.append(Step(batch, tuple(found)))
    if not job.catch_up:
        # Of tables that catch up, each is refused on its own.
        for step in steps:
            for target in step.targets:
                refuse_unfit(target, step.batch.manifest)
        _refuse_two_targets(steps)
    seen = {each.name for each in tables}
    if missing := sorted(set(job.tables) - seen):
        raise BatchRefused(
            f"None of the {len(steps)} batches has a change of {', '.join(missing)}.",
            slot=steps[-1].batch.manifest.slot_name,
            advice="check the names, schema.table as at the source, or begin at an earlier LSN.",
        )
    return steps


def _refuse_break(before: Manifest, after: Manifest) -> None:
    if (before.slot_name, before.system_identifier) != (after.slot_name, after.system_identifier):
        raise BatchRefused(
            "The batches are of two slots or of two PostgreSQL systems.",
            slot=after.slot_name,
            lsn=after.start_lsn,
            advice="replay the batches of each on their own.",
        )
    if after.start_lsn > before.end_lsn:
        raise BatchGap(
            f"A batch ends at {before.end_lsn}, the next one starts at {after.start_lsn}.",
            slot=after.slot_name,
            lsn=before.end_lsn,
            advice="bring back the batches between, or begin after them.",
        )


def _refuse_two_targets(steps: list[Step]) -> None:
    """Refuse to write a renamed table into two targets, unless a copy begins the second one."""
    target_of: dict[int, Target] = {}
    for step in steps:
        for target in step.targets:
            before = target_of.get(target.source.relation_oid, target)
            if before.name != target.name and target.source.copy_lsn is None:
                raise TableRefused(
                    f"The table was renamed at the source, from {before.source.name}; its changes would go to"
                    f" {before.name.target} first, and to {target.name.target} then.",
                    table=target.source.name,
                    lsn=step.batch.manifest.start_lsn,
                    advice="give both names the same target in table_options.",
                )
            target_of[target.source.relation_oid] = target


def first_steps(steps: list[Step]) -> dict[str, tuple[Target, Manifest]]:
    """Each table with the first batch in which it appears, by the key of its target's name."""
    found: dict[str, tuple[Target, Manifest]] = {}
    for step in steps:
        for target in step.targets:
            found.setdefault(target.name.key, (target, step.batch.manifest))
    return found
