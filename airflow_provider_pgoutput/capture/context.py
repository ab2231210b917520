"""What all ways to a batch share: the request, the session, and what was found on the server.

What is not here: which way is taken (``pipeline.py``), and the ways (``reading.py``, ``copying.py``).
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.schema.full_keys import FullKeys
from airflow_provider_pgoutput.capture.schema.history import SchemaHistory
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
from airflow_provider_pgoutput.capture.source.column_types import check_column_types
from airflow_provider_pgoutput.capture.source.describe import Describer
from airflow_provider_pgoutput.capture.source.keys import Keys
from airflow_provider_pgoutput.capture.source.publication_marks import read_marks
from airflow_provider_pgoutput.capture.source.storage import read_storage
from airflow_provider_pgoutput.capture.staging.batch import BatchInProgress
from airflow_provider_pgoutput.capture.staging.prepared import TwoPhase
from airflow_provider_pgoutput.capture.staging.seal import find_ending
from airflow_provider_pgoutput.capture.staging.tables import Casters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.membership import PublishedSet
    from airflow_provider_pgoutput.capture.request import CaptureRequest
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Session
    from airflow_provider_pgoutput.capture.staging.area import StagingArea

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
        self.describer = Describer(session, self.keys, request.types, request.policy)
        #: By what each table was published when the run began; see ``take_marks``.
        self.marks: PublishedSet | None = None

    def published(self) -> tuple[PublishedTable, ...]:
        """The tables of the publications, as the catalog has them now."""
        return read_published_tables(self.session, self.server, self.publication_names, self.keys)

    def check_publications(self) -> None:
        """Before and after every read: from version 18 on the server only warns of a missing one."""
        publications = read_publications(self.session, self.publication_names)
        tables = self.published()
        types = self.describer.types_of(tables)
        check_column_types(
            tables, types, self.request.types, is_first=self.request.checkpoint is None
        )
        if self.options.binary:
            check_binary_forms(tables, types, self.request.types)
        warn_of_missing_identity(publications, tables)

    def take_marks(self) -> None:
        """Record by what the tables are published, before anything is copied or read."""
        if self.request.checkpoint is None:
            # Once, when a pipeline begins: whoever wants it so need not read it every time.
            warn_of_missing_operations(read_publications(self.session, self.publication_names))
        self.marks = read_marks(self.session, self.publication_names, self.published())

    def names(self, batch: BatchInProgress) -> dict[int, tuple[str, str]]:
        """Names of now, where those of the stream are not enough: tables that were dropped have none.

        On version 15 a renamed schema is not announced again, and on none a table that is renamed and not
        written to afterwards, while another takes its name.
        """
        oids = batch.relation_oids if self.server.major == 15 else batch.ambiguous_oids
        return read_names(self.session, oids) if oids else {}

    def history(self, relation_oids: Sequence[int]) -> SchemaHistory:
        """What tells the columns of these tables apart; asked when all of the batch was read."""
        checkpoint = self.request.checkpoint
        return SchemaHistory(
            policy=self.request.schema_policy,
            before={} if checkpoint is None else checkpoint.shapes,
            attributes=read_attributes(self.session, relation_oids),
            # After the columns: of one that is known by then no later place is missed.
            storage=read_storage(self.session, relation_oids),
            published={
                table.relation_oid: frozenset(column.name for column in table.columns)
                for table in self.published()
            },
            type_name=self.describer.type_name,
            showing=self.describer.showing,
            constant_default=functools.partial(read_constant_default, self.session),
            full_keys=FullKeys(
                frozenset(name for name, key in self.keys.configured.items() if key),
                frozenset((checkpoint.tables if checkpoint else None) or ()),
            ),
        )

    @contextlib.contextmanager
    def batch(self, start: Lsn) -> Iterator[BatchInProgress]:
        """A batch in progress, of which nothing remains when it fails."""
        request = self.request
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
                self.describer.binary_caster if self.options.binary else self.describer.text_caster,
            ),
            request.options.message_prefixes,
        )
        try:
            yield batch
        except BaseException:
            batch.abandon()
            raise

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
