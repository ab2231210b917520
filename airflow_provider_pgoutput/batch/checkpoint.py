"""Names and rules of what apply records in the lake. Capture and the operators read it.

The truth is in the snapshot summary of each table's commits. The checkpoint table is an index of it and can
be rebuilt. ``apply/table/checkpoint.py`` reads and writes it with Spark, ``lake/checkpoint.py`` and
``lake/checkpoint_rows.py`` with pyiceberg.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.errors import BatchGap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_pgoutput.batch.earlier_systems import EarlierTable
    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest, Table

#: Keys of the snapshot summary of every commit that apply makes in a table.
SUMMARY_SLOT = "pgoutput.slot"
SUMMARY_SYSTEM_IDENTIFIER = "pgoutput.system-identifier"
SUMMARY_TIMELINE = "pgoutput.timeline"
SUMMARY_BATCH_ID = "pgoutput.batch-id"
SUMMARY_START_LSN = "pgoutput.start-lsn"
SUMMARY_END_LSN = "pgoutput.end-lsn"
#: Only if the batch passes changes of the table over: from this LSN on.
SUMMARY_UNTIL_LSN = "pgoutput.until-lsn"
SUMMARY_KEYS = (
    SUMMARY_SLOT,
    SUMMARY_SYSTEM_IDENTIFIER,
    SUMMARY_TIMELINE,
    SUMMARY_BATCH_ID,
    SUMMARY_START_LSN,
    SUMMARY_END_LSN,
    SUMMARY_UNTIL_LSN,
)
#: Key of the commit with which an erasure of rows begins. It changes no row.
SUMMARY_ERASURE = "pgoutput.erasure"

#: Properties of every table that apply makes. They say where its rows come from.
PROPERTY_SOURCE_TABLE = "pgoutput.source-table"
PROPERTY_RELATION_OID = "pgoutput.relation-oid"
PROPERTY_SLOT = "pgoutput.slot"
PROPERTY_SYSTEM_IDENTIFIER = "pgoutput.system-identifier"
#: The slot's name follows. The value is system identifier, batch id and end LSN of the newest publish, and
#: the sequence number of its snapshot, ``SUMMARY_UNTIL_LSN`` or a hyphen, and the timeline.
PROPERTY_APPLIED = "pgoutput.applied."
#: ``upsert``, ``change_log`` or ``history``, and whether deleted rows stay (``true``, ``false``).
PROPERTY_MODE = "pgoutput.mode"
PROPERTY_SOFT_DELETE = "pgoutput.soft-delete"
#: Which field is which column of the source, see ``apply/schema/column_map.py``.
PROPERTY_COLUMNS = "pgoutput.columns"
#: Key in that property: what it said before a table of another system became the source. It stays until rows
#: of that system are published.
BEFORE_ADOPTION = "before"
#: The masks of its columns, as ``masks.py`` writes them. Missing: no column was ever masked.
PROPERTY_MASKS = "pgoutput.masks"
#: The OID of the table of the source whose columns these are.
PROPERTY_MASKS_OID = "pgoutput.masks-oid"
#: The filter that its rows passed, as ``filters.py`` writes it. Empty or missing: they passed none.
PROPERTY_ROW_FILTER = "pgoutput.row-filter"
#: The constant columns of its rows, as a JSON object. Null: the column is there, and its rows have no value
#: in it yet.
PROPERTY_CONSTANTS = "pgoutput.constant-columns"
#: In a rebuilt checkpoint this replaces the batch id: it is not known which batch ends there.
REBUILT = "rebuilt"
#: The names of branches on which batches are prepared begin with this.
BRANCH_PREFIX = "pgoutput_"
#: No attempt at an apply takes so long. A branch whose newest commit is older than this belongs to an attempt
#: that died.
DEAD_AFTER = timedelta(days=1)

CHECKPOINT_TABLE = "pgoutput_checkpoint"
REJECTED_TABLE = "pgoutput_rejected_values"
MESSAGES_TABLE = "pgoutput_messages"
PROOFS_TABLE = "pgoutput_proofs"
QUARANTINE_TABLE = "pgoutput_quarantine"
#: The pipeline's own tables in a namespace. No table of the source may have such a target.
OWN_TABLES = frozenset(
    {CHECKPOINT_TABLE, REJECTED_TABLE, MESSAGES_TABLE, PROOFS_TABLE, QUARANTINE_TABLE}
)

#: With these properties they are made.
OWN_PROPERTIES = {"format-version": "2"}

#: Name and lake type of the columns of ``QUARANTINE_TABLE``, see ``apply/rows/quarantine.py``.
QUARANTINE = (
    ("slot_name", "string"),
    ("system_identifier", "string"),
    ("relation_oid", "long"),
    #: The source's ``schema.table``.
    ("table_name", "string"),
    ("target", "string"),
    #: The key columns as JSON.
    ("key", "string"),
    #: Of the newest change of the row in the batch; ``seq`` is NULL for a copied row.
    ("commit_lsn", "long"),
    ("seq", "long"),
    ("op", "string"),
    #: The class of the error.
    ("error", "string"),
    #: The columns of the row as JSON, as far as the batch has them.
    ("change", "string"),
    ("batch_id", "string"),
    ("quarantined_at", "timestamptz"),
)

#: Name and lake type of the checkpoint table's columns. In one commit, a batch writes a row for each table
#: that it changed, and one row for the whole batch, with NULL for ``table_name``. The slot's checkpoint is
#: the greatest
#: ``end_lsn`` of the latter. ``table_name`` is the source's ``schema.table``, ``target`` is
#: ``namespace.table`` of the Iceberg table. LSNs are texts of sixteen hexadecimal digits (``Lsn.sortable``),
#: so that ``max()`` is
#: right in any engine.
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
    # ``batch/shape.py`` writes them. NULL: as in the newest row of the table that has them.
    ("columns", "string"),
    # JSON: a list of the changes of the table's schema, in words. NULL: none.
    ("schema_changes", "string"),
    # When the last transaction of the batch committed at the source. NULL: it had none.
    ("last_commit_time", "timestamptz"),
    # JSON: commit LSN and number of row changes of each transaction that was left out on request. Only in the
    # batch's row. NULL: none.
    ("skipped", "string"),
    # The source's timeline when the batch was staged. NULL: not known.
    ("timeline", "long"),
    # JSON: a list of the tables whose changes are passed over, as ``batch/passed_over.py`` writes it. Only in
    # the batch's row. NULL: none.
    ("passed_over", "string"),
    # JSON: why the batch was not applied to the table, as ``batch/set_aside.py`` writes it. Only in the row
    # of a table, which then has no target. NULL: the table has the batch. If it has no target either, the
    # batch changed nothing in it.
    ("set_aside", "string"),
    # JSON: the systems from which the lake was filled before, as ``batch/earlier_systems.py`` writes them.
    # Only in the batch's row. NULL: none.
    ("adopted_from", "string"),
    # The lake has every transaction that had committed by then, by the source's clock. NULL: not known.
    ("complete_until", "timestamptz"),
)
#: Columns, with their types, that a table of an early version lacks. They are added to it. New columns come
#: at the end.
LATER_COLUMNS = dict(CHECKPOINT[[name for name, _ in CHECKPOINT].index("columns") :])

#: Name and lake type of the columns of ``pgoutput_proofs``. A verification writes one row for each table.
PROOFS = (
    ("slot_name", "string"),
    ("system_identifier", "string"),
    # At which lake and source were compared; as in the checkpoint table.
    ("lsn", "string"),
    ("verified_at", "timestamptz"),
    # ``totals``: all rows of both sides were compared. ``share``: it was the turn of one part of the keys.
    # ``changes``: all rows were compared, and the digests of those that did not change were carried over.
    ("method", "string"),
    ("table_name", "string"),
    ("target", "string"),
    # NULL: the table was not compared.
    ("is_equal", "boolean"),
    # Why not; NULL: it was.
    ("not_compared", "string"),
    ("source_rows", "long"),
    ("lake_rows", "long"),
    # Sixteen hexadecimal digits. Those of two verifications cannot be compared: each has a salt of its own.
    ("source_digest", "string"),
    ("lake_digest", "string"),
    # Numbers of rows. NULL: the digests are equal, or the rows could not be counted.
    ("missing", "long"),
    ("surplus", "long"),
    ("different", "long"),
    # How many ranges of keys differ, of how many, and in how many of them keys were compared.
    ("ranges", "long"),
    ("of_ranges", "long"),
    ("ranges_looked_at", "long"),
    # JSON: a list of keys, where they were asked for.
    ("keys", "string"),
    # JSON: published columns that were not compared: the lake did not have them yet, or has them masked.
    # NULL: none.
    ("columns_left_out", "string"),
    ("was_rolled_back", "boolean"),
    ("seconds", "double"),
    ("dag_id", "string"),
    ("run_id", "string"),
    # Of ``share``: which part it was, of how many, and the greatest whole number of the key in it. The next
    # run goes on behind it. A part that differs, or could not be compared, gets its turn again: the last
    # column has the greatest number of the part before it. So the newest row says where the cycle stands.
    ("share_number", "long"),
    ("share_of", "long"),
    ("share_through", "long"),
    ("share_after", "long"),
    # JSON: how many ranges of blocks of the source and files of the lake were read, of how many, and why all
    # were read. NULL: digests were not carried over, and none is kept.
    ("carried", "string"),
)


def recorded_columns(properties: Mapping[str, str], relation_oid: int) -> dict[str, Any]:
    """The content of ``PROPERTY_COLUMNS``; empty if it is missing, or tells of another table of the source.

    :param relation_oid: of the table at the source.
    """
    body: dict[str, Any] = json.loads(properties.get(PROPERTY_COLUMNS, "{}"))
    # The second one counts if the adoption of another system was given up.
    found = (body, body.get(BEFORE_ADOPTION, {}))
    return next((each for each in found if each.get("relation_oid") == relation_oid), {})


def renumbered(
    properties: Mapping[str, str], earlier: EarlierTable, relation_oid: int
) -> dict[str, str]:
    """The properties of a table as they will be when its batches come from another system.

    :param relation_oid: of the source's table on that system.
    """
    found = dict(properties)
    if found.get(PROPERTY_RELATION_OID) == str(earlier.oid):
        found[PROPERTY_RELATION_OID] = str(relation_oid)
    body = recorded_columns(properties, earlier.oid)
    if not body:
        # Rows of the present system were published.
        return found
    # The property may have numbers under this OID already. An attempt wrote them that published nothing,
    # perhaps for another system. So they are found again.
    numbers = {str(then): str(now) for then, now in earlier.numbers}
    # A column list leaves these columns out, so their values stay. No column of the new system has a number
    # below 0.
    unsent = [each for each in body.get("unsent", []) if str(each) not in numbers]
    lowest = min([0, *unsent])
    for each in unsent:
        lowest -= each > 0
        numbers[str(each)] = str(lowest if each > 0 else each)
    fields, retired = body.get("fields", {}), body.get("retired", {})
    # Fields of columns that the new system does not have.
    former = [*body.get("former", ()), *(fields[each] for each in fields.keys() - numbers)]
    former += [each for number in retired.keys() - numbers for each in retired[number]]
    found[PROPERTY_COLUMNS] = json.dumps(
        {
            "relation_oid": relation_oid,
            "fields": {numbers[each]: fields[each] for each in fields if each in numbers},
            "retired": {numbers[each]: retired[each] for each in retired if each in numbers},
            "unsent": sorted(int(numbers[str(each)]) for each in unsent),
            "unnumbered": body.get("unnumbered", []),
            "former": sorted(former),
            BEFORE_ADOPTION: body,
        }
    )
    return found


def marker_of(manifest: Manifest, table: Table | None = None) -> dict[str, str]:
    """The snapshot summary keys of every commit for a batch.

    :param table: the batch's table to which the commit writes; None: to one of the pipeline's own.
    """
    until = None if table is None else table.until_lsn
    return {
        SUMMARY_SLOT: manifest.slot_name,
        SUMMARY_SYSTEM_IDENTIFIER: manifest.system_identifier,
        SUMMARY_TIMELINE: str(manifest.timeline),
        SUMMARY_BATCH_ID: manifest.batch_id,
        SUMMARY_START_LSN: str(manifest.start_lsn),
        SUMMARY_END_LSN: str(manifest.end_lsn),
        **({SUMMARY_UNTIL_LSN: until} if until is not None else {}),
    }


def skipped_text(manifest: Manifest) -> str | None:
    """The value of ``skipped`` in the checkpoint table."""
    skipped = {each.commit_lsn: each.changes for each in manifest.skipped}
    return json.dumps(skipped) if skipped else None


def refuse_gap(manifest: Manifest, checkpoint: Lsn | None) -> None:
    """Refuse a batch that starts past the checkpoint.

    Without a checkpoint every start is right: capture decided where the stream begins when it made the slot.
    A table that has a marker nevertheless is checked by itself.

    :raises BatchGap: an earlier batch was never applied.
    """
    if checkpoint is not None and manifest.start_lsn > checkpoint:
        raise BatchGap(
            f"The batch starts at {manifest.start_lsn}, the checkpoint is {checkpoint}.",
            slot=manifest.slot_name,
            lsn=checkpoint,
            advice="apply the staged batches between, in order.",
        )
