"""What the server takes for announced, and what the decoder has seen of it; unfinished transactions.

Relations are announced once to everybody and once more inside each transaction that is streamed.
Source: what pgoutput itself keeps in its relation cache,
https://www.postgresql.org/docs/current/protocol-logical-replication.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.pieces import Piece, Spool, one_message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_RELATION: Final = ord("R")
_OID: Final = struct.Struct("!I")


def tag_mask(tags: str) -> NDArray[np.bool_]:
    """Make the lookup table from a message's first byte to whether it is one of ``tags``."""
    mask = np.zeros(256, dtype=np.bool_)
    mask[[ord(tag) for tag in tags]] = True
    return mask


@dataclass(slots=True)
class Unfinished:
    """A transaction of which parts have arrived."""

    xid: int
    spool: Spool
    #: Subtransactions that were rolled back.
    aborted: set[int] = field(default_factory=set)
    #: Relations announced in it and still in force for it: position in the stream, and the message.
    announced: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    #: All relations ever announced in it.
    oids: set[int] = field(default_factory=set)


class Announced:
    """What the server takes for announced, and of it what the decoder has not seen.

    A streamed transaction holds announcements of its own. When it commits, the server counts them as made
    to everybody, unless a newer one was made meanwhile.
    """

    def __init__(self) -> None:
        #: By OID: position in the stream, and the Relation message.
        self._messages: dict[int, tuple[int, bytes]] = {}
        #: OIDs of which the decoder lacks the message.
        self.owed: set[int] = set()

    def learn(self, piece: Piece, position: int, *, owed: bool) -> None:
        """Note announcements to everybody; ``owed``: the decoder does not see them now."""
        for oid, (index, body) in relations_in(piece).items():
            self._messages[oid] = (position + index, body)
            if owed:
                self.owed.add(oid)
            else:
                self.owed.discard(oid)

    def note(self, piece: Piece, position: int, unfinished: Unfinished) -> None:
        """Note announcements that hold inside a streamed transaction."""
        for oid, (index, body) in relations_in(piece).items():
            unfinished.announced[oid] = (position + index, body)

    def complete(self, piece: Piece, unfinished: Unfinished) -> None:
        """Put in front of a prepared transaction's rows the announcements on which they rely.

        Its spool is read after others may have been made, perhaps in another run. Rows may rely on an
        older one even where the transaction makes its own: it can change the shape of a table between them.
        """
        own = relations_in(piece)
        for oid in row_oids(piece):
            known = self._messages.get(oid)
            if known is not None and oid not in unfinished.oids:
                unfinished.spool.append(one_message(known[1], unfinished.xid))
            unfinished.oids.add(oid)
        unfinished.oids |= set(own)

    def promote(self, streamed: Unfinished) -> None:
        """Take over the announcements of a streamed transaction that committed."""
        for oid, (position, body) in streamed.announced.items():
            if oid not in self._messages or self._messages[oid][0] < position:
                self._messages[oid] = (position, body)

    def again(self, oids: set[int]) -> Iterator[Piece]:
        """Make the decoder's knowledge of ``oids``, and of what it is owed, that of the server."""
        for oid in sorted(oids | self.owed):
            if oid in self._messages:
                yield one_message(self._messages[oid][1], 0)
        self.owed.clear()

    def settle(self, piece: Piece) -> Iterator[Piece]:
        """Whole transactions, with what the decoder is owed behind the first Begin."""
        begins = np.flatnonzero(piece.tags == ord("B"))
        if not self.owed or not len(begins):
            yield piece
            return
        place = int(begins[0]) + 1
        yield _part(piece, 0, place)
        yield from self.again(set())
        yield _part(piece, place, len(piece))


def relations_in(piece: Piece) -> dict[int, tuple[int, bytes]]:
    """The last Relation message of each OID in a piece, with its index."""
    found: dict[int, tuple[int, bytes]] = {}
    indexes = np.flatnonzero(piece.tags == _RELATION)
    if not len(indexes):
        return found
    offsets = piece.offsets
    for index in indexes.tolist():
        body = piece.data[offsets[index] : offsets[index + 1]].tobytes()
        if len(body) > _OID.size:
            found[_OID.unpack_from(body, 1)[0]] = (index, body)
    return found


def row_oids(piece: Piece) -> list[int]:
    """OIDs of the relations that the rows and truncates of a piece change."""
    starts = piece.offsets[:-1]
    rows = starts[tag_mask("IUD")[piece.tags] & (piece.lengths > _OID.size)]
    found = set()
    if len(rows):
        words = np.ndarray(
            (len(piece.data) - _OID.size + 1,), dtype=">u4", buffer=piece.data.data, strides=(1,)
        )
        found |= set(np.unique(words[rows + 1]).tolist())
    for index in np.flatnonzero(piece.tags == ord("T")).tolist():
        body = piece.data[starts[index] : starts[index] + piece.lengths[index]].tobytes()
        found |= {
            int(each) for each in np.frombuffer(body[6 : 6 + (len(body) - 6) // 4 * 4], ">u4")
        }
    return sorted(found)


def _part(piece: Piece, first: int, last: int) -> Piece:
    offsets = piece.offsets
    return Piece(
        piece.data[offsets[first] : offsets[last]],
        piece.lengths[first:last],
        piece.xids[first:last],
    )
