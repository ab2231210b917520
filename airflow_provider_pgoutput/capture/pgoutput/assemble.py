"""Makes blocks of rows: one block for each version of a relation, in the order of the stream.

A chunk with few rows of each of a hundred partitions costs little more than a chunk of one table: the rows of
all relations with the same number of columns are cut together, and the cost is that of the steps, not of the
rows. The blocks are slices of the resulting columns. Whoever keeps a small block for long copies it
(``staging/writers.py``).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import ChangeBlock
from airflow_provider_pgoutput.capture.pgoutput.row_messages import (
    INSERT,
    NEW,
    TRUNCATE,
    UPDATE,
    Rows,
    Tuples,
    find_tuples,
)
from airflow_provider_pgoutput.capture.pgoutput.tuple_walk import Collector

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.pgoutput.blocks import Forms
    from airflow_provider_pgoutput.capture.pgoutput.origins import ChunkOrigins

    Order = NDArray[np.intp] | None
    Column = tuple[pa.Array | None, NDArray[np.bool_] | None, Forms]


def assemble(rows: Rows, origins: ChunkOrigins | None = None) -> list[ChangeBlock]:
    """Make the blocks of a chunk, in the order of their first changes.

    :raises ProtocolError: a row is not valid.
    """
    if not len(rows):
        return []
    widths = rows.chunk.relations.widths(rows.version)
    if (widths == widths[0]).all():
        found = _of_width(rows, int(widths[0]), origins)
    else:
        found = [
            block
            for width in np.unique(widths).tolist()
            for block in _of_width(rows.pick(np.flatnonzero(widths == width)), width, origins)
        ]
    return [block for _, block in sorted(found, key=lambda each: each[0])]


def _of_width(
    rows: Rows, width: int, origins: ChunkOrigins | None
) -> list[tuple[int, ChangeBlock]]:
    """Make the blocks of the rows with ``width`` columns. Each comes with the number of its first message."""
    old, new = find_tuples(rows, width)
    order, bounds = _grouped(rows.version)
    new_columns = _columns(new, order, width)
    old_columns = _columns(old, order, width)
    if order is not None:
        rows = rows.pick(order)
    positions = rows.chunk.positions
    transaction = positions.transaction[rows.message]
    commit_lsn = positions.commit_lsn[transaction]
    seq = positions.seq[rows.message]
    xid = positions.xid[transaction]
    commit_ts_us = positions.commit_ts_us[transaction]
    no_old = (rows.kind == NEW) | (rows.tag == TRUNCATE)
    old_kind = np.where(no_old, np.uint8(0), rows.kind)

    def block(first: int, last: int) -> ChangeBlock:
        def own(values: NDArray[np.int64]) -> NDArray[np.int64]:
            # A view would keep the numbers of all blocks in memory, and Arrow does not report that.
            return values if len(bounds) == 1 else values[first:last].copy()

        tag = rows.tag[first:last]
        has_new = bool(((tag == INSERT) | (tag == UPDATE)).any())
        has_old = bool(old_kind[first:last].any())
        found = None if origins is None else origins.of(transaction[first:last])
        return ChangeBlock(
            relation=rows.chunk.relations.versions[int(rows.version[first])],
            commit_lsn=own(commit_lsn),
            seq=own(seq),
            op=tag,
            xid=own(xid),
            commit_ts_us=own(commit_ts_us),
            old_kind=old_kind[first:last],
            new=_slices(new_columns, first, last, has_new),
            old=_slices(old_columns, first, last, has_old),
            new_binary=_forms(new_columns, first, last),
            old_binary=_forms(old_columns, first, last),
            unchanged=tuple(_marked(marks, first, last) for _, marks, _ in new_columns),
            origin=found[0] if found else None,
            origin_lsn=found[1] if found else None,
        )

    return [(int(rows.message[first]), block(first, last)) for first, last in bounds]


def _grouped(version: NDArray[np.intp]) -> tuple[Order, list[tuple[int, int]]]:
    """Order rows by version, and within a version by the stream; None: they are so already.

    And the bounds.
    """
    if (version == version[0]).all():
        return None, [(0, len(version))]
    # Numpy sorts 16-bit numbers by radix, several times faster than wider ones.
    keys = version.astype(np.uint16) if version.max() < 1 << 16 else version
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(version[order])) + 1
    return order, list(itertools.pairwise([0, *cuts.tolist(), len(version)]))


def _columns(tuples: Tuples | None, order: Order, width: int) -> list[Column]:
    """Make the columns of the new or the old tuples. Marks say what is unchanged TOAST or in binary form."""
    if tuples is None:
        return [(None, None, False)] * width
    slots = tuples.slots if order is None else tuples.slots[order]
    collector = Collector(tuples.found, slots)
    return [
        (collector.values(column), collector.unchanged(column), collector.binary(column))
        for column in range(width)
    ]


def _slices(
    columns: list[Column], first: int, last: int, is_there: bool
) -> tuple[pa.Array | None, ...]:
    return tuple(
        values.slice(first, last - first) if is_there and values is not None else None
        for values, _, _ in columns
    )


def _forms(columns: list[Column], first: int, last: int) -> tuple[Forms, ...]:
    return tuple(
        form if isinstance(form, bool) else form[first:last].copy() for _, _, form in columns
    )


def _marked(marks: NDArray[np.bool_] | None, first: int, last: int) -> NDArray[np.bool_] | None:
    return None if marks is None or not marks[first:last].any() else marks[first:last]
