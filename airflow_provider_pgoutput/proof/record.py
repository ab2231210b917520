"""The record of verifications, in a table of the lake: one row for each table that was looked at."""

from __future__ import annotations

import dataclasses
import itertools
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch.checkpoint import PROOFS, PROOFS_TABLE
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.xcom import MOST_TABLES
from airflow_provider_pgoutput.lake.failures import lake_errors
from airflow_provider_pgoutput.lake.own_tables import append_to_own_table, newest_first
from airflow_provider_pgoutput.lake.slot_rows import of_slot, rows_of_slot
from airflow_provider_pgoutput.proof.report import IS_A_LOG
from airflow_provider_pgoutput.proof.share import Share

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pyiceberg.catalog import Catalog

    from airflow_provider_pgoutput.proof.report import Proof, TableProof

TOTALS, SHARE, CHANGES = "totals", "share", "changes"
_OF_SHARE = ("share_number", "share_of", "share_through", "share_after")
_SHOWN = ("table_name", "lsn", "verified_at", "is_equal", "not_compared", "source_rows", *_OF_SHARE)
#: How many verifications, and rows of them, are read one by one before the whole record is read at once.
_ONE_BY_ONE, _ROWS_ONE_BY_ONE = 50, 100_000
#: The columns from which ``last_shares`` finds the part that was compared last.
_OF_CYCLE = ("table_name", "verified_at", "is_equal", *_OF_SHARE)


@dataclasses.dataclass(frozen=True, slots=True)
class NewestProof:
    """What one verification found of a table, or of a part of it."""

    lsn: Lsn
    verified_at: datetime
    #: None: the table was not compared.
    is_equal: bool | None
    not_compared: str | None
    source_rows: int | None
    #: The part of the table that was looked at; None: all of it.
    share: Share | None = None
    #: Each key was compared at this time or later, and found equal or not. Example: part 1 of 2 at 1:00 and
    #: part 2 of 2 at 2:00 give 1:00. None: neither the whole table nor a complete cycle was compared.
    covered_since: datetime | None = None

    def __str__(self) -> str:
        found = "equal" if self.is_equal else "different"
        if self.is_equal is None:
            found = f"not compared ({self.not_compared})"
        part = f" ({self.share})" if self.share else ""
        return f"{found}{part} at {self.lsn}, {self.verified_at.isoformat(timespec='seconds')}"


def record_proof(
    catalog: Catalog,
    namespace: str,
    proof: Proof,
    *,
    dag_id: str | None = None,
    run_id: str | None = None,
) -> None:
    """Append what a verification found, for people and their queries.

    ``last_shares`` reads from it which part of a table was compared last.

    :raises LakeUnavailable: the catalog does not take the rows.
    """
    of_proof = {
        "slot_name": proof.slot_name,
        "system_identifier": proof.system_identifier,
        "lsn": proof.lsn.sortable,
        "verified_at": datetime.now(UTC),
        "dag_id": dag_id,
        "run_id": run_id,
    }
    rows = [of_proof | row_of(each) for each in proof.tables]
    if rows:
        append_to_own_table(catalog, namespace, PROOFS_TABLE, PROOFS, rows, adds_columns=True)


def row_of(proof: TableProof) -> dict[str, Any]:
    """What the record has of one table."""
    row: dict[str, Any] = {
        "table_name": proof.table,
        "target": proof.target,
        "is_equal": None if proof.not_compared else proof.is_equal,
        "not_compared": proof.not_compared,
        "was_rolled_back": proof.was_rolled_back,
        "columns_left_out": json.dumps(proof.columns_left_out) if proof.columns_left_out else None,
        "seconds": proof.seconds,
        "method": TOTALS if proof.share is None else SHARE,
    }
    if proof.carried is not None:
        row["carried"] = proof.carried.to_json()
        if proof.carried.why_all is None:
            row["method"] = CHANGES
    if proof.share is not None:
        row |= zip(_OF_SHARE, dataclasses.astuple(proof.share), strict=True)
    for side, digest in (("source", proof.source), ("lake", proof.lake)):
        if digest is not None:
            row |= {f"{side}_rows": digest.rows, f"{side}_digest": f"{digest.total:016x}"}
    if proof.differences is not None:
        found = dataclasses.asdict(proof.differences)
        row |= found | {"keys": json.dumps(found["keys"]) if found["keys"] else None}
    return row


def shown_first(proof: Proof) -> list[TableProof]:
    """All tables: first those that differ, then those that were not compared, then the equal ones."""
    return sorted(proof.tables, key=lambda each: (not each.is_different, each.is_equal))


