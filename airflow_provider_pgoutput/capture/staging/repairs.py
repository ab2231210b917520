"""Requests for repairs: keys whose rows the pipeline shall read from the source again.

A verification that found differences leaves a request. Whoever stages next reads the rows of these keys and
adds them to its batch as its last changes (``copy/repair.py``). A request has keys and no other values, so it
is never out of date: what counts is the row that the source has when the request is taken up. It is removed
when the batch is sealed, and expires by itself: its time is in its name.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock
    from airflow_provider_pgoutput.capture.staging.area import StagingArea

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeysOfTable:
    """Keys of one table."""

    relation_oid: int
    #: ``schema.table`` of the source, for messages.
    table: str
    key_columns: tuple[str, ...]
    #: The text of each key column, as PostgreSQL prints it.
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """A request that stands in the staging area."""

    area: StagingArea
    slot_name: str
    path: str
    system_identifier: str
    tables: tuple[KeysOfTable, ...]

    def remove(self) -> None:
        """Take it away. It need not be there any more."""
        self.area.delete_file(self.path)

    def is_waiting(self) -> bool:
        """Whether nobody took it up yet."""
        name = self.path.rpartition("/")[2]
        return name in self.area.names(layout.repair_folder(self.slot_name))


@dataclass(frozen=True, slots=True)
class Repairs:
    """Rows that were read again."""

    #: The batch ends here.
    point: Lsn
    #: Changes that win over all others of the batch.
    blocks: tuple[ChangeBlock, ...]
    requests: tuple[RepairRequest, ...]

    def remove_requests(self) -> None:
        """Take the requests away, when the batch is sealed."""
        reach("stage.before_repair_removed")
        for each in self.requests:
            each.remove()


def leave_request(
    area: StagingArea,
    slot_name: str,
    system_identifier: str,
    tables: Sequence[KeysOfTable],
    seconds: float,
) -> RepairRequest:
    """Ask for the rows of keys to be read again.

    :param seconds: until the request expires.
    """
    folder, now = layout.repair_folder(slot_name), time.time()
    for name in area.names(folder):
        expires = layout.parse_repair_name(name)
        if expires is not None and expires <= now:
            area.delete_file(f"{folder}/{name}")
    path = layout.repair_path(slot_name, int(now + seconds), uuid.uuid4().hex[:16])
    body = {
        "system_identifier": system_identifier,
        "tables": [[each.relation_oid, each.table, each.key_columns, each.keys] for each in tables],
    }
    area.write_whole(path, json.dumps(body).encode())
    return RepairRequest(area, slot_name, path, system_identifier, tuple(tables))


def waiting_requests(area: StagingArea, slot_name: str) -> tuple[RepairRequest, ...]:
    """The requests that nobody took up yet, and that did not expire.

    A problem with requests must not stop the pipeline. What cannot be read is named in a warning, and left
    alone.
    """
    folder, now = layout.repair_folder(slot_name), time.time()
    found = []
    try:
        for name in sorted(area.names(folder)):
            expires = layout.parse_repair_name(name)
            if expires is not None and expires > now:
                found.append(_read(area, slot_name, f"{folder}/{name}"))
    except PgoutputError as error:
        log.warning("Requests for repairs cannot be read, so this batch ignores them. %s", error)
    return tuple(filter(None, found))


def _read(area: StagingArea, slot_name: str, path: str) -> RepairRequest | None:
    try:
        body = json.loads(area.read(path))
        tables = tuple(
            KeysOfTable(
                int(oid),
                str(name),
                tuple(map(str, columns)),
                tuple(tuple(map(str, key)) for key in keys),
            )
            for oid, name, columns, keys in body["tables"]
        )
        return RepairRequest(area, slot_name, path, str(body["system_identifier"]), tables)
    except (ValueError, KeyError, TypeError):
        log.warning("%s is no request for a repair, so it is ignored.", path)
        return None
