"""What a verification is asked for."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pgoutput.batch.answers import FAIL, check_answer
from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.proof.files.file_hash import HashEngine

log = logging.getLogger(__name__)

LEAST_SHARE: Final = 0.0001
#: The values of ``hash_function``.
SERVER, MD5 = "server", "md5"
#: The values of ``method``.
FULL, AUTO = "full", "auto"


@dataclass(frozen=True, kw_only=True)
class ProofRequest:
    """The arguments of a verification.

    :raises ConfigurationError: an argument has a wrong value.
    """

    #: Connection parameters of the source.
    conninfo: str | Mapping[str, Any] = field(repr=False)
    slot_name: str
    publication_names: Sequence[str]
    staging_uri: str
    namespace: str
    catalog_name: str
    catalog_properties: Mapping[str, str] = field(repr=False)
    #: The same server past a connection pooler; None: ``conninfo`` leads there.
    direct_conninfo: str | Mapping[str, Any] | None = field(repr=False, default=None)
    #: ``schema.table`` of the source; empty: all published tables.
    tables: Sequence[str] = ()
    #: How many keys of different rows the report names, for each table.
    keys_shown: int = 0
    #: ``fail``: a difference is an error. ``succeed``: it is reported only. ``repair``: see ``repair.py``.
    on_difference: str = FAIL
    #: The longest wait until the lake has reached the LSN.
    wait_seconds: float = 3600.0
    #: The pipeline's secret of hashed columns; None: they are not compared.
    mask_secret: bytes | None = field(repr=False, default=None)
    #: The fraction of each table's keys that one run compares: 0.01 is the next hundredth, 1 is all of them.
    share: float = 1.0
    #: ``server``: digests are made by PostgreSQL's own hash functions, and by md5 if the server computes
    #: others. ``md5``: they are made by md5.
    hash_function: str = SERVER
    #: ``full``: all rows of both sides are read. ``auto``: digests of what did not change since the last
    #: verification are carried over, where that is possible.
    method: str = FULL
    #: With ``auto``, every so many verifications of a table all is read.
    full_every: int = 10
    #: Hashes the lake's files of large tables; None: this process does.
    hash_engine: HashEngine | None = None

    def __post_init__(self) -> None:
        check_slot_name(self.slot_name)
        if isinstance(self.tables, str) or isinstance(self.publication_names, str):
            raise ConfigurationError("tables and publication_names are lists of names.")
        check_answer("on_difference", self.on_difference)
        if not LEAST_SHARE <= self.share <= 1:
            raise ConfigurationError(f"share is from {LEAST_SHARE} to 1.")
        if self.hash_function not in {SERVER, MD5}:
            raise ConfigurationError(
                f"Unknown hash_function {self.hash_function!r}.",
                advice=f"use {SERVER!r} or {MD5!r}.",
            )
        if self.method not in {FULL, AUTO}:
            raise ConfigurationError(
                f"Unknown method {self.method!r}.", advice=f"use {FULL!r} or {AUTO!r}."
            )
        if self.method == AUTO and (self.share != 1 or self.full_every < 1):
            raise ConfigurationError(
                "method='auto' compares whole tables, and all is read at times.",
                advice="leave share out, and let full_every be 1 or more.",
            )
        if self.keys_shown < 0 or self.wait_seconds <= 0:
            raise ConfigurationError("keys_shown is 0 or more, wait_seconds more than 0.")

    @property
    def direct(self) -> str | Mapping[str, Any]:
        """Connection parameters that lead to the server past a pooler."""
        return self.conninfo if self.direct_conninfo is None else self.direct_conninfo

    def is_md5(self, session: Session) -> bool:
        """Whether digests are made by md5: because the request says so, or this server needs it."""
        from airflow_provider_pgoutput.proof.server_hashes import (  # noqa: PLC0415 - it needs numpy
            are_known,
        )

        if self.hash_function == MD5:
            return True
        if are_known(session):
            return False
        log.warning(
            "The server's hash functions are not PostgreSQL's. So digests are made by md5, which takes more"
            " time."
        )
        return True
