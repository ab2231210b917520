"""What Azure's store refuses is told from its silence, by Arrow, by Azure's own client and by Java's."""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from airflow.sdk import Connection
from pyarrow import fs

from airflow_provider_pgoutput.capture.staging.storage_errors import storage_errors
from airflow_provider_pgoutput.errors import ConfigurationError, LakeDenied, LakeUnavailable
from airflow_provider_pgoutput.hooks.lake_catalog import lake_catalog
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.checkpoint_rows import append_rows
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.rights import refuse_login_that_only_reads
from airflow_provider_pgoutput.lake.state import open_catalog
from quickstart.spark import site_conf, spark_environment
from tests.lakes.programs import Unavailable, answer_of, free_port, jars, python_with
from tests.lakes.servers import AzureStore, azurite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What is in ``iceberg-azure-bundle``, which the registry lacks. It lacks some parts of Netty, too, which are
#: Azure's usual HTTP client.
_CLIENT = (
    "com.azure:azure-storage-file-datalake:12.30.2",
    "com.azure:azure-storage-blob:12.37.2",
    "com.azure:azure-storage-common:12.36.2",
    "com.azure:azure-storage-internal-avro:12.22.2",
    "com.azure:azure-core:1.61.0",
    "com.azure:azure-json:1.5.1",
    "com.azure:azure-xml:1.2.1",
    "com.azure:azure-core-http-jdk-httpclient:1.1.6",
    "com.azure:azure-identity:1.19.0",
    "io.projectreactor:reactor-core:3.8.7",
    "org.reactivestreams:reactive-streams:1.0.4",
)
_HERE = Path(__file__).parent
_BOX = "container"
_WRONG = base64.b64encode(b"canary-0xC0FFEE").decode()
_CATALOG = "lake"


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def store(home: Path) -> Iterator[AzureStore]:
    """A store with the checkpoint table of another slot."""
    try:
        with azurite(home) as found:
            found.file_system().create_dir(_BOX)
            catalog = open_catalog(_CATALOG, _by_arrow(home, found, found.key))
            catalog.create_namespace("n")
            append_rows(catalog, "n", [{"slot_name": "another"}])
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


def _catalog(home: Path, box: str = _BOX) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{home}/catalog.db",
        "warehouse": f"abfs://{box}/warehouse",
    }


def _by_arrow(home: Path, store: AzureStore, key: str, box: str = _BOX) -> dict[str, str]:
    where = f"127.0.0.1:{store.port}"
    return {
        **_catalog(home, box),
        "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
        "adls.account-name": store.account,
        "adls.account-key": key,
        "adls.blob-storage-authority": where,
        "adls.blob-storage-scheme": "http",
        "adls.dfs-storage-authority": where,
        "adls.dfs-storage-scheme": "http",
    }


def _by_azures_client(home: Path, store: AzureStore, key: str) -> dict[str, str]:
    """pyiceberg takes it if nobody asks for another one."""
    where = f"http://127.0.0.1:{store.port}/{store.account}"
    login = f"AccountName={store.account};AccountKey={key};BlobEndpoint={where};"
    return {
        **_catalog(home),
        "adls.account-name": store.account,
        "adls.connection-string": f"DefaultEndpointsProtocol=http;{login}",
    }


@pytest.mark.exhaustive
def test_the_staging_area(store: AzureStore) -> None:
    with pytest.raises(LakeDenied), storage_errors("write"):
        store.file_system(_WRONG).open_output_stream(f"{_BOX}/a")
    with pytest.raises(LakeDenied), storage_errors("list"):
        store.file_system(_WRONG).get_file_info(f"{_BOX}/a")
    with pytest.raises(ConfigurationError), storage_errors("write"):
        store.file_system().open_output_stream("not-there/a")
    gone = AzureStore(free_port(), store.account, store.key)
    with pytest.raises(LakeUnavailable), storage_errors("write"):
        gone.file_system().open_output_stream(f"{_BOX}/a")


