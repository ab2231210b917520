"""Keeps the tables of a pipeline fast and small with Iceberg's own procedures. No row changes.

It may run beside an apply. If the apply commits first, the step is left for the next maintenance. An expiry
may remove the snapshots that carry the applied LSN. A property of the table keeps the LSN then.

Source: https://iceberg.apache.org/docs/latest/spark-procedures/#metadata-management
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_pgoutput.apply.iceberg.causes import sure_cause
from airflow_provider_pgoutput.apply.iceberg.damage import damage
from airflow_provider_pgoutput.apply.iceberg.jvm import (
    JAVA_ERRORS,
    class_named,
    java_class,
    java_classes,
    said,
)
from airflow_provider_pgoutput.apply.iceberg.session import isolated
from airflow_provider_pgoutput.apply.iceberg.sql import Sql, TableName, literal, quote
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
    PgoutputError,
    PublishRefused,
    TableDamaged,
    TableRefused,
    TableRolledBack,
)
from airflow_provider_pgoutput.slices import views_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import Job, MaintenanceJob

log = logging.getLogger(__name__)

#: Exceptions by procedure that mean: somebody else changed what the rewrite had read, or kept changing the
#: table.
_CONFLICTS = {
    "rewrite_data_files": ("CommitFailedException", "ValidationException"),
    "rewrite_position_delete_files": ("CommitFailedException", "ValidationException"),
    # Somebody replaced a manifest after the procedure had read it.
    "rewrite_manifests": ("CommitFailedException", "ValidationException"),
}
#: The same for all other procedures.
_CONFLICTS_OF_OTHERS = ("CommitFailedException",)
#: A table that cannot be loaded for one of these is passed over.
_OF_ONE_TABLE = (ConfigurationError, LakeDenied, LakeUnavailable, TableDamaged, TableRefused)
#: A tag on the snapshot that was main's head when the retention began. Its rows must stay readable.
_KEPT_TAG = "pgoutput_retained"
#: ``_KEPT_TAG`` may be on the snapshot of a compaction. This tag is on the last batch's snapshot before it,
#: because the checkpoint table and a replay know snapshots of batches only.
_KEPT_BATCH_TAG = "pgoutput_retained_batch"
#: Folders of a table's files below its location.
_FOLDERS = ("data", "metadata")
#: Iceberg lists files of these schemes through Hadoop. In other stores it lists them by prefix itself.
_HADOOP_SCHEMES = ("", "file", "hdfs", "viewfs")
#: Part of Iceberg's message if a table property forbids that files are deleted.
_FORBIDDEN = "GC is disabled"
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

    #: Counts by target, then by name: files, manifests, bytes; ``orphans_deleted`` for orphaned files.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Targets with a step that met a commit of somebody else. The next maintenance does that step.
    busy: tuple[str, ...] = ()
    seconds: float = 0.0


def maintain(spark: SparkSession, job: MaintenanceJob) -> MaintenanceResult:
    """Do every step of a job on each of its tables.

    If one table fails, the others are still maintained. Its error is raised at the end.

    :raises TableRefused: a named table does not belong to the slot, or a table must not lose files.
    :raises TableRolledBack: a table is older than what was published to it.
    :raises TableDamaged: a file of a table is missing or damaged.
    :raises ConfigurationError: Iceberg refuses an option.
    :raises LakeDenied: the catalog refuses the login, or forbids the request.
    :raises LakeUnavailable: the catalog or the file system did not answer.
    """
    began = time.monotonic()
    spark = isolated(spark)
    present, is_all = present_tables(spark, job)
    result: dict[str, dict[str, int]] = {}
    busy: list[str] = []
    failures: list[PgoutputError] = []
    chosen = _chosen(present, job)
    # All tables are asked before the first step. If somebody drops a table later, its folder is not known any
    # more.
    shared = [not is_all or are_shared(table, present) for table in chosen]
    for table, shares in zip(chosen, shared, strict=True):
        steps = TableMaintenance(spark, table, job, shares)
        try:
            steps.run()
        except PgoutputError as error:
            log.error("%s", error)
            failures.append(error)
        target = table.name.target
        result[target] = steps.counts
        if steps.was_busy:
            busy.append(target)
        log.info("%s: %s", target, _words(steps.counts))
    if failures:
        raise failures[0]
    return MaintenanceResult(result, tuple(busy), time.monotonic() - began)


def present_tables(spark: SparkSession, job: Job) -> tuple[list[IcebergTable], bool]:
    """All tables of the namespace that can be loaded, also those of other pipelines.

    :return: the tables, and whether they are all. The folder of a table that does not load is unknown.
    """
    namespace = TableName(job.catalog_name, job.namespace, "").namespace_sql
    try:
        rows = spark.sql(f"SHOW TABLES IN {namespace}").collect()
    except JAVA_ERRORS as error:
        if java_class(error).endswith("NoSuchNamespaceException"):
            return [], True  # The pipeline has not applied anything yet.
        raise unanswered(error, job.namespace) from error
    names = sorted(row["tableName"] for row in rows)
    found: list[IcebergTable] = []
    denied: LakeDenied | ConfigurationError | None = None
    is_all = True
    for name in names:
        try:
            table = IcebergTable.load(spark, TableName(job.catalog_name, job.namespace, name))
        except _OF_ONE_TABLE as error:
            denied = error if isinstance(error, (LakeDenied, ConfigurationError)) else denied
            is_all = is_all and isinstance(error, TableRefused)
            log.warning("%s.%s is passed over: %s", job.namespace, name, error)
            continue
        found += [] if table is None else [table]
    if names and not found:
        if denied is not None:
            raise denied
        raise LakeUnavailable(f"No table of namespace {job.namespace} can be loaded.")
    return found, is_all


def _chosen(present: Sequence[IcebergTable], job: MaintenanceJob) -> list[IcebergTable]:
    ours = [each for each in present if _sources(each, job.slot_name)]
    if not job.tables:
        own = [each for each in present if each.name.name in lake_names.OWN_TABLES]
        return ours + [each for each in own if each not in ours]
    sources = {name: each for each in ours for name in _sources(each, job.slot_name)}
    if left := set(job.tables) - set(sources):
        raise TableRefused(
            f"There is no target of it in namespace {job.namespace}.",
            slot=job.slot_name,
            table=min(left),
            advice="name tables of the source as schema.table, of this slot and namespace.",
        )
    return list({sources[name].name: sources[name] for name in job.tables}.values())


def _sources(table: IcebergTable, slot_name: str) -> list[str]:
    """The tables of the source that a slot's pipeline writes to a table, as ``schema.table``."""
    return [
        found.get(lake_names.PROPERTY_SOURCE_TABLE, "")
        for _, found in views_of(table.properties)
        if found.get(lake_names.PROPERTY_SLOT) == slot_name
    ]


