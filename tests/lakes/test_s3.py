"""An S3 that checks signatures refuses a wrong key, a wrong secret and a bucket that is not there.

Each of the three clients is asked: Arrow, which writes batches, Hadoop, which reads them, and Iceberg's own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.sdk import Connection
from pyarrow import fs

from airflow_provider_pgoutput.batch.exit_status import FATAL
from airflow_provider_pgoutput.batch.spark_packages import aws, staging_on_s3
from airflow_provider_pgoutput.errors import ConfigurationError, LakeDenied
from airflow_provider_pgoutput.hooks.lake_catalog import lake_catalog
from airflow_provider_pgoutput.spark_submit.packages import versions_of
from quickstart.jars import spark_home
from quickstart.spark import site_conf, spark_environment
from tests.apply import build
from tests.faults.waiting_slot import new_source
from tests.lakes.programs import ROOT, Unavailable, jars
from tests.lakes.servers import BUCKET, s3proxy
from tests.lakes.submit import submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.errors import PgoutputError
    from tests.capture.pipeline_support import Source
    from tests.lakes.servers import Store

_CANARY = "canary-0xC0FFEE"
_NOT_THERE = "misspelt"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with contextlib.ExitStack() as stack:
        home = tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp")
        folder = Path(stack.enter_context(home))
        try:
            found = stack.enter_context(s3proxy(folder))
        except Unavailable as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture
def source(postgres_database: str, tmp_path: Path) -> Source:
    return new_source(postgres_database, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bucket", "wrong", "error"),
    [
        (BUCKET, "AWS_SECRET_ACCESS_KEY", LakeDenied),
        (BUCKET, "AWS_ACCESS_KEY_ID", LakeDenied),
        (_NOT_THERE, None, ConfigurationError),
    ],
    ids=["secret", "key", "bucket"],
)
def test_the_first_stage_task_finds_it_out_before_it_makes_a_slot(
    store: Store,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    bucket: str,
    wrong: str | None,
    error: type[PgoutputError],
) -> None:
    right = store.for_arrow()
    for name, value in {**right, **({wrong: _CANARY} if wrong else {})}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error) as refused:
        source.stage(staging_uri=f"s3://{bucket}/staging")
    assert type(refused.value) is error
    assert refused.value.advice
    assert _CANARY not in str(refused.value)
    assert source.execute("SELECT slot_name FROM pg_replication_slots") == []
    # With the right login and name the same run goes on, and leaves no file of the check.
    if wrong:
        monkeypatch.setenv(wrong, right[wrong])
    source.stage(staging_uri=f"s3://{BUCKET}/staging")
    assert source.confirmed()
    assert store.folder is not None
    names = [each.name for each in store.folder.rglob("*") if each.is_file()]
    assert any(each.endswith(".json") for each in names), names
    assert not [each for each in names if each.startswith("check_")]


@pytest.mark.submit
def test_spark_that_writes_tables_there(store: Store, tmp_path: Path) -> None:
    """Each catalog makes a table, and Iceberg writes its first file into the store."""
    conf = site_conf("1g")
    more = _jars("aws")
    conf["spark.jars"] = ",".join((conf["spark.jars"], *map(str, more)))
    login = store.for_iceberg()
    asked = {
        "right": (login, BUCKET),
        "key": ({**login, "s3.access-key-id": _CANARY}, BUCKET),
        "secret": ({**login, "s3.secret-access-key": _CANARY}, BUCKET),
        "bucket": (login, _NOT_THERE),
    }
    for name, (properties, bucket) in asked.items():
        where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/{name}.db"}
        extra = {**where, "warehouse": f"s3://{bucket}/warehouse", **properties}
        connection = Connection(conn_id=name, conn_type="iceberg", extra=json.dumps(extra))
        found = lake_catalog(connection, extra, name)
        conf |= found.spark_conf | found.spark_secrets
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("ask_spark.py")],
        input=json.dumps({"conf": conf, "asked": list(asked), "makes": True}),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **spark_environment()},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert _CANARY not in done.stdout
    answers = json.loads(done.stdout.splitlines()[-1])
    assert {name: answer and answer[0] for name, answer in answers.items()} == {
        "right": None,
        "key": "LakeDenied",
        "secret": "LakeDenied",
        "bucket": "ConfigurationError",
    }, answers


@pytest.mark.submit
@pytest.mark.parametrize(
    ("changed", "bucket", "error"),
    [
        ({}, BUCKET, None),
        ({"spark.hadoop.fs.s3a.secret.key": _CANARY}, BUCKET, "LakeDenied"),
        ({}, _NOT_THERE, "ConfigurationError"),
    ],
    ids=["right", "secret", "bucket"],
)
def test_spark_that_reads_a_batch_there(
    store: Store, tmp_path: Path, changed: dict[str, str], bucket: str, error: str | None
) -> None:
    staged = build.Source(tmp_path / "staging", "of_spark")
    staged.table("t", (build.column("a"),), key=("a",)).insert(1)
    job = staged.stage()
    local = fs.SubTreeFileSystem(str(staged.staging), fs.LocalFileSystem())
    folder = f"{BUCKET}/{tmp_path.name}"
    remote = fs.SubTreeFileSystem(folder, store.for_python())
    fs.copy_files("", "", source_filesystem=local, destination_filesystem=remote)
    uri = f"s3://{bucket}/{tmp_path.name}"
    manifest_uri = job.manifest_uri.replace(job.staging_uri, uri)
    job = dataclasses.replace(job, staging_uri=uri, manifest_uri=manifest_uri)
    warehouse = tmp_path / "warehouse"
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    properties = {**catalog, "warehouse": warehouse.as_uri()}
    file = tmp_path / "job.json"
    done = submit(job, file, properties, _jars("staging"), {**store.for_hadoop(), **changed})
    printed = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == (FATAL if error else 0), printed
    result = json.loads(file.with_suffix(".result.json").read_text(encoding="utf-8"))
    assert result.get("error") == error, result
    assert _CANARY not in done.stdout + json.dumps(result)
    assert warehouse.exists() == (error is None)


def _jars(name: str) -> list[Path]:
    """The jars that ``packages="auto"`` takes for a warehouse, or for a staging area, in S3."""
    package = {"aws": aws, "staging": staging_on_s3}[name](versions_of(spark_home()))
    try:
        return jars(name, *package.coordinates, alone=True)
    except Unavailable as error:
        pytest.skip(str(error))
