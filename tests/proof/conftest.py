"""Databases of their own, each with a pipeline and a lake."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.conformance.pipeline import Pipeline
from tests.proof.worlds import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from quickstart.postgres import EmbeddedPostgres

_databases = itertools.count(1)


@pytest.fixture(scope="module")
def new_world(
    postgres_server: EmbeddedPostgres,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., World]]:
    names = []

    def make(publications: tuple[str, ...], **plan_options: Any) -> World:
        name = f"proof_{next(_databases)}"
        names.append(name)
        with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
            session.execute(f"CREATE DATABASE {name}")
        pipeline = Pipeline(
            conninfo=postgres_server.conninfo(name),
            slot_name=name,
            publication_names=publications,
            namespace=name,
            staging=tmp_path_factory.mktemp(name),
            catalog_properties=lake_catalog_properties,
            spark=spark,
            plan_options=plan_options,
        )
        return World(pipeline, publications)

    yield make
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE slot_name = ANY (%s)",
            (names,),
        )
        for name in names:
            session.execute(f"DROP DATABASE {name} WITH (FORCE)")
