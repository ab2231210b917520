"""Keeps the tables of a pipeline fast and small with Iceberg's own procedures.

It may run beside an apply: whoever commits second looks again, or leaves the table for the next time. What
was applied is not forgotten by it: a table property has the applied LSN when the snapshots that carry it are
gone. What is not here: anything that changes a row.

Source: https://iceberg.apache.org/docs/latest/spark-procedures/#metadata-management
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.evolve import format_version
from airflow_provider_pgoutput.apply.iceberg import IcebergTable
from airflow_provider_pgoutput.apply.java import JAVA_ERRORS, java_classes
from airflow_provider_pgoutput.apply.names import TableName, literal, quote
from airflow_provider_pgoutput.apply.prepare import isolated
from airflow_provider_pgoutput.batch import checkpoint as words
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.maintenance import Maintenance
    from airflow_provider_pgoutput.batch.plan import Plan

logger = logging.getLogger(__name__)

#: Somebody else committed what these steps rest on.
_CONFLICTS = ("CommitFailedException", "ValidationException")
#: What Iceberg says where a table property forbids that files are deleted.
_FORBIDDEN = "GC is disabled"
_FIRST_WITH_DELETION_VECTORS = 3
#: By procedure: the columns of its answer that are counted, and what they are called here.
_COUNTED = {
    "rewrite_data_files": {
        "rewritten_data_files_count": "files_replaced",
        "added_data_files_count": "files_added",
        "rewritten_bytes_count": "bytes_rewritten",
    },
    "rewrite_position_delete_files": {
        "rewritten_delete_files_count": "delete_files_replaced",
        "added_delete_files_count": "delete_files_added",
    },
    "rewrite_manifests": {
        "rewritten_manifests_count": "manifests_replaced",
        "added_manifests_count": "manifests_added",
    },
    "expire_snapshots": {
        "deleted_data_files_count": "data_files_deleted",
        "deleted_position_delete_files_count": "delete_files_deleted",
        "deleted_manifest_files_count": "manifests_deleted",
    },
}


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What one maintenance did."""

    #: By target and by what was counted: files, manifests, bytes; orphans are ``orphans_deleted``.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Targets with a step that somebody else's commit got in the way of; it is done the next time.
    busy: tuple[str, ...] = ()
    seconds: float = 0.0


def maintain(spark: SparkSession, plan: Plan) -> MaintenanceResult:
    """Do every step of the plan's maintenance on every table that it is about.

    :raises TableRefused: a table that is named is none of the slot's.
    :raises LakeUnavailable: the catalog did not answer.
    """
    assert plan.maintenance is not None
    began = time.monotonic()
    spark = isolated(spark)
    found, busy = {}, []
    for table in _tables(spark, plan, plan.maintenance):
        job = _TableMaintenance(spark, plan.catalog, table, plan.maintenance)
        job.run()
        found[table.name.target] = job.counts
        if job.was_busy:
            busy.append(table.name.target)
        logger.info("%s: %s", table.name.target, _words(job.counts))
    return MaintenanceResult(found, tuple(busy), time.monotonic() - began)


def _tables(spark: SparkSession, plan: Plan, maintenance: Maintenance) -> Iterator[IcebergTable]:
    namespace = TableName(plan.catalog, plan.namespace, "").namespace_sql
    rows = spark.sql(f"SHOW TABLES IN {namespace}").collect()
    left = set(maintenance.source_tables)
    for name in sorted(row["tableName"] for row in rows):
        table = IcebergTable.load(spark, TableName(plan.catalog, plan.namespace, name))
        if table is None:
            continue
        properties = table.properties
        source = properties.get(words.PROPERTY_SOURCE_TABLE)
        is_ours = properties.get(words.PROPERTY_SLOT) == maintenance.slot_name
        if not maintenance.source_tables:
            if is_ours or name in words.OWN_TABLES:
                yield table
        elif is_ours and source in left:
            left.discard(source)
            yield table
    if left:
        raise TableRefused(
            f"There is no target of it in namespace {plan.namespace}.",
            slot=maintenance.slot_name,
            table=min(left),
            advice="name tables of the source as schema.table, of this slot and namespace.",
        )


class _TableMaintenance:
    """The steps on one table."""

    def __init__(
        self, spark: SparkSession, catalog: str, table: IcebergTable, maintenance: Maintenance
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._table = table
        self._maintenance = maintenance
        self.counts: dict[str, int] = {}
        self.was_busy = False

    def run(self) -> None:
        asked = self._maintenance
        if self._table.head is None:
            return
        if asked.compact:
            self._compact()
        # What was replaced a moment ago goes the next time, when its retention is over.
        if asked.snapshot_retention_s is not None:
            self._step(
                "expire_snapshots",
                f"older_than => {_before(asked.snapshot_retention_s)}",
                f"retain_last => {int(asked.keep_snapshots)}",
                "stream_results => true",
            )
        if asked.orphan_retention_s is not None:
            rows = self._call(
                "remove_orphan_files",
                f"older_than => {_before(asked.orphan_retention_s)}",
                "stream_results => true",
            )
            self.counts["orphans_deleted"] = len(rows or ())

    def _compact(self) -> None:
        options = {"remove-dangling-deletes": "true", **self._maintenance.compact_options}
        pairs = ", ".join(literal(text) for pair in options.items() for text in pair)
        self._step("rewrite_data_files", f"options => map({pairs})")
        if format_version(self._table) < _FIRST_WITH_DELETION_VECTORS:
            self._step("rewrite_position_delete_files")
        self._step("rewrite_manifests", "use_caching => false")

    def _step(self, procedure: str, *arguments: str) -> None:
        for row in self._call(procedure, *arguments) or ():
            for column, name in _COUNTED[procedure].items():
                self.counts[name] = self.counts.get(name, 0) + int(row[column])

    def _call(self, procedure: str, *arguments: str) -> list[Any] | None:
        """Rows of a procedure's answer; None: somebody else's commit got in its way."""
        name = self._table.name
        # The procedures parse the name; the catalog is theirs.
        table = ".".join(quote(part) for part in (*name.namespace.split("."), name.name))
        given = ", ".join((f"table => {literal(table)}", *arguments))
        try:
            return self._spark.sql(
                f"CALL {quote(self._catalog)}.system.{procedure}({given})"
            ).collect()
        except JAVA_ERRORS as error:
            if _FORBIDDEN in str(error):
                raise TableRefused(
                    "Its property gc.enabled is false, so no file of it may be deleted.",
                    table=name.target,
                    advice="set the property, or snapshot_retention and orphan_retention to None.",
                ) from error
            # A rewrite wraps the conflict that it met.
            if not any(each.endswith(_CONFLICTS) for each in java_classes(error)):
                raise
            logger.warning(
                "%s: %s met a commit of somebody else and is left for the next time.",
                name.target,
                procedure,
            )
            self.was_busy = True
            return None


def _before(seconds: int) -> str:
    moment = datetime.now(UTC) - timedelta(seconds=seconds)
    return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}Z'"


def _words(counts: dict[str, int]) -> str:
    done = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return ", ".join(done) or "nothing to do"
