"""The end of a pipeline at its source: drops the slot, so that the server keeps no more WAL for it.

The lake stays as it is. ``pipeline.py`` drops slots that are replaced by new ones.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.capture.slot.replication_slot import check_kind, drop_slot, read_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.source.errors import of_slot
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.lsn import Lsn

log = logging.getLogger(__name__)


def retire_slot(
    conninfo: str | Mapping[str, Any], slot_name: str, confirmation: str | None
) -> Lsn | None:
    """Drop a slot for good, after somebody typed its name as confirmation.

    :param confirmation: the slot's name once more.
    :returns: the slot's confirmed LSN; None: the slot did not exist, or had none.
    :raises ConfigurationError: the confirmation is missing or wrong. Nothing was dropped.
    :raises WrongSlot: the slot is physical, temporary, or of another plugin or database.
    :raises SlotBusy: somebody reads it.
    """
    check_slot_name(slot_name)
    if confirmation != slot_name:
        raise ConfigurationError(
            "The slot is not dropped without its name as confirmation.",
            slot=slot_name,
            advice=f"give confirmation={slot_name!r}. What was not staged yet is lost to the lake then: to go"
            " on later, all tables have to be copied again.",
        )
    with of_slot(slot_name), sessions.connect(conninfo, slot=slot_name) as session:
        slot = read_slot(session, slot_name)
        if slot is None:
            log.info("There is no slot %s.", slot_name)
            return None
        check_kind(slot, read_server(session, conninfo))
        drop_slot(session, slot)
    log.warning(
        "Dropped slot %s, which was confirmed up to %s.", slot_name, slot.confirmed_flush_lsn
    )
    return slot.confirmed_flush_lsn