class TableMaintenance:
    """The steps on one table."""

    def __init__(
        self,
        spark: SparkSession,
        table: IcebergTable,
        job: MaintenanceJob,
        shares_folders: bool,
    ) -> None:
        self._spark = spark
        self._table = table
        self._job = job
        self._shares_folders = shares_folders
        self.counts: dict[str, int] = {}
        self.was_busy = False

    def run(self) -> None:
        """Do all steps of the job.

        :raises PgoutputError: this table cannot be maintained; other tables can.
        """
        try:
            self._run()
        except JAVA_ERRORS as error:
            raise unanswered(error, self._table.name.target) from error

    def _run(self) -> None:
        asked = self._job
        if self._table.head is None:
            return
        refuse_rolled_back(self._table, asked.slot_name)
        if asked.compact:
            self.compact()
        if asked.snapshot_retention_seconds is not None:
            self.expire(asked.snapshot_retention_seconds)
        if asked.orphan_retention_seconds is not None:
            self.remove_orphans(asked.orphan_retention_seconds)

    def compact(self) -> None:
        """Join small data files and apply deletes."""
        options = {"remove-dangling-deletes": "true", **self._job.compact_options}
        pairs = ", ".join(literal(text) for pair in options.items() for text in pair)
        self._step("rewrite_data_files", Sql(f"options => map({pairs})"))
        if not self._table.has_deletion_vectors:
            self._step("rewrite_position_delete_files")
        self._step("rewrite_manifests", Sql("use_caching => false"))

    def expire(self, retention_seconds: int) -> None:
        """Expire snapshots that were not main's head at any moment of the retention time.

        Iceberg looks at the time at which a snapshot was made. A snapshot may be old and yet have been main's
        head until a moment ago. So a tag keeps the snapshot that was main's head when the retention began.
        """
        before = datetime.now(UTC) - timedelta(seconds=retention_seconds)
        self._table.refresh()
        kept = self._table.head_at(int(before.timestamp() * 1000))
        # With a retention of 0 only main's head has to stay, and it does without a tag. If an earlier
        # maintenance made a tag, the tag moves to the head. Otherwise it would keep an old snapshot.
        if kept is not None and (
            retention_seconds or self._table.branch_head(_KEPT_TAG) is not None
        ):
            batch = _left_by_a_batch(self._table, kept) if retention_seconds else kept
            try:
                self._table.keep_until_replaced(_KEPT_TAG, kept)
                if batch is not None:
                    self._table.refresh()
                    self._table.keep_until_replaced(_KEPT_BATCH_TAG, batch)
            except PublishRefused:
                self._leave("expire_snapshots")
                return
        self._step(
            "expire_snapshots",
            Sql(f"older_than => {_timestamp(before)}"),
            Sql(f"retain_last => {int(self._job.keep_snapshots)}"),
            Sql("stream_results => true"),
        )

    def remove_orphans(self, retention_seconds: int) -> None:
        """Remove files in the table's folders that no snapshot names, if they are old enough."""
        if self._shares_folders:
            log.warning(
                "%s: no orphans are removed: another table lies in the same folders, or cannot be loaded.",
                self._table.name.target,
            )
            return
        self._table.refresh()
        if self._table.branch_ages_ms():
            # An apply at work may be older than the retention. Its files would look like orphans, as no
            # snapshot names them yet.
            self._leave("remove_orphan_files")
            return
        before = datetime.now(UTC) - timedelta(seconds=retention_seconds)
        removed = 0
        for folder, by_prefix in self.folders():
            rows = self._call(
                "remove_orphan_files",
                Sql(f"older_than => {_timestamp(before)}"),
                Sql(f"location => {literal(folder)}"),
                Sql(f"prefix_listing => {'true' if by_prefix else 'false'}"),
                Sql("stream_results => true"),
            )
            removed += len(rows or ())
        self.counts["orphans_deleted"] = removed

    def folders(self) -> Iterator[tuple[str, bool]]:
        """The table's folders that exist, and whether Iceberg lists their store by prefix."""
        table_location = location(self._table)
        by_prefix = urlsplit(table_location).scheme not in _HADOOP_SCHEMES
        for folder in _FOLDERS:
            path = f"{table_location}/{folder}"
            if by_prefix or exists(self._spark, self._table, path):
                yield path, by_prefix

    def _damage(self, error: Exception) -> TableDamaged | None:
        """The error if a file of a target is missing or damaged."""
        # The error's advice is a copy, which mends no table of the pipeline's own.
        name = self._table.name
        return None if name.name in lake_names.OWN_TABLES else damage(self._spark, name, error)

    def _leave(self, procedure: str) -> None:
        """Note that a step is left for the next maintenance."""
        log.warning(
            "%s: somebody else is at work, so %s is left for the next time.",
            self._table.name.target,
            procedure,
        )
        self.was_busy = True

    def _step(self, procedure: str, *arguments: Sql) -> None:
        for row in self._call(procedure, *arguments) or ():
            for column, name in _COUNTED[procedure].items():
                self.counts[name] = self.counts.get(name, 0) + int(row[column])

    def _call(self, procedure: str, *arguments: Sql) -> list[Any] | None:
        """The rows of a procedure's answer; None: somebody else committed at the same time."""
        name = self._table.name
        # The name begins with the catalog. Without it Spark would take a namespace ``lake`` for a catalog
        # ``lake``, if there is one.
        given = ", ".join((f"table => {literal(name.sql)}", *arguments))
        try:
            return self._spark.sql(
                f"CALL {quote(name.catalog)}.system.{quote(procedure)}({given})"
            ).collect()
        except JAVA_ERRORS as error:
            if _FORBIDDEN in str(error):
                raise TableRefused(
                    "Its property gc.enabled is false, so no file of it may be deleted.",
                    table=name.target,
                    advice="set the property, or snapshot_retention and orphan_retention to None.",
                ) from error
            found = java_classes(error)
            # A rewrite wraps the exception of the conflict in another one.
            conflicts = _CONFLICTS.get(procedure, _CONFLICTS_OF_OTHERS)
            if damaged := self._damage(error):
                raise damaged from error
            if named := sure_cause(error, name.target):
                raise named from error
            if procedure == "rewrite_data_files" and found[-1].endswith("IllegalArgumentException"):
                raise ConfigurationError(
                    f"Iceberg's procedure {procedure} refuses an option: {said(error)}",
                    table=name.target,
                    advice="correct compact_options.",
                ) from error
            if not any(each.endswith(conflicts) for each in found):
                raise LakeUnavailable(
                    f"Iceberg's procedure {procedure} failed: {found[-1]}.",
                    table=name.target,
                    advice="see the log of the Spark job; run the task again.",
                ) from error
            self._leave(procedure)
            return None


