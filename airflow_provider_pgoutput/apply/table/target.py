"""Which Iceberg table receives a table of the batch, and whether it can be a table of the lake.

``start.py`` looks at what the lake holds.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.table import constant_columns
from airflow_provider_pgoutput.apply.table.row_filter import row_filter_of
from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.changes import (
    METADATA_COLUMNS,
    OF_HISTORY,
    OP,
    ORIGINS,
    metadata,
)
from airflow_provider_pgoutput.batch.jobs import (
    CHANGE_LOG,
    HISTORY,
    UPSERT,
    TableOptions,
    WriteJob,
)
from airflow_provider_pgoutput.batch.shape import masked_columns
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    TableRefused,
)
from airflow_provider_pgoutput.masks import (
    masks_to_json,
)
from airflow_provider_pgoutput.slices import Slice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.manifest import Manifest, Table
    from airflow_provider_pgoutput.batch.table_version import TableVersion

OP_COLUMN = metadata(OP)
#: Change log only: names of the columns that were left out as unchanged TOAST.
UNCHANGED_COLUMN = "_pgoutput_unchanged"
#: Change log only: the key that an updated row had before, if the update moved it. Of a table without a key:
#: the whole row as it was before. Names and texts of columns.
OLD_KEY_COLUMN = "_pgoutput_old_key"
#: Change log only. The columns about the origin are NULL in what was first committed on the source itself.
_OF_LOGS = {
    **{metadata(name): kind for name, kind in ORIGINS},
    UNCHANGED_COLUMN: "list<string>",
    OLD_KEY_COLUMN: "map<string, string>",
}
#: Names of the pipeline's own columns, in any mode.
_NEVER_CONSTANT = frozenset({*METADATA_COLUMNS, *_OF_LOGS, *OF_HISTORY})
#: Names that Iceberg reserves: https://iceberg.apache.org/spec/#reserved-field-ids
_RESERVED = frozenset(
    {
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id"),
        *("_last_updated_sequence_number", "_change_type", "_change_ordinal"),
        "_commit_snapshot_id",
    }
)


@dataclass(frozen=True, slots=True)
class Target:
    """One table of the batch and the Iceberg table that receives it."""

    source: Table
    name: TableName
    options: TableOptions
    mode: str
    #: Lake types of the metadata columns that the table carries, by name.
    metadata: dict[str, str]
    #: Whether deleted rows are kept and marked.
    soft_delete: bool = False

    @property
    def constants(self) -> Mapping[str, str]:
        """The columns that have the same text in all rows, by name. They are among ``metadata``."""
        return self.options.constant_columns

    @property
    def slice(self) -> Slice | None:
        """Which rows of a shared table are those of ``source``; None: the table is not shared."""
        return self.name.slice

    @property
    def renamed(self) -> Table:
        """The batch's table, with the names that the user gave to its columns (``renamed_columns``)."""
        names = self.options.renamed_columns
        if not names:
            return self.source
        versions = (_renamed(version, names) for version in self.source.versions)
        return dataclasses.replace(self.source, versions=tuple(versions))

    @property
    def is_log(self) -> bool:
        """Whether every change is appended, and no row is ever updated."""
        return self.mode == CHANGE_LOG

    @property
    def is_history(self) -> bool:
        """Whether a changed row stays as an earlier version of it."""
        return self.mode == HISTORY

    @property
    def keeps_past(self) -> bool:
        """Whether it is a change log or a history. A copy does not replace what such a table holds."""
        return self.mode != UPSERT


def ignores_case(spark: SparkSession, catalog: str) -> bool:
    """Whether a catalog ignores the case of names. Hive's metastore and Glue do."""
    prefix = f"spark.sql.catalog.{catalog}"
    kind = spark.conf.get(f"{prefix}.type", "") or ""
    implementation = spark.conf.get(f"{prefix}.catalog-impl", "") or ""
    return kind.lower() in {"hive", "glue"} or implementation.endswith(
        (".HiveCatalog", ".GlueCatalog")
    )


def targets(job: WriteJob, manifest: Manifest, *, any_case: bool = False) -> list[Target]:
    """The tables of a batch, each with the Iceberg table that receives it.

    :param any_case: names that differ in case only are one table, see ``ignores_case``.
    :raises ConfigurationError: two tables have one target.
    """
    found = every_target(job, manifest)
    if clashing := shared(found, any_case=any_case):
        raise clashing[-1][1]
    return found


def every_target(job: WriteJob, manifest: Manifest) -> list[Target]:
    """As ``targets``, but two tables may have one target."""
    return [_target(job, table) for table in manifest.tables]


def shared(
    found: Sequence[Target],
    *,
    any_case: bool = False,
    target_of: Mapping[int, str] | None = None,
) -> list[tuple[Target, ConfigurationError]]:
    """The tables that share their target with another table, and the error of each.

    :param target_of: by OID: the target that a table has in the lake. Such a table keeps it, and only the
        others are returned.
    """

    def key(name: str) -> str:
        return name.lower() if any_case else name

    by_name: dict[str, list[Target]] = {}
    for target in found:
        by_name.setdefault(key(target.name.target), []).append(target)
    errors = []
    for several in (each for each in by_name.values() if not _are_slices(each)):
        for target in several:
            kept = (target_of or {}).get(target.source.relation_oid)
            if kept is not None and key(kept) == key(target.name.target):
                continue
            others = [each for each in several if each is not target and _clash(each, target)]
            if not others:
                continue
            error = ConfigurationError(
                f"Its target {target.name.target} is also that of {others[0].source.name}.",
                table=target.source.name,
                advice="name another target for one of them, or give each of them shared=True and"
                " constant_columns with texts of its own in table_options.",
            )
            errors.append((target, error))
    return errors


