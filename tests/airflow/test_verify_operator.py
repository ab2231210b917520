"""The operator and the command that verify: they wait for the pipeline, record what they find, and may fail.

What a verification finds is tested beside a whole pipeline, in ``tests/proof``. Here the lake is written by
hand, and a thread moves its checkpoint to the mark, as a run of the pipeline does.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.repairs import waiting_requests
from airflow_provider_pgoutput.errors import ConfigurationError, LakeUnavailable
from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator
from airflow_provider_pgoutput.proof.record import newest_proofs
from tests.airflow.command_line import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.airflow.conftest import Session, TestLake

_ROWS = [(1, "a"), (2, "b"), (3, None)]


class Shop:
    """A table at the source and in the lake, and a pipeline that only moves the checkpoint."""

    def __init__(self, source: Session, slot: str, lake: TestLake, staging: Path) -> None:
        self.slot, self.lake, self.staging_uri = slot, lake, staging.as_uri()
        source.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text); CREATE PUBLICATION p FOR TABLE orders"
        )
        for row in _ROWS:
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
        rows = [dict(zip(("id", "v"), row, strict=True)) for row in _ROWS]
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
                rows = [{"id": id_, "v": v} for id_, v in _ROWS if id_ == 2]
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


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["verified_at"])


@pytest.fixture
def shop(source: Session, slot: str, lake: TestLake, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(source, slot, lake, tmp_path / "staging")
    yield made
    made.stop()


def test_an_equal_table_is_proven_and_recorded(shop: Shop, task_context: Any) -> None:
    shop.start()
    found = shop.operator().execute(task_context)
    ((uri, told),) = task_context["outlet_events"].added
    assert uri.startswith("pgoutput-proof://")
    assert uri.endswith(f"/{told['pgoutput_proof']['slot_name']}")
    proof = told["pgoutput_proof"]
    assert (proof["lsn"], proof["tables"], proof["equal"]) == (found["lsn"], 1, 1)
    assert proof["different"] == 0
    assert proof["rows"] == found["tables"][0]["source_rows"] > 0
    (table,) = found["tables"]
    assert (table["table_name"], table["is_equal"], table["source_rows"]) == (
        "public.orders",
        True,
        3,
    )
    json.dumps(found)
    (row,) = shop.recorded()
    assert row["is_equal"] is True
    assert row["source_digest"] == row["lake_digest"]
    assert row["target"] == "shop.public__orders"
    assert row["missing"] is None
    assert row["run_id"] == "manual__1"
    assert int(row["lsn"], 16) > 0


def test_a_table_that_differs_fails_the_task_and_is_recorded(
    shop: Shop, task_context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop.damage()
    shop.start()
    with pytest.raises(
        AirflowFailException, match=r"LakeDiffers: public\.orders differs"
    ) as raised:
        shop.operator().execute(task_context)
    assert "1 missing, 0 surplus and 0 different rows" in str(raised.value)
    (row,) = shop.recorded()
    assert (row["is_equal"], row["missing"], row["source_rows"], row["lake_rows"]) == (
        False,
        1,
        3,
        2,
    )
    assert json.loads(row["keys"]) == ['{"id" : 2}']
    assert "What to do" in caplog.text


def test_whoever_only_wants_to_know_is_told(shop: Shop, task_context: Any) -> None:
    shop.damage()
    shop.start()
    asked = {"method": "auto", "full_every": "3", "hash_function": "md5"}
    found = shop.operator(on_difference="succeed", keys_shown=0, **asked).execute(task_context)
    ((_, told),) = task_context["outlet_events"].added
    assert told["pgoutput_proof"]["different_tables"] == [found["tables"][0]["table_name"]]
    (table,) = found["tables"]
    assert (table["is_equal"], table["missing"], table["keys"]) == (False, 1, None)


def test_each_run_proves_the_next_part(shop: Shop, task_context: Any) -> None:
    shop.damage()
    shop.start()
    operator = shop.operator(on_difference="succeed", share="0.34")
    found = [operator.execute(task_context)["tables"][0] for _ in range(4)]
    assert [(each["share_number"], each["share_through"], each["is_equal"]) for each in found] == [
        (1, 1, True),
        (2, 2, False),
        (3, None, True),
        (1, 1, True),
    ]
    assert {(each["share_of"], each["method"]) for each in found} == {(3, "share")}
    catalog = load_catalog(shop.lake.catalog_name, **shop.lake.properties)
    newest = newest_proofs(catalog, shop.lake.namespace, shop.slot)["public.orders"]
    assert (newest.is_equal, str(newest.share)) == (False, "part 2 of 3")
    assert shop.operator(on_difference="repair").execute(task_context)["after_repair"]
    assert newest_proofs(catalog, shop.lake.namespace, shop.slot)["public.orders"].is_equal


def test_a_table_that_differs_is_repaired_and_proven(shop: Shop, task_context: Any) -> None:
    shop.damage()
    shop.start()
    found = shop.operator(on_difference="repair", keys_shown=0).execute(task_context)
    assert shop.requested == [(("2",),)]
    (before,), (after,) = found["tables"], found["after_repair"]["tables"]
    assert (before["is_equal"], before["missing"], after["is_equal"]) == (False, 1, True)
    json.dumps(found)
    assert [row["is_equal"] for row in _in_order(shop.recorded())] == [False, True]


def test_nothing_is_asked_for_if_all_is_equal(shop: Shop, task_context: Any) -> None:
    shop.start()
    found = shop.operator(on_difference="repair").execute(task_context)
    assert shop.requested == []
    assert "after_repair" not in found


def test_a_pipeline_that_is_paused_ends_the_wait(shop: Shop, task_context: Any) -> None:
    with pytest.raises(LakeUnavailable, match="did not reach the LSN"):
        shop.operator(wait_seconds=1).execute(task_context)
    assert StagingArea(shop.staging_uri).names(layout.mark_folder(shop.slot)) == []


def test_a_table_with_an_altered_column_is_named_and_not_compared(
    shop: Shop, source: Session, task_context: Any
) -> None:
    source.execute("ALTER TABLE orders ALTER id TYPE text USING 'secret' || id")
    shop.start()
    (table,) = shop.operator().execute(task_context)["tables"]
    assert table["is_equal"] is None
    assert "the lake has the old type" in table["not_compared"]
    assert shop.recorded()[0]["source_rows"] is None


def test_a_wrong_argument_is_refused(shop: Shop, task_context: Any) -> None:
    with pytest.raises(ConfigurationError, match="Unknown on_difference 'perhaps'"):
        shop.operator(on_difference="perhaps")
    rendered = shop.operator(on_difference="{{ params.answer }}")
    rendered.on_difference = "perhaps"
    with pytest.raises(AirflowFailException, match="Unknown on_difference 'perhaps'"):
        rendered.execute(task_context)


def test_the_command_prints_a_line_for_each_table(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.start()
    given = ["--slot-name", shop.slot, "--namespace", "shop", "--staging-uri", shop.staging_uri]
    given += ["--publication-names", "p", "--keys-shown", "3", "--wait-seconds", "60"]
    code, rows = run(capsys, "verify", *given)
    assert (code, rows[0]["equal"], rows[0]["rows"]) == (0, "true", "3")
    shop.damage()
    code, rows = run(capsys, "verify", *given)
    assert (code, rows[0]["equal"], rows[0]["keys"]) == (1, "false", '{"id" : 2}')
    assert [row["is_equal"] for row in _in_order(shop.recorded())] == [True, False]
    code, rows = run(capsys, "verify", *given, "--repair")
    assert (code, rows[0]["equal"], rows[0]["rows"]) == (0, "true", "3")
