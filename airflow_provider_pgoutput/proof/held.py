"""A verification whose process ends while the pipeline works. It keeps totals of the source, and no snapshot.

1. ``hold`` makes the snapshot and leaves the mark, as ``verify`` does. Then it computes the totals of the
   source. The snapshot ends with it.
2. Somebody waits until the lake has reached the LSN. That takes no session and no memory.
3. ``complete`` computes the totals of the lake at the LSN. Tables with equal totals are proven. For all
   others a snapshot is needed, so ``verify`` compares them, at another LSN.

A total can only be compared with another one of the same columns, types, masks and filters. A fingerprint of
all these tells whether they are the same when the lake has reached the LSN.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.marks import Mark, leave_mark
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.lake.state import open_catalog, read_targets
from airflow_provider_pgoutput.proof.comparison import Comparison
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.report import Proof
from airflow_provider_pgoutput.proof.request import FULL
from airflow_provider_pgoutput.proof.source_rows import source_now, source_rows
from airflow_provider_pgoutput.proof.verify import (
    check_reached,
    check_source,
    read_progress,
    wanted_tables,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.proof.request import ProofRequest

log = logging.getLogger(__name__)

#: How much longer than the wait the mark stays, for a process that starts late.
_MORE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class HeldTotal:
    """The total of a table at the source."""

    digest: Digest
    #: Of all on which the total depends, except for the rows.
    fingerprint: str


@dataclass(frozen=True)
class HeldTotals:
    """What is kept of the source until the lake has reached the LSN: no secret, and no value of a row."""

    lsn: Lsn
    system_identifier: str
    timeline: int
    #: All totals were made with it.
    salt: int
    #: Path of the mark, relative to the staging root.
    mark: str
    #: By OID. A table without one is compared by ``verify``.
    totals: Mapping[int, HeldTotal]
    #: Seconds that it took.
    seconds: float
    #: The Unix time at which the wait ends.
    until: float
    #: How many LSNs were tried, with this one.
    lsns: int = 1

    def to_body(self) -> dict[str, Any]:
        """The form in JSON."""
        totals = {
            str(oid): [each.digest.rows, str(each.digest.total), each.fingerprint]
            for oid, each in self.totals.items()
        }
        return {**self.__dict__, "lsn": str(self.lsn), "salt": str(self.salt), "totals": totals}

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> HeldTotals:
        """What ``to_body`` described."""
        totals = {
            int(oid): HeldTotal(Digest(rows, int(total)), fingerprint)
            for oid, (rows, total, fingerprint) in body["totals"].items()
        }
        changed = {"lsn": Lsn.parse(body["lsn"]), "salt": int(body["salt"]), "totals": totals}
        return cls(**{**body, **changed})


def can_hold(request: ProofRequest) -> bool:
    """Whether the totals of all tables are all that a verification needs of the source, if they are equal."""
    return request.share == 1 and request.method == FULL


def hold(request: ProofRequest, lsns: int = 1) -> HeldTotals:
    """Take an LSN, ask the pipeline for a batch that ends there, and compute the totals of the source.

    :param lsns: how many LSNs were tried, with this one.
    """
    began, salt = time.monotonic(), secrets.randbits(63)
    area, direct = StagingArea(request.staging_uri), request.direct
    with sessions.connect(request.conninfo) as session:
        is_md5 = request.is_md5(session)
        server = read_server(session, direct)
    checkpoint = read_progress(request)
    check_source(request, server, checkpoint)
    with source_rows(
        request.conninfo,
        direct,
        server,
        request.publication_names,
        request.mask_secret,
        is_md5=is_md5,
    ) as source:
        wanted = wanted_tables(request, source)
        mark = _mark(area, request, source.lsn)
        try:
            catalog = open_catalog(request.catalog_name, request.catalog_properties)
            targets = read_targets(catalog, request.namespace, request.slot_name)
            totals = {}
            for table in wanted:
                comparison = Comparison(request, source, checkpoint, catalog, table, targets)
                if (total := comparison.total_of_source(salt)) is not None:
                    totals[table.relation_oid] = HeldTotal(*total)
            reach("verify.after_totals")
            # Totals of large tables take long, and the wait begins only now.
            fresh = _mark(area, request, source.lsn)
        finally:
            mark.remove()
    return HeldTotals(
        lsn=source.lsn,
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        salt=salt,
        mark=fresh.path,
        totals=totals,
        seconds=time.monotonic() - began,
        until=time.time() + request.wait_seconds,
        lsns=lsns,
    )


def _mark(area: StagingArea, request: ProofRequest, lsn: Lsn) -> Mark:
    return leave_mark(area, request.slot_name, lsn, request.wait_seconds + _MORE_SECONDS)


def release(request: ProofRequest, held: HeldTotals) -> None:
    """Remove the mark. It may be gone already."""
    Mark(StagingArea(request.staging_uri), held.mark).remove()


def complete(request: ProofRequest, held: HeldTotals) -> tuple[Proof, frozenset[int]]:
    """Compare the totals of the source with those of the lake. Call ``release`` before.

    :returns: the tables that are proven, or cannot be compared; and the OIDs of those that ``verify`` has to
        compare. Their totals differ, or something else than their rows changed since ``hold``.
    :raises BatchSpansLsn: a batch that changed a table begins before the LSN and ends past it.
    :raises LakeUnavailable: the lake did not reach the LSN.
    """
    began = time.monotonic()
    checkpoint = check_reached(request, held.lsn)
    with sessions.connect(request.conninfo) as session:
        is_md5 = request.is_md5(session)
        server = read_server(session, request.direct)
    check_source(request, server, checkpoint)
    is_same = (server.system_identifier, server.timeline) == (
        held.system_identifier,
        held.timeline,
    )
    proofs, rest = [], set()
    with source_now(
        request.conninfo, server, request.publication_names, held.lsn, is_md5=is_md5
    ) as source:
        catalog = open_catalog(request.catalog_name, request.catalog_properties)
        targets = read_targets(catalog, request.namespace, request.slot_name)
        comparisons = [
            Comparison(request, source, checkpoint, catalog, each, targets)
            for each in wanted_tables(request, source)
        ]
        for each in comparisons:
            each.refuse_spanning()
        for each in comparisons:
            oid = each.table.relation_oid
            kept = held.totals.get(oid) if is_same else None
            total = None if kept is None else (kept.digest, kept.fingerprint)
            proof = each.prove_total(held.salt, total)
            if proof is None:
                rest.add(oid)
            else:
                proofs.append(proof)
    reach("verify.after_wait")
    seconds = held.seconds + time.monotonic() - began
    found = Proof(request.slot_name, server.system_identifier, held.lsn, tuple(proofs), seconds)
    return found, frozenset(rest)


def together(first: Proof, second: Proof | None) -> Proof:
    """What both verifications found. Its LSN is that of the last one.

    :param second: of the tables that ``complete`` left; None: it left none.
    """
    if second is None:
        return first
    tables = (*first.tables, *second.tables)
    return dataclasses.replace(second, tables=tables, seconds=first.seconds + second.seconds)
