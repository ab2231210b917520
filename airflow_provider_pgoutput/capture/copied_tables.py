"""Which tables a run copies, and which it refuses before it reads a row.

Each function returns the run with the tables that it refused, and the tables to copy. ``membership.py``
compares what is published with what the lake has.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.capture.membership import tables_to_copy, without_ignored
from airflow_provider_pgoutput.capture.request import ALWAYS
from airflow_provider_pgoutput.capture.staging.manifests import find_sealed
from airflow_provider_pgoutput.errors import MissingPrivilege, SnapshotLost, SourceLocked

if TYPE_CHECKING:
    from typing import TypeAlias

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.run import Run
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

    Tables: TypeAlias = tuple[PublishedTable, ...]

#: Errors of tables that are set aside, which may be gone in a later run.
_PASSING = frozenset(each.__name__ for each in (MissingPrivilege, SnapshotLost, SourceLocked))


def of_first_batch(run: Run) -> tuple[Run, Tables]:
    """The tables of a first batch: all of them, unless ``initial_copy`` is ``never``."""
    return may_copy(run, run.facts.tables if run.request.initial_copy == ALWAYS else ())


def of_loaded_lake(run: Run) -> tuple[Run, Tables]:
    """The tables of a first batch with ``initial_copy="never"``: those that ``copy_tables`` names."""
    tables, refused = tables_to_copy(run.facts.tables, None, run.request, run.refused)
    return may_copy(run.refusing(refused), tables)


def of_next_batch(run: Run, checkpoint: Checkpoint, gaps: frozenset[int]) -> tuple[Run, Tables]:
    """The tables of a batch that follows the checkpoint.

    :param gaps: OIDs of tables that the publications lacked for a while.
    """
    run, tables = _asked_or_new(run, checkpoint, gaps)
    altered = run.source.altered_tables(run.facts)
    run = _with_followed(run, checkpoint, gaps | {each.relation_oid for each in altered})
    tables = _united(tables, _waiting_copies(run, checkpoint.end_lsn))
    tables = _united(tables, altered)
    tables = _united(tables, _tried_again(run, checkpoint))
    return may_copy(run, tables)


def of_batch_read_again(
    run: Run, checkpoint: Checkpoint, gaps: frozenset[int]
) -> tuple[Run, Tables]:
    """The tables of a batch that starts before the checkpoint.

    :param gaps: see ``of_next_batch``.
    """
    gaps |= checkpoint.copied_by_itself
    run, tables = _asked_or_new(run, checkpoint, gaps)
    return may_copy(_with_followed(run, checkpoint, gaps), tables)


def after_loss(run: Run, checkpoint: Checkpoint) -> tuple[Run, Tables]:
    """The tables that are copied, or compared with the lake, after a lost slot: all that are published."""
    tables, refused = without_ignored(run.facts.tables, checkpoint, run.request, run.refused)
    # All of them are taken, so the tables of this result are not used. The call refuses tables that were
    # dropped and made again.
    request = run.request
    if request.adopted_system is not None:
        # A table of another system may have another OID and is the same table to the user.
        request = dataclasses.replace(request, on_recreated_table=COPY)
    _, refused = tables_to_copy(tables, checkpoint, request, refused)
    return may_copy(run.refusing(refused), tables)


def _asked_or_new(run: Run, checkpoint: Checkpoint, gaps: frozenset[int]) -> tuple[Run, Tables]:
    """The tables of ``tables_to_copy``, and the run with those that are refused."""
    gaps |= checkpoint.copied_by_itself
    tables, refused = tables_to_copy(run.facts.tables, checkpoint, run.request, run.refused, gaps)
    return run.refusing(refused), tables


def _with_followed(run: Run, checkpoint: Checkpoint, need_a_copy: frozenset[int]) -> Run:
    """The run with the tables that are copied only because ``copy_tables`` names them.

    :param need_a_copy: OIDs of tables whose changes are of no use without a copy. Tables that are new to the
        lake, set aside or passed over need a copy, too.
    """
    known = checkpoint.tables or {}
    need_a_copy |= checkpoint.set_aside.keys() | checkpoint.passed_over.keys()
    followed = (
        each.relation_oid
        for each in run.facts.tables
        if each.name in run.request.copy_tables
        and known.get(each.relation_oid) == each.name
        and each.relation_oid not in need_a_copy
        and not run.refused.has(each)
    )
    return run.refusing(run.refused.following(followed))


def may_copy(run: Run, tables: Tables) -> tuple[Run, Tables]:
    """The tables that the role may copy. The run that is returned refuses the others.

    :raises MissingPrivilege: some are refused and not set aside; or no published table would be left.
    """
    refused = run.refused
    errors = run.source.check_may_copy(tables, one_by_one=refused.goes_on)
    for each in tables:
        if each.relation_oid in errors:
            refused = refused.adding(each, errors[each.relation_oid])
    goes_on = (
        e for e in run.facts.tables if e.relation_oid in refused.followed or not refused.has(e)
    )
    if errors and next(goes_on, None) is None:
        run.source.check_may_copy(tables)
    return run.refusing(refused), tuple(each for each in tables if not refused.has(each))


def _waiting_copies(run: Run, start: Lsn) -> Tables:
    """Tables that a sealed batch copied. The new batch starts at the same LSN and replaces it.

    The new batch copies these tables, too. Otherwise the copy that somebody asked for would be lost: apply
    skips the old batch as soon as the lake is past it, and its task is green.
    """
    source, name = run.source, run.request.slot_name
    system = source.server.system_identifier
    found = find_sealed(source.area, name, system, start, past=start, server=source.server)
    copied = {each.relation_oid for each in found[0].tables if each.copy_lsn} if found else set()
    return tuple(each for each in run.facts.tables if each.relation_oid in copied)


def _tried_again(run: Run, checkpoint: Checkpoint) -> Tables:
    """Tables that are set aside for a reason that may be gone.

    The role might not copy them, and it may now. Or they were disturbed while they were copied, or locked.
    """
    waiting = tuple(
        each
        for each in run.facts.tables
        if (known := checkpoint.set_aside.get(each.relation_oid)) is not None
        and known.needs_copy
        and known.refusal.error in _PASSING
    )
    errors = run.source.check_may_copy(waiting, one_by_one=True) if waiting else {}
    return tuple(each for each in waiting if each.relation_oid not in errors)


def _united(tables: Tables, more: Tables) -> Tables:
    """The tables, and those of ``more`` that are not among them."""
    oids = {each.relation_oid for each in tables}
    return (*tables, *(each for each in more if each.relation_oid not in oids))
