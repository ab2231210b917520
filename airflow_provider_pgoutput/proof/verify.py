"""Start here: ``verify`` compares tables of the lake with the source as both were at one LSN.

1. A temporary slot with a snapshot gives the LSN. A mark in the staging area asks the pipeline to end a batch
   there. Nothing stops: the pipeline goes on behind it.
2. When the lake has reached the LSN, the server computes the digest of each table in the snapshot. The worker
   computes the digest of each table of the lake from its files.
3. If the digests of a table differ, the digests of its ranges are compared. Then keys are compared in the
   ranges that differ.

A batch that began before the mark was there may end past the LSN. Then all of this is done again, at a new
LSN.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider_pgoutput.batch.answers import SUCCEED
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.marks import leave_mark
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDiffers,
    LakeUnavailable,
    NothingCompared,
    SourceChanged,
)
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.state import open_catalog
from airflow_provider_pgoutput.proof.changes.blockwise import Blockwise
from airflow_provider_pgoutput.proof.changes.kept import DigestStore
from airflow_provider_pgoutput.proof.comparison import BatchSpansLsn, Comparison
from airflow_provider_pgoutput.proof.record import last_shares
from airflow_provider_pgoutput.proof.report import Proof
from airflow_provider_pgoutput.proof.request import AUTO
from airflow_provider_pgoutput.proof.share import Turn, parts_of
from airflow_provider_pgoutput.proof.source_rows import source_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.proof.report import TableProof
    from airflow_provider_pgoutput.proof.request import ProofRequest
    from airflow_provider_pgoutput.proof.source_rows import SourceRows

log = logging.getLogger(__name__)

#: At how many LSNs a verification is tried.
MOST_LSNS: Final = 3
_MOST_NAMES: Final = 10


def verify(
    request: ProofRequest,
    wait: Callable[[Lsn], None] | None = None,
    *,
    relation_oids: Collection[int] | None = None,
) -> Proof:
    """Compare the lake with the source at one LSN.

    :param wait: is called with the LSN, and returns when the lake may have reached it. None: the checkpoint
        is read again and again, until it has the LSN or ``wait_seconds`` are over.
    :param relation_oids: compare only these of the request's tables, as far as they are published; None: all.
    :raises LakeUnavailable: the lake did not reach the LSN in time, or batches went past it three times.
    :raises ConfigurationError: there is nothing to compare, or the publications lack a table of the request.
    :raises SourceChanged: the connection leads to another system than the one that the lake was filled from.
    """
    for number in range(1, MOST_LSNS + 1):
        try:
            return _verify_at_new_lsn(request, wait, relation_oids)
        except BatchSpansLsn as spans:
            refuse_more_lsns(request, number, spans)
    raise AssertionError("the last LSN is refused")


def refuse_more_lsns(request: ProofRequest, number: int, spans: BatchSpansLsn) -> None:
    """Say that another LSN is taken, unless it would be one too many.

    :param number: how many were taken.
    :raises LakeUnavailable: it would be.
    """
    log.info("%s So nothing was compared at this LSN.", spans)
    if number < MOST_LSNS:
        return
    raise LakeUnavailable(
        f"A batch went past the LSN of the verification {MOST_LSNS} times.",
        slot=request.slot_name,
        advice="let the pipeline stage with this version of the package, so that its batches end at the mark"
        " of a verification; then verify again.",
    )


def refuse_differences(request: ProofRequest, proof: Proof) -> None:
    """Raise an error if tables differ or are damaged, or none was compared.

    With ``on_difference="succeed"`` there is no error.

    :raises LakeDiffers: a table differs, or is damaged.
    :raises NothingCompared: there are tables, and none was compared.
    """
    if request.on_difference == SUCCEED:
        return
    if not proof.wrong and proof.compared_nothing:
        raise NothingCompared(
            _first(proof.tables),
            slot=request.slot_name,
            lsn=proof.lsn,
            advice="nothing; a table that was rewritten or altered is compared by the next try, or after its"
            " next row. If it lasts, look for the reasons in docs/how-to/verify.md.",
        )
    if not proof.wrong:
        return
    raise LakeDiffers(
        _first(proof.wrong),
        slot=request.slot_name,
        lsn=proof.lsn,
        advice="look at both sides as docs/how-to/verify.md says; on_difference='repair' or a copy"
        " (copy_tables) makes a table equal again. A missing or damaged file can be put back.",
    )


def _first(tables: Sequence[TableProof]) -> str:
    """What was found of the first tables, and how many more there are."""
    shown = "; ".join(str(each).removesuffix(".") for each in tables[:_MOST_NAMES])
    more = len(tables) - _MOST_NAMES
    return f"{shown}{f'; and {more} more tables' if more > 0 else ''}."


def _verify_at_new_lsn(
    request: ProofRequest,
    wait: Callable[[Lsn], None] | None,
    relation_oids: Collection[int] | None,
) -> Proof:
    area, began = StagingArea(request.staging_uri), time.monotonic()
    with at_new_lsn(request) as (server, source):
        wanted = [
            each
            for each in wanted_tables(request, source)
            if relation_oids is None or each.relation_oid in relation_oids
        ]
        mark = leave_mark(area, request.slot_name, source.lsn, request.wait_seconds)
        reach("verify.after_mark")
        try:
            if wait is None:
                _wait_for(request, source.lsn)
            else:
                wait(source.lsn)
        finally:
            mark.remove()
        reach("verify.after_lsn_reached")
        checkpoint = source.sees(server, check_reached(request, source.lsn))
        catalog = open_catalog(request.catalog_name, request.catalog_properties)
        turns = _turns(catalog, request, wanted)
        blockwise = _blockwise(request, source, server, area)
        comparisons = [
            Comparison(
                request,
                source,
                checkpoint,
                catalog,
                each,
                turns.get(each.relation_oid),
                blockwise=blockwise,
            )
            for each in wanted
        ]
        for each in comparisons:
            each.refuse_spanning()
        proofs = tuple(each.prove() for each in comparisons)
        reach("verify.after_tables")
    return Proof(
        slot_name=request.slot_name,
        system_identifier=server.system_identifier,
        lsn=source.lsn,
        tables=proofs,
        seconds=time.monotonic() - began,
    )


class SourceAtLsn(NamedTuple):
    """The source at a new LSN."""

    server: Server
    #: Its session is open, with the snapshot of the LSN.
    rows: SourceRows


@contextlib.contextmanager
def at_new_lsn(request: ProofRequest) -> Iterator[SourceAtLsn]:
    """Open the source at a new LSN.

    :raises ConfigurationError: there is nothing to compare.
    :raises SourceChanged: the connection leads to another system than the one that the lake was filled from.
    """
    server, is_md5 = check_source(request, read_progress(request))
    with source_rows(
        request.conninfo,
        request.direct,
        server,
        request.publication_names,
        request.mask_secret,
        is_md5=is_md5,
        is_blockwise=request.method == AUTO,
    ) as rows:
        yield SourceAtLsn(server, rows)


def read_progress(request: ProofRequest) -> Checkpoint:
    """How far the lake is.

    :raises ConfigurationError: there is nothing to compare.
    """
    found = read_checkpoint(
        request.catalog_name, request.catalog_properties, request.namespace, request.slot_name
    )
    if found is None:
        raise ConfigurationError(
            f"The namespace {request.namespace} has no batch of the slot, so there is nothing to compare.",
            slot=request.slot_name,
            advice="run the pipeline first, or correct namespace and slot_name.",
        )
    return found


def check_source(request: ProofRequest, checkpoint: Checkpoint) -> tuple[Server, bool]:
    """Check that the connection leads to the lake's source.

    :return: the server, and whether rows are hashed by md5.
    :raises SourceChanged: it leads to another system.
    """
    with sessions.connect(request.conninfo) as session:
        is_md5 = request.is_md5(session)
        server = read_server(session, request.direct)
        server = server.as_in_lake(checkpoint.system_identifier, checkpoint.systems.lsn_offset)
    if server.system_identifier != checkpoint.system_identifier:
        raise SourceChanged(
            f"The lake is of the system {checkpoint.system_identifier}, and the connection leads to"
            f" {server.system_identifier}.",
            slot=request.slot_name,
            advice="name the connection that the pipeline uses.",
        )
    return server, is_md5


def _wait_for(request: ProofRequest, lsn: Lsn) -> None:
    """Look at the checkpoint until it has reached the LSN, or the time is over."""
    end, pause = time.monotonic() + request.wait_seconds, 1.0
    while (reached := read_progress(request).end_lsn) < lsn and time.monotonic() < end:
        log.info(
            "Waiting for a run of the pipeline that brings the lake to LSN %s. It is at %s now.",
            lsn,
            reached,
        )
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(2 * pause, 30.0)


def check_reached(request: ProofRequest, lsn: Lsn) -> Checkpoint:
    """Check that the lake has reached the LSN.

    :raises LakeUnavailable: it has not.
    """
    checkpoint = read_progress(request)
    if checkpoint.end_lsn < lsn:
        raise LakeUnavailable(
            f"The lake is at {checkpoint.end_lsn} and did not reach the LSN of the verification.",
            slot=request.slot_name,
            lsn=lsn,
            advice="look whether the pipeline runs: no run of it ended since the verification began.",
        )
    return checkpoint


def wanted_tables(request: ProofRequest, source: SourceRows) -> list[PublishedTable]:
    """The published tables that are compared.

    :raises ConfigurationError: the publications lack a table of the request.
    """
    published = {each.name: each for each in source.tables}
    if unknown := sorted(set(request.tables) - published.keys()):
        raise ConfigurationError(
            f"The publications do not have {', '.join(unknown)}.",
            advice="write tables as schema.table, as the publication names them.",
        )
    return [
        each for name, each in published.items() if not request.tables or name in request.tables
    ]


def _blockwise(
    request: ProofRequest, source: SourceRows, server: Server, area: StagingArea
) -> Blockwise | None:
    """What carries over digests from the last verification; None: nothing does."""
    if request.method != AUTO:
        return None
    summaries = source.wal_summaries(server, request.wait_seconds)
    if (why := summaries.why_none) is not None:
        log.warning("method='auto' reads whole tables: %s.", why)
        return None
    store = DigestStore(area, request.slot_name)
    return Blockwise(source, server, summaries, store, request.full_every)


def _turns(
    catalog: Catalog, request: ProofRequest, tables: Sequence[PublishedTable]
) -> dict[int, Turn]:
    """By OID: the part of each table that this run compares; empty: whole tables are compared."""
    if request.share == 1:
        return {}
    last = last_shares(
        catalog,
        request.namespace,
        request.slot_name,
        parts_of(request.share),
        tables={each.name for each in tables},
        goes_on=request.on_difference == SUCCEED,
    )
    return {
        each.relation_oid: Turn.following(request.share, last.get(each.name)) for each in tables
    }
