"""What a verification is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pgoutput.batch.answers import FAIL, check_answer
from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LEAST_SHARE: Final = 0.0001


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

    def __post_init__(self) -> None:
        check_slot_name(self.slot_name)
        if isinstance(self.tables, str) or isinstance(self.publication_names, str):
            raise ConfigurationError("tables and publication_names are lists of names.")
        check_answer("on_difference", self.on_difference)
        if not LEAST_SHARE <= self.share <= 1:
            raise ConfigurationError(f"share is from {LEAST_SHARE} to 1.")
        if self.keys_shown < 0 or self.wait_seconds <= 0:
            raise ConfigurationError("keys_shown is 0 or more, wait_seconds more than 0.")
