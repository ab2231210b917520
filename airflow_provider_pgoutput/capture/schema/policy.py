"""What the owner of a pipeline wants done about changes of a schema that cannot simply be followed.

What is not here: finding such changes (``history.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import ConfigurationError, SnapshotLost

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Table

#: What is done about an added column whose value in older rows nobody can tell.
NULL = "null"
DEFAULT = "default"
#: Also: about a type to which Iceberg cannot follow, and about columns that cannot be told apart.
COPY = "copy"
FAIL = "fail"
WARN = "warn"


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What the user wants done about changes that cannot simply be followed.

    :raises ConfigurationError: a word is unknown.
    """

    #: ``null`` (and a warning), ``default`` or ``copy``, which also copies for a key of ``full_keys.py``.
    older_rows: str = NULL
    #: ``copy``, or ``fail``: left to apply, which refuses or makes a new column.
    type_changes: str = FAIL
    #: ``fail``, ``warn`` (and take the newer column) or ``copy``.
    unsure_columns: str = FAIL

    def __post_init__(self) -> None:
        if self.older_rows not in {NULL, DEFAULT, COPY}:
            raise ConfigurationError(
                f"Unknown older_rows {self.older_rows!r}.", advice="use null, default or copy."
            )
        if self.type_changes not in {FAIL, COPY}:
            raise ConfigurationError(
                f"Unknown type_changes {self.type_changes!r}.", advice="use fail or copy."
            )
        if self.unsure_columns not in {FAIL, WARN, COPY}:
            raise ConfigurationError(
                f"Unknown unsure_columns {self.unsure_columns!r}.",
                advice="use fail, warn or copy.",
            )


def way_on(table: Table, way: str) -> str:
    """What a warning about a table names as a way on: ``way``, unless nobody can copy the table any more."""
    return "The table is gone, so nobody can copy it" if table.is_gone else way


class CopyNeeded(Exception):
    """A table has to be copied for the batch to be right; ``relation_oid`` says which."""

    def __init__(self, relation_oid: int) -> None:
        super().__init__(relation_oid)
        self.relation_oid = relation_oid


def copy_needed(table: Table, column: str) -> CopyNeeded | SnapshotLost:
    """What asks for a copy; where the batch holds one, only the next attempt makes another.

    That one does not take the copy over, whose columns are no longer those of the table.
    """
    if table.copy_lsn is None:
        return CopyNeeded(table.relation_oid)
    return SnapshotLost(
        "A column was changed after the table was copied in this batch, so that the copied rows lack what"
        " it holds now. Nothing was staged.",
        table=table.name,
        column=column,
        advice="run the task again: the table is copied anew; keep ALTER TABLE away from it meanwhile.",
    )