def _left_by_a_batch(table: IcebergTable, head: int) -> int | None:
    """The batch's snapshot that has the same rows as ``head``.

    Between the two are only compactions, which change no row: https://iceberg.apache.org/spec/#snapshots

    :param head: a snapshot that was main's head.
    :return: None: somebody else changed rows since that batch. Or a snapshot between the two has expired;
        then a tag of an earlier maintenance already marks the batch.
    """
    is_reached = False
    for snapshot in table.history():
        is_reached = is_reached or int(snapshot.snapshotId()) == head
        if not is_reached:
            continue
        if snapshot.summary().get(lake_names.SUMMARY_END_LSN):
            return int(snapshot.snapshotId())
        if snapshot.operation() != "replace":
            break
    return None


def refuse_rolled_back(table: IcebergTable, slot_name: str) -> None:
    """Refuse a table that is older than what was published to it.

    A compaction and an expiry would hide the rollback from the next apply.

    :raises TableRolledBack: it is.
    """
    slices = views_of(table.whole_properties)
    if any(
        table.seen_by(slice_).applied(found.get(lake_names.PROPERTY_SLOT, "")).was_rolled_back
        if slice_ is not None
        else table.applied(slot_name).was_rolled_back
        for slice_, found in slices
    ):
        raise TableRolledBack(
            "Its history does not end with what was published last.",
            slot=slot_name,
            table=table.name.target,
            advice="bring its newest snapshot back, finish the replay, or copy the table again"
            " (copy_tables of the stage task).",
        )


