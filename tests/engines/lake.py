"""The same tables of a source, carried to the lake in each format version and write mode."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.types import TypeInfo
from psycopg.types.composite import CompositeInfo, register_composite
from psycopg.types.hstore import register_hstore
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.maintain import maintain
from airflow_provider_pgoutput.batch.jobs import COPY_ON_WRITE, MERGE_ON_READ, MaintenanceJob
from airflow_provider_pgoutput.errors import SparkFailed
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from quickstart.spark import LocalLake, local_conf, spark_environment
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG, Pipeline
from tests.engines.reader import canonical
from tests.engines.tables import SETUP, batch, most_batches, table_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from tests.engines.tables import Table


@dataclass(frozen=True)
class Kind:
    """A format version and a write mode."""

    format_version: int
    write_mode: str

    def __str__(self) -> str:
        return f"{self.format_version}, {self.write_mode}"

    @property
    def name(self) -> str:
        """Of its slot and its namespace."""
        return f"v{self.format_version}_{self.write_mode.replace('-', '_')}"


#: The first one is the default of the package.
KINDS = tuple(Kind(version, mode) for version in (2, 3) for mode in (MERGE_ON_READ, COPY_ON_WRITE))


def make(home: Path, tables: Sequence[Table]) -> dict[str, Any]:
    """Make tables of all kinds below a folder, which stays.

    Names are ``moment/kind/table``.

    :return: ``request`` for ``environments.read_with``, ``wanted``: the rows by table, ``spark``: what Spark
        read, in the form of ``read_with``, and ``spark_version``.
    """
    home.mkdir(parents=True)
    os.environ.update(spark_environment())
    server_home = Path(tempfile.mkdtemp(prefix="pgoutput-engines-"))
    installation = find_or_fetch_installation(18)
    server = EmbeddedPostgres(server_home, installation=installation, settings={"fsync": "off"})
    made: dict[str, Any] = {"request": [], "wanted": {}, "spark": {}}
    try:
        server.start()
        lakes = Lakes(server.conninfo(), LocalLake(home).create(), home, tables)
        for moment in lakes.moments():
            rows = {each.name: rows_of_source(server.conninfo(), each) for each in tables}
            for kind in KINDS:
                for table in tables:
                    name = f"{moment}/{kind.name}/{table.name}"
                    asked = {"name": name, "metadata": lakes.metadata(kind, table.name)}
                    made["request"].append({**asked, "columns": table.columns})
                    made["wanted"][name] = rows[table.name]
                    made["spark"][name] = {"rows": lakes.read_with_spark(kind, table)}
        made["spark_version"] = lakes.spark_version
    finally:
        server.destroy()
    return made


def rows_of_source(conninfo: str, table: Table) -> Counter[str]:
    """The rows that an engine must find."""
    with psycopg.connect(conninfo, autocommit=True) as session:
        session.execute("SET TimeZone = 'UTC'")
        hstore, place = (
            kind.fetch(session, name)
            for kind, name in ((TypeInfo, "hstore"), (CompositeInfo, "place"))
        )
        assert hstore is not None
        assert isinstance(place, CompositeInfo)
        register_hstore(hstore, session)
        register_composite(place, session)
        rows = session.execute(table.query.encode()).fetchall()
    kinds = table.columns.values()
    return Counter(json.dumps([*map(canonical, row, kinds)]) for row in rows)


class Lakes:
    """A pipeline for each kind, all from one source."""

    def __init__(self, conninfo: str, lake: LocalLake, home: Path, tables: Sequence[Table]) -> None:
        self._conninfo = conninfo
        self._tables = tables
        self._spark = _session(lake)
        self.spark_version = self._spark.version
        self._pipelines = {kind: self._pipeline(kind, lake, home) for kind in KINDS}

    def moments(self) -> Iterator[str]:
        """Go on to each moment at which the tables are read, and name it."""
        self._execute(*SETUP)
        for number in range(most_batches(self._tables)):
            self._execute(*batch(self._tables, number))
            if number == 0:
                names = ", ".join(each.name for each in self._tables)
                self._execute(f"CREATE PUBLICATION p FOR TABLE {names}")
            self._run()
        yield "after the batches"
        for kind, pipeline in self._pipelines.items():
            job = MaintenanceJob(
                staging_uri=pipeline.staging.as_uri(),
                catalog_name=CATALOG,
                namespace=kind.name,
                slot_name=kind.name,
            )
            maintain(self._spark, job)
        yield "after a maintenance"
        self._execute(*(statement for each in self._tables for statement in each.later))
        self._run()
        yield "after a batch more"

    def read_with_spark(self, kind: Kind, table: Table) -> list[list[Any]]:
        """What Spark reads, in the form of ``reader``."""
        session = self._spark.newSession()
        name = quoted(CATALOG, kind.name, table.name)
        session.catalog.refreshTable(name)
        found = session.table(name).select(*map(quoted, table.columns)).toArrow()
        values = [found.column(each).to_pylist() for each in table.columns]
        kinds = table.columns.values()
        return [[*map(canonical, row, kinds)] for row in zip(*values, strict=True)]

    def metadata(self, kind: Kind, table: str) -> str:
        """The newest metadata file of a table."""
        catalog = load_catalog(CATALOG, **self._pipelines[kind].catalog_properties)
        found = catalog.load_table((kind.name, table))
        catalog.close()
        assert found.format_version == kind.format_version
        return found.metadata_location

    def _run(self) -> None:
        for pipeline in self._pipelines.values():
            batch = pipeline.stage()
            try:
                pipeline.apply(batch)
            except SparkFailed as error:
                # As a retry of the task does.
                print(f"once more: {error}", flush=True)
                pipeline.apply(batch)

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as session:
            for statement in statements:
                session.execute(statement.encode())

    def _pipeline(self, kind: Kind, lake: LocalLake, home: Path) -> Pipeline:
        staging = home / f"staging_{kind.name}"
        staging.mkdir()
        return Pipeline(
            conninfo=self._conninfo,
            slot_name=kind.name,
            publication_names=("p",),
            namespace=kind.name,
            staging=staging,
            catalog_properties=lake.pyiceberg_properties(),
            spark=self._spark,
            capture_options={"type_options": {"composite": "struct"}},
            plan_options={
                "format_version": kind.format_version,
                "write_mode": kind.write_mode,
                "table_options": table_options(self._tables),
            },
        )


def _session(lake: LocalLake) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("pgoutput-engines")
    for name, value in {**local_conf(), **lake.spark_conf()}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
