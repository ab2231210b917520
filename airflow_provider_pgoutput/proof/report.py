"""What a verification found. It has numbers, and keys only where they were asked for; never other values."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.checkpoint import QUARANTINE_TABLE

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.staging.repairs import KeysOfTable
    from airflow_provider_pgoutput.proof.changes.blockwise import Carried
    from airflow_provider_pgoutput.proof.digest import Digest
    from airflow_provider_pgoutput.proof.share import Share

#: Why a change log is not compared, if it is to replace a copy, or its current rows are not known.
IS_A_LOG = "it is a change log"


@dataclass(frozen=True, slots=True)
class Differences:
    """How the rows of a table differ."""

    #: Rows that the lake lacks.
    missing: int
    #: Rows that only the lake has.
    surplus: int
    #: Rows that have the same key on both sides, and other values. Without a key such a row counts as
    #: missing and as surplus.
    different: int
    #: How many ranges of keys differ.
    ranges: int
    #: How many ranges of keys there are.
    of_ranges: int
    #: In how many of the ranges that differ keys were compared. If very many rows differ, not in all.
    ranges_looked_at: int
    #: Keys as JSON, as many as were asked for.
    keys: tuple[str, ...] = ()
    #: Keys of the table that are in the quarantine.
    quarantined: int = 0

    def __str__(self) -> str:
        least = "at least " if self.ranges_looked_at < self.ranges else ""
        known = f"; {self.quarantined} keys are in {QUARANTINE_TABLE}" if self.quarantined else ""
        return (
            f"{least}{self.missing} missing, {self.surplus} surplus and {self.different} different rows"
            f" in {self.ranges} of {self.of_ranges} ranges of keys{known}"
        )


@dataclass(frozen=True, slots=True)
class TableProof:
    """What was found about one table."""

    #: ``schema.table`` of the source.
    table: str
    #: ``namespace.table``; None: the lake does not have it.
    target: str | None
    source: Digest | None = None
    lake: Digest | None = None
    #: None: there are none, or they could not be counted.
    differences: Differences | None = None
    #: Why rows that differ could not be counted, although the digests differ; None: they were, or are equal.
    not_counted: str | None = None
    #: Why the table was not compared; None: it was.
    not_compared: str | None = None
    #: A file of the table is missing or damaged. So readers of the lake lack rows.
    is_damaged: bool = False
    #: Published columns that were not compared: the lake does not have them yet, or has them masked.
    columns_left_out: tuple[str, ...] = ()
    #: Somebody rolled the table back in the lake.
    was_rolled_back: bool = False
    seconds: float = 0.0
    #: The keys of the rows that differ, as far as they are repaired.
    to_repair: KeysOfTable | None = field(default=None, repr=False)
    #: Why all or some of them are not repaired; None: all are, or no repair was asked for.
    not_repaired: str | None = None
    #: OID of the table at the source.
    relation_oid: int = 0
    #: The part of the table that was compared; None: all of it.
    share: Share | None = None
    #: What was read, and what was carried over from an earlier verification; None: all was read as ever.
    carried: Carried | None = None

    @property
    def is_equal(self) -> bool:
        """Whether lake and source were compared, and are equal."""
        return self.not_compared is None and self.source == self.lake

    @property
    def is_different(self) -> bool:
        """Whether lake and source were compared, and differ."""
        return self.not_compared is None and self.source != self.lake

    @property
    def level(self) -> int:
        """The level of its line in the log: a warning, unless the table is proven equal."""
        return logging.INFO if self.is_equal else logging.WARNING

    def __str__(self) -> str:
        if self.not_compared is not None:
            return f"{self.table} was not compared: {self.not_compared}"
        rolled = ", and somebody rolled the table back" if self.was_rolled_back else ""
        part = f" in {self.share}" if self.share else ""
        if self.is_different:
            found = self.differences or f"its rows could not be counted ({self.not_counted})"
            why = f"; it is not repaired: {self.not_repaired}" if self.not_repaired else ""
            return f"{self.table} differs from {self.target}: {found}{part}{rolled}{why}"
        rows = 0 if self.source is None else self.source.rows
        left = f", without {', '.join(self.columns_left_out)}" if self.columns_left_out else ""
        read = f", {self.carried}" if self.carried else ""
        return f"{self.table} equals {self.target}: {rows} rows{part}{left}{rolled}{read}"


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found about all tables at one LSN."""

    slot_name: str
    system_identifier: str
    lsn: Lsn
    tables: tuple[TableProof, ...]
    seconds: float = 0.0

    @property
    def different(self) -> tuple[TableProof, ...]:
        """The tables that differ."""
        return tuple(each for each in self.tables if each.is_different)

    @property
    def wrong(self) -> tuple[TableProof, ...]:
        """The tables that differ or are damaged."""
        return tuple(each for each in self.tables if each.is_different or each.is_damaged)

    @property
    def compared_nothing(self) -> bool:
        """Whether there are tables, and none of them was compared."""
        return bool(self.tables) and all(each.not_compared is not None for each in self.tables)

    def __str__(self) -> str:
        equal = [each.source for each in self.tables if each.is_equal and each.source is not None]
        rows = sum(each.rows for each in equal)
        return f"{len(equal)} of {len(self.tables)} tables, {rows} rows proven equal at {self.lsn}"
