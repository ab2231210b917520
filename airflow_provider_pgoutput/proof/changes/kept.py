"""The digests that a verification keeps for the next one, as a file of the staging area for each table.

Nobody has to keep the file: without it the next verification reads the whole table.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.proof.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.capture.staging.area import StagingArea

log = logging.getLogger(__name__)

_VERSION = 1


@dataclass(frozen=True)
class KeptDigests:
    """The digests of a table's parts on both sides, which were equal as a whole."""

    system_identifier: str
    timeline: int
    lsn: Lsn
    #: No transaction that was open at ``lsn`` wrote WAL before it.
    since: Lsn
    #: Of everything but rows on which a digest depends.
    fingerprint: str
    #: All digests were made with it.
    salt: int
    #: How many verifications since the last one that read all.
    carried: int
    #: How many blocks a range of the source has.
    blocks: int
    #: Of the ranges of the source, in their order.
    ranges: tuple[Digest, ...] = field(repr=False)
    #: Of the files of the lake, by what names a file with its deletes.
    files: Mapping[str, Digest] = field(repr=False)

    def to_json(self) -> str:
        """The content of the file."""
        body = {
            **self.__dict__,
            "version": _VERSION,
            "lsn": self.lsn.sortable,
            "since": self.since.sortable,
            "ranges": [[each.rows, each.total] for each in self.ranges],
            "files": {name: [each.rows, each.total] for name, each in self.files.items()},
        }
        return json.dumps(body)

    @classmethod
    def from_json(cls, text: bytes) -> KeptDigests | None:
        """What a file has; None: another version of the package wrote it, or it is damaged."""
        try:
            body: dict[str, Any] = json.loads(text)
            if body.pop("version") != _VERSION:
                return None
            return cls(
                **body
                | {
                    "lsn": Lsn.from_sortable(body["lsn"]),
                    "since": Lsn.from_sortable(body["since"]),
                    "ranges": tuple(Digest(*each) for each in body["ranges"]),
                    "files": {name: Digest(*each) for name, each in body["files"].items()},
                }
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning(
                "Kept digests cannot be read, so the whole table is. %s", type(error).__name__
            )
            return None


@dataclass(frozen=True)
class DigestStore:
    """The files of the digests that were kept of a pipeline's tables."""

    area: StagingArea
    slot_name: str

    def read(self, relation_oid: int) -> KeptDigests | None:
        """What was kept of a table; None: nothing that can be used."""
        path = layout.kept_digests_path(self.slot_name, relation_oid)
        if path.rpartition("/")[2] not in self.area.names(path.rpartition("/")[0]):
            return None
        return KeptDigests.from_json(self.area.read(path))

    def write(self, relation_oid: int, kept: KeptDigests) -> None:
        """Keep digests in place of older ones."""
        path = layout.kept_digests_path(self.slot_name, relation_oid)
        self.area.write_whole(path, kept.to_json().encode())

    def drop(self, relation_oid: int) -> None:
        """Keep nothing of a table."""
        self.area.delete_file(layout.kept_digests_path(self.slot_name, relation_oid))
