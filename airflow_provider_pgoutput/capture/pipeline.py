"""Start here: the whole capture of one batch on one screen, ``stage_batch``.

A batch is all transactions with ``start <= commit LSN < end``. Where it starts is the lake's checkpoint;
where it ends is decided once, before reading. The slot is created here when there is none and never
moved: ``advance.py`` does that after the lake holds the batch.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.crash_points import reach
from airflow_provider_pgoutput.capture.drain import commit_time, drain, no_garbage_collection
from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.progress import Progress
from airflow_provider_pgoutput.capture.request import SQL, WALSENDER, CaptureRequest
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.binary_forms import check_binary_forms
from airflow_provider_pgoutput.capture.source.catalog import (
    Server,
    read_names,
    read_publications,
    read_published_tables,
    read_server,
    warn_of_missing_identity,
)
from airflow_provider_pgoutput.capture.source.copy import CopyOrder, copy_tables
from airflow_provider_pgoutput.capture.source.describe import Describer
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.source.membership import (
    holds_copies,
    tables_to_copy,
    warn_of_membership_changes,
)
from airflow_provider_pgoutput.capture.source.publication_watch import (
    check_publications_throughout,
)
from airflow_provider_pgoutput.capture.source.slot import (
    ExportedSnapshot,
    check_not_ahead,
    check_slot,
    check_two_phase_start,
    check_wal_level,
    create_slot,
    read_slot,
)
from airflow_provider_pgoutput.capture.source.sql_stream import SqlStream
from airflow_provider_pgoutput.capture.source.stream import SlotRead
from airflow_provider_pgoutput.capture.source.target import read_record_end
from airflow_provider_pgoutput.capture.source.walsender_stream import WalsenderStream
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
from airflow_provider_pgoutput.capture.staging.cut import BatchCut, Limits
from airflow_provider_pgoutput.capture.staging.prepared import TwoPhase
from airflow_provider_pgoutput.capture.staging.seal import find_ending, find_sealed
from airflow_provider_pgoutput.capture.types.cast import column_caster
from airflow_provider_pgoutput.errors import (
    SlotBusy,
    SlotNotFound,
    SourceChanged,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.checkpoint import Checkpoint
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Session
    from airflow_provider_pgoutput.capture.source.stream import ChangeStream

log = logging.getLogger(__name__)


def stage_batch(request: CaptureRequest) -> tuple[Manifest, str]:
    """Stage the next batch of a slot, or find the one that an earlier attempt sealed.

    :returns: the manifest of the sealed batch and its URI.
    :raises PgoutputError: see ``errors.py``; the slot was not moved then, and no batch was sealed.
    """
    area = StagingArea(request.staging_uri)
    with sessions.connect(request.conninfo, slot=request.slot_name) as session:
        # The flush LSN in here is the batch's target: taken once, before anything is read.
        server = read_server(session)
        check_wal_level(server)
        slot = read_slot(session, request.slot_name)
        two_phase = request.options.two_phase
        confirmed = None if slot is None else check_slot(slot, server, two_phase=two_phase)
        if slot is not None and two_phase and request.checkpoint is not None:
            check_two_phase_start(slot, request.checkpoint.end_lsn)
        capture = _Capture(request, area, session, server)
        capture.check_publications()
        if request.checkpoint is not None:
            return capture.next_batch(request.checkpoint, confirmed)
        if confirmed is None:
            return capture.first_batch()
        return capture.first_batch_of_existing_slot(confirmed)


class _Capture:
    """The ways to a batch; each ends with a sealed one."""

    def __init__(
        self, request: CaptureRequest, area: StagingArea, session: Session, server: Server
    ) -> None:
        self._request = request
        self._area = area
        self._session = session
        self._server = server
        self._publication_names = tuple(request.publication_names)
        self._options = request.options.for_server(server, self._publication_names)
        self._keys = Keys(request.key_columns)
        self._describer = Describer(session, self._keys)

    def _published(self) -> tuple[PublishedTable, ...]:
        return read_published_tables(
            self._session, self._server, self._publication_names, self._keys
        )

    def check_publications(self) -> None:
        """Before and after every read: from version 18 on the server only warns of a missing one."""
        publications = read_publications(self._session, self._publication_names)
        tables = self._published()
        if self._options.binary:
            check_binary_forms(tables, self._describer.types_of(tables))
        warn_of_missing_identity(publications, tables)

    def first_batch(self) -> tuple[Manifest, str]:
        """Create the slot and stage all tables as they were at its first position."""
        slot_name = self._request.slot_name
        two_phase = self._options.two_phase
        with create_slot(self._request.conninfo, slot_name, two_phase=two_phase) as snapshot:
            log.info("Created slot %s at %s.", slot_name, snapshot.consistent_point)
            reach("stage.after_slot")
            return self._copy_batch(snapshot.consistent_point, snapshot)

    def first_batch_of_existing_slot(self, confirmed: Lsn) -> tuple[Manifest, str]:
        """The slot was made by somebody, or by an attempt that died during its copy."""
        request = self._request
        if found := self._find_sealed(confirmed):
            return found
        if not request.initial_copy:
            return self._stream_batch(confirmed)
        name = f"pgoutput_copy_{confirmed.sortable.lower()}"
        with create_slot(request.conninfo, name, temporary=True) as snapshot:
            log.info(
                "Copying at %s, slot %s starts at %s.",
                snapshot.consistent_point,
                request.slot_name,
                confirmed,
            )
            return self._copy_batch(confirmed, snapshot)

    def next_batch(self, checkpoint: Checkpoint, confirmed: Lsn | None) -> tuple[Manifest, str]:
        """Stage what committed since the checkpoint."""
        self._check_source(checkpoint)
        if confirmed is None:
            raise SlotNotFound(
                "The slot does not exist, but the lake has a checkpoint of it. It is not made anew: the "
                "changes since then would be missing.",
                slot=self._request.slot_name,
                lsn=checkpoint.end_lsn,
                advice="find out who dropped it; then copy the tables again.",
            )
        check_not_ahead(confirmed, checkpoint.end_lsn, self._request.slot_name)
        # The run before may have died between sealing and telling anybody.
        found = self._find_sealed(checkpoint.end_lsn, past=checkpoint.end_lsn)
        if found and holds_copies(found[0], self._request.copy_tables):
            return found
        warn_of_membership_changes(self._session, self._request.slot_name, self._publication_names)
        tables = tables_to_copy(self._published(), checkpoint, self._request)
        return self._stream_batch(checkpoint.end_lsn, tables)

    def _stream_batch(
        self, start: Lsn, copied: Sequence[PublishedTable] = ()
    ) -> tuple[Manifest, str]:
        """Read, decode, cast and write the changes from ``start`` up to the target.

        :param copied: tables that are copied first, at a point of their own in the batch.
        """
        request, target = self._request, self._target()
        limits = Limits(request.max_changes, request.max_bytes, request.max_seconds)
        reach("stage.before_read")
        with self._batch(start) as batch, self._two_phase(start) as two_phase:
            if copied:
                # The batch has to reach the copy: what comes between is in the copy already.
                target, limits = max(target, self._copy_apart(batch, copied)), Limits()
            prepared = None if two_phase is None else two_phase.transactions
            cut = BatchCut(start, target, limits)
            stream = self._open_stream(start, target, two_phase)
            with contextlib.closing(stream), no_garbage_collection():
                check_not_ahead(self._confirmed(), start, request.slot_name)
                decoder = self._decoder(start, target)
                drain(stream, cut, batch, decoder, Progress(start, target), prepared)
            self._refuse_moved(start)
            batch.finish_files()
            self.check_publications()
            if self._server.major >= 18 and request.transport == SQL:
                check_publications_throughout(
                    self._session, request.slot_name, self._publication_names, cut.end_lsn
                )
            commit = decoder.last_commit if decoder.transactions else None
            return batch.seal(
                self._server,
                self._publication_names,
                cut.end_lsn,
                names=self._names(batch.relation_oids),
                transactions=decoder.transactions,
                last_commit_time=None if commit is None else commit_time(commit.committed_at_us),
                prepared=() if two_phase is None else two_phase.write(batch, cut.end_lsn),
            )

    def _target(self) -> Lsn:
        """Where the batch ends when no limit ends it before; decided once, before anything is read."""
        if self._request.options.messages:
            return read_record_end(self._session)
        return self._server.flush_lsn

    def _copy_batch(self, start: Lsn, snapshot: ExportedSnapshot) -> tuple[Manifest, str]:
        """Stage all published tables as they are in the snapshot, at its consistent point."""
        point = snapshot.consistent_point
        with self._batch(start) as batch, self._two_phase(start) as two_phase:
            if start < point:
                self._read_beside_copy(batch, start, point, two_phase)
            if self._request.initial_copy:
                self._copy(batch, snapshot, self._published())
            batch.finish_files()
            self.check_publications()
            prepared = () if two_phase is None else two_phase.write(batch, point)
            return batch.seal(
                self._server, self._publication_names, point, names={}, prepared=prepared
            )

    def _copy_apart(self, batch: BatchInProgress, tables: Sequence[PublishedTable]) -> Lsn:
        """Copy tables in the middle of a batch, while the changes of all others flow.

        :returns: the point at which they were read. Making the slot waits for the transactions that are
            open, so none of them can have written to a table before it was published.
        """
        name = f"pgoutput_copy_{uuid.uuid4().hex[:16]}"
        with create_slot(self._request.conninfo, name, temporary=True) as snapshot:
            names = ", ".join(table.name for table in tables)
            log.info("Copying %s at %s.", names, snapshot.consistent_point)
            self._copy(batch, snapshot, tables)
            return snapshot.consistent_point

    def _copy(
        self, batch: BatchInProgress, snapshot: ExportedSnapshot, tables: Sequence[PublishedTable]
    ) -> None:
        """Stage tables as they are in the snapshot."""
        point = snapshot.consistent_point
        orders = [
            CopyOrder(
                table, batch.add_copy(table.relation_oid, self._describer.published(table), point)
            )
            for table in tables
        ]
        progress = Progress(point, point)
        for copied in copy_tables(
            self._request.conninfo, snapshot.name, orders, self._request.copy_connections
        ):
            batch.copy_rows(copied.staged, copied.rows, copied.rejected)
            reach("stage.during_copy")
            progress.report(batch.rows, copied.rows.nbytes, point)

    def _read_beside_copy(
        self, batch: BatchInProgress, start: Lsn, point: Lsn, two_phase: TwoPhase | None
    ) -> None:
        """Read what came before a copy and is not in it: logical messages, and what was prepared.

        Of the latter the server will send no more than its commit.
        """
        if two_phase is None and not self._options.messages:
            return
        cut, decoder = BatchCut(start, point, Limits()), self._decoder(start, point)
        with contextlib.closing(self._open_stream(start, point, two_phase)) as stream:
            for chunk in stream.chunks():
                if self._options.messages and not cut.finished:
                    decoder.decode(cut.take(chunk))
                for messages in decoder.take_messages():
                    batch.add_messages(messages)

    def _decoder(self, start: Lsn, end: Lsn) -> Decoder:
        skip_origins, binary = self._options.skip_origins, self._options.binary
        return Decoder(start, end, skip_origins=skip_origins, binary=binary)

    @contextlib.contextmanager
    def _two_phase(self, start: Lsn) -> Iterator[TwoPhase | None]:
        """Prepared transactions that wait at the start, when they are read before they commit."""
        if not self._options.two_phase:
            yield None
            return
        earlier = find_ending(
            self._area, self._request.slot_name, self._server.system_identifier, start
        )
        if earlier is None and self._request.checkpoint is not None:
            log.warning(
                "The batch that ended at %s is not in the staging area any more: a transaction that was"
                " prepared before it can no longer be applied.",
                start,
            )
        with TwoPhase(
            self._area, start, earlier, lone_commits=self._options.lone_commits
        ) as two_phase:
            yield two_phase

    def _find_sealed(self, start: Lsn, past: Lsn | None = None) -> tuple[Manifest, str] | None:
        found = find_sealed(
            self._area,
            self._request.slot_name,
            self._server.system_identifier,
            start,
            past=past,
        )
        if found is not None:
            log.info("An earlier attempt sealed this batch already: %s", found[1])
        return found

    def _check_source(self, checkpoint: Checkpoint) -> None:
        server, slot_name = self._server, self._request.slot_name
        if server.system_identifier != checkpoint.system_identifier:
            raise SourceChanged(
                f"The source is system {server.system_identifier}, the lake was filled from "
                f"{checkpoint.system_identifier}.",
                slot=slot_name,
                lsn=checkpoint.end_lsn,
                advice="correct the connection; for a new source use a new slot name and namespace.",
            )
        if server.flush_lsn < checkpoint.end_lsn:
            raise SourceChanged(
                f"The lake is ahead of the source, which has written up to {server.flush_lsn} only.",
                slot=slot_name,
                lsn=checkpoint.end_lsn,
                advice="the source was restored or promoted without the end of its WAL: copy the tables "
                "again.",
            )

    def _confirmed(self) -> Lsn:
        slot = read_slot(self._session, self._request.slot_name)
        if slot is None or slot.confirmed_flush_lsn is None:
            raise SlotNotFound(
                "The slot was dropped while it was read.", slot=self._request.slot_name
            )
        return slot.confirmed_flush_lsn

    def _refuse_moved(self, start: Lsn) -> None:
        """The server silently begins later when the slot was moved between our look and the read."""
        if self._confirmed() > start:
            raise SlotBusy(
                "Another run moved the slot while it was read; nothing was staged.",
                slot=self._request.slot_name,
                lsn=start,
                advice="let one run at a time use the slot (max_active_runs=1).",
            )

    def _open_stream(self, start: Lsn, target: Lsn, two_phase: TwoPhase | None) -> ChangeStream:
        request = self._request
        read = SlotRead(
            request.conninfo, request.slot_name, self._options, start, target, two_phase
        )
        if request.transport == WALSENDER:
            return WalsenderStream(read)
        return SqlStream(read, max_messages=self._max_messages)

    @property
    def _max_messages(self) -> int | None:
        """Messages that the limits let through, roughly; None: no limit."""
        request = self._request
        if request.max_changes is not None:
            return max(10_000, request.max_changes + request.max_changes // 4)
        limited = request.max_bytes is not None or request.max_seconds is not None
        return 200_000 if limited else None

    def _names(self, relation_oids: Sequence[int]) -> dict[int, tuple[str, str]]:
        """On version 15 a renamed schema is not announced again, so the catalog is asked by OID."""
        return read_names(self._session, relation_oids) if self._server.major == 15 else {}

    @contextlib.contextmanager
    def _batch(self, start: Lsn) -> Iterator[BatchInProgress]:
        """A batch in progress, of which nothing remains when it fails."""
        request = self._request
        batch = BatchInProgress(
            self._area,
            request.slot_name,
            start,
            request.attempt,
            self._describer,
            request.policy,
            request.memory_mib,
            self._describer.binary_caster if self._options.binary else column_caster,
            request.options.message_prefixes,
        )
        try:
            yield batch
        except BaseException:
            batch.abandon()
            raise
