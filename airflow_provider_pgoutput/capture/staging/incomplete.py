"""Refuses changes from which the server left out something that nothing else tells: an old row, a value.

The decoder accepts such changes, because servers send them. The refused table can be copied again. Values
that do not fit their columns are handled in ``types/cast.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.table_version import FULL
from airflow_provider_pgoutput.errors import TableRefused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.table_version import TableVersion
    from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock
    from airflow_provider_pgoutput.capture.pgoutput.messages import PartitionIdentity

_INSERT, _UPDATE, _DELETE = b"IUD"
_KEY, _OLD = b"KO"


def refuse_incomplete(
    version: TableVersion, partitions: frozenset[PartitionIdentity], block: ChangeBlock
) -> None:
    """Refuse a block with a change that cannot be applied to any table.

    :param partitions: what the partitions of the table send, up to here in the stream.
    :raises TableRefused: it names the table, the column and the transaction.
    """
    _refuse_unnamed_rows(version, partitions, block)
    _refuse_partial_inserts(version, block)


def old_kinds(partitions: frozenset[PartitionIdentity], block: ChangeBlock) -> NDArray[np.uint8]:
    """Whether each old tuple is the whole row, or only the identity.

    For a root, the message says what the root has, and not what the partition sent.
    """
    if not partitions:
        return block.old_kind
    is_full = all(each.is_full for each in partitions)
    return np.where(block.old_kind == 0, np.uint8(0), np.uint8(_OLD if is_full else _KEY))


def _refuse_unnamed_rows(
    version: TableVersion, partitions: frozenset[PartitionIdentity], block: ChangeBlock
) -> None:
    """Refuse an update or a delete that may come from a partition whose old tuples lack the key.

    An update without an old tuple says that the identity of its partition did not change. Another key may
    have changed. Without a key whole rows are compared.
    """
    key = version.key_columns
    if partitions:
        without_key = [e for e in partitions if not (e.is_full or (key and e.covers(key)))]
    elif version.replica_identity == FULL:
        without_key = []
    else:
        return
    changed = (block.op == _UPDATE) | (block.op == _DELETE)
    unnamed = (block.op == _UPDATE) & (block.old_kind == 0)
    if without_key and key and version.replica_identity != FULL:
        held = changed & (block.old_kind != 0)
        for position, column in enumerate(version.columns):
            values = block.old[position]
            if column.name in key and values is not None and values.null_count:
                unnamed |= held & values.is_null().to_numpy(zero_copy_only=False)
    elif without_key:
        unnamed = changed
    elif version.replica_identity != FULL:
        return
    if not unnamed.any():
        return
    table = f"{version.schema_name}.{version.table_name}"
    lsn = Lsn(int(block.commit_lsn[int(np.argmax(unnamed))]))
    raise _not_named(table, key, min(without_key, key=lambda e: e.name, default=None), lsn)


def _not_named(
    table: str, key: tuple[str, ...], partition: PartitionIdentity | None, lsn: Lsn
) -> TableRefused:
    copy = (
        f"then copy the table again (copy_tables=[{table!r}]), because earlier changes do not say which row"
        " they mean; on_unknown_default='copy' in the stage task does so by itself."
    )
    if partition is None:
        return TableRefused(
            "An update came without its old row, although the table has REPLICA IDENTITY FULL: a partition of"
            " it did not have it then.",
            table=table,
            lsn=lsn,
            advice=f"ALTER TABLE ... REPLICA IDENTITY FULL for all partitions, {copy}",
        )
    sent = ", ".join(sorted(partition.columns)) or "unknown"
    if not key:
        return TableRefused(
            "An update or delete came from a partition, and the table that it is published under has no key:"
            f" partition {partition.name} has the replica identity ({sent}).",
            table=table,
            lsn=lsn,
            advice=f"name columns that identify a row of the whole table: key_columns={{{table!r}: [...]}} in"
            " the stage task, within the replica identity of every partition. Or run ALTER TABLE partition"
            f" REPLICA IDENTITY FULL on the source for each partition, {copy}",
        )
    return TableRefused(
        f"An update or delete does not say which row it means: the key is ({', '.join(key)}), and partition"
        f" {partition.name} had the replica identity ({sent}) then.",
        table=table,
        lsn=lsn,
        advice="on the source give every partition a replica identity that holds the key, by ALTER TABLE"
        f" partition REPLICA IDENTITY DEFAULT, USING INDEX or FULL, {copy}",
    )


def _refuse_partial_inserts(version: TableVersion, block: ChangeBlock) -> None:
    """Refuse an insert without a large value: an update brought its row into the row filter.

    The target may have the row from an earlier time inside of the filter. Its value cannot be used, because
    it may have changed while the row was outside.

    Source: https://www.postgresql.org/docs/current/logical-replication-row-filter.html (UPDATE
    Transformations).
    """
    inserts = block.op == _INSERT
    for column, flags in zip(version.columns, block.unchanged, strict=True):
        if flags is None or not (partial := flags & inserts).any():
            continue
        table = f"{version.schema_name}.{version.table_name}"
        raise TableRefused(
            "An update brought a row into the row filter, and the server left out a large value that the"
            " update did not change.",
            table=table,
            column=column.name,
            lsn=Lsn(int(block.commit_lsn[int(np.argmax(partial))])),
            advice=f"copy_tables=[{table!r}]. REPLICA IDENTITY FULL makes the server send such values.",
        )
