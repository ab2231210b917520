"""Creates target tables and changes their schema to the batch's columns, before rows are written.

Columns are added, renamed and widened. They are dropped only if the user asked for it. A schema change is a
commit of its own: it moves no branch, and after a kill the next run finds the changed schema. Older rows lack
a value in a new column. The same commit notes that in a property, by the field's id. The note stays until a
batch that knows the column is published.

Source: https://iceberg.apache.org/docs/latest/evolution/ and /spec/#default-values.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_pgoutput.apply.iceberg import column_properties
from airflow_provider_pgoutput.apply.iceberg.jvm import (
    JAVA_ERRORS,
    class_named,
    elements,
    java_class,
    java_exception,
    said,
    schema_as_json,
    texts,
)
from airflow_provider_pgoutput.apply.iceberg.removal import remove_table
from airflow_provider_pgoutput.apply.iceberg.sql import Sql, TableName, literal, quote
from airflow_provider_pgoutput.apply.iceberg.table import FILL_PREFIX, IcebergTable
from airflow_provider_pgoutput.apply.iceberg.views import refuse_view
from airflow_provider_pgoutput.apply.schema import uuid_tables
from airflow_provider_pgoutput.apply.schema.column_map import (
    before_adoption,
    columns_property,
    fields_of_others,
)
from airflow_provider_pgoutput.apply.schema.defaults import missing_value
from airflow_provider_pgoutput.apply.schema.spark_types import (
    UUID,
    holds_uuid,
    spark_type,
)
from airflow_provider_pgoutput.batch.checkpoint import (
    PROPERTY_COLUMNS,
    PROPERTY_SLOT,
    recorded_columns,
)
from airflow_provider_pgoutput.batch.lake_types import (
    FLOATS,
    is_nested,
    lake_type_in,
    list_element,
    struct_fields,
)
from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeUnavailable,
    PublishRefused,
    TableRefused,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.schema.column_layout import Layout

log = logging.getLogger(__name__)

_ATTEMPTS = 5
#: Exceptions by which Iceberg refuses a change that does not fit the rest of the table.
_REFUSALS = ("ValidationException", "IllegalArgumentException")
#: Exceptions by which a catalog refuses to make a table, for example because of its format version.
_REFUSALS_OF_CATALOGS = ("BadRequestException", "UnsupportedOperationException")
_FILE_FORMAT = "write.format.default"
#: The property by which a table is made in one of Iceberg's format versions.
FORMAT_VERSION = "format-version"
#: Notes of new columns. ``lacking``: older rows lack the value. ``shown <snapshot>``: Iceberg shows the
#: default in rows that were in this snapshot of main, and in no others.
_LACKING, _SHOWN = "lacking", "shown "
#: ``IF NOT EXISTS`` first looks, then creates. Two tables that are prepared at the same time would both
#: create the namespace.
_NAMESPACE_LOCK = threading.Lock()
#: Each commit leaves a metadata file. Iceberg lists the last hundred; older files are removed.
#: https://iceberg.apache.org/docs/latest/maintenance/#remove-old-metadata-files
_FEW_METADATA_FILES = {"write.metadata.delete-after-commit.enabled": "true"}


def create_table(
    spark: SparkSession,
    name: TableName,
    columns: Sequence[tuple[str, str, bool]],
    *,
    comment: str,
    properties: Mapping[str, str],
    partitioned_by: Sequence[Sql] = (),
    log_level: int = logging.INFO,
) -> IcebergTable:
    """Create a table, and its namespace, unless they exist.

    :param columns: name, lake type and whether it is required, of each column.
    :param properties: of the table; they win over the defaults here.
    :param partitioned_by: transforms in Spark's notation.
    :param log_level: the level of the line that says that the table was created.
    :raises ConfigurationError: columns, partitions and properties do not fit together, or the catalog has no
        such format version. There is no such table then.
    :raises TableRefused: a view has the name.
    """
    with _NAMESPACE_LOCK:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name.namespace_sql}")
    fields = ", ".join(
        f"{quote(column)} {spark_type(kind)}{' NOT NULL' if required else ''}"
        for column, kind, required in columns
    )
    parts = [f"CREATE TABLE IF NOT EXISTS {name.sql} ({fields}) USING iceberg"]
    if partitioned_by:
        parts.append(f"PARTITIONED BY ({', '.join(partitioned_by)})")
    location = _safe_location(spark, name)
    if location:
        parts.append(f"LOCATION {literal(location)}")
    parts.append(f"COMMENT {literal(comment)}")
    properties = {**_FEW_METADATA_FILES, **properties}
    if name.slice is not None:
        properties = name.slice.stored(properties)
    pairs = ", ".join(f"{literal(key)} = {literal(properties[key])}" for key in properties)
    parts.append(f"TBLPROPERTIES ({pairs})")
    try:
        if any(holds_uuid(kind) for _, kind, _ in columns):
            with_comment = {**properties, "comment": comment}
            uuid_tables.create(spark, name, Sql(" ".join(parts)), columns, with_comment, location)
        else:
            spark.sql(" ".join(parts))
    except JAVA_ERRORS as error:
        refusals = (*_REFUSALS, *_REFUSALS_OF_CATALOGS, "AnalysisException")
        if not java_class(error).endswith(refusals):
            raise
        raise ConfigurationError(
            f"Iceberg or the catalog does not make such a table: {said(error)}",
            table=name.target,
            advice="correct format_version, or partitioned_by or properties of the table's options, or leave"
            " the column that it names out of the publication.",
        ) from error
    created = IcebergTable.load(spark, name)
    if created is None:
        refuse_view(spark, name, any_case=True)
        raise LakeUnavailable("The table is not there after its creation.", table=name.target)
    _refuse_older_format(spark, created, properties)
    log.log(log_level, "Created %s.", name.target)
    return created


def _refuse_older_format(
    spark: SparkSession, created: IcebergTable, properties: Mapping[str, str]
) -> None:
    """Refuse a catalog that answers yes and makes a table of an older format version than was asked for.

    The table is removed. Example: with a batch in it, a later ``format_version=3`` could not make it anew.

    :raises ConfigurationError: the catalog did so.
    """
    wanted, name = int(properties.get(FORMAT_VERSION, 0)), created.name
    if created.format_version >= wanted:
        return
    left = "No table was left" if remove_table(spark, name) else "The table is still there"
    raise ConfigurationError(
        f"The catalog made a table in Iceberg's format version {created.format_version} and was asked for"
        f" version {wanted}.",
        table=name.target,
        advice=f"set format_version to {created.format_version}, or use a catalog that has version"
        f" {wanted}. {left}.",
    )


def _safe_location(spark: SparkSession, name: TableName) -> str | None:
    """A location for a table whose name does not fit into a path; None: the default location does."""
    warehouse = spark.conf.get(f"spark.sql.catalog.{name.catalog}.warehouse", "")
    if name.fits_a_path or not warehouse:
        return None
    digest = hashlib.sha256(name.name.encode()).hexdigest()[:16]
    return f"{warehouse.rstrip('/')}/{name.namespace.replace('.', '/')}/table-{digest}"


class Evolved(NamedTuple):
    """What is left to do for rows that are older than a new column."""

    #: Names of the columns whose values these rows lack.
    lacking: frozenset[str] = frozenset()
    #: Names of the properties that note this. They are removed when it is done.
    notes: frozenset[str] = frozenset()


def evolve(
    spark: SparkSession,
    table: IcebergTable,
    columns: Sequence[Column],
    key: Sequence[str],
    properties: Mapping[str, str],
    metadata: Mapping[str, str],
    layout: Layout | None = None,
) -> Evolved:
    """Rename, add and widen columns, set identifier fields and properties, as far as the table lacks them.

    :param columns: with the types that the target shall have.
    :param key: names of the key columns. All other required columns become optional.
    :param metadata: lake types of the metadata columns that the target shall have, by name.
    :param layout: which fields to rename or drop, and which field is which column of the source.
    :raises PublishRefused: main, the columns or the owner changed since the layout was made.
    :raises TableRefused: somebody else kept changing the schema at the same time.
    """
    wanted = [*columns, *(Column(name, 0, -1, "", kind) for name, kind in metadata.items())]
    if _is_evolved(table, wanted, key, properties, layout):
        return _older_rows(table, columns)
    before = _seen(table)
    for _ in range(_ATTEMPTS):
        try:
            _evolve_once(spark, table, wanted, key, properties, layout)
        except JAVA_ERRORS as error:
            if java_class(error).endswith(_REFUSALS):
                log.error("%s: %s", table.name.target, java_exception(error).getMessage())
                raise TableRefused(
                    f"Iceberg refuses how its columns are to be changed: {java_class(error)}.",
                    table=table.name.target,
                    advice="see the log of the Spark job for Iceberg's own words; a sort order or a partition"
                    " that a user gave the table may stand in the way, or the name of a partition (a_bucket"
                    " of bucket(4, a)): then drop the table and copy it again, partitioned otherwise.",
                ) from error
            if not java_class(error).endswith("CommitFailedException"):
                raise
            table.refresh()
            if layout is not None and _seen(table) != before:
                raise PublishRefused(
                    "Main moved, or its columns or its owner changed, while they were changed here.",
                    table=table.name.target,
                ) from error
        else:
            return _older_rows(table, columns)
    raise TableRefused(
        "The schema is being changed by somebody else.",
        table=table.name.target,
        advice="try again.",
    )


def needs_nothing(
    table: IcebergTable,
    columns: Sequence[Column],
    key: Sequence[str],
    properties: Mapping[str, str],
    metadata: Mapping[str, str],
    layout: Layout,
) -> bool:
    """Whether ``evolve`` would change nothing, and no row is older than a column; see there."""
    wanted = [*columns, *(Column(name, 0, -1, "", kind) for name, kind in metadata.items())]
    is_evolved = _is_evolved(table, wanted, key, properties, layout)
    return is_evolved and _older_rows(table, columns) == Evolved()


def _is_evolved(
    table: IcebergTable,
    columns: Sequence[Column],
    key: Sequence[str],
    properties: Mapping[str, str],
    layout: Layout | None,
) -> bool:
    """Whether ``_evolve_once`` would change nothing. Most batches change nothing, and this costs less."""
    schema = table.schema
    held = {each["name"]: each for each in schema["fields"]}
    if layout is not None and (layout.dropped or layout.renamed):
        return False
    if table.name.earlier is not None:
        # ``table.properties`` shows other numbers than those that the table still has.
        return False
    for column in columns:
        if column.name not in held or lake_type_in(held[column.name]["type"]) != column.lake_type:
            return False
    if any(field["required"] and name not in key for name, field in held.items()):
        return False
    ids = {name: int(field["id"]) for name, field in held.items()}
    kinds = {name: lake_type_in(f["type"]) for name, f in held.items() if f["required"]}
    identifiers = {ids[name] for name in _identifier_fields(kinds, key)}
    if identifiers != set(schema.get("identifier-field-ids", ())):
        return False
    wanted = {**properties, **(_numbers(ids, layout, table) if layout is not None else {})}
    found = table.properties
    return all(found.get(name) == text for name, text in wanted.items())


def _seen(table: IcebergTable) -> tuple[object, ...]:
    """What the changes depend on: main's head, which field is which column, the owner, the other slices."""
    properties = table.properties
    own = table.head, properties.get(PROPERTY_COLUMNS), properties.get(PROPERTY_SLOT)
    return *own, fields_of_others(table)


