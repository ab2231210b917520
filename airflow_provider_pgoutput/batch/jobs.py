"""What a Spark job is asked to do: the file that an operator writes and the Spark application reads.

There are four kinds: ``ApplyJob`` applies one batch, ``ReplayJob`` applies batches of the past again,
``MaintenanceJob`` changes no row, and ``ErasureJob`` takes rows of some keys out of all files. A job names
the lake and the options. No credential is in it: Spark gets those from its own configuration.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_pgoutput.batch.answers import FAIL, check_answer
from airflow_provider_pgoutput.batch.changes import METADATA_COLUMNS, OUR_COLUMNS
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

UPSERT = "upsert"
CHANGE_LOG = "change_log"
HISTORY = "history"

MERGE_ON_READ = "merge-on-read"
COPY_ON_WRITE = "copy-on-write"
#: Those that a table may get. Version 1 has no row-level deletes.
#: https://iceberg.apache.org/spec/#format-versioning
FORMAT_VERSIONS = (2, 3)

_DAY_S = 24 * 60 * 60
#: Iceberg refuses less, because files of a writer that has not committed yet would look like orphans.
LEAST_ORPHAN_S = _DAY_S

_COLUMN = r"(?:[^\W\d]\w*|`(?:[^`]|``)+`)(?:\.(?:[^\W\d]\w*|`(?:[^`]|``)+`))*"
#: The text is put into an SQL statement as it is. So only these forms are allowed.
#: https://iceberg.apache.org/docs/latest/spark-ddl/#partitioned-by
_PARTITION_TRANSFORM = re.compile(
    rf"\s*(?:{_COLUMN}|(?:years?|months?|days?|date|hours?|date_hour)\(\s*{_COLUMN}\s*\)"
    rf"|(?:bucket|truncate)\(\s*(?:\d{{1,9}}\s*,\s*{_COLUMN}|{_COLUMN}\s*,\s*\d{{1,9}})\s*\))\s*",
    re.IGNORECASE,
)


#: A group of a pattern in the name of a target: ``{1}``, ``{region}``.
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def check_modes(modes: AbstractSet[str], *, soft_delete: bool) -> None:
    """Check the modes of a job and of its tables.

    :raises ConfigurationError: there is no such mode, or ``soft_delete`` concerns no table.
    """
    if unknown := modes - {UPSERT, CHANGE_LOG, HISTORY}:
        raise ConfigurationError(
            f"Unknown mode {sorted(unknown)}.",
            advice=f"use {UPSERT!r}, {CHANGE_LOG!r} or {HISTORY!r}.",
        )
    if soft_delete and modes == {HISTORY}:
        raise ConfigurationError(
            "soft_delete is an option of tables in mode 'upsert', and all tables are in mode 'history'.",
            advice="leave it out: a history keeps the last version of a deleted row.",
        )


def is_partition_transform(text: str) -> bool:
    """Whether a text is a partition transform in Spark's notation and nothing else."""
    return bool(_PARTITION_TRANSFORM.fullmatch(text))


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the user says about one table; the key of the mapping is the source's ``schema.table``."""

    #: Name of the Iceberg table in the namespace; default: see ``WriteJob.target_name``.
    target: str | None = None
    #: ``upsert``, ``change_log`` or ``history``; None: that of the job.
    mode: str | None = None
    #: Iceberg table properties, over the defaults.
    properties: dict[str, str] = field(default_factory=dict)
    #: Partition transforms in Spark's notation: ``["days(created_at)", "bucket(16, id)"]``.
    partitioned_by: tuple[str, ...] = ()
    #: None: that of the job.
    keep_retyped_columns: bool | None = None
    #: Names that columns get in the target, by the names that they have at the source now.
    renamed_columns: dict[str, str] = field(default_factory=dict)
    #: Columns of the target that the source does not have, and the text that all rows have in them.
    constant_columns: dict[str, str] = field(default_factory=dict)
    #: Whether other tables, perhaps of other slots, are written to the same target, each with constants of
    #: its own; see ``slices.py``.
    shared: bool = False

    def check(self, table: str) -> None:
        """Refuse names of columns that no target can have.

        :param table: ``schema.table``.
        :raises ConfigurationError: it says which.
        """
        given = [*self.renamed_columns.values(), *self.constant_columns]
        twice = {name for name, count in Counter(given).items() if count > 1}
        if "" in given or "" in self.renamed_columns:
            raise ConfigurationError(
                "table_options gives a column an empty name.", table=table, advice="give it a name."
            )
        if ours := [each for each in given if each.lower().startswith(OUR_COLUMNS)]:
            raise ConfigurationError(
                f"table_options gives a column the name {min(ours)!r}.",
                table=table,
                advice=f"give it another name: columns of the pipeline begin with {OUR_COLUMNS!r}.",
            )
        if self.shared and not self.constant_columns:
            raise ConfigurationError(
                "table_options says that the target is shared, but not which rows are this table's.",
                table=table,
                advice='give it constant_columns, {"region": "eu"}. The other tables of the target have other'
                " texts in the same columns.",
            )
        if twice:
            raise ConfigurationError(
                f"table_options gives two columns the name {min(twice)!r}.",
                table=table,
                advice="give each column a name of its own.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all jobs have."""

    #: Stands in the file, so that the reader knows which of the four it is.
    KIND: ClassVar[str]

    staging_uri: str
    #: Name of the Spark catalog, as in ``spark.sql.catalog.<name>``.
    catalog_name: str
    #: Namespace of the target tables, parts joined by dots.
    namespace: str
    #: Who asked, for the checkpoint table.
    dag_id: str = ""
    run_id: str = ""

    def to_json(self) -> str:
        """The job as the text of its file."""
        return json.dumps({"kind": self.KIND, **dataclasses.asdict(self)}, indent=1)

    def check(self) -> None:
        """Raise ConfigurationError when a value has another type, or values do not go together."""
        _check_types(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedJob(Job):
    """The options in the argument ``plan_options``. They have defaults that suit most tables."""

    #: Iceberg format version of new tables. More engines read version 2, see docs/reference/engines.md.
    #: Version 3 has deletion vectors and column defaults.
    format_version: int = 2
    #: How deletes are written to new tables: ``merge-on-read`` or ``copy-on-write``.
    write_mode: str = MERGE_ON_READ
    #: How long the tag of a batch is kept, in days; 0: no tags.
    tag_retention_days: int = 7
    #: How many tables are prepared at the same time. As many staged files are verified at the same time, but
    #: never more than four.
    parallel_tables: int = 4
    #: What to do if a column changes to a type that Iceberg cannot follow. True: old values stay in a column
    #: of another name. False: the table is refused.
    keep_retyped_columns: bool = False
    #: Whether a column that the source dropped is dropped here, too. Otherwise it stays.
    drop_columns: bool = False

    def check(self) -> None:
        """See ``Job``."""
        Job.check(self)
        if self.write_mode not in (MERGE_ON_READ, COPY_ON_WRITE):
            raise ConfigurationError(
                f"Unknown write_mode {self.write_mode!r}.",
                advice=f"use {MERGE_ON_READ!r} or {COPY_ON_WRITE!r}.",
            )
        if self.format_version not in FORMAT_VERSIONS:
            raise ConfigurationError(
                f"Unknown format_version {self.format_version}.", advice="use 2 or 3."
            )
        if self.tag_retention_days < 0:
            raise ConfigurationError("tag_retention_days is negative.", advice="0 makes no tags.")
        if self.parallel_tables < 1:
            raise ConfigurationError(
                "parallel_tables is below 1.", advice="1 prepares one table after the other."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob(TunedJob):
    """What an apply and a replay have in common."""

    mode: str = UPSERT
    table_options: dict[str, TableOptions] = field(default_factory=dict)
    #: Names of targets by pattern. A key is a regular expression for the whole of ``schema.table``. Its
    #: groups stand in the name as ``{1}`` or ``{name}``: ``{"shop_(.*)\\.orders": "orders_{1}"}``. The first
    #: pattern that fits counts.
    target_names: dict[str, str] = field(default_factory=dict)
    #: As ``target_names``, for targets that several tables share (``slices.py``). Each named group of the
    #: pattern becomes a constant column: ``{"shop_(?P<region>.*)\\.orders": "orders"}``.
    shared_names: dict[str, str] = field(default_factory=dict)
    #: Which of ``METADATA_COLUMNS`` tables have in the modes upsert and history. A change log has all.
    metadata_columns: tuple[str, ...] = ()
    #: A deleted row stays, marked by ``_pgoutput_op`` = ``D``.
    soft_delete: bool = False
    #: Whether a change log gets a view of its current rows.
    current_views: bool = False
    #: What to do if a row of a table in upsert mode cannot be written, see ``batch/answers.py``.
    on_row_refused: str = FAIL

    def target_name(self, schema_name: str, table_name: str) -> str:
        """Name of the Iceberg table for a source table, without the namespace.

        A table of schema ``public`` keeps its name, any other gets its schema in front
        (``sales__orders``), unless ``TableOptions.target`` or a pattern of ``target_names`` says otherwise.

        :raises ConfigurationError: a pattern gives the table an empty name.
        """
        name = f"{schema_name}.{table_name}"
        options = self.table_options.get(name)
        if options and options.target:
            return options.target
        for pattern, template in (*self.shared_names.items(), *self.target_names.items()):
            if found := re.fullmatch(pattern, name):
                return _target_by_pattern(template, found, name)
        return table_name if schema_name == "public" else f"{schema_name}__{table_name}"

    def options_of(self, schema_name: str, table_name: str) -> TableOptions:
        """The options of a table, with those that follow from ``shared_names``."""
        name = f"{schema_name}.{table_name}"
        options = self.table_options.get(name) or TableOptions()
        for pattern in self.shared_names:
            if found := re.fullmatch(pattern, name):
                constants = {**found.groupdict(""), **options.constant_columns}
                return dataclasses.replace(options, shared=True, constant_columns=constants)
        return options

    def check(self) -> None:
        """See ``Job``."""
        TunedJob.check(self)
        check_answer("on_row_refused", self.on_row_refused)
        for table, options in self.table_options.items():
            _check_types(options, f"table_options[{table}].")
            options.check(table)
        check_target_names(self.target_names)
        check_shared_names(self.shared_names)
        modes = {self.mode, *(each.mode for each in self.table_options.values() if each.mode)}
        check_modes(modes, soft_delete=self.soft_delete)
        transforms = {
            each for table in self.table_options.values() for each in table.partitioned_by
        }
        if unknown := {each for each in transforms if not is_partition_transform(each)}:
            raise ConfigurationError(
                f"No partition transforms: {sorted(unknown)}.",
                advice="use a column, or years, months, days, hours, bucket(n, column) or "
                "truncate(n, column); a column of another name goes in backticks.",
            )
        if unknown := set(self.metadata_columns) - set(METADATA_COLUMNS):
            raise ConfigurationError(
                f"Unknown metadata columns {sorted(unknown)}.",
                advice=f"choose from {', '.join(METADATA_COLUMNS)}.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyJob(WriteJob):
    """Apply one batch."""

    KIND: ClassVar[str] = "apply"

    manifest_uri: str
    #: What to do if the batch cannot be applied to one table, see ``batch/answers.py``. The operators ask for
    #: ``set_aside``. A job that somebody makes by hand fails, so that each refusal is seen.
    on_table_refused: str = FAIL
    #: Tables that are set aside for a cause that may be gone (``schema.table``). They are tried again.
    retried_tables: tuple[str, ...] = ()
    #: The manifests of the batches that these lack, in order and without a gap.
    lacked_uris: tuple[str, ...] = ()

    def check(self) -> None:
        """See ``Job``."""
        WriteJob.check(self)
        check_answer("on_table_refused", self.on_table_refused)

    def catch_up_job(self) -> ReplayJob:
        """The replay that brings back the tables which are tried again."""
        shared = {each.name: getattr(self, each.name) for each in dataclasses.fields(WriteJob)}
        return ReplayJob(
            **shared,
            manifest_uris=self.lacked_uris,
            tables=self.retried_tables,
            in_place=True,
            catch_up=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob(WriteJob):
    """Apply batches of the past again."""

    KIND: ClassVar[str] = "replay"

    #: The batches' manifests, in order and without a gap.
    manifest_uris: tuple[str, ...]
    #: By their names at the source, ``schema.table``; empty: every table of the batches.
    tables: tuple[str, ...] = ()
    #: Whether the batches are applied in the pipeline's own namespace. Otherwise they go to another one.
    in_place: bool = False
    #: Only in place. True: the tables are set aside, and get the batches that they lack. False: the tables
    #: first go back to the start of the first batch.
    catch_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceJob(Job):
    """Keep the tables of a pipeline fast and small.

    The options say which steps to do, and how long replaced files and old snapshots stay.
    """

    KIND: ClassVar[str] = "maintenance"

    slot_name: str
    #: By their names at the source, ``schema.table``; empty: every table of the slot, and the pipeline's own.
    tables: tuple[str, ...] = ()
    #: Join small data files, and apply deletes to those that have many.
    compact: bool = True
    #: Options of Iceberg's ``rewrite_data_files``, over its defaults.
    compact_options: dict[str, str] = field(default_factory=dict)
    #: A snapshot stays for at least so many seconds; None: none is expired. Tags and branches have times of
    #: their own.
    snapshot_retention_seconds: int | None = 5 * _DAY_S
    #: Snapshots of main that stay at least.
    keep_snapshots: int = 1
    #: Seconds after which a file that no snapshot names is an orphan; None: none is removed.
    orphan_retention_seconds: int | None = None

    def check(self) -> None:
        """See ``Job``."""
        Job.check(self)
        if self.snapshot_retention_seconds is not None and self.snapshot_retention_seconds < 0:
            raise ConfigurationError("snapshot_retention is negative.")
        if self.keep_snapshots < 1:
            raise ConfigurationError(
                "keep_snapshots is below 1.",
                advice="a table has at least the snapshot that it shows.",
            )
        if (
            self.orphan_retention_seconds is not None
            and self.orphan_retention_seconds < LEAST_ORPHAN_S
        ):
            raise ConfigurationError(
                "orphan_retention is shorter than a day, the longest that a writer may take to commit.",
                advice="give a day or more, or None to keep such files.",
            )


@dataclass(frozen=True, slots=True)
class ErasedColumn:
    """The value of one column by which rows are found that shall be erased."""

    #: Its name at the source.
    name: str
    #: The value as text, as the staged files and the lake have it: a hashed column has the hash.
    text: str
    #: The columns of the target that hold its values, now or before it got another type.
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ErasedTable:
    """A table of the lake, and which of its rows shall be erased."""

    #: Name of the Iceberg table, without the namespace.
    target: str
    #: The source's ``schema.table``.
    table_name: str
    relation_oid: int
    #: For each row, or for some rows alike, the columns whose values they have.
    rows: tuple[tuple[ErasedColumn, ...], ...]
    #: Of a shared table: the constant columns of the rows that are those of the source's table.
    constants: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """Tells the tables of one job apart."""
        return self.target, self.relation_oid

    @classmethod
    def from_body(cls, body: dict[str, Any]) -> ErasedTable:
        """Read the JSON form.

        :raises TypeError: fields are missing or unknown.
        """
        rows = tuple(
            tuple(ErasedColumn(**{**each, "fields": tuple(each["fields"])}) for each in row)
            for row in body["rows"]
        )
        return cls(**{**body, "rows": rows})


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureJob(Job):
    """Take rows of some keys out of the tables of a pipeline, and out of all files of these tables.

    Its file has the keys. The task that made it deletes it.
    """

    KIND: ClassVar[str] = "erasure"

    slot_name: str
    #: At least one.
    tables: tuple[ErasedTable, ...]
    #: The token of the task's claim, see ``erasure/claim.py``. Without the claim the job must change nothing.
    claim: str


AnyJob = ApplyJob | ReplayJob | MaintenanceJob | ErasureJob
_KINDS: dict[str, type[AnyJob]] = {
    each.KIND: each for each in (ApplyJob, ReplayJob, MaintenanceJob, ErasureJob)
}


def job_from_json(text: str) -> AnyJob:
    """Parse the file of a job.

    :raises ConfigurationError: a field is missing, unknown or of another type.
    """
    try:
        body: dict[str, Any] = json.loads(text)
        kind = _KINDS[body.pop("kind")]
        if "table_options" in body:
            body["table_options"] = {
                name: TableOptions(**_with_tuples(TableOptions, each))
                for name, each in body["table_options"].items()
            }
        if kind is ErasureJob:
            body["tables"] = tuple(map(ErasedTable.from_body, body["tables"]))
        job = kind(**_with_tuples(kind, body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError("This file is not a job of this package.") from error
    job.check()
    return job


def check_target_names(target_names: Mapping[str, str], argument: str = "target_names") -> None:
    """Check patterns and names, see ``WriteJob.target_names``. An operator does it when its DAG is parsed.

    :param argument: how the messages call it.
    :raises ConfigurationError: a pattern is no regular expression, or a name asks for what it does not have.
    """
    for pattern, template in target_names.items():
        _check_pattern(pattern, template, argument)


def check_shared_names(shared_names: Mapping[str, str]) -> None:
    """Check patterns and names, see ``WriteJob.shared_names``. An operator does it when its DAG is parsed.

    :raises ConfigurationError: as ``check_target_names``; or a pattern has no named group.
    """
    check_target_names(shared_names, "shared_names")
    for pattern in shared_names:
        if not re.compile(pattern).groupindex:
            raise ConfigurationError(
                f"The pattern {pattern!r} in shared_names has no named group.",
                advice="name what tells the tables apart: (?P<region>.*). It becomes a column of the table.",
            )


def _target_by_pattern(template: str, found: re.Match[str], name: str) -> str:
    """The name of a target, with what the groups of its pattern found; nothing is an empty text."""
    target = _PLACEHOLDER.sub(lambda each: found[_group(each[1])] or "", template)
    if not target:
        raise ConfigurationError(
            f"The name {template!r} in target_names is empty for this table.",
            table=name,
            advice="write a pattern whose groups are never empty, or put a word beside them.",
        )
    return target


def _group(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _check_pattern(pattern: str, template: str, argument: str) -> None:
    try:
        groups = re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(
            f"{pattern!r} in {argument} is no regular expression: {error}.",
            advice="see https://docs.python.org/3/library/re.html; a dot is written as \\\\. there.",
        ) from error
    known = {*range(groups.groups + 1), *groups.groupindex}
    asked = {_group(each) for each in _PLACEHOLDER.findall(template)}
    if unknown := sorted(map(str, asked - known)):
        raise ConfigurationError(
            f"The name {template!r} in {argument} asks for groups that its pattern does not have:"
            f" {', '.join(unknown)}.",
            advice=f"the pattern {pattern!r} has {groups.groups} groups; the first is {{1}}.",
        )
    if not template or set("{}") & set(_PLACEHOLDER.sub("", template)):
        raise ConfigurationError(
            f"{template!r} in {argument} is no name of a table.",
            advice="write a name, with {1} for what the first group of the pattern found.",
        )


def _with_tuples(kind: type[Any], body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a JSON object, its lists as the tuples that the class has."""
    lists = {each.name for each in dataclasses.fields(kind) if each.type == "tuple[str, ...]"}
    return {name: tuple(value) if name in lists else value for name, value in body.items()}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


def _are_erased_tables(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, ErasedTable) for each in value)


def _are_texts_by_text(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, (*value, *value.values())))


def _are_options_by_table(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, TableOptions) for each in value.values()
    )


#: By the type of a field: how a message calls it, and what recognises a value of it.
_TYPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "str": ("a text", _is_text),
    # Python's booleans are numbers, too.
    "int": ("a whole number", lambda value: type(value) is int),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "tuple[str, ...]": ("a list of texts", _are_texts),
    "tuple[ErasedTable, ...]": ("a list of tables", _are_erased_tables),
    "dict[str, str]": ("a mapping of texts to texts", _are_texts_by_text),
    "dict[str, TableOptions]": ("a mapping of tables to their options", _are_options_by_table),
}


def _check_types(options: Job | TableOptions, where: str = "") -> None:
    """Refuse values of another type than their field has.

    Templates and JSON can give a text instead, and the text ``"False"`` would count as true.

    :param where: stands before the field's name in a message.
    """
    for each in dataclasses.fields(options):
        value = getattr(options, each.name)
        needed, _, or_none = str(each.type).partition(" | ")
        name, is_one = _TYPES[needed]
        if not is_one(value) and not (or_none and value is None):
            raise ConfigurationError(
                f"The option {where}{each.name} is not {name}.", advice=f"give {name}."
            )
