"""What the owner of a pipeline wants done about schema changes that cannot simply be followed.

``history.py`` finds such changes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import FAIL, IGNORE, check_answer
from airflow_provider_pgoutput.errors import SnapshotLost

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Table


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What the user wants done about changes that the stream does not tell in full.

    :raises ConfigurationError: an answer is not one of the allowed words, see ``batch/answers.py``.
    """

    #: Older rows in a column whose default is not known: ``ignore`` leaves NULL, ``default`` takes the
    #: current default, ``copy`` copies the table. ``copy`` also applies to a key of ``full_keys.py``.
    on_unknown_default: str = IGNORE
    #: A change of type that Iceberg cannot follow: ``fail`` leaves it to apply, ``copy`` copies the table.
    on_type_change: str = FAIL
    #: A column was dropped and another took its place. Values may belong to either of them: ``fail`` refuses
    #: the table, ``ignore`` gives the values to the newer column, ``copy`` copies the table.
    on_unsure_column: str = FAIL

    def __post_init__(self) -> None:
        for each in fields(self):
            check_answer(each.name, getattr(self, each.name))


def way_on(table: Table, way: str) -> str:
    """The advice of a warning about a table: ``way``, unless the table is gone and nobody can copy it."""
    return "The table is gone, so nobody can copy it" if table.is_gone else way


class CopyNeeded(Exception):
    """A table has to be copied for the batch to be right; ``relation_oid`` names it."""

    def __init__(self, relation_oid: int) -> None:
        super().__init__(relation_oid)
        self.relation_oid = relation_oid


def copy_needed(table: Table, column: str) -> CopyNeeded | SnapshotLost:
    """The error that asks for a copy: ``CopyNeeded``, or ``SnapshotLost`` if the batch has a copy already.

    Then only the next attempt can make another copy. It does not take over the old copy, because the columns
    of that copy are no longer those of the table.
    """
    if table.copy_lsn is None:
        return CopyNeeded(table.relation_oid)
    return SnapshotLost(
        "A column was changed after the table was copied in this batch, so that the copied rows lack what"
        " it holds now.",
        table=table.name,
        column=column,
        advice="run the task again: the table is copied anew; keep ALTER TABLE away from it meanwhile.",
    )
