"""A database with a pipeline, and the requests for verifications of its lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from airflow_provider_pgoutput.proof.request import ProofRequest
from airflow_provider_pgoutput.proof.verify import verify
from tests.conformance.compare import (
    connect,
    difference,
    lake_fields,
    quoted,
    read_lake,
    read_source,
    source_columns,
)
from tests.conformance.pipeline import CATALOG, Pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.proof.report import Proof


class World:
    """A database, a pipeline with two batches, and the requests for verifications."""

    def __init__(self, pipeline: Pipeline, publications: tuple[str, ...]) -> None:
        self.pipeline = pipeline
        self.publications = publications

    def request(self, **more: Any) -> ProofRequest:
        pipeline = self.pipeline
        given: dict[str, Any] = {
            "conninfo": pipeline.reader,
            "slot_name": pipeline.slot_name,
            "publication_names": self.publications,
            "staging_uri": pipeline.staging.as_uri(),
            "namespace": pipeline.namespace,
            "catalog_name": CATALOG,
            "catalog_properties": pipeline.catalog_properties,
        }
        return ProofRequest(**given | more)

    def run(self, _: Lsn | None = None) -> None:
        """One run of the pipeline."""
        self.pipeline.apply(self.pipeline.stage())

    def verify(self, **more: Any) -> Proof:
        """Verify while the pipeline makes one run."""
        return verify(self.request(**more), self.run)

    def damage(self, *statements: str) -> None:
        """Write to the lake past the pipeline.

        :param statements: SQL of Spark, with ``{}`` for catalog and namespace.
        """
        for statement in statements:
            self.refresh()
            self.pipeline.spark.sql(statement.format(f"lake.{self.pipeline.namespace}"))
        self.refresh()

    def refresh(self) -> None:
        """Let the session forget the tables as it knew them: other sessions wrote to them since."""
        namespace = self.pipeline.namespace
        for each in self.pipeline.spark.catalog.listTables(f"lake.{namespace}"):
            self.pipeline.spark.sql(f"REFRESH TABLE {quoted('lake', namespace, each.name)}")

    def sql(self, statements: str) -> None:
        with psycopg.connect(self.pipeline.conninfo, autocommit=True) as session:
            session.execute(statements.encode())

    def delete_softly(self) -> None:
        """Make a table ``soft`` with nine rows, of which three are deleted. Its publication is ``s``."""
        self.sql(
            "CREATE TABLE soft (id int PRIMARY KEY, v text); CREATE PUBLICATION s FOR TABLE soft;"
            "INSERT INTO soft SELECT i, 'v' FROM generate_series(1, 9) i"
        )
        self.run()
        self.sql("DELETE FROM soft WHERE id < 4; UPDATE soft SET v = 'changed' WHERE id = 5")
        self.run()

    def assert_equal(self, *tables: str) -> None:
        """Compare all rows by code that shares nothing with the comparison of digests."""
        self.refresh()
        pipeline = self.pipeline
        for table in tables:
            identifier = f"lake.{pipeline.namespace}.{table}"
            fields = lake_fields(pipeline.spark, identifier)
            with connect(pipeline.conninfo) as session:
                names = source_columns(session, "public", table)
                chosen = [fields[name] for name in names]
                wanted = read_source(session, "public", table, chosen)
            found = read_lake(pipeline.spark, identifier, chosen)
            assert not difference(found, wanted), table


def world_at(
    conninfo: str,
    name: str,
    staging: Path,
    spark: SparkSession,
    properties: Mapping[str, str],
    **plan_options: Any,
) -> World:
    """A database with the publication ``p``, and a pipeline that has read nothing yet.

    :param name: of the slot and of the namespace.
    :param properties: of the lake's catalog.
    """
    pipeline = Pipeline(
        conninfo=conninfo,
        slot_name=name,
        publication_names=("p",),
        namespace=name,
        staging=staging,
        catalog_properties=dict(properties),
        spark=spark,
        capture_options={"advance": "after_apply"},
        plan_options=plan_options,
    )
    return World(pipeline, ("p",))
