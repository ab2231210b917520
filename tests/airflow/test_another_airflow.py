"""A pipeline goes on in another Airflow, whose database knows nothing of it, as the how-to says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.airflow.example_pipeline import Pipeline


@pytest.mark.submit
@pytest.mark.exhaustive
def test_another_airflow_goes_on_and_copies_nothing(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.run()
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        session.execute("UPDATE orders SET price = price + 1 WHERE id % 7 = 0")
    home = tmp_path / "another_airflow"
    monkeypatch.setenv("AIRFLOW_HOME", str(home))
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{home / 'airflow.db'}")
    home.mkdir()
    assert pipeline.python("-m", "airflow", "db", "migrate") == 0, pipeline.log[-3000:]
    command = ["airflow", "dags", "test", "pgoutput_to_iceberg", "-c", pipeline.conf()]
    assert pipeline.python("-m", *command) == 0, pipeline.log[-3000:]
    pipeline.assert_equal()
    catalog = load_catalog("lake", **pipeline.lake.pyiceberg_properties())
    rows = catalog.load_table(("shop", CHECKPOINT_TABLE)).scan().to_arrow().to_pylist()
    batches = sorted(
        (each["end_lsn"], each["copied"]) for each in rows if each["table_name"] is None
    )
    assert [copied > 0 for _, copied in batches] == [True, False]
