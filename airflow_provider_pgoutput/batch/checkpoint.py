"""What apply leaves in the lake about its progress, in names and rules; capture and the operators read it.

The truth is in the snapshot summary of each table's commits. The checkpoint table is an index of it
that can be rebuilt. What is not here: reading and writing either (``apply/table/checkpoint.py`` with Spark,
``lake/checkpoint.py`` and ``lake/checkpoint_rows.py`` with pyiceberg).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import BatchGap

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest

#: Keys of the snapshot summary of every commit that apply makes on a table.
SUMMARY_SLOT = "pgoutput.slot"
SUMMARY_SYSTEM_IDENTIFIER = "pgoutput.system-identifier"
SUMMARY_BATCH_ID = "pgoutput.batch-id"
SUMMARY_START_LSN = "pgoutput.start-lsn"
SUMMARY_END_LSN = "pgoutput.end-lsn"

#: Properties of every table that apply makes: where its rows come from.
PROPERTY_SOURCE_TABLE = "pgoutput.source-table"
PROPERTY_RELATION_OID = "pgoutput.relation-oid"
PROPERTY_SLOT = "pgoutput.slot"
PROPERTY_SYSTEM_IDENTIFIER = "pgoutput.system-identifier"
#: Followed by a slot's name: system identifier, batch id and end LSN of the newest publish, and the sequence
#: number of its snapshot.
PROPERTY_APPLIED = "pgoutput.applied."
#: In place of the batch's id in the row of a checkpoint that was rebuilt: no batch is known to end there.
REBUILT = "rebuilt"
#: Begins the names of the branches on which batches are prepared.
BRANCH_PREFIX = "pgoutput_"

CHECKPOINT_TABLE = "pgoutput_checkpoint"
REJECTED_TABLE = "pgoutput_rejected_values"
MESSAGES_TABLE = "pgoutput_messages"
#: Tables of the pipeline's own in a namespace; no table of the source can have such a target.
OWN_TABLES = frozenset({CHECKPOINT_TABLE, REJECTED_TABLE, MESSAGES_TABLE})

#: Name and lake type of the checkpoint table's columns.  A batch writes, in one commit, a row for
#: each table that it changed and one row with a null ``table_name`` for the batch as a whole; the
#: slot's checkpoint is the greatest ``end_lsn`` among the latter.  ``table_name`` is the source's
#: ``schema.table``, ``target`` the Iceberg identifier ``namespace.table``.  The LSNs are text in
#: sixteen hexadecimal digits (``Lsn.sortable``), so that ``max()`` is right in any engine.
CHECKPOINT = (
    ("slot_name", "string"),
    ("system_identifier", "string"),
    ("batch_id", "string"),
    ("table_name", "string"),
    ("relation_oid", "long"),
    ("target", "string"),
    ("start_lsn", "string"),
    ("end_lsn", "string"),
    ("applied_at", "timestamptz"),
    ("snapshot_id", "long"),
    ("inserts", "long"),
    ("updates", "long"),
    ("deletes", "long"),
    ("truncates", "long"),
    ("copied", "long"),
    ("rejected", "long"),
    ("dag_id", "string"),
    ("run_id", "string"),
    ("manifest_uri", "string"),
    # JSON: the table's columns with their ``attnum``, its key and replica identity, as ``Shape`` of
    # ``batch/shape.py`` writes them.  Null: as in the table's newest row before that has them.
    ("columns", "string"),
    # JSON: a list of what changed of the table's schema, in words.  Null: nothing.
    ("schema_changes", "string"),
    # When the last transaction of the batch committed at the source.  Null: it had none.
    ("last_commit_time", "timestamptz"),
    # JSON: commit LSN and row changes of each transaction that was left out on request; in the batch's
    # row alone.  Null: none.
    ("skipped", "string"),
    # The source's timeline when the batch was staged.  Null: not known.
    ("timeline", "long"),
    # JSON: a list of the tables whose changes are passed over, as ``batch/passed_over.py`` writes it; in the
    # batch's row alone.  Null: none.
    ("passed_over", "string"),
)
#: Columns that a table made by an earlier version lacks, with their types; they are added to it.
LATER_COLUMNS = {
    "columns": "string",
    "schema_changes": "string",
    "last_commit_time": "timestamptz",
    "skipped": "string",
    "timeline": "long",
    "passed_over": "string",
}


def marker_of(manifest: Manifest) -> dict[str, str]:
    """The snapshot summary keys of every commit that is made for a batch."""
    return {
        SUMMARY_SLOT: manifest.slot_name,
        SUMMARY_SYSTEM_IDENTIFIER: manifest.system_identifier,
        SUMMARY_BATCH_ID: manifest.batch_id,
        SUMMARY_START_LSN: str(manifest.start_lsn),
        SUMMARY_END_LSN: str(manifest.end_lsn),
    }


def skipped_text(manifest: Manifest) -> str | None:
    """The checkpoint's ``skipped`` of a batch."""
    skipped = {each.commit_lsn: each.changes for each in manifest.skipped}
    return json.dumps(skipped) if skipped else None


def refuse_gap(manifest: Manifest, checkpoint: Lsn | None) -> None:
    """Refuse a batch that starts past the checkpoint.

    Without any checkpoint every start is taken: where the stream begins is what capture decided when
    it created the slot. A table that has a marker all the same is checked on its own.

    :raises BatchGap: a batch before it was never applied.
    """
    if checkpoint is not None and manifest.start_lsn > checkpoint:
        raise BatchGap(
            f"The batch starts at {manifest.start_lsn}, the checkpoint is {checkpoint}.",
            slot=manifest.slot_name,
            lsn=checkpoint,
            advice="apply the staged batches between, in order.",
        )
