"""A lake that the worker may read and not write says so at once. ``tests/lakes`` has the servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError, LakeDenied
from airflow_provider_pgoutput.lake.checkpoint_rows import append_rows
from airflow_provider_pgoutput.lake.state import open_catalog, read_recorded

if TYPE_CHECKING:
    from pathlib import Path


def test_a_sql_catalog_that_may_only_be_read(tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    warehouse = {"type": "sql", "warehouse": tmp_path.as_uri()}
    writer = open_catalog("lake", {**warehouse, "uri": f"sqlite:///{file}"})
    writer.create_namespace("n")
    reader = open_catalog("lake", {**warehouse, "uri": f"sqlite:///file:{file}?mode=ro&uri=true"})
    assert read_recorded(reader, "n", "slot") == ()
    with pytest.raises(LakeDenied, match="cannot be written"):
        append_rows(reader, "n", [{"slot_name": "slot"}])
    append_rows(writer, "n", [{"slot_name": "slot"}])


def test_a_client_that_the_worker_lacks_is_named(tmp_path: Path) -> None:
    """The tests' Python has neither a driver of MySQL nor the client of Azure."""
    uri = "mysql+pymysql://lake:canary@127.0.0.1:1/catalog"
    with pytest.raises(ConfigurationError, match="Python module pymysql on the workers"):
        open_catalog("lake", {"type": "sql", "uri": uri, "warehouse": "/nowhere"})
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "abfs://box@a.example/folder"}
    catalog = open_catalog("lake", {"type": "sql", **where})
    catalog.create_namespace("n")
    with pytest.raises(ConfigurationError, match="Python module adlfs on the workers"):
        append_rows(catalog, "n", [{"slot_name": "slot"}])
