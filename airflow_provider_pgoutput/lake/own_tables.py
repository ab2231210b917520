"""Appends rows to the pipeline's own tables through pyiceberg, and reads them, where no Spark runs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.table.snapshots import Operation

from airflow_provider_pgoutput.batch.checkpoint import OWN_PROPERTIES
from airflow_provider_pgoutput.lake.arrow_types import arrow_type
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.slot_rows import present_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table


def append_to_own_table(
    catalog: Catalog,
    namespace: str,
    name: str,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, str] | None = None,
    *,
    adds_columns: bool = False,
) -> None:
    """Append rows in one commit. If there is no table, it is made.

    :param columns: name and lake type of each column of the table.
    :param rows: by column; a missing column is NULL.
    :param summary: keys of the snapshot summary.
    :param adds_columns: whether to add columns that a table of an early version lacks. False for tables that
        apply writes, too: apply adds their columns.
    :raises LakeUnavailable: the catalog failed, or its answer did not arrive.
    """
    schema = pa.schema([(column, arrow_type(kind)) for column, kind in columns])
    identifier = (*namespace.split("."), name)
    with lake_errors("written"):
        table = catalog.create_table_if_not_exists(
            identifier, schema, properties={**OWN_PROPERTIES}
        )
        if adds_columns and not {*schema.names} <= {*table.schema().column_names}:
            with table.update_schema() as update:
                update.union_by_name(schema)
        # A table of an early version of the package lacks the newest columns.
        present = set(table.schema().column_names)
        schema = pa.schema([each for each in schema if each.name in present])
        table.append(
            pa.Table.from_pylist([dict(row) for row in rows], schema),
            snapshot_properties=dict(summary or {}),
        )


def newest_first(table: Table, row_filter: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of the table, one manifest after the other. The rows that were appended last come first.

    A caller that stops early has opened only the manifests and files up to there. Each append writes a
    manifest. A rewrite and a delete write manifests, too, and these have older rows. Example: maintenance
    makes one manifest of many. From the first manifest of that kind on, all rows come together, in any order.

    :param columns: those that the table does not have are left out.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return
    scan = table.scan(row_filter, selected_fields=present_columns(table, columns))
    planner = ManifestGroupPlanner(table.metadata, table.io, scan.row_filter)
    reader = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
    manifests = snapshot.manifests(table.io)
    # Another writer may have deleted rows.
    deletes = [each for each in manifests if each.content == ManifestContent.DELETES]
    data = [each for each in manifests if each.content == ManifestContent.DATA]
    data.sort(key=lambda each: each.sequence_number or 0, reverse=True)
    appended = [*itertools.takewhile(lambda each: _is_of_append(table, each), data)]
    for manifest in appended:
        yield reader.to_table(planner.plan_files([manifest, *deletes]))
    if rest := data[len(appended) :]:
        yield reader.to_table(planner.plan_files([*rest, *deletes]))


def _is_of_append(table: Table, manifest: ManifestFile) -> bool:
    """Whether all rows of a manifest were new when it was written. False: they were not, or it is not known.

    It is not known if the snapshot that added the manifest has expired.
    """
    snapshot = table.snapshot_by_id(manifest.added_snapshot_id or 0)
    summary = None if snapshot is None else snapshot.summary
    is_append = summary is not None and summary.operation == Operation.APPEND
    return is_append and not manifest.existing_files_count and not manifest.deleted_files_count
