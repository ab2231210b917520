"""Faults that are known and not mended yet: what no program does until they are.

An entry goes when its fault is mended. When all are gone, so is this file.
"""

from __future__ import annotations

#: Operations that no program has.
OPERATIONS = {
    "change leaf identity": "the replica identity of a partition that is not its root's",
    "drop table": "a table that is gone stops all others",
}
#: Kinds of tables that no program has.
TABLES = {
    "columnless": "a table without columns ends the run",
    "identities of leaves": "the replica identity of a partition that is not its root's",
}
#: Beginnings of messages that end a run without a verdict.
REFUSALS = {
    "The table has no columns": "a table without columns ends the run",
    "was not streamed": "PostgreSQL 18 sends the abort of a large subtransaction that it never streamed",
}
