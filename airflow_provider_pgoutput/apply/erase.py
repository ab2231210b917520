"""Takes rows of some keys out of a pipeline's tables, and out of every file of these tables.

A DELETE alone leaves the values on the disk: in the data file that it marks, in the statistics of manifests,
and in the files of older snapshots. So each table goes through these steps:

1. An empty commit moves main. An apply that looked at the table before is refused. Its next try reads the
   staged files again, which are erased already.
2. The rows are deleted, and every data file with deleted rows is written anew.
3. Manifests that still tell of replaced files are written anew.
4. The pipeline's tags go, and all snapshots but the newest expire. Iceberg deletes their files.
5. Files that no snapshot names are removed if they are a day old.

The steps can be repeated. After a kill the next job does them again. A job whose task has ended, or was
followed by another, stops before its next step: the source may have inserted a row with the key again.

Source: https://iceberg.apache.org/docs/latest/spark-procedures/#metadata-management
"""

from __future__ import annotations

import dataclasses
import logging
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.failures import named_failures
from airflow_provider_pgoutput.apply.iceberg.jvm import (
    JAVA_ERRORS,
    class_named,
    constant,
    elements,
    entries,
    nothing,
)
from airflow_provider_pgoutput.apply.iceberg.publication import MAIN, TAG_PREFIX
from airflow_provider_pgoutput.apply.iceberg.session import isolated
from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal, quote
from airflow_provider_pgoutput.apply.maintain import (
    TableMaintenance,
    are_shared,
    present_tables,
    refuse_rolled_back,
    unanswered,
)
from airflow_provider_pgoutput.apply.rows.staged_files import read_text
from airflow_provider_pgoutput.apply.schema.column_map import fields_of
from airflow_provider_pgoutput.apply.schema.spark_types import spark_type
from airflow_provider_pgoutput.apply.table.target import OLD_KEY_COLUMN, OP_COLUMN
from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.checkpoint import (
    BRANCH_PREFIX,
    DEAD_AFTER,
    PROOFS_TABLE,
    QUARANTINE_TABLE,
    REJECTED_TABLE,
    SUMMARY_ERASURE,
)
from airflow_provider_pgoutput.batch.jobs import LEAST_ORPHAN_S, MaintenanceJob
from airflow_provider_pgoutput.batch.lake_types import is_nested
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PublishRefused, TableRefused
from airflow_provider_pgoutput.log_rows import LogRows
from airflow_provider_pgoutput.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
    from airflow_provider_pgoutput.batch.jobs import ErasedColumn, ErasedTable, ErasureJob

log = logging.getLogger(__name__)

#: A data file with a single deleted row is written anew.
_EACH_FILE_WITH_DELETES = {"delete-file-threshold": "1"}
_KEY_OBJECT = Sql("from_json(key, 'map<string,string>')")


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """What one erasure did in the lake. No value and no key is in it."""

    #: Counts by target, then by name: ``rows_erased``, and those of a maintenance.
    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    #: By target: what may still hold the rows, in words.
    remains: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0


