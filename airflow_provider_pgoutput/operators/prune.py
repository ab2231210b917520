"""The operator that deletes staged batches which the lake has, when they are older than the retention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.lake import Lake
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.tasks.set_aside import log_kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_provider_pgoutput.capture.staging.retention import Pruned

DEFAULT_RETENTION = timedelta(days=7)
DEFAULT_SET_ASIDE_RETENTION = timedelta(days=30)


class PgoutputPruneStagingOperator(BaseOperator):
    """Delete old applied batches of a slot from the staging area.

    A batch that is not applied stays. Files of prepared transactions stay as long as a batch that names them.
    The batches that are left follow each other without a gap. If a table is set aside, the batches that it
    lacks stay for ``set_aside_retention``: from them it can come back without a copy. Files of attempts that
    died are deleted, too. Without a checkpoint nothing is deleted. The slot and the tables are not touched.

    :param slot_name: the replication slot. (templated)
    :param staging_uri: folder of the staging area. (templated)
    :param namespace: namespace of the Iceberg tables. It also holds the checkpoint. (templated)
    :param staging_retention: an applied batch stays at least for this long.
    :param set_aside_retention: a table that is set aside lacks batches. Each of them stays at least for this
        long, counted from the time when it was staged.
    :param keep_from_lsn: batches that end past this LSN (``16/B374D848``) stay, even if they are old.
        (templated)
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``. (templated)
    :param catalog_name: name of the catalog; None: the name of its connection. (templated)
    """

    ui_color = "#f5ead0"

    staging_retention: timedelta
    set_aside_retention: timedelta
    keep_from_lsn: str | None

    def __init__(
        self,
        *,
        slot_name: str,
        staging_uri: str,
        namespace: str,
        staging_retention: timedelta = DEFAULT_RETENTION,
        set_aside_retention: timedelta = DEFAULT_SET_ASIDE_RETENTION,
        keep_from_lsn: str | None = None,
        iceberg_conn_id: str = default_connections.ICEBERG,
        catalog_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputPruneStagingOperator._PRUNE_ARGUMENTS)

    _PRUNE_ARGUMENTS = arguments.names_of(__init__)
    template_fields: Sequence[str] = arguments.templated_of(__init__)

    def execute(self, context: Context) -> dict[str, Any]:
        """Delete batches. Return how many ``batches``, ``files`` and ``bytes``, and the ``first_lsn`` now."""
        with airflow_outcome(context):
            pruned = self._prune()
        if pruned is None:
            self.log.info("The lake has no checkpoint of this slot: nothing is deleted.")
            return {"batches": 0, "files": 0, "bytes": 0, "first_lsn": None}
        self.log.info(
            "Deleted %d batches: %d files with %d bytes. The oldest batch now starts at %s.",
            pruned.batches,
            pruned.files,
            pruned.size_bytes,
            pruned.first_lsn,
        )
        return {
            "batches": pruned.batches,
            "files": pruned.files,
            "bytes": pruned.size_bytes,
            "first_lsn": None if pruned.first_lsn is None else str(pruned.first_lsn),
        }

    def _prune(self) -> Pruned | None:
        from airflow_provider_pgoutput.capture.staging.area import StagingArea
        from airflow_provider_pgoutput.capture.staging.retention import prune

        slot_name = arguments.slot_name(self)
        area = StagingArea(arguments.staging_uri(self))
        keep_from = arguments.lsn(self.keep_from_lsn, "keep_from_lsn")
        for name in ("staging_retention", "set_aside_retention"):
            if getattr(self, name) < timedelta(0):
                raise ConfigurationError(f"{name} is negative.", slot=slot_name)
        lake = Lake.of(self)
        checkpoint = lake.checkpoint(slot_name)
        if checkpoint is None:
            return None
        now = datetime.now(UTC)
        pruned = prune(
            area,
            slot_name,
            checkpoint,
            older_than=now - self.staging_retention,
            keep_from=keep_from,
            # ``staging_retention`` holds for every batch, so a shorter time for these has no effect.
            set_aside_older_than=now - max(self.set_aside_retention, self.staging_retention),
        )
        log_kept(pruned, max(self.set_aside_retention, self.staging_retention), now)
        return pruned