def _older_rows(table: IcebergTable, columns: Sequence[Column]) -> Evolved:
    """The notes in the table about these columns."""
    properties, ours = table.properties, {each.name for each in columns}
    lacking, notes = set(), set()
    for each in table.schema["fields"]:
        name, note = each["name"], f"{FILL_PREFIX}{each['id']}"
        if name in ours and note in properties:
            notes.add(note)
            # A batch without the column may have written rows since. Iceberg shows no default in those.
            if properties[note] != f"{_SHOWN}{table.head}":
                lacking.add(name)
    return Evolved(frozenset(lacking), frozenset(notes))


def _evolve_once(
    spark: SparkSession,
    table: IcebergTable,
    columns: Sequence[Column],
    key: Sequence[str],
    properties: Mapping[str, str],
    layout: Layout | None,
) -> None:
    """Make all changes in one commit. If there is nothing to change, nothing is committed."""
    transaction = table.java.newTransaction()
    renamed = layout is not None and _rename(spark, transaction, table, layout)
    before = transaction.table().schema()
    change, changed = transaction.updateSchema().caseSensitive(True), renamed
    present = {str(field.name()): field for field in elements(before.columns())}
    fields = schema_as_json(spark._jvm, before)["fields"]
    kinds = {each["name"]: lake_type_in(each["type"]) for each in fields}
    wanted_properties: dict[str, str | None] = {**properties}
    noted: dict[str, str] = {}
    for column in columns:
        kind = _java_type(spark, column.lake_type)
        field = present.get(column.name)
        if field is None:
            default = _default(spark, table, column, kind)
            change, changed = change.addColumn(None, column.name, kind, None, default), True
            wanted_properties |= uuid_tables.without_bounds(column.name, column.lake_type)
            if column.missing_value is not None:
                # In the same commit as the column: if this run is killed now, the next run finds the note.
                noted[column.name] = _LACKING if default is None else f"{_SHOWN}{table.head}"
        elif field.type().isPrimitiveType():
            if column.missing_value is not None and _is_new_to_slice(table, column, layout):
                noted[column.name] = _LACKING
            if not field.type().equals(kind):
                change, changed = change.updateColumn(column.name, kind), True
        elif kinds[column.name] != column.lake_type:
            change, changed = (
                _grow(spark, change, column.name, field.type(), column.lake_type),
                True,
            )
            wanted_properties |= uuid_tables.without_bounds(column.name, column.lake_type)
    for name, field in present.items():
        if field.isRequired() and name not in key:
            change, changed = change.makeColumnOptional(name), True
    identifiers = {str(name) for name in elements(before.identifierFieldNames())}
    required = {name: kinds[name] for name, f in present.items() if f.isRequired()}
    wanted_identifiers = _identifier_fields(required, key)
    if identifiers != wanted_identifiers:
        names = _java_list(spark, sorted(wanted_identifiers))
        change, changed = change.setIdentifierFields(names), True
    # Even if it changes nothing: the transaction refuses a second operation before this one is committed.
    change.commit()
    after = transaction.table().schema()
    ids = {str(each.name()): int(each.fieldId()) for each in elements(after.columns())}
    followed = column_properties.moved(table.properties, table.java.schema(), after)
    wanted_properties = followed | wanted_properties
    wanted_properties |= {f"{FILL_PREFIX}{ids[name]}": note for name, note in noted.items()}
    if layout is not None:
        wanted_properties |= _numbers(ids, layout, table)
    changed = _set_properties(spark, table, transaction, wanted_properties) or changed
    if changed:
        transaction.commitTransaction()
        log.info("Changed schema or properties of %s.", table.name.target)
    table.refresh()


