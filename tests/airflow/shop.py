"""A table at the source and in a lake that was written by hand, and what moves the lake's checkpoint."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.repairs import waiting_requests
from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator

if TYPE_CHECKING:
    from pathlib import Path

    from tests.airflow.conftest import Session, TestLake

ROWS = [(1, "a"), (2, "b"), (3, None)]


class Shop:
    """A table at the source and in the lake, and a pipeline that only moves the checkpoint."""

    def __init__(self, source: Session, slot: str, lake: TestLake, staging: Path) -> None:
        self.slot, self.lake, self.staging_uri = slot, lake, staging.as_uri()
        source.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE orders"
        )
        for row in ROWS:
            source.execute("INSERT INTO orders VALUES (%s, %s)", row)
        found = source.execute(
            "SELECT system_identifier::text, 'orders'::regclass::oid::int8 FROM pg_control_system()"
        ).fetchone()
        assert found is not None
        lake.system_identifier, self.oid = found
        lake.record(slot, "0/1", tables={"public.orders": self.oid})
        schema = self.schema = pa.schema([("id", pa.int32()), ("v", pa.string())])
        self.requested: list[tuple[tuple[str, ...], ...]] = []
        catalog = load_catalog(lake.catalog_name, **lake.properties)
        self.table = catalog.create_table(f"{lake.namespace}.public__orders", schema)
        rows = [dict(zip(("id", "v"), row, strict=True)) for row in ROWS]
        self.table.append(pa.Table.from_pylist(rows, schema))
        self._ended = threading.Event()
        self._runs = threading.Thread(target=self._run, daemon=True)

    def damage(self) -> None:
        self.table.refresh().delete("id = 2")

    def start(self) -> None:
        self._runs.start()

    def stop(self) -> None:
        self._ended.set()
        if self._runs.is_alive():
            self._runs.join(10)

    def _run(self) -> None:
        """End a batch at each mark, and write the rows that a repair asks for."""
        area, done = StagingArea(self.staging_uri), set()
        while not self._ended.wait(0.05):
            for request in waiting_requests(area, self.slot):
                rows = [{"id": id_, "v": v} for id_, v in ROWS if id_ == 2]
                self.requested += [each.keys for each in request.tables]
                self.table.refresh().append(pa.Table.from_pylist(rows, self.schema))
                request.remove()
            for name in area.names(layout.mark_folder(self.slot)):
                found = layout.parse_mark_name(name)
                if found is not None and name not in done:
                    done.add(name)
                    self.lake.record(self.slot, str(found[0]))

    def operator(self, **more: Any) -> PgoutputVerifyOperator:
        given: dict[str, Any] = {
            "slot_name": self.slot,
            "publication_names": "p",
            "staging_uri": self.staging_uri,
            "namespace": self.lake.namespace,
            # As templates give them.
            "keys_shown": "5",
            "wait_seconds": "60",
        }
        return PgoutputVerifyOperator(task_id="verify", **given | more)

    def recorded(self) -> list[dict[str, Any]]:
        catalog = load_catalog(self.lake.catalog_name, **self.lake.properties)
        rows: list[dict[str, Any]] = (
            catalog.load_table(f"{self.lake.namespace}.pgoutput_proofs")
            .scan()
            .to_arrow()
            .to_pylist()
        )
        return rows
