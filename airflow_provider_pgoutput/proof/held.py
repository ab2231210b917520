"""A verification whose process ends while it waits for the pipeline.

``verify`` waits with an open session, because only this session sees the rows as they were at the LSN. Here
only totals are kept. The total of a table is the digest of all its rows.

1. ``hold`` takes an LSN and leaves the mark, as ``verify`` does. It computes the total of each table of the
   source. Then it closes the session.
2. Somebody waits until the lake has reached the LSN. Example: ``triggers/lake.py``.
3. ``complete`` computes the totals of the lake at the LSN. A table with equal totals is proven. The totals do
   not tell which rows differ, so ``verify`` compares the other tables, at another LSN.

Two totals can be compared only if they are of the same columns, types, masks and filters. Example: during the
wait somebody renames a column. So ``hold`` keeps a fingerprint of all these with each total. If the
fingerprint is another one in step 3, ``verify`` compares the table.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.marks import Mark, leave_mark
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.lake.state import open_catalog
from airflow_provider_pgoutput.proof.comparison import Comparison
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.report import Proof
from airflow_provider_pgoutput.proof.request import FULL
from airflow_provider_pgoutput.proof.source_rows import source_now
from airflow_provider_pgoutput.proof.verify import (
    at_new_lsn,
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
#: The same of the first mark, which has to stay while the totals of all tables are computed. If the process
#: dies meanwhile, one batch ends at the mark, and nothing else comes of it.
_SECONDS_OF_TOTALS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class HeldTotal:
    """The total of a table at the source."""

    digest: Digest
    #: Of all on which the total depends, except for the rows.
    fingerprint: str


@dataclass(frozen=True)
class HeldTotals:
    """What is kept of the source until the lake has reached the LSN.

    It has no secret and no value of a row: Airflow writes it into its database.
    """

    lsn: Lsn
    system_identifier: str
    timeline: int
    #: All totals were made with it.
    salt: int
    #: Path of the mark, relative to the staging root.
    mark: str
    #: By OID. A table without one is compared by ``verify``.
    totals: Mapping[int, HeldTotal]
    #: How long ``hold`` took.
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
    def from_body(cls, body: Mapping[str, Any]) -> HeldTotals | None:
        """What ``to_body`` described; None: another version of the package did, with other fields."""
        if body.keys() != {each.name for each in dataclasses.fields(cls)}:
            return None
        totals = {
            int(oid): HeldTotal(Digest(rows, int(total)), fingerprint)
            for oid, (rows, total, fingerprint) in body["totals"].items()
        }
        changed = {"lsn": Lsn.parse(body["lsn"]), "salt": int(body["salt"]), "totals": totals}
        return cls(**{**body, **changed})


def can_hold(request: ProofRequest) -> bool:
    """Whether totals can prove what the request asks for. Example: they cannot prove a part of a table."""
    return request.share == 1 and request.method == FULL


def hold(request: ProofRequest, lsns: int = 1) -> HeldTotals:
    """Take an LSN, ask the pipeline for a batch that ends there, and compute the totals of the source.

    :param lsns: how many LSNs were tried, with this one.
    """
    began, salt = time.monotonic(), secrets.randbits(63)
    area = StagingArea(request.staging_uri)
    with at_new_lsn(request) as (server, source):
        wanted = wanted_tables(request, source)
        mark = _mark(area, request, source.lsn, _SECONDS_OF_TOTALS)
        try:
            checkpoint = source.sees(server, read_progress(request))
            catalog = open_catalog(request.catalog_name, request.catalog_properties)
            totals = {}
            for table in wanted:
                comparison = Comparison(request, source, checkpoint, catalog, table)
                if (total := comparison.total_of_source(salt)) is not None:
                    totals[table.relation_oid] = HeldTotal(*total)
            reach("verify.after_totals")
            # Totals of large tables take long, and the wait begins only now.
            fresh = _mark(area, request, source.lsn, _MORE_SECONDS)
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


def _mark(area: StagingArea, request: ProofRequest, lsn: Lsn, more_seconds: float) -> Mark:
    return leave_mark(area, request.slot_name, lsn, request.wait_seconds + more_seconds)


def release(request: ProofRequest, held: HeldTotals) -> None:
    """Remove the mark. It may be gone already."""
    Mark(StagingArea(request.staging_uri), held.mark).remove()


def complete(request: ProofRequest, held: HeldTotals) -> tuple[Proof, frozenset[int]]:
    """Compare the totals of the source with those of the lake. Call ``release`` before.

    :returns: first what is known: tables that are proven, and tables that cannot be compared. Then the OIDs
        of all other tables, which ``verify`` has to compare: they have another total or another fingerprint.
    :raises BatchSpansLsn: a batch that changed a table begins before the LSN and ends past it.
    :raises LakeUnavailable: the lake did not reach the LSN.
    """
    began = time.monotonic()
    reached = check_reached(request, held.lsn)
    server, is_md5 = check_source(request, reached)
    is_same = (server.system_identifier, server.timeline) == (
        held.system_identifier,
        held.timeline,
    )
    proofs, rest = [], set()
    with source_now(
        request.conninfo, server, request.publication_names, held.lsn, is_md5=is_md5
    ) as source:
        checkpoint = source.sees(server, reached)
        catalog = open_catalog(request.catalog_name, request.catalog_properties)
        comparisons = [
            Comparison(request, source, checkpoint, catalog, each)
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
    """What ``complete`` and ``verify`` found, as one proof. Its LSN is that of the last verification.

    :param second: what ``verify`` found in the tables that ``complete`` left to it; None: it left none.
    """
    if second is None:
        return first
    tables = (*first.tables, *second.tables)
    return dataclasses.replace(second, tables=tables, seconds=first.seconds + second.seconds)
