"""Appends rows to the pipeline's own tables through pyiceberg, where no Spark runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_provider_pgoutput.lake.failures import lake_errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.catalog import Catalog

_ARROW_TYPES: Final = {
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "long": pa.int64(),
    "string": pa.string(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}


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
    :param adds_columns: whether this adds columns that the table of an early version lacks. Apply adds those
        of its own tables.
    :raises LakeUnavailable: the catalog failed, or its answer did not arrive.
    """
    schema = pa.schema([(column, _ARROW_TYPES[kind]) for column, kind in columns])
    identifier = (*namespace.split("."), name)
    with lake_errors("written"):
        table = catalog.create_table_if_not_exists(
            identifier, schema, properties={"format-version": "2"}
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
