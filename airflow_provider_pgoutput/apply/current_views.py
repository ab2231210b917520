"""Makes and keeps views beside change logs: ``<table>_current`` shows the source's current rows.

The query is in ``table/current_rows.py``. A view is replaced if its query, a column, its slot or the name of
its source table changed. It is dropped if the current rows cannot be told any more. Nobody else's table or
view is ever replaced.

Source: https://iceberg.apache.org/docs/latest/spark-ddl/#views-in-spark and /view-spec/
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import uuid
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider_pgoutput.apply.iceberg.causes import sure_cause
from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, activate, java_class, said
from airflow_provider_pgoutput.apply.iceberg.removal import namespace_is_missing, remove_namespace
from airflow_provider_pgoutput.apply.iceberg.sql import Sql, literal
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.iceberg.views import View
from airflow_provider_pgoutput.apply.table.current_rows import current_rows, why_no_query
from airflow_provider_pgoutput.batch.checkpoint import PROPERTY_SLOT, PROPERTY_SOURCE_TABLE
from airflow_provider_pgoutput.batch.lake_types import lake_type_in
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import ConfigurationError, LakeUnavailable, TableRefused
from airflow_provider_pgoutput.log_rows import PROPERTY, VIEW_SUFFIX, LogRows
from airflow_provider_pgoutput.slices import views_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName
    from airflow_provider_pgoutput.apply.table.target import Target
    from airflow_provider_pgoutput.batch.jobs import WriteJob

log = logging.getLogger(__name__)

#: Properties of a view: the change log that it reads, and the digests of its query and of its columns.
_OF_LOG = "pgoutput.current-rows-of"
_QUERY = "pgoutput.query-digest"
_COLUMNS = "pgoutput.columns-digest"
_ATTEMPTS = 4


def view_name(target: Target) -> TableName:
    """The name of the view of a change log."""
    return dataclasses.replace(target.name, name=f"{target.name.name}{VIEW_SUFFIX}")


def _has_view(job: WriteJob, target: Target) -> bool:
    return job.current_views and target.is_log


def refuse_without_views(spark: SparkSession, job: WriteJob, targets: Iterable[Target]) -> None:
    """Try, before anything is written, whether the catalog keeps views. One that has a view of ours does.

    :raises ConfigurationError: it does not. What was made for the try is removed.
    :raises LakeUnavailable: it did not answer.
    """
    logs = [each for each in targets if _has_view(job, each)]
    if not logs or any(View.load(spark, view_name(each)) is not None for each in logs):
        return
    name = dataclasses.replace(logs[0].name, name=f"pgoutput_look_{uuid.uuid4().hex[:8]}")
    makes_namespace = namespace_is_missing(spark, name)
    try:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.namespace_sql}")
        spark.sql(f"CREATE VIEW {name.sql} AS SELECT 1 AS c")
        kept = View.load(spark, name) is not None
        spark.sql(f"DROP VIEW IF EXISTS {name.sql}")
    except JAVA_ERRORS as error:
        if named := sure_cause(error, name.target):
            raise named from error
        if not java_class(error).endswith(_NO_VIEWS):
            raise LakeUnavailable(
                f"The catalog did not make a view: {java_class(error)}.", table=name.target
            ) from error
        kept = False
    if kept:
        return
    if makes_namespace:
        remove_namespace(spark, name)
    raise ConfigurationError(
        "The catalog keeps no views, and current_views asks for them.",
        table=view_name(logs[0]).target,
        advice="leave current_views out, or use a catalog that keeps Iceberg's views: REST, Hive, or JDBC"
        " with jdbc.schema-version V1. Nothing was written to any table.",
    )


#: What a catalog without views answers.
_NO_VIEWS = ("UnsupportedOperationException", "AnalysisException")


def refuse_taken(
    spark: SparkSession, job: WriteJob, target: Target, others: Sequence[Target]
) -> None:
    """Refuse a change log if the name of its view is taken. Example: a target is named ``orders_current``.

    :param others: all tables of the batch.
    :raises TableRefused: a table has the name. Or a view has it that this pipeline did not make, or that
        somebody changed.
    """
    if not _has_view(job, target):
        return
    name = view_name(target)
    owner = next((each for each in others if each.name.target == name.target), None)
    if owner is not None or IcebergTable.load(spark, name) is not None:
        what = "a table" if owner is None else f"the target of {owner.source.name}"
        raise TableRefused(
            f"The view of this change log would be {name.target}, and {what} has that name.",
            table=target.name.target,
            advice="give the change log another target (the option target of the table), or rename the other"
            " table.",
        )
    view = View.load(spark, name)
    if view is not None:
        _refuse_others(view, target)


def keep_views(spark: SparkSession, job: WriteJob, targets: Iterable[Target], slot: str) -> None:
    """Bring the views of change logs up to date: make them, replace them, or drop them.

    :param targets: tables that have the batch.
    :raises TableRefused: this pipeline did not make the view, or somebody changed it.
    :raises LakeUnavailable: the catalog did not make a view, or did not answer.
    """
    logs = {each.name.target: each for each in targets if _has_view(job, each)}
    for target in logs.values():
        _keep_view(spark, target, slot)


def _keep_view(spark: SparkSession, target: Target, slot: str) -> None:
    name = view_name(target)
    for attempt in range(1, _ATTEMPTS + 1):
        # Another pipeline may have added its slice to a shared log since the last look. So look once more
        # after a view was made.
        table = IcebergTable.load(spark, target.name)
        if table is None:
            return
        columns = {each["name"]: lake_type_in(each["type"]) for each in table.schema["fields"]}
        unclear = _unclear(table, columns)
        if unclear is not None:
            _end_view(spark, target, unclear)
            return
        query = _query(table, columns)
        properties = {
            _OF_LOG: target.name.target,
            _QUERY: _digest(query),
            _COLUMNS: _digest(repr(columns)),
        }
        of = "several tables of PostgreSQL"
        if target.slice is None:
            properties |= {PROPERTY_SLOT: slot, PROPERTY_SOURCE_TABLE: target.source.name}
            of = f"PostgreSQL table {target.source.name}"
        pairs = ", ".join(f"{literal(key)} = {literal(text)}" for key, text in properties.items())
        comment = literal(f"The current rows of {of}")
        view = View.load(spark, name)
        if view is not None:
            _refuse_others(view, target)
            if properties.items() <= view.properties.items():
                return
        reach("view.before_create")
        create = "CREATE VIEW" if view is None else "CREATE OR REPLACE VIEW"
        try:
            activate(spark)
            spark.sql(f"{create} {name.sql} COMMENT {comment} TBLPROPERTIES ({pairs}) AS {query}")
        except JAVA_ERRORS as error:
            if named := sure_cause(error, name.target):
                raise named from error
            if attempt == _ATTEMPTS:
                raise LakeUnavailable(
                    f"The view was not made: {said(error)}", table=name.target
                ) from error
            log.info("%s was not made, trying again: %s", name.target, java_class(error))
        else:
            log.info("%s %s.", "Made" if view is None else "Replaced", name.target)


class _Unclear(NamedTuple):
    """Why the current rows of a change log cannot be told."""

    #: The ``schema.table`` of the source.
    source_table: str
    why: str


def _slices(table: IcebergTable) -> Iterator[tuple[TableName, Mapping[str, str]]]:
    """The slices of a shared change log that have batches, and their properties. Or the log, as a whole."""
    for slice_, seen in views_of(table.whole_properties):
        if slice_ is None or PROPERTY in seen:
            yield dataclasses.replace(table.name, slice=slice_), seen


def _unclear(table: IcebergTable, columns: Mapping[str, str]) -> _Unclear | None:
    """Why the current rows of a change log, or of one of its slices, cannot be told; None: they can."""
    for _, seen in _slices(table):
        why_not = why_no_query(LogRows.of(seen), columns)
        if why_not is not None:
            return _Unclear(seen.get(PROPERTY_SOURCE_TABLE, table.name.target), why_not)
    return None


def _query(table: IcebergTable, columns: Mapping[str, str]) -> Sql:
    """The query of a change log's current rows.

    The slices of a shared log usually say the same of their key. Then one query reads them all. Else there is
    a query for each group of slices that say the same.
    """
    groups: dict[str, list[TableName]] = {}
    for name, seen in _slices(table):
        groups.setdefault(seen[PROPERTY], []).append(name)
    queries = [
        current_rows(
            table.name.sql if len(groups) == 1 else _entries(names),
            columns,
            LogRows.from_json(text),
            [] if names[0].slice is None else [name for name, _ in names[0].slice.constants],
        )
        for text, names in groups.items()
    ]
    return (
        queries[0]
        if len(queries) == 1
        else Sql(" UNION ALL ".join(f"({each})" for each in queries))
    )


def _entries(slices: Sequence[TableName]) -> Sql:
    """A query in parentheses: the entries of some slices of a change log."""
    of_slices = " OR ".join(f"({each.own()})" for each in slices)
    return Sql(f"(SELECT * FROM {slices[0].sql} WHERE {of_slices})")  # noqa: S608 - quoted


def _end_view(spark: SparkSession, target: Target, unclear: _Unclear) -> None:
    """Drop the view of a change log whose current rows cannot be told."""
    name = view_name(target)
    view = View.load(spark, name)
    if view is None:
        log.info("%s gets no view of its current rows. %s", target.name.target, unclear.why)
        return
    _refuse_others(view, target)
    spark.sql(Sql(f"DROP VIEW IF EXISTS {name.sql}"))
    log.warning(
        "The view %s is dropped. %s If a copy of the table does not have this cause, it brings the view back"
        " (copy_tables=[%r]).",
        name.target,
        unclear.why,
        unclear.source_table,
    )


def _refuse_others(view: View, target: Target) -> None:
    """Refuse a view that somebody else made or changed.

    :raises TableRefused: this pipeline did not make the view, or somebody changed it.
    """
    properties = view.properties
    is_ours = properties.get(_OF_LOG) == target.name.target
    if not is_ours or properties.get(_QUERY) != _digest(view.query):
        raise TableRefused(
            f"The view {view.name.target}"
            + (" was changed by somebody else." if is_ours else " is not one of this pipeline."),
            table=target.name.target,
            advice="drop or rename that view (ALTER VIEW ... RENAME TO ...), name another target for the"
            " table (its option target), or leave current_views out.",
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.strip().encode()).hexdigest()
