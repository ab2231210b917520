"""Nessie answers yes to Iceberg's branches and keeps none: the first batch is refused, and nothing is left.

Its tables are in s3proxy. Spark's jars come from the table of the package.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.exit_status import FATAL
from airflow_provider_pgoutput.batch.spark_packages import aws
from airflow_provider_pgoutput.spark_submit.packages import versions_of
from quickstart.jars import spark_home
from tests.apply.build import Source, column
from tests.lakes.lakes import CATALOG
from tests.lakes.programs import Unavailable, jars
from tests.lakes.servers import nessie, s3proxy
from tests.lakes.submit import submit

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def properties() -> Iterator[dict[str, str]]:
    """The extras of a connection to Nessie."""
    with contextlib.ExitStack() as stack:
        home = tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp")
        folder = Path(stack.enter_context(home))
        try:
            store = stack.enter_context(s3proxy(folder))
            uri = stack.enter_context(nessie(folder, store))
        except Unavailable as error:
            pytest.skip(str(error))
        yield {"type": "rest", "uri": uri, **store.for_iceberg()}


@pytest.mark.exhaustive
@pytest.mark.submit
def test_a_first_batch_is_refused(properties: dict[str, str], tmp_path: Path) -> None:
    source = Source(tmp_path / "staging", CATALOG)
    source.table("t", (column("a"),), key=("a",)).insert(1)
    job = source.stage()
    file = tmp_path / "job.json"
    more = jars("aws", *aws(versions_of(spark_home())).coordinates, alone=True)
    done = submit(job, file, properties, more)
    assert done.returncode == FATAL, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(file.with_suffix(".result.json").read_text(encoding="utf-8"))
    assert result["error"] == "ConfigurationError", result
    assert (
        "A branch was made on a table, and the catalog did not keep it apart" in result["message"]
    )
    assert (job.namespace,) not in load_catalog(CATALOG, **properties).list_namespaces()
