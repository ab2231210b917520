"""Warns of what may end a slot while it waits for its next run.

Between two runs nobody reads the slot. Then the server may remove WAL that the slot needs
(``max_slot_wal_keep_size``), or give the slot up because it is idle (``idle_replication_slot_timeout``).
``replication_slot.py`` refuses slots that are lost already.

Source: https://www.postgresql.org/docs/current/runtime-config-replication.html
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.slot.facts import SlotFacts

log = logging.getLogger(__name__)

#: If less than this share of ``max_slot_wal_keep_size`` is left, a warning is due.
_LOW_SHARE = 0.5
#: If a slot waited longer than this share of its timeout, it may not survive a late run.
_IDLE_SHARE = 0.5


def warn_of_dangers(
    slot: SlotFacts, *, seconds_between_runs: int | None, failover: bool
) -> tuple[str, ...]:
    """Warn of what may end the slot before its next run, or of what leaves it behind in a failover.

    :param seconds_between_runs: the longest wait by the schedule; None: not known.
    :param failover: whether standbys are meant to synchronise the slot.
    :returns: the warnings, as they are logged.
    """
    warnings = [*_of_wal(slot), *_of_idleness(slot, seconds_between_runs)]
    if failover and not slot.failover:
        warnings.append(
            f"Slot {slot.name} was made without failover, so standbys do not have it:"
            f" ALTER_REPLICATION_SLOT {slot.name} (FAILOVER) on a replication connection changes that."
        )
    for each in warnings:
        log.warning("%s", each)
    return tuple(warnings)


def _of_wal(slot: SlotFacts) -> list[str]:
    message = (
        f"Slot {slot.name} is past max_slot_wal_keep_size (wal_status unreserved): the server's next"
        " checkpoint may invalidate it. Let this run end and advance the slot; raise the limit or run more"
        " often."
    )
    if slot.wal_status == "unreserved":
        return [message]
    if slot.safe_wal_size is None or not slot.keep_size:
        return []
    message = (
        f"Slot {slot.name} may be invalidated after {slot.safe_wal_size >> 20} MiB more of WAL"
        f" (max_slot_wal_keep_size is {slot.keep_size >> 20} MiB)."
    )
    return [message] if slot.safe_wal_size < slot.keep_size * _LOW_SHARE else []


def _of_idleness(slot: SlotFacts, seconds_between_runs: int | None) -> list[str]:
    timeout = slot.idle_timeout_seconds
    if timeout is None:
        return []
    rule = f"The server gives up slots that nobody reads for {timeout} s (idle_replication_slot_timeout)"
    advice = "Raise the timeout or run more often."
    if seconds_between_runs is not None and seconds_between_runs >= timeout:
        return [
            f"{rule}, and the schedule lets slot {slot.name} wait {seconds_between_runs} s. {advice}"
        ]
    if slot.idle_seconds is not None and slot.idle_seconds > timeout * _IDLE_SHARE:
        return [f"{rule}, and slot {slot.name} waited {slot.idle_seconds:.0f} s. {advice}"]
    return []
