"""Adds the lake's offset to the LSNs in messages of pgoutput (``LsnOffset``).

All later code sees LSNs of the lake. An LSN of zero means that there is none, and stays zero. A broken
message is not changed here, because the decoder refuses it.

Source: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk
from airflow_provider_pgoutput.capture.pgoutput.messages import LAST_LSN

if TYPE_CHECKING:
    from collections.abc import Mapping

#: By tag: at which bytes of a message its LSNs are. These messages begin or end a transaction. The LSN of an
#: origin is not among them, because it is one of another server.
OF_TRANSACTIONS: Final[Mapping[str, tuple[int, ...]]] = {
    "B": (1,),  # Begin
    "C": (2, 10),  # Commit
    "b": (1, 9),  # Begin Prepare
    "P": (2, 10),  # Prepare
    "K": (2, 10),  # Commit Prepared
    "r": (2, 10),  # Rollback Prepared
    "p": (2, 10),  # Stream Prepare
    "c": (6, 14),  # Stream Commit
    "A": (9,),  # Stream Abort, with the option streaming = parallel only
}
#: The same, of a logical message. In a streamed part a transaction ID comes first. So it is counted later,
#: when its transaction is whole.
OF_LOGICAL_MESSAGES: Final[Mapping[str, tuple[int, ...]]] = {"M": (2,)}

_LSN_BYTES: Final = 8


def with_offset(
    chunk: MessageChunk, fields: Mapping[str, tuple[int, ...]], offset: int
) -> MessageChunk:
    """The chunk with ``offset`` added to these LSNs. The given chunk is not changed."""
    starts, ends = chunk.offsets[:-1], chunk.offsets[1:]
    tags = chunk.data[starts[starts < ends]]
    if not len(tags) or not np.isin(tags, [ord(tag) for tag in fields]).any():
        return chunk
    data = chunk.data.copy()
    starts, ends = starts[starts < ends], ends[starts < ends]
    for tag, positions in fields.items():
        found = np.flatnonzero(tags == ord(tag))
        for position in positions:
            first = starts[found] + position
            first = first[first + _LSN_BYTES <= ends[found]]
            places = first[:, None] + np.arange(_LSN_BYTES)
            lsns = data[places].view(">u8").ravel()
            is_lsn = (lsns > 0) & (lsns <= LAST_LSN)
            counted = np.where(is_lsn, lsns + np.uint64(offset), lsns).astype(">u8")
            data[places] = counted.view(np.uint8).reshape(-1, _LSN_BYTES)
    return MessageChunk(data, chunk.offsets)