def _are_slices(several: Sequence[Target]) -> bool:
    """Whether tables with one target are one table, or slices of it with constants in the same columns."""
    found = {each.slice for each in several}
    named = {None if each is None else each.shared_by for each in found}
    return len(several) == 1 or (len(found) == len(several) and len(named) == 1)


def _clash(one: Target, other: Target) -> bool:
    """Whether two tables cannot be slices of one table."""
    if one.slice is None or other.slice is None:
        return True
    return one.slice == other.slice or one.slice.shared_by != other.slice.shared_by


def _target(job: WriteJob, table: Table) -> Target:
    options = job.options_of(table.schema_name, table.table_name)
    mode = options.mode or job.mode
    names = list(job.metadata_columns)
    if mode == CHANGE_LOG:
        names = list(METADATA_COLUMNS)
    elif mode == UPSERT and job.soft_delete and OP_COLUMN not in names:
        names.append(OP_COLUMN)
    metadata = {name: METADATA_COLUMNS[name] for name in names}
    if mode == CHANGE_LOG:
        metadata |= _OF_LOGS
    elif mode == HISTORY:
        metadata |= OF_HISTORY
    metadata |= dict.fromkeys(options.constant_columns, constant_columns.KIND)
    target_name = job.target_name(table.schema_name, table.table_name)
    slice_ = Slice.of(options.constant_columns) if options.shared else None
    earlier = None if table.earlier is None else (table.earlier, table.relation_oid)
    name = TableName(job.catalog_name, job.namespace, target_name, slice_, earlier)
    return Target(table, name, options, mode, metadata, job.soft_delete and mode == UPSERT)


def _renamed(version: TableVersion, names: Mapping[str, str]) -> TableVersion:
    return dataclasses.replace(
        version,
        columns=tuple(
            dataclasses.replace(each, name=names.get(each.name, each.name))
            for each in version.columns
        ),
        key_columns=tuple(names.get(each, each) for each in version.key_columns),
    )


def refuse_unfit(target: Target, manifest: Manifest) -> None:
    """Refuse a table that cannot be a table of the lake, whatever the lake holds.

    :raises TableRefused: a column has a reserved name, the target is one of the pipeline's own
        tables, or there are no columns that Iceberg could hold.
    """
    table = target.source
    _refuse_unfit_names(target)
    columns = {column.name for version in target.renamed.versions for column in version.columns}
    if clash := columns & {*target.metadata, *_RESERVED}:
        raise TableRefused(
            "The source has a column with the name of a metadata column.",
            slot=manifest.slot_name,
            table=table.name,
            column=min(clash),
            advice="rename the column or leave it out of the publication.",
        )
    if target.name.name in lake_names.OWN_TABLES:
        raise TableRefused(
            f"Its target {target.name.name} is a table of the pipeline's own.",
            slot=manifest.slot_name,
            table=table.name,
            advice="set its target option to another name, or leave it out of the publication.",
        )
    if not columns:
        raise TableRefused(
            "The table has no columns, and Iceberg has no such tables.",
            slot=manifest.slot_name,
            table=table.name,
            advice="leave it out of the publication.",
        )
    if target.is_history and not all(version.key_columns for version in table.versions):
        raise TableRefused(
            "The table has no key, so nothing tells which version follows which, and mode 'history' needs to"
            " know.",
            slot=manifest.slot_name,
            table=table.name,
            advice="give it a primary key on the source, or name columns that identify a row in key_columns"
            " of the stage task; then copy it (copy_tables). Or choose another mode for it in table_options.",
        )


def _refuse_unfit_names(target: Target) -> None:
    """Refuse names of columns that the user chose and that cannot stand beside the others.

    :raises TableRefused: two columns would have one name, or a constant column has a reserved name.
    """
    advice = "give it another name in table_options."
    for version in target.renamed.versions:
        names = [each.name for each in version.columns]
        twice = {name for name, count in Counter(names).items() if count > 1}
        if clash := sorted(twice | (target.constants.keys() & set(names))):
            raise TableRefused(
                "A column that table_options renames or adds has the name of another column of the table.",
                table=target.source.name,
                column=clash[0],
                advice=advice,
            )
    if clash := sorted(target.constants.keys() & (_NEVER_CONSTANT | _RESERVED)):
        raise TableRefused(
            "The name of the constant column is reserved.",
            table=target.source.name,
            column=clash[0],
            advice=advice,
        )


def properties(target: Target, manifest: Manifest) -> dict[str, str]:
    """The table properties that name the source."""
    oid = str(target.source.relation_oid)
    masks = masked_columns(target.source.versions[-1]) if target.source.versions else ()
    of_masks = {
        lake_names.PROPERTY_MASKS: masks_to_json(masks),
        lake_names.PROPERTY_MASKS_OID: oid,
    }
    return {
        **(target.slice.of_table if target.slice is not None else {}),
        **(of_masks if masks else {}),
        **row_filter_of(target.source),
        lake_names.PROPERTY_SOURCE_TABLE: target.source.name,
        lake_names.PROPERTY_RELATION_OID: oid,
        lake_names.PROPERTY_SLOT: manifest.slot_name,
        lake_names.PROPERTY_SYSTEM_IDENTIFIER: manifest.system_identifier,
        lake_names.PROPERTY_MODE: target.mode,
        lake_names.PROPERTY_SOFT_DELETE: str(target.soft_delete).lower(),
    }
