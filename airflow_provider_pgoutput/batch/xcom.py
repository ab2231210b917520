"""The small JSON value that carries a batch from task to task. It informs people; no decision rests on it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NotRequired, TypedDict

from airflow_provider_pgoutput.batch.set_aside import staged_without

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.shape import SchemaChange

SCHEMA_VERSION = 1
#: Where XCom has a value for each table, it has so many tables at most.
MOST_TABLES = 200
#: Of one table, and of all tables together.
_MOST_SCHEMA_CHANGES = 100
_MOST_SCHEMA_CHANGES_OF_ALL = 1000


class SlotXCom(TypedDict):
    """How the slot stood when the stage task began."""

    #: WAL that the server kept for the slot. None: the server had removed it.
    retained_bytes: int | None
    #: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
    wal_status: str | None
    #: Bytes that could still be written before the slot was in danger; None: no limit.
    safe_wal_size_bytes: int | None
    #: ``max_slot_wal_keep_size``; None: no limit.
    wal_limit_bytes: int | None
    #: How long nobody had read it. None: somebody did, or the server does not say (before version 17).
    idle_seconds: float | None
    #: What may end the slot before its next run, or leave it behind in a failover. Left out if there is
    #: nothing.
    warnings: NotRequired[list[str]]


class BatchXCom(TypedDict):
    """What ``PgoutputStageOperator`` returns."""

    schema_version: int
    slot_name: str
    batch_id: str
    start_lsn: str
    end_lsn: str
    manifest_uri: str
    changes: int
    #: By ``schema.table``: inserts, updates, deletes, truncates, copied, rejected. If there are more than 200
    #: tables: those with the highest counts.
    tables: dict[str, dict[str, int]]
    #: How many more tables the manifest names. Left out if there are none.
    tables_left_out: NotRequired[int]
    #: By ``schema.table``: changes of its schema in words, at most a hundred, then how many more there are.
    #: If more than ten tables changed, fewer of each. At most 200 tables. Left out if there are none.
    schema_changes: NotRequired[dict[str, list[str]]]
    #: By commit LSN: number of row changes of each transaction that was left out on request. Left out if
    #: there are none.
    skipped: NotRequired[dict[str, int]]
    #: By ``schema.table`` of a table that is gone or set aside: from which LSN on changes are passed over. At
    #: most 200 tables. Left out if there are none.
    passed_over: NotRequired[dict[str, str]]
    #: By ``schema.table`` of a table that this batch sets aside: why, and what to do. At most 200 tables.
    #: Left out if there are none.
    set_aside: NotRequired[dict[str, str]]
    #: By ``schema.table``, for each copy that was asked for and is not in the batch: why, and what to do. At
    #: most 200 tables. Left out if there are none.
    refused_copies: NotRequired[dict[str, str]]
    #: Left out if the run made the slot.
    slot: NotRequired[SlotXCom]
    #: The pipeline as an asset of Airflow: ``pgoutput://host:port/database/slot``.
    asset_uri: NotRequired[str]
    #: Once the batch is applied, the lake has every transaction that had committed by then, ISO 8601 in UTC.
    #: Left out if it is not known.
    complete_until: NotRequired[str]
    #: How long it took to stage the batch.
    stage_seconds: NotRequired[float]


def table_counts(manifest: Manifest) -> dict[str, dict[str, int]]:
    """The counts of all tables that a batch changes by ``schema.table``."""
    shown = ("inserts", "updates", "deletes", "truncates", "copied", "rejected")
    return {
        table.name: {name: getattr(table.counts, name) for name in shown}
        for table in manifest.changed_tables
    }


def largest(tables: Mapping[str, Mapping[str, int]], most: int) -> dict[str, Mapping[str, int]]:
    """The tables with the highest counts, the highest first. All of them in their order if they are few."""
    if len(tables) <= most:
        return dict(tables)
    ordered = sorted(tables.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    return dict(ordered[:most])


def totals(tables: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of the counts of tables."""
    found: dict[str, int] = {}
    for counts in tables:
        for what, count in counts.items():
            found[what] = found.get(what, 0) + count
    return found


def batch_xcom(manifest: Manifest, manifest_uri: str, slot: SlotXCom | None = None) -> BatchXCom:
    """Describe a sealed batch in few bytes.

    :param slot: how the slot stood when the batch was begun; None: there was no slot yet.
    """
    counts = table_counts(manifest)
    batch = BatchXCom(
        schema_version=SCHEMA_VERSION,
        slot_name=manifest.slot_name,
        batch_id=manifest.batch_id,
        start_lsn=str(manifest.start_lsn),
        end_lsn=str(manifest.end_lsn),
        manifest_uri=manifest_uri,
        changes=manifest.changes,
        tables={name: dict(each) for name, each in largest(counts, MOST_TABLES).items()},
    )
    if left_out := len(counts) - len(batch["tables"]):
        batch["tables_left_out"] = left_out
    changed = [table for table in manifest.tables if table.schema_changes][:MOST_TABLES]
    if changed:
        most = min(_MOST_SCHEMA_CHANGES, _MOST_SCHEMA_CHANGES_OF_ALL // len(changed))
        batch["schema_changes"] = {
            table.name: _in_words(table.schema_changes, most) for table in changed
        }
    if manifest.skipped:
        batch["skipped"] = {each.commit_lsn: each.changes for each in manifest.skipped}
    passed_over = {e.table_name: e.since_lsn for e in manifest.passed_over if e.since_lsn}
    if passed_over:
        batch["passed_over"] = dict(islice(passed_over.items(), MOST_TABLES))
    refusals = ((each.table_name, staged_without(each)) for each in manifest.passed_over)
    set_aside = {name: str(refusal) for name, refusal in refusals if refusal is not None}
    if set_aside:
        batch["set_aside"] = dict(islice(set_aside.items(), MOST_TABLES))
    refused_copies = {each.table_name: str(each) for each in manifest.refused_copies}
    if refused_copies:
        batch["refused_copies"] = dict(islice(refused_copies.items(), MOST_TABLES))
    if manifest.complete_until is not None:
        batch["complete_until"] = manifest.complete_until
    if slot is not None:
        batch["slot"] = slot
    return batch


def _in_words(changes: Sequence[SchemaChange], most: int) -> list[str]:
    words = [str(change) for change in changes[:most]]
    more = len(changes) - len(words)
    if more:
        words.append(f"and {more} more, which the log and the checkpoint table have")
    return words
