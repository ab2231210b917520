"""Run a group of scenarios through one database and two pipelines, and keep what happened.

Both pipelines copy the tables before the scenarios' DML and read the same WAL afterwards: one takes
all of it in one batch, the other takes one batch for each transaction. Then every batch is applied
again. What is not here: any judgement; the tests look at the ``GroupRun``.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from tests.conformance.compare import connect
from tests.conformance.pipeline import Pipeline
from tests.conformance.scenario import Copy, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.quickstart.postgres import EmbeddedPostgres
    from tests.conformance.pipeline import Batch

ONE_BATCH = "one_batch"
PER_TRANSACTION = "per_transaction"
VARIANTS = {ONE_BATCH: {}, PER_TRANSACTION: {"max_changes": 1}}


@dataclass(frozen=True)
class VariantRun:
    """What one pipeline did."""

    pipeline: Pipeline
    copy: Batch
    batches: list[Batch]
    warnings: list[str]
    snapshots: dict[str, int | None]
    snapshots_after_second_time: dict[str, int | None]


@dataclass(frozen=True)
class GroupRun:
    """What became of a group."""

    conninfo: str
    variants: dict[str, VariantRun]
    #: SQLSTATE of the refused statement, by scenario id.
    refused: dict[str, str]


def run_group(
    name: str,
    scenarios: list[Scenario],
    server: EmbeddedPostgres,
    spark: SparkSession,
    catalog_properties: dict[str, str],
    folder: Path,
) -> GroupRun:
    """Run all scenarios of a group in both variants."""
    database = f"conformance_{name}"
    conninfo = create_database(server, database, scenarios)
    for scenario in scenarios:
        execute(conninfo, scenario, scenario.setup)
    pipelines = {
        variant: Pipeline(
            conninfo=conninfo,
            slot_name=f"{name}_{variant}",
            publication_names=tuple(
                scenario.publication for scenario in scenarios if _publishes(scenario)
            ),
            namespace=f"{name}_{variant}",
            staging=folder,
            catalog_properties=catalog_properties,
            spark=spark,
        )
        for variant in VARIANTS
    }
    copies, warnings = {}, {}
    for variant, pipeline in pipelines.items():
        with collected_warnings() as warnings[variant]:
            copies[variant] = pipeline.stage()
        pipeline.apply(copies[variant])
    refused = {scenario.id: run_dml(conninfo, scenario) for scenario in scenarios}
    runs = {}
    for variant, pipeline in pipelines.items():
        target = pipeline.flush_lsn()
        with collected_warnings() as warned:
            batches = pipeline.drain(target, **VARIANTS[variant])
        before = pipeline.snapshot_ids()
        for batch in (copies[variant], *batches):
            pipeline.apply(batch)
        runs[variant] = VariantRun(
            pipeline,
            copies[variant],
            batches,
            warnings[variant] + warned,
            before,
            pipeline.snapshot_ids(),
        )
        pipeline.advance()
        # A slot that is left holds back transactions for every slot that a later test makes.
        with connect(conninfo) as session:
            session.execute("SELECT pg_drop_replication_slot(%s)", (pipeline.slot_name,))
    return GroupRun(conninfo, runs, refused)


def create_database(server: EmbeddedPostgres, database: str, scenarios: list[Scenario]) -> str:
    """Make the database with what the scenarios ask of it as a whole; return its URI."""
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    conninfo = server.conninfo(database)
    with connect(conninfo) as session:
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


def execute(conninfo: str, scenario: Scenario, statements: tuple[str | Copy, ...]) -> None:
    """Run statements of a scenario in its schema, one by one."""
    with connect(conninfo) as session:
        session.execute(
            sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(scenario.schema))
        )
        session.execute(
            sql.SQL("SET search_path = {}, public").format(sql.Identifier(scenario.schema))
        )
        for statement in statements:
            _execute_one(session, scenario, statement)


def _execute_one(
    session: psycopg.Connection[Any], scenario: Scenario, statement: str | Copy
) -> None:
    if isinstance(statement, Copy):
        with session.cursor().copy(statement.statement) as copy:
            copy.write(statement.data)
    else:
        session.execute(statement.replace("{p}", scenario.publication))


def _publishes(scenario: Scenario) -> bool:
    return any("CREATE PUBLICATION" in statement for statement in scenario.setup)


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