def erase(spark: SparkSession, job: ErasureJob) -> ErasureResult:
    """Do all steps on each table of a job, and on the pipeline's own tables.

    :raises TableRefused: a table is not there, has not the column, or must not lose files.
    :raises TableRolledBack: a table is older than what was published to it.
    :raises PublishRefused: an apply is at work on a table; the job has to be run again.
    :raises LakeUnavailable: the catalog or the file system did not answer.
    """
    began = time.monotonic()
    spark = isolated(spark)
    present, is_all = present_tables(spark, job)
    by_name = {each.name.name: each for each in present}
    # Everything is looked at before the first step.
    steps = [_of_target(spark, by_name, each, job) for each in job.tables]
    own = [make(spark, by_name, job) for make in (_of_rejected, _of_quarantine, _of_proofs)]
    steps += [each for each in own if each is not None]
    for each in steps:
        refuse_rolled_back(each.table, job.slot_name)
        each.shares_folders = not is_all or are_shared(each.table, present)
    busy = []
    for each in steps:
        try:
            with named_failures():
                each.run()
        except JAVA_ERRORS as error:
            raise unanswered(error, each.table.name.target) from error
        if each.is_busy:
            busy.append(each.table.name.target)
    if busy:
        raise PublishRefused(
            "An apply, or somebody else, wrote to it meanwhile, so its old files are not all gone.",
            slot=job.slot_name,
            table=min(busy),
            advice="run the task again while no apply is at work. If an apply died, it counts as one at work"
            " for a day, or until its batch is applied again.",
        )
    result = ErasureResult()
    for each in steps:
        target = each.table.name.target
        counts = result.tables.setdefault(target, {})
        counts.update({name: counts.get(name, 0) + count for name, count in each.counts.items()})
        if each.remains:
            known = result.remains.get(target, [])
            result.remains[target] = list(dict.fromkeys([*known, *each.remains]))
    return dataclasses.replace(result, seconds=time.monotonic() - began)


@dataclass(slots=True, kw_only=True)
class _Erasure:
    """The steps on one table."""

    spark: SparkSession
    table: IcebergTable
    job: ErasureJob
    #: SQL: whether a row shall go.
    matches: Sql
    #: More counts to take before that, SQL conditions by name.
    counted: Mapping[str, Sql]
    #: What removes the values, if not the rows themselves go.
    statement: Sql | None = None
    shares_folders: bool = True
    counts: dict[str, int] = field(default_factory=dict)
    remains: list[str] = field(default_factory=list)
    is_busy: bool = False

    def run(self) -> None:
        """Do all steps."""
        table = self.table
        if table.head is None:
            return
        fence = table.java.newFastAppend().set(SUMMARY_ERASURE, "true")
        refuse_without_claim(self.spark, self.job)
        table.change(fence.commit)
        reach("erase.after_fence")
        self._count()
        refuse_without_claim(self.spark, self.job)
        if self.counts["rows_erased"]:
            self.spark.sql(self._removal())
            reach("erase.after_delete")
        maintenance = TableMaintenance(
            self.spark,
            table,
            MaintenanceJob(
                staging_uri=self.job.staging_uri,
                catalog_name=self.job.catalog_name,
                namespace=self.job.namespace,
                slot_name=self.job.slot_name,
                compact_options=_EACH_FILE_WITH_DELETES,
            ),
            self.shares_folders,
        )
        maintenance.counts = self.counts
        maintenance.compact()
        self._rewrite_manifests()
        reach("erase.after_rewrite")
        self._remove_references()
        reach("erase.after_references")
        refuse_without_claim(self.spark, self.job)
        maintenance.expire(0)
        reach("erase.after_expire")
        self._remove_orphans(maintenance)
        self.is_busy = self.is_busy or maintenance.was_busy
        log.info("%s: %d rows erased.", table.name.target, self.counts["rows_erased"])

    def _removal(self) -> Sql:
        if self.statement is not None:
            return self.statement
        return Sql(f"DELETE FROM {self.table.name.sql} WHERE {self.matches}")  # noqa: S608 - quoted

    def _count(self) -> None:
        self.spark.catalog.refreshTable(self.table.name.sql)
        counted = {"rows_erased": self.matches, **self.counted}
        sums = [Sql(f"count_if({each}) AS {quote(name)}") for name, each in counted.items()]
        row = self.spark.table(self.table.name.sql).selectExpr(*sums).collect()[0]
        self.counts.update({name: int(row[name]) for name in counted})

    def _rewrite_manifests(self) -> None:
        """Write manifests without the entries of files that are gone.

        An entry has the smallest and the greatest value of each column of its file. Iceberg keeps the entry
        of a removed file as long as nothing else changes in its manifest.

        Source: https://iceberg.apache.org/spec/#manifests (status 2)
        """
        self.table.refresh()
        java = self.table.java
        manifests = elements(java.currentSnapshot().dataManifests(java.io()))
        is_one: Any = None
        predicates = class_named(self.spark._jvm, "java.util.function.Predicate")
        for manifest in manifests:
            if manifest.hasDeletedFiles():
                found = predicates.isEqual(manifest)
                is_one = found if is_one is None else getattr(is_one, "or")(found)
        if is_one is not None:
            rewrite = java.rewriteManifests().rewriteIf(is_one)
            self.table.change(rewrite.clusterBy(constant(self.spark._jvm)).commit)

    def _remove_references(self) -> None:
        """Remove the pipeline's tags and dead branches. Those of others stay, and the report names them."""
        self.table.refresh()
        tags, dead = [], []
        now = self.table.head_ms or 0
        for name, reference in entries(self.table.java.refs()):
            if name == MAIN:
                continue
            made_at = int(self.table.java.snapshot(reference.snapshotId()).timestampMillis())
            if reference.isTag() and name.startswith(TAG_PREFIX):
                tags.append(name)
            elif reference.isBranch() and name.startswith(BRANCH_PREFIX):
                if now - made_at > DEAD_AFTER / timedelta(milliseconds=1):
                    dead.append(name)
                else:
                    # It is an apply at work, or was left a moment ago.
                    self.is_busy = True
            else:
                self.remains.append(_of_reference(name, reference))
        if tags:
            change = self.table.java.manageSnapshots()
            for name in tags:
                change = change.removeTag(name)
            self.table.change(change.commit)
        self.table.remove_branches(dead)

    def _remove_orphans(self, maintenance: TableMaintenance) -> None:
        if self.shares_folders:
            self.remains.append(
                "files that no snapshot names were not looked for: another table lies in its folders, or"
                " cannot be loaded"
            )
            return
        maintenance.remove_orphans(LEAST_ORPHAN_S)
        found = sum(self._orphans(*each) for each in maintenance.folders())
        if found:
            self.remains.append(
                f"{found} files that no snapshot names, younger than a day: erase again after a day"
            )

    def _orphans(self, folder: str, by_prefix: bool) -> int:
        """How many files no snapshot names. The procedure itself does not look at those of the last day."""
        jvm = self.spark._jvm
        actions = class_named(jvm, "org.apache.iceberg.spark.actions.SparkActions")
        search = actions.get(self.spark._jsparkSession).deleteOrphanFiles(self.table.java)
        search = search.location(folder).olderThan(int(time.time() * 1000))
        search = search.usePrefixListing(by_prefix).deleteWith(nothing(jvm))
        return sum(1 for _ in elements(search.execute().orphanFileLocations()))


