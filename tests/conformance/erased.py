"""An erasure as the operator does it, without Airflow; and the files of a pipeline that hold a value."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.erase import ErasureResult, erase
from airflow_provider_pgoutput.batch.jobs import ErasureJob
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.erasure.claim import claimed
from airflow_provider_pgoutput.erasure.rows import asked_tables, in_lake
from airflow_provider_pgoutput.erasure.staged import StagedErasure, erase_staged
from airflow_provider_pgoutput.lake.state import tables_of_slot
from tests.conformance.pipeline import CATALOG
from tests.every_byte import holders_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.conformance.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Erased:
    staged: StagedErasure
    lake: ErasureResult

    @property
    def rows(self) -> dict[str, int]:
        """Erased rows by table, and of the staging area."""
        found = {
            name.partition(".")[2]: counts.get("rows_erased", 0)
            for name, counts in self.lake.tables.items()
        }
        return {"staged": self.staged.rows, **found}


def run_erasure(
    pipeline: Pipeline,
    rows: Mapping[str, Any],
    mask_secret: bytes | None = None,
    erase_in_lake: Callable[[ErasureJob], ErasureResult] | None = None,
) -> Erased:
    """What the task does once.

    :param erase_in_lake: does the job of Spark; None: this process does.
    """
    checkpoint = pipeline.checkpoint()
    assert checkpoint is not None
    area = StagingArea(pipeline.staging.as_uri())
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    asked = asked_tables(rows, checkpoint, mask_secret)
    tables = in_lake(asked, tables_of_slot(catalog, pipeline.namespace, pipeline.slot_name))
    with claimed(area, pipeline.slot_name) as claim:
        staged = erase_staged(claim, asked)
        job = ErasureJob(
            staging_uri=area.staging_uri,
            catalog_name=CATALOG,
            namespace=pipeline.namespace,
            slot_name=pipeline.slot_name,
            tables=tables,
            claim=claim.token,
        )
        do = erase_in_lake or functools.partial(erase, pipeline.spark)
        return Erased(staged, do(job))


def holders(pipeline: Pipeline, *values: str) -> list[str]:
    """Names of the files of lake and staging area that hold one of the values in any form."""
    folders = [pipeline.staging, *lake_folders(pipeline)]
    return [each for folder in folders for each in holders_of(folder, *values)]


def lake_folders(pipeline: Pipeline) -> list[Path]:
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    return [
        Path(unquote(urlparse(catalog.load_table(each).location()).path))
        for each in catalog.list_tables(pipeline.namespace)
    ]
