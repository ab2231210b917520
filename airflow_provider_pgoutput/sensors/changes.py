"""The sensor that waits until a slot has enough changes for a run. It never reads the slot."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator

from airflow_provider_pgoutput.airflow_versions import conf
from airflow_provider_pgoutput.batch.answers import FAIL
from airflow_provider_pgoutput.capture.slot.facts import lost_slot
from airflow_provider_pgoutput.hooks import default_connections
from airflow_provider_pgoutput.hooks.pgoutput import PgoutputHook
from airflow_provider_pgoutput.tasks import arguments
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome
from airflow_provider_pgoutput.triggers.changes import LOST, PgoutputChangesTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class PgoutputChangesSensor(BaseSensorOperator):
    """Wait until the slot's lag is worth a run.

    A slot is ready when its lag is at least ``min_lag_bytes`` of WAL. It is also ready when there is any lag
    and ``max_interval`` has passed since this task began to wait. A slot that does not exist is ready,
    because the first run creates it. A slot that somebody reads is not ready. If the server has removed WAL
    that the slot needs, the task fails at once, except with ``on_slot_lost="copy"`` or ``"difference"``.

    :param slot_name: the replication slot to look at. (templated)
    :param postgres_conn_id: the source, a connection of type ``postgres``. (templated)
    :param min_lag_bytes: so much WAL is worth a run. WAL of all tables counts, published or not. (templated)
    :param max_interval: the longest wait while there is any lag, in seconds or as ``timedelta``.
    :param on_slot_lost: give it the same value as to the stage operator. ``fail``: the task fails when the
        slot is lost. ``copy`` or ``difference``: a lost slot is ready, and the run mends the lake.
        (templated)
    :param deferrable: wait in the triggerer instead of a worker. The default is Airflow's setting
        ``[operators] default_deferrable``.
    """

    template_fields: Sequence[str] = (
        "slot_name",
        "postgres_conn_id",
        "min_lag_bytes",
        "on_slot_lost",
    )
    ui_color = "#e0f0f5"

    postgres_conn_id: str
    min_lag_bytes: int | str
    on_slot_lost: str

    def __init__(
        self,
        *,
        slot_name: str,
        postgres_conn_id: str = default_connections.POSTGRES,
        min_lag_bytes: int | str = 1 << 20,
        max_interval: timedelta | float = timedelta(minutes=15),
        on_slot_lost: str = FAIL,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        arguments.keep(self, locals(), PgoutputChangesSensor.template_fields)
        self.max_interval = max_interval
        arguments.check_answers(self)
        self.deferrable = deferrable
        self._waiting_since: float | None = None

    def execute(self, context: Context) -> None:
        """Wait here or in the triggerer."""
        if not self.deferrable:
            super().execute(context)
        elif not self.poke(context):
            self._defer(context)

    def _defer(self, context: Context) -> None:
        with airflow_outcome(context):
            trigger = PgoutputChangesTrigger(
                slot_name=arguments.slot_name(self),
                postgres_conn_id=self.postgres_conn_id,
                min_lag_bytes=self._min_lag_bytes(),
                max_interval_seconds=self._max_interval_seconds(),
                poll_interval_seconds=self.poke_interval,
                waiting_since=self._began(context),
            )
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> None:
        """Go on after the trigger has fired."""
        with airflow_outcome(context):
            if event["status"] == LOST and not self._mends():
                raise lost_slot(event["slot_name"], event["confirmed_flush_lsn"])
        self.log.info(
            "Slot %s is %s: %s bytes behind %s.",
            event["slot_name"],
            event["status"],
            event["lag_bytes"],
            event["current_lsn"],
        )

    def _mends(self) -> bool:
        """Whether the run mends the lake after a lost slot, so that it is no failure."""
        return arguments.answer(self.on_slot_lost, "on_slot_lost") != FAIL

    def poke(self, context: Context) -> bool:
        """Look at the slot once."""
        with airflow_outcome(context):
            slot_name = arguments.slot_name(self)
            status = PgoutputHook(self.postgres_conn_id).direct().slot(slot_name)
            slot = status.slot
            if slot is not None and slot.is_lost and self._mends():
                self.log.warning("Slot %s is lost: the run mends the lake.", slot_name)
                return True
            status.check()
            began = self._began(context)
            elapsed = time.time() - began >= self._max_interval_seconds()
            ready = status.is_worth_a_run(self._min_lag_bytes(), interval_elapsed=elapsed)
        self.log.info(
            "Slot %s: exists=%s active=%s wal_status=%s lag=%s bytes: %s.",
            slot_name,
            slot is not None,
            slot is not None and slot.active_pid is not None,
            slot and slot.wal_status,
            status.lag_bytes,
            "ready" if ready else "not yet",
        )
        return ready

    def _min_lag_bytes(self) -> int:
        return arguments.whole_number(self.min_lag_bytes, "min_lag_bytes") or 0

    def _max_interval_seconds(self) -> float:
        interval = self.max_interval
        return interval.total_seconds() if isinstance(interval, timedelta) else float(interval)

    def _began(self, context: Context) -> float:
        """Unix time when this task began to wait. In reschedule mode this is the first poke of the try."""
        if self._waiting_since is None:
            first = context["ti"].get_first_reschedule_date(context) if self.reschedule else None
            self._waiting_since = time.time() if first is None else first.timestamp()
        return self._waiting_since
