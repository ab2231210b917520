"""Run a group of scenarios through one database, and keep what happened.

A pipeline copies the tables before the scenarios' DML, takes all of the WAL afterwards in one batch, and
applies every batch again. The same WAL is staged in every way there is, see ``ways.py``. A second pipeline
takes one batch for each transaction into copy-on-write tables, with the publications in the other order, of
some groups only among the ``exhaustive`` tests. A pipeline runs only if a selected test asks for it.
What is not here: any judgement; the tests look at the ``GroupRun``.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from airflow_provider_pgoutput.batch.jobs import COPY_ON_WRITE, MERGE_ON_READ
from airflow_provider_pgoutput.proof.request import ProofRequest
from airflow_provider_pgoutput.proof.verify import verify
from tests.conformance.compare import connect
from tests.conformance.pipeline import CATALOG, Pipeline
from tests.conformance.scenario import GROUPS, Copy, Group, In, Scenario
from tests.conformance.ways import stage_every_way, staged_rows, stream_everything

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.proof.report import Proof
    from quickstart.postgres import EmbeddedPostgres
    from tests.conformance.pipeline import Batch
    from tests.conformance.ways import Staged

ONE_BATCH = "one_batch"
PER_TRANSACTION = "per_transaction"
#: By variant: arguments of its captures after the copy, and of the applies.
VARIANTS: dict[str, dict[str, Any]] = {ONE_BATCH: {}, PER_TRANSACTION: {"max_changes": 1}}
PLANS: dict[str, dict[str, Any]] = {
    ONE_BATCH: {"write_mode": MERGE_ON_READ},
    PER_TRANSACTION: {"write_mode": COPY_ON_WRITE},
}


@dataclass(frozen=True)
class VariantRun:
    """What one pipeline did."""

    pipeline: Pipeline
    copy: Batch
    batches: list[Batch]
    #: The changes of these batches, the copy not counted.
    staged: Staged
    warnings: list[str]
    snapshots: dict[str, int | None]
    snapshots_after_second_time: dict[str, int | None]
    #: What a verification found at the end; None: of one batch only.
    proof: Proof | None


@dataclass(frozen=True)
class GroupRun:
    """What became of a group."""

    conninfo: str
    variants: dict[str, VariantRun]
    #: SQLSTATE of the refused statement, by scenario id.
    refused: dict[str, str]
    #: What was staged only, by the way of reading; empty if nothing asks for one batch.
    staged: dict[str, Staged | Exception]


def run_group(
    name: str,
    scenarios: list[Scenario],
    variants: list[str],
    server: EmbeddedPostgres,
    spark: SparkSession,
    catalog_properties: dict[str, str],
    folder: Path,
) -> GroupRun:
    """Run scenarios of a group in some of its variants; with one batch, stage them in every way, too."""
    group = GROUPS[name]
    conninfo = create_database(server, f"conformance_{name}", scenarios, group)
    for scenario in scenarios:
        execute(conninfo, scenario, scenario.setup)
    names = tuple(publication for scenario in scenarios for publication in scenario.publications)
    pipelines = {
        variant: Pipeline(
            conninfo=conninfo,
            slot_name=f"{name}_{variant}",
            publication_names=names if variant == ONE_BATCH else names[::-1],
            namespace=f"{name}_{variant}",
            staging=folder,
            catalog_properties=catalog_properties,
            spark=spark,
            capture_options={"options": group.options},
            plan_options=dict(PLANS[variant]),
        )
        for variant in variants
    }
    copies, warnings = {}, {}
    for variant, pipeline in pipelines.items():
        with collected_warnings() as warnings[variant]:
            copies[variant] = pipeline.stage()
        pipeline.apply(copies[variant])
    refused = {scenario.id: run_dml(conninfo, scenario) for scenario in scenarios}
    staged = {}
    if ONE_BATCH in pipelines:
        staged = stage_every_way(pipelines[ONE_BATCH], group, server.major, folder)
    runs = {}
    for variant, pipeline in pipelines.items():
        runs[variant] = run_variant(variant, pipeline, copies[variant], warnings[variant])
    return GroupRun(conninfo, runs, refused, staged)


def run_variant(variant: str, pipeline: Pipeline, copy: Batch, warnings: list[str]) -> VariantRun:
    """Bring the lake to the end of the WAL, apply everything again, and drop the slot."""
    with collected_warnings() as warned:
        batches = pipeline.drain(pipeline.flush_lsn(), **VARIANTS[variant])
    before = pipeline.snapshot_ids()
    for batch in (copy, *batches):
        pipeline.apply(batch)
    run = VariantRun(
        pipeline,
        copy,
        batches,
        staged_rows(batches, pipeline.staging),
        warnings + warned,
        before,
        pipeline.snapshot_ids(),
        prove(pipeline) if variant == ONE_BATCH else None,
    )
    pipeline.advance()
    # A slot that is left holds back transactions for every slot that a later test makes.
    with connect(pipeline.conninfo) as session:
        session.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.slot_name,))
    return run


def prove(pipeline: Pipeline) -> Proof:
    """Verify the lake, beside one more run of the pipeline."""
    request = ProofRequest(
        conninfo=pipeline.reader,
        slot_name=pipeline.slot_name,
        publication_names=pipeline.publication_names,
        staging_uri=pipeline.staging.as_uri(),
        namespace=pipeline.namespace,
        catalog_name=CATALOG,
        catalog_properties=pipeline.catalog_properties,
        keys_shown=3,
    )
    return verify(request, lambda _: pipeline.apply(pipeline.stage()))


def create_database(
    server: EmbeddedPostgres, database: str, scenarios: list[Scenario], group: Group
) -> str:
    """Make the database with what the scenarios ask of it as a whole; return its URI."""
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute(
            sql.SQL(
                "CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0"
                if group.encoding != "UTF8"
                else "CREATE DATABASE {} ENCODING {}"
            ).format(sql.Identifier(database), sql.Literal(group.encoding))
        )
    conninfo = server.conninfo(database)
    with connect(conninfo) as session:
        if group.streams:
            session.execute(stream_everything(database, server.major))
        for scenario in scenarios:
            for statement in scenario.database_setup:
                session.execute(statement.format(database=database))
    return conninfo


def run_dml(conninfo: str, scenario: Scenario) -> str:
    """Run the scenario's DML; return the SQLSTATE of a refusal by the publisher, or nothing."""
    try:
        execute(conninfo, scenario, scenario.dml)
    except psycopg.Error as error:
        if not scenario.dml_sqlstate:
            raise
        return error.sqlstate or ""
    return ""


