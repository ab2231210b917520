"""Cuts the logical messages of a chunk (``pg_logical_emit_message``) into columns. Vectorised.

It also decides which of them are wanted: a transactional message with the rows of its transaction, any other
one by its own LSN. The words of a refusal come from ``messages.py``, which parses the refused message again.
Prefixes are filtered elsewhere.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.capture.pgoutput.blocks import LogicalMessageBlock
from airflow_provider_pgoutput.capture.pgoutput.messages import parse_logical_message

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.row_messages import Chunk

#: Tag, flags and LSN, which stand before the prefix.
_HEAD_BYTES: Final = 10
#: The NUL after the prefix, and the length of the content.
_BETWEEN_BYTES: Final = 5


def cut_logical_messages(
    chunk: Chunk, start_lsn: Lsn | None, end_lsn: Lsn | None
) -> LogicalMessageBlock | None:
    """The messages of a chunk that belong to ``[start_lsn, end_lsn)``; None: there are none.

    The server sends a message that is not transactional if its record starts at or after the start of the
    read, and gives it the LSN at which the record ends. A batch starts and ends where a record does. So the
    batch's messages have ``start_lsn < lsn <= end_lsn``.

    :raises ProtocolError: a message is not valid, wanted or not.
    """
    messages, positions = chunk.messages, chunk.positions
    index = messages.of("Mm")
    if not len(index):
        return None
    lsn, prefix, content = _fields(chunk, index)
    transactional = messages.data[messages.starts[index] + 1] == 1
    transaction = positions.transaction[index]
    of_range = _in_range(lsn, start_lsn, end_lsn)
    wanted = np.where(transactional, positions.wanted[transaction], of_range)
    if not wanted.any():
        return None
    transaction, alone = transaction[wanted], ~transactional[wanted]

    def of_transaction(values: NDArray[np.int64]) -> pa.Array:
        return pa.array(values, pa.int64(), mask=alone)

    chosen = pa.array(wanted)
    return LogicalMessageBlock(
        lsn=lsn[wanted],
        transactional=transactional[wanted],
        commit_lsn=of_transaction(positions.commit_lsn[transaction]),
        # A message takes no number of its own, so the number after the change before it is its position.
        seq=of_transaction(positions.seq[index[wanted]] + 1),
        xid=of_transaction(positions.xid[transaction]),
        commit_ts_us=of_transaction(positions.commit_ts_us[transaction]),
        prefix=prefix.filter(chosen),
        content=content.filter(chosen),
    )


def _in_range(
    lsn: NDArray[np.int64], start_lsn: Lsn | None, end_lsn: Lsn | None
) -> NDArray[np.bool_]:
    wanted = np.ones(len(lsn), dtype=np.bool_)
    if start_lsn is not None:
        wanted &= lsn > min(start_lsn, 2**63 - 1)
    if end_lsn is not None and end_lsn < 2**63:
        wanted &= lsn <= int(end_lsn)
    return wanted


def _fields(chunk: Chunk, index: NDArray[np.intp]) -> tuple[NDArray[np.int64], pa.Array, pa.Array]:
    """Read LSN, prefix and content of messages, and check all of it."""
    messages = chunk.messages
    data, starts, ends = messages.data, messages.starts[index], messages.ends[index]
    numbers, lengths = messages.words(">i8"), messages.words(">i4")
    lsn = numbers[np.minimum(starts + 2, len(numbers) - 1)].astype(np.int64)
    first = int(starts[0])
    # The zeros after the last message make sure that every prefix has an end.
    zeros = np.flatnonzero(data[first:] == 0) + first
    found = np.searchsorted(zeros, starts + _HEAD_BYTES)
    prefix_ends = zeros[np.minimum(found, len(zeros) - 1)]
    contents = prefix_ends + _BETWEEN_BYTES
    sizes = lengths[np.minimum(prefix_ends + 1, len(lengths) - 1)]
    right = (
        (data[starts + 1] <= 1)
        & (lsn > 0)
        & (prefix_ends >= starts + _HEAD_BYTES)
        & (contents <= ends)
        & (sizes >= 0)
        & (contents + sizes == ends)
    )
    if not right.all():
        _refuse(chunk, index[~right])
    # For each message: the prefix, what follows it, the content, and the bytes up to the next prefix.
    cuts = np.stack((starts + _HEAD_BYTES, prefix_ends, contents, ends), axis=1).reshape(-1)
    buffers = [None, pa.py_buffer(cuts), pa.py_buffer(data)]
    runs = pa.Array.from_buffers(pa.large_binary(), len(cuts) - 1, buffers)
    places = np.arange(len(index), dtype=np.int64) * 4
    prefix = runs.take(pa.array(places)).cast(pa.binary())
    content = runs.take(pa.array(places + 2)).cast(pa.binary())
    try:
        return lsn, prefix.cast(pa.string()), content
    except pa.ArrowInvalid:
        _refuse(chunk, index)


def _refuse(chunk: Chunk, index: NDArray[np.intp]) -> NoReturn:
    """Raise the ProtocolError that says what is wrong with the first wrong message of some."""
    for each in index.tolist():
        inside = chunk.messages.event(each) == "M"
        parse_logical_message(
            chunk.messages.body(each), chunk.positions.lsn(each) if inside else None
        )
    raise AssertionError("the reference decoder accepts a message that this one refused")
