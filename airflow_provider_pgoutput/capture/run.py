"""What all ways to a batch share: the request, the session, and what was found on the server.

What is not here: which way is taken (``pipeline.py``), and the ways (``reading.py``, ``copying.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.capture.advance import SlotOnServer, move_slot
from airflow_provider_pgoutput.capture.column_choices import check_column_types, check_key_columns
from airflow_provider_pgoutput.capture.describe import Describer
from airflow_provider_pgoutput.capture.membership import (
    changes_of_membership,
    refuse_other_names,
    refuse_other_root,
    warn_of_membership_changes,
)
from airflow_provider_pgoutput.capture.request import ALWAYS
from airflow_provider_pgoutput.capture.schema.altered_types import AlteredTypes
from airflow_provider_pgoutput.capture.schema.full_keys import FullKeys
from airflow_provider_pgoutput.capture.schema.history import SchemaHistory
from airflow_provider_pgoutput.capture.schema.older_rows import seen_from
from airflow_provider_pgoutput.capture.source.attributes import (
    read_attributes,
    read_constant_default,
)
from airflow_provider_pgoutput.capture.source.binary_forms import check_binary_forms
from airflow_provider_pgoutput.capture.source.catalog import (
    Server,
    read_names,
    read_publications,
    read_published_tables,
    warn_of_missing_identity,
    warn_of_missing_operations,
)
from airflow_provider_pgoutput.capture.source.flush_position import read_flush_lsn
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.source.money import warn_of_other_decimals
from airflow_provider_pgoutput.capture.source.publication_marks import read_marks
from airflow_provider_pgoutput.capture.source.rights import check_may_copy
from airflow_provider_pgoutput.capture.source.slot import create_slot, drop_slot
from airflow_provider_pgoutput.capture.source.slot_facts import read_slot
from airflow_provider_pgoutput.capture.source.storage import read_storage
from airflow_provider_pgoutput.capture.source.type_definitions import (
    TypesOfTables,
    read_type_definitions,
)
from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
from airflow_provider_pgoutput.capture.staging.manifests import find_ending, find_sealed
from airflow_provider_pgoutput.capture.staging.passing import Passing
from airflow_provider_pgoutput.capture.staging.sent_values import Casters
from airflow_provider_pgoutput.capture.stream.read import ReadSettings
from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase
from airflow_provider_pgoutput.capture.types.type_info import FIRST_USER_OID
from airflow_provider_pgoutput.crash_points import reach

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.membership import PublishedSet
    from airflow_provider_pgoutput.batch.shape import Storage
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.source.slot import ExportedSnapshot
    from airflow_provider_pgoutput.capture.source.slot_facts import SlotFacts
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.start import Start

log = logging.getLogger(__name__)


class CaptureContext:
    """One run of capture: what it was asked, and what it works with."""

    def __init__(
        self, request: CaptureRequest, area: StagingArea, session: Session, server: Server
    ) -> None:
        self.request = request
        self.area = area
        self.session = session
        self.server = server
        self.publication_names = tuple(request.publication_names)
        self.options = request.options.for_server(server, self.publication_names)
        self.keys = Keys(request.key_columns)
        self.describer = Describer(
            session,
            self.keys,
            request.types,
            request.policy,
            known_types=None if request.checkpoint is None else request.checkpoint.types,
        )
        #: By what each table was published when the run began; see ``take_marks``.
        self.marks: PublishedSet | None = None
        #: Names of the tables without columns that were warned of.
        self._without_columns: set[str] = set()
        #: By OID: where the tables lay then.
        self.storage_at_start: Mapping[int, Storage] = {}

    def server_now(self) -> Server:
        """The server, with what it has written by now."""
        return dataclasses.replace(self.server, flush_lsn=read_flush_lsn(self.session))

    def published(self) -> tuple[PublishedTable, ...]:
        """The tables of the publications, as the catalog has them now, but those without a published column.

        Iceberg has no such tables. Once they get a column they are tables that were published just now.
        """
        found = read_published_tables(self.session, self.server, self.publication_names, self.keys)
        bare = {each.name for each in found if not each.columns}
        if new := sorted(bare - self._without_columns):
            self._without_columns |= bare
            log.warning(
                "Published without a single column, so left out: %s. Each joins when it gets one.",
                ", ".join(new),
            )
        return tuple(each for each in found if each.columns)

    def check_publications(self) -> None:
        """Before and after every read: from version 18 on the server only warns of a missing one."""
        read_publications(self.session, self.publication_names)
        tables = self.published()
        types = self.describer.types_of(tables)
        is_first = self.request.checkpoint is None
        check_column_types(tables, types, self.request.types, is_first=is_first)
        check_key_columns(tables, self.keys.configured, is_first=is_first)

    def check_forms(self) -> None:
        """Before a read in binary mode; see ``check_binary_forms``."""
        if self.options.binary:
            tables = self.published()
            types = self.describer.types_of(tables)
            check_binary_forms(tables, types, two_phase=self.options.two_phase)

    def take_marks(self) -> None:
        """Record by what the tables are published and where they lie, before anything is copied or read."""
        publications = read_publications(self.session, self.publication_names)
        if self.request.checkpoint is None:
            # Once, when a pipeline begins: whoever wants it so need not read it every time.
            warn_of_missing_operations(publications)
        tables, slot_name = self.published(), self.request.slot_name
        types = self.describer.types_of(tables)
        warn_of_missing_identity(publications, tables)
        warn_of_other_decimals(self.request.conninfo, tables, types, slot_name=slot_name)
        self.marks = read_marks(self.session, self.publication_names, self.published())
        self.storage_at_start = read_storage(
            self.session, (each.relation_oid for each in self.published())
        )

    def published_since_begin(self) -> frozenset[int]:
        """OIDs of tables that were published since the marks were taken, which the next run copies.

        A batch that waited for copies may reach past that, and hold the changes of a table alone.
        """
        if self.request.initial_copy != ALWAYS or self.marks is None:
            return frozenset()
        begun = {each.relation_oid for each in self.marks.tables}
        return frozenset(each.relation_oid for each in self.published()) - begun

    def only_known(self) -> frozenset[int] | None:
        """OIDs of the tables that the lake has, when the changes of no other are taken; None: of all.

        Among the others may be one that was published for a while only, so the catalog cannot name them all.
        """
        checkpoint = self.request.checkpoint
        known = None if checkpoint is None else checkpoint.tables
        return None if self.request.on_new_table == COPY or known is None else frozenset(known)

    def with_waiting_copies(
        self, start: Lsn, tables: tuple[PublishedTable, ...]
    ) -> tuple[PublishedTable, ...]:
        """Tables to copy, and those that a sealed batch copied which gives way to the one that begins here.

        Somebody asked for them, and their task is green as soon as the lake is past that batch.
        """
        name, server = self.request.slot_name, self.server
        found = find_sealed(
            self.area, name, server.system_identifier, start, past=start, server=server
        )
        copied = (
            {each.relation_oid for each in found[0].tables if each.copy_lsn} if found else set()
        )
        copied -= {each.relation_oid for each in tables}
        return (*tables, *(each for each in self.published() if each.relation_oid in copied))

    def read_slot(self) -> SlotFacts | None:
        """The slot as it is now; None: there is none."""
        return read_slot(self.session, self.request.slot_name)

    def create_slot(self) -> ExportedSnapshot:
        """Make the slot, with a snapshot of its first position."""
        request = self.request
        snapshot = create_slot(
            request.conninfo,
            request.slot_name,
            two_phase=self.options.two_phase,
            failover=request.failover,
        )
        reach("stage.after_slot")
        return snapshot

    def confirm(self, lsn: Lsn) -> None:
        """Let the server forget what is sealed, up to ``lsn``."""
        slot = SlotOnServer(self.session, self.request.conninfo, self.request.slot_name)
        slot.wait_for_its_reader()
        move_slot(slot, lsn, self.server.system_identifier)

    def drop_slot(self, slot: SlotFacts) -> None:
        """Drop the slot, which is of no use any more."""
        drop_slot(self.session, slot)
        log.warning("Dropped slot %s, which could not give what the lake lacks.", slot.name)
        reach("stage.after_drop")

    def check_may_copy(self, tables: Sequence[PublishedTable]) -> None:
        """Refuse to begin a copy that the role may not make."""
        check_may_copy(
            self.session, self.publication_names, tables, slot_name=self.request.slot_name
        )

    def warn_of_membership_changes(self) -> None:
        """Name what was published since the slot's position, when no batch tells what was before."""
        warn_of_membership_changes(self.session, self.request.slot_name, self.publication_names)

    def changes_of_membership(self, before: PublishedSet) -> frozenset[int]:
        """OIDs of the tables that were not published all the time since ``before``."""
        assert self.marks is not None, "they are taken when a run begins"
        return changes_of_membership(
            self.session, before, self.marks, slot_name=self.request.slot_name
        )

    def check_root(self, last: Manifest | None) -> None:
        """Refuse partitions that are published under other names than in the lake's last batch."""
        if last is not None and last.published is not None:
            assert self.marks is not None, "they are taken when a run begins"
            refuse_other_root(last.published, self.marks, slot_name=self.request.slot_name)

    def check_partitions(self, batch: BatchInProgress, start: Start) -> None:
        """Refuse rows that were published under another table than before and after the batch."""
        if start.published_before is None or self.marks is None:
            return
        refuse_other_names(
            self.session,
            (start.published_before, self.marks),
            # Rows of partitions that the lake does not know may be of a table that it has.
            sent=[*batch.relation_oids, *batch.unknown_oids],
            copied=batch.copied_at,
            slot_name=self.request.slot_name,
        )

    def read_settings(self, start: Start) -> ReadSettings:
        """How the slot is read."""
        request = self.request
        return ReadSettings(
            session=self.session,
            conninfo=request.conninfo,
            slot_name=request.slot_name,
            options=self.options,
            transport=request.transport,
            connections=request.decode_parallelism,
            part_bytes=request.part_bytes,
            skip_lsns=start.skip_lsns,
            left_out=start.left_out,
            announce_types=self.describer.announce_types,
        )

    def names(self, batch: BatchInProgress) -> dict[int, tuple[str, str]]:
        """Names of now, where those of the stream are not enough: tables that were dropped have none.

        On version 15 a renamed schema is not announced again, and on none a table that is renamed and not
        written to afterwards, while another takes its name. A table that is no longer published keeps the
        name that its rows came under: nobody could copy it under another.
        """
        oids = set(batch.ambiguous_oids)
        if self.server.major == 15:
            published = {each.relation_oid for each in self.published()}
            oids |= published & set(batch.relation_oids)
        return read_names(self.session, oids) if oids else {}

    def unpublished(self, batch: BatchInProgress) -> dict[int, str | None]:
        """Tables with rows in a batch that are not published any more, or gone: what the lake calls them."""
        checkpoint = self.request.checkpoint
        known = (checkpoint.tables if checkpoint else None) or {}
        published = {each.relation_oid for each in self.published()}
        return {oid: known.get(oid) for oid in batch.relation_oids if oid not in published}

    def history(self, relation_oids: Sequence[int]) -> SchemaHistory:
        """What tells the columns of these tables apart; asked when all of the batch was read."""
        checkpoint = self.request.checkpoint
        before = {} if checkpoint is None else checkpoint.shapes
        published = self.published()
        return SchemaHistory(
            policy=self.request.schema_policy,
            before=before,
            former={} if checkpoint is None else checkpoint.shapes_by_name,
            attributes=seen_from(before, read_attributes(self.session, relation_oids)),
            # After the columns: of one that is known by then no later place is missed.
            storage=read_storage(self.session, relation_oids),
            storage_at_start=self.storage_at_start,
            published={
                table.relation_oid: frozenset(column.name for column in table.columns)
                for table in published
            },
            types=self._types_of(published, relation_oids),
            unwritten=[each for each in published if each.relation_oid not in set(relation_oids)],
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
        """How users' types are defined now that these tables are made of.

        :param relation_oids: of more tables, perhaps of some that are not published any more.
        """
        oids = {
            table.relation_oid
            for table in tables
            if any(column.type_oid >= FIRST_USER_OID for column in table.columns)
        }
        oids |= set(relation_oids) - {each.relation_oid for each in tables}
        return read_type_definitions(self.session, oids) if oids else TypesOfTables()

    def with_altered_types(self, tables: tuple[PublishedTable, ...]) -> tuple[PublishedTable, ...]:
        """Tables to copy, and those that the policy wants copied because a type was altered."""
        policy, checkpoint = self.request.schema_policy, self.request.checkpoint
        if policy.on_type_change != COPY or checkpoint is None:
            return tables
        published = self.published()
        known = [each for each in published if each.relation_oid in checkpoint.shapes]
        found = AlteredTypes(policy, self._types_of(known)).altered_tables(checkpoint.shapes, known)
        oids = {each.relation_oid for each in tables}
        return (*tables, *(table for table, _ in found if table.relation_oid not in oids))

    @contextlib.contextmanager
    def batch(self, start: Lsn) -> Iterator[BatchInProgress]:
        """A batch in progress, of which nothing remains when it fails."""
        batch = self.new_batch(start)
        try:
            yield batch
        except BaseException:
            batch.abandon()
            raise

    def new_batch(self, start: Lsn) -> BatchInProgress:
        """Where the rows of a batch go; see ``batch``."""
        request, checkpoint = self.request, self.request.checkpoint
        batch = BatchInProgress(
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
        )
        batch.passing = Passing(
            {} if checkpoint is None else checkpoint.passed_over,
            lambda oid: any(each.relation_oid == oid for each in self.published()),
            (checkpoint.tables if checkpoint else None) or {},
        )
        if request.schema_policy.on_unknown_default == COPY and checkpoint is not None:
            batch.copied_by_policy = frozenset(checkpoint.shapes)
        return batch

    def may_keep(self, slot: SlotFacts, confirmed: Lsn) -> bool:
        """Whether copies may go on from where a slot is.

        With two_phase, what was prepared before and commits behind it has to be in the staging area.
        """
        if not self.options.two_phase:
            return True
        system, name = self.server.system_identifier, self.request.slot_name
        return slot.two_phase and find_ending(self.area, name, system, confirmed) is not None

    @contextlib.contextmanager
    def two_phase(self, start: Lsn) -> Iterator[TwoPhase | None]:
        """Prepared transactions that wait at the start, when they are read before they commit."""
        if not self.options.two_phase:
            yield None
            return
        earlier = find_ending(
            self.area, self.request.slot_name, self.server.system_identifier, start
        )
        if earlier is None and self.request.checkpoint is not None:
            log.warning(
                "The batch that ended at %s is not in the staging area any more: a transaction that was"
                " prepared before it can no longer be applied.",
                start,
            )
        with TwoPhase(
            self.area, start, earlier, lone_commits=self.options.lone_commits
        ) as two_phase:
            yield two_phase