def execute(conninfo: str, scenario: Scenario, statements: tuple[str | Copy | In, ...]) -> None:
    """Run statements of a scenario in its schema, one by one."""
    with contextlib.ExitStack() as stack:
        sessions: dict[str, psycopg.Connection[Any]] = {}
        for statement in statements:
            name = statement.session if isinstance(statement, In) else ""
            if name not in sessions:
                sessions[name] = stack.enter_context(_session_of(conninfo, scenario))
            _execute_one(sessions[name], scenario, statement)


def _session_of(conninfo: str, scenario: Scenario) -> psycopg.Connection[Any]:
    session = connect(conninfo)
    session.execute(
        sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(scenario.schema))
    )
    session.execute(sql.SQL("SET search_path = {}, public").format(sql.Identifier(scenario.schema)))
    return session


def _execute_one(
    session: psycopg.Connection[Any], scenario: Scenario, statement: str | Copy | In
) -> None:
    if isinstance(statement, Copy):
        with session.cursor().copy(statement.statement) as copy:
            copy.write(statement.data)
        return
    text = statement.statement if isinstance(statement, In) else statement
    session.execute(text.replace("{p}", scenario.publication))


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Collect what the package logs as a warning."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Collector(logging.WARNING)
    logger = logging.getLogger("airflow_provider_pgoutput")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)