@pytest.mark.exhaustive
def test_the_worker(home: Path, store: AzureStore) -> None:
    with pytest.raises(LakeDenied):
        read_checkpoint(_CATALOG, _by_arrow(home, store, _WRONG), "n", "slot")
    elsewhere = open_catalog(_CATALOG, _by_arrow(home, store, store.key, "not-there"))
    with pytest.raises(ConfigurationError), lake_errors("written"):
        elsewhere.create_table("n.u", pa.schema([("a", pa.int32())]))


@pytest.mark.exhaustive
def test_keys_that_do_not_open_the_warehouse_are_found_out_before_a_slot_is_made(
    home: Path, store: AzureStore
) -> None:
    def tried(key: str, box: str = _BOX) -> None:
        catalog = open_catalog(_CATALOG, _by_arrow(home, store, key, box))
        refuse_login_that_only_reads(catalog, "missing")

    with pytest.raises(LakeDenied, match=r"in the warehouse.*No slot was made"):
        tried(_WRONG)
    with pytest.raises(ConfigurationError, match="bucket of the warehouse"):
        tried(store.key, "not-there")
    tried(store.key)
    selected = fs.FileSelector(f"{_BOX}/warehouse", recursive=True)
    paths = [each.path for each in store.file_system().get_file_info(selected)]
    assert paths
    assert [each for each in paths if "pgoutput_look" in each] == []


@pytest.mark.exhaustive
def test_a_worker_with_azures_own_client(home: Path, store: AzureStore) -> None:
    try:
        python = python_with("azure", "pyiceberg[adlfs,pyarrow,sql-sqlite]") / "python"
    except Unavailable as error:
        pytest.skip(str(error))
    keys = {"right": store.key, "wrong": _WRONG}
    asked = {name: {"properties": _by_azures_client(home, store, keys[name])} for name in keys}
    answers = _answers([python, _HERE / "ask_worker.py"], asked)
    assert answers["right"] is None
    assert answers["wrong"] is not None
    assert answers["wrong"][0] == "LakeDenied", answers


@pytest.mark.exhaustive
@pytest.mark.submit
def test_spark(home: Path, store: AzureStore) -> None:
    """Each catalog makes a table, and Java writes its first file into the store."""
    try:
        more = jars("azure-storage", *_CLIENT, alone=True)
    except Unavailable as error:
        pytest.skip(str(error))
    conf = site_conf("1g")
    conf["spark.jars"] = ",".join((conf["spark.jars"], *map(str, more)))
    asked = {"right": (store.key, _BOX), "key": (_WRONG, _BOX), "box": (store.key, "not-there")}
    for name, (key, box) in asked.items():
        extra = _by_java(home / f"{name}.db", store, key, box)
        connection = Connection(conn_id=name, conn_type="iceberg", extra=json.dumps(extra))
        found = lake_catalog(connection, extra, name)
        conf |= found.spark_conf | found.spark_secrets
    given = {"conf": conf, "asked": list(asked), "makes": True}
    program = [Path(sys.executable), _HERE / "ask_spark.py"]
    answers = _answers(program, given, spark_environment())
    errors = {name: answer and answer[0] for name, answer in answers.items()}
    expected = {"right": None, "key": "LakeDenied", "box": "ConfigurationError"}
    assert errors == expected, answers


def _by_java(database: Path, store: AzureStore, key: str, box: str) -> dict[str, str]:
    host = f"{store.account}.dfs.core.windows.net"
    return {
        "type": "sql",
        "uri": f"sqlite:///{database}",
        "warehouse": f"abfss://{box}@{host}/warehouse",
        "adls.account-name": store.account,
        "adls.account-key": key,
        # Java takes it for the address of the host.
        f"adls.connection-string.{host}": f"http://127.0.0.1:{store.port}/{store.account}",
    }


def _answers(
    program: Sequence[Path], given: object, environment: Mapping[str, str] | None = None
) -> dict[str, list[str] | None]:
    found: dict[str, list[str] | None] = answer_of(program, given, environment, canary=_WRONG)
    return found