def proof_xcom(proof: Proof) -> dict[str, Any]:
    """What XCom has: ``lsn``, and as ``tables`` what the record has of at most 200 tables.

    ``tables_left_out`` counts the others. It is left out if there are none.
    """
    shown = shown_first(proof)[:MOST_TABLES]
    found: dict[str, Any] = {"lsn": str(proof.lsn), "tables": [row_of(each) for each in shown]}
    if left_out := len(proof.tables) - len(shown):
        found["tables_left_out"] = left_out
    return found


def newest_proofs(
    catalog: Catalog, namespace: str, slot_name: str, tables: Collection[str] = ()
) -> dict[str, NewestProof]:
    """What the newest verification of each table found, by the ``schema.table`` of the source.

    A difference stays until the whole table, or each part of one cycle, was found equal after it. The
    difference of a part also ends when this part is found equal. A verification that could not compare the
    table ends none.

    The newest verifications are read first, and only until all is known of ``tables``. If that takes many of
    them, the whole record is read.

    :param tables: all tables of which something may be recorded, as ``schema.table``. Empty: it is not
        known, so the whole record is read.
    :raises LakeUnavailable: the catalog or the table cannot be read.
    """
    newest: dict[str, NewestProof] = {}
    for name, proofs in _proofs(catalog, namespace, slot_name, frozenset(tables)).items():
        newest[name] = proofs[-1]
        for each in proofs:
            if each.is_equal is False and not _equal_since(each, proofs):
                newest[name] = each
        newest[name] = dataclasses.replace(newest[name], covered_since=_covered_since(proofs))
    return newest


def _covered_since(proofs: Iterable[NewestProof]) -> datetime | None:
    """The time at which, or after which, each key was compared; see ``NewestProof.covered_since``.

    A comparison of the whole table counts with its time, and a complete cycle with the time of its oldest
    part. The latest of these is the answer.
    """
    times: list[datetime] = []
    parts: dict[int, dict[int, datetime]] = {}
    for each in proofs:
        if each.is_equal is not None and each.share is None:
            times.append(each.verified_at)
        elif each.is_equal is not None and each.share is not None:
            of_cycle = parts.setdefault(each.share.of, {})
            of_cycle[each.share.number] = max(
                each.verified_at, of_cycle.get(each.share.number, each.verified_at)
            )
    times += [min(found.values()) for of, found in parts.items() if len(found) == of]
    return max(times, default=None)


def _equal_since(difference: NewestProof, proofs: Iterable[NewestProof]) -> bool:
    """Whether the whole table, or each part of one cycle, was found equal after a difference."""
    parts: dict[int, set[int]] = {}
    for each in proofs:
        if each.is_equal and each.verified_at > difference.verified_at:
            if each.share is None:
                return True
            parts.setdefault(each.share.of, set()).add(each.share.number)
    return any(len(numbers) == of for of, numbers in parts.items())


def last_shares(
    catalog: Catalog,
    namespace: str,
    slot_name: str,
    of: int,
    *,
    tables: Collection[str],
    goes_on: bool,
) -> dict[str, Share]:
    """The part of each table that was compared last, by the ``schema.table`` of the source.

    The newest verifications are read first, and only until the part of each table is known. So a record of
    many runs costs no more than one of few.

    :param of: how many parts the cycle has. Parts of other cycles are ignored.
    :param tables: whose parts are wanted, as ``schema.table``.
    :param goes_on: whether the cycle goes on after a part that differs. Example: part 2 is equal, and part 3
        differs. True gives part 3, and False gives part 2, so that part 3 is compared again.
    :raises LakeUnavailable: the catalog or the table cannot be read.
    """
    identifier = (*namespace.split("."), PROOFS_TABLE)
    found: dict[str, Share | None] = {}
    whole: dict[str, bool] = {}
    # An early version did not record where the part before ended. The row of that part says it.
    undone: set[str] = set()
    with lake_errors("read"):
        if not catalog.table_exists(identifier):
            return {}
        table = catalog.load_table(identifier)
        # An early version of the package did not know of parts.
        if "share_of" not in table.schema().column_names:
            return {}
        of_cycle = f"{of_slot(slot_name)} and (share_of = {of} or share_of is null)"
        for rows in newest_first(table, of_cycle, _OF_CYCLE):
            for row in rows.sort_by([("verified_at", "descending")]).to_pylist():
                name, is_equal = row["table_name"], row["is_equal"]
                if name in found:
                    continue
                if row["share_of"] is None:
                    if is_equal is not None:
                        whole.setdefault(name, is_equal)
                    continue
                share = Share(row["share_number"], of, row["share_through"], row.get("share_after"))
                # A part that differed is done if the whole table was found equal since.
                was_equal = name not in undone and whole.get(name, False)
                is_done = is_equal or (is_equal is False and (goes_on or was_equal))
                if not is_done and share.before_is_unknown:
                    undone.add(name)
                    continue
                found[name] = share if is_done else share.before
            if found.keys() >= set(tables):
                break
    return {name: share for name, share in found.items() if share is not None and name in tables}


