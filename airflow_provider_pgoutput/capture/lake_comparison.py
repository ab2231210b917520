"""What capture asks about the lake after a lost slot: which rows of it differ from the source.

Capture itself reads no table of the lake. ``proof/after_loss.py`` does, and answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from airflow_provider_pgoutput.batch.earlier_systems import EarlierTable
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.capture.staging.repairs import KeysOfTable
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """An exported snapshot of the source, and the tables that are compared in it."""

    #: A libpq connection string or URI, or its parameters.
    conninfo: str | Mapping[str, Any] = field(repr=False)
    name: str
    #: It has what committed before this.
    lsn: Lsn
    tables: Sequence[PublishedTable]
    #: How far the lake is.
    checkpoint: Checkpoint
    #: By OID: the tables that had another OID on the system from which the lake was filled.
    earlier: Mapping[int, EarlierTable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableDifference:
    """How a table of the lake differs from the source."""

    table: PublishedTable
    #: The keys of all rows that differ; None: there are none, or they are not known.
    keys: KeysOfTable | None = field(default=None, repr=False)
    #: Why the keys are not known; None: they are.
    why_unknown: str | None = None
    #: What was found, for the log.
    words: str = ""


class LakeComparison(Protocol):
    """Compares tables of the lake with the source."""

    def started(
        self, snapshot: SourceSnapshot
    ) -> AbstractContextManager[Iterator[TableDifference]]:
        """Begin to compare. The iterator yields each table once.

        :raises SnapshotLost: the snapshot does not exist any more.
        """
        ...
