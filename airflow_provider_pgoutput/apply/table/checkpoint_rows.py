"""The rows of the checkpoint table, through Spark. ``checkpoint.py`` says what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.schema.evolve import create_table, evolve
from airflow_provider_pgoutput.apply.schema.spark_types import spark_type
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT, LATER_COLUMNS, OWN_PROPERTIES
from airflow_provider_pgoutput.batch.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName
    from airflow_provider_pgoutput.batch.manifest import Manifest

#: If the table has no more files and rows than this, one task is faster than several with a shuffle. Both are
#: counted, because after a maintenance few files hold many rows.
_FILES_OF_ONE_TASK, _ROWS_OF_ONE_TASK = 64, 100_000


class Newest(NamedTuple):
    """A row that counts: the newest of a target or of the namespace, or a batch that a table did not get."""

    #: The source's ``schema.table``; None: the namespace as a whole.
    table_name: str | None
    #: None: the namespace as a whole, or the table did not get the batch.
    target: str | None
    relation_oid: int | None
    #: Sixteen hexadecimal digits.
    start_lsn: str
    end_lsn: str
    #: Why the table did not get the batch, see ``batch/set_aside.py``.
    set_aside: str | None = None
    system_identifier: str | None = None
    #: The systems before it, see ``batch/earlier_systems.py``.
    adopted_from: str | None = None


class CheckpointRows(Protocol):
    """How rows of the checkpoint table are read and written."""

    def newest(self, spark: SparkSession, table: IcebergTable, manifest: Manifest) -> list[Newest]:
        """The rows of the manifest's slot that count, in the order of their end LSNs.

        For each system, these rows count: the newest row of each target, the newest row of the namespace, and
        each row about a batch that a table did not get. If several batches of a target end at the same LSN,
        the one that starts last is the newest. Example: a batch of copies that starts and ends there.
        """
        ...

    def ensure(self, spark: SparkSession, name: TableName) -> None:
        """Make the table if there is none, and add the columns that it lacks."""
        ...

    def append(
        self,
        spark: SparkSession,
        name: TableName,
        rows: Sequence[Mapping[str, object]],
        marker: Mapping[str, str],
    ) -> None:
        """Append rows in one commit with summary keys.

        :param rows: values by column of ``batch/checkpoint.py``; ``applied_at`` is always the current time.
        """
        ...


class SparkCheckpointRows:
    """The implementation with Spark; the simulation has another."""

    def newest(self, spark: SparkSession, table: IcebergTable, manifest: Manifest) -> list[Newest]:
        """See ``CheckpointRows``."""
        rows = rows_of_slot(spark, table.name, manifest)
        if _is_small(table):
            rows = rows.coalesce(1)
        reason, adopted_from = (_text_column(rows, each) for each in ("set_aside", "adopted_from"))
        refused_at = F.when(reason.isNotNull(), F.struct("start_lsn", "end_lsn"))
        newest = F.max(
            F.struct("end_lsn", "start_lsn", "table_name", adopted_from.alias("adopted_from"))
        ).alias("newest")
        groups = rows.groupBy(
            "system_identifier",
            "target",
            "relation_oid",
            reason.alias("set_aside"),
            refused_at.alias("refused_at"),
        )
        found = [
            Newest(
                row["newest"]["table_name"],
                row["target"],
                row["relation_oid"],
                row["newest"]["start_lsn"],
                row["newest"]["end_lsn"],
                row["set_aside"],
                row["system_identifier"],
                row["newest"]["adopted_from"],
            )
            for row in groups.agg(newest).collect()
        ]
        # Sorted here: Spark would run a job to sort a few rows.
        return sorted(found, key=lambda row: row.end_lsn)

    def ensure(self, spark: SparkSession, name: TableName) -> None:
        """See ``CheckpointRows``."""
        table = IcebergTable.load(spark, name)
        if table is not None:
            evolve(spark, table, (), (), {}, LATER_COLUMNS)
        else:
            create_table(
                spark,
                name,
                [(column, kind, False) for column, kind in CHECKPOINT],
                comment="Progress of PostgreSQL replication slots, written by airflow-provider-pgoutput",
                properties=OWN_PROPERTIES,
            )

    def append(
        self,
        spark: SparkSession,
        name: TableName,
        rows: Sequence[Mapping[str, object]],
        marker: Mapping[str, str],
    ) -> None:
        """See ``CheckpointRows``."""
        # As SQL literals: rows of Python would start Python workers for a few values.
        names = ", ".join(column for column, _ in CHECKPOINT)
        values = ", ".join(
            f"({', '.join(_literal(row[column]) for column, _ in CHECKPOINT)})" for row in rows
        )
        typed = [f"CAST({column} AS {spark_type(kind)}) AS {column}" for column, kind in CHECKPOINT]
        select = f"SELECT {', '.join(typed)} FROM VALUES {values} AS t({names})"  # noqa: S608 - ours
        frame = spark.sql(select)
        frame = frame.withColumn("applied_at", F.current_timestamp())
        writer = frame.coalesce(1).writeTo(name.sql)
        for key, text in marker.items():
            writer = writer.option(f"snapshot-property.{key}", text)
        writer.append()


def rows_of_slot(spark: SparkSession, name: TableName, manifest: Manifest) -> DataFrame:
    """The checkpoint table's rows of the manifest's slot, of any system."""
    return spark.table(name.sql).where(F.col("slot_name") == manifest.slot_name)


def rows_of(spark: SparkSession, name: TableName, manifest: Manifest) -> DataFrame:
    """The checkpoint table's rows of the manifest's slot, its system and those before it."""
    system, end_lsn = F.col("system_identifier"), F.col("end_lsn")
    wanted = system == manifest.system_identifier
    for each in manifest.adopted_from:
        until = Lsn.parse(each.end_lsn).sortable
        wanted |= (system == each.system_identifier) & (end_lsn <= until)
    return rows_of_slot(spark, name, manifest).where(wanted)


def _text_column(rows: DataFrame, name: str) -> Column:
    """A column, or NULL: a table of an early version of the package lacks it."""
    return F.col(name) if name in rows.columns else F.lit(None).cast("string")


def _is_small(table: IcebergTable) -> bool:
    """Whether the newest snapshot has few files and few rows. False: it has many, or does not count them."""
    snapshot = table.java.currentSnapshot()
    if snapshot is None:
        return False
    files, rows = (snapshot.summary().get(f"total-{each}") for each in ("data-files", "records"))
    if files is None or rows is None:
        return False
    return int(files) <= _FILES_OF_ONE_TASK and int(rows) <= _ROWS_OF_ONE_TASK


def _literal(value: object) -> Sql:
    if value is None:
        return Sql("NULL")
    if isinstance(value, str):
        return literal(value)
    assert isinstance(value, int), "what a row of the checkpoint is made of"
    return Sql(f"{int(value)}")
