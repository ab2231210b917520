"""The door to retention: what is applied and old goes, and without a checkpoint nothing does."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.operators.prune import PgoutputPruneStagingOperator
from airflow_provider_pgoutput.task_groups.pipeline import pgoutput_to_iceberg

if TYPE_CHECKING:
    from pathlib import Path

    from tests.airflow.conftest import TestLake


def sealed(staging: Path, start: int, end: int) -> Path:
    """A batch without changes."""
    manifest = Manifest("s", "7", 1, "db", ("p",), Lsn(start), Lsn(end), ())
    folder = staging / "s" / "manifests"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{Lsn(start).sortable}-{Lsn(end).sortable}-{manifest.batch_id[:16]}.json"
    (folder / name).write_text(manifest.to_json())
    return folder / name


def prune(staging: Path, **arguments: Any) -> PgoutputPruneStagingOperator:
    given = {"staging_retention": timedelta(0), **arguments}
    return PgoutputPruneStagingOperator(
        task_id="prune", slot_name="s", staging_uri=str(staging), namespace="shop", **given
    )


def test_applied_batches_go(tmp_path: Path, lake: TestLake, task_context: Any) -> None:
    batches = [sealed(tmp_path, start, start + 16) for start in (16, 32, 48)]
    assert prune(tmp_path).execute(task_context)["batches"] == 0
    lake.record("s", str(Lsn(48)))
    assert prune(tmp_path, keep_from_lsn="0/1").execute(task_context)["batches"] == 0
    assert prune(tmp_path, staging_retention=timedelta(1)).execute(task_context)["batches"] == 0
    result = prune(tmp_path).execute(task_context)
    assert (result["batches"], result["files"], result["first_lsn"]) == (1, 1, "0/20")
    assert [each.exists() for each in batches] == [False, True, True]


def test_a_negative_retention_is_refused(tmp_path: Path, lake: TestLake, task_context: Any) -> None:
    with pytest.raises(AirflowFailException, match="negative"):
        prune(tmp_path, staging_retention=-timedelta(1)).execute(task_context)


def test_a_number_is_not_taken_for_an_lsn(
    tmp_path: Path, lake: TestLake, task_context: Any
) -> None:
    """Its sixteen decimal digits would be read as hexadecimal ones, and decide what is deleted."""
    lake.record("s", str(Lsn(48)))
    with pytest.raises(AirflowFailException, match="keep_from_lsn is not an LSN"):
        prune(tmp_path, keep_from_lsn=1234567890123456).execute(task_context)


def test_the_task_group_ends_with_it_when_a_retention_is_given() -> None:
    given: dict[str, Any] = {
        "slot_name": "s",
        "publication_names": "p",
        "staging_uri": "/staging",
        "namespace": "shop",
    }
    with DAG("without", schedule=None) as without:
        pgoutput_to_iceberg(**given)
    with DAG("with", schedule=None) as with_it:
        pgoutput_to_iceberg(**given, staging_retention=timedelta(days=3))
    prefix = "pgoutput_to_iceberg"
    assert f"{prefix}.prune" not in without.task_ids
    task: Any = with_it.get_task(f"{prefix}.prune")
    assert task.upstream_task_ids == {f"{prefix}.advance"}
    assert task.staging_retention == timedelta(days=3)


def test_options_of_the_apply_task_win_over_the_group() -> None:
    outlets = [Asset("mine")]
    options = {"outlets": outlets, "slot_name": "other", "conn_id": "other_spark"}
    with DAG("options", schedule=None) as dag:
        pgoutput_to_iceberg(
            slot_name="s",
            publication_names="p",
            staging_uri="/staging",
            namespace="shop",
            outlets=[Asset("of_the_group")],
            apply_options=options,
        )
    task: Any = dag.get_task("pgoutput_to_iceberg.apply")
    assert task.outlets == [*outlets, AssetAlias("pgoutput")]
    assert (task.slot_name, task.conn_id) == ("other", "other_spark")
