"""What another engine is asked to copy, and what it answers: the contract between capture and the engine.

A job names tables with their ranges of blocks, the exported snapshot, and the folders to write to. It
contains the source's connection parameters, so its text is a secret. An answer names the files of one table,
after all of its ranges were read.
"""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from airflow_provider_pgoutput.batch.table_version import TableVersion
from airflow_provider_pgoutput.capture.source.catalog import PublishedColumn, PublishedTable
from airflow_provider_pgoutput.capture.source.keys import RowIdentity
from airflow_provider_pgoutput.capture.types.cast import ValuePolicy
from airflow_provider_pgoutput.capture.types.type_info import types_from_body, types_to_body
from airflow_provider_pgoutput.errors import error_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from airflow_provider_pgoutput.capture.staging.copied_table import CopiedTable
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from airflow_provider_pgoutput.errors import PgoutputError


@dataclass(frozen=True, slots=True)
class BlockRange:
    """Blocks of a table, or of each of its leaves. The last range of a table has no end."""

    first: int
    end: int | None


#: Files in the folder that both sides share: the job, why it failed, and one file for each table.
JOB_FILE = "job.json"

FAILURE_FILE = "failure.json"
#: How far the tables are that are not done, a ``CopiedSoFar`` each. It is written again and again.
PROGRESS_FILE = "progress.json"
#: What Python says if the driver, or an executor, lacks a package.
MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def copied_file(relation_oid: int) -> str:
    """Name of the file that says that a table was copied."""
    return f"copied-{relation_oid}.json"


def refused_file(relation_oid: int) -> str:
    """Name of the file that says why a table could not be copied, while the others go on."""
    return f"refused-{relation_oid}.json"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error on its way to another process."""

    #: The name of its class.
    error: str
    #: Its whole text.
    message: str
    #: Whether it concerns only the table that was read.
    is_of_table: bool = False
    #: The file of the lake that could not be read, by ``name_of`` of the proof; empty: it was something else.
    file: str = ""

    @classmethod
    def of(cls, error: PgoutputError, *, is_of_table: bool = False) -> Failure:
        """Describe an error."""
        return cls(type(error).__name__, str(error), is_of_table)

    def to_json(self) -> str:
        """The failure as text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Failure:
        """Read the failure's text. Both sides have the same version of the package."""
        return cls(**json.loads(text))

    def to_error(self) -> PgoutputError:
        """The error in its own class."""
        found = error_named(self.error, self.message)
        assert found is not None, "only errors of ours are described"
        return found


@dataclass(frozen=True, slots=True)
class RefusedTable:
    """A table that could not be copied, while the others go on."""

    relation_oid: int
    error: PgoutputError


@dataclass(frozen=True, slots=True)
class CopiedSoFar:
    """How far a table is that is not done yet."""

    relation_oid: int
    #: 1 is the whole table.
    share: float
    rows: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class TableJob:
    """One table to copy."""

    table: PublishedTable
    version: TableVersion
    #: Relative to the staging root. Nobody else writes below it.
    folder: str
    ranges: tuple[BlockRange, ...]
    #: Bytes on the server's disk, with TOAST, by which progress is measured.
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CopyJob:
    """Tables to copy in one exported snapshot."""

    snapshot_name: str
    staging_uri: str
    policy: ValuePolicy
    #: Users' types by OID, those in the tables' columns included.
    types: Mapping[int, TypeInfo]
    #: Memory in MiB for rows that wait to be written, for each range that is read.
    memory_mib: int
    tables: tuple[TableJob, ...]
    #: Whether the others go on when one table cannot be copied.
    goes_on: bool = False
    #: A libpq connection string or URI, or its parameters.
    conninfo: str | Mapping[str, Any] = field(repr=False, default="")

    def to_json(self) -> str:
        """The job as text. It contains the source's password."""
        conninfo = self.conninfo if isinstance(self.conninfo, str) else dict(self.conninfo)
        # Only the stream needs to know which partition sends what.
        tables = tuple(
            dataclasses.replace(each, table=dataclasses.replace(each.table, leaves=()))
            for each in self.tables
        )
        body = dataclasses.asdict(dataclasses.replace(self, conninfo="", types={}, tables=tables))
        body["conninfo"] = conninfo
        body["types"] = types_to_body(self.types)
        return json.dumps(body, ensure_ascii=True, default=_as_list)

    @classmethod
    def from_json(cls, text: str) -> CopyJob:
        """Read the job's text. Both sides have the same version of the package."""
        body = json.loads(text)
        return cls(
            **{
                **body,
                "policy": ValuePolicy(**body["policy"]),
                "types": types_from_body(body["types"]),
                "tables": tuple(_table_job(each) for each in body["tables"]),
            }
        )


#: What an engine says of a table.
FromEngine: TypeAlias = "CopiedTable | RefusedTable | CopiedSoFar"


class CopyEngine(Protocol):
    """Copies tables in other processes, in a snapshot that this process holds."""

    @property
    def least_bytes(self) -> int:
        """Size on the server's disk below which it is not worth while to give a table to the engine."""
        ...

    def started(self, job: CopyJob) -> AbstractContextManager[Iterator[FromEngine]]:
        """Begin a job. The iterator yields each table when it is done, and ends when all are.

        Until then it may yield how far a table is, any number of times.

        The iterator raises the error that ended the job, for instance ``SnapshotLost``. Leaving the context
        ends the job.
        """
        ...


def _as_list(value: object) -> list[str]:
    """The JSON form of a set of names.

    :raises TypeError: ``value`` is something else.
    """
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON.")


def _table_job(body: dict[str, Any]) -> TableJob:
    table, identity = body["table"], body["table"]["row_identity"]
    return TableJob(
        table=PublishedTable(
            **{
                **table,
                "columns": tuple(PublishedColumn(**each) for each in table["columns"]),
                "row_identity": RowIdentity(
                    identity["replica_identity"],
                    tuple(identity["key"]),
                    frozenset(identity["columns"]),
                ),
                "leaves": (),
                "row_filters": tuple(table["row_filters"]),
            }
        ),
        version=TableVersion.from_body(body["version"]),
        folder=body["folder"],
        ranges=tuple(BlockRange(**each) for each in body["ranges"]),
        size_bytes=body["size_bytes"],
    )
