"""One batch while it is being staged: where blocks and copied rows go, and the manifest at the end.

A table that was copied whole is sealed by itself (``sealed_copies.py``). ``capture/stage.py`` reads the
source. ``attempt.py`` decides what remains of an attempt.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput import __version__
from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.capture.schema.policy import CopyNeeded
from airflow_provider_pgoutput.capture.staging.attempt import Attempt
from airflow_provider_pgoutput.capture.staging.finished import (
    CatalogAfter,
    Finished,
    finished_tables,
)
from airflow_provider_pgoutput.capture.staging.messages import SCHEMA as MESSAGES_SCHEMA
from airflow_provider_pgoutput.capture.staging.messages import message_rows
from airflow_provider_pgoutput.capture.staging.passing import Passing
from airflow_provider_pgoutput.capture.staging.rejected import SCHEMA as REJECTED_SCHEMA
from airflow_provider_pgoutput.capture.staging.repairs import RepairRefused
from airflow_provider_pgoutput.capture.staging.sealed_copies import (
    SealedCopy,
    delete_seal,
    delete_seals,
    find_seals,
    write_seals,
)
from airflow_provider_pgoutput.capture.staging.sent_values import Casters
from airflow_provider_pgoutput.capture.staging.tables import (
    StagedTables,
    cast_block,
    copied_counts,
    stage_block,
)
from airflow_provider_pgoutput.capture.staging.writers import TableWriter, WriterPool
from airflow_provider_pgoutput.capture.types.arrow_bytes import in_parts
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    SnapshotLost,
    TableRefused,
    ValueRefused,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from airflow_provider_pgoutput.batch.earlier_systems import (
        EarlierSystem,
        EarlierTable,
        EarlierTimeline,
    )
    from airflow_provider_pgoutput.batch.manifest import PreparedTransaction, SkippedTransaction
    from airflow_provider_pgoutput.batch.membership import PublishedSet
    from airflow_provider_pgoutput.batch.table_version import StagedFile, TableVersion
    from airflow_provider_pgoutput.batch.type_definition import TypeDefinition
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock, LogicalMessageBlock
    from airflow_provider_pgoutput.capture.pgoutput.messages import Relation
    from airflow_provider_pgoutput.capture.source.catalog import Server
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.staging.copied_table import CopiedTable
    from airflow_provider_pgoutput.capture.staging.tables import (
        Describe,
        StagedRows,
        StagedTable,
        StagedVersion,
    )
    from airflow_provider_pgoutput.capture.types.cast import ValuePolicy
    from airflow_provider_pgoutput.errors import PgoutputError

log = logging.getLogger(__name__)

#: These errors concern one table. The stream and the other tables are as they should be.
_ABOUT_A_TABLE = (ConfigurationError, TableRefused, ValueRefused)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedChanges:
    """The tables whose changes go into the batch. Tables that it copies always belong to them."""

    #: Whether the changes of all other tables are left out.
    only_copied: bool = False
    #: Tables that were published while others were copied, by OID: the next batch copies them.
    left_out: frozenset[int] = frozenset()
    #: OIDs of the tables that the lake has. Changes of other tables are left out. None: no table is left out
    #: because the lake does not have it.
    known: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """What is known of a batch when all was read, beside the rows in its files."""

    publication_names: tuple[str, ...]
    end: Lsn
    #: What the catalogs said when all was read.
    catalog: CatalogAfter
    transactions: int = 0
    last_commit_time: str | None = None
    #: See ``Manifest``.
    complete_until: str | None = None
    #: Transactions that were prepared in the batch and wait for their commit.
    prepared: Sequence[PreparedTransaction] = ()
    #: ``start_lsn``: the stream follows tables from there that the user loaded. None: the user loaded none.
    loaded_lsn: Lsn | None = None
    #: How each table was published when the run began.
    published: PublishedSet | None = None
    #: Transactions that were left out.
    skipped: tuple[SkippedTransaction, ...] = ()
    #: Commits that the user wants left out. A sealed batch that has one of them does not replace this batch.
    skip_lsns: Collection[Lsn] = ()
    #: See ``seal`` of ``staging/manifests.py``.
    lake_lsn: Lsn | None = None
    #: The systems from which the lake was filled before this one, the oldest first.
    adopted_from: tuple[EarlierSystem, ...] = ()
    #: See ``Manifest``.
    earlier_timelines: tuple[EarlierTimeline, ...] = ()


class BatchInProgress:
    """Collects the rows of one batch and seals it.

    :param start: where the batch starts.
    :param attempt: see ``name`` of ``Attempt``.
    :param memory_mib: the limit for rows that are held in memory, in MiB.
    :param casters: choose the casters of values. They depend on users' types and on the transport.
    :param message_prefixes: only logical messages with one of them are kept; empty: all.
    :param passing: the tables whose changes are passed over.
    :param copied_by_policy: OIDs of the tables that ``on_unknown_default="copy"`` copies again when a change
        of them cannot be staged. Other tables are refused then.
    :param choose: the changes of a block that are staged; None: all.
    """

    def __init__(
        self,
        area: StagingArea,
        slot_name: str,
        start: Lsn,
        attempt: str,
        describe: Describe,
        policy: ValuePolicy,
        memory_mib: int,
        casters: Casters | None = None,
        message_prefixes: Sequence[str] = (),
        passing: Passing | None = None,
        copied_by_policy: frozenset[int] = frozenset(),
        choose: Callable[[ChangeBlock], ChangeBlock] | None = None,
    ) -> None:
        self._area = area
        self._slot_name = slot_name
        self._start = start
        self._tables = StagedTables(describe, policy, casters or Casters())
        self._pool = WriterPool(memory_mib << 20)
        self._attempt = Attempt(
            area, slot_name, start, attempt, lambda: {each.folder for each in self._pool.writers}
        )
        self._root = self._attempt.root
        self._message_prefixes = message_prefixes
        self._rejected: TableWriter | None = None
        self._messages: TableWriter | None = None
        #: Where the tables that are copied were read, by OID.
        self.copied_at: dict[int, Lsn] = {}
        self._wanted = WantedChanges()
        self._copied_by_policy = copied_by_policy
        self._choose = choose
        #: Tables whose changes were left out because the lake does not have them, by OID.
        self.unknown_oids: set[int] = set()
        #: Tables whose changes are passed over.
        self.passing = passing or Passing()
        #: Writers of values that the columns of a table that is copied could not hold, by OID.
        self._copy_rejected: dict[int, TableWriter] = {}
        self._copy_rejected_files: list[StagedFile] = []
        self.rows = 0
        #: OIDs of the tables with rows that were read again, and of those that were compared.
        self._repaired: set[int] = set()
        #: Whether this attempt made the batch exist. Another run may have been first.
        self.is_sealed = False

    def want(self, changes: WantedChanges) -> None:
        """Leave out the changes of other tables from here on."""
        self._wanted = changes

    def add(self, block: ChangeBlock) -> None:
        """Stage the changes of a block. Changes that a copy in this batch has already are left out.

        :raises ValueRefused: a value does not fit, the policy says ``fail``, and the table is not set aside.
        :raises TableRefused: a change does not tell what it did, and the table is not set aside.
        :raises CopyNeeded: see ``_copy_instead``.
        :raises SnapshotLost: see ``_copy_instead``.
        """
        oid = block.relation.oid
        copied_at = self.copied_at.get(oid)
        if copied_at is None and oid not in self.passing.found and self._leaves_out(block.relation):
            return
        if copied_at is not None:
            block = block.since(copied_at)
            if not len(block):
                return
        if self.passing.takes(block, is_copied=copied_at is not None):
            return
        self._take(block)

    def _take(self, block: ChangeBlock) -> None:
        """Stage the changes of a block. If one is refused, those before it may be staged already."""
        staged_before = self.rows
        try:
            if self._choose is not None:
                block = self._choose(block)
            if len(block):
                self._stage(block)
        except _ABOUT_A_TABLE as error:
            is_gone = not self.passing.is_published(block.relation.oid)
            if not is_gone and isinstance(error, TableRefused):
                refused = self._copy_instead(block.relation.oid, error)
            else:
                refused = error
            if not is_gone and not self.passing.sets_aside:
                raise refused from error
            self._pass_over(block[self.rows - staged_before :], refused, is_gone=is_gone)

    def _pass_over(self, block: ChangeBlock, error: PgoutputError, *, is_gone: bool) -> None:
        """Pass over a change, and all later ones of its table: it is gone, or set aside.

        :param block: changes; none of them is staged.
        """
        relation, first = block.relation, int(block.commit_lsn[0])
        refused = first if error.lsn is None else int(Lsn.parse(error.lsn))
        if is_gone:
            self.passing.begin(relation.oid, relation.name, Lsn(refused), error.message)
        else:
            self.passing.set_aside(relation.oid, relation.name, Lsn(refused), error)
        count = len(block.since(Lsn(refused)))
        self.passing.count(block.relation.oid, count)
        if refused > first:
            # Another column may have an earlier value that is refused.
            self._take(block[: len(block) - count])

    def begin_difference(self, relation: Relation, earlier: EarlierTable | None = None) -> None:
        """Take a table that was compared with the lake. The rows that differ follow, by ``repair``.

        :param earlier: see ``Table``.
        :raises RepairRefused: its changes are passed over, or it cannot be described.
        """
        if relation.oid in self.passing.found or relation.oid in self.passing.before:
            raise RepairRefused(relation.oid, relation.name, "its changes are passed over.")
        try:
            table, _ = self._tables.version_of_repair(relation)
        except _ABOUT_A_TABLE as error:
            raise RepairRefused(relation.oid, relation.name, str(error)) from error
        table.begin_difference(earlier)
        self._repaired.add(relation.oid)

    def repair(self, block: ChangeBlock, *, or_refuse: bool = False) -> None:
        """Stage rows of a table that were read again.

        They have all values, so ``refuse_incomplete`` has nothing to look for. If the table cannot take them,
        a warning says why, and none of them is staged. A row is left out if the lake cannot hold its key.

        :param or_refuse: refuse the rows instead, if some of them would not be staged.
        :raises RepairRefused: see ``or_refuse``.
        """
        oid, name = block.relation.oid, block.relation.name
        is_new = oid not in self._tables.by_oid

        def leave_out(why: str, rows: str = f"{name} is") -> None:
            if or_refuse:
                raise RepairRefused(oid, name, why)
            log.warning("%s not repaired: %s", rows, why)

        if oid in self.passing.found or oid in self.passing.before:
            leave_out("its changes are passed over.")
            return
        try:
            table, version = self._tables.version_of_repair(block.relation)
            cast = functools.partial(cast_block, version)
            staged = list(in_parts(cast, block))
            lacking = np.concatenate([each.without_key(version.version) for each in staged])
            if lacking.any():
                rows = f"{np.count_nonzero(lacking)} rows of {name} are"
                leave_out("the lake cannot hold a value of their key.", rows)
                block = block.where(~lacking)
                staged = list(in_parts(cast, block)) if len(block) else []
        except _ABOUT_A_TABLE as error:
            leave_out(str(error))
            staged = []
        if staged:
            self._append(table, version, block, staged)
            self._repaired.add(oid)
        elif is_new:
            self._tables.remove(oid)

    def _stage(self, block: ChangeBlock) -> None:
        table, version = self._tables.version_of(block.relation)
        self._append(
            table, version, block, in_parts(functools.partial(stage_block, version), block)
        )

    def _append(
        self,
        table: StagedTable,
        version: StagedVersion,
        block: ChangeBlock,
        parts: Iterable[StagedRows],
    ) -> None:
        writer = version.changes_writer or version.begin_changes(
            self._writer(version, "changes", version.changes_schema, version.changes_required)
        )
        version.note_xids(block.xid)
        for staged in parts:
            self._pool.append(writer, staged.rows)
            for rejected in staged.rejected:
                self.reject(rejected)
            table.count(staged.counts)
            self.rows += staged.rows.num_rows

    def _copy_instead(self, relation_oid: int, error: TableRefused) -> PgoutputError:
        """Ask for a copy of a table, if it may be copied: one of its changes does not tell what it did.

        :return: why the change is refused: ``error``, or ``SnapshotLost`` if the change came after the copy
            that the batch holds. Then another copy mends it.
        :raises CopyNeeded: the policy wants a copy, and the batch holds none of it.
        """
        if relation_oid in self.copied_at:
            delete_seal(self._area, self._slot_name, self._start, relation_oid)
            return SnapshotLost(
                f"{error.message} It came after the table was copied in this batch.",
                table=error.table,
                column=error.column,
                lsn=error.lsn,
                advice="run the task again: the table is copied anew, with what the change did.",
            )
        if relation_oid in self._copied_by_policy:
            log.warning(
                "%s: the table is copied again, as on_unknown_default says: %s", error.table, error
            )
            raise CopyNeeded(relation_oid) from error
        return error

    def _leaves_out(self, relation: Relation) -> bool:
        """Whether the changes of a table that is not copied are left out."""
        wanted = self._wanted
        if wanted.only_copied or relation.oid in wanted.left_out:
            return True
        if wanted.known is None or relation.oid in wanted.known | self._repaired:
            return False
        if relation.oid not in self.unknown_oids:
            self.unknown_oids.add(relation.oid)
            log.warning(
                "Changes of %s are left out: the lake does not have the table, see on_new_table.",
                relation.name,
            )
        return True

    def add_copy(
        self,
        relation_oid: int,
        version: TableVersion,
        copy_lsn: Lsn,
        types: tuple[TypeDefinition, ...] = (),
        copy_time: str | None = None,
    ) -> StagedTable:
        """Begin a table that is copied. ``copy_rows`` follows, then ``seal_copies`` or ``drop_copy``.

        :param types: how the users' types in its columns are defined where it is copied.
        :param copy_time: see ``Table``.
        """
        table = self._tables.copied(relation_oid, version, str(copy_lsn), types, copy_time)
        self.copied_at[relation_oid] = copy_lsn
        staged = table.versions[-1]
        schema = pa.schema(staged.new_fields)
        staged.begin_copy(self._writer(staged, "copy", schema, frozenset(schema.names)))
        return table

    def copy_rows(
        self, table: StagedTable, rows: pa.RecordBatch, rejected: Sequence[pa.RecordBatch]
    ) -> None:
        """Stage rows of a table that is copied, and what its columns could not hold of them."""
        staged = table.versions[-1]
        assert staged.copy_writer is not None, "add_copy was called for it"
        self._pool.append(staged.copy_writer, rows)
        for each in rejected:
            self._pool.append(self._reject_writer(staged), each)
        table.count(copied_counts(staged.version, rows, rejected))
        self.rows += rows.num_rows

    def take_copy(self, table: StagedTable, copied: CopiedTable) -> None:
        """Take the files of a copied table that other processes wrote. ``seal_copies`` follows."""
        version = table.versions[-1]
        assert version.copy_writer is not None, "add_copy was called for it"
        version.copy_writer.files.extend(copied.files)
        if copied.rejected_files:
            self._reject_writer(version).files.extend(copied.rejected_files)
        table.count(copied.counts)
        self.rows += copied.counts.copied

    def seal_copies(self, tables: Sequence[StagedTable], fingerprints: Sequence[str]) -> None:
        """Complete copies of tables, so that a later attempt need not make them again.

        :param fingerprints: that of each table, see ``SealedCopy``.
        """
        writers = [self._copy_writers(table) for table in tables]
        self._pool.finish_some([each for found in writers for each in found])
        folders = {each.folder for found in writers for each in found if each.files}
        self._area.sync(*folders)
        self._attempt.keep(folders)
        sealed = []
        for table, fingerprint, (copied, *rejecting) in zip(
            tables, fingerprints, writers, strict=True
        ):
            oid = table.relation_oid
            self._copy_rejected.pop(oid, None)
            rejected = tuple(file for each in rejecting for file in each.files)
            self._copy_rejected_files += rejected
            sealed.append(
                SealedCopy(
                    relation_oid=oid,
                    copy_lsn=self.copied_at[oid],
                    fingerprint=fingerprint,
                    files=tuple(copied.files),
                    rejected_files=rejected,
                    counts=table.counts,
                    copy_time=table.copy_time,
                )
            )
        write_seals(self._area, self._slot_name, self._start, sealed)
        for _ in sealed:
            reach("stage.after_copied_table")

    def drop_copy(self, table: StagedTable) -> None:
        """Forget a table that was copied in part, so that it can be copied again."""
        writers = self._copy_writers(table)
        self._pool.drop(writers)
        self._area.delete_folder(writers[0].folder)
        self._copy_rejected.pop(table.relation_oid, None)
        self.rows -= table.counts.copied
        self._tables.remove(table.relation_oid)
        del self.copied_at[table.relation_oid]

    def sealed_copies(self) -> list[SealedCopy]:
        """The tables that earlier attempts at this batch copied whole."""
        return find_seals(self._area, self._slot_name, self._start)

    def adopt_copy(
        self, version: TableVersion, sealed: SealedCopy, types: tuple[TypeDefinition, ...]
    ) -> None:
        """Take over a table that an earlier attempt copied whole."""
        oid = sealed.relation_oid
        self.copied_at[oid] = sealed.copy_lsn
        copy_lsn = str(sealed.copy_lsn)
        table = self._tables.copied(oid, version, copy_lsn, types, sealed.copy_time)
        table.adopt_copy(sealed.files, sealed.counts)
        self._copy_rejected_files += sealed.rejected_files
        self.rows += sealed.counts.copied

    def _reject_writer(self, version: StagedVersion) -> TableWriter:
        """The writer of what the columns of a table that is copied could not hold."""
        oid, names = version.relation_oid, frozenset(REJECTED_SCHEMA.names)
        if oid not in self._copy_rejected:
            self._copy_rejected[oid] = self._writer(version, "rejected", REJECTED_SCHEMA, names)
        return self._copy_rejected[oid]

    def _copy_writers(self, table: StagedTable) -> list[TableWriter]:
        """The writer of a table's copy and that of what its columns could not hold, if there is one."""
        rows = table.versions[-1].copy_writer
        assert rows is not None, "add_copy was called for it"
        rejected = self._copy_rejected.get(table.relation_oid)
        return [rows] if rejected is None else [rows, rejected]

    def reject(self, rows: pa.RecordBatch) -> None:
        """Keep values that their column could not hold."""
        if self._rejected is None:
            self._rejected = self._side_writer("rejected", REJECTED_SCHEMA)
        self._pool.append(self._rejected, rows)

    def add_messages(self, block: LogicalMessageBlock) -> None:
        """Stage logical messages, as far as their prefix is wanted."""
        rows = message_rows(block, self._message_prefixes)
        if rows.num_rows == 0:
            return
        if self._messages is None:
            self._messages = self._side_writer("messages", MESSAGES_SCHEMA)
        self._pool.append(self._messages, rows)

    def finish_files(self) -> None:
        """Complete every file and make it durable."""
        self._pool.finish()
        self._area.sync(*{each.folder for each in self._pool.writers if each.files})

    def seal(self, server_now: Callable[[], Server], facts: BatchFacts) -> tuple[Manifest, str]:
        """Write the manifest; the files are complete.

        :param server_now: the source as it is when this is called.
        :raises CopyNeeded: a table changed so that it has to be copied; nothing was sealed.
        :raises RepairRefused: see ``finished_tables``; nothing was sealed.
        """
        server = server_now()
        finished = finished_tables(
            Finished(
                self._area, self._tables, self.passing, self._start, frozenset(self._repaired)
            ),
            facts.catalog,
        )
        manifest = Manifest(
            slot_name=self._slot_name,
            system_identifier=server.system_identifier,
            timeline=server.timeline,
            database=server.database,
            publication_names=facts.publication_names,
            start_lsn=self._start,
            end_lsn=facts.end,
            tables=finished,
            transactions=facts.transactions,
            last_commit_time=facts.last_commit_time,
            complete_until=facts.complete_until,
            rejected_files=(
                *self._copy_rejected_files,
                *(self._rejected.files if self._rejected else ()),
            ),
            message_files=tuple(self._messages.files) if self._messages else (),
            prepared=tuple(facts.prepared),
            loaded_lsn=None if facts.loaded_lsn is None else str(facts.loaded_lsn),
            published=facts.published,
            skipped=facts.skipped,
            passed_over=self.passing.report(self.copied_at),
            refused_copies=tuple(self.passing.refused_copies),
            adopted_from=facts.adopted_from,
            earlier_timelines=facts.earlier_timelines,
            created_by=f"airflow-provider-pgoutput {__version__}",
        )
        sealed = self._attempt.seal(manifest, server_now, facts.skip_lsns, facts.lake_lsn)
        self.is_sealed = sealed[0] is manifest
        if self.copied_at:
            delete_seals(self._area, self._slot_name, self._start)
        return sealed

    def abandon(self) -> None:
        """Give the batch up. Sealed tables stay. So do all files if the batch itself may be sealed."""
        self._pool.abandon()
        self._attempt.abandon()

    def prepared_path(self, number: int) -> str:
        """Where the content of a prepared transaction of this batch goes."""
        return layout.prepared_path(self._root, number)

    @property
    def relation_oids(self) -> tuple[int, ...]:
        """OIDs of the tables that have rows."""
        return tuple(self._tables.by_oid)

    @property
    def ambiguous_oids(self) -> tuple[int, ...]:
        """OIDs of the tables with rows that have the name of another table with rows."""
        last = {oid: table.versions[-1].version for oid, table in self._tables.by_oid.items()}
        names = {oid: (each.schema_name, each.table_name) for oid, each in last.items()}
        counted = Counter(names.values())
        return tuple(oid for oid, name in names.items() if counted[name] > 1)

    def _side_writer(self, kind: str, schema: pa.Schema) -> TableWriter:
        """A writer of rows that belong to no table of the source."""
        folder, required = f"{self._root}/{kind}", frozenset(schema.names)
        return self._pool.add(TableWriter(self._area, folder, kind, schema, required))

    def _writer(
        self, version: StagedVersion, kind: str, schema: pa.Schema, required: frozenset[str]
    ) -> TableWriter:
        folder = layout.table_folder(self._root, version.relation_oid, version.version.version)
        return self._pool.add(TableWriter(self._area, folder, kind, schema, required))
