"""The tables of a batch as its manifest lists them. They are made when everything was read.

A table may be gone at the source, or set aside. Then the manifest has only those of its changes that can be
followed, see ``schema/gone.py``. ``schema/history.py`` knows what happened to the columns.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from airflow_provider_pgoutput.batch.changes import COMMIT_LSN, OP
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.passed_over import first_lsn
from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.capture.schema.gone import followed
from airflow_provider_pgoutput.capture.staging.repairs import RepairRefused
from airflow_provider_pgoutput.capture.staging.storage_errors import storage_errors
from airflow_provider_pgoutput.errors import (
    RetryableError,
    SnapshotLost,
    TableRefused,
    ValueRefused,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.capture.schema.history import SchemaHistory
    from airflow_provider_pgoutput.capture.staging.area import StagingArea
    from airflow_provider_pgoutput.capture.staging.passing import Passing
    from airflow_provider_pgoutput.capture.staging.tables import StagedTable, StagedTables

log = logging.getLogger(__name__)

_RENAMED = "The lake has it under another name."
_SAME_NAME = "Another table has its name."


class Finished(NamedTuple):
    """Parts of the batch: its staging area, its tables, the changes that are passed over, its start."""

    area: StagingArea
    tables: StagedTables
    passing: Passing
    start: Lsn
    #: OIDs of the tables with rows that were read again.
    repaired: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CatalogAfter:
    """What the catalogs say when all of a batch was read."""

    #: Knows which column is which, and what became of it.
    history: SchemaHistory
    #: By OID: schema and name of the tables whose name in the stream is out of date.
    names: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    #: By OID: tables with rows in the batch that are gone, or not published any more. The value is their name
    #: in the lake; None: the lake does not have them.
    unpublished: Mapping[int, str | None] = field(default_factory=dict)


def finished_tables(batch: Finished, catalog: CatalogAfter) -> tuple[Table, ...]:
    """The tables of the manifest, each with a name of its own.

    Several tables of one batch can have one name: ``DROP TABLE t; CREATE TABLE t``, and that again. A table
    that is copied keeps its name, because the copy replaces everything that the lake has under it. The next
    choice is a table that is published now, then one that the lake has, then the newest one. The others are
    left out.

    :raises CopyNeeded: a table changed so that it has to be copied.
    :raises RepairRefused: a table with rows that were read again would be refused or passed over.
    """
    history, names, unpublished = catalog.history, catalog.names, catalog.unpublished
    history.check_unwritten()
    staged = sorted(batch.tables.by_oid.items())
    copied = {
        each.name
        for oid, table in staged
        if (each := table.finished(names.get(oid))).copy_lsn is not None
    }
    lake_names = set(batch.passing.lake_names.values())
    found: dict[int, Table] = {}
    taken: set[str] = set()
    gone: list[tuple[int, StagedTable]] = []
    for oid, table in staged:
        finished = table.finished(names.get(oid))
        if oid not in unpublished:
            taken.add(finished.name)
            if (kept := _published(batch, history, table, finished)) is not None:
                found[oid] = kept
        elif not _is_replaced(finished, unpublished[oid], copied):
            gone.append((oid, table))
    # False sorts before True: first the tables that the lake has, then the newest of the others.
    gone.sort(key=lambda each: (unpublished[each[0]] is None, -_begins(each[1].finished(None))))
    for oid, table in gone:
        lake_name = unpublished[oid]
        name = lake_name or table.finished(names.get(oid)).name
        is_taken = name in taken or (lake_name is None and name in lake_names)
        kept = _gone(batch, history, table, lake_name, names.get(oid), is_taken)
        if kept is not None:
            found[oid] = kept
            taken.add(kept.name)
    for oid in sorted(batch.repaired & batch.passing.found.keys()):
        passed = batch.passing.found[oid]
        raise RepairRefused(oid, passed.table_name, passed.reason)
    return tuple(found[oid] for oid in sorted(found))


def _begins(table: Table) -> int:
    """The commit LSN of the first change of a table in the batch; 0: there is none."""
    return int(first_lsn(table.versions) or 0)


def _is_replaced(table: Table, lake_name: str | None, copied: set[str]) -> bool:
    """Whether a copied table of this batch has the name of a table that is gone."""
    last = table.versions[-1]
    earlier_names = {lake_name, f"{last.schema_name}.{last.table_name}"}
    if table.copy_lsn is not None or copied.isdisjoint(earlier_names):
        return False
    log.warning(
        "Table %s left the publications and another one that is copied has its name: its last %d"
        " changes are not in this batch.",
        table.name,
        table.counts.changes,
    )
    return True


def _published(
    batch: Finished, history: SchemaHistory, staged: StagedTable, table: Table
) -> Table | None:
    """A published table, completed. If it is set aside, the part before that; None: there is no such part.

    :raises CopyNeeded: it changed so that it has to be copied.
    :raises TableRefused: it cannot be followed, and is not set aside.
    """
    oid, passing = table.relation_oid, batch.passing

    def complete(part: Table) -> Table:
        return history.complete(part, staged.oldest_xids)

    refused = passing.found.get(oid)
    part = table.until(Lsn.parse(refused.since_lsn)) if refused and refused.since_lsn else table
    if part is not None:
        try:
            part = complete(part)
        except (SnapshotLost, TableRefused, ValueRefused) as error:
            if oid in batch.repaired:
                # Without the repair the table may have no rows in the batch, and then it is not completed.
                may_pass = isinstance(error, RetryableError)
                raise RepairRefused(oid, table.name, str(error), may_pass=may_pass) from error
            # Nothing of a copied table is older than the copy, and without it the batch has nothing.
            lsn = first_lsn(part.versions) or Lsn.parse(part.copy_lsn or "0/0")
            passing.set_aside(oid, table.name, lsn, error)
            part, since, _ = followed(complete, part)
            if part is None and table.copy_lsn is not None:
                since = batch.start
            if since is not None:
                passing.set_aside(oid, table.name, since, error)
    return _without_passed(batch, table, part) if oid in passing.found else part


def _gone(
    batch: Finished,
    history: SchemaHistory,
    staged: StagedTable,
    lake_name: str | None,
    name: tuple[str, str] | None,
    is_taken: bool,
) -> Table | None:
    """The part of a gone table that can be followed, under its name in the lake; None: there is none.

    :param is_taken: whether another table of the batch or of the lake has its name. Then nothing is kept.
    """
    table = staged.finished(_name_in_lake(staged, lake_name) or name)
    table = dataclasses.replace(table, is_gone=True)
    if lake_name is None and not any(each.columns for each in table.versions):
        # A table without columns, which the lake never had.
        return None
    oid, passing, whole = table.relation_oid, batch.passing, table
    passing.is_gone(oid)
    refused = passing.found.get(oid)
    shorter: Table | None = table
    if refused is not None and refused.since_lsn is not None:
        shorter = table.until(Lsn.parse(refused.since_lsn))
    first = first_lsn(table.versions)
    is_renamed = lake_name not in {None, table.name} and table.copy_lsn is None
    if (is_renamed or is_taken) and first is not None:
        shorter = None
        passing.begin(oid, table.name, first, _RENAMED if is_renamed else _SAME_NAME)
    elif shorter is not None:
        shorter, lsn, reason = followed(
            lambda part: history.complete(part, staged.oldest_xids), shorter
        )
        if lsn is not None:
            passing.begin(oid, table.name, lsn, reason)
    return _without_passed(batch, whole, shorter) if oid in passing.found else shorter


def _without_passed(batch: Finished, whole: Table, kept: Table | None) -> Table | None:
    """The kept part of a table, with the counts of its own changes. The others are counted as passed over."""
    passed = _passed(batch.area, whole, kept)
    batch.passing.count(whole.relation_oid, passed.changes)
    if kept is None:
        return None
    counts = kept.counts
    return dataclasses.replace(
        kept,
        counts=dataclasses.replace(
            counts,
            inserts=counts.inserts - passed.inserts,
            updates=counts.updates - passed.updates,
            deletes=counts.deletes - passed.deletes,
            truncates=counts.truncates - passed.truncates,
        ),
    )


def _name_in_lake(staged: StagedTable, lake_name: str | None) -> tuple[str, str] | None:
    """Schema and name of a table in the lake, for a table that nobody can copy under a newer name.

    None: they are not known. The checkpoint has both as one text, and a dot may belong to either.
    """
    if lake_name is None or staged.copy_lsn is not None:
        return None
    for each in staged.versions:
        pair = each.version.schema_name, each.version.table_name
        if ".".join(pair) == lake_name:
            return pair
    schema_name, _, table_name = lake_name.partition(".")
    return (schema_name, table_name) if lake_name.count(".") == 1 else None


def _passed(area: StagingArea, whole: Table, kept: Table | None) -> Counts:
    """Counts of a table's staged row changes that are passed over."""
    since = 0 if kept is None else int(Lsn.parse(kept.until_lsn)) if kept.until_lsn else None
    total = Counts()
    for file in (file for version in whole.versions for file in version.files):
        if since is None or file.max_commit_lsn is None or Lsn.parse(file.max_commit_lsn) < since:
            continue
        with storage_errors("read"):
            content = pa.BufferReader(area.read(file.path))
            rows = parquet.read_table(content, columns=[COMMIT_LSN, OP])
        late = rows.filter(pc.greater_equal(rows.column(COMMIT_LSN), since))
        counted = late.group_by(OP).aggregate([(COMMIT_LSN, "count")]).to_pylist()
        by_op = {each[OP]: each[f"{COMMIT_LSN}_count"] for each in counted}
        total += Counts(by_op.get("I", 0), by_op.get("U", 0), by_op.get("D", 0), by_op.get("T", 0))
    return total
