"""What a stage or apply task tells OpenLineage: datasets, column lineage and the batch.

Airflow's OpenLineage provider asks for it after a task has succeeded. Without the provider nobody asks, and
nothing here is imported. The provider waits ten seconds for an answer, so only the 50 tables with the most
changes are named.

Source: https://openlineage.io/docs/spec/naming and
https://airflow.apache.org/docs/apache-airflow-providers-openlineage/stable/guides/developer.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_provider_pgoutput.airflow_versions import openlineage_facets
from airflow_provider_pgoutput.batch.checkpoint import recorded_columns
from airflow_provider_pgoutput.hooks.connections import ASSET_SCHEME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.table import Table as LakeTable

    from airflow_provider_pgoutput.batch.manifest import Manifest, Table
    from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog

#: The name of our facet of a run, in OpenLineage.
FACET = "pgoutput_batch"
SCHEMA_URL = (
    "https://raw.githubusercontent.com/airflow-provider-pgoutput/airflow-provider-pgoutput/main/docs/"
    "openlineage/PgoutputBatchRunFacet.json"
)
_MOST_TABLES = 50
_MOST_COLUMNS = 500


def of_staged(manifest: Manifest, pipeline_uri: str, staging_uri: str) -> Any:
    """Lineage of a stage task: from the tables of the source to the folder of the slot.

    :param pipeline_uri: ``pgoutput://host:port/database/slot``.
    """
    facets = openlineage_facets()

    namespace, name = _of_location(f"{staging_uri.rstrip('/')}/{manifest.slot_name}")
    tables = _tables(manifest)
    outputs = [facets.OutputDataset(namespace=namespace, name=name)] if tables else []
    return _lineage(manifest, [_source(each, pipeline_uri) for each in tables], outputs)


def of_applied(
    manifest: Manifest,
    pipeline_uri: str,
    staging_uri: str,
    catalog: LakeCatalog,
    targets: Mapping[int, str],
) -> Any:
    """Lineage of an apply task: from the tables of the source, and the staged files, to Iceberg tables.

    :param targets: tables of the lake that have the batch, ``namespace.table``, by the OID at the source.
    """
    facets = openlineage_facets()

    from airflow_provider_pgoutput.lake.state import SlotTable, open_catalog

    opened = open_catalog(catalog.name, catalog.pyiceberg_properties)
    inputs, outputs = [], []
    for table in _tables(manifest):
        if (target := targets.get(table.relation_oid)) is None:
            continue
        inputs.append(_source(table, pipeline_uri))
        iceberg = opened.load_table(target)
        seen = SlotTable.of(
            iceberg, manifest.slot_name, table.relation_oid, manifest.system_identifier
        )
        columns = source_columns(table, iceberg, {} if seen is None else seen.properties)
        outputs.append(_target(table, target, iceberg, columns, pipeline_uri, catalog))
    if inputs:
        namespace, name = _of_location(f"{staging_uri.rstrip('/')}/{manifest.slot_name}")
        inputs.append(facets.InputDataset(namespace=namespace, name=name))
    return _lineage(manifest, inputs, outputs)


def _tables(manifest: Manifest) -> list[Table]:
    """The tables with the most changed and copied rows."""
    tables = manifest.changed_tables
    rows = {each.name: _rows(each) for each in tables}
    return sorted(tables, key=lambda each: (-rows[each.name], each.name))[:_MOST_TABLES]


def _rows(table: Table) -> int:
    counts = table.counts
    return counts.inserts + counts.updates + counts.deletes + counts.copied


def _source_name(table: Table, pipeline_uri: str) -> tuple[str, str]:
    """Namespace and name of a table of the source, as OpenLineage names tables of PostgreSQL."""
    server, database, _ = pipeline_uri.removeprefix(ASSET_SCHEME).split("/")
    return f"postgres://{server}", f"{unquote(database)}.{table.schema_name}.{table.table_name}"


def _source(table: Table, pipeline_uri: str) -> Any:
    facets = openlineage_facets()

    namespace, name = _source_name(table, pipeline_uri)
    columns = [(each.name, each.type_name) for each in table.versions[-1].columns]
    return facets.InputDataset(namespace=namespace, name=name, facets={"schema": _schema(columns)})


def _target(
    table: Table,
    target: str,
    iceberg: LakeTable,
    sources: Mapping[str, str],
    pipeline_uri: str,
    catalog: LakeCatalog,
) -> Any:
    """A table of the lake, with the column of the source that each of its columns comes from.

    :param sources: see ``source_columns``.
    """
    facets = openlineage_facets()

    namespace, name = _of_location(iceberg.location())
    source_namespace, source_name = _source_name(table, pipeline_uri)
    columns = [(field.name, str(field.field_type)) for field in iceberg.schema().fields]
    fields = {
        column: facets.Fields(
            inputFields=[
                facets.InputField(
                    namespace=source_namespace, name=source_name, field=sources[column]
                )
            ]
        )
        for column, _ in columns[:_MOST_COLUMNS]
        if column in sources
    }
    symlink = facets.Identifier(namespace=catalog_namespace(catalog), name=target, type="TABLE")
    return facets.OutputDataset(
        namespace=namespace,
        name=name,
        facets={
            "schema": _schema(columns),
            "symlinks": facets.SymlinksDatasetFacet(identifiers=[symlink]),
            "columnLineage": facets.ColumnLineageDatasetFacet(fields=fields),
        },
        outputFacets={
            "outputStatistics": facets.OutputStatisticsOutputDatasetFacet(rowCount=_rows(table))
        },
    )


def source_columns(
    table: Table, iceberg: LakeTable, properties: Mapping[str, str]
) -> dict[str, str]:
    """The column of the source by the column of the lake. The user may have given it another name.

    :param properties: of the table of the lake, as its slice sees them.
    """
    recorded = recorded_columns(properties, table.relation_oid).get("fields", {})
    names = {field.field_id: field.name for field in iceberg.schema().fields}
    in_lake = {number: names[each] for number, each in recorded.items() if each in names}
    columns = table.versions[-1].columns
    return {in_lake.get(str(each.attribute_number), each.name): each.name for each in columns}


def _schema(columns: Sequence[tuple[str, str]]) -> Any:
    facets = openlineage_facets()

    shown = columns[:_MOST_COLUMNS]
    return facets.SchemaDatasetFacet(
        fields=[
            facets.SchemaDatasetFacetFields(name=name, type=type_name) for name, type_name in shown
        ]
    )


def _lineage(manifest: Manifest, inputs: list[Any], outputs: list[Any]) -> Any:
    import attr

    facets = openlineage_facets()
    from airflow.providers.openlineage.extractors import OperatorLineage

    # The base exists only where the provider is installed.
    facet = attr.make_class(
        "PgoutputBatchRunFacet",
        ["slotName", "batchId", "startLsn", "endLsn", "changes"],
        bases=(facets.RunFacet,),
        class_body={"_get_schema": staticmethod(lambda: SCHEMA_URL)},
        kw_only=True,
    )
    batch = facet(
        slotName=manifest.slot_name,
        batchId=manifest.batch_id,
        startLsn=str(manifest.start_lsn),
        endLsn=str(manifest.end_lsn),
        changes=manifest.changes,
    )
    return OperatorLineage(inputs=inputs, outputs=outputs, run_facets={FACET: batch})


def _of_location(location: str) -> tuple[str, str]:
    """Namespace and name of a folder, as OpenLineage names files."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        return "file", parts.path
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    return f"{scheme}://{parts.netloc}", parts.path.strip("/")


def catalog_namespace(catalog: LakeCatalog) -> str:
    """The catalog as the namespace of its tables' names: its address without a login, or its warehouse."""
    properties = catalog.pyiceberg_properties
    # Hive may have several servers, with commas between them.
    uri = urlsplit(str(properties.get("uri", "")).partition(",")[0])
    server = uri.netloc.rpartition("@")[2]
    if properties.get("type") == "hive" and server:
        return f"hive://{server}"
    if properties.get("type", "rest") == "rest" and server:
        return f"{uri.scheme}://{server}{uri.path}".rstrip("/")
    warehouse = urlsplit(str(properties.get("warehouse", "")))
    if warehouse.scheme == "file":
        return f"file:{warehouse.path}".rstrip("/")
    if warehouse.scheme and warehouse.netloc:
        return f"{warehouse.scheme}://{warehouse.netloc}{warehouse.path}".rstrip("/")
    return f"iceberg://{catalog.name}"
