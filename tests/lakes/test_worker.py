"""What a worker writes and reads without Spark: the checkpoint, in catalogs and stores of other makers."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import LakeDenied
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.checkpoint_rows import record_empty_batch
from quickstart.jars import spark_home
from tests.apply.build import Source
from tests.lakes.lakes import CATALOG, LAKES
from tests.lakes.programs import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lakes.lakes import Lake

#: By lake: a property of its login. For Glue and Hive pyiceberg needs packages that the tests do not have.
_SECRETS = {"rest": "credential", "sql-postgresql": "s3.secret-access-key"}


@pytest.fixture(params=_SECRETS)
def lake(request: pytest.FixtureRequest) -> Iterator[tuple[str, Lake]]:
    """A name and its lake, with its servers."""
    name = request.param
    with contextlib.ExitStack() as stack:
        home = tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp")
        folder = Path(stack.enter_context(home))
        try:
            found = stack.enter_context(LAKES[name](folder, spark_home()))
        except Unavailable as error:
            pytest.skip(str(error))
        yield name, found


@pytest.mark.slow
def test_the_worker_records_a_batch_and_reads_it(lake: tuple[str, Lake], tmp_path: Path) -> None:
    name, its_lake = lake
    properties = its_lake.for_pyiceberg()
    source = Source(tmp_path / "staging", "of_the_worker")
    job = source.stage(end=source.lsn + 1)
    manifest = Manifest.from_json(Path(job.manifest_uri.removeprefix("file://")).read_bytes())
    assert read_checkpoint(CATALOG, properties, job.namespace, manifest.slot_name) is None
    # The first batch of a namespace is always Spark's.
    load_catalog(CATALOG, **properties).create_namespace(job.namespace)
    record_empty_batch(CATALOG, properties, job, manifest)
    found = read_checkpoint(CATALOG, properties, job.namespace, manifest.slot_name)
    assert found is not None
    assert found.end_lsn == manifest.end_lsn
    wrong = {**properties, _SECRETS[name]: "nobody:wrong"}
    with pytest.raises(LakeDenied):
        read_checkpoint(CATALOG, wrong, job.namespace, manifest.slot_name)
