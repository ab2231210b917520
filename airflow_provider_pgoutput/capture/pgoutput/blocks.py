"""What goes into the decoder and what comes out: chunks of messages in, blocks of changes out.

A row is never a Python object here. A *chunk* is one byte buffer with offsets. A *block* is the changes of
one relation, as columns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.capture.pgoutput.messages import Relation

    #: Which values of a column are in binary form (the others are text): all, none, or those that are marked.
    Forms = bool | NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MessageChunk:
    """Whole messages in the order of the stream. Message ``i`` is ``data[offsets[i]:offsets[i + 1]]``."""

    data: NDArray[np.uint8]
    #: Ascending, and one more than there are messages.
    offsets: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChangeBlock:
    """Row changes of one relation, which has the form that the last Relation message says.

    All arrays have one element for each change, in the order of the stream. Values are as the server sent
    them, text or binary. A column is an Arrow ``binary`` array. It is null if the value is NULL or unchanged
    TOAST, or if the change has no such tuple.
    """

    relation: Relation
    commit_lsn: NDArray[np.int64]
    #: Number of the change in its transaction, see ``batch/changes.py``.
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
    #: By position of the column; None: no value of it is unchanged TOAST.
    unchanged: tuple[NDArray[np.bool_] | None, ...]
    #: By change: name of the transaction's origin; None: no change of the block has an origin.
    origin: pa.Array | None = None
    #: By change: the transaction's commit LSN at the origin, null: not known; None: as above.
    origin_lsn: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.seq)

    def since(self, lsn: Lsn) -> ChangeBlock:
        """The changes of transactions that committed at ``lsn`` or later. They are the last of the block."""
        first = int(np.searchsorted(self.commit_lsn, int(lsn)))
        return self if first == 0 else self[first:]

    def __getitem__(self, rows: slice) -> ChangeBlock:
        """Some of the changes. Nothing is copied."""
        return self._each(lambda values: values[rows])

    def where(self, chosen: NDArray[np.bool_]) -> ChangeBlock:
        """The chosen changes."""
        mask = pa.array(chosen)
        return self._each(
            lambda values: values.filter(mask) if isinstance(values, pa.Array) else values[chosen]
        )

    def _each(self, choose: Callable[[Any], Any]) -> ChangeBlock:
        """The block with other arrays."""

        def cut(value: Any) -> Any:
            if value is None or value is self.relation or isinstance(value, bool):
                return value
            if isinstance(value, tuple):
                return tuple(cut(each) for each in value)
            return choose(value)

        fields = (each.name for each in dataclasses.fields(self))
        return ChangeBlock(**{n: cut(getattr(self, n)) for n in fields})


@dataclass(frozen=True, slots=True)
class LogicalMessageBlock:
    """Messages of ``pg_logical_emit_message`` in the order of the stream. Columns have one element for each.

    The server gives a message the LSN at which its WAL record ends. A message that belongs to no transaction
    has null in ``commit_lsn``, ``seq``, ``xid`` and ``commit_ts_us``.
    """

    lsn: NDArray[np.int64]
    transactional: NDArray[np.bool_]
    commit_lsn: pa.Array
    #: ``seq`` of the next change in the message's transaction.
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
