"""Waits in the triggerer until a slot is worth a run. It never blocks the event loop or reads the slot.

The trigger looks at how far the slot is behind, and not at what happened since its last look. So an event
comes again if nobody acted on it. The event only says that there is work. The run itself finds out which.
"""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_pgoutput.airflow_versions import (
    BaseHook,
    extra_of,
    in_thread,
    mask_secret_async,
)
from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.capture.slot.facts import SLOT_QUERY, SlotStatus
from airflow_provider_pgoutput.capture.source.pinned import refuses_startup, startup_options
from airflow_provider_pgoutput.errors import FatalError, PgoutputError
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.connections import libpq_parameters, secret_values

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from psycopg import AsyncConnection

READY = "ready"
MISSING = "missing"
LOST = "lost"

_LONGEST_BACKOFF_SECONDS = 300.0
#: Enough to connect and to read a view once. A source that takes longer did not answer.
_LOOK_SECONDS = 60.0


class PgoutputChangesTrigger(BaseEventTrigger):
    """Fire when the slot's lag is worth a run. The sensor uses it, and an ``AssetWatcher`` can use it.

    The event is ``{"status", "slot_name", "confirmed_flush_lsn", "current_lsn", "lag_bytes",
    "wal_status"}``. Its ``status`` is ``ready``, ``missing`` (there is no slot yet, and the first run creates
    it) or ``lost`` (the server removed WAL that the slot needs, and the run will fail and say what to do).

    As a watcher it fires once for each position of the slot. After ``max_interval_seconds`` it fires again
    for the same position, because the run may have failed. If the source does not answer, the trigger asks
    again, with growing pauses. If it raised an error instead, the triggerer would start it again at once. Any
    other error is handled in the same way, with one exception: a task that waits fails if its connection is
    wrong.

    :param slot_name: the replication slot to look at.
    :param postgres_conn_id: the source, a connection of type ``postgres``.
    :param min_lag_bytes: so much WAL is worth a run. An idle server writes some WAL, too, so a small value
        fires without changes.
    :param max_interval_seconds: after this time any lag is worth a run. Such a run also lets the server
        recycle the WAL of other tables.
    :param poll_interval_seconds: time between two looks at the slot.
    :param waiting_since: Unix time at which ``max_interval_seconds`` begins; None: when the trigger starts.
    """

    def __init__(
        self,
        *,
        slot_name: str,
        postgres_conn_id: str = default_connections.POSTGRES,
        min_lag_bytes: int = 1 << 20,
        max_interval_seconds: float = 900,
        poll_interval_seconds: float = 30,
        waiting_since: float | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.slot_name = check_slot_name(slot_name)
        self.postgres_conn_id = postgres_conn_id
        self.min_lag_bytes = min_lag_bytes
        self.max_interval_seconds = max_interval_seconds
        self.poll_interval_seconds = poll_interval_seconds
        self.waiting_since = waiting_since

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what the triggerer needs to make this trigger again."""
        return (
            "airflow_provider_pgoutput.triggers.changes.PgoutputChangesTrigger",
            {
                "slot_name": self.slot_name,
                "postgres_conn_id": self.postgres_conn_id,
                "min_lag_bytes": self.min_lag_bytes,
                "max_interval_seconds": self.max_interval_seconds,
                "poll_interval_seconds": self.poll_interval_seconds,
                "waiting_since": self.waiting_since,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the slot again and again and yield an event whenever it is worth a run."""
        connection: AsyncConnection[tuple[Any, ...]] | None = None
        pause = self.poll_interval_seconds
        waiting_since = time.time() if self.waiting_since is None else self.waiting_since
        fired_for: object = None
        try:
            while True:
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        if connection is None or connection.closed:
                            connection = await self._connect()
                        seen = await self._look(connection)
                    pause = self.poll_interval_seconds
                # The client library of a cloud, which fetches a token, raises errors without a common class.
                except Exception as error:
                    if isinstance(error, FatalError) and self.task_instance is not None:
                        raise
                    self.log.warning(
                        "The source of slot %s did not answer (%s). It is asked again in %.0f s.",
                        self.slot_name,
                        _said(error),
                        pause,
                    )
                    await _closed(connection)
                    connection = None
                    await asyncio.sleep(pause)
                    pause = min(max(pause, 1.0) * 2, _LONGEST_BACKOFF_SECONDS)
                    continue
                elapsed = time.time() - waiting_since >= self.max_interval_seconds
                status = self._status(seen, interval_elapsed=elapsed)
                position = (status, seen.confirmed_flush_lsn)
                if status is not None and (elapsed or position != fired_for):
                    fired_for, waiting_since = position, time.time()
                    yield TriggerEvent(_payload(status, seen))  # type: ignore[no-untyped-call]
                await asyncio.sleep(self.poll_interval_seconds)
        finally:
            await _closed(connection)

    def _status(self, seen: SlotStatus, *, interval_elapsed: bool) -> str | None:
        if seen.slot is None:
            return MISSING
        if seen.slot.is_lost:
            return LOST
        worth = seen.is_worth_a_run(self.min_lag_bytes, interval_elapsed=interval_elapsed)
        return READY if worth else None

    async def _connect(self) -> AsyncConnection[tuple[Any, ...]]:
        from airflow.providers.postgres.hooks.postgres import PostgresHook
        from psycopg import AsyncConnection, OperationalError

        airflow_connection = await BaseHook.aget_connection(self.postgres_conn_id)
        extra = await extra_of(airflow_connection)
        parameters = libpq_parameters(airflow_connection, extra)
        if extra.get("iam"):
            # The cloud's client library blocks, and it asks Airflow for a connection of its own.
            hook = PostgresHook(connection=airflow_connection)
            login, token, port = await in_thread(hook.get_iam_token, airflow_connection)
            parameters |= {"user": login, "password": token, "port": str(port)}
        for secret in secret_values(parameters):
            await mask_secret_async(secret)
        own = parameters.get("options")
        options = startup_options(own, {"statement_timeout": f"{_LOOK_SECONDS:.0f}s"})
        given: dict[str, Any] = {**parameters, "options": options}
        # A pooler may give our next look another session. A prepared statement would stay behind in this one.
        connect = functools.partial(
            AsyncConnection.connect, "", autocommit=True, prepare_threshold=None
        )
        try:
            return await connect(**given)
        except OperationalError as error:
            if not refuses_startup(str(error)):
                raise
        # A pooler does not take the settings. The query needs none of them: it names each schema.
        given["options"] = own or ""
        return await connect(**given)

    async def _look(self, connection: AsyncConnection[tuple[Any, ...]]) -> SlotStatus:
        cursor = await connection.execute(SLOT_QUERY, (self.slot_name,))
        row = await cursor.fetchone()
        assert row is not None, "the query starts from a row of its own"
        return SlotStatus.from_row(self.slot_name, row)


def _said(error: Exception) -> str:
    """What may be logged about an error: the text of our own errors, which has no secret, or the class."""
    import psycopg

    from airflow_provider_pgoutput.capture.source.errors import of_psycopg

    ours = of_psycopg(error) if isinstance(error, psycopg.Error) else error
    name = type(ours).__name__
    return f"{name}: {ours}" if isinstance(ours, PgoutputError) else name


async def _closed(connection: AsyncConnection[tuple[Any, ...]] | None) -> None:
    if connection is not None:
        await connection.close()


def _payload(status: str, seen: SlotStatus) -> dict[str, Any]:
    confirmed = seen.confirmed_flush_lsn
    return {
        "status": status,
        "slot_name": seen.slot_name,
        "confirmed_flush_lsn": None if confirmed is None else str(confirmed),
        "current_lsn": str(seen.current_lsn),
        "lag_bytes": seen.lag_bytes,
        "wal_status": seen.slot and seen.slot.wal_status,
    }
