"""All that is outside of the processes, and what they do: one world per run. The tasks are the product's.

What of a task is Airflow's own (operators, connections, XCom's transport, spark-submit) is left out: a task
here is what the operator's ``execute`` does between the doors. What is not here: who runs when (``run.py``).
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_pgoutput.apply import pipeline as applying
from airflow_provider_pgoutput.apply import replay as replaying
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT, CHECKPOINT_TABLE, marker_of
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, ApplyJob, ReplayJob, TableOptions
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.capture import advance as advancing
from airflow_provider_pgoutput.capture import pipeline as staging
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.retention import prune
from airflow_provider_pgoutput.errors import (
    BatchGap,
    BatchRefused,
    LakeUnavailable,
    SourceUnavailable,
)
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint, checkpoint_of
from airflow_provider_pgoutput.lake.checkpoint_rows import row_of_empty_batch
from airflow_provider_pgoutput.tasks import received_batch
from tests.simulation.iceberg import MAIN, Catalog
from tests.simulation.java import JavaError
from tests.simulation.scheduler import Scheduler
from tests.simulation.source import SLOT, MovedSlot, Rows, SimulatedSource, Source
from tests.simulation.spark import WORK, Session
from tests.simulation.spark import Context as SparkContext
from tests.simulation.store import URI, Area

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.set_aside import SetAside
    from airflow_provider_pgoutput.capture.staging.archive import ArchivedBatch

NAMESPACE = "ns"
CHECKPOINT_NAME = f"`lake`.`{NAMESPACE}`.`{CHECKPOINT_TABLE}`"
TARGETS = {name: f"`lake`.`{NAMESPACE}`.`{name}`" for name in ("accounts", "journal", "events")}
_SELECTED = (
    *("system_identifier", "start_lsn", "end_lsn", "table_name", "relation_oid", "target"),
    *("batch_id", "columns", "passed_over", "set_aside"),
)
#: As often the replay task looks for batches that the pipeline applied meanwhile.
_MOST_ROUNDS = 3
_FAILURE = "org.apache.iceberg.exceptions.ServiceUnavailableException"
_UNKNOWN = "org.apache.iceberg.exceptions.CommitStateUnknownException"

#: What a write may meet: it is refused, it is done and the answer is lost, it is lost itself.
FAULTS = ("refused", "unanswered", "lost")


class World:
    """The source, the staging area and the lake, and the processes of one pipeline."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.area = Area(self)
        self.source = Source(self)
        self.catalog = Catalog(self)
        self.spark = SparkContext(self)
        #: Where each table goes. A change log may begin anew elsewhere.
        self.targets = dict(TARGETS)
        self._checkpoint: tuple[Any, Checkpoint | None] = ((), None)

    def step(self, what: str) -> None:
        """Something that others may see is about to be done, or looked at."""
        self.scheduler.step(what)

    @contextlib.contextmanager
    def write(self, what: str, where: str) -> Iterator[None]:
        """Something is changed; it may be refused, done without an answer, or lost."""
        self.step(what)
        process = self.scheduler.current
        fault = None
        if process is not None:
            fault, process.fault = process.fault, None
            if fault is not None:
                self.scheduler.steps.append((process.name, f"  {fault}"))
        if fault == "refused":
            raise self.unavailable(where)
        if fault == "lost":
            raise self.unknown(where)
        yield
        if fault == "unanswered":
            raise self.unknown(where)

    def unavailable(self, where: str) -> Exception:
        """What one gets when something was not done."""
        if where == "catalog":
            return JavaError(_FAILURE)
        kind = SourceUnavailable if where == "source" else LakeUnavailable
        return kind("It did not answer.")

    def unknown(self, where: str) -> Exception:
        """What one gets when nobody says whether something was done."""
        return JavaError(_UNKNOWN) if where == "catalog" else self.unavailable(where)

    def recorded(self, name: str = CHECKPOINT_NAME) -> tuple[Any, ...]:
        """The rows of the checkpoint table."""
        self.step("read the checkpoint table")
        found = self.catalog.tables.get(name)
        return () if found is None or found.main is None else found.main.rows or ()

    def checkpoint(self) -> Checkpoint | None:
        """See ``read_checkpoint``: what the rows mean is the product's."""
        rows = self.recorded()
        if not rows:
            return None
        # The same rows mean the same.
        if rows is not self._checkpoint[0]:
            self._checkpoint = rows, self._meaning(rows)
        return self._checkpoint[1]

    def _meaning(self, rows: Any) -> Checkpoint | None:
        schema = pa.schema(
            [(name, pa.int64() if name == "relation_oid" else pa.string()) for name in _SELECTED]
        )
        columns = {name: [row[name] for row in rows] for name in _SELECTED}
        return checkpoint_of(pa.table(columns, schema), NAMESPACE, SLOT)

    # The tasks.

    def stage(self, **options: Any) -> Any:
        """``PgoutputStageOperator``."""
        request = CaptureRequest(
            conninfo="",
            slot_name=SLOT,
            publication_names=("p",),
            staging_uri=URI,
            checkpoint=self.checkpoint(),
            **options,
        )
        server = self.source.server()
        return batch_xcom(*staging.stage_in(SimulatedSource(self, request, server), Rows(self))[:3])

    def apply(self, xcom: Any, **options: Any) -> None:
        """``PgoutputApplyOperator`` and the job that it starts."""
        batch = received_batch.ReceivedBatch.required(xcom, SLOT)
        before = self.checkpoint()
        if batch.is_applied(before):
            return
        manifest = batch.read_manifest(self.area)
        plan = ApplyJob(manifest_uri=batch.manifest_uri, **self._of_job(), **options)
        if before is not None and received_batch.moves_checkpoint_only(manifest, before):
            self._record(row_of_empty_batch(plan, manifest), manifest)
        else:
            session: Any = Session(self.spark, None)
            applying.apply_batch(session, plan, WORK)
        batch.demand_applied(self.checkpoint())

    def _of_job(self) -> dict[str, Any]:
        journal = self.targets["journal"].split(".")[-1].strip("`")
        return {
            "staging_uri": URI,
            "catalog_name": "lake",
            "namespace": NAMESPACE,
            "table_options": {"public.journal": TableOptions(target=journal, mode=CHANGE_LOG)},
            "parallel_tables": 1,
        }

    def bring_back(self, **options: Any) -> None:
        """``PgoutputReplayOperator`` without ``from_lsn``, and the job that it starts."""
        for _ in range(_MOST_ROUNDS):
            checkpoint = self.checkpoint()
            if checkpoint is None:
                return
            waiting = [each for each in checkpoint.set_aside.values() if not each.needs_copy]
            staged = [each for each in waiting if self._batches_of(checkpoint, each)]
            if not staged:
                if waiting:
                    raise BatchGap("The batches are not staged any more.", slot=SLOT, advice="-")
                return
            first = min(staged, key=lambda each: each.replay_lsn)
            job = ReplayJob(
                manifest_uris=tuple(
                    each.manifest_uri for each in self._batches_of(checkpoint, first)
                ),
                tables=tuple(sorted(each.table_name for each in staged)),
                in_place=True,
                catch_up=True,
                **self._of_job(),
                **options,
            )
            session: Any = Session(self.spark, None)
            replaying.replay(session, job, WORK)

    def _batches_of(self, checkpoint: Checkpoint, table: SetAside) -> list[ArchivedBatch]:
        """The batches that a table lacks; none: they are not all staged."""
        end, system = checkpoint.end_lsn, checkpoint.system_identifier
        try:
            found = batches_between(self.area, SLOT, table.replay_lsn, end, system)
        except (BatchGap, BatchRefused):
            return []
        return found if found[-1].end_lsn == end else []

    def _record(self, row: Any, manifest: Manifest) -> None:
        """``append_rows`` of pyiceberg, whose errors the product turns into one of its own."""
        whole = {name: row.get(name) for name, _ in CHECKPOINT}
        try:
            self.catalog.commit_rows(
                CHECKPOINT_NAME, MAIN, lambda rows: (*(rows or ()), whole), marker_of(manifest)
            )
        except JavaError as error:
            raise LakeUnavailable("The lake cannot be written.") from error

    def advance(self, xcom: Any) -> None:
        """``PgoutputAdvanceSlotOperator``."""
        found = self.checkpoint()
        batch = received_batch.ReceivedBatch.optional(xcom, SLOT)
        checkpoint = received_batch.confirmable(SLOT, found, batch)
        slot = MovedSlot(self.source)
        advancing.move_slot(slot, checkpoint.end_lsn, checkpoint.system_identifier)

    def prune(self, *, expired: bool = False) -> None:
        """``PgoutputPruneStagingOperator``, with a ``staging_retention`` that is over for everything.

        :param expired: ``set_aside_retention`` is over, too.
        """
        checkpoint, now = self.checkpoint(), datetime.now(UTC)
        if checkpoint is not None:
            older_than = now if expired else None
            prune(self.area, SLOT, checkpoint, older_than=now, set_aside_older_than=older_than)
