"""What one run of capture is asked to do, checked before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.capture.source.plugin_options import StreamOptions
from airflow_provider_pgoutput.capture.types.cast import NULL_AND_KEEP, ValuePolicy
from airflow_provider_pgoutput.capture.types.options import TypeOptions
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.capture.checkpoint import Checkpoint

SQL = "sql"
WALSENDER = "walsender"


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What one run is asked to do.

    :raises ConfigurationError: when the arguments do not go together.
    """

    #: A libpq connection string or URI, or its parameters.
    conninfo: str | Mapping[str, Any] = field(repr=False)
    slot_name: str
    publication_names: Sequence[str]
    staging_uri: str
    #: How far the lake is; None: nothing of this slot was ever applied.
    checkpoint: Checkpoint | None = None
    #: ``sql`` or ``walsender``.
    transport: str = SQL
    #: What pgoutput is asked to send.
    options: StreamOptions = field(default_factory=StreamOptions)
    max_changes: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    #: Whether the first batch holds all rows of the published tables, and a later one those of a table
    #: that is published by then and that the lake never saw.
    initial_copy: bool = True
    #: Tables as ``schema.table`` that are copied again, whatever the lake holds of them.
    copy_tables: Sequence[str] = ()
    #: ``null_and_keep`` or ``fail`` by type family; the key ``default`` is for all others.
    value_policy: Mapping[str, str] = field(default_factory=dict)
    #: What becomes of numeric, json, uuid, composite, interval and time; see ``types/options.py``.
    type_options: Mapping[str, str] = field(default_factory=dict)
    #: The same for columns, by ``schema.table.column``; ``string`` keeps the text of any type.
    column_types: Mapping[str, str] = field(default_factory=dict)
    #: Key columns by ``schema.table``, over those of the catalog.
    key_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Names the folder of this attempt's files.
    attempt: str = "attempt"
    #: Memory for rows that wait to be written, in MiB.
    memory_mib: int = 256
    #: Tables copied at the same time.
    copy_connections: int = 2

    def __post_init__(self) -> None:
        check_slot_name(self.slot_name)
        if self.transport not in {SQL, WALSENDER}:
            raise ConfigurationError(
                f"Unknown transport {self.transport!r}.", advice=f"use {SQL!r} or {WALSENDER!r}."
            )
        if not self.publication_names or isinstance(self.publication_names, str):
            raise ConfigurationError("publication_names is not a list of at least one name.")
        if isinstance(self.copy_tables, str):
            raise ConfigurationError("copy_tables is not a list of names.")
        limits = (self.max_changes, self.max_bytes, self.max_seconds)
        if any(each is not None and each <= 0 for each in limits):
            raise ConfigurationError(
                "max_changes, max_bytes and max_seconds are positive, or None."
            )
        if self.memory_mib < 8 or self.copy_connections < 1:
            raise ConfigurationError("memory_mib is at least 8, copy_connections at least 1.")
        # Made to be checked: before anything is opened.
        _ = self.policy, self.types

    @property
    def policy(self) -> ValuePolicy:
        """The value policy, checked."""
        families = dict(self.value_policy)
        return ValuePolicy(families.pop("default", NULL_AND_KEEP), families)

    @property
    def types(self) -> TypeOptions:
        """The choices about types, checked."""
        return TypeOptions(self.type_options, self.column_types)
