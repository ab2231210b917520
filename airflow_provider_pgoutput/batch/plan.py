"""What one apply is asked to do: the file that the apply operator writes and the Spark job reads.

It names the batch, the catalog and the options. No credential is in it: Spark gets those from its own
configuration. All fields but the first four have defaults that suit most tables.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgoutput.batch.maintenance import Maintenance
from airflow_provider_pgoutput.errors import ConfigurationError

UPSERT = "upsert"
CHANGE_LOG = "change_log"

MERGE_ON_READ = "merge-on-read"
COPY_ON_WRITE = "copy-on-write"
#: Older ones know no row-level deletes.
_FORMAT_VERSIONS = (2, 3)

#: Metadata columns that a target table can carry, with their lake types; all start alike so that no
#: source column is hidden by them unnoticed.
METADATA_COLUMNS = {
    "_pgoutput_commit_lsn": "long",
    "_pgoutput_seq": "long",
    "_pgoutput_op": "string",
    "_pgoutput_xid": "long",
    "_pgoutput_commit_ts": "timestamptz",
}

_TEXTS = (
    "manifest_uri",
    "staging_uri",
    "catalog",
    "namespace",
    "mode",
    "write_mode",
    "dag_id",
    "run_id",
)
_NUMBERS = ("format_version", "tag_retention_days", "parallel_tables")
_FLAGS = ("soft_delete", "drop_columns", "keep_retyped_columns")

_COLUMN = r"(?:[^\W\d]\w*|`(?:[^`]|``)+`)(?:\.(?:[^\W\d]\w*|`(?:[^`]|``)+`))*"
#: What stands in a statement as it was given, so nothing else may.
#: https://iceberg.apache.org/docs/latest/spark-ddl/#partitioned-by
_PARTITION_TRANSFORM = re.compile(
    rf"\s*(?:{_COLUMN}|(?:years?|months?|days?|date|hours?|date_hour)\(\s*{_COLUMN}\s*\)"
    rf"|(?:bucket|truncate)\(\s*(?:\d{{1,9}}\s*,\s*{_COLUMN}|{_COLUMN}\s*,\s*\d{{1,9}})\s*\))\s*",
    re.IGNORECASE,
)


def is_partition_transform(text: str) -> bool:
    """Whether a text is a partition transform in Spark's notation and nothing else."""
    return bool(_PARTITION_TRANSFORM.fullmatch(text))


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the user says about one table; the key of the mapping is the source's ``schema.table``."""

    #: Name of the Iceberg table in the namespace; default: see ``Plan.target_name``.
    target: str | None = None
    #: ``upsert`` or ``change_log``; None: the plan's.
    mode: str | None = None
    #: Iceberg table properties, over the defaults.
    properties: dict[str, str] = field(default_factory=dict)
    #: Partition transforms in Spark's notation: ``["days(created_at)", "bucket(16, id)"]``.
    partitioned_by: tuple[str, ...] = ()
    #: None: the plan's.
    keep_retyped_columns: bool | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """Batches of the past that are applied again, in the place of one new batch."""

    #: The batches' manifests, in order and without a gap.
    manifest_uris: tuple[str, ...]
    #: Sources, ``schema.table``; empty: every table of the batches.
    source_tables: tuple[str, ...] = ()
    #: Whether the tables first go back to where the first batch starts; else the batches are added to them.
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """One apply of one batch, or of many batches again; or a maintenance of the tables."""

    manifest_uri: str
    staging_uri: str
    #: Name of the Spark catalog, as in ``spark.sql.catalog.<name>``.
    catalog: str
    #: Namespace of the target tables, parts joined by dots.
    namespace: str
    mode: str = UPSERT
    table_options: dict[str, TableOptions] = field(default_factory=dict)
    #: Which of ``METADATA_COLUMNS`` tables in upsert mode carry; a change log carries all.
    metadata_columns: tuple[str, ...] = ()
    #: A deleted row stays, marked by ``_pgoutput_op`` = ``D``.
    soft_delete: bool = False
    #: Iceberg format version of new tables; 3 brings deletion vectors.
    format_version: int = 3
    #: ``merge-on-read`` or ``copy-on-write``, for new tables.
    write_mode: str = MERGE_ON_READ
    #: How long the tag of a batch is kept, in days; 0: no tags.
    tag_retention_days: int = 7
    #: Tables prepared, and staged files verified (four at most), at the same time.
    parallel_tables: int = 4
    #: A column changed to a type that Iceberg cannot follow. True: its values of before stay in a column of
    #: another name. False: the table is refused.
    keep_retyped_columns: bool = False
    #: Whether columns that were dropped at the source are dropped, too; else they stay.
    drop_columns: bool = False
    #: Who asked, for the checkpoint table.
    dag_id: str = ""
    run_id: str = ""
    #: Then ``manifest_uri`` is that of the last batch.
    replay: Replay | None = None
    #: Then there is no batch, and ``manifest_uri`` is empty.
    maintenance: Maintenance | None = None

    def to_json(self) -> str:
        """The plan as the text of its file."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Parse a plan.

        :raises ConfigurationError: when a field is missing, unknown or of another type.
        """
        try:
            body: dict[str, Any] = json.loads(text)
            table_options = {
                name: TableOptions(**{**each, "partitioned_by": tuple(each["partitioned_by"])})
                for name, each in body["table_options"].items()
            }
            metadata = tuple(body["metadata_columns"])
            parts: dict[str, Any] = {
                "replay": _replay(body.get("replay")),
                "maintenance": Maintenance.from_body(body.get("maintenance")),
            }
            parts |= {"table_options": table_options, "metadata_columns": metadata}
            plan = cls(**{**body, **parts})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigurationError("This file is not a plan of an apply.") from error
        plan.check()
        return plan

    def check(self) -> None:
        """Raise ConfigurationError when an option is no option, or the options do not go together."""
        _check_types(self)
        self._check_ranges()
        modes = {self.mode, *(each.mode for each in self.table_options.values() if each.mode)}
        if unknown := modes - {UPSERT, CHANGE_LOG}:
            raise ConfigurationError(
                f"Unknown mode {sorted(unknown)}.", advice=f"use {UPSERT!r} or {CHANGE_LOG!r}."
            )
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
        if self.maintenance is not None:
            self.maintenance.check()

    def _check_ranges(self) -> None:
        if self.write_mode not in (MERGE_ON_READ, COPY_ON_WRITE):
            raise ConfigurationError(
                f"Unknown write_mode {self.write_mode!r}.",
                advice=f"use {MERGE_ON_READ!r} or {COPY_ON_WRITE!r}.",
            )
        if self.format_version not in _FORMAT_VERSIONS:
            raise ConfigurationError(
                f"Unknown format_version {self.format_version}.", advice="use 2 or 3."
            )
        if self.tag_retention_days < 0:
            raise ConfigurationError("tag_retention_days is negative.", advice="0 makes no tags.")
        if self.parallel_tables < 1:
            raise ConfigurationError(
                "parallel_tables is below 1.", advice="1 prepares one table after the other."
            )

    def target_name(self, schema_name: str, table_name: str) -> str:
        """Name of the Iceberg table for a source table, without the namespace.

        A table of schema ``public`` keeps its name, any other gets its schema in front
        (``sales__orders``), unless ``TableOptions.target`` says otherwise.
        """
        options = self.table_options.get(f"{schema_name}.{table_name}")
        if options and options.target:
            return options.target
        return table_name if schema_name == "public" else f"{schema_name}__{table_name}"


