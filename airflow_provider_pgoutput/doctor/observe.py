"""Reads everything that the doctor compares: slot and server, lake, staging area. It changes nothing.

``diagnose.py`` draws the conclusions.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import NO_OFFSET
from airflow_provider_pgoutput.capture.slot.replication_slot import read_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.source.timelines import check_timeline
from airflow_provider_pgoutput.capture.staging.sealed import lost_files, sealed_batches
from airflow_provider_pgoutput.doctor.diagnose import examine
from airflow_provider_pgoutput.doctor.findings import PROBLEM, Finding, Observed, RunningTask
from airflow_provider_pgoutput.errors import BatchRefused, SourceChanged, SourceUnavailable
from airflow_provider_pgoutput.lake.state import read_lake

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.lsn import LsnOffset
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.capture.staging.area import StagingArea


def examine_pipeline(
    conninfo: str | Mapping[str, Any],
    slot_name: str,
    catalog: Catalog,
    namespace: str,
    area: StagingArea | None,
    *,
    two_phase: bool = False,
    running: Sequence[RunningTask] | None = None,
) -> tuple[Observed, list[Finding]]:
    """Read everything about one pipeline and compare it.

    A source that does not answer is a finding like others, and so is a damaged manifest.

    :param area: the staging area; None: it is not looked at.
    :param running: the tasks that Airflow was running before anything was read; None: not known.
    :raises LakeUnavailable: the lake cannot be read, so nothing can be said.
    """
    layout.check_slot_name(slot_name)
    findings: list[Finding] = []
    lake = read_lake(catalog, namespace, slot_name)
    manifests, incomplete = _read_manifests(area, slot_name, findings)
    observed = Observed(
        slot_name=slot_name,
        server=None,
        slot=None,
        two_phase=two_phase,
        lake=lake,
        manifests=manifests,
        incomplete=incomplete,
        now=datetime.now(UTC),
        staging_read=area is not None,
        running=running,
    )
    observed = _with_source(conninfo, observed, findings)
    _check_timeline(conninfo, observed, findings)
    return observed, findings + examine(observed)


def _with_source(
    conninfo: str | Mapping[str, Any], observed: Observed, findings: list[Finding]
) -> Observed:
    """What was observed, and the server with its slot, as the lake knows them."""
    try:
        with sessions.connect(conninfo, slot=observed.slot_name) as session:
            server = read_server(session, conninfo)
            slot = read_slot(session, observed.slot_name)
    except SourceUnavailable as error:
        findings.append(Finding(PROBLEM, "source", error.message, error.advice or ""))
        return observed
    name = observed.system_identifier
    found = dataclasses.replace(observed, server=server, slot=slot)
    return found if name is None else found.as_in_lake(name, _offset_of(name, observed))


def _offset_of(name: str, observed: Observed) -> LsnOffset:
    """What the lake adds to the LSNs of a system, by the checkpoint or by the system's newest batch."""
    if observed.checkpoint is not None:
        return observed.checkpoint.lsn_offset
    of_system = [each for each in observed.manifests if each.system_identifier == name]
    return of_system[-1].systems.lsn_offset if of_system else NO_OFFSET


def _check_timeline(
    conninfo: str | Mapping[str, Any], observed: Observed, findings: list[Finding]
) -> None:
    """Find out whether the source was promoted or restored to an LSN before the end of the lake."""
    server, checkpoint = observed.server, observed.checkpoint
    if (
        server is None
        or checkpoint is None
        or observed.system_identifier != server.system_identifier
    ):
        return
    then, slot_name = checkpoint.timeline, observed.slot_name
    try:
        check_timeline(conninfo, server, then=then, end_lsn=checkpoint.end_lsn, slot=slot_name)
    except (SourceChanged, SourceUnavailable) as error:
        findings.append(Finding(PROBLEM, "source", error.message, error.advice or ""))


def _read_manifests(
    area: StagingArea | None, slot_name: str, findings: list[Finding]
) -> tuple[list[Manifest], frozenset[str]]:
    found: list[Manifest] = []
    incomplete: set[str] = set()
    if area is None:
        return found, frozenset(incomplete)
    for each in sealed_batches(area, slot_name):
        try:
            manifest = each.read()
        except BatchRefused as error:
            what = f"The manifest {each.entry.name} cannot be read: {error.message}"
            findings.append(Finding(PROBLEM, "staging", what, error.advice or ""))
            continue
        found.append(manifest)
        if lost_files(area, manifest):
            incomplete.add(manifest.batch_id)
    return sorted(found, key=lambda each: (each.start_lsn, each.end_lsn)), frozenset(incomplete)
