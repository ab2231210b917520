"""The branch on which one table is prepared: made on the very head that was looked at, or not at all.

What is not here: the rows that are written to it (``prepare.py``), and its publishing (``publish.py``).
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.schema.column_map import COLUMNS_PROPERTY
from airflow_provider_pgoutput.apply.schema.evolve import Evolved
from airflow_provider_pgoutput.apply.table.target import properties
from airflow_provider_pgoutput.batch import checkpoint as words
from airflow_provider_pgoutput.batch.checkpoint import BRANCH_PREFIX, marker_of
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PublishRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.rows.branch_writer import BranchWriter
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.apply.table.target import Start, Target

#: What says from which table of which source a target is written.
_OWNER = (words.PROPERTY_SLOT, words.PROPERTY_SYSTEM_IDENTIFIER, words.PROPERTY_RELATION_OID)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A table whose branch waits to be published."""

    target: Target
    branch: str
    #: Main's head when the branch was made.
    base: int | None
    #: The branch's own newest snapshot.
    head: int
    #: What was done about rows that are older than a new column.
    evolved: Evolved = field(default_factory=Evolved)
    #: Rows appended and keys deleted, as far as they were counted.
    counted: dict[str, int] = field(default_factory=dict)


class Preparation(ABC):
    """The preparation of one table; a subclass says what is written.

    :param spark: a session of its own, see ``own_session``.
    """

    def __init__(
        self, spark: SparkSession, batch: StagedBatch, target: Target, start: Start
    ) -> None:
        self.spark, self.batch, self.target, self.start = spark, batch, target, start
        self.branch = f"{BRANCH_PREFIX}{batch.manifest.batch_id[:16]}_{uuid.uuid4().hex[:8]}"
        self.counted: dict[str, int] = {"appended": 0, "deleted_keys": 0}
        self.table: IcebergTable | None = None
        self.evolved = Evolved()
        self._writer: BranchWriter | None = None
        self._base: int | None = None
        #: Which field is which column, as the table said when it was loaded.
        self._fields: str | None = None

    @abstractmethod
    def write(self) -> None:
        """Do to the branch what the batch does to the table, as far as the table lacks it."""

    @abstractmethod
    def create(self) -> IcebergTable:
        """Make the table."""

    @abstractmethod
    def evolve(self, table: IcebergTable) -> Evolved:
        """Bring the table's columns to the batch's; what older rows still lack then."""

    @abstractmethod
    def open_branch(self, table: IcebergTable) -> BranchWriter:
        """A writer of the branch, which was just made."""

    def run(self) -> Prepared | None:
        """Do all steps; None when the batch changes nothing in the table."""
        self.table = IcebergTable.load(self.spark, self.target.name)
        self._refuse_moved(self.table)
        self._fields = None if self.table is None else self.table.properties.get(COLUMNS_PROPERTY)
        self.write()
        if self._writer is None and not (self.table is not None and self._has_gone_back):
            return None
        writer = self.writer()
        writer.mark(self.marker)
        reach("apply.before_publish")
        head = writer.head
        assert head is not None, "the branch was marked"
        return Prepared(self.target, self.branch, self._base, head, self.evolved, self.counted)

    @property
    def _has_gone_back(self) -> bool:
        """Whether the table was taken back, so that it has to say where it is though nothing changes it."""
        replay = self.batch.plan.replay
        return replay is not None and replay.in_place

    @property
    def marker(self) -> dict[str, str]:
        """The summary keys of the batch."""
        return marker_of(self.batch.manifest)

    def writer(self) -> BranchWriter:
        """The branch; made, and the table with it, when the first thing is to be written."""
        if self._writer is None:
            self._writer = self._make_branch()
        return self._writer

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
            # Columns change at once, not with the publish: a driver that others overtook leaves them alone.
            table = self.table
            table.java.refresh()
            self._refuse_moved(table)
            if table.properties.get(COLUMNS_PROPERTY) != self._fields:
                # Where each column belongs was decided by what there is no more.
                raise PublishRefused(
                    "The columns changed after the table was looked at.", table=table.name.target
                )
        self.evolved = self.evolve(table)
        reach("apply.after_columns")
        table.create_branch(self.branch, self.start.head)
        # Whatever moved main until now moved it before the branch, so the fence would not see it.
        self._refuse_moved(table)
        self._base = self.start.head
        reach("apply.after_branch")
        self.table = table
        return self.open_branch(table)

    def _refuse_made_by_others(self, table: IcebergTable) -> None:
        """Demand a table that was just made to be ours: it may have been there, since it was looked for."""
        found, ours = table.properties, properties(self.target, self.batch.manifest)
        if any(found.get(key) != ours[key] for key in _OWNER):
            raise PublishRefused("Somebody else made the table meanwhile.", table=table.name.target)

    def _refuse_moved(self, table: IcebergTable | None) -> None:
        """Demand main's head to be the one on which floor and copy were decided."""
        if (None if table is None else table.head) != self.start.head:
            raise PublishRefused(
                "Main moved after the table was looked at.", table=self.target.name.target
            )
