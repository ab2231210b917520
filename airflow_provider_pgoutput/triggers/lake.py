"""The trigger that waits until the lake has reached an LSN. It asks the catalog, and never the source."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pgoutput.airflow_versions import in_thread
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class PgoutputLakeTrigger(BaseTrigger):
    """Fire when the lake has reached an LSN, or when the time is over.

    The event is ``{"reached": true, "held": ...}``, or the same with ``false``. If the catalog gives an
    error, the trigger asks again until the time is over. Then the task asks, and fails with the named error.

    :param lsn: such as ``16/B374D848``.
    :param slot_name: the pipeline's replication slot.
    :param namespace: namespace of the Iceberg tables.
    :param iceberg_conn_id: the lake's catalog, a connection of type ``iceberg``.
    :param catalog_name: name of the catalog; None: the name of its connection.
    :param until: Unix time at which the wait ends.
    :param held: what the task gets back in the event. ``airflow dags test`` gives it nothing else.
    :param poll_interval_seconds: time between two looks at the checkpoint.
    """

    def __init__(
        self,
        *,
        lsn: str,
        slot_name: str,
        namespace: str,
        iceberg_conn_id: str,
        catalog_name: str | None,
        until: float,
        held: dict[str, Any] | None = None,
        poll_interval_seconds: float = 15,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lsn = lsn
        self.slot_name = slot_name
        self.namespace = namespace
        self.iceberg_conn_id = iceberg_conn_id
        self.catalog_name = catalog_name
        self.until = until
        self.held = held
        self.poll_interval_seconds = poll_interval_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer needs to make this trigger again."""
        return (
            "airflow_provider_pgoutput.triggers.lake.PgoutputLakeTrigger",
            {
                "lsn": self.lsn,
                "slot_name": self.slot_name,
                "namespace": self.namespace,
                "iceberg_conn_id": self.iceberg_conn_id,
                "catalog_name": self.catalog_name,
                "until": self.until,
                "held": self.held,
                "poll_interval_seconds": self.poll_interval_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the checkpoint again and again, and yield one event."""
        reached = False
        # A catalog may take a question and never answer it. So the time may also end during a look.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self.until - time.time())):
                while not (reached := await self._has_reached()):
                    await asyncio.sleep(self.poll_interval_seconds)
        yield TriggerEvent({"reached": reached, "held": self.held})  # type: ignore[no-untyped-call]

    async def _has_reached(self) -> bool:
        try:
            reached = await in_thread(self._end_lsn)
        # The client library of a catalog raises errors without a common class.
        except Exception as error:
            said = f"{type(error).__name__}: {error}" if isinstance(error, PgoutputError) else ""
            self.log.warning(
                "The catalog did not say how far the lake is (%s). It is asked again.",
                said or type(error).__name__,
            )
            return False
        self.log.info("The lake is at %s, and the verification waits for %s.", reached, self.lsn)
        return reached is not None and reached >= Lsn.parse(self.lsn)

    def _end_lsn(self) -> Lsn | None:
        from airflow_provider_pgoutput.tasks.lake import Lake

        found = Lake.of(self).checkpoint(self.slot_name)
        return None if found is None else found.end_lsn