def _check_types(plan: Plan) -> None:
    """Refuse what templates and JSON can put in the place of a value: ``"False"`` would be true.

    :raises ConfigurationError: it names the field.
    """
    for name in _TEXTS:
        _demand(isinstance(getattr(plan, name), str), name, "a text")
    for name in _NUMBERS:
        # Python's booleans are numbers, too.
        _demand(type(getattr(plan, name)) is int, name, "a whole number")
    for name in _FLAGS:
        _demand(isinstance(getattr(plan, name), bool), name, "true or false")
    _demand(_is_texts(plan.metadata_columns), "metadata_columns", "a list of texts")
    for table, options in plan.table_options.items():
        where = f"table_options[{table}]"
        for name in ("target", "mode"):
            value = getattr(options, name)
            _demand(value is None or isinstance(value, str), f"{where}.{name}", "a text")
        keeps = options.keep_retyped_columns
        _demand(
            keeps is None or isinstance(keeps, bool),
            f"{where}.keep_retyped_columns",
            "true or false",
        )
        _demand(
            isinstance(options.properties, dict)
            and _is_texts((*options.properties, *options.properties.values())),
            f"{where}.properties",
            "a mapping of texts to texts",
        )
        partitioned_by = f"{where}.partitioned_by"
        _demand(_is_texts(options.partitioned_by), partitioned_by, "a list of texts")


def _demand(holds: bool, name: str, kind: str) -> None:
    if not holds:
        raise ConfigurationError(f"The option {name} is not {kind}.", advice=f"give {kind}.")


def _is_texts(values: object) -> bool:
    return isinstance(values, tuple) and all(isinstance(each, str) for each in values)


def _replay(body: dict[str, Any] | None) -> Replay | None:
    if body is None:
        return None
    lists = {name: tuple(body[name]) for name in ("manifest_uris", "source_tables")}
    return Replay(**{**body, **lists})
