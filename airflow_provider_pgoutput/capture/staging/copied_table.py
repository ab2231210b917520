"""What a finished copy of one table says about itself: its files and counts."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from airflow_provider_pgoutput.batch.table_version import Counts, StagedFile


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table whose rows are all in complete and durable files."""

    relation_oid: int
    files: tuple[StagedFile, ...]
    rejected_files: tuple[StagedFile, ...]
    counts: Counts
    #: Bytes of all rows in memory.
    read_bytes: int

    def to_json(self) -> str:
        """It as JSON. No value of a row is in it."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> CopiedTable:
        """Read what ``to_json`` wrote."""
        body = json.loads(text)
        return cls(
            relation_oid=body["relation_oid"],
            files=tuple(StagedFile.from_body(each) for each in body["files"]),
            rejected_files=tuple(StagedFile.from_body(each) for each in body["rejected_files"]),
            counts=Counts(**body["counts"]),
            read_bytes=body["read_bytes"],
        )
