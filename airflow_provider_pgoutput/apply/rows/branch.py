"""The branch on which one table is prepared. It starts at main's head as it was when ``Start`` was decided.

``prepare.py`` writes rows to it, ``publish.py`` publishes it.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.schema.column_map import fields_of_others
from airflow_provider_pgoutput.apply.schema.evolve import Evolved
from airflow_provider_pgoutput.apply.table.target import properties
from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX, PROPERTY_COLUMNS, marker_of
from airflow_provider_pgoutput.batch.jobs import ReplayJob
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PublishRefused
from airflow_provider_pgoutput.slices import SUMMARY_SLICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.rows.branch_writer import BranchWriter
    from airflow_provider_pgoutput.apply.rows.quarantine import Notes
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.apply.table.start import Start
    from airflow_provider_pgoutput.apply.table.target import Target

#: The properties that name the source and the table that a target is written from.
_OWNER = (
    lake_names.PROPERTY_SLOT,
    lake_names.PROPERTY_SYSTEM_IDENTIFIER,
    lake_names.PROPERTY_RELATION_OID,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table whose branch waits to be published."""

    target: Target
    branch: str
    #: Main's head when the branch was made.
    base: int | None
    #: The branch's own newest snapshot.
    head: int
    #: Work for rows that are older than a new column. It is done on the branch.
    evolved: Evolved = field(default_factory=Evolved)
    #: Numbers of rows appended and of keys deleted, where they were counted.
    counted: dict[str, int] = field(default_factory=dict)
    #: Entries of the quarantine that begin or end; None: this preparation uses no quarantine.
    notes: Notes | None = None
    #: Properties of the table that tell of its rows. They are set when the rows are published.
    of_rows: Mapping[str, str] = field(default_factory=dict)
    #: Further slices of the table whose changes are on the branch, see ``slices_together.py``.
    others: tuple[Target, ...] = ()

    @property
    def targets(self) -> tuple[Target, ...]:
        """All tables of the source whose changes are on the branch."""
        return (self.target, *self.others)


class Preparation(ABC):
    """The preparation of one table. A subclass says what is written.

    :param spark: a session that no other table uses meanwhile.
    """

    def __init__(
        self, spark: SparkSession, batch: StagedBatch, target: Target, start: Start
    ) -> None:
        self.spark, self.batch, self.target, self.start = spark, batch, target, start
        self.branch = f"{BRANCH_PREFIX}{batch.manifest.batch_id[:16]}_{uuid.uuid4().hex[:8]}"
        self.counted: dict[str, int] = {"appended": 0, "deleted_keys": 0}
        #: See ``Prepared``.
        self.of_rows: dict[str, str] = {}
        #: See ``Prepared``.
        self.notes: Notes | None = None
        self.table: IcebergTable | None = None
        self.evolved = Evolved()
        self._writer: BranchWriter | None = None
        self._base: int | None = None
        #: Which field is which column, as it was when the table was loaded.
        self._fields: object = None

    @abstractmethod
    def write(self) -> None:
        """Do to the branch what the batch does to the table, except for what the table has already."""

    @abstractmethod
    def create(self) -> IcebergTable:
        """Make the table."""

    @abstractmethod
    def evolve(self, table: IcebergTable) -> Evolved:
        """Change the table's columns to the batch's; return what older rows still lack then."""

    @abstractmethod
    def open_branch(self, table: IcebergTable) -> BranchWriter:
        """A writer of the branch that was just made."""

    def run(self) -> Prepared | None:
        """Do all steps; None: the batch changes nothing in the table.

        :raises PublishRefused: another writer changed the table after ``Start`` was decided.
        """
        self.table = IcebergTable.load(self.spark, self.target.name)
        self._refuse_moved(self.table)
        self._fields = None if self.table is None else self.fields_of(self.table)
        self.write()
        is_noted = self.notes is not None and self.notes.has_changes
        is_marked = self.table is not None and self.needs_marker
        if self._writer is None and not (is_noted or is_marked):
            return None
        writer = self.writer()
        writer.mark(self.marker)
        reach("apply.before_publish")
        head = writer.head
        assert head is not None, "the branch was marked"
        return Prepared(
            self.target,
            self.branch,
            self._base,
            head,
            self.evolved,
            self.counted,
            self.notes,
            self.of_rows,
        )

    @property
    def needs_marker(self) -> bool:
        """Whether the table gets the marker of the batch even if no row changes.

        It does if a replay took the table back. And it does if it was compared with the source after a lost
        slot: a driver with a batch of the lost slot may still run, and shall find that main moved.
        """
        job = self.batch.job
        has_gone_back = isinstance(job, ReplayJob) and job.in_place
        return has_gone_back or self.target.source.is_difference

    @property
    def marker(self) -> dict[str, str]:
        """The summary keys of the batch."""
        found = marker_of(self.batch.manifest, self.target.source)
        return (
            found if self.target.slice is None else {**found, SUMMARY_SLICE: self.target.slice.id}
        )

    def fields_of(self, table: IcebergTable) -> object:
        """Which field is which column, also in other slices of a shared table. It is only compared."""
        return table.properties.get(PROPERTY_COLUMNS), fields_of_others(table)

    def writer(self) -> BranchWriter:
        """The branch. It is made, and the table with it, when there is something to write."""
        if self._writer is None:
            self._writer = self._make_branch()
        return self._writer

    def count(self, *, appended: int = 0, deleted_keys: int = 0) -> None:
        """Count rows that were appended, and keys whose rows were deleted."""
        self.counted["appended"] += appended
        self.counted["deleted_keys"] += deleted_keys

    def lost_its_branch(self) -> bool:
        """Whether somebody removed the branch while it was written."""
        if self._writer is None:
            return False
        table = IcebergTable.load(self.spark, self.target.name)
        return table is None or table.branch_head(self.branch) is None

    def _make_branch(self) -> BranchWriter:
        if self.table is None:
            table = self.create()
            self._refuse_made_by_others(table)
        else:
            # A change of columns holds at once, and not only after the publish. So a driver must not make it
            # if another driver wrote to the table since.
            table = self.table
            table.refresh()
            self._refuse_moved(table)
            if self.fields_of(table) != self._fields:
                # The column layout was made for the columns before this change.
                raise PublishRefused(
                    "The columns changed after the table was looked at.", table=table.name.target
                )
        self.evolved = self.evolve(table)
        reach("apply.after_columns")
        table.create_branch(self.branch, self.start.head)
        # The publish is refused if main moves from here on. This sees whether main moved before.
        self._refuse_moved(table)
        self._base = self.start.head
        reach("apply.after_branch")
        self.table = table
        return self.open_branch(table)

    def _refuse_made_by_others(self, table: IcebergTable) -> None:
        """Refuse a new table that another pipeline made at the same moment."""
        found, ours = table.properties, properties(self.target, self.batch.manifest)
        if any(found.get(key) != ours[key] for key in _OWNER):
            raise PublishRefused("Somebody else made the table meanwhile.", table=table.name.target)

    def _refuse_moved(self, table: IcebergTable | None) -> None:
        """Refuse to go on if main's head is another one than when ``Start`` was decided."""
        if (None if table is None else table.head) != self.start.head:
            raise PublishRefused(
                "Main moved after the table was looked at.", table=self.target.name.target
            )
