"""Tries, before the first batch of a namespace, whether the catalog has what an apply needs.

Nothing but a try tells whether a catalog keeps branches and tags. If it does not, the tables that were made
for the try are removed.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.references import refuse_without_references
from airflow_provider_pgoutput.apply.iceberg.removal import (
    namespace_is_missing,
    remove_namespace,
    remove_table,
)
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.schema.evolve import FORMAT_VERSION, create_table
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.checkpoint_rows import SparkCheckpointRows
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.table.checkpoint_rows import CheckpointRows
    from airflow_provider_pgoutput.batch.jobs import WriteJob

_SPARK_ROWS = SparkCheckpointRows()
#: The format version of the checkpoint table. A catalog that makes the table supports this version.
_OF_CHECKPOINT = 2


def try_catalog(
    spark: SparkSession,
    job: WriteJob,
    progress: checkpoint.Progress,
    rows: CheckpointRows = _SPARK_ROWS,
) -> None:
    """Try the catalog, if no batch of any slot is recorded in the namespace.

    Branches and tags are tried on the checkpoint table, which the batch needs anyway. If the job wants a
    newer format version than the checkpoint table has, a table of that version is made and removed at once.

    :raises ConfigurationError: the catalog keeps no branches, no tags or no tables of the wanted format
        version. What was made for the try is removed then.
    """
    if not progress.is_first:
        return
    name = checkpoint.table_name(job)
    makes_namespace = namespace_is_missing(spark, name)
    try:
        if (version := _newest_version(job)) > _OF_CHECKPOINT:
            _refuse_without_version(spark, name, version)
        rows.ensure(spark, name)
        _refuse_without_references(spark, name)
    except ConfigurationError:
        if makes_namespace:
            remove_namespace(spark, name)
        raise


def _newest_version(job: WriteJob) -> int:
    """The newest format version that the job wants of any new table."""
    of_tables = (each.properties.get(FORMAT_VERSION, "") for each in job.table_options.values())
    # Another text is refused when the table is made, with the table's name.
    return max(job.format_version, *(int(each) for each in of_tables if each.isdecimal()), 0)


def _refuse_without_references(spark: SparkSession, checkpoint_name: TableName) -> None:
    """Try branches and tags. If the catalog does not keep them, remove the checkpoint table.

    :raises ConfigurationError: it does not keep them.
    """
    try:
        refuse_without_references(checkpoint.loaded(spark, checkpoint_name))
    except ConfigurationError:
        # The table is empty: this catalog refuses the first batch of every slot.
        remove_table(spark, checkpoint_name)
        raise


def _refuse_without_version(spark: SparkSession, checkpoint_name: TableName, version: int) -> None:
    """Make a table of a format version and remove it.

    :raises ConfigurationError: the catalog makes no such table, or makes it in an older version.
    """
    look = f"pgoutput_look_{uuid.uuid4().hex[:8]}"
    name = TableName(checkpoint_name.catalog, checkpoint_name.namespace, look)
    create_table(
        spark,
        name,
        [("c", "int", False)],
        comment="Shows whether the catalog has a format version. Drop it: nothing reads it",
        properties={FORMAT_VERSION: str(version)},
    )
    remove_table(spark, name)
