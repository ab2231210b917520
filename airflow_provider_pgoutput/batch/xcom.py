"""The small JSON value that carries a batch from task to task. It informs people; no decision rests on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.shape import SchemaChange

SCHEMA_VERSION = 1
_MOST_SCHEMA_CHANGES = 100


class BatchXCom(TypedDict):
    """What ``PgoutputStageOperator`` returns."""

    schema_version: int
    slot_name: str
    batch_id: str
    start_lsn: str
    end_lsn: str
    manifest_uri: str
    changes: int
    #: By ``schema.table``: inserts, updates, deletes, truncates, copied, rejected.
    tables: dict[str, dict[str, int]]
    #: By ``schema.table``: changes of its schema in words, at most a hundred, then how many more there are.
    #: Left out if there are none.
    schema_changes: NotRequired[dict[str, list[str]]]
    #: By commit LSN: number of row changes of each transaction that was left out on request. Left out if
    #: there are none.
    skipped: NotRequired[dict[str, int]]
    #: By ``schema.table`` of a table that is gone: from which LSN on its changes are passed over. Left out if
    #: there are none.
    passed_over: NotRequired[dict[str, str]]


def batch_xcom(manifest: Manifest, manifest_uri: str) -> BatchXCom:
    """Describe a sealed batch in few bytes."""
    shown = ("inserts", "updates", "deletes", "truncates", "copied", "rejected")
    batch = BatchXCom(
        schema_version=SCHEMA_VERSION,
        slot_name=manifest.slot_name,
        batch_id=manifest.batch_id,
        start_lsn=str(manifest.start_lsn),
        end_lsn=str(manifest.end_lsn),
        manifest_uri=manifest_uri,
        changes=manifest.changes,
        tables={
            table.name: {name: getattr(table.counts, name) for name in shown}
            for table in manifest.tables
        },
    )
    changed = {
        table.name: _in_words(table.schema_changes)
        for table in manifest.tables
        if table.schema_changes
    }
    if changed:
        batch["schema_changes"] = changed
    if manifest.skipped:
        batch["skipped"] = {each.commit_lsn: each.changes for each in manifest.skipped}
    passed_over = {e.table_name: e.since_lsn for e in manifest.passed_over if e.since_lsn}
    if passed_over:
        batch["passed_over"] = passed_over
    return batch


def _in_words(changes: Sequence[SchemaChange]) -> list[str]:
    words = [str(change) for change in changes[:_MOST_SCHEMA_CHANGES]]
    more = len(changes) - len(words)
    if more:
        words.append(f"and {more} more, which the log and the checkpoint table have")
    return words
