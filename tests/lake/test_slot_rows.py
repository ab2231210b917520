"""Each reader of the pipeline's own tables gets the rows of its slot only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.checkpoint import (
    CHECKPOINT,
    CHECKPOINT_TABLE,
    LATER_COLUMNS,
    QUARANTINE,
    QUARANTINE_TABLE,
)
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.own_tables import append_to_own_table
from airflow_provider_pgoutput.lake.quarantine import incomplete_tables
from airflow_provider_pgoutput.lake.state import read_recorded

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    opened = load_catalog(
        "slots", type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}"
    )
    opened.create_namespace("app")
    return opened


def _batch(slot: str, end: int) -> dict[str, object]:
    return {
        "slot_name": slot,
        "system_identifier": "1",
        "batch_id": f"{slot} {end}",
        "start_lsn": Lsn(end - 100).sortable,
        "end_lsn": Lsn(end).sortable,
    }


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
def test_the_checkpoint_is_that_of_the_slot(catalog: Catalog, early: bool) -> None:
    columns = [(name, kind) for name, kind in CHECKPOINT if not early or name not in LATER_COLUMNS]
    rows = [_batch("orders", 200), _batch("stock", 300), _batch("orders_2", 400)]
    append_to_own_table(catalog, "app", CHECKPOINT_TABLE, columns, rows)

    for slot, end in (("orders", 200), ("stock", 300), ("orders_2", 400)):
        found = read_checkpoint("slots", {}, "app", slot, catalog)
        assert found is not None
        assert found.end_lsn == Lsn(end)
        assert [each.batch_id for each in read_recorded(catalog, "app", slot)] == [f"{slot} {end}"]
    assert read_checkpoint("slots", {}, "app", "order", catalog) is None


def test_a_table_is_incomplete_for_the_slot_whose_row_was_refused(catalog: Catalog) -> None:
    row = {"relation_oid": 16384, "table_name": "public.t", "key": '{"id":1}', "commit_lsn": 500}
    rows = [{"slot_name": "orders", "system_identifier": "1", **row}]
    append_to_own_table(catalog, "app", QUARANTINE_TABLE, QUARANTINE, rows)

    assert set(incomplete_tables(catalog, "app", "orders")) == {16384}
    assert incomplete_tables(catalog, "app", "stock") == {}
