"""Tables that are set aside: they lack batches that all other tables have.

A batch that could not be applied to one table is applied to all others. The checkpoint table then gets a row
for that table, with the reason (column ``set_aside``). Its column ``target`` is empty; the reason has the
target. Such a row waits until the table has the batch, or a later one. A table with a row that waits is set
aside. No later batch is applied to it, except one that copies it. That brings it back, and so does a replay.

Example: batch 1 is refused for table ``t``, batch 2 is not tried. A replay applies both to ``t``. For each it
writes a row with the target. No row of ``t`` waits any more.

A replayed batch may change nothing in ``t``. Example: it truncates ``t`` before ``t`` has a target. Its row
then has neither target nor reason. Such a row means: applied.

The stage task may refuse a table, too. Then the table's changes are not staged from some LSN on
(``batch/passed_over.py``). Apply writes the same row for it, and the reason has that LSN. No replay brings
back what was not staged. Later batches have no changes of the table until one copies it, so such a row waits
until that one was applied.

When another system becomes the source (``batch/earlier_systems.py``), its first batch copies each table that
is set aside. So a replay of such a table begins there. The batches before are of the earlier system.

A table may be dropped and made again at the source. The new one has another OID. When the new one is copied
over the rows of the old one, the old one is no longer set aside.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import LakeDenied, TableDamaged, TableRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.batch.passed_over import PassedOver


_COMES_BACK = "The next batch that is applied then brings it back."
#: Causes that may end although nobody tells the pipeline, and what ends them: by class of the error.
MAY_PASS = {
    LakeDenied.__name__: f"give the pipeline the right to write to it. {_COMES_BACK}",
    TableDamaged.__name__: f"put its file back. {_COMES_BACK} Or copy the table again (copy_tables), a change"
    " log into a new target.",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a batch was not applied to a table."""

    #: The class of the error, see ``errors.py``.
    error: str
    #: What happened, in one sentence.
    message: str
    #: What to do, or an empty text.
    advice: str = ""
    #: The target to which the batch was not applied. Empty if the row was written without one.
    target: str = ""
    #: The stage task left the table's changes out from this LSN on. Empty: the batch has them.
    unstaged_since: str = ""

    def __str__(self) -> str:
        advice = f" What to do: {self.advice}" if self.advice else ""
        return f"{self.error}: {self.message}{advice}"

    def to_text(self) -> str:
        """The value of ``set_aside`` in the checkpoint table."""
        return json.dumps(list(dataclasses.astuple(self)), ensure_ascii=True)

    @classmethod
    def from_text(cls, text: str) -> Refusal:
        """Read what ``to_text`` wrote.

        :raises TableRefused: it is something else.
        """
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        is_list = isinstance(found, list) and len(found) in {3, 4, 5}
        if not is_list or not all(isinstance(each, str) for each in found):
            raise TableRefused(
                "The column set_aside of the checkpoint table is not what the pipeline writes.",
                table=CHECKPOINT_TABLE,
                advice="somebody wrote to it; rebuild it from the tables' snapshot summaries.",
            )
        return cls(*found)


def staged_without(entry: PassedOver) -> Refusal | None:
    """Why the stage task set a table aside in a batch; None: the entry says something else of the table."""
    if not entry.error or entry.since_lsn is None:
        return None
    return Refusal(entry.error, entry.reason, entry.advice, unstaged_since=entry.since_lsn)


class TableRow(NamedTuple):
    """What a row of the checkpoint table says about one batch and one table."""

    relation_oid: int
    #: The source's ``schema.table``.
    table_name: str
    start_lsn: Lsn
    end_lsn: Lsn
    #: None: the table has the batch.
    refusal: Refusal | None
    #: The target to which the batch was applied. None: it was refused, or changed nothing.
    target: str | None = None

    @classmethod
    def recorded(
        cls,
        relation_oid: int,
        table_name: str,
        start_lsn: Lsn,
        end_lsn: Lsn,
        set_aside: str | None,
        target: str | None,
    ) -> TableRow:
        """Read a row.

        :param set_aside: the text in the column of this name.
        :raises TableRefused: that text is not what the pipeline writes.
        """
        refusal = Refusal.from_text(set_aside) if set_aside else None
        return cls(relation_oid, table_name, start_lsn, end_lsn, refusal, target)

    @property
    def is_point(self) -> bool:
        """Whether the batch only copies. Such a batch ends where it starts."""
        return self.start_lsn == self.end_lsn


@dataclass(frozen=True, slots=True)
class SetAside:
    """A table that is set aside."""

    relation_oid: int
    #: The source's ``schema.table`` in the newest batch that it lacks.
    table_name: str
    #: From this LSN on it lacks changes. Its rows in the lake are at most as new as this.
    since_lsn: Lsn
    #: Number of recorded batches that it lacks.
    batches: int
    #: Why it lacks the first one; or why the stage task left its changes out.
    refusal: Refusal
    #: Whether only a copy brings it back, because the stage task left changes out, and no later batch has a
    #: copy of it.
    needs_copy: bool = False
    #: Whether changes that it lacks are in no batch. A later batch may have a copy. It makes up for them in a
    #: table of mode ``upsert``, and not in a change log.
    lacks_unstaged: bool = False
    #: Where the batches begin that a replay needs; None: at ``since_lsn``. No such batch is of an earlier
    #: system.
    replay_from: Lsn | None = None

    @property
    def replay_lsn(self) -> Lsn:
        """Where the batches begin that a replay needs."""
        return self.since_lsn if self.replay_from is None else self.replay_from

    @property
    def may_pass(self) -> bool:
        """Whether the table is tried again with each batch, because the cause may be gone."""
        return self.refusal.error in MAY_PASS and not self.lacks_unstaged

    @property
    def in_words(self) -> str:
        """What it lacks, in one sentence."""
        if self.needs_copy:
            return "No batch has its changes."
        return f"Batches that it lacks: {self.batches}."


