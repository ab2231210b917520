"""What the steps of one table share: its columns, their layout, and the branch that is written.

The steps are in ``apply_keyed.py``, ``change_log.py`` and others. ``prepare.py`` calls them in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput import log_rows
from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.apply.rows import quarantine
from airflow_provider_pgoutput.apply.rows import segments as versions
from airflow_provider_pgoutput.apply.rows.branch import Preparation
from airflow_provider_pgoutput.apply.rows.branch_writer import BranchWriter
from airflow_provider_pgoutput.apply.schema import evolve
from airflow_provider_pgoutput.apply.schema.column_layout import Layout
from airflow_provider_pgoutput.apply.schema.column_map import columns_of_now, known_fields
from airflow_provider_pgoutput.apply.schema.defaults import missing_value
from airflow_provider_pgoutput.apply.table.constant_columns import (
    constants_of_rows,
    constants_to_json,
)
from airflow_provider_pgoutput.apply.table.start import masks_of_rows
from airflow_provider_pgoutput.apply.table.target import OP_COLUMN, properties
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.answers import QUARANTINE
from airflow_provider_pgoutput.batch.changes import IS_CURRENT_COLUMN
from airflow_provider_pgoutput.batch.checkpoint import (
    PROPERTY_COLUMNS,
    PROPERTY_CONSTANTS,
    PROPERTY_MASKS,
    PROPERTY_MASKS_OID,
    PROPERTY_RELATION_OID,
    PROPERTY_ROW_FILTER,
    PROPERTY_SYSTEM_IDENTIFIER,
)
from airflow_provider_pgoutput.batch.jobs import ReplayJob
from airflow_provider_pgoutput.batch.shape import masked_columns
from airflow_provider_pgoutput.batch.table_version import FULL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch
    from airflow_provider_pgoutput.apply.table.start import Start
    from airflow_provider_pgoutput.apply.table.target import Target
    from airflow_provider_pgoutput.batch.table_version import Column

#: Up to so many changes one task is faster than several, and writes one file.
_ROWS_OF_ONE_TASK, _BYTES_OF_ONE_TASK = 50_000, 8 << 20


class TableState(Preparation):
    """What the steps of one table's preparation read and change."""

    def __init__(
        self, spark: SparkSession, batch: StagedBatch, target: Target, start: Start
    ) -> None:
        super().__init__(spark, batch, target, start)
        keeps = batch.job.on_row_refused == QUARANTINE and not target.keeps_past
        self.notes: quarantine.Notes = quarantine.Notes(start.floor, keeps)
        self.counts = target.source.counts
        self.soft_delete = target.soft_delete
        self.columns: tuple[Column, ...] = ()
        self.layout = Layout(target.source)
        #: Whether the target has rows of another table, see ``column_map.is_other_table``.
        self.is_other_table = False
        #: Whether the branch surely holds no rows, so that there is nothing to delete.
        self.empty = False

    def note_rows(self, appended: int) -> None:
        """Note that rows were appended, so that the branch may hold some."""
        self.count(appended=appended)
        self.empty = False

    def entries(self) -> DataFrame | None:
        """The keys of the table's entries in the quarantine; None: there are none."""
        return quarantine.entries(self.spark, self.batch, self.target.source.relation_oid)

    def begin_notes_anew(self) -> None:
        """Note that the table has other rows now, so that all its entries in the quarantine end."""
        ends_some = quarantine.has_entries(self.spark, self.batch, self.target)
        self.notes.begin_anew(ends_some=ends_some)

    def read(self, segment: versions.Segment) -> DataFrame:
        """The segment's changes at or past the floor. If they are few, they are in one partition."""
        changes = versions.read_changes(
            self.spark, self.batch, self.layout.table, segment, self.start.floor
        )
        return changes.coalesce(1) if _are_few(segment) else changes

    def evolve(self, table: IcebergTable) -> evolve.Evolved:
        """See ``Preparation``."""
        ours = self._properties(table)
        evolved = evolve.evolve(
            self.spark,
            table,
            self.columns,
            self.unique_key,
            ours,
            self.target.metadata,
            self.layout,
        )
        if self.target.name.earlier is not None:
            self.of_rows[PROPERTY_COLUMNS] = columns_of_now(table)
        return evolved

    def needs_only_rows(self, table: IcebergTable) -> bool:
        """Whether the batch changes rows alone, and nothing that a table has beside them."""
        ours = self._properties(table)
        is_evolved = evolve.needs_nothing(
            table, self.columns, self.unique_key, ours, self.target.metadata, self.layout
        )
        return is_evolved and not self.of_rows and not self._lacks_constants(table)

    def _properties(self, table: IcebergTable) -> dict[str, str]:
        """The properties that the table gets before the rows. ``of_rows`` has those that come with them."""
        ours = properties(self.target, self.batch.manifest)
        if PROPERTY_MASKS in table.properties:
            ours = {PROPERTY_MASKS: "[]", PROPERTY_MASKS_OID: ours[PROPERTY_RELATION_OID], **ours}
        if PROPERTY_ROW_FILTER in table.properties:
            ours = {PROPERTY_ROW_FILTER: "", **ours}
        if self.start.copies and not self.target.is_log:
            # Until the copy is published, main has rows with the masks and the filter of before.
            self._set_with_rows(ours, PROPERTY_MASKS, PROPERTY_MASKS_OID, PROPERTY_ROW_FILTER)
        self._set_constants(table, ours)
        oid, system = ours[PROPERTY_RELATION_OID], ours[PROPERTY_SYSTEM_IDENTIFIER]
        found = table.properties
        is_adopted = found.get(PROPERTY_SYSTEM_IDENTIFIER, system) != system
        is_same = found.get(PROPERTY_RELATION_OID) == oid and not self.is_other_table
        if is_adopted and is_same:
            # Until the batch of the adoption is published, main has rows of the earlier system. So the
            # property changes together with the rows. Another table is treated otherwise: its columns have
            # other numbers from now on, so its property changes at once.
            self._set_with_rows(ours, PROPERTY_SYSTEM_IDENTIFIER, PROPERTY_RELATION_OID)
        if self.target.is_log:
            self._tell_rows_apart(table, ours)
        return ours

    def _set_constants(self, table: IcebergTable, ours: dict[str, str]) -> None:
        """Set the property that says which text the rows have in constant columns.

        The publish gives them the texts of now. The columns may be there before.
        """
        wanted, found = self.target.constants, constants_of_rows(table)
        if wanted != found:
            ours[PROPERTY_CONSTANTS] = constants_to_json({each: found.get(each) for each in wanted})
            self.of_rows[PROPERTY_CONSTANTS] = constants_to_json(wanted)

    def _lacks_constants(self, table: IcebergTable) -> bool:
        """Whether rows of the target may have another text in a constant column.

        A replay took the table back to such rows, perhaps. Its properties did not go back.
        """
        has_gone_back = isinstance(self.batch.job, ReplayJob) and self.batch.job.in_place
        is_changed = constants_of_rows(table) != self.target.constants
        is_replaced = self.start.copies and not self.target.keeps_past and not self.soft_delete
        return not (self.empty or is_replaced) and (has_gone_back or is_changed)

    def _tell_rows_apart(self, table: IcebergTable, ours: dict[str, str]) -> None:
        """Set the property that says which entries of a change log are of one row."""
        versions = self.layout.table.versions
        changed = [each for each in versions if any(file.kind == "changes" for file in each.files)]
        identities = [
            (each.key_columns, each.replica_identity == FULL) for each in changed or versions[-1:]
        ]
        now = log_rows.begun(identities)
        if self.empty and table.properties.get(log_rows.PROPERTY) is None:
            ours[log_rows.PROPERTY] = now.to_json()
            return
        ids = {int(each["id"]): str(each["name"]) for each in table.schema["fields"]}
        renamed = {ids[number]: name for number, name in self.layout.renamed.items()}
        names = {renamed.get(name, name) for name in ids.values()}
        names |= {each.name for each in self.columns}
        before = log_rows.LogRows.of(table.properties)
        gone_on = log_rows.gone_on(before, identities, renamed, names)
        ours[log_rows.PROPERTY] = gone_on.to_json()
        if self.start.copies:
            # Until the copy is published, the entries are those from before it.
            self.of_rows[log_rows.PROPERTY] = now.to_json()

    def _set_with_rows(self, ours: dict[str, str], *names: str) -> None:
        """Let the publish set properties that tell of the rows."""
        self.of_rows.update((name, ours.pop(name)) for name in names if name in ours)

    def open_branch(self, table: IcebergTable) -> BranchWriter:
        """See ``Preparation``."""
        writer = BranchWriter(self.spark, table, self.branch, self.columns, self.target.constants)
        if self._lacks_constants(table):
            writer.set_constants()
        # Copied rows have all of their values, and replace the rows that would be filled.
        replaced = self.start.copies and not self.target.keeps_past
        for column in self.columns:
            if column.name in self.evolved.lacking and not replaced:
                writer.fill(column.name, missing_value(column, self.target.source.name))
        return writer

    @property
    def marked_deleted(self) -> Sql:
        """SQL: whether a row of the target is none of the source now.

        Soft delete marks it so, perhaps in an earlier job. In a history it is an earlier version.
        """
        if self.target.is_history:
            return Sql(f"NOT ({IS_CURRENT_COLUMN} <=> true)")
        has_marks = self.soft_delete or OP_COLUMN in self.layout.metadata
        return Sql(f"{OP_COLUMN} <=> '{staged.DELETE}'" if has_marks else "false")

    def remasked(self) -> frozenset[str]:
        """Names of columns of the target whose values have another mask in the batch's newest version."""
        source = self.target.source
        if self.table is None or not source.versions:
            return frozenset()
        then, now = masks_of_rows(self.table), masked_columns(source.versions[-1])
        oid = str(source.relation_oid)
        is_same_table = self.table.properties.get(PROPERTY_MASKS_OID, oid) == oid
        is_same_table &= not self.is_other_table
        if is_same_table and known_fields(self.table, source.relation_oid):
            held = {each.number: each.mask for each in then}
            wanted = {each.number: each.mask for each in now}
            fields = self.layout.numbered.items()
            # A field with old values of a column whose type changed has no mask of its own.
            return frozenset(
                name
                for (i, age), name in fields
                if held.get(i) != wanted.get(i) and (not age or i in wanted)
            )
        # The numbers of the target's columns are not known, or are those of an earlier table.
        names_in_target = self.target.options.renamed_columns
        of_rows, of_copy = (
            {names_in_target.get(each.name, each.name): each.mask for each in masks}
            for masks in (then, now)
        )
        names = of_rows.keys() | of_copy.keys()
        found = frozenset(name for name in names if of_rows.get(name) != of_copy.get(name))
        # A field of the earlier table may have old values of such a column.
        return found | self.layout.of_earlier_table if found & of_copy.keys() else found

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns in the newest version; none for a change log."""
        return () if self.target.is_log else self.layout.table.versions[-1].key_columns

    @property
    def unique_key(self) -> tuple[str, ...]:
        """Names of the columns in which all rows of the target differ and have values, if there are any.

        Slices may have other keys, and other columns.
        """
        return () if self.target.keeps_past or self.target.slice is not None else self.key


def _are_few(segment: versions.Segment) -> bool:
    files = [file for v in segment.versions for file in v.files if file.kind == "changes"]
    rows, size_bytes = sum(each.rows for each in files), sum(each.size_bytes for each in files)
    return rows <= _ROWS_OF_ONE_TASK and size_bytes <= _BYTES_OF_ONE_TASK