def _is_new_to_slice(table: IcebergTable, column: Column, layout: Layout | None) -> bool:
    """Whether a column of a shared table comes to a slice that has rows, after another slice brought it."""
    if table.name.slice is None or layout is None:
        return False
    known = recorded_columns(table.properties, layout.table.relation_oid).get("fields", {})
    return bool(known) and str(column.attribute_number) not in known


def _grow(spark: SparkSession, change: Any, name: str, held: Any, wanted: str) -> Any:
    """Add the fields that the structs of a column lack: all that ``widens`` allows, except for wider numbers.

    :param name: Iceberg's name of the column, or of a part of it.
    :param held: its type.
    :param wanted: the lake type that it shall have.
    """
    if held.isListType():
        element = held.asListType().elementType()
        return _grow(spark, change, f"{name}.element", element, list_element(wanted) or "")
    if not held.isStructType():
        return change
    present = {str(each.name()): each.type() for each in elements(held.asStructType().fields())}
    for part, kind in struct_fields(wanted) or ():
        if part in present:
            change = _grow(spark, change, f"{name}.{part}", present[part], kind)
        else:
            change = change.addColumn(name, part, _java_type(spark, kind))
    return change


def _rename(spark: SparkSession, transaction: Any, table: IcebergTable, layout: Layout) -> bool:
    """Rename and drop fields; return whether there were any."""
    change, changed = transaction.updateSchema().caseSensitive(True), False
    if layout.dropped or layout.renamed:
        # Iceberg moves identifier fields by name, one rename after the other. When two columns swap names,
        # one would lose its mark. So all marks are removed here, and set again with the other changes.
        change = change.setIdentifierFields(_java_list(spark, []))
    for found in elements(table.java.schema().columns()):
        field_id, name = int(found.fieldId()), str(found.name())
        wanted = layout.renamed.get(field_id, name)
        if field_id in layout.dropped:
            change, changed = change.deleteColumn(name), True
            log.info("%s: dropping column %s.", table.name.target, name)
        elif wanted != name:
            change, changed = change.renameColumn(name, wanted), True
            log.info("%s: renaming column %s to %s.", table.name.target, name, wanted)
    change.commit()
    return changed


