"""What one run of capture is asked to do, checked before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.answers import COPY, DIFFERENCE, FAIL, check_answer
from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.stream.options import (
    AUTO,
    SQL,
    STREAMING_OFF,
    WALSENDER,
    StreamOptions,
)
from airflow_provider_pgoutput.capture.stream.sql_parallel import MOST_CONNECTIONS, PART_BYTES
from airflow_provider_pgoutput.capture.types.cast import NULL_AND_KEEP, ValuePolicy
from airflow_provider_pgoutput.capture.types.options import TypeOptions
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.filters import parse_filters
from airflow_provider_pgoutput.masks import NULL, check_secret, parse_masks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.copy_job import CopyEngine
    from airflow_provider_pgoutput.capture.lake_comparison import LakeComparison
    from airflow_provider_pgoutput.capture.source.progress_log import Tell
    from airflow_provider_pgoutput.filters import Condition
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.masks import Mask


ALWAYS = "always"
NEVER = "never"
AFTER_APPLY = "after_apply"
AFTER_STAGE = "after_stage"


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
    #: The same server without a connection pooler in between, for replication connections and copies; None:
    #: ``conninfo`` leads there.
    direct_conninfo: str | Mapping[str, Any] | None = field(repr=False, default=None)
    #: How far the lake is; None: nothing of this slot was ever applied.
    checkpoint: Checkpoint | None = None
    #: ``sql`` or ``walsender``; ``auto``: SQL, unless the server has no room for its temporary files.
    transport: str = SQL
    #: Connections that let the server decode parts of the backlog at the same time, at most; None: what the
    #: backlog, the cores and the free replication slots suggest.
    decode_parallelism: int | None = None
    #: WAL of such a part at most.
    part_bytes: int = PART_BYTES
    #: What pgoutput is asked to send.
    options: StreamOptions = field(default_factory=StreamOptions)
    max_changes: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    #: ``always``: the first batch holds all rows of the published tables, and a later one those of a
    #: table that is published by then and that the lake never saw.  ``never``: only changes.
    initial_copy: str = ALWAYS
    #: Before there is a checkpoint, and with ``never``: the tables were loaded from outside, and no change
    #: before it is missing in them.  Later: read the slot again from there on, see ``start_position.py``.
    start_lsn: Lsn | None = None
    #: A published table that the lake never saw, once there is a checkpoint: ``copy`` it; ``ignore`` it, with
    #: all that is written to it, until ``copy_tables`` names it; or ``fail``.
    on_new_table: str = COPY
    #: A published table whose name the lake knows as that of another, which is gone: ``fail``, or ``copy``
    #: it, which replaces the rows of the other.
    on_recreated_table: str = FAIL
    #: One table that cannot be staged: ``fail``, or ``set_aside``: the others go on without it. The operators
    #: ask for ``set_aside``. A request that somebody makes by hand fails, so that each refusal is seen.
    on_table_refused: str = FAIL
    #: A slot that cannot give what the lake lacks, because it was invalidated, dropped or moved: ``fail``, or
    #: ``copy`` all published tables again, from a new slot where there is none, or ``difference``: read again
    #: only the rows in which the lake differs from the source.
    on_slot_lost: str = FAIL
    #: The system that becomes the source in this run, in place of the one of the checkpoint; None: the source
    #: stays. It goes with ``on_slot_lost="difference"``.
    adopted_system: str | None = None
    #: When the server may forget a batch's changes: ``after_apply``, which another task does, or
    #: ``after_stage``: as soon as the batch is sealed, so that only the staging area holds them then.  The
    #: first batch of a pipeline waits for its apply in any case.
    advance: str = AFTER_APPLY
    #: Whether a slot that is created here is synchronised to standbys; version 17 and later.
    failover: bool = False
    #: The longest wait between two runs by the schedule; None: not known.
    seconds_between_runs: int | None = None
    #: Commit LSNs of transactions that are left out, because something in them cannot be staged or applied.
    skip_lsns: Sequence[Lsn] = ()
    #: Tables as ``schema.table`` that are copied again, whatever the lake holds of them.
    copy_tables: Sequence[str] = ()
    #: ``null_and_keep`` or ``fail`` by type family; the key ``default`` is for all others.
    value_policy: Mapping[str, str] = field(default_factory=dict)
    #: What becomes of numeric, json, uuid, composite, interval and time; see ``types/options.py``.
    type_options: Mapping[str, str] = field(default_factory=dict)
    #: The same for columns, by ``schema.table.column``; ``string`` keeps the text of any type.
    column_types: Mapping[str, str] = field(default_factory=dict)
    #: Masks by ``schema.table.column``; see ``masks.py``.
    columns: Mapping[str, str] = field(default_factory=dict)
    #: Conditions that rows must pass, by ``schema.table``; see ``filters.py``.
    filters: Mapping[str, str] = field(default_factory=dict)
    #: The secret of ``hash``.
    mask_secret: bytes | None = field(repr=False, default=None)
    #: Key columns by ``schema.table``, over those of the catalog.
    key_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: What is done about changes of a schema that cannot simply be followed.
    schema_policy: SchemaPolicy = field(default_factory=SchemaPolicy)
    #: Names the folder of this attempt's files.
    attempt: str = "attempt"
    #: Memory for rows that wait to be written, in MiB.
    memory_mib: int = 256
    #: Tables copied at the same time.
    copy_connections: int = 2
    #: Copies the large tables; None: this process copies all.
    copy_engine: CopyEngine | None = None
    #: Compares the lake with the source; for ``on_slot_lost="difference"``.
    lake_comparison: LakeComparison | None = None
    #: Is told how far a copy or a read is, every few seconds; None: nobody is.
    tell: Tell | None = None

    def __post_init__(self) -> None:
        check_slot_name(self.slot_name)
        if self.transport not in {SQL, WALSENDER, AUTO}:
            raise ConfigurationError(
                f"Unknown transport {self.transport!r}.",
                advice=f"use {SQL!r}, {WALSENDER!r} or {AUTO!r}.",
            )
        self._check_copy()
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
        asked = 1 if self.decode_parallelism is None else self.decode_parallelism
        if not 1 <= asked <= MOST_CONNECTIONS or self.part_bytes < 1:
            raise ConfigurationError(
                f"decode_parallelism is 1 to {MOST_CONNECTIONS}, part_bytes at least 1."
            )
        # Made to be checked: before anything is opened.
        _ = self.policy, self.types
        if self.columns:
            self._check_masks()
        if self.conditions:
            self._check_filters()

    def _check_filters(self) -> None:
        """Refuse filters beside options with which rows would be in the lake that passed none."""
        refused = {
            "two_phase": (self.options.two_phase, "a prepared transaction waits as it came"),
            "initial_copy='never'": (
                self.initial_copy == NEVER,
                "nobody knows which filter rows passed that were loaded by other means",
            ),
        }
        for name, (is_given, why) in refused.items():
            if is_given:
                raise ConfigurationError(
                    f"filters does not go with {name}: {why}.",
                    advice=f"leave {name.partition('=')[0]} out, or the filters.",
                )

    def _check_masks(self) -> None:
        """Refuse masks beside options with which plain values would be written, or nobody could mask them."""
        masks = self.masks
        check_secret(masks, self.mask_secret)
        refused = {
            "two_phase": (self.options.two_phase, "a prepared transaction waits as it came"),
            "streaming": (
                self.options.streaming not in {None, STREAMING_OFF},
                "an unfinished transaction waits on the worker's disk as it came",
            ),
            "copy_engine='spark'": (
                self.copy_engine is not None,
                "a copy on Spark does not mask",
            ),
            "initial_copy='never'": (
                self.initial_copy == NEVER,
                "rows that were loaded by other means have no mask of this pipeline",
            ),
        }
        for name, (is_given, why) in refused.items():
            if is_given:
                raise ConfigurationError(
                    f"columns does not go with {name}: {why}.",
                    advice=f"leave {name.partition('=')[0]} out, or the masks.",
                )
        both = sorted(self.column_types.keys() & {k for k, m in masks.items() if m.kind != NULL})
        if both:
            raise ConfigurationError(
                f"columns and column_types both name {', '.join(both)}.",
                advice="leave it out of column_types: a masked column is a string.",
            )

    def _check_copy(self) -> None:
        if self.initial_copy not in {ALWAYS, NEVER}:
            raise ConfigurationError(
                f"Unknown initial_copy {self.initial_copy!r}.",
                advice=f"use {ALWAYS!r} or {NEVER!r}.",
            )
        if self.advance not in {AFTER_APPLY, AFTER_STAGE}:
            raise ConfigurationError(
                f"Unknown advance {self.advance!r}.",
                advice=f"use {AFTER_APPLY!r} or {AFTER_STAGE!r}.",
            )
        for name in ("on_new_table", "on_recreated_table", "on_slot_lost", "on_table_refused"):
            check_answer(name, getattr(self, name))
        if self.on_slot_lost == DIFFERENCE and self.lake_comparison is None:
            raise ConfigurationError("on_slot_lost='difference' needs a lake_comparison.")
        if self.adopted_system is not None and (
            self.on_slot_lost != DIFFERENCE or self.start_lsn is not None
        ):
            raise ConfigurationError(
                "PgoutputAdoptSourceOperator takes no start_lsn, and on_slot_lost='difference' only."
            )
        if self.on_new_table != COPY and self.initial_copy == NEVER:
            raise ConfigurationError(
                "on_new_table goes with initial_copy='always' only: without copies the lake does not tell "
                "which tables are new.",
                advice="leave on_new_table out, also later: a table that was loaded from outside and did not"
                " change yet would count as new.",
            )
        if self.start_lsn is None:
            return
        if not self.start_lsn:
            raise ConfigurationError(
                "0/0 is not a start_lsn.", advice="give a position of the source, or leave it out."
            )
        if self.checkpoint is None and self.initial_copy != NEVER:
            raise ConfigurationError(
                "The lake has no checkpoint, so start_lsn is the position of tables that were loaded from"
                " outside, and goes with initial_copy='never' only.",
                advice="set initial_copy='never', or leave start_lsn out: a copy knows its own position.",
            )

    @property
    def direct(self) -> str | Mapping[str, Any]:
        """Connection parameters that lead to the server itself, as far as it is known."""
        return self.conninfo if self.direct_conninfo is None else self.direct_conninfo

    @property
    def policy(self) -> ValuePolicy:
        """The value policy, checked."""
        families = dict(self.value_policy)
        return ValuePolicy(families.pop("default", NULL_AND_KEEP), families)

    @property
    def masks(self) -> dict[str, Mask]:
        """The masks, checked."""
        return parse_masks(self.columns)

    @property
    def conditions(self) -> dict[str, Condition]:
        """The filters, checked."""
        return parse_filters(self.filters)

    @property
    def types(self) -> TypeOptions:
        """The choices about types, checked."""
        return TypeOptions(self.type_options, self.column_types)
