"""What the doctor compares and finds, and which findings are normal while a task runs.

``observe.py`` reads, ``diagnose.py`` compares.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow_provider_pgoutput.batch.lsn import LsnOffset
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.slot.facts import SlotFacts
    from airflow_provider_pgoutput.capture.source.catalog import Server
    from airflow_provider_pgoutput.lake.state import LakeState, Recorded

#: The pipeline goes on by itself. People may want to know of it.
NOTE: Final = "note"
#: The next run fails, or the lake is not what it should be.
PROBLEM: Final = "problem"


#: Operators of a pipeline. The sensor is not among them, because it only waits.
_OPERATORS: Final = frozenset(
    {
        "PgoutputStageOperator",
        "PgoutputAdoptSourceOperator",
        "PgoutputApplyOperator",
        "PgoutputAdvanceSlotOperator",
        "PgoutputReplayOperator",
        "PgoutputMaintenanceOperator",
    }
)
_REPLAY: Final = "PgoutputReplayOperator"
_SENSOR: Final = "PgoutputChangesSensor"


class RunningTask(NamedTuple):
    """A task that Airflow is running."""

    dag_id: str
    task_id: str
    run_id: str
    #: Name of the operator's class.
    operator: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not agree."""

    severity: str
    #: What it is about: ``slot``, ``source``, ``checkpoint``, ``staging`` or a table.
    where: str
    what: str
    #: What to do about it.
    advice: str
    #: Whether ``repair`` does it.
    repairable: bool = False
    #: Whether it is normal for a while in every run.
    in_runs: bool = False
    #: Whether it is normal for a while in a replay in place.
    in_replays: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that is compared, as it was read."""

    slot_name: str
    #: None: the source did not answer. That is a finding already.
    server: Server | None
    slot: SlotFacts | None
    two_phase: bool
    lake: LakeState
    #: The manifests of the slot, in the order of their starts.
    manifests: Sequence[Manifest]
    #: The ids of batches with a file that is missing or has another size.
    incomplete: frozenset[str]
    now: datetime
    #: Whether the staging area was looked at.
    staging_read: bool = True
    #: Tasks of any DAG that were running before anything was read; None: not known.
    running: Sequence[RunningTask] | None = ()

    def as_in_lake(self, name: str, offset: LsnOffset) -> Observed:
        """The same with the server as the lake knows it, see ``Server``, and with its slot.

        The server is as it describes itself before.
        """
        if self.server is None:
            return self
        server, slot = self.server.as_in_lake(name, offset), self.slot
        if server is not self.server and slot is not None:
            confirmed, restart = slot.confirmed_flush_lsn, slot.restart_lsn
            slot = dataclasses.replace(
                slot,
                confirmed_flush_lsn=None if confirmed is None else offset.added_to(confirmed),
                restart_lsn=None if restart is None else offset.added_to(restart),
            )
        return dataclasses.replace(self, server=server, slot=slot)

    @property
    def checkpoint(self) -> Recorded | None:
        """The newest batch that was applied as a whole."""
        whole = [each for each in self.lake.recorded or () if each.table_name is None]
        return max(whole, key=lambda each: each.end_lsn, default=None)

    @property
    def at_work(self) -> tuple[RunningTask, ...]:
        """The running tasks of this pipeline's DAG, if the lake knows it, and running replays."""
        dags = {each.dag_id for each in self.lake.recorded or () if each.dag_id}
        return tuple(
            each
            for each in self.running or ()
            if (each.dag_id in dags and each.operator != _SENSOR)
            or (each.operator in _OPERATORS and (not dags or each.operator == _REPLAY))
        )

    @property
    def unless_at_work(self) -> str:
        """What advice begins with that would be wrong during a run; empty: it is known which tasks run."""
        return "if no run is under way: " if self.running is None else ""

    @property
    def system_identifier(self) -> str | None:
        """The system that the lake was filled from."""
        if self.checkpoint is not None and self.checkpoint.system_identifier is not None:
            return self.checkpoint.system_identifier
        found = {each.system_identifier for each in self.lake.tables}
        return found.pop() if len(found) == 1 else None


def without_work(findings: Sequence[Finding], observed: Observed) -> list[Finding]:
    """The findings without those that running tasks explain. A note says that there are such tasks."""
    if not observed.at_work:
        return list(findings)
    replays = any(each.operator == _REPLAY for each in observed.at_work)
    left = [each for each in findings if not (each.in_runs or (each.in_replays and replays))]
    tasks = ", ".join(f"{each.dag_id}.{each.task_id}" for each in observed.at_work)
    runs = ", ".join(sorted({each.run_id for each in observed.at_work}))
    under_way = Finding(
        NOTE,
        "run",
        f"Airflow has tasks under way: {tasks} ({runs}).",
        "ask again when they have ended. What is normal while they run is left out, and the rest may change.",
    )
    return [under_way, *left]


def all_is_well(observed: Observed) -> str:
    """One sentence for when nothing was found."""
    checkpoint, name = observed.checkpoint, observed.slot_name
    if checkpoint is None:
        return (
            f"Slot {name} is there, and nothing was applied from it yet. If a run applied batches, the"
            " namespace is not that of the pipeline."
        )
    looked = (
        "The staging area does, too" if observed.staging_read else "--staging-uri looks there, too"
    )
    return (
        f"Nothing is wrong: slot {name}, the checkpoint ({checkpoint.end_lsn}) and"
        f" {len(observed.lake.tables)} tables of the lake agree. {looked}."
    )