def refuse_without_claim(spark: SparkSession, job: ErasureJob) -> None:
    """Stop a job whose task has ended, or that another erasure followed.

    :raises PublishRefused: it has not the claim.
    """
    path = layout.erasure_claim_path(job.slot_name)
    if read_text(spark, layout.join(job.staging_uri, path)) != job.claim:
        raise PublishRefused(
            "The task that began this erasure has ended, or another one began.",
            slot=job.slot_name,
            advice="nothing if another run works; otherwise run the task again.",
        )


def _of_reference(name: str, reference: Any) -> str:
    age = reference.maxRefAgeMs()
    until = "it is removed" if age is None else f"it is {int(age) // 1000} seconds old"
    return f"{'tag' if reference.isTag() else 'branch'} {name} of somebody else, until {until}"


def _of_target(
    spark: SparkSession, by_name: Mapping[str, IcebergTable], asked: ErasedTable, job: ErasureJob
) -> _Erasure:
    table = by_name.get(asked.target)
    if table is None:
        raise TableRefused(
            f"There is no target of it in namespace {job.namespace}.",
            slot=job.slot_name,
            table=asked.table_name,
            advice="run the task again.",
        )
    types = _types(table)
    slice_ = Slice.of(asked.constants) if asked.constants else None
    own = dataclasses.replace(table.name, slice=slice_).own() or Sql("true")
    now = Sql(f"({own} AND {_any([_has_values(each, types) for each in asked.rows])})")
    if OLD_KEY_COLUMN not in types:
        counted = {"still_current": Sql(f"{now} AND {_is_live(types)}")}
        return _Erasure(spark=spark, table=table, job=job, matches=now, counted=counted)
    seen = table.properties if slice_ is None else slice_.seen(table.properties)
    log_rows = LogRows.of(seen)
    had = _any([_had_values(each, types, log_rows) for each in asked.rows])
    before = Sql(f"({own} AND {had})")
    moved = Sql(f"size({quote(OLD_KEY_COLUMN)}) > 0 AND {now} != {before}")
    matches = Sql(f"({now} OR {before})")
    return _Erasure(spark=spark, table=table, job=job, matches=matches, counted={"moved": moved})


