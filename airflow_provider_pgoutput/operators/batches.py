"""What arrived by XCom, checked before anybody acts on it. It informs; the checkpoint decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_pgoutput.batch.layout import parse_manifest_name
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.xcom import SCHEMA_VERSION
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError
from airflow_provider_pgoutput.operators.arguments import mapping

_ADVICE = "clear the stage task of this run, so that it stages the batch again."


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """The fields of ``BatchXCom`` that name a batch, consistent with each other."""

    slot_name: str
    batch_id: str
    start_lsn: Lsn
    end_lsn: Lsn
    manifest_uri: str

    @classmethod
    def optional(cls, value: Any, slot_name: str) -> ReceivedBatch | None:
        """Check a batch that may be missing.

        :raises BatchRefused: when it is there and something is wrong with it.
        """
        body = mapping(value, "batch")
        return cls._checked(body, slot_name) if body else None

    @classmethod
    def required(cls, value: Any, slot_name: str) -> ReceivedBatch:
        """Check a batch that must be there.

        :raises BatchRefused: when it is missing, or something is wrong with it.
        """
        batch = cls.optional(value, slot_name)
        if batch is None:
            raise BatchRefused(
                "No batch arrived from the stage task.", slot=slot_name, advice=_ADVICE
            )
        return batch

    @classmethod
    def _checked(cls, body: dict[str, Any], slot_name: str) -> ReceivedBatch:
        if body.get("schema_version") != SCHEMA_VERSION:
            raise BatchRefused(
                f"The batch has schema version {body.get('schema_version')!r}, this version of the"
                f" package reads {SCHEMA_VERSION}.",
                slot=slot_name,
                advice=_ADVICE,
            )
        try:
            batch = cls(
                slot_name=body["slot_name"],
                batch_id=body["batch_id"],
                start_lsn=Lsn.parse(body["start_lsn"]),
                end_lsn=Lsn.parse(body["end_lsn"]),
                manifest_uri=body["manifest_uri"],
            )
            folder, _, name = batch.manifest_uri.rpartition("/")
        except (KeyError, AttributeError, ConfigurationError) as error:
            raise BatchRefused(
                "The batch lacks a field or has one of another type.",
                slot=slot_name,
                advice=_ADVICE,
            ) from error
        if batch.slot_name != slot_name or not folder.endswith(f"/{slot_name}/manifests"):
            raise BatchRefused(
                "The batch is of another slot.",
                slot=slot_name,
                advice="give the stage, apply and advance tasks the same slot_name.",
            )
        if parse_manifest_name(name) != (batch.start_lsn, batch.end_lsn):
            raise BatchRefused(
                "The batch was altered: its LSNs are not those of its manifest.",
                slot=slot_name,
                lsn=batch.end_lsn,
                advice=_ADVICE,
            )
        return batch
