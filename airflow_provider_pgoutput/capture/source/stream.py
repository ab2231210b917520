"""The seam between the two ways of reading a slot and everything behind them.

``sql_stream.py`` and ``walsender_stream.py`` are the two. A stream gives the messages of pgoutput
protocol version 1 in chunks; what they mean is the decoder's matter, where a batch ends is
``staging/cut.py``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk

#: Larger chunks fall out of the processor's cache while they are decoded.
CHUNK_BYTES = 3 << 20

PROTOCOL_VERSION = "1"


class ChangeStream(Protocol):
    """One read of a slot from the checkpoint up to a target LSN.

    The slot is not moved by it. A stream is read once and closed in any case.
    """

    def chunks(self) -> Iterator[MessageChunk]:
        """Whole messages in stream order.

        Every transaction whose commit LSN lies in ``[checkpoint, target)`` is among them, completely.
        Transactions before and after may be too: the reader leaves them out.

        :raises SourceUnavailable: when the connection breaks.
        :raises PublicationMissing: when the server says that it skipped a publication.
        :raises SlotAheadOfCheckpoint: when the slot starts past the checkpoint.
        """
        ...

    def stop(self) -> None:
        """Make ``chunks`` end soon, or fail, in the thread that iterates; for calls from another one."""
        ...

    def close(self) -> None:
        """End the read and free the slot; no thread iterates any more. May be called twice."""
        ...
