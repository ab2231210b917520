"""The PostgreSQL server of a run: its catalogs and its slot. ``Source`` in ``run.py`` says what is asked."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.answers import COPY, SET_ASIDE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import SlotOnServer, move_slot
from airflow_provider_pgoutput.capture.column_choices import check_column_types, check_key_columns
from airflow_provider_pgoutput.capture.describe import Describer
from airflow_provider_pgoutput.capture.filters.of_tables import Filters
from airflow_provider_pgoutput.capture.masking import Masks
from airflow_provider_pgoutput.capture.membership import (
    changes_of_membership,
    refuse_other_names,
    warn_of_membership_changes,
)
from airflow_provider_pgoutput.capture.run import Facts
from airflow_provider_pgoutput.capture.schema.altered_types import AlteredTypes
from airflow_provider_pgoutput.capture.schema.full_keys import FullKeys
from airflow_provider_pgoutput.capture.schema.history import SchemaHistory
from airflow_provider_pgoutput.capture.schema.older_rows import seen_from
from airflow_provider_pgoutput.capture.slot.flush_position import read_flush_lsn, read_record_end
from airflow_provider_pgoutput.capture.slot.replication_slot import (
    create_slot,
    drop_slot,
    read_slot,
)
from airflow_provider_pgoutput.capture.source.attributes import (
    read_attributes,
    read_constant_default,
)
from airflow_provider_pgoutput.capture.source.binary_forms import check_binary_forms
from airflow_provider_pgoutput.capture.source.catalog import (
    NEWEST_KNOWN_CATALOGS,
    read_names,
    read_published_tables,
)
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.source.money import warn_of_other_decimals
from airflow_provider_pgoutput.capture.source.publications import (
    read_publications,
    read_published_set,
    warn_of_missing_identity,
    warn_of_missing_operations,
    warn_of_unsent_partitions,
)
from airflow_provider_pgoutput.capture.source.rights import check_may_copy
from airflow_provider_pgoutput.capture.source.session import check_replication
from airflow_provider_pgoutput.capture.source.storage import read_catalog_state, read_storage
from airflow_provider_pgoutput.capture.source.type_definitions import (
    TypesOfTables,
    read_type_definitions,
)
from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
from airflow_provider_pgoutput.capture.staging.finished import CatalogAfter
from airflow_provider_pgoutput.capture.staging.marks import next_mark
from airflow_provider_pgoutput.capture.staging.passing import Passing
from airflow_provider_pgoutput.capture.staging.sent_values import Casters
from airflow_provider_pgoutput.capture.stream.missed_publications import (
    check_publications_throughout,
)
from airflow_provider_pgoutput.capture.stream.options import SQL
from airflow_provider_pgoutput.capture.stream.read import ReadSettings
from airflow_provider_pgoutput.capture.types.type_info import FIRST_USER_OID
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import SourceLocked

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.membership import PublishedSet
    from airflow_provider_pgoutput.batch.shape import Storage
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.slot.facts import SlotFacts
    from airflow_provider_pgoutput.capture.slot.replication_slot import ExportedSnapshot
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.capture.source.publications import Publication
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.capture.stream.read import Found
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.errors import MissingPrivilege, PgoutputError

log = logging.getLogger(__name__)


#: How often a slot is made while somebody alters tables.
_MOST_SLOTS = 3


class PostgresSource:
    """A PostgreSQL server, as one run asks it."""

    def __init__(
        self, request: CaptureRequest, area: StagingArea, session: Session, server: Server
    ) -> None:
        self.request = request
        self.area = area
        self.session = session
        self.server = server
        self.publication_names = tuple(request.publication_names)
        checkpoint, adopts = request.checkpoint, request.adopted_system is not None
        self.masks = Masks(
            request.masks, request.mask_secret, checkpoint, self.read_tables, adopts=adopts
        )
        self.filters = Filters(
            session,
            request.conditions,
            self._types_of_columns,
            lambda relation: self.keys.completed(session, relation),
            checkpoint,
            self.read_tables,
            adopts=adopts,
        )
        options = request.options
        if self.masks.is_used:
            options = options.of_whole_transactions()
        self.options = options.for_server(server, self.publication_names)
        self.keys = Keys(request.key_columns)
        self.describer = Describer(
            session,
            self.keys,
            request.types,
            request.policy,
            known_types=None if checkpoint is None else checkpoint.types,
            masks=self.masks,
            row_filter=self.filters.recorded,
        )
        #: Whether a published table was locked when the server was to list them.
        self._is_locked = False
        #: Names of the tables without columns that were warned of.
        self._without_columns: set[str] = set()
        is_later = request.checkpoint is not None
        #: By OID: tables that cannot be staged as the request says. None: such a table ends the run. In the
        #: first run it always does, because the request is probably wrong.
        self._unfit: dict[int, PgoutputError] | None = (
            {} if is_later and request.on_table_refused == SET_ASIDE else None
        )

    def _types_of_columns(self, tables: Iterable[PublishedTable]) -> Mapping[int, TypeInfo]:
        return self.describer.types_of(tables)

    def server_now(self) -> Server:
        """See ``Source``."""
        return dataclasses.replace(
            self.server, flush_lsn=read_flush_lsn(self.session, self.server.lsn_offset)
        )

    def read_target(self, start: Lsn) -> Lsn:
        """See ``Source``. Logical messages may come after the flush LSN that was read when the run began."""
        target = self.server.flush_lsn
        if self.request.options.messages:
            target = read_record_end(self.session, self.server.lsn_offset)
        mark = next_mark(self.area, self.request.slot_name, start, target)
        if mark is not None:
            log.info("The batch ends at %s, where a verification looks at the lake.", mark)
        return target if mark is None else mark

    def read_tables(self) -> tuple[PublishedTable, ...]:
        """See ``Source``. A table without a published column is left out.

        Iceberg has no such tables. Once they get a column they are tables that were published just now.
        """
        found = self.masks.published(self.read_whole_tables())
        bare = {each.name for each in found if not each.columns}
        if new := sorted(bare - self._without_columns):
            self._without_columns |= bare
            log.warning(
                "Published without a single column, so left out: %s. Each joins when it gets one.",
                ", ".join(new),
            )
        return tuple(each for each in found if each.columns)

    def read_whole_tables(self) -> tuple[PublishedTable, ...]:
        """The published tables as they are now, with the columns that a mask leaves out."""
        return self.filters.published(self._read_published())

    def _read_published(self) -> tuple[PublishedTable, ...]:
        if not self._is_locked:
            try:
                return self._read_tables(waits=True)
            except SourceLocked as error:
                sets_aside = self.request.on_table_refused == SET_ASIDE
                if not sets_aside or self.server.major > NEWEST_KNOWN_CATALOGS:
                    raise
                log.warning("%s The published tables are read from the catalogs instead.", error)
                self._is_locked = True
        return self._read_tables(waits=False)

    def _read_tables(self, *, waits: bool) -> tuple[PublishedTable, ...]:
        source = self.session, self.server, self.publication_names, self.keys
        return read_published_tables(*source, self._unfit, waits=waits)

    def check_sealed(self, manifest: Manifest) -> None:
        """See ``Source``."""
        is_earlier = manifest.system_identifier != self.server.system_identifier
        self.masks.check_sealed(manifest, is_of_earlier_system=is_earlier)
        self.filters.check_sealed(manifest, is_of_earlier_system=is_earlier)

    def read_facts(self) -> Facts:
        """See ``Source``. The number of queries does not depend on the number of tables."""
        publications, tables = self._read_publications()
        types = self.describer.types_of(tables)
        self.masks.check(self.request.copy_tables)
        self.filters.check(self.request.copy_tables)
        if self.options.binary:
            # The server sends a column that a mask leaves out, too.
            whole = self.masks.whole_tables
            types = self.describer.types_of(whole)
            check_binary_forms(whole, types, two_phase=self.options.two_phase)
        if self.request.checkpoint is None:
            # Only when a pipeline begins, so that a user who wants this is not warned in each run.
            warn_of_missing_operations(publications)
        slot_name = self.request.slot_name
        warn_of_missing_identity(publications, tables)
        warn_of_unsent_partitions(self.session, tables)
        warn_of_other_decimals(self.request.conninfo, tables, types, slot_name=slot_name)
        return Facts(
            tables,
            read_published_set(self.session, self.publication_names, tables),
            read_storage(self.session, (each.relation_oid for each in tables)),
            {**self.filters.unfit, **(self._unfit or {})},
        )

    def _read_publications(self) -> tuple[tuple[Publication, ...], tuple[PublishedTable, ...]]:
        """The publications and their tables; from version 18 on the server only warns of a missing one."""
        publications = read_publications(self.session, self.publication_names)
        tables = self.read_tables()
        types, is_first = self.describer.types_of(tables), self.request.checkpoint is None
        check_column_types(
            tables, types, self.request.types, is_first=is_first, refused=self._unfit
        )
        check_key_columns(tables, self.keys.configured, is_first=is_first)
        return publications, tables

    def read_after(
        self, batch: BatchInProgress, start: Start, facts: Facts, found: Found
    ) -> CatalogAfter:
        """See ``Source``."""
        # When no table has rows in the batch, the tables need not be looked at again.
        tables = facts.tables
        if batch.relation_oids or batch.unknown_oids:
            _, tables = self._read_publications()
            copied = [each.name for each in tables if each.relation_oid in batch.copied_at]
            self.masks.check(copied)
            self.filters.check(copied)
        if start.published_before is not None:
            refuse_other_names(
                self.session,
                (start.published_before, facts.published),
                # A partition that the lake does not know may belong to a table that the lake has.
                sent=[*batch.relation_oids, *batch.unknown_oids],
                copied=batch.copied_at,
                slot_name=self.request.slot_name,
            )
        if found.changes and self.server.major >= 18 and found.transport == SQL:
            check_publications_throughout(
                self.session,
                self.request.slot_name,
                self.publication_names,
                self.server.lsn_offset.of_server(found.end),
            )
        aside = (batch.passing.found.keys() | batch.passing.before.keys()) - batch.copied_at.keys()
        history = self._history(batch.relation_oids, tables, facts.storage, aside)
        # A table that was dropped right after the tables were read has no columns any more.
        published = {each.relation_oid for each in tables} & history.attributes.keys()
        return CatalogAfter(
            history, self._names(batch, published), self._unpublished(batch, published)
        )

    def read_slot(self) -> SlotFacts | None:
        """See ``Source``."""
        return read_slot(self.session, self.request.slot_name, self.server.lsn_offset)

    def create_slot(self) -> ExportedSnapshot:
        """See ``Source``.

        PostgreSQL makes a slot in several steps. It can miss a transaction that commits between two of them.
        Example: ALTER TABLE renames a column. The slot then sends rows under the old name. So the catalogs
        are compared before and after. If they differ, the slot is made again, three times at most.

        Source: the thread "Fix logical decoding not track transaction during SNAPBUILD_BUILDING_SNAPSHOT" of
        the list pgsql-hackers, November 2025.
        """
        request = self.request
        self._check_replication()
        # A slot holds WAL until a batch is staged. So first try whether the staging area takes a file. If the
        # run is killed here, the prune task deletes the file.
        self.area.check(layout.attempt_folder(request.slot_name, Lsn(0), "check"))
        for tries_left in reversed(range(_MOST_SLOTS)):
            before = read_catalog_state(self.session)
            snapshot = create_slot(
                request.direct,
                request.slot_name,
                self.server,
                two_phase=self.options.two_phase,
                failover=request.failover,
            )
            reach("stage.after_slot")
            if read_catalog_state(self.session) == before:
                return snapshot
            if not tries_left:
                log.warning(
                    "Slot %s was made three times, and each time somebody altered a table or a publication."
                    " The slot may send rows of that table with its old columns. Find out which table it was,"
                    " and copy it again (copy_tables) at a quiet time.",
                    request.slot_name,
                )
                return snapshot
            log.info(
                "Slot %s is made anew: a table or a publication was altered while it was made.",
                request.slot_name,
            )
            snapshot.close()
            if (slot := self.read_slot()) is not None:
                drop_slot(self.session, slot)
        raise AssertionError("the last try returns")

    def confirm(self, lsn: Lsn) -> None:
        """See ``Source``."""
        server, request = self.server, self.request
        known_as = server.system_identifier, server.lsn_offset
        slot = SlotOnServer(self.session, request.direct, request.slot_name, *known_as)
        slot.wait_for_its_reader()
        move_slot(slot, lsn, server.system_identifier)

    def drop_slot(self, slot: SlotFacts) -> None:
        """See ``Source``. A slot is dropped only to make another one."""
        self._check_replication()
        drop_slot(self.session, slot)
        log.warning("Dropped slot %s, which could not give what the lake lacks.", slot.name)
        reach("stage.after_drop")

    def check_may_copy(
        self, tables: Sequence[PublishedTable], *, one_by_one: bool = False
    ) -> dict[int, MissingPrivilege]:
        """See ``Source``."""
        if tables:
            self._check_replication()
        return check_may_copy(
            self.session,
            self.publication_names,
            tables,
            slot_name=self.request.slot_name,
            one_by_one=one_by_one,
        )

    def _check_replication(self) -> None:
        """Refuse a pooler where a replication connection is needed."""
        check_replication(self.session, self.request.direct, slot=self.request.slot_name)

    def gaps_since(self, before: PublishedSet | None, facts: Facts) -> frozenset[int]:
        """See ``Source``."""
        slot_name = self.request.slot_name
        if before is None:
            warn_of_membership_changes(self.session, slot_name, self.publication_names)
            return frozenset()
        return changes_of_membership(self.session, before, facts.published, slot_name=slot_name)

    def read_settings(self, start: Start) -> ReadSettings:
        """How the slot is read."""
        request = self.request
        return ReadSettings(
            session=self.session,
            conninfo=request.conninfo,
            direct_conninfo=request.direct,
            slot_name=request.slot_name,
            options=self.options,
            transport=request.transport,
            connections=request.decode_parallelism,
            part_bytes=request.part_bytes,
            skip_lsns=start.skip_lsns,
            left_out=start.left_out,
            announce_types=self.describer.announce_types,
            tell=request.tell,
            lsn_offset=self.server.lsn_offset,
        )

    def _names(self, batch: BatchInProgress, published: set[int]) -> dict[int, tuple[str, str]]:
        """Names that the catalog has now, for tables whose names in the stream may be old.

        Version 15 does not announce a renamed schema again. No version announces a table that was renamed and
        not written to since; another table may have its name by now. A dropped table has no name here. A
        table that is no longer published keeps its name of the stream, because nobody could copy it under
        another one.
        """
        oids = set(batch.ambiguous_oids)
        if self.server.major == 15:
            oids |= published & set(batch.relation_oids)
        return read_names(self.session, oids) if oids else {}

    def _unpublished(self, batch: BatchInProgress, published: set[int]) -> dict[int, str | None]:
        """Tables with rows in the batch that are gone or unpublished now, with their names in the lake."""
        checkpoint = self.request.checkpoint
        known = (checkpoint.tables if checkpoint else None) or {}
        return {oid: known.get(oid) for oid in batch.relation_oids if oid not in published}

    def _history(
        self,
        relation_oids: Sequence[int],
        published: Sequence[PublishedTable],
        storage_at_start: Mapping[int, Storage],
        passed_over: Collection[int],
    ) -> SchemaHistory:
        """What tells which column is which in the tables that have rows in the batch.

        :param passed_over: OIDs of the tables whose changes are passed over.
        """
        checkpoint = self.request.checkpoint
        before = {} if checkpoint is None else checkpoint.shapes
        written = set(relation_oids)
        return SchemaHistory(
            policy=self.request.schema_policy,
            before=before,
            shapes_by_name={} if checkpoint is None else checkpoint.shapes_by_name,
            attributes=seen_from(before, read_attributes(self.session, relation_oids)),
            # Read after the columns. So if a column is known, a rewrite that came with it is known, too.
            storage=read_storage(self.session, relation_oids),
            storage_at_start=storage_at_start,
            published={
                table.relation_oid: frozenset(column.name for column in table.columns)
                for table in published
                if table.relation_oid in written
            },
            types=self._types_of(published, relation_oids),
            unwritten=[
                each for each in published if each.relation_oid not in {*written, *passed_over}
            ],
            type_name=self.describer.type_name,
            showing=self.describer.showing,
            constant_default=functools.partial(read_constant_default, self.session),
            full_keys=FullKeys(
                frozenset(name for name, key in self.keys.configured.items() if key),
                frozenset((checkpoint.tables if checkpoint else None) or ()),
            ),
        )

    def _types_of(
        self, tables: Sequence[PublishedTable], relation_oids: Iterable[int] = ()
    ) -> TypesOfTables:
        """How the users' types in the columns of these tables are defined now.

        :param relation_oids: further tables, which need not be published.
        """
        oids = {
            table.relation_oid
            for table in tables
            if any(column.type_oid >= FIRST_USER_OID for column in table.columns)
        }
        oids |= set(relation_oids) - {each.relation_oid for each in tables}
        return read_type_definitions(self.session, oids) if oids else TypesOfTables()

    def altered_tables(self, facts: Facts) -> tuple[PublishedTable, ...]:
        """See ``Source``."""
        policy, checkpoint = self.request.schema_policy, self.request.checkpoint
        if policy.on_type_change != COPY or checkpoint is None:
            return ()
        known = [each for each in facts.tables if each.relation_oid in checkpoint.shapes]
        found = AlteredTypes(policy, self._types_of(known)).altered_tables(checkpoint.shapes, known)
        return tuple(table for table, _ in found)

    def new_batch(self, start: Lsn, followed: frozenset[int] = frozenset()) -> BatchInProgress:
        """See ``Source``."""
        request, checkpoint = self.request, self.request.checkpoint
        self.describer.forget_older_rows()
        copied_by_policy: frozenset[int] = frozenset()
        if request.schema_policy.on_unknown_default == COPY and checkpoint is not None:
            copied_by_policy = frozenset(checkpoint.shapes)
        return BatchInProgress(
            self.area,
            request.slot_name,
            start,
            request.attempt,
            self.describer,
            request.policy,
            request.memory_mib,
            Casters(
                self.describer.copy_caster,
                self.describer.text_caster,
                self.describer.binary_caster,
            ),
            request.options.message_prefixes,
            Passing(
                {} if checkpoint is None else checkpoint.passed_over,
                lambda: frozenset(each.relation_oid for each in self.read_tables()),
                (checkpoint.tables if checkpoint else None) or {},
                sets_aside=request.on_table_refused == SET_ASIDE,
                asked=request.copy_tables,
                followed=followed,
                known_aside=frozenset()
                if checkpoint is None
                else checkpoint.passed_over.keys() - checkpoint.copied_by_itself,
            ),
            copied_by_policy,
            self.filters.passing if self.filters.is_used else None,
        )
