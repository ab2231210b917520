"""Every path in the staging area is made here and nowhere else. It opens no file.

::

    <staging_uri>/<slot>/manifests/<start>-<end>-<batch id, 16 digits>.json   a batch exists when this does
    <staging_uri>/<slot>/data/<start>-<attempt>/<relation oid>-v<version>/changes-00000.parquet
    <staging_uri>/<slot>/data/<start>-<attempt>/<relation oid>-v<version>/copy-00000.parquet
    <staging_uri>/<slot>/data/<start>-<attempt>/<relation oid>-v<version>/rejected-00000.parquet   of a copy
    <staging_uri>/<slot>/data/<start>-<attempt>/<relation oid>-v<version>/<task>/copy-00000.parquet   (Spark)
    <staging_uri>/<slot>/data/<start>-<attempt>/rejected/rejected-00000.parquet
    <staging_uri>/<slot>/data/<start>-<attempt>/messages/messages-00000.parquet
    <staging_uri>/<slot>/data/<start>-<attempt>/prepared/prepared-00000.arrow
    <staging_uri>/<slot>/copies/<start>/<relation oid>-<copy LSN>-<digest>.json   a table is copied whole
    <staging_uri>/<slot>/marks/<LSN>-<seconds since 1970>-<mark id>.json     a batch shall end there
    <staging_uri>/<slot>/repairs/<seconds since 1970>-<request id>.json      rows shall be read again
    <staging_uri>/<slot>/proofs/<relation oid>.json        digests that a verification keeps for the next one
    <staging_uri>/<slot>/erasing                           the claim of the newest erasure of rows
    <staging_uri>/<slot>/plans/<batch id>-<attempt>.json                      what a Spark job was asked to do

LSNs are written as sixteen hexadecimal digits, so names sort like LSNs. Tables are named by their OID: no
identifier of the source becomes part of a path. No file is ever changed, except for kept digests, and for the
manifest of a batch from which rows were erased. An attempt writes in a folder of its own, and the manifest,
written last, makes it a batch. The content of a prepared transaction is one file; each batch at whose end the
transaction is still prepared names it in its manifest.
"""

from __future__ import annotations

import re

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError

_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_MANIFEST_NAME = re.compile(r"([0-9A-F]{16})-([0-9A-F]{16})-([0-9a-f]{16})\.json")
_ATTEMPT_PATH = re.compile(r"[a-z0-9_]{1,63}/data/([0-9A-F]{16})-[^/]+/.+")
_COPY_SEAL_NAME = re.compile(r"[0-9]+-[0-9A-F]{16}-([0-9a-f]{16})\.json")
_COPY_SEAL_PATH = re.compile(
    rf"[a-z0-9_]{{1,63}}/copies/([0-9A-F]{{16}})/{_COPY_SEAL_NAME.pattern}"
)
_MARK_NAME = re.compile(r"([0-9A-F]{16})-([0-9]{1,12})-[0-9a-f]{16}\.json")
_REPAIR_NAME = re.compile(r"([0-9]{1,12})-[0-9a-f]{16}\.json")
_SAFE_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")

#: Digits of a batch's id in the names of its files.
BATCH_ID_DIGITS = 16


def check_slot_name(slot_name: str) -> str:
    """Return ``slot_name`` if PostgreSQL accepts it. Then it is also safe in a path.

    Source: https://www.postgresql.org/docs/current/warm-standby.html (slot names).

    :raises ConfigurationError: PostgreSQL does not accept it.
    """
    if not _SLOT_NAME.fullmatch(slot_name):
        raise ConfigurationError(
            f"{slot_name!r} is not a slot name.",
            advice="use 1 to 63 lower-case letters, digits and underscores, as PostgreSQL demands.",
        )
    return slot_name


def join(root: str, relative: str) -> str:
    """Join the staging root and a path of a manifest. The result stays below the root.

    :raises BatchRefused: a part of ``relative`` could lead elsewhere.
    """
    parts = relative.split("/")
    if not all(_SAFE_PART.fullmatch(part) for part in parts):
        raise BatchRefused(
            "A path in the manifest leaves the staging area or has characters we never write.",
            advice="do not apply this batch; find out who wrote the manifest.",
        )
    return f"{root.rstrip('/')}/{relative}"


def manifest_folder(slot_name: str) -> str:
    """Folder of the manifests of a slot, relative to the staging root."""
    return f"{check_slot_name(slot_name)}/manifests"


def manifest_path(slot_name: str, start_lsn: Lsn, end_lsn: Lsn, batch_id: str) -> str:
    """Path of the manifest of one batch, relative to the staging root."""
    name = f"{start_lsn.sortable}-{end_lsn.sortable}-{batch_id[:BATCH_ID_DIGITS]}.json"
    return f"{manifest_folder(slot_name)}/{name}"


def parse_manifest_name(name: str) -> tuple[Lsn, Lsn] | None:
    """Start and end LSN from a manifest's file name; None: the name is not one of ours."""
    match = _MANIFEST_NAME.fullmatch(name)
    return (Lsn.from_sortable(match[1]), Lsn.from_sortable(match[2])) if match else None


