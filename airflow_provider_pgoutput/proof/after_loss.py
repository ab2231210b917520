"""After a lost slot: finds the rows of the lake that differ from the source at the new slot's position.

It is a verification that does not wait until the lake reaches an LSN. The lake stays at its checkpoint. So
rows that changed since then differ.

``capture/copy/difference.py`` reads the rows of these keys.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.copy.plan import read_locations
from airflow_provider_pgoutput.capture.lake_comparison import TableDifference
from airflow_provider_pgoutput.capture.slot.commit_wait import begin_in_snapshot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_types
from airflow_provider_pgoutput.lake.state import open_catalog
from airflow_provider_pgoutput.proof.comparison import BatchSpansLsn, Comparison
from airflow_provider_pgoutput.proof.forms.masked import tell_secret
from airflow_provider_pgoutput.proof.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.capture.lake_comparison import SourceSnapshot
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.proof.report import TableProof
    from airflow_provider_pgoutput.proof.request import ProofRequest


@dataclass(frozen=True)
class LakeAfterLoss:
    """Compares tables of the lake with the source; see ``LakeComparison``."""

    #: Its ``on_difference`` is ``repair``, so that a proof has the keys of the rows that differ.
    request: ProofRequest

    @contextlib.contextmanager
    def started(self, snapshot: SourceSnapshot) -> Iterator[Iterator[TableDifference]]:
        """See ``LakeComparison``."""
        with (
            sessions.connect(snapshot.conninfo) as session,
            sessions.connect(snapshot.conninfo) as now,
        ):
            is_md5 = self.request.is_md5(now)
            begin_in_snapshot(session, snapshot.name)
            sessions.limit_lock_waits(session)
            if self.request.mask_secret is not None:
                tell_secret(session, self.request.mask_secret)
            source = SourceRows(
                snapshot.lsn,
                tuple(snapshot.tables),
                read_types(session, attributes=True),
                session,
                now,
                read_locations(session, snapshot.tables),
                self.request.publication_names,
                is_md5,
            )
            yield self._differences(source, snapshot)

    def _differences(
        self, source: SourceRows, snapshot: SourceSnapshot
    ) -> Iterator[TableDifference]:
        request = self.request
        catalog = open_catalog(request.catalog_name, request.catalog_properties)
        for each in snapshot.tables:
            comparison = Comparison(
                request,
                source,
                snapshot.checkpoint,
                catalog,
                each,
                is_for_a_copy=True,
                earlier=snapshot.earlier.get(each.relation_oid),
            )
            yield _difference(each, comparison)


def _difference(table: PublishedTable, comparison: Comparison) -> TableDifference:
    try:
        comparison.refuse_spanning()
    except BatchSpansLsn as spans:
        return TableDifference(table, why_unknown=str(spans))
    if comparison.is_past_checkpoint:
        # A replay begins with a table that lacks this batch, so it would need other rows.
        return TableDifference(table, why_unknown="it has a batch that other tables lack")
    if comparison.earlier is not None and comparison.holds_rows_back:
        return TableDifference(
            table,
            why_unknown="rows of it are in the quarantine, under its OID on the earlier system",
        )
    proof = comparison.prove()
    if (why := _why_unknown(proof)) is not None:
        return TableDifference(table, why_unknown=why)
    return TableDifference(table, proof.to_repair, words=str(proof))


def _why_unknown(proof: TableProof) -> str | None:
    """Why it is not known which rows differ; None: it is."""
    if proof.not_compared is not None:
        return proof.not_compared
    if proof.columns_left_out:
        return f"the columns {', '.join(proof.columns_left_out)} cannot be compared"
    if proof.was_rolled_back:
        return "somebody rolled it back in the lake"
    if proof.is_equal or (proof.to_repair is not None and proof.not_repaired is None):
        return None
    return proof.not_repaired or proof.not_counted or "its rows differ"
