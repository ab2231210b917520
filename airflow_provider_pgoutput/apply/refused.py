"""What happens to a batch when one of its tables is refused.

The table may be gone at the source. Then nobody can copy it again. So its changes are passed over, with a
warning, and never applied (``batch/passed_over.py``). Capture has already taken out the changes that it
cannot follow (``capture/schema/gone.py``).

In all other cases ``on_table_refused`` decides. With ``set_aside`` the others go on, and the table can come
back later (``batch/set_aside.py``).

A refused table has nothing of the batch. Only after a kill it may have all of it, and a replay finds that
out. If the task is killed before it writes the checkpoint, the next try looks at the table again.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, TypeVar

from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.passed_over import PassedOver, first_lsn
from airflow_provider_pgoutput.batch.set_aside import MAY_PASS, Refusal
from airflow_provider_pgoutput.errors import (
    BatchRefused,
    ConfigurationError,
    LakeDenied,
    RowMissing,
    TableDamaged,
    TableRefused,
    TableRolledBack,
    ValueRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.apply.table.checkpoint import Progress
    from airflow_provider_pgoutput.apply.table.target import Target
    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.set_aside import SetAside
    from airflow_provider_pgoutput.errors import PgoutputError

log = logging.getLogger(__name__)

#: These errors concern one table at the source, or its rows. If the table is gone there, it is passed over.
#: ``BatchRefused`` is here for changes of rows that nothing identifies.
_ABOUT_A_TABLE = (BatchRefused, RowMissing, TableRefused, ValueRefused)
#: These errors concern one target, or its options. No table is passed over for them.
_ABOUT_A_TARGET = (ConfigurationError, LakeDenied, TableDamaged, TableRolledBack)
#: These errors concern one table, and others may go on.
ABOUT_ONE = (*_ABOUT_A_TABLE, *_ABOUT_A_TARGET)
#: If each of several tables is refused for one of these, the fault is the lake's. ``TableDamaged`` is not
#: here: the store has answered for a file of the table then.
_ABOUT_ALL = (ConfigurationError, LakeDenied)
_WAITS = Refusal(
    "TableRefused",
    "The table lacks an earlier batch, so this one was not tried.",
    "run PgoutputReplayOperator without from_lsn, or copy the table again (copy_tables), a change log into a"
    " new target.",
)
_OF_LOGS = "It is a change log, and set aside: a copy brings it back only into a new target."
_Result = TypeVar("_Result")


class RefusedTables:
    """The tables of one batch that were refused, while the others go on."""

    def __init__(self, answer: str, progress: Progress, *, passes_over: bool = True) -> None:
        """Begin with no table.

        :param answer: that of ``on_table_refused``.
        :param progress: what earlier batches set aside, and which targets they wrote to.
        :param passes_over: whether a table that is gone at the source is passed over.
        """
        self._answer = answer
        self._progress = progress
        self._may_pass_over = passes_over
        self.passed_over: dict[int, PassedOver] = {}
        #: By OID: the tables that do not get this batch, and why.
        self.set_aside: dict[int, tuple[Table, Refusal]] = {}
        #: The OIDs of the tables that were tried. Those that are still set aside were not.
        self._tried: set[int] = set()
        #: By OID: the errors of the tables that were tried.
        self._errors: dict[int, PgoutputError] = {}

    def unless_refused(self, target: Target, do: Callable[[], _Result]) -> _Result | None:
        """Call ``do`` for one table. If it refuses the table, the table may be set aside or passed over.

        A table that is set aside is skipped, unless the batch copies it. A change log also needs a new
        target: a copy only adds rows, and does not fill the gap.

        :return: what ``do`` returned; None: the others go on without this table.
        :raises PgoutputError: the error is not about one table, or ``on_table_refused`` says ``fail``.
        """
        table = target.source
        waiting = self._progress.set_aside.get(table.relation_oid)
        if waiting and not self._needs_no_earlier_batch(target, waiting):
            log.warning(
                "%s is still set aside, since LSN %s. %d changes of this batch are not applied to it. %s",
                table.name,
                waiting.since_lsn,
                table.counts.changes,
                waiting.refusal,
            )
            refusal = dataclasses.replace(_WAITS, target=target.name.target)
            if waiting.may_pass:
                # The row of this batch names the first cause, too. A replay may bring the first batch and not
                # this one. Then only this row tells that the table may come back by itself.
                cause = waiting.refusal.error
                refusal = dataclasses.replace(refusal, error=cause, advice=MAY_PASS[cause])
            self.set_aside[table.relation_oid] = (table, refusal)
            return None
        self._tried.add(table.relation_oid)
        try:
            return do()
        except ABOUT_ONE as error:
            if isinstance(error, _ABOUT_A_TABLE) and self._passes_over(table, error):
                return None
            self.refuse(target, error)
            self._errors[table.relation_oid] = error
            return None

    def refuse(self, target: Target, error: PgoutputError) -> None:
        """Set one table aside.

        :raises PgoutputError: the error, if ``on_table_refused`` says ``fail``.
        """
        if self._answer != SET_ASIDE:
            raise error
        advice = " ".join(filter(None, (error.advice, _OF_LOGS if target.is_log else None)))
        refusal = Refusal(type(error).__name__, error.reason, advice, target.name.target)
        log.warning(
            "%s is set aside: nothing of this batch is applied to it, and the others go on. %s",
            target.source.name,
            refusal,
        )
        self.set_aside[target.source.relation_oid] = (target.source, refusal)

    def raise_if_about_all(self) -> None:
        """Raise if each table that was tried was refused for one reason that may concern the whole lake.

        Example: the login lost its rights to all tables. Nothing is published then.

        :raises LakeDenied: the catalog forbids to write to each of them.
        :raises ConfigurationError: an option is wrong for each of them.
        """
        errors = list(self._errors.values())
        tried = self._tried - self.passed_over.keys()
        is_one = len({type(each) for each in errors}) == 1
        if len(errors) == len(tried) > 1 and is_one and isinstance(errors[0], _ABOUT_ALL):
            raise errors[0]

    def _needs_no_earlier_batch(self, target: Target, waiting: SetAside) -> bool:
        """Whether this batch can be applied although the table lacks earlier ones.

        A batch with a copy can be applied to a mirror. Into a change log a copy only adds rows. So it needs a
        new target, to which no batch was applied. The target that was refused is not new, even if nothing was
        ever written to it: a replay may fill it. ``start`` looks at the target itself. A catalog may ignore
        case. So names that differ only in case count as one.
        """
        if target.source.copy_lsn is None or not target.is_log:
            return target.source.copy_lsn is not None
        used = {*self._progress.tables}
        if target.source.relation_oid not in self._progress.target_of:
            used.add(waiting.refusal.target)
        return target.name.target.lower() not in {each.lower() for each in used}

    def _passes_over(self, table: Table, error: PgoutputError) -> bool:
        """Pass a refused table over if it is gone at the source. Return whether that was done."""
        since = first_lsn(table.versions)
        if not (table.is_gone and self._may_pass_over) or since is None:
            return False
        log.warning(
            "%s: its changes from LSN %s on are passed over, %d in this batch. %s The table was"
            " dropped or is not published any more: the lake keeps it as it was before that.",
            table.name,
            since,
            table.counts.changes,
            error.message,
        )
        self.passed_over[table.relation_oid] = PassedOver(
            table.relation_oid, table.name, str(since), table.counts.changes, error.message
        )
        return True
