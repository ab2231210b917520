"""What goes into the decoder and what comes out of it: chunks of messages, blocks of changes.

Rows are never objects here. A chunk is one byte buffer with offsets; a block is a set of columns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.messages import Relation

    #: Which values of a column are in binary form and not in text: all, none, or those that are marked.
    Forms = bool | NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MessageChunk:
    """Some whole messages in stream order; message ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: NDArray[np.uint8]
    #: One more than there are messages, ascending.
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChangeBlock:
    """Row changes of one relation, as the relation message before them described it.

    All arrays have one element per change, in stream order. Values stay as the server sent them, text
    or binary: a raw column is an Arrow ``binary`` array, null where the tuple holds NULL, where the value
    is unchanged TOAST, and where the change has no such tuple.
    """

    relation: Relation
    commit_lsn: NDArray[np.int64]
    #: Ordinal in the transaction, see ``batch/changes.py``.
    seq: NDArray[np.int64]
    #: ``ord`` of ``I``, ``U``, ``D`` or ``T``.
    op: NDArray[np.uint8]
    xid: NDArray[np.int64]
    #: Microseconds since 1970-01-01 UTC.
    commit_ts_us: NDArray[np.int64]
    #: ``ord`` of ``K`` or ``O``; 0: no old tuple.
    old_kind: NDArray[np.uint8]
    #: By position of the column; None: no change of the block has a new tuple.
    new: tuple[pa.Array | None, ...]
    #: By position of the column; None: no change of the block has an old tuple.
    old: tuple[pa.Array | None, ...]
    #: By position of the column.
    new_binary: tuple[Forms, ...]
    #: By position of the column.
    old_binary: tuple[Forms, ...]
    #: By position of the column; None: nothing is unchanged TOAST in it.
    unchanged: tuple[NDArray[np.bool_] | None, ...]
    #: Name of the origin of each change's transaction; None: no change of the block has one.
    origin: pa.Array | None = None
    #: The transaction's commit LSN there, null where it is not known; None as above.
    origin_lsn: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.seq)

    def since(self, lsn: Lsn) -> ChangeBlock:
        """The changes of transactions that committed at ``lsn`` or later; they come last."""
        first = int(np.searchsorted(self.commit_lsn, int(lsn)))
        return self if first == 0 else self[first:]

    def __getitem__(self, rows: slice) -> ChangeBlock:
        """Some of the changes; nothing is copied."""

        def cut(value: Any) -> Any:
            if value is None or value is self.relation or isinstance(value, bool):
                return value
            if isinstance(value, tuple):
                return tuple(cut(each) for each in value)
            return value[rows]

        fields = (each.name for each in dataclasses.fields(self))
        return ChangeBlock(**{n: cut(getattr(self, n)) for n in fields})


@dataclass(frozen=True, slots=True)
class LogicalMessageBlock:
    """Messages of ``pg_logical_emit_message``, in stream order; all columns have one element for each.

    The server gives a message the LSN where its WAL record ends. A null in ``commit_lsn``, ``seq``,
    ``xid`` and ``commit_ts_us`` is a message that belongs to no transaction.
    """

    lsn: NDArray[np.int64]
    transactional: NDArray[np.bool_]
    commit_lsn: pa.Array
    #: The message stands before the change with this ``seq`` in its transaction.
    seq: pa.Array
    xid: pa.Array
    #: Microseconds since 1970-01-01 UTC.
    commit_ts_us: pa.Array
    #: An Arrow ``string`` array.
    prefix: pa.Array
    #: An Arrow ``binary`` array.
    content: pa.Array

    def __len__(self) -> int:
        return len(self.lsn)
