"""A healthy pipeline: a source, a slot, and a lake that is filled from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from tests.airflow.cli.states import position, published, write

if TYPE_CHECKING:
    import psycopg

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from tests.airflow.conftest import TestLake

    Session = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def lake(lake: TestLake, source: Session) -> TestLake:
    """A lake that is filled from the test's server."""
    row = source.execute("SELECT system_identifier::text FROM pg_control_system()").fetchone()
    assert row is not None
    lake.system_identifier = str(row[0])
    load_catalog(lake.catalog_name, **lake.properties).create_namespace_if_not_exists("shop")
    return lake


@pytest.fixture
def healthy(source: Session, slot: str, lake: TestLake) -> Lsn:
    """A pipeline whose last batch was applied and whose slot was advanced; where it is."""
    start, end = position(source), write(source)
    published(lake, slot, start, end)
    lake.record(slot, str(end), tables={"public.t": 77})
    advance_slot(PgoutputHook().conninfo(), slot, end, system_identifier=lake.system_identifier)
    return end