def _is_live(types: Mapping[str, Sql]) -> Sql:
    """SQL: whether a row is one that the source has, as far as the table knows."""
    if staged.IS_CURRENT_COLUMN in types:
        return quote(staged.IS_CURRENT_COLUMN)
    return Sql(f"NOT ({quote(OP_COLUMN)} <=> '{staged.DELETE}')" if OP_COLUMN in types else "true")


def _types(table: IcebergTable) -> dict[str, Sql]:
    """Spark's types of a table's columns, by name."""
    return {
        each.name: spark_type(each.lake_type)
        for each in fields_of(table)
        if each.name == OLD_KEY_COLUMN or not is_nested(each.lake_type)
    }


def _has_values(row: Sequence[ErasedColumn], types: Mapping[str, Sql]) -> Sql:
    """SQL: whether a row of the table has the values."""
    return _all([_any([_has(name, each.text, types) for name in each.fields]) for each in row])


def _has(name: str, text: str, types: Mapping[str, Sql]) -> Sql:
    kind: Sql = types[name]
    return Sql(f"{quote(name)} = try_cast({literal(text)} AS {kind})")


def _had_values(
    row: Sequence[ErasedColumn], types: Mapping[str, Sql], log_rows: LogRows | None
) -> Sql:
    """SQL: whether a logged change says that its row had the values before.

    It names the columns as they were called in the lake then.
    """
    return _all([_had(each, types, log_rows) for each in row])


def _had(column: ErasedColumn, types: Mapping[str, Sql], log_rows: LogRows | None) -> Sql:
    names = {*column.fields, *({column.name} - types.keys())}
    if log_rows is not None:
        names |= {former for name in column.fields for former in log_rows.names(name)}
    old = quote(OLD_KEY_COLUMN)
    found = [_is(Sql(f"{old}[{literal(name)}]"), column, types) for name in sorted(names)]
    return _any(found)


def _names_values(row: Sequence[ErasedColumn], types: Mapping[str, Sql], by_source: bool) -> Sql:
    """SQL: whether a row of a side table is about a row with the values.

    :param by_source: whether its key has the names of the source; False: those of the lake.
    """
    return _all([_names_value(each, types, by_source) for each in row])


def _names_value(column: ErasedColumn, types: Mapping[str, Sql], by_source: bool) -> Sql:
    # A name of the source may be that of another column in the lake.
    names = (
        [column.name] if by_source else sorted({*column.fields, *({column.name} - types.keys())})
    )
    return _any([_is(Sql(f"{_KEY_OBJECT}[{literal(name)}]"), column, types) for name in names])


def _is(text: Sql, column: ErasedColumn, types: Mapping[str, Sql]) -> Sql:
    """SQL: whether a text stands for the value of a column."""
    kind: Sql = types[column.fields[0]]
    wanted = literal(column.text)
    return Sql(
        f"(coalesce(try_cast({text} AS {kind}) = try_cast({wanted} AS {kind}), false)"
        f" OR coalesce({text} = {wanted}, false))"
    )