def _numbers(ids: Mapping[str, int], layout: Layout, table: IcebergTable) -> dict[str, str]:
    """The property that says which field is which column of the source."""
    fields = {number: ids[name] for number, name in layout.numbered.items() if name in ids}
    if not fields:
        return {}
    of_earlier_table = [ids[name] for name in layout.of_earlier_table if name in ids]
    unnumbered = [ids[name] for name in layout.unnumbered if name in ids]
    oid = layout.table.relation_oid
    text = columns_property(
        oid,
        fields,
        layout.unsent,
        layout.retiring_batch,
        of_earlier_table,
        unnumbered,
        before_adoption(table),
    )
    return {PROPERTY_COLUMNS: text}


def _set_properties(
    spark: SparkSession,
    table: IcebergTable,
    transaction: Any,
    wanted: Mapping[str, str | None],
) -> bool:
    """Set properties, or remove them (None), in ``transaction``; return whether one of them changed."""
    # Iceberg changed some of them together with the columns.
    found = texts(spark._jvm, transaction.table().properties())
    wanted = {table.stored_name(name): value for name, value in wanted.items()}
    stale = sorted(name for name in wanted if found.get(name) != wanted[name])
    if not stale:
        return False
    update = transaction.updateProperties()
    for name in stale:
        value = wanted[name]
        update = update.remove(name) if value is None else update.set(name, value)
    column_properties.commit(update, table.name.target)
    return True


