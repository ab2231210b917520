"""One run as a value: what it was asked, and what it found when it began.

``Source`` and ``RowSource`` are its two interfaces to the server. A run reads the catalogs once, when it
begins: ``Facts``. It asks the server again for these things:

* The slot, when it is open and when all was read: another run may have moved or dropped it. With
  ``advance="after_stage"`` the slot is read once more before it moves.
* The published tables, before changes are read. This is done if the batch may end later than the facts: the
  batch waited for copies, or it goes to the end of the last WAL record (``messages``). The next run copies a
  table that was published in between.
* The columns and keys of a table, when the snapshot of its copy was taken: the stream does not tell of a
  column that came before the snapshot.
* The key, the types and the values of older rows of a table, when its first row comes; see ``describe.py``.
* The published tables, when a change of one is refused or asks for a copy: it may be gone by now.
* The publications, and columns, types and storage of the tables, when all was read and the batch has rows:
  ``CatalogAfter``. Only then it is known which tables have rows, and what became of their columns.
* The flush LSN, when the batch is sealed. An older batch that ends past it is from before a restore.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from airflow_provider_pgoutput.capture.refused import RefusedTables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider_pgoutput.batch.earlier_systems import EarlierTimeline
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.membership import PublishedSet
    from airflow_provider_pgoutput.batch.shape import Storage
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.slot.facts import SlotFacts
    from airflow_provider_pgoutput.capture.slot.replication_slot import ExportedSnapshot
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
    from airflow_provider_pgoutput.capture.staging.finished import CatalogAfter
    from airflow_provider_pgoutput.capture.staging.repairs import Repairs
    from airflow_provider_pgoutput.capture.start import Start
    from airflow_provider_pgoutput.capture.stream.cut import Limits
    from airflow_provider_pgoutput.capture.stream.options import PluginOptions
    from airflow_provider_pgoutput.capture.stream.read import Found, SlotReading
    from airflow_provider_pgoutput.capture.stream.two_phase import TwoPhase
    from airflow_provider_pgoutput.errors import MissingPrivilege, PgoutputError


@dataclass(frozen=True, slots=True)
class Facts:
    """What a run found in the catalogs when it began, before anything was copied or read."""

    #: The published tables with their columns and keys.
    tables: tuple[PublishedTable, ...]
    #: The publications, and for each table the rows of the catalog that publish it.
    published: PublishedSet
    #: Where their rows lie on the server's disk, by OID.
    storage: Mapping[int, Storage] = field(default_factory=dict)
    #: The tables among them that cannot be staged as the request says, by OID, when others go on.
    refused: Mapping[int, PgoutputError] = field(default_factory=dict)


class Source(Protocol):
    """What a run asks of its server. ``tests/simulation`` has another one, without a server."""

    request: CaptureRequest
    area: StagingArea
    #: The server as it was when the run began.
    server: Server
    options: PluginOptions

    def server_now(self) -> Server:
        """The server, with what it has written by now."""
        ...

    def read_target(self, start: Lsn) -> Lsn:
        """Where a batch ends when no limit ends it before; taken once, before anything is read.

        :param start: where the batch begins.
        """
        ...

    def read_slot(self) -> SlotFacts | None:
        """The slot as it is now; None: there is none."""
        ...

    def read_facts(self) -> Facts:
        """Read the catalogs when a run begins.

        :raises PgoutputError: the publications cannot be read as it was asked.
        """
        ...

    def read_tables(self) -> tuple[PublishedTable, ...]:
        """The published tables as they are now."""
        ...

    def read_after(
        self, batch: BatchInProgress, start: Start, facts: Facts, found: Found
    ) -> CatalogAfter:
        """Read the catalogs when all of a batch was read.

        :raises PgoutputError: a publication was missing for a while, or partitions sent rows under another
            name.
        """
        ...

    def gaps_since(self, before: PublishedSet | None, facts: Facts) -> frozenset[int]:
        """OIDs of the tables that the publications lacked for a while since ``before``.

        :param before: None: it is not known. Then warnings name everything that may have changed.
        """
        ...

    def altered_tables(self, facts: Facts) -> tuple[PublishedTable, ...]:
        """Tables that the policy wants copied because a type of their columns was altered."""
        ...

    def check_may_copy(
        self, tables: Sequence[PublishedTable], *, one_by_one: bool = False
    ) -> Mapping[int, MissingPrivilege]:
        """Refuse to begin a copy that the role may not make.

        :param one_by_one: return the error of each such table, by OID, and raise none.
        """
        ...

    def create_slot(self) -> ExportedSnapshot:
        """Make the slot, with a snapshot of its first position."""
        ...

    def drop_slot(self, slot: SlotFacts) -> None:
        """Drop the slot, which is of no use any more."""
        ...

    def confirm(self, lsn: Lsn) -> None:
        """Let the server forget what is sealed, up to ``lsn``."""
        ...

    def check_sealed(self, manifest: Manifest) -> None:
        """Refuse a sealed batch that was staged with other masks than those of the request."""
        ...

    def new_batch(self, start: Lsn, followed: frozenset[int]) -> BatchInProgress:
        """Where the rows of a batch go.

        :param followed: see ``RefusedTables``.
        """
        ...


class RowSource(Protocol):
    """Where the rows of a batch come from. ``tests/simulation`` has another one, without a server."""

    def copy(
        self,
        batch: BatchInProgress,
        start: Start,
        tables: Sequence[PublishedTable],
        snapshot: ExportedSnapshot | None = None,
    ) -> Lsn:
        """Copy each table as it was at one LSN. The LSNs may differ between tables; return the greatest."""
        ...

    def repairs(self, start: Start) -> Repairs | None:
        """Read rows again that somebody asks for. They become the last changes of the batch.

        :returns: None: nobody asks, or the next batch has to do it.
        """
        ...

    def difference(
        self,
        batch: BatchInProgress,
        tables: Sequence[PublishedTable],
        snapshot: ExportedSnapshot,
        whole: Collection[int],
    ) -> tuple[PublishedTable, ...]:
        """Stage the rows in which the lake differs from the source; return the tables to be copied.

        :param snapshot: that of the slot's position.
        :param whole: OIDs of tables that are copied in any case.
        :raises RepairRefused: a table has to be copied after some of its rows were staged.
        """
        ...

    def open_slot(
        self, start: Start, target: Lsn, limits: Limits, two_phase: TwoPhase | None
    ) -> SlotReading:
        """Begin to read the slot."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """One run of capture."""

    source: Source
    rows: RowSource
    facts: Facts
    #: The slot when the run began; None: there was none.
    slot: SlotFacts | None = None
    #: Its position; None: there was no slot that could be read.
    confirmed: Lsn | None = None
    #: The tables that are refused by now. A step that refuses more makes a new ``Run``.
    refused: RefusedTables = field(default_factory=RefusedTables)
    #: See ``Manifest``.
    earlier_timelines: tuple[EarlierTimeline, ...] = ()

    @property
    def request(self) -> CaptureRequest:
        """What the run is asked to do."""
        return self.source.request

    def refusing(self, refused: RefusedTables) -> Run:
        """The same run with these refused tables."""
        return dataclasses.replace(self, refused=refused)

    def with_timelines_of(self, last: Manifest | None) -> Run:
        """The same run with the earlier timelines that the batch before names, if this run asked for none.

        :param last: None: the staging area has that batch no more.
        """
        is_same = (
            last is not None and last.system_identifier == self.source.server.system_identifier
        )
        if last is None or not is_same or self.earlier_timelines:
            return self
        return dataclasses.replace(self, earlier_timelines=last.earlier_timelines)