def _proofs(
    catalog: Catalog, namespace: str, slot_name: str, tables: frozenset[str]
) -> dict[str, list[NewestProof]]:
    """For each table the records that ``newest_proofs`` needs, the oldest first."""
    identifier = (*namespace.split("."), PROOFS_TABLE)
    read: list[pa.Table] = []
    with lake_errors("read"):
        if not catalog.table_exists(identifier):
            return {}
        table = catalog.load_table(identifier)
        newest = newest_first(table, of_slot(slot_name), _SHOWN) if tables else ()
        for rows in itertools.islice(newest, _ONE_BY_ONE):
            read.append(rows)
            # If a manifest has no row of the slot, its columns of text come with another Arrow type.
            found = _newest_of_each(pa.concat_tables(read, promote_options="permissive"))
            if found.keys() >= tables and all(map(_needs_no_older, found.values())):
                return found
            if sum(each.num_rows for each in read) > _ROWS_ONE_BY_ONE:
                break
        return _newest_of_each(rows_of_slot(table, slot_name, _SHOWN))


def _needs_no_older(proofs: Sequence[NewestProof]) -> bool:
    """Whether earlier verifications of the table change nothing.

    Once all keys were compared, no older difference counts. An earlier version compared no change log.
    """
    return proofs[-1].not_compared == IS_A_LOG or _covered_since(proofs) is not None


def _newest_of_each(found: pa.Table) -> dict[str, list[NewestProof]]:
    """For each table and each part: the newest record with a comparison, and the newest without one.

    They come in the order of time.
    """
    found = found.sort_by("verified_at")
    # An early version of the package did not know of parts.
    for name in _SHOWN:
        if name not in found.column_names:
            found = found.append_column(name, pa.nulls(found.num_rows, pa.int64()))
    also_null = pc.ScalarAggregateOptions(skip_nulls=False)
    values = [name for name in _SHOWN if name not in ("table_name", "share_number", "share_of")]
    # What could not be compared does not hide what was found before.
    found = found.append_column("was_compared", pc.is_valid(found["is_equal"]))
    # "last" needs the rows in the order of time, and threads would not keep it.
    one = ["table_name", "share_number", "share_of", "was_compared"]
    newest = found.group_by(one, use_threads=False).aggregate(
        [(name, "last", also_null) for name in values]
    )
    of_tables: dict[str, list[NewestProof]] = {}
    for row in newest.sort_by("verified_at_last").to_pylist():
        # If a part could not be compared, it does not matter which part it was.
        of_part = [
            row["share_number"],
            row["share_of"],
            *(row[f"{name}_last"] for name in _OF_SHARE[2:]),
        ]
        proof = NewestProof(
            lsn=Lsn.from_sortable(row["lsn_last"]),
            verified_at=row["verified_at_last"],
            is_equal=row["is_equal_last"],
            not_compared=row["not_compared_last"],
            source_rows=row["source_rows_last"],
            share=Share(*of_part) if row["was_compared"] and of_part[0] is not None else None,
        )
        of_tables.setdefault(row["table_name"], []).append(proof)
    return of_tables


def proven(proofs: Collection[NewestProof]) -> str:
    """What is proven of all tables, in words; empty if nothing was verified.

    A verification, or a repair, may have looked at some tables only. So each table counts as it was found
    last.

    :param proofs: the newest of each table.
    """
    if not proofs:
        return ""
    equal = [each for each in proofs if each.is_equal]
    rows = sum(each.source_rows or 0 for each in equal)
    first, last = (side(each.lsn for each in proofs) for side in (min, max))
    lsns = f"{last}" if first == last else f"{first} to {last}"
    when = max(each.verified_at for each in proofs).isoformat(timespec="seconds")
    in_part = sum(1 for each in equal if each.share is not None)
    parts = f" ({in_part} of them in part)" if in_part else ""
    return f"{len(equal)} of {len(proofs)} tables{parts}, {rows} rows equal at {lsns}, {when}"
