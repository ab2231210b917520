"""A source in miniature and a lake to compare it with, for every test of apply."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from tests.apply.build import Relation, Source, column
from tests.faults.rest_catalog import RestCatalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from quickstart.spark import LocalLake

_numbers = itertools.count(1)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """An empty source; its slot's name is also the name of its namespace in the lake."""
    return Source(tmp_path / "staging", f"slot_{next(_numbers)}")


@pytest.fixture
def table(source: Source) -> Relation:
    """A table of three rows in the source, not yet staged."""
    made = source.table(
        "t", (column("a"), column("b", "string"), column("c")), key=("a",), toast=("b",)
    )
    with source.transaction():
        for a in (1, 2, 3):
            made.insert(a, f"b{a}", 0)
    return made


@pytest.fixture
def lake_rows(spark: SparkSession, source: Source) -> Callable[..., list[tuple[Any, ...]]]:
    """Rows of the target of a relation, sorted, in the columns of the source."""

    # Names may differ only in case.
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")

    def read(relation: Relation, *columns: str, target: str | None = None) -> list[tuple[Any, ...]]:
        names = columns or tuple(each.name for each in relation.version.columns)
        name = TableName("lake", source.slot_name, target or relation.name)
        session.catalog.refreshTable(name.sql)
        frame = session.table(name.sql)
        at = [frame.columns.index(each) for each in names]
        return sort(tuple(row[i] for i in at) for row in frame.collect())

    return read


def sort(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(rows, key=repr)


def source_rows(relation: Relation) -> list[tuple[Any, ...]]:
    names = [each.name for each in relation.version.columns]
    return sort(tuple(row[name] for name in names) for row in relation.rows)


@pytest.fixture
def other(source: Source) -> Relation:
    """A second table, which never makes trouble."""
    return source.table("other", (column("a"), column("b", "string")), key=("a",))


@pytest.fixture
def rest_catalog(spark: SparkSession, local_lake: LocalLake) -> Iterator[RestCatalog]:
    """The tests' catalog over HTTP, as the catalog ``loses_answers`` of the tests' session."""
    catalog = RestCatalog(spark, local_lake)
    catalog.attach("loses_answers")
    yield catalog
    catalog.stop()


@pytest.fixture
def second(tmp_path: Path, source: Source) -> Source:
    """Another database, with a slot of its own, the same OIDs and other LSNs."""
    made = Source(tmp_path / "second", f"{source.slot_name}_b", system_identifier="7302")
    made.lsn = made.staged_to = source.lsn // 2
    return made
