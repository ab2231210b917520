"""Runs the commands: opens connections and prints answers. The work is in ``doctor/`` and ``lake/``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.providers_configuration_loader import providers_configuration_loaded

from airflow_provider_pgoutput.batch.answers import FAIL, REPAIR
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.cli.running import running_tasks
from airflow_provider_pgoutput.doctor.findings import PROBLEM, all_is_well
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.doctor.repair import rebuild_checkpoint, remove_dead_branches
from airflow_provider_pgoutput.errors import PgoutputError
from airflow_provider_pgoutput.hooks.connections import secret_of
from airflow_provider_pgoutput.hooks.iceberg import resolve_lake_catalog
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from airflow_provider_pgoutput.lake.batches_at import batches_around
from airflow_provider_pgoutput.lake.quarantine import incomplete_tables
from airflow_provider_pgoutput.lake.state import (
    names_of_tables,
    open_catalog,
    read_recorded,
    tables_set_aside,
)
from airflow_provider_pgoutput.proof.record import newest_proofs, proven, record_proof
from airflow_provider_pgoutput.proof.repair import after_repair, repair
from airflow_provider_pgoutput.proof.request import ProofRequest
from airflow_provider_pgoutput.proof.verify import verify as verify_lake
from airflow_provider_pgoutput.tasks.arguments import optional_text_list, text_list

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.set_aside import SetAside
    from airflow_provider_pgoutput.doctor.findings import Finding, Observed
    from airflow_provider_pgoutput.lake.quarantine import Incomplete
    from airflow_provider_pgoutput.lake.state import Recorded
    from airflow_provider_pgoutput.proof.record import NewestProof

#: Forms of output that are not for scripts.
_FOR_PEOPLE = ("table", "plain")
_PROCESS_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"


@providers_configuration_loaded
def status(args: Namespace) -> None:
    """Print the newest batch of each table and of the pipeline, what is set aside, and what is proven."""
    with _server_side(), _clean_exit():
        catalog = _catalog(args)
        recorded = read_recorded(catalog, args.namespace, args.slot_name)
        tables = names_of_tables(recorded)
        proofs = newest_proofs(catalog, args.namespace, args.slot_name, tables)
        incomplete = incomplete_tables(catalog, args.namespace, args.slot_name)
    by_oid = {
        row.relation_oid or row.target: row
        for row in recorded
        if row.target is not None or row.table_name is None
    }
    # A table that was made again has another OID. Several tables may share a target.
    newest = {(row.target or "", row.table_name or ""): row for row in by_oid.values()}
    set_aside = tables_set_aside(recorded)
    if not newest and args.output in _FOR_PEOPLE:
        print(f"No batch of slot {args.slot_name} was applied to namespace {args.namespace} yet.")
        return
    rows = [
        _status_row(target, row, set_aside, proofs, incomplete)
        for (target, _), row in sorted(newest.items())
    ]
    AirflowConsole().print_as(
        [*rows, *(_never_applied(each) for each in set_aside.values())], output=args.output
    )


@providers_configuration_loaded
def lsn_at(args: Namespace) -> None:
    """Print the batches around a time."""
    try:
        time = datetime.fromisoformat(args.time)
    except ValueError:
        sys.exit(f"{args.time!r} is not a time; write it like 2026-01-31T12:00:00+01:00.")
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    with _server_side(), _clean_exit():
        around = batches_around(read_recorded(_catalog(args), args.namespace, args.slot_name), time)
    if around.before is None and around.after is None:
        sys.exit("No batch of this slot is recorded in this namespace.")
    AirflowConsole().print_as(
        [
            {
                "batch": which,
                "start_lsn": str(row.start_lsn),
                "end_lsn": str(row.end_lsn),
                "last_commit_time": _text(row.last_commit_time),
            }
            for which, row in (("before", around.before), ("reaches past", around.after))
            if row is not None
        ],
        output=args.output,
    )


@providers_configuration_loaded
def doctor(args: Namespace) -> None:
    """Print what does not agree. The exit code is 1 if there is a problem."""
    with _server_side(), _clean_exit():
        catalog = _catalog(args)
        observed, findings = _examined(args, catalog)
        if args.repair and any(each.repairable for each in findings):
            observed, findings = _examined(args, catalog, repair=True)
    if not findings and args.output in _FOR_PEOPLE:
        print(all_is_well(observed))
        return
    AirflowConsole().print_as(
        [
            {"severity": each.severity, "where": each.where, "what": each.what, "do": each.advice}
            for each in findings
        ],
        output=args.output,
    )
    if any(each.severity == PROBLEM for each in findings):
        sys.exit(1)


@providers_configuration_loaded
def verify(args: Namespace) -> None:
    """Print what a verification found, a line for each table. The exit code is 1 if one differs."""
    with _server_side(), _clean_exit():
        source = PgoutputHook(args.postgres_conn_id)
        lake = resolve_lake_catalog(args.iceberg_conn_id, args.catalog_name)
        request = ProofRequest(
            conninfo=source.conninfo(),
            direct_conninfo=source.direct().conninfo(),
            slot_name=args.slot_name,
            publication_names=text_list(args.publication_names, "--publication-names"),
            staging_uri=args.staging_uri,
            namespace=args.namespace,
            catalog_name=lake.name,
            catalog_properties=lake.pyiceberg_properties,
            tables=optional_text_list(args.tables, "--tables"),
            share=args.share,
            keys_shown=args.keys_shown,
            wait_seconds=args.wait_seconds,
            method=args.method,
            hash_function=args.hash_function,
            mask_secret=secret_of(args.mask_conn_id),
            on_difference=REPAIR if args.repair else FAIL,
        )
        proof = verify_lake(request)
        catalog = open_catalog(lake.name, lake.pyiceberg_properties)
        record_proof(catalog, args.namespace, proof)
        repaired = repair(request, proof)
        if repaired is not None:
            record_proof(catalog, args.namespace, repaired)
            proof = after_repair(proof, repaired)
    AirflowConsole().print_as(
        [
            {
                "table": each.table,
                "target": each.target or "",
                "lsn": str(proof.lsn),
                "equal": "" if each.not_compared else str(each.is_equal).lower(),
                "rows": "" if each.source is None else str(each.source.rows),
                "what": str(each),
                "keys": " ".join(each.differences.keys) if each.differences else "",
            }
            for each in proof.tables
        ],
        output=args.output,
    )
    if proof.wrong or proof.compared_nothing:
        sys.exit(1)


def _examined(
    args: Namespace, catalog: Catalog, *, repair: bool = False
) -> tuple[Observed, list[Finding]]:
    def examined() -> tuple[Observed, list[Finding]]:
        return examine_pipeline(
            PgoutputHook(args.postgres_conn_id).direct().conninfo(),
            args.slot_name,
            catalog,
            args.namespace,
            StagingArea(args.staging_uri) if args.staging_uri else None,
            two_phase=args.two_phase,
            # Asked before the pipeline is examined. A run that ends meanwhile counts as running, so what it
            # left is not taken for a fault.
            running=running_tasks(),
        )

    observed, findings = examined()
    if not repair:
        return observed, findings
    remove_dead_branches(catalog, observed)
    if any(each.repairable and each.where == "checkpoint" for each in findings):
        rebuild_checkpoint(catalog, args.namespace, observed)
    return examined()


def _status_row(
    target: str,
    row: Recorded,
    set_aside: dict[int, SetAside],
    proofs: Mapping[str, NewestProof],
    incomplete: Mapping[int, Incomplete],
) -> dict[str, Any]:
    """A line of ``status``.

    :param set_aside: the tables that are set aside, by OID. This removes the table of the row from it.
    """
    waits = None if row.relation_oid is None else set_aside.pop(row.relation_oid, None)
    proof = proofs.get(row.table_name) if row.table_name else proven(proofs.values())
    return {
        "table": row.table_name or "(all)",
        "target": target or "(all)",
        "lsn": str(row.end_lsn),
        "applied_at": _text(row.applied_at),
        "complete_until": _text(row.complete_until),
        "batch": row.batch_id[:16],
        "set_aside": "" if waits is None else _why(waits),
        "incomplete": str(incomplete.get(row.relation_oid or 0, "")),
        "verified": "" if proof is None else str(proof),
    }


def _never_applied(waits: SetAside) -> dict[str, Any]:
    """The line of a table to which no batch was applied yet."""
    line = dict.fromkeys(("target", "lsn", "applied_at", "complete_until", "batch"), "")
    found = {"table": waits.table_name, **line, "set_aside": _why(waits), "incomplete": ""}
    return {**found, "verified": ""}


def _text(time: datetime | None) -> str:
    return "" if time is None else time.isoformat()


def _why(waits: SetAside) -> str:
    lacks = "not staged" if waits.needs_copy else f"{waits.batches} batches"
    return f"since {waits.since_lsn}, {lacks}: {waits.refusal}"


def _catalog(args: Namespace) -> Catalog:
    lake = resolve_lake_catalog(args.iceberg_conn_id, args.catalog_name)
    return open_catalog(lake.name, lake.pyiceberg_properties)


@contextmanager
def _server_side() -> Iterator[None]:
    """Look connections up as Airflow's own commands do, also in the metadata database.

    ``airflow connections get`` sets the same variable. What Airflow logs meanwhile goes to the standard
    error, because a script reads the rows from the standard output.
    """
    before = os.environ.get(_PROCESS_CONTEXT)
    os.environ[_PROCESS_CONTEXT] = "server"
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if before is None:
            del os.environ[_PROCESS_CONTEXT]
        else:
            os.environ[_PROCESS_CONTEXT] = before


@contextmanager
def _clean_exit() -> Iterator[None]:
    """End the program with the message of our error, without a traceback."""
    try:
        yield
    except PgoutputError as error:
        sys.exit(str(error))
