"""The product with one safeguard taken out: each of these the simulation has to find.

A mutant is a defect put in on purpose, in the product's own code and not in a double. What is not here: how
soon each is found (``test_simulation.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply import pipeline, publish
from airflow_provider_pgoutput.apply.iceberg.publication import MAIN
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.refused import RefusedTables
from airflow_provider_pgoutput.apply.rows import branch as branching
from airflow_provider_pgoutput.apply.rows import prepare as preparing
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.start import start
from airflow_provider_pgoutput.capture import pipeline as staging
from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.capture.staging import retention
from airflow_provider_pgoutput.lake import checkpoint as lake_checkpoint
from airflow_provider_pgoutput.tasks import received_batch
from tests.simulation.quarantine import RowNotes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def _instead(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    kept = owner.__dict__[name]
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def advance_to_the_end_of_the_batch() -> Any:
    """The slot goes where the batch of the run ends, applied or not."""
    real = received_batch.confirmable

    def confirmable(_slot: str, found: Any, batch: Any) -> Any:
        if found is None or batch is None:
            return real(_slot, found, batch)
        return dataclasses.replace(found, end_lsn=batch.end_lsn)

    return _instead(received_batch, "confirmable", confirmable)


def publish_without_the_fence() -> Any:
    """The branch becomes main, whatever main is by then."""

    def publish(self: Any, branch: str, _base: Any, head: int, manifest: Any, *_: Any) -> int:
        transaction = self.java.newTransaction()
        change = transaction.manageSnapshots().replaceBranch(MAIN, head)
        if branch in self.java.refs():
            change.removeBranch(branch)
        change.commit()
        self._commit(transaction.commitTransaction)
        return head

    return _instead(IcebergTable, "publish", publish)


def prepare_on_another_head() -> Any:
    """Nobody looks whether main moved between the decision and the branch."""
    real = branching.Preparation._make_branch

    def make_branch(self: Any) -> Any:
        table = IcebergTable.load(self.spark, self.target.name)
        self.start = dataclasses.replace(self.start, head=table.head if table else None)
        return real(self)

    stack = contextlib.ExitStack()
    stack.enter_context(_instead(branching.Preparation, "_refuse_moved", lambda *_: None))
    stack.enter_context(_instead(branching.Preparation, "_make_branch", make_branch))
    return stack


def record_before_publishing() -> Any:
    """The checkpoint is written before the tables are."""
    real = pipeline.write_tables

    def write_tables(
        sessions: Any, batch: Any, todo: Any, starts: Any, progress: Any, work: Any, *more: Any
    ) -> Any:
        checkpoint.record(sessions.spark, batch.job, batch.manifest, [], rows=work.checkpoint)
        return real(sessions, batch, todo, starts, progress, work, *more)

    return _instead(pipeline, "write_tables", write_tables)


def prepare_again_without_a_look() -> Any:
    """After a lost answer the batch is taken for missing, and prepared again in full."""

    def floor_of_before(spark: Any, target: Any, manifest: Any, progress: Any) -> Any:
        found = start(spark, target, manifest, progress)
        return dataclasses.replace(found, floor=manifest.start_lsn, done=False)

    stack = contextlib.ExitStack()
    stack.enter_context(_instead(publish, "_holds", lambda *_: False))
    stack.enter_context(_instead(publish, "start", floor_of_before))
    return stack


def forget_what_the_slot_has_passed() -> Any:
    """A sealed batch that only the staging area still holds is not looked for."""
    return _instead(staging, "find_bridge", lambda *_: None)


def move_the_slot_over_the_first_batch() -> Any:
    """The slot is moved after every stage run, also where the lake has nothing yet."""
    real = staging.stage_in

    def stage_in(source: Any, rows: Any) -> Any:
        sealed = real(source, rows)
        if source.request.advance == AFTER_STAGE:
            source.confirm(sealed[0].end_lsn)
        return sealed

    return _instead(staging, "stage_in", stage_in)


def try_a_table_that_lacks_a_batch() -> Any:
    """A table that is set aside gets later batches, and not those before them."""
    return _instead(RefusedTables, "_needs_no_earlier_batch", lambda *_: True)


def record_no_refusal() -> Any:
    """The checkpoint says nothing of the tables that did not get the batch."""
    real = checkpoint.record

    def record(*arguments: Any, **named: Any) -> None:
        real(*arguments, **{**named, "set_aside": ()})

    return _instead(checkpoint, "record", record)


def prune_what_a_table_lacks() -> Any:
    """The staging area keeps no batch for a table that is set aside."""
    return _instead(retention, "_lacked_from", lambda *_: None)


def stage_what_follows_a_gap() -> Any:
    """A table that the stage task set aside is staged again from the next batch on."""
    return _instead(lake_checkpoint, "_passed_over", lambda *_: {})


def publish_without_entries() -> Any:
    """A row that is not written is noted nowhere."""
    real = preparing.prepare

    def prepare(*arguments: Any, **named: Any) -> Any:
        prepared = real(*arguments, **named)
        return None if prepared is None else dataclasses.replace(prepared, notes=None)

    return _instead(preparing, "prepare", prepare)


def replace_no_entries() -> Any:
    """An attempt notes a row in addition to what the attempt before it noted."""
    return _instead(RowNotes, "_keep", lambda *_: None)


MUTANTS: tuple[Callable[[], Any], ...] = (
    advance_to_the_end_of_the_batch,
    publish_without_the_fence,
    prepare_on_another_head,
    record_before_publishing,
    prepare_again_without_a_look,
    forget_what_the_slot_has_passed,
    move_the_slot_over_the_first_batch,
    try_a_table_that_lacks_a_batch,
    record_no_refusal,
    prune_what_a_table_lacks,
    stage_what_follows_a_gap,
    publish_without_entries,
    replace_no_entries,
)
