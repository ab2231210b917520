"""Which column of the source a column of the lake comes from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_COLUMNS
from airflow_provider_pgoutput.batch.manifest import Table
from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.tasks.lineage import source_columns

if TYPE_CHECKING:
    from pathlib import Path


def test_a_column_of_another_name_comes_from_the_column_with_its_number(tmp_path: Path) -> None:
    catalog = SqlCatalog("lake", uri="sqlite://", warehouse=tmp_path.as_uri())
    catalog.create_namespace("shop")
    columns = [(name, pa.string()) for name in ("number", "title", "tenant", "plain")]
    fields = json.dumps({"relation_oid": 7, "fields": {"1": 1, "2": 2}})
    iceberg = catalog.create_table(
        "shop.t", pa.schema(columns), properties={PROPERTY_COLUMNS: fields}
    )
    found = tuple(
        Column(name, 25, -1, "text", "string", attribute_number=number)
        for number, name in enumerate(("id", "label", "plain"), start=1)
    )
    version = TableVersion(0, "public", "t", "d", found, ("id",))
    table = Table(7, "public", "t", (version,))
    sources = source_columns(table, iceberg, iceberg.properties)
    assert sources == {"number": "id", "title": "label", "plain": "plain"}