def _identifier_fields(required: Mapping[str, str], key: Sequence[str]) -> set[str]:
    """The key columns, if the specification allows all of them as identifier fields; else none.

    :param required: types of the columns that are never NULL, by name.
    """
    usable = all(
        name in required and required[name] not in FLOATS and not is_nested(required[name])
        for name in key
    )
    return set(key) if usable else set()


def _default(spark: SparkSession, table: IcebergTable, column: Column, kind: Any) -> Any:
    """The literal that Iceberg shows in older rows of a new column; null: there is none, see ``FILL_PREFIX``.

    Tables before format version 3 have no defaults, and lists never have one. Iceberg's metadata is JSON. It
    has no infinity and no NaN, so such a default could be written but never read again. Iceberg's reader of
    ORC ignores defaults.
    """
    if column.missing_value is None or not table.can_have_defaults or not kind.isPrimitiveType():
        return None
    if table.name.slice is not None:
        # The older rows of other slices show other values.
        return None
    if column.lake_type in FLOATS and not math.isfinite(float(column.missing_value)):
        return None
    if table.properties.get(_FILE_FORMAT, "parquet").lower() == "orc" or _has_orc(spark, table):
        return None
    jvm: Any = spark._jvm
    expressions = class_named(jvm, "org.apache.iceberg.expressions.Expressions")
    converted = spark.range(1).selectExpr(f"{missing_value(column, table.name.target)} AS v")
    java_value = converted._jdf.head().get(0)
    if column.lake_type == UUID:
        return expressions.lit(java_value).to(kind)
    converter = class_named(jvm, "org.apache.iceberg.spark.SparkValueConverter")
    return expressions.lit(converter.convert(kind, java_value)).to(kind)


def _has_orc(spark: SparkSession, table: IcebergTable) -> bool:
    """Whether files of main are in ORC, whatever format new files get."""
    files = spark.table(f"{table.name.sql}.files")
    return not files.where("file_format = 'ORC'").isEmpty()


def _java_type(spark: SparkSession, lake_type: str) -> Any:
    return uuid_tables.java_schema(spark, [("v", lake_type, False)]).columns().get(0).type()


def _java_list(spark: SparkSession, values: Sequence[str]) -> Any:
    found = class_named(spark._jvm, "java.util.ArrayList")()
    for value in values:
        found.add(value)
    return found