def _any(conditions: Sequence[Sql]) -> Sql:
    return Sql(f"coalesce(({' OR '.join(conditions)}), false)")


def _all(conditions: Sequence[Sql]) -> Sql:
    return Sql(f"({' AND '.join(conditions)})")


def _about_rows(
    by_name: Mapping[str, IcebergTable],
    job: ErasureJob,
    about: Mapping[tuple[str, int], Sql],
    *,
    by_source: bool,
) -> Sql:
    """SQL: whether a row of a side table is about a row that is erased.

    :param by_source: see ``_names_values``.
    :param about: SQL by target and OID: whether the row is about this table.
    """
    found: list[Sql] = []
    for each in job.tables:
        of_table: Sql = about[each.key]
        types = _types(by_name[each.target])
        found += [
            Sql(f"({of_table} AND {_names_values(row, types, by_source)})") for row in each.rows
        ]
    return _any(found)


def _of_rejected(
    spark: SparkSession, by_name: Mapping[str, IcebergTable], job: ErasureJob
) -> _Erasure | None:
    table = by_name.get(REJECTED_TABLE)
    if table is None:
        return None
    # A row that an earlier version wrote has no slot. So it may be one of this slot.
    has_slot = any(each["name"] == "slot_name" for each in table.schema["fields"])
    slot = f"coalesce(slot_name = {literal(job.slot_name)}, true)" if has_slot else "true"
    about: dict[tuple[str, int], Sql] = {}
    for each in job.tables:
        name = Sql(f"concat(schema_name, '.', table_name) = {literal(each.table_name)}")
        about[each.key] = Sql(f"({slot} AND (relation_oid = {int(each.relation_oid)} OR {name}))")
    without_key = _any([Sql(f"({of_table} AND key = '{{}}')") for of_table in about.values()])
    return _Erasure(
        spark=spark,
        table=table,
        job=job,
        matches=_about_rows(by_name, job, about, by_source=True),
        counted={"without_key": without_key},
    )


def _of_quarantine(
    spark: SparkSession, by_name: Mapping[str, IcebergTable], job: ErasureJob
) -> _Erasure | None:
    table = by_name.get(QUARANTINE_TABLE)
    if table is None:
        return None
    slot = Sql(f"slot_name = {literal(job.slot_name)}")
    about: dict[tuple[str, int], Sql] = {}
    for each in job.tables:
        of_table = Sql(f"relation_oid = {int(each.relation_oid)}")
        if not each.constants:
            target = Sql(f"target = {literal(by_name[each.target].name.target)}")
            of_table = Sql(f"({of_table} OR {target})")
        about[each.key] = Sql(f"({slot} AND {of_table})")
    return _Erasure(
        spark=spark,
        table=table,
        job=job,
        matches=_about_rows(by_name, job, about, by_source=False),
        counted={},
    )


def _of_proofs(
    spark: SparkSession, by_name: Mapping[str, IcebergTable], job: ErasureJob
) -> _Erasure | None:
    """All keys that verifications of these tables kept go. Nobody needs them afterwards."""
    table = by_name.get(PROOFS_TABLE)
    if table is None:
        return None
    names = [literal(each.table_name) for each in job.tables]
    slot = Sql(f"slot_name = {literal(job.slot_name)}")
    of_tables = Sql(f"table_name IN ({', '.join(names)})")
    matches = Sql(f"coalesce({slot} AND {of_tables} AND keys IS NOT NULL, false)")
    statement = Sql(f"UPDATE {table.name.sql} SET keys = NULL WHERE {matches}")  # noqa: S608 - quoted
    return _Erasure(
        spark=spark, table=table, job=job, matches=matches, counted={}, statement=statement
    )
