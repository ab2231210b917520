"""Start here: ``verify`` compares tables of the lake with the source as both were at one LSN.

1. A temporary slot with a snapshot gives the LSN. A mark in the staging area asks the pipeline to end a batch
   there. Nothing stops: the pipeline goes on behind it.
2. When the lake has reached the LSN, the server computes the digest of each table in the snapshot, and the
   digest of each table of the lake is computed from its files.
3. Where the digests differ, those of ranges are compared, then the keys in the ranges that differ.

A batch may be past the LSN already when it sees the mark. Then it is done again at a new LSN.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pgoutput.batch.answers import FAIL
from airflow_provider_pgoutput.batch.layout import check_slot_name
from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.marks import leave_mark
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDiffers,
    LakeUnavailable,
    PgoutputError,
    SourceChanged,
    SourceError,
    SourceUnavailable,
)
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.quarantine import incomplete_tables
from airflow_provider_pgoutput.lake.state import (
    open_catalog,
    read_recorded,
    tables_set_aside,
)
from airflow_provider_pgoutput.proof.lake_rows import LakeRows
from airflow_provider_pgoutput.proof.ranges import DifferentKeys, compare_keys, range_count
from airflow_provider_pgoutput.proof.repair_keys import (
    NO_KEY,
    ROLLED_BACK,
    TOO_WIDE,
    Irreparable,
    keys_to_repair,
    meant_to_differ,
)
from airflow_provider_pgoutput.proof.report import Differences, Proof, TableProof
from airflow_provider_pgoutput.proof.server_hashes import check_known
from airflow_provider_pgoutput.proof.source_rows import source_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable, Server
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from airflow_provider_pgoutput.proof.digest import RowHash
    from airflow_provider_pgoutput.proof.source_rows import SourceRows

log = logging.getLogger(__name__)

SUCCEED: Final = "succeed"
REPAIR: Final = "repair"
#: How often a new LSN is taken.
_MOST_LSNS: Final = 3
_MOST_NAMES: Final = 10
#: Rows whose keys are compared at most.
_MOST_ROWS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ProofRequest:
    """What is to be proven."""

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

    def __post_init__(self) -> None:
        check_slot_name(self.slot_name)
        if isinstance(self.tables, str) or isinstance(self.publication_names, str):
            raise ConfigurationError("tables and publication_names are lists of names.")
        if self.on_difference not in {FAIL, SUCCEED, REPAIR}:
            raise ConfigurationError(
                f"Unknown on_difference {self.on_difference!r}.",
                advice=f"use {FAIL!r}, {SUCCEED!r} or {REPAIR!r}.",
            )
        if self.keys_shown < 0 or self.wait_seconds <= 0:
            raise ConfigurationError("keys_shown is 0 or more, wait_seconds more than 0.")


class _Passed(Exception):
    """A batch that changed a table begins before the LSN and ends past it."""


def verify(
    request: ProofRequest,
    wait: Callable[[Lsn], None] | None = None,
    *,
    relation_oids: Collection[int] | None = None,
) -> Proof:
    """Compare the lake with the source at one LSN.

    :param wait: returns when the lake may have reached an LSN; None: the checkpoint is looked at until it
        has.
    :param relation_oids: compare only these of the request's tables, as far as they are published; None: all.
    :raises LakeUnavailable: the lake did not reach the LSN in time, or batches went past it three times.
    :raises ConfigurationError: there is nothing to compare.
    """
    for _ in range(_MOST_LSNS):
        try:
            return _verify_at_new_lsn(request, wait, relation_oids)
        except _Passed as passed:
            log.info("%s So nothing was compared at this LSN.", passed)
    raise LakeUnavailable(
        f"A batch went past the LSN of the verification {_MOST_LSNS} times.",
        slot=request.slot_name,
        advice="let the pipeline stage with this version of the package, so that its batches end at the mark"
        " of a verification; then verify again.",
    )


def refuse_differences(request: ProofRequest, proof: Proof) -> None:
    """Refuse a lake that differs, unless the request only wants to know.

    :raises LakeDiffers: a table differs.
    """
    if request.on_difference == SUCCEED or not proof.different:
        return
    shown = "; ".join(str(each) for each in proof.different[:_MOST_NAMES])
    more = len(proof.different) - _MOST_NAMES
    raise LakeDiffers(
        f"{shown}{f'; and {more} more tables' if more > 0 else ''}.",
        slot=request.slot_name,
        lsn=proof.lsn,
        advice="look at both sides as docs/proof.md says; on_difference='repair' or a copy (copy_tables)"
        " makes a table equal again.",
    )


def _verify_at_new_lsn(
    request: ProofRequest,
    wait: Callable[[Lsn], None] | None,
    relation_oids: Collection[int] | None,
) -> Proof:
    area = StagingArea(request.staging_uri)
    direct = request.conninfo if request.direct_conninfo is None else request.direct_conninfo
    with sessions.connect(request.conninfo) as session:
        check_known(session)
        server = read_server(session, direct)
    _check_source(request, server, _checkpoint(request))
    began = time.monotonic()
    with source_rows(request.conninfo, direct, server, request.publication_names) as source:
        wanted = [
            each
            for each in _wanted(request, source)
            if relation_oids is None or each.relation_oid in relation_oids
        ]
        mark = leave_mark(area, request.slot_name, source.lsn, request.wait_seconds)
        try:
            if wait is None:
                _wait_for_checkpoint(request, source.lsn)
            else:
                wait(source.lsn)
        finally:
            mark.remove()
        checkpoint = _check_reached(request, source.lsn)
        catalog = open_catalog(request.catalog_name, request.catalog_properties)
        targets = _targets(catalog, request)
        comparisons = [
            _Comparison(request, source, checkpoint, catalog, table, targets) for table in wanted
        ]
        for each in comparisons:
            each.refuse_spanning()
        proofs = tuple(each.prove() for each in comparisons)
    return Proof(
        slot_name=request.slot_name,
        system_identifier=server.system_identifier,
        lsn=source.lsn,
        tables=proofs,
        seconds=time.monotonic() - began,
    )


def _checkpoint(request: ProofRequest) -> Checkpoint:
    found = read_checkpoint(
        request.catalog_name, request.catalog_properties, request.namespace, request.slot_name
    )
    if found is None:
        raise ConfigurationError(
            f"The namespace {request.namespace} has no batch of the slot, so there is nothing to compare.",
            slot=request.slot_name,
            advice="run the pipeline first, or correct namespace and slot_name.",
        )
    return found


def _check_source(request: ProofRequest, server: Server, checkpoint: Checkpoint) -> None:
    if server.system_identifier != checkpoint.system_identifier:
        raise SourceChanged(
            f"The lake is of the system {checkpoint.system_identifier}, and the connection leads to"
            f" {server.system_identifier}.",
            slot=request.slot_name,
            advice="name the connection that the pipeline uses.",
        )


def _wait_for_checkpoint(request: ProofRequest, lsn: Lsn) -> None:
    """Look at the checkpoint until it has reached the LSN, or the time is over."""
    end, pause = time.monotonic() + request.wait_seconds, 1.0
    while _checkpoint(request).end_lsn < lsn and time.monotonic() < end:
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(2 * pause, 30.0)


def _check_reached(request: ProofRequest, lsn: Lsn) -> Checkpoint:
    checkpoint = _checkpoint(request)
    if checkpoint.end_lsn < lsn:
        raise LakeUnavailable(
            f"The lake is at {checkpoint.end_lsn} and did not reach the LSN of the verification.",
            slot=request.slot_name,
            lsn=lsn,
            advice="look whether the pipeline runs: no run of it ended since the verification began.",
        )
    return checkpoint


def _wanted(request: ProofRequest, source: SourceRows) -> list[PublishedTable]:
    published = {each.name: each for each in source.tables}
    if unknown := sorted(set(request.tables) - published.keys()):
        raise ConfigurationError(
            f"The publications do not have {', '.join(unknown)}.",
            advice="write tables as schema.table, as the publication names them.",
        )
    return [
        each for name, each in published.items() if not request.tables or name in request.tables
    ]


def _targets(catalog: Catalog, request: ProofRequest) -> dict[int, str | None]:
    """By OID: the target of each table that the lake has; None: it is set aside."""
    recorded = read_recorded(catalog, request.namespace, request.slot_name)
    found: dict[int, str | None] = {
        row.relation_oid: row.target
        for row in recorded
        if row.relation_oid is not None and row.target is not None
    }
    return found | dict.fromkeys(tables_set_aside(recorded))


@dataclass(frozen=True)
class _Comparison:
    """The comparison of one table."""

    request: ProofRequest
    source: SourceRows
    checkpoint: Checkpoint
    catalog: Catalog
    table: PublishedTable
    targets: Mapping[int, str | None]

    @cached_property
    def _target(self) -> str | None:
        return self.targets.get(self.table.relation_oid)

    @cached_property
    def _lake(self) -> LakeRows | None:
        """The table of the lake; None: there is nothing to compare with."""
        if self._target is None or self.table.relation_oid in self.checkpoint.passed_over:
            return None
        namespace = self.request.namespace
        # The name of a table may have a dot in it.
        name = self._target.removeprefix(f"{namespace}.")
        with lake_errors("read"):
            table = self.catalog.load_table((*namespace.split("."), name))
            return LakeRows.of(
                table,
                self._target,
                self.request.slot_name,
                self.table.relation_oid,
                self.source.lsn,
            )

    def refuse_spanning(self) -> None:
        """Refuse a table that a batch took past the LSN, before any row of any table is read.

        :raises _Passed: there is such a batch.
        """
        if self._lake is not None and self._lake.stands.spanning is not None:
            raise _Passed(f"A batch of {self.table.name} ends past {self.source.lsn}.")

    def prove(self) -> TableProof:
        """Compare the table. Another table is compared, too, where this one cannot be.

        :raises SourceUnavailable: the source is lost, and with it the snapshot.
        :raises LakeUnavailable: the lake does not answer.
        """
        if (why := self._lacks()) is not None:
            return self._not_compared(why)
        try:
            found = self._compared()
            is_moved = self.source.was_rewritten(self.table)
        except PgoutputError as error:
            why = self._of_the_table(error)
            if type(error) is SourceError:
                why += " A column may have another type than in the lake: no row came since it was altered."
            return self._not_compared(why)
        if is_moved:
            why = "its rows were moved since the LSN: TRUNCATE, ALTER TABLE, VACUUM FULL or another partition"
            return self._not_compared(why)
        return found

    def _of_the_table(self, error: PgoutputError) -> str:
        """What an error says that concerns this table alone. It is logged.

        :raises PgoutputError: it is the end of all comparisons.
        """
        if isinstance(error, SourceUnavailable | LakeUnavailable) or not self.source.is_open:
            raise error
        log.warning("%s", error)
        return f"{type(error).__name__}: {error.message}"

    def _not_compared(self, why: str) -> TableProof:
        oid = self.table.relation_oid
        return TableProof(self.table.name, self._target, not_compared=why, relation_oid=oid)

    def _lacks(self) -> str | None:
        """Why there is nothing to compare; None: there is."""
        if self._target is None:
            is_aside = self.table.relation_oid in self.targets
            return "it is set aside" if is_aside else "the lake does not have it"
        if self._lake is None:
            return "its changes are passed over"
        if self._lake.stands.came_later:
            return f"the lake has no snapshot of it from before {self.source.lsn}"
        return "it is a change log" if self._lake.is_log else None

    def _compared(self) -> TableProof:
        began, lake = time.monotonic(), self._lake
        assert lake is not None, "there is something to compare"
        columns, names, left_out = self._columns(lake)
        if not columns:
            return self._not_compared("the lake has none of its columns")
        row_hash = self.source.row_hash(columns, _salt())
        theirs = self.source.digest(self.table, row_hash)
        ours = lake.digest(names, row_hash)
        found = TableProof(
            table=self.table.name,
            target=self._target,
            source=theirs,
            lake=ours,
            columns_left_out=left_out,
            was_rolled_back=lake.was_rolled_back,
            seconds=time.monotonic() - began,
            relation_oid=self.table.relation_oid,
        )
        if theirs != ours:
            try:
                found = self._with_differences(found, lake, columns, names, row_hash)
            except PgoutputError as error:
                # The digests differ, whatever cannot be read now.
                found = dataclasses.replace(found, not_counted=self._of_the_table(error))
        return dataclasses.replace(found, seconds=time.monotonic() - began)

    @cached_property
    def _key_columns(self) -> tuple[str, ...]:
        """The key by which the pipeline writes the table; empty: it has none."""
        shape = self.checkpoint.shapes.get(self.table.relation_oid)
        names = {each.name for each in self.table.columns}
        if shape is not None and shape.key and names.issuperset(shape.key):
            return shape.key
        return self.table.key_columns

    def _columns(self, lake: LakeRows) -> tuple[list[Column], list[str], tuple[str, ...]]:
        """The columns that both sides have, their names in the lake, and the columns that it lacks."""
        columns, names, left_out = [], [], []
        for each in self.table.columns:
            found = lake.fields.get(each.attribute_number)
            if found is None and not lake.fields:
                found = lake.by_name.get(each.name)
            if found is None:
                left_out.append(each.name)
                continue
            columns.append(
                Column(each.name, each.type_oid, each.type_modifier, "", found.lake_type)
            )
            names.append(found.name)
        return columns, names, tuple(left_out)

    def _with_differences(
        self,
        proof: TableProof,
        lake: LakeRows,
        columns: Sequence[Column],
        names: Sequence[str],
        row_hash: RowHash,
    ) -> TableProof:
        """From the table to ranges, and from the ranges to keys."""
        assert proof.source is not None, "the table was compared"
        assert proof.lake is not None, "the table was compared"
        key = [each for each in columns if each.name in self._key_columns]
        has_key = bool(key) and len(key) == len(self._key_columns)
        key_hash = self.source.row_hash(key, row_hash.salt) if has_key else row_hash
        count = range_count(proof.source, proof.lake)
        of_source = self.source.ranges(self.table, key_hash, row_hash, count)
        of_lake = lake.ranges(names, key_hash, row_hash, count)
        unequal = of_source.different(of_lake)
        # So many ranges that their rows fit into memory.
        most = (of_source.rows[unequal] + of_lake.rows[unequal]).cumsum() <= _MOST_ROWS
        most[:1] = True
        looked_at = unequal[most].tolist()
        found = compare_keys(
            self.source.hashes(self.table, key_hash, row_hash, count, looked_at),
            lake.hashes(names, key_hash, row_hash, count, looked_at),
        )
        key_names = [name for name, each in zip(names, columns, strict=True) if each in key]
        differences = Differences(
            missing=found.missing.total(),
            surplus=found.surplus.total(),
            different=found.different.total(),
            ranges=len(unequal),
            of_ranges=count,
            ranges_looked_at=len(looked_at),
            keys=self._keys(lake, key_names, key_hash, found) if has_key else (),
            quarantined=self._quarantined(),
        )
        proof = dataclasses.replace(proof, differences=differences)
        if self.request.on_difference != REPAIR:
            return proof
        try:
            if not has_key:
                raise Irreparable(NO_KEY)
            if proof.was_rolled_back:
                raise Irreparable(ROLLED_BACK)
            if len(looked_at) < len(unequal):
                raise Irreparable(TOO_WIDE)
            found, stay = meant_to_differ(found, self.source.left_out(self.table))
            if stay is not None and not any((found.missing, found.surplus, found.different)):
                raise Irreparable(stay)
            keys = keys_to_repair(self.source, lake, self.table, key_names, key_hash, found)
            return dataclasses.replace(proof, to_repair=keys, not_repaired=stay)
        except Irreparable as why:
            return dataclasses.replace(proof, not_repaired=str(why))
        except PgoutputError as error:
            return dataclasses.replace(proof, not_repaired=self._of_the_table(error))

    def _quarantined(self) -> int:
        """How many keys of the table are in the quarantine."""
        found = incomplete_tables(self.catalog, self.request.namespace, self.request.slot_name)
        incomplete = found.get(self.table.relation_oid)
        return 0 if incomplete is None else len(incomplete.keys)

    def _keys(
        self, lake: LakeRows, names: Sequence[str], key_hash: RowHash, found: DifferentKeys
    ) -> tuple[str, ...]:
        """The first keys of rows that differ, as JSON; none without being asked."""
        most = self.request.keys_shown
        at_source = sorted({*found.missing, *found.different})[:most]
        in_lake = sorted(found.surplus.keys() - set(at_source))[: most - len(at_source)]
        texts = self.source.keys(self.table, key_hash, at_source) if at_source else {}
        if in_lake:
            texts |= lake.keys(names, key_hash, in_lake)
        return tuple(sorted(texts.values()))


def _salt() -> int:
    """A new one for each comparison, so that an accident of hashes does not happen twice."""
    return secrets.randbits(63)
