"""The operator that adopts another system as the source: what the user types, and what it stages.

What is not here: real servers of two systems and the lake after it (``tests/proof/test_adopted_source.py``).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.operators.adopt_source import PgoutputAdoptSourceOperator
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from tests.airflow.test_stage import manifest_of, orders, record, stage  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from tests.airflow.conftest import TestLake

    Session = psycopg.Connection[tuple[Any, ...]]


def adopt(tmp_path: Path, identifier: str, **changed: Any) -> PgoutputAdoptSourceOperator:
    arguments = {
        "task_id": "adopt",
        "new_system_identifier": identifier,
        "slot_name": "stage_test",
        "publication_names": '["shop"]',
        "staging_uri": (tmp_path / "staging").as_uri(),
        "namespace": "shop",
        # As a pipeline's own DAG may have it.
        "on_slot_lost": "copy",
    }
    return PgoutputAdoptSourceOperator(**(arguments | changed))


def slots(source: Session) -> list[tuple[Any, ...]]:
    return source.execute(
        "SELECT slot_name, confirmed_flush_lsn FROM pg_replication_slots"
    ).fetchall()


def test_its_argument_is_templated_as_those_of_the_stage_operator() -> None:
    fields = {*PgoutputStageOperator.template_fields, "new_system_identifier"}
    assert set(PgoutputAdoptSourceOperator.template_fields) == fields


def test_a_system_that_nobody_typed_is_not_adopted(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    with pytest.raises(AirflowFailException, match="no checkpoint of the slot"):
        adopt(tmp_path, lake.system_identifier).execute(task_context)
    here = lake.system_identifier
    first = stage(tmp_path).execute(task_context)
    lake.system_identifier = "7"
    record(lake, first)
    before = slots(source)
    with pytest.raises(AirflowFailException, match=r"SourceChanged: .*PgoutputAdoptSourceOperator"):
        stage(tmp_path).execute(task_context)
    for typed in ("", "7", here + "0"):
        with pytest.raises(AirflowFailException, match="new_system_identifier"):
            adopt(tmp_path, typed).execute(task_context)
    with pytest.raises(AirflowFailException, match="takes no start_lsn"):
        adopt(tmp_path, here, start_lsn="0/15").execute(task_context)
    assert slots(source) == before

    source.execute("INSERT INTO orders VALUES (3, 'new')")
    batch = adopt(tmp_path, f" {here} ").execute(task_context)
    manifest = manifest_of(batch)
    assert batch["start_lsn"] == first["end_lsn"]
    assert manifest.system_identifier == here
    assert [(e.system_identifier, e.end_lsn) for e in manifest.adopted_from] == [
        ("7", first["end_lsn"])
    ]
    assert manifest.adopts
    # This lake has no columns of the table, so that nothing can be compared.
    assert batch["tables"]["public.orders"]["copied"] == 3
    assert slots(source) == [("stage_test", batch["end_lsn"])] != before


def test_the_system_that_is_the_source_already_is_not_adopted(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    record(lake, stage(tmp_path).execute(task_context))
    before = slots(source)
    with pytest.raises(AirflowFailException, match="is the source of the lake already"):
        adopt(tmp_path, lake.system_identifier).execute(task_context)
    assert slots(source) == before


def test_a_server_that_is_behind_the_lake_gets_an_offset(
    source: Session, lake: TestLake, tmp_path: Path, task_context: Any
) -> None:
    here = lake.system_identifier
    stage(tmp_path).execute(task_context)
    lake.system_identifier = "7"
    lake.record("stage_test", "FFFF/B374D848")
    batch = adopt(tmp_path, here).execute(task_context)
    (earlier,) = manifest_of(batch).adopted_from
    assert (earlier.end_lsn, earlier.next_lsn_offset) == ("FFFF/B374D848", "10000/0")
    ((_, confirmed),) = slots(source)
    assert Lsn.parse(batch["end_lsn"]) == Lsn.parse(confirmed) + (0x10000 << 32)
    # An attempt that comes later takes the same offset, and with it the sealed batch.
    lake.record("stage_test", "0/15")
    lake.record("stage_test", "FFFF/B374D848")
    assert adopt(tmp_path, here).execute(task_context)["manifest_uri"] == batch["manifest_uri"]


def test_a_batch_of_the_earlier_system_that_waits_comes_first(
    source: Session,
    lake: TestLake,
    tmp_path: Path,
    task_context: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = lake.system_identifier
    first = stage(tmp_path).execute(task_context)
    lake.system_identifier = "7"
    record(lake, first)
    end = Lsn(Lsn.parse(first["end_lsn"]) + 1)
    waiting = dataclasses.replace(
        manifest_of(first),
        system_identifier="7",
        start_lsn=Lsn.parse(first["end_lsn"]),
        end_lsn=end,
        tables=(),
    )
    (tmp_path / "staging" / waiting.path).write_text(waiting.to_json())
    source.execute("INSERT INTO orders VALUES (3, 'new')")
    before = slots(source)
    found = adopt(tmp_path, here, advance="after_stage").execute(task_context)
    assert found["batch_id"] == waiting.batch_id
    assert "It comes first" in caplog.text
    assert slots(source) == before, "the slot of this server has nothing of that batch"

    lake.record(first["slot_name"], str(end))
    adopted = adopt(tmp_path, here).execute(task_context)
    assert (adopted["start_lsn"], manifest_of(adopted).adopts) == (str(end), True)
    after = slots(source)
    # The task is run again before the batch is applied.
    assert adopt(tmp_path, here).execute(task_context)["batch_id"] == adopted["batch_id"]
    assert slots(source) == after != before
