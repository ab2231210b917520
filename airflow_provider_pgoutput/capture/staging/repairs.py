"""Requests for repairs: keys whose rows the pipeline shall read from the source again.

A verification that found differences leaves a request. The next stage task reads the rows of these keys, and
adds them to its batch as its last changes (``copy/repair.py``). A request has keys and no other values, so it
is never out of date: what counts is the row that the source has when the request is taken up. When the batch
is sealed, the request is removed, or keeps the keys that are left for a later batch. It expires by itself:
its time is in its name. The prune task deletes requests that expired.
"""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock
    from airflow_provider_pgoutput.capture.staging.area import Entry, StagingArea

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


class RepairRefused(Exception):
    """The batch cannot be sealed with the rows of a table that were read again.

    :param may_pass: whether a later batch may take them.
    """

    def __init__(self, relation_oid: int, table: str, why: str, *, may_pass: bool = False) -> None:
        super().__init__(relation_oid)
        self.relation_oid, self.table, self.why, self.may_pass = relation_oid, table, why, may_pass


@dataclass(frozen=True, slots=True)
class RepairRequest:
    """A request in the staging area."""

    area: StagingArea
    slot_name: str
    path: str
    system_identifier: str
    tables: tuple[KeysOfTable, ...]

    def remove(self) -> None:
        """Delete the request. It may be gone already."""
        self.area.delete_file(self.path)

    def keep(self, remaining: Mapping[int, Collection[tuple[str, ...]]]) -> None:
        """Keep only some of the keys. If none are left, the request is deleted.

        :param remaining: these keys, by OID of their table.
        """
        tables = tuple(
            replace(each, keys=keys)
            for each in self.tables
            if (keys := tuple(k for k in each.keys if k in remaining.get(each.relation_oid, ())))
        )
        if not tables:
            self.remove()
        elif tables != self.tables:
            self.area.write_whole(self.path, _body(self.system_identifier, tables))

    def is_waiting(self) -> bool:
        """Whether no run took it up yet, or keys are left."""
        name = self.path.rpartition("/")[2]
        return name in self.area.names(layout.repair_folder(self.slot_name))


@dataclass(frozen=True, slots=True)
class Repairs:
    """Rows that were read again."""

    #: The LSN at which the rows were read. The batch ends here.
    point: Lsn
    #: The rows, as changes that win over all others of the batch.
    blocks: tuple[ChangeBlock, ...]
    requests: tuple[RepairRequest, ...]
    #: Keys that a later batch repairs, by OID of their table.
    remaining: Mapping[int, frozenset[tuple[str, ...]]] = field(default_factory=dict)

    def without(self, refused: RepairRefused) -> Repairs:
        """The same batch without rows that were read again. A later one repairs what was not refused."""
        oids = {*self.remaining, *(each.relation.oid for each in self.blocks)}
        remaining: dict[int, frozenset[tuple[str, ...]]] = {}
        for table in (table for request in self.requests for table in request.tables):
            oid = table.relation_oid
            if oid in oids and (refused.may_pass or oid != refused.relation_oid):
                remaining[oid] = remaining.get(oid, frozenset()) | set(table.keys)
        return replace(self, blocks=(), remaining=remaining)

    def settle_requests(self) -> None:
        """Delete the requests, when the batch is sealed. Keys that a later batch repairs are kept."""
        reach("stage.before_repair_removed")
        settle(self.requests, self.remaining)


def settle(
    requests: Iterable[RepairRequest], remaining: Mapping[int, frozenset[tuple[str, ...]]]
) -> None:
    """Let each request keep the remaining keys only. A problem with it must not stop the pipeline."""
    for each in requests:
        try:
            each.keep(remaining)
        except PgoutputError as error:
            log.warning(
                "A request for a repair cannot be removed, so each batch repeats the repair until the request"
                " expires. %s",
                error,
            )


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
    for each in expired_requests(area, slot_name):
        area.delete_file(each.path)
    path = layout.repair_path(slot_name, int(time.time() + seconds), uuid.uuid4().hex[:16])
    area.write_whole(path, _body(system_identifier, tables))
    return RepairRequest(area, slot_name, path, system_identifier, tuple(tables))


def _body(system_identifier: str, tables: Sequence[KeysOfTable]) -> bytes:
    body = {
        "system_identifier": system_identifier,
        "tables": [[each.relation_oid, each.table, each.key_columns, each.keys] for each in tables],
    }
    return json.dumps(body).encode()


def expired_requests(area: StagingArea, slot_name: str) -> tuple[Entry, ...]:
    """Files of requests that expired, and files that a writer of a request left when it died.

    If their folder cannot be listed, this warns and returns none.
    """
    now = time.time()
    try:
        entries = area.entries(layout.repair_folder(slot_name))
    except PgoutputError as error:
        log.warning("Requests for repairs that expired cannot be listed, so they stay. %s", error)
        return ()
    return tuple(each for each in entries if _expires(each.name) <= now)


def _expires(name: str) -> float:
    """When a request expires. A file that is not complete yet has a longer name than the request."""
    expires = layout.parse_repair_name(f"{name.partition('.json')[0]}.json")
    return math.inf if expires is None else expires


def waiting_requests(area: StagingArea, slot_name: str) -> tuple[RepairRequest, ...]:
    """The requests that no run took up yet, and that did not expire.

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
