"""Seals of copied tables: each table is sealed by itself, so that a later attempt need not copy it again.

A seal is a small file next to the manifests. It names the files of one table, the LSN at which they were
read, and what they depend on. A later attempt takes the table over only if all of that is the same. When the
batch's manifest exists, the seals are deleted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.table_version import Counts, StagedFile
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider_pgoutput.capture.staging.area import StagingArea

log = logging.getLogger(__name__)

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class SealedCopy:
    """One table that was copied completely."""

    relation_oid: int
    #: The LSN at which its rows were read.
    copy_lsn: Lsn
    #: A digest of everything that the rows depend on. It is only compared with other fingerprints.
    fingerprint: str
    files: tuple[StagedFile, ...]
    rejected_files: tuple[StagedFile, ...]
    counts: Counts
    #: See ``Table``. None: an earlier version of this package sealed it.
    copy_time: str | None = None


def write_seals(
    area: StagingArea, slot_name: str, start: Lsn, copies: Iterable[SealedCopy]
) -> None:
    """Seal tables, each in a file of its own. Their data files are complete and durable.

    :param start: where the batch starts.
    """
    seals = {}
    for copy in copies:
        body = {
            "format_version": FORMAT_VERSION,
            **dataclasses.asdict(copy),
            "copy_lsn": str(copy.copy_lsn),
        }
        text = json.dumps(body, sort_keys=True, ensure_ascii=True)
        digest = _digest(text)
        path = layout.copy_seal_path(slot_name, start, copy.relation_oid, copy.copy_lsn, digest)
        seals[path] = text.encode("ascii")
    area.write_all(seals)


def find_seals(area: StagingArea, slot_name: str, start: Lsn) -> list[SealedCopy]:
    """The tables that earlier attempts at the same batch sealed, and whose files exist.

    A damaged seal, or one of another format, is ignored: the table is copied again.
    """
    folder = layout.copy_seal_folder(slot_name, start)
    found = []
    for name in area.names(folder):
        digest = layout.parse_copy_seal_name(name)
        if digest is None:
            continue
        text = area.read(f"{folder}/{name}").decode("ascii", "replace")
        copy = _parse(text) if _digest(text) == digest else None
        if copy is None or not _has_files(area, copy):
            log.warning("The seal %s/%s is damaged or its files are gone.", folder, name)
            continue
        found.append(copy)
    return found


def delete_seals(area: StagingArea, slot_name: str, start: Lsn) -> None:
    """Delete the seals of a batch."""
    area.delete_folder(layout.copy_seal_folder(slot_name, start))


def delete_seal(area: StagingArea, slot_name: str, start: Lsn, relation_oid: int) -> None:
    """Delete the seals of one table, so that no attempt takes over its copy."""
    folder = layout.copy_seal_folder(slot_name, start)
    for name in area.names(folder):
        if name.startswith(f"{relation_oid}-"):
            area.delete_file(f"{folder}/{name}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parse(text: str) -> SealedCopy | None:
    try:
        body = json.loads(text)
        if body.pop("format_version") != FORMAT_VERSION:
            return None
        return SealedCopy(
            **{
                **body,
                "copy_lsn": Lsn.parse(body["copy_lsn"]),
                "files": tuple(StagedFile.from_body(each) for each in body["files"]),
                "rejected_files": tuple(
                    StagedFile.from_body(each) for each in body["rejected_files"]
                ),
                "counts": Counts(**body["counts"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError, ConfigurationError):
        return None


def _has_files(area: StagingArea, copy: SealedCopy) -> bool:
    files = (*copy.files, *copy.rejected_files)
    return area.sizes([each.path for each in files]) == [each.size_bytes for each in files]
