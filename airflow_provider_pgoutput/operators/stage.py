"""The operator that stages one batch of a slot. The work itself is in ``capture/``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.answers import DIFFERENCE, REPAIR
from airflow_provider_pgoutput.batch.xcom import batch_xcom, table_counts
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.filters import parse_filters
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.connections import asset_uri, get_connection, secret_of
from airflow_provider_pgoutput.links.pipeline import ManifestLink, PageLink
from airflow_provider_pgoutput.masks import HASH, parse_masks
from airflow_provider_pgoutput.spark_submit.copy_engine import CopyingOperator
from airflow_provider_pgoutput.tasks import arguments, lineage, metrics
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.progress import TaskProgress
from airflow_provider_pgoutput.tasks.schedule import longest_seconds_between_runs
from airflow_provider_pgoutput.tasks.task_run import (
    log_group,
    log_tables,
    new_attempt,
    refuse_backfill,
    summary,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.xcom import BatchXCom
    from airflow_provider_pgoutput.capture.lake_comparison import LakeComparison
    from airflow_provider_pgoutput.capture.request import CaptureRequest


class PgoutputStageOperator(CopyingOperator):
    """Stage the new changes of a slot as Parquet files, and return the batch.

    The first run creates the slot. It stages every published table as it was when the slot was created. Each
    later run stages one batch. The batch begins where the lake is. It ends where the server was when the run
    began, or at an earlier commit if a limit is reached. The slot does not move, except with
    ``advance="after_stage"``.

    All arguments are templated. Lists and mappings may be given as JSON text.

    **From where, to where**

    :param slot_name: the replication slot. The first run creates it.
    :param publication_names: the publications to read.
    :param staging_uri: folder of the staging area (``s3://bucket/path``, ``file:///path``).
    :param namespace: namespace of the Iceberg tables. It also holds the checkpoint.
    :param postgres_conn_id: the source, a connection of type ``postgres``. If it leads to a connection
        pooler, its extra ``direct_conn_id`` names a connection to the server itself, for new slots and
        copies.
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``.
    :param catalog_name: name of the catalog; None: the name of its connection.

    **Start**

    :param initial_copy: ``always``: the first run copies the published tables. A later run copies tables that
        were published since and that the lake does not have. ``never``: no table is copied, only changes are
        staged.
    :param start_lsn: read the slot again from this LSN on, in one run. It lies between the slot's
        ``confirmed_flush_lsn`` and the checkpoint. If there is no checkpoint yet, with
        ``initial_copy="never"``: the LSN at which the lake's tables were loaded by other means. Later runs
        ignore it then.
    :param failover: synchronise the slot to standbys, if this operator creates it (PostgreSQL 17 and later).

    **Limits**

    :param max_changes: end the batch at the first commit after this many row changes.
    :param max_bytes: end the batch at the first commit after this many bytes of row and logical messages.
    :param max_seconds: end the batch at the first commit after this many seconds of reading.
    :param memory_mib: memory for decoding and writing, in MiB, at least 8; None: 256.

    **Masks**

    :param columns: columns that are masked before anything is written, ``{"schema.table.column": "hash"}``.
        ``hash``: HMAC-SHA-256 of the text. ``redact``: ``***``. ``truncate(4)``: the first four characters.
        ``null``: NULL in every row. ``drop``: the lake does not have the column. A column of the key or of
        the replica identity may only be hashed; see ``docs/how-to/mask_columns.md``.
    :param mask_conn_id: a connection whose password is the secret of ``hash``, at least 16 bytes.

    **Filters**

    :param filters: a condition for each table that rows must pass, ``{"schema.table": "region = 'eu'"}``.
        Its columns must belong to the replica identity; see ``docs/how-to/filter_rows.md``.

    **Tables and messages**

    :param on_new_table: a published table that the lake does not have, after the first run. ``copy``: it is
        copied. ``ignore``: the table and its changes are left out until ``copy_tables`` names it. ``fail``:
        the table is refused, and ``on_table_refused`` decides what follows.
    :param copy_tables: tables to copy again in this run, ``["schema.table"]``, even if the lake has them. If
        such a copy is refused and ``on_table_refused`` is ``set_aside``, the table is followed as before.
    :param key_columns: key columns of tables, ``{"schema.table": ["column"]}``, instead of the catalog's key.
        The columns must belong to the replica identity, and their values must be unique at every moment. If a
        partitioned table is published as its root, the columns must belong to the replica identity of every
        partition. With REPLICA IDENTITY FULL any unique columns will do.
    :param messages: also stage logical messages (``pg_logical_emit_message``). They go to the table
        ``pgoutput_messages`` of the namespace.
    :param message_prefixes: stage only logical messages with one of these prefixes; empty: all.
    :param origin: ``any``: all changes. ``none``: without the changes that the source replicated from another
        server.

    **Types and columns**

    :param value_policy: what to do with values that do not fit their column, ``{"decimal": "fail"}``; see
        ``docs/reference/types.md``.
    :param type_options: the lake's type for a kind of types,
        ``{"numeric": "decimal(38,9)", "uuid": "uuid"}``; see ``docs/reference/types.md``. A column keeps the
        type that it got first.
    :param column_types: the lake's type for single columns, ``{"schema.table.column": "string"}``.
    :param on_type_change: a column got a type that Iceberg cannot follow, or a type was altered and its rows
        look different now. ``copy``: the table is copied again. ``fail``: the apply task refuses the column's
        new type. An altered type is refused in a key, and gives a warning elsewhere. See also
        ``keep_retyped_columns`` in ``docs/explanation/schema_changes.md``.
    :param on_unknown_default: a column was added with a default, and neither the stream nor the catalog tells
        what older rows show in it. ``ignore``: they get NULL. ``default``: they get the present default of
        the column, if it is a constant. ``copy``: the table is copied again, also when a change does not say
        which row it means.
    :param on_unsure_column: a column was dropped and another took its place, and nothing tells to which of
        the two some values belong. ``fail``: the table is refused, and ``on_table_refused`` decides what
        follows. ``ignore``: the newer column gets them. ``copy``: the table is copied again.

    **Bad days**

    :param on_recreated_table: a table was dropped and created again with the same name. ``fail``: the table
        is refused, and ``on_table_refused`` decides what follows. ``copy``: the new table is copied, and its
        rows replace those of the old one.
    :param on_slot_lost: the slot was invalidated or dropped, or moved past the lake. ``fail``: the task
        fails. ``copy``: all published tables are copied again in one batch, with a new slot if needed.
        ``difference``: with a new slot, the lake is compared with the source, and only the rows that differ
        are staged, see ``docs/how-to/lost_slot.md``. The lake stays readable meanwhile.
    :param on_table_refused: one table cannot be staged or copied. ``set_aside``: nothing of the table is
        staged from there on, the others go on, and the task ends well, with a warning. Then only a copy
        (``copy_tables``) brings the table back. ``fail``: the task fails.
    :param skip_lsns: commit LSNs of transactions to leave out, ``["16/B374D848"]``, because the run fails at
        something in them. The lake lacks their changes then. The log, the XCom and the checkpoint table name
        them.
    :param advance: ``after_apply``: ``PgoutputAdvanceSlotOperator`` moves the slot. ``after_stage``: this
        operator moves it when the batch is sealed. So the source keeps no WAL for an apply that is late.
        Until the batch is applied, the staging area holds its only copy.

    **Speed and protocol**

    :param transport: ``sql``: read through the SQL function. It is faster, and needs temporary space on the
        server. ``walsender``: read through the replication protocol. It needs no such space. ``auto``:
        ``sql``, unless the server lacks the space; see ``docs/explanation/reading_the_slot.md``.
    :param decode_parallelism: how many connections, at most 8, let the server decode parts of the slot at the
        same time (SQL only); None: it depends on the backlog, the cores and the free replication slots.
    :param copy_connections: how many tables, or parts of tables, are copied at the same time; None: 2.
    :param proto_version: version of the pgoutput protocol, 1 to 4; None: the highest that the server has.
    :param streaming: ``off``, ``on`` or ``parallel``. With the last two the server sends a large transaction
        before it ends, and need not keep it. None: ``on``, if the server can do it and nothing is lost by it.
    :param two_phase: read prepared transactions at PREPARE TRANSACTION. The slot remembers this. They are
        applied at COMMIT PREPARED, with or without it.
    :param binary: read values in binary form. A type whose binary form we do not read comes as text.

    ``CopyingOperator`` describes ``copy_engine``, ``spark_conn_id``, ``spark_copy_from_bytes`` and
    ``spark_copy_conf``.
    """

    ui_color = "#d6ecd2"
    operator_extra_links = (PageLink(), ManifestLink())
    namespace: str
    staging_uri: str
    postgres_conn_id: str
    iceberg_conn_id: str
    catalog_name: str | None
    mask_conn_id: str | None

    def __init__(
        self,
        *,
        slot_name: str,
        publication_names: Sequence[str] | str,
        staging_uri: str,
        namespace: str,
        postgres_conn_id: str = default_connections.POSTGRES,
        iceberg_conn_id: str = default_connections.ICEBERG,
        catalog_name: str | None = None,
        initial_copy: str = "always",
        start_lsn: str | None = None,
        failover: bool | str = False,
        max_changes: int | str | None = None,
        max_bytes: int | str | None = None,
        max_seconds: float | str | None = None,
        memory_mib: int | str | None = None,
        columns: Mapping[str, str] | str | None = None,
        mask_conn_id: str | None = None,
        filters: Mapping[str, str] | str | None = None,
        on_new_table: str = "copy",
        copy_tables: Sequence[str] | str | None = None,
        key_columns: Mapping[str, Sequence[str]] | str | None = None,
        messages: bool | str = False,
        message_prefixes: Sequence[str] | str | None = None,
        origin: str = "any",
        value_policy: Mapping[str, str] | str | None = None,
        type_options: Mapping[str, str] | str | None = None,
        column_types: Mapping[str, str] | str | None = None,
        on_type_change: str = "fail",
        on_unknown_default: str = "ignore",
        on_unsure_column: str = "fail",
        on_recreated_table: str = "fail",
        on_slot_lost: str = "fail",
        on_table_refused: str = "set_aside",
        skip_lsns: Sequence[str] | str | None = None,
        advance: str = "after_apply",
        transport: str = "sql",
        decode_parallelism: int | str | None = None,
        copy_connections: int | str | None = None,
        proto_version: int | str | None = None,
        streaming: str | None = None,
        two_phase: bool | str = False,
        binary: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        #: Of the batch that this task sealed; None: none yet.
        self.manifest_uri: str | None = None
        #: What it moved, for OpenLineage; None: nothing yet.
        self._moved: tuple[Manifest, str] | None = None
        arguments.keep(self, locals(), PgoutputStageOperator._STAGE_ARGUMENTS)
        arguments.check_answers(self)
        _check_masks(columns, mask_conn_id)
        _check_filters(filters)

    _STAGE_ARGUMENTS = arguments.names_of(__init__)
    template_fields: Sequence[str] = (*CopyingOperator.template_fields, *_STAGE_ARGUMENTS)
    template_fields_renderers = {  # noqa: RUF012
        **CopyingOperator.template_fields_renderers,
        **arguments.renderers_of(__init__),
    }

    def execute(self, context: Context) -> BatchXCom:
        """Stage one batch."""
        with airflow_outcome(context):
            refuse_backfill(context)
            # Imported here, so that parsing a DAG file does not load numpy and pyarrow.
            from airflow_provider_pgoutput.capture.pipeline import stage_batch

            request = self._request(context)
            started = time.monotonic()
            with log_group(f"Stage slot {request.slot_name}"):
                staged = stage_batch(request)
            seconds = time.monotonic() - started
        manifest = staged.manifest
        self.manifest_uri = staged.manifest_uri
        batch = batch_xcom(manifest, staged.manifest_uri, staged.slot)
        batch["stage_seconds"] = round(seconds, 3)
        connection = get_connection(self.postgres_conn_id)
        batch["asset_uri"] = asset_uri(connection, request.slot_name)
        self._moved = manifest, batch["asset_uri"]
        counts = table_counts(manifest)
        log_tables(counts)
        self.log.info(
            "Batch %s of slot %s is sealed at %s.",
            batch["batch_id"][:16],
            batch["slot_name"],
            staged.manifest_uri,
        )
        self.log.info("%s", summary("Staged", manifest, seconds, staged.source_lsn))
        metrics.of_staged(batch, counts)
        return batch

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """For Airflow's OpenLineage provider, see ``docs/reference/events.md``. None: nothing was staged."""
        if self._moved is None:
            return None
        return lineage.of_staged(*self._moved, arguments.staging_uri(self))

    def _request(self, context: Context) -> CaptureRequest:
        from airflow_provider_pgoutput.capture.request import CaptureRequest
        from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
        from airflow_provider_pgoutput.capture.stream.options import StreamOptions
        from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook

        # Values that do not go together are refused here, before anything is connected.
        fields = arguments.values_of(self, self._STAGE_ARGUMENTS, CaptureRequest)
        fields |= self._adoption()
        options = StreamOptions(**arguments.values_of(self, self._STAGE_ARGUMENTS, StreamOptions))
        policy = SchemaPolicy(**arguments.values_of(self, self._STAGE_ARGUMENTS, SchemaPolicy))
        source = PgoutputHook(self.postgres_conn_id)
        direct = source.direct()
        copy_engine = self._copy_engine(direct.postgres_conn_id)
        lake = Lake.of(self)
        conninfo = source.session_parameters()
        # Also without masks: the lake may have hashes of a column that the source dropped.
        secret = secret_of(arguments.optional_text(self.mask_conn_id))
        checkpoint = lake.checkpoint(fields["slot_name"])
        if checkpoint is None:
            # The run makes a slot, which keeps WAL until a batch is applied.
            lake.refuse_login_that_only_reads()
        return CaptureRequest(
            conninfo=conninfo,
            direct_conninfo=None if direct is source else direct.session_parameters(),
            lake_comparison=_lake_comparison(lake, conninfo, fields, secret),
            checkpoint=checkpoint,
            options=options,
            schema_policy=policy,
            copy_engine=copy_engine,
            seconds_between_runs=longest_seconds_between_runs(self.get_dag()),
            attempt=new_attempt(context),
            mask_secret=secret,
            tell=TaskProgress(context["ti"]),
            **fields,
        )

    def _adoption(self) -> dict[str, Any]:
        """Fields of the request with which another system becomes the source; see ``adopt_source.py``."""
        return {}


def _check_masks(columns: Mapping[str, str] | str | None, mask_conn_id: str | None) -> None:
    """Check the masks when the DAG file is parsed. The value of a template is checked when the task runs."""
    if columns is not None and not isinstance(columns, str | dict):
        # What another task returns, for example.
        return
    if _is_template(columns):
        return
    masks = parse_masks(arguments.text_mapping(columns, "columns"))
    hashed = sorted(name for name, each in masks.items() if each.kind == HASH)
    if hashed and arguments.optional_text(mask_conn_id) is None:
        raise ConfigurationError(
            f"columns hashes {hashed[0]}, and mask_conn_id is missing.",
            advice="name a connection whose password is the secret of the hash.",
        )


def _check_filters(filters: Mapping[str, str] | str | None) -> None:
    """Check the filters when the DAG file is parsed. A template is checked when the task runs."""
    if (filters is None or isinstance(filters, str | dict)) and not _is_template(filters):
        parse_filters(arguments.text_mapping(filters, "filters"))


def _is_template(value: Mapping[str, str] | str | None) -> bool:
    text = value if isinstance(value, str) else str(value)
    return "{{" in text or "{%" in text


def _lake_comparison(
    lake: Lake,
    conninfo: str | Mapping[str, Any],
    fields: Mapping[str, Any],
    mask_secret: bytes | None,
) -> LakeComparison | None:
    """What compares the lake with the source after a lost slot; None: nothing does."""
    if fields["on_slot_lost"] != DIFFERENCE:
        return None
    from airflow_provider_pgoutput.proof.after_loss import LakeAfterLoss
    from airflow_provider_pgoutput.proof.request import ProofRequest

    request = ProofRequest(
        conninfo=conninfo,
        slot_name=fields["slot_name"],
        publication_names=fields["publication_names"],
        staging_uri=fields["staging_uri"],
        namespace=lake.namespace,
        catalog_name=lake.catalog.name,
        catalog_properties=lake.catalog.pyiceberg_properties,
        on_difference=REPAIR,
        mask_secret=mask_secret,
    )
    return LakeAfterLoss(request)