def unanswered(error: Exception, name: str) -> PgoutputError:
    """The error for a Java exception that no step expects.

    :param name: of the table or the namespace.
    """
    return sure_cause(error, name) or LakeUnavailable(
        f"The catalog did not answer: {java_class(error)}.", table=name
    )


def _timestamp(moment: datetime) -> Sql:
    return Sql(f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}Z'")


def _words(counts: dict[str, int]) -> str:
    done = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return ", ".join(done) or "nothing to do"


def are_shared(table: IcebergTable, present: Sequence[IcebergTable]) -> bool:
    """Whether another table's folder is the same as this table's, inside it or around it."""
    own = _folder(table)
    others = (_folder(each) for each in present if each is not table)
    return any(each.startswith(own) or own.startswith(each) for each in others)


def location(table: IcebergTable) -> str:
    """The URI of a table's folder."""
    return str(table.java.location()).rstrip("/")


def exists(spark: SparkSession, table: IcebergTable, folder: str) -> bool:
    """Whether a folder of a Hadoop file system exists. A table without rows may have no folder for them.

    :raises LakeUnavailable: the file system did not answer.
    """
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    try:
        path = class_named(jvm, "org.apache.hadoop.fs.Path")(folder)
        return bool(path.getFileSystem(context._jsc.hadoopConfiguration()).exists(path))
    except JAVA_ERRORS as error:
        raise sure_cause(error, table.name.target) or LakeUnavailable(
            f"The folder of its files did not answer: {java_class(error)}.", table=table.name.target
        ) from error


def _folder(table: IcebergTable) -> str:
    """The location without its scheme: ``file:/x`` and ``/x`` are the same, and so are s3 and s3a."""
    parts = urlsplit(location(table))
    return f"{parts.netloc}{parts.path}/"