def data_folder(slot_name: str) -> str:
    """Folder of the data files of all attempts, relative to the staging root."""
    return f"{check_slot_name(slot_name)}/data"


def parse_attempt_start(path: str) -> Lsn | None:
    """The start of the batch to which a data file belongs; None: the file is not one of ours."""
    match = _ATTEMPT_PATH.fullmatch(path)
    return Lsn.from_sortable(match[1]) if match else None


def attempt_folder(slot_name: str, start_lsn: Lsn, attempt: str) -> str:
    """Folder that receives all data files of one attempt to stage a batch."""
    return f"{data_folder(slot_name)}/{start_lsn.sortable}-{attempt}"


def table_folder(attempt_root: str, relation_oid: int, version: int) -> str:
    """Folder of the staged files of one table in one version of its schema."""
    return f"{attempt_root}/{relation_oid}-v{version}"


def file_name(kind: str, number: int) -> str:
    """Name of a staged file; ``kind`` is that of ``StagedFile``."""
    return f"{kind}-{number:05d}.parquet"


def prepared_folder(attempt_root: str) -> str:
    """Folder of the contents of prepared transactions."""
    return f"{attempt_root}/prepared"


def prepared_path(attempt_root: str, number: int) -> str:
    """Path of the content of a prepared transaction."""
    return f"{prepared_folder(attempt_root)}/prepared-{number:05d}.arrow"


def copies_folder(slot_name: str) -> str:
    """Folder of the seals of copied tables of all batches, relative to the staging root."""
    return f"{check_slot_name(slot_name)}/copies"


def copy_seal_folder(slot_name: str, start_lsn: Lsn) -> str:
    """Folder of the seals of one batch's copied tables, relative to the staging root."""
    return f"{copies_folder(slot_name)}/{start_lsn.sortable}"


def copy_seal_path(
    slot_name: str, start_lsn: Lsn, relation_oid: int, copy_lsn: Lsn, digest: str
) -> str:
    """Path of the seal of one copied table; ``digest`` is made of its content."""
    name = f"{relation_oid}-{copy_lsn.sortable}-{digest}.json"
    return f"{copy_seal_folder(slot_name, start_lsn)}/{name}"


def parse_copy_seal_name(name: str) -> str | None:
    """The digest from a seal's file name; None: the name is not one of ours."""
    match = _COPY_SEAL_NAME.fullmatch(name)
    return match[1] if match else None


def parse_copy_seal_start(path: str) -> Lsn | None:
    """The start of the batch to which a seal belongs; None: the file is not one of ours."""
    match = _COPY_SEAL_PATH.fullmatch(path)
    return Lsn.from_sortable(match[1]) if match else None


def mark_folder(slot_name: str) -> str:
    """Folder of the marks at which batches shall end, relative to the staging root."""
    return f"{check_slot_name(slot_name)}/marks"


def mark_path(slot_name: str, lsn: Lsn, expires_at: int, mark_id: str) -> str:
    """Path of a mark.

    :param expires_at: in seconds since 1970.
    """
    return f"{mark_folder(slot_name)}/{lsn.sortable}-{expires_at}-{mark_id}.json"


def parse_mark_name(name: str) -> tuple[Lsn, int] | None:
    """LSN and time of expiry from a mark's file name; None: the name is not one of ours."""
    match = _MARK_NAME.fullmatch(name)
    return (Lsn.from_sortable(match[1]), int(match[2])) if match else None


def kept_digests_path(slot_name: str, relation_oid: int) -> str:
    """Path of the digests that a verification of a table keeps for the next one."""
    return f"{check_slot_name(slot_name)}/proofs/{relation_oid}.json"


def erasure_claim_path(slot_name: str) -> str:
    """Path of the claim of the newest erasure of rows, see ``erasure/claim.py``."""
    return f"{check_slot_name(slot_name)}/erasing"


def repair_folder(slot_name: str) -> str:
    """Folder of the requests for repairs, relative to the staging root."""
    return f"{check_slot_name(slot_name)}/repairs"


def repair_path(slot_name: str, expires_at: int, request_id: str) -> str:
    """Path of a request for a repair.

    :param expires_at: in seconds since 1970.
    """
    return f"{repair_folder(slot_name)}/{expires_at}-{request_id}.json"


def parse_repair_name(name: str) -> int | None:
    """Time of expiry from the file name of a request for a repair; None: the name is not one of ours."""
    match = _REPAIR_NAME.fullmatch(name)
    return int(match[1]) if match else None


def plan_folder(slot_name: str) -> str:
    """Folder of the plans of a slot, relative to the staging root."""
    return f"{check_slot_name(slot_name)}/plans"


def job_path(slot_name: str, batch_id: str, attempt: str) -> str:
    """Path of the file that tells a Spark job what to do."""
    return f"{plan_folder(slot_name)}/{batch_id[:BATCH_ID_DIGITS]}-{attempt}.json"
