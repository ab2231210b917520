"""Refuses changes of which the server left out what nothing else tells: an old row, a value.

The decoder takes them, because servers send them; a table they belong to can be copied again. What is not
here: values that do not fit their columns (``cast.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import FULL
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import TableVersion
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock

_INSERT, _UPDATE = b"IU"


def refuse_incomplete(version: TableVersion, block: ChangeBlock) -> None:
    """Refuse a block with a change that cannot be applied to any table.

    :raises TableRefused: it names the table, the column and the transaction.
    """
    _refuse_partial_rows(version, block)
    _refuse_partial_inserts(version, block)


def _refuse_partial_rows(version: TableVersion, block: ChangeBlock) -> None:
    """With REPLICA IDENTITY FULL every update has its old row, but those of a partition that is not FULL."""
    if version.replica_identity != FULL:
        return
    partial = (block.op == _UPDATE) & (block.old_kind == 0)
    if not partial.any():
        return
    table = f"{version.schema_name}.{version.table_name}"
    raise TableRefused(
        "An update came without its old row, although the table has REPLICA IDENTITY FULL: a partition of it"
        " did not have it then.",
        table=table,
        lsn=Lsn(int(block.commit_lsn[int(np.argmax(partial))])),
        advice=f"ALTER TABLE ... REPLICA IDENTITY FULL for all partitions, then copy_tables=[{table!r}].",
    )


def _refuse_partial_inserts(version: TableVersion, block: ChangeBlock) -> None:
    """An update that brings its row into the row filter is sent as an insert, without unchanged TOAST.

    What the table has of an earlier stay of the row is no substitute: it could change outside unseen.
    Source: https://www.postgresql.org/docs/current/logical-replication-row-filter.html (UPDATE
    Transformations).
    """
    inserts = block.op == _INSERT
    for column, flags in zip(version.columns, block.unchanged, strict=True):
        if flags is None or not (partial := flags & inserts).any():
            continue
        table = f"{version.schema_name}.{version.table_name}"
        raise TableRefused(
            "An update brought a row into the row filter of the publication, and the server left out a large"
            " value that the update did not change.",
            table=table,
            column=column.name,
            lsn=Lsn(int(block.commit_lsn[int(np.argmax(partial))])),
            advice=f"copy_tables=[{table!r}]. REPLICA IDENTITY FULL makes the server send such values.",
        )