def set_aside_tables(
    rows: Iterable[TableRow], adopted_at: Lsn | None = None
) -> dict[int, SetAside]:
    """The tables that are set aside, by OID.

    :param rows: those of one slot and its systems.
    :param adopted_at: where the lake was when the newest system was adopted; None: there was one system only.
    """
    by_oid: dict[int, list[TableRow]] = {}
    #: For each target and name at the source: the newest row that was applied. Tables of other names may
    #: share the target, each with rows of its own.
    holds: dict[tuple[str, str], TableRow] = {}
    for row in rows:
        by_oid.setdefault(row.relation_oid, []).append(row)
        if row.target is not None:
            key = row.target, row.table_name
            newest = holds.setdefault(key, row)
            holds[key] = row if row.end_lsn > newest.end_lsn else newest
    found = {}
    for oid, of_table in by_oid.items():
        applied = [each for each in of_table if each.refusal is None]
        waiting = sorted(
            (
                each
                for each in of_table
                if each.refusal is not None
                and not _has(applied, each)
                and not _is_replaced(applied, each, holds)
            ),
            key=_order,
        )
        if waiting:
            aside = _set_aside(oid, waiting, applied)
            if adopted_at is not None and aside.replay_lsn < adopted_at:
                aside = dataclasses.replace(aside, replay_from=adopted_at)
            found[oid] = aside
    return found


def _set_aside(
    relation_oid: int, waiting: Sequence[TableRow], applied: Sequence[TableRow]
) -> SetAside:
    """What rows that wait say about their table.

    :param waiting: in order.
    :param applied: rows of batches that the table has.
    """
    refusals = [each.refusal for each in waiting if each.refusal is not None]
    newest = _range(waiting[-1])
    lacks_unstaged = [each for each in waiting if _is_unstaged(each)]
    unstaged = [
        each.refusal
        for each in lacks_unstaged
        if each.refusal is not None and _range(each) == newest
    ]
    # A later batch has changes of such a table only if a copy came first, which replaces all before.
    after = [
        each
        for each in waiting
        if lacks_unstaged and not unstaged and _order(each) > _order(lacks_unstaged[-1])
    ]
    return SetAside(
        relation_oid,
        waiting[-1].table_name,
        min(_since(each, applied) for each in waiting),
        len({(each.start_lsn, each.end_lsn) for each in waiting}),
        (unstaged or refusals)[0],
        needs_copy=bool(unstaged),
        lacks_unstaged=bool(lacks_unstaged),
        replay_from=min((_since(each, applied) for each in after), default=None),
    )


def _range(row: TableRow) -> tuple[Lsn, Lsn]:
    return row.start_lsn, row.end_lsn


def _order(row: TableRow) -> tuple[Lsn, Lsn]:
    """Batches follow each other in the order of their ends."""
    return row.end_lsn, row.start_lsn


def _is_unstaged(row: TableRow) -> bool:
    """Whether the stage task left changes of the table out of the batch."""
    return row.refusal is not None and row.refusal.unstaged_since != ""


def _since(refused: TableRow, applied: Sequence[TableRow]) -> Lsn:
    """The LSN from which on the table lacks the changes of a refused batch.

    If the slot was read again, the table may have the first part of it from earlier batches.
    """
    if refused.refusal is not None and refused.refusal.unstaged_since:
        return Lsn.parse(refused.refusal.unstaged_since)
    held = (each.end_lsn for each in applied if each.end_lsn < refused.end_lsn)
    return max([refused.start_lsn, *held])


def _has(applied: Iterable[TableRow], refused: TableRow) -> bool:
    """Whether a table has by now what a refused batch would have given it.

    Yes, if a batch that ends later was applied. Two batches can end at one LSN: changes, and then a copy. The
    copy makes up for the changes. The changes do not make up for the copy. If the stage task left changes
    out, the batch itself was applied without them, which makes up for nothing.
    """
    if _is_unstaged(refused):
        return any(
            each.end_lsn > refused.end_lsn
            or (each.end_lsn == refused.end_lsn and each.is_point and not refused.is_point)
            for each in applied
        )
    return any(
        each.end_lsn > refused.end_lsn
        or (each.end_lsn == refused.end_lsn and (each.is_point or not refused.is_point))
        for each in applied
    )


def _is_replaced(
    applied: Iterable[TableRow], refused: TableRow, holds: Mapping[tuple[str, str], TableRow]
) -> bool:
    """Whether another table was copied over the rows of a refused batch's table, in that batch or later.

    Apply lets no other table into a target without a copy. If the batch was refused in another target than
    the one with the rows, the answer is no. The stage task knows no target, so its rows are about the one
    with the rows.

    :param applied: rows of batches that the table has.
    :param holds: for each target and name at the source, the newest row that was applied.
    """
    own = max(
        (each for each in applied if each.target), key=lambda each: each.end_lsn, default=None
    )
    if refused.refusal is None or own is None:
        return False
    if own.target != refused.refusal.target and not _is_unstaged(refused):
        return False
    assert own.target is not None, "only rows with a target were taken"
    newest = holds[own.target, own.table_name]
    return (
        newest.relation_oid != own.relation_oid
        # A table that had the target before this one does not count.
        and newest.end_lsn > own.end_lsn
        and newest.end_lsn >= refused.end_lsn
    )
