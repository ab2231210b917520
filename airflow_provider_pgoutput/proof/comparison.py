"""Compares one table of the lake with the source at one LSN.

If the digests of both sides differ, it compares the keys in the ranges that differ.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from airflow_provider_pgoutput import __version__
from airflow_provider_pgoutput.batch.answers import REPAIR
from airflow_provider_pgoutput.errors import (
    LakeUnavailable,
    PgoutputError,
    SourceError,
    SourceUnavailable,
    SparkFailed,
    TableDamaged,
)
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.quarantine import incomplete_tables
from airflow_provider_pgoutput.proof.columns import columns_of_both
from airflow_provider_pgoutput.proof.files.lake_damage import metadata_missing
from airflow_provider_pgoutput.proof.key_ranges import KeyPart, KeyRanges, column_with_ranges
from airflow_provider_pgoutput.proof.lake_rows import LakeRows
from airflow_provider_pgoutput.proof.ranges import DifferentKeys, compare_keys, range_count
from airflow_provider_pgoutput.proof.repair_keys import (
    LOG,
    MOST_KEYS,
    NO_KEY,
    ROLLED_BACK,
    TOO_MANY,
    TOO_WIDE,
    Irreparable,
    keys_to_repair,
    meant_to_differ,
)
from airflow_provider_pgoutput.proof.report import IS_A_LOG, Differences, TableProof
from airflow_provider_pgoutput.proof.share import SALT, HashPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from airflow_provider_pgoutput.batch.earlier_systems import EarlierTable
    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.proof.changes.blockwise import Blockwise, Carried
    from airflow_provider_pgoutput.proof.digest import Digest, RowHash
    from airflow_provider_pgoutput.proof.key_ranges import Part
    from airflow_provider_pgoutput.proof.request import ProofRequest
    from airflow_provider_pgoutput.proof.share import Share, Turn
    from airflow_provider_pgoutput.proof.source_rows import SourceRows

log = logging.getLogger(__name__)

#: Ranges that differ are compared key by key, until both sides together have this many rows in them. The
#: first such range is always compared, however many rows it has.
_MOST_ROWS: Final = 1_000_000


class BatchSpansLsn(Exception):
    """A batch that changed a table begins before the LSN and ends past it."""


@dataclass(frozen=True)
class _Columns:
    """The columns that both sides have."""

    of_source: Sequence[Column]
    #: Their names in the lake.
    in_lake: Sequence[str]
    row_hash: RowHash
    #: Which of ``of_source`` are the key; empty: there is no key, or the lake lacks a column of it.
    of_key: Sequence[int]


@dataclass(frozen=True)
class _Digests:
    """The digests of a table on both sides; of one part, if a run compares only a part of the table."""

    columns: _Columns
    of_source: Digest
    of_lake: Digest
    #: The rows that differ are in here; None: they may be anywhere.
    part: Part | None = None
    #: How many rows both sides have in ``part`` together; None: they were not counted.
    rows: int | None = None
    #: The part that this run compared, for the record; None: the whole table was compared.
    share: Share | None = None
    #: What was read, and what was carried over from an earlier run; None: all was read as ever.
    carried: Carried | None = None


@dataclass(frozen=True)
class Comparison:
    """The comparison of one table."""

    request: ProofRequest
    source: SourceRows
    #: As the source sees it, see ``SourceRows.sees``.
    checkpoint: Checkpoint
    catalog: Catalog
    table: PublishedTable
    #: The part that this run compares; None: the whole table.
    turn: Turn | None = None
    #: Whether this comparison replaces a copy: after a lost slot, or of a new source. Then every row that
    #: differs is read again.
    #: Example: a publication sends no deletes, so the lake keeps rows that the source has no more. An
    #: ordinary repair leaves these rows. A copy would remove them, and so does this.
    is_for_a_copy: bool = False
    #: Carries over what did not change since the last run; None: all is read.
    blockwise: Blockwise | None = None
    #: The table on the system from which the lake was filled; None: that is this system, or it has its OID.
    earlier: EarlierTable | None = None

    @property
    def _oid_in_lake(self) -> int:
        """The OID of the table in the properties of the lake's tables, and in the quarantine."""
        return self.table.relation_oid if self.earlier is None else self.earlier.oid

    @property
    def _oid_in_checkpoint(self) -> int:
        """See ``Checkpoint.by_name_only``."""
        return self.table.relation_oid if self.earlier is None else -self.earlier.oid

    @property
    def _target(self) -> str | None:
        """``namespace.table``; None: the lake does not have the table, or it is set aside."""
        oid = self._oid_in_checkpoint
        return None if oid in self.checkpoint.set_aside else self.checkpoint.targets.get(oid)

    @cached_property
    def _lake(self) -> LakeRows | None:
        """The table of the lake; None: there is nothing to compare with.

        :raises TableDamaged: the table's newest metadata file is missing. The store did answer: the
            checkpoint table was read before.
        """
        request = self.request
        if self._target is None or self._oid_in_checkpoint in self.checkpoint.passed_over:
            return None
        # The name of a table may have a dot in it.
        name = self._target.removeprefix(f"{request.namespace}.")
        with lake_errors("read"):
            table = self._loaded((*request.namespace.split("."), name), self._target)
            of_source = request.slot_name, self._oid_in_lake, self.checkpoint.system_identifier
            return LakeRows.of(
                table, self._target, *of_source, self.source.lsn, request.hash_engine
            )

    @cached_property
    def _passing(self) -> PublishedTable:
        """The table of the source, with the rows that pass the filter of the lake's rows.

        :raises ConfigurationError: it cannot be evaluated any more.
        """
        row_filter = "" if self._lake is None else self._lake.row_filter
        return self.source.filtered(self.table, row_filter) if row_filter else self.table

    def _loaded(self, name: tuple[str, ...], target: str) -> Table:
        try:
            return self.catalog.load_table(name)
        except FileNotFoundError as error:
            first = error
        try:
            # A commit may have replaced the file since the catalog named it.
            return self.catalog.load_table(name)
        except FileNotFoundError as again:
            if str(again) != str(first):
                raise
            raise metadata_missing(target, again) from None

    def refuse_spanning(self) -> None:
        """Refuse a table if a batch of it ends past the LSN. Call it for all tables before any row is read.

        :raises BatchSpansLsn: there is such a batch.
        """
        try:
            lake = self._lake
        except TableDamaged:
            return  # ``prove`` says so.
        if lake is not None and lake.stands.spanning is not None:
            raise BatchSpansLsn(f"A batch of {self.table.name} ends past {self.source.lsn}.")

    @property
    def is_past_checkpoint(self) -> bool:
        """Whether a batch was applied to the table and not to all tables. Its apply died."""
        applied = None if self._lake is None else self._lake.applied_lsn
        return applied is not None and applied > self.checkpoint.end_lsn

    def prove(self) -> TableProof:
        """Compare the table. If it cannot be compared, the result says why, and the others can go on.

        :raises SourceUnavailable: the source is lost, and with it the snapshot.
        :raises PgoutputError: something failed, and the connection to the source is closed.
        :raises LakeUnavailable: the lake does not answer.
        :raises SparkFailed: the job that hashes the files of a large table failed.
        """
        try:
            if (why := self._why_not_comparable()) is not None:
                return self._not_compared(why)
            found = self._compared()
            is_moved = self.source.was_rewritten(self.table)
        except PgoutputError as error:
            why = self._of_the_table(error)
            if type(error) is SourceError:
                why += (
                    " Perhaps the type of a column was altered, and no row came since: the lake has the old"
                    " type."
                )
            return self._not_compared(why, is_damaged=isinstance(error, TableDamaged))
        if is_moved:
            why = (
                "it has other files or other partitions than at the LSN, for example after TRUNCATE,"
                " ALTER TABLE or VACUUM FULL"
            )
            return self._not_compared(why)
        return found

    def total_of_source(self, salt: int) -> tuple[Digest, str] | None:
        """The total of the source, and a fingerprint of what else it depends on; see ``held.py``.

        None: it cannot be computed before the lake has reached the LSN.

        :raises PgoutputError: see ``prove``.
        """
        try:
            lake = None if self._target is None else self._lake
            columns = None if lake is None else self._columns(lake)
            if lake is None or columns is None or not columns[0]:
                return None
            row_hash = self.source.row_hash(columns[0], salt)
            total = self.source.digest(self._passing, row_hash)
            if self.source.was_rewritten(self.table):
                return None
            return total, self._fingerprint(lake, columns)
        except PgoutputError as error:
            self._of_the_table(error)
            return None

    def prove_total(self, salt: int, total: tuple[Digest, str] | None) -> TableProof | None:
        """Compare the lake with a total that ``total_of_source`` gave. None: rows of the source are needed.

        :raises PgoutputError: see ``prove``.
        """
        began = time.monotonic()
        try:
            if (why := self._why_not_comparable()) is not None:
                return self._not_compared(why)
            lake = self._lake
            assert lake is not None, "there is something to compare"
            columns = self._columns(lake)
            if total is None or total[1] != self._fingerprint(lake, columns):
                return None
            row_hash = self.source.row_hash(columns[0], salt)
            of_source, of_lake = total[0], lake.digest(columns[1], row_hash)
        except PgoutputError as error:
            # ``verify`` compares the table, and says what is wrong with it.
            self._of_the_table(error)
            return None
        if of_source != of_lake:
            return None
        return TableProof(
            table=self.table.name,
            target=self._target,
            source=of_source,
            lake=of_lake,
            columns_left_out=columns[2],
            was_rolled_back=lake.was_rolled_back,
            seconds=time.monotonic() - began,
            relation_oid=self.table.relation_oid,
        )

    def _fingerprint(
        self, lake: LakeRows, columns: tuple[Sequence[Column], Sequence[str], Sequence[str]]
    ) -> str:
        """All on which a total depends, except for rows and salt.

        :param columns: see ``_columns``.
        """
        parts = (
            __version__,
            self._target,
            self.source.row_hash(columns[0], 0).expression("t").as_string(),
            self._passing.row_filters,
            columns,
            lake.definition(columns[1]),
            lake.masks,
            lake.is_log,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _of_the_table(self, error: PgoutputError) -> str:
        """Log an error that concerns this table only, and return its text.

        :raises PgoutputError: the error concerns all tables. Example: the source is gone.
        """
        of_all = SourceUnavailable | LakeUnavailable | SparkFailed
        if isinstance(error, of_all) or not self.source.is_open:
            raise error
        log.warning("%s", error)
        return f"{type(error).__name__}: {error.message}"

    def _not_compared(self, why: str, *, is_damaged: bool = False) -> TableProof:
        return TableProof(
            self.table.name,
            self._target,
            not_compared=why,
            is_damaged=is_damaged,
            relation_oid=self.table.relation_oid,
            share=None if self.turn is None else self.turn.done(),
        )

    def _why_not_comparable(self) -> str | None:
        """Why there is nothing to compare; None: there is."""
        oid, no_slice = self._oid_in_checkpoint, "the lake's shared table has no rows of it"
        if self._target is None:
            is_aside = oid in self.checkpoint.set_aside
            return "it is set aside" if is_aside else "the lake does not have it"
        if self._lake is None:
            is_passed_over = oid in self.checkpoint.passed_over
            return "its changes are passed over" if is_passed_over else no_slice
        if self._lake.stands.spanning is not None:
            # ``refuse_spanning`` would have found it, but could not load the table then.
            return f"a batch of it ends past {self.source.lsn}"
        if self._lake.stands.came_later:
            return f"the lake has no snapshot of it from before {self.source.lsn}"
        if self._lake.is_log and self.is_for_a_copy:
            # What the log lacks would have to become changes of their own. A copy does that.
            return IS_A_LOG
        why = self._lake.why_no_rows
        return None if why is None else f"{IS_A_LOG}, and its current rows are not known: {why}"

    def _compared(self) -> TableProof:
        began, lake = time.monotonic(), self._lake
        assert lake is not None, "there is something to compare"
        columns, names, left_out = self._columns(lake)
        if not columns:
            return self._not_compared("the lake has none of its columns")
        row_hash = self.source.row_hash(columns, _salt())
        key = self._key_columns
        # A masked key says nothing about the row of the source, and its plain value is shown nowhere.
        of_key = [
            position
            for position, each in enumerate(columns)
            if each.name in key and each.mask is None
        ]
        if len(of_key) < len(key):
            of_key = []
        of_both = _Columns(columns, names, row_hash, of_key)
        both = self._digests_by_block(lake, of_both) or self._digests(lake, of_both)
        found = TableProof(
            table=self.table.name,
            target=self._target,
            source=both.of_source,
            lake=both.of_lake,
            columns_left_out=left_out,
            was_rolled_back=lake.was_rolled_back,
            seconds=time.monotonic() - began,
            relation_oid=self.table.relation_oid,
            share=both.share,
            carried=both.carried,
        )
        if both.of_source != both.of_lake:
            try:
                found = self._with_differences(found, lake, both)
            except PgoutputError as error:
                # The digests differ. So the table counts as different, even if no row of it can be read now.
                found = dataclasses.replace(found, not_counted=self._of_the_table(error))
        return dataclasses.replace(found, seconds=time.monotonic() - began)

    def _digests(self, lake: LakeRows, columns: _Columns) -> _Digests:
        """The digests of both sides, and the part of the keys in which rows differ."""
        row_hash, key = columns.row_hash, columns.of_key
        of_numbers = column_with_ranges(columns.of_source[position] for position in key)
        bounds = None if of_numbers is None else self.source.key_bounds(self._passing, of_numbers)
        if of_numbers is not None and bounds is not None:
            field = columns.in_lake[row_hash.names.index(of_numbers)]
            return self._digests_by_key(lake, columns, (of_numbers, field), bounds)
        part: HashPart | None = None
        if self.turn is not None and of_numbers is None:
            positions = key or range(len(columns.of_source))
            part = HashPart(
                self.source.row_hash([columns.of_source[position] for position in positions], SALT),
                [columns.in_lake[position] for position in positions],
                self.turn,
            )
        of_source = self.source.digest(self._passing, row_hash, part)
        of_lake = lake.digest(columns.in_lake, row_hash, part)
        # If the source has no rows, there are no bounds. Then the whole table is compared, and recorded as
        # the part.
        share = None if self.turn is None else self.turn.done()
        return _Digests(columns, of_source, of_lake, part, share=share)

    def _digests_by_block(self, lake: LakeRows, columns: _Columns) -> _Digests | None:
        """The digests, of which most may be carried over; None: nothing can be, or the sums differ."""
        blockwise = self.blockwise
        if blockwise is None:
            return None
        if (why := blockwise.why_not(self._passing, lake)) is not None:
            log.debug("%s is read in whole: %s.", self.table.name, why)
            return None
        found = blockwise.digests(self._passing, lake, columns.of_source, columns.in_lake)
        if found.of_source == found.of_lake and not self.source.was_rewritten(self.table):
            blockwise.keep(self.table, found)
            return _Digests(columns, found.of_source, found.of_lake, carried=found.carried)
        # If both sides turn out to be equal, a digest that was kept is wrong. None of them may stay.
        blockwise.forget(self.table)
        log.info(
            "%s: the digests differ, or the table got new files, so both sides are read in whole.",
            self.table.name,
        )
        return None

    def _digests_by_key(
        self,
        lake: LakeRows,
        columns: _Columns,
        names: tuple[str, str],
        bounds: tuple[int, int],
    ) -> _Digests:
        row_hash, share = columns.row_hash, None
        least, greatest = bounds
        first, last = None, None
        if self.turn is not None:
            first, last = self.turn.bounds(least, greatest)
            share = self.turn.done(last)
            least = least if first is None else first
            greatest = max(least, greatest if last is None else last)
        ranges = KeyRanges.between(
            names, least, greatest, (first, last), is_fine=self.is_for_a_copy
        )
        of_lake = lake.digests_by_key(columns.in_lake, row_hash, ranges)
        if not self.is_for_a_copy:
            # To group rows by ranges costs the server as much again as half of a digest.
            whole = None if ranges.is_unbounded else ranges.whole
            total = self.source.digest(self._passing, row_hash, whole)
            if total == of_lake.digest:
                return _Digests(columns, total, total, share=share)
        of_source = self.source.digests_by_key(self._passing, row_hash, ranges)
        unequal = of_source.different(of_lake)
        part = KeyPart(ranges, tuple(unequal.tolist())) if len(unequal) else None
        rows = int((of_source.rows[unequal] + of_lake.rows[unequal]).sum())
        return _Digests(columns, of_source.digest, of_lake.digest, part, rows, share)

    @cached_property
    def _key_columns(self) -> tuple[str, ...]:
        """The key by which the pipeline writes the table, if it is known and published; else the source's.

        Empty: there is none.
        """
        shape = self.checkpoint.shapes.get(self._oid_in_checkpoint)
        names = {each.name for each in self.table.columns}
        if shape is not None and shape.key and names.issuperset(shape.key):
            return shape.key
        return self.table.key_columns

    def _columns(self, lake: LakeRows) -> tuple[list[Column], list[str], tuple[str, ...]]:
        """See ``columns_of_both``."""
        secret, cuts_as_lake = self.request.mask_secret, self.source.cuts_as_lake
        return columns_of_both(self.table, lake, self.earlier, secret, cuts_as_lake=cuts_as_lake)

    def _with_differences(self, proof: TableProof, lake: LakeRows, both: _Digests) -> TableProof:
        """Add how many rows differ. For a repair also add their keys, or why they are not repaired."""
        part = both.part
        if self.is_for_a_copy and isinstance(part, KeyPart) and len(part.numbers) > MOST_KEYS:
            # Each range has a key that differs.
            return dataclasses.replace(proof, not_repaired=TOO_MANY)
        columns, row_hash = both.columns, both.columns.row_hash
        key = [columns.of_source[position] for position in columns.of_key]
        has_key = bool(key)
        key_hash = self.source.row_hash(key, row_hash.terms.salt) if has_key else row_hash
        found, ranges, of_ranges, looked_at = self._different_keys(lake, both, key_hash)
        key_names = [columns.in_lake[position] for position in columns.of_key]
        differences = Differences(
            missing=found.missing.total(),
            surplus=found.surplus.total(),
            different=found.different.total(),
            ranges=ranges,
            of_ranges=of_ranges,
            ranges_looked_at=looked_at,
            keys=self._keys(lake, key_names, key_hash, found, part) if has_key else (),
            quarantined=self._quarantined(),
        )
        proof = dataclasses.replace(proof, differences=differences)
        if self.request.on_difference != REPAIR:
            return proof
        try:
            if lake.is_log:
                raise Irreparable(LOG)
            if not has_key:
                raise Irreparable(NO_KEY)
            if proof.was_rolled_back:
                raise Irreparable(ROLLED_BACK)
            if looked_at < ranges:
                raise Irreparable(TOO_WIDE)
            left_out = () if self.is_for_a_copy else self.source.left_out(self.table)
            found, stay = meant_to_differ(found, left_out)
            if stay is not None and not any((found.missing, found.surplus, found.different)):
                raise Irreparable(stay)
            keys = keys_to_repair(
                self.source, lake, self._passing, key_names, key_hash, found, part
            )
            return dataclasses.replace(proof, to_repair=keys, not_repaired=stay)
        except Irreparable as why:
            return dataclasses.replace(proof, not_repaired=str(why))
        except PgoutputError as error:
            return dataclasses.replace(proof, not_repaired=self._of_the_table(error))

    def _different_keys(
        self, lake: LakeRows, both: _Digests, key_hash: RowHash
    ) -> tuple[DifferentKeys, int, int, int]:
        """Compare keys in the ranges that differ.

        If the key has a column of whole numbers, the table was compared in ranges of this column. If the
        ranges that differ have few rows, all their keys are compared. Otherwise rows are put into ranges by
        the hash of their key, and the keys in some of these ranges are compared.

        :return: the keys that differ; how many ranges differ, how many there are, and in how many keys were
            compared.
        """
        names, row_hash = both.columns.in_lake, both.columns.row_hash
        part = both.part
        if isinstance(part, KeyPart) and both.rows is not None and both.rows <= _MOST_ROWS:
            count, looked_at, unequal = 1, [0], len(part.numbers)
            result = (unequal, part.ranges.count, unequal)
        else:
            count = range_count(both.of_source, both.of_lake)
            of_source = self.source.ranges(self._passing, key_hash, row_hash, count, part)
            of_lake = lake.ranges(names, key_hash, row_hash, count, part)
            different = of_source.different(of_lake)
            # Ranges are taken until their rows reach the limit, and the first one in any case.
            most = (of_source.rows[different] + of_lake.rows[different]).cumsum() <= _MOST_ROWS
            most[:1] = True
            looked_at = different[most].tolist()
            result = (len(different), count, len(looked_at))
        found = compare_keys(
            self.source.hashes(self._passing, key_hash, row_hash, count, looked_at, part),
            lake.hashes(names, key_hash, row_hash, count, looked_at, part),
        )
        return found, *result

    def _quarantined(self) -> int:
        """How many keys of the table are in the quarantine."""
        found = incomplete_tables(self.catalog, self.request.namespace, self.request.slot_name)
        incomplete = found.get(self._oid_in_lake)
        return 0 if incomplete is None else len(incomplete.keys)

    @property
    def holds_rows_back(self) -> bool:
        """Whether rows of the table are in the quarantine."""
        return self._quarantined() > 0

    def _keys(
        self,
        lake: LakeRows,
        names: Sequence[str],
        key_hash: RowHash,
        found: DifferentKeys,
        part: Part | None,
    ) -> tuple[str, ...]:
        """Up to ``keys_shown`` keys of rows that differ, as JSON."""
        most = self.request.keys_shown
        at_source = sorted({*found.missing, *found.different})[:most]
        in_lake = sorted(found.surplus.keys() - set(at_source))[: most - len(at_source)]
        texts = self.source.keys(self._passing, key_hash, at_source, part) if at_source else {}
        if in_lake:
            texts |= lake.keys(names, key_hash, in_lake, part)
        return tuple(sorted(texts.values()))


def _salt() -> int:
    """A new salt for each comparison: two rows that have one hash by chance have two the next time."""
    return secrets.randbits(63)
