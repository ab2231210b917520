"""``spark_from_bytes`` on a cluster of two workers: the digests of the task itself, whoever dies."""

from __future__ import annotations

import json
import threading
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.errors import SparkFailed
from quickstart.spark import spark_environment
from tests.airflow.shop import Shop
from tests.spark_cluster import WORKERS, SparkCluster, standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_pgoutput.operators.verify import PgoutputVerifyOperator
    from tests.airflow.conftest import Session, TestLake

pytestmark = pytest.mark.submit

#: Rows that the source and the lake get beside those of ``Shop``. In the lake each hundred is a file.
MORE = range(100, 1100)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with standalone_cluster() as started:
        yield started


@pytest.fixture
def shop(
    source: Session,
    slot: str,
    lake: TestLake,
    cluster: SparkCluster,
    set_connection: Callable[[str, dict[str, Any]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Shop]:
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    set_connection(
        "spark_default", {"conn_type": "spark", "host": cluster.host, "port": cluster.port}
    )
    made = Shop(source, slot, lake, tmp_path / "staging")
    source.execute(
        f"INSERT INTO orders SELECT i, 'v' || i FROM generate_series({MORE.start}, 1099) i"
    )
    for begin in MORE[::100]:
        rows = [{"id": id_, "v": f"v{id_}"} for id_ in range(begin, begin + 100)]
        made.table.append(pa.Table.from_pylist(rows, made.schema))
    yield made
    made.stop()


def on_spark(
    shop: Shop, cluster: SparkCluster, conf: dict[str, str] | None = None, **more: Any
) -> PgoutputVerifyOperator:
    given = json.dumps({**cluster.conf(), **(conf or {})})
    return shop.operator(**{"spark_from_bytes": "1", "spark_conf": given} | more)


@pytest.mark.slow
def test_every_executor_hashes_files_and_a_difference_is_found(
    shop: Shop, cluster: SparkCluster, task_context: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.start()
    by_worker = shop.operator().execute(task_context)
    # A Python worker dies when it has hashed its fifth file.
    conf = {
        "spark.executorEnv.PGOUTPUT_CRASH_AT": "hash.after_file:5",
        "spark.task.maxFailures": "20",
    }
    by_spark = on_spark(shop, cluster, conf).execute(task_context)
    (wanted,), (found,) = by_worker["tables"], by_spark["tables"]
    assert found["is_equal"]
    assert found["source_rows"] == found["lake_rows"] == wanted["lake_rows"] == 3 + len(MORE)
    log = capsys.readouterr().out
    assert "Python worker exited unexpectedly" in log
    assert "11 files hashed in " in log
    assert f", by {WORKERS} executor(s)." in log
    assert set(cluster.tasks_by_executor()[-1]) == {"0", "1"}

    shop.table.refresh().delete("id = 555")
    with pytest.raises(
        AirflowFailException, match=r"LakeDiffers.* 1 missing, 0 surplus and 0 different"
    ):
        on_spark(shop, cluster, keys_shown="1").execute(task_context)
    row = max(shop.recorded(), key=lambda each: each["verified_at"])
    assert row["is_equal"] is False
    assert json.loads(row["keys"]) == ['{"id" : 555}']


@pytest.mark.further
def test_a_python_without_the_packages_is_named(
    shop: Shop, cluster: SparkCluster, task_context: Any, tmp_path: Path
) -> None:
    """Spark's own Python often has no package at all."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    shop.start()
    conf = {"spark.pyspark.driver.python": str(bare / "bin" / "python")}
    with pytest.raises(SparkFailed, match=r"lacks the package numpy.*name that one as") as failed:
        on_spark(shop, cluster, conf).execute(task_context)
    assert "machine or memory" not in str(failed.value)


def has_record(shop: Shop) -> bool:
    catalog = load_catalog(shop.lake.catalog_name, **shop.lake.properties)
    return catalog.table_exists(f"{shop.lake.namespace}.pgoutput_proofs")


def _eventually_killed(ended: threading.Event, killed: list[int]) -> None:
    """Kill the driver's JVM, a child of this process, when it is there."""
    while not ended.wait(0.1):
        for each in psutil.Process().children():
            try:
                if any("pgoutput_spark_proof.py" in word for word in each.cmdline()):
                    each.kill()
                    killed.append(each.pid)
                    return
            except psutil.NoSuchProcess:
                continue


@pytest.mark.further
def test_a_killed_driver_proves_nothing_and_the_next_try_does(
    shop: Shop, cluster: SparkCluster, task_context: Any
) -> None:
    shop.start()
    ended, killed = threading.Event(), list[int]()
    killer = threading.Thread(target=_eventually_killed, args=(ended, killed), daemon=True)
    killer.start()
    with pytest.raises(SparkFailed, match="The job did not hash the files: "):
        on_spark(shop, cluster).execute(task_context)
    ended.set()
    killer.join()
    assert killed
    assert not has_record(shop)
    (table,) = on_spark(shop, cluster).execute(task_context)["tables"]
    assert table["is_equal"]


@pytest.mark.further
def test_executors_that_die_at_each_file_prove_nothing(
    shop: Shop, cluster: SparkCluster, task_context: Any
) -> None:
    shop.start()
    conf = {"spark.executorEnv.PGOUTPUT_CRASH_AT": "hash.after_file"}
    with pytest.raises(SparkFailed, match="Spark failed while it hashed the files of the table"):
        on_spark(shop, cluster, conf).execute(task_context)
    assert not has_record(shop)


@pytest.mark.further
def test_a_missing_file_is_the_tables_damage(
    shop: Shop, cluster: SparkCluster, task_context: Any
) -> None:
    shop.start()
    file = max(each.file.file_path for each in shop.table.refresh().scan().plan_files())
    Path(urlsplit(file).path).unlink()
    with pytest.raises(
        AirflowFailException, match=r"TableDamaged: The file \S+ of the table is missing"
    ):
        on_spark(shop, cluster).execute(task_context)
