"""Which relations the server takes for announced, and which of these the decoder has not seen yet.

The server announces a relation once to everybody, and once more inside of each transaction that it streams.

Source: the relation cache of pgoutput,
https://www.postgresql.org/docs/current/protocol-logical-replication.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.spool import Fragment, Spool, one_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.pgoutput.blocks import MessageChunk

_RELATION: Final = ord("R")
_OID: Final = struct.Struct("!I")


def tag_mask(tags: str) -> NDArray[np.bool_]:
    """Make a table that says for a message's first byte whether it is one of ``tags``."""
    mask = np.zeros(256, dtype=np.bool_)
    mask[[ord(tag) for tag in tags]] = True
    return mask


_ROWS: Final = tag_mask("IUD")
_ANNOUNCES: Final = tag_mask("RY")


@dataclass(slots=True)
class Unfinished:
    """A transaction that has not ended; some parts of it have arrived."""

    xid: int
    spool: Spool
    #: Subtransactions that were rolled back.
    aborted: set[int] = field(default_factory=set)
    #: By OID: relations that it announced and that still hold for it. Position in the stream, and the
    #: message.
    announced: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    #: OIDs of all relations that were ever announced in it.
    oids: set[int] = field(default_factory=set)

    def announce(self, relation_oid: int, position: int, body: bytes) -> None:
        """Note a relation that it announced."""
        self.announced[relation_oid] = (position, body)

    def add_oids(self, relation_oids: Iterable[int]) -> None:
        """Note relations that were announced in it."""
        self.oids.update(relation_oids)


class Announced:
    """Which relations the server takes for announced, and which of them the decoder has not seen.

    A streamed transaction has announcements of its own. When it commits, the server takes them for made to
    everybody, unless a newer one was made meanwhile.
    """

    def __init__(self) -> None:
        #: By OID: position in the stream, and the Relation message.
        self._messages: dict[int, tuple[int, bytes]] = {}
        #: OIDs of the relations whose message the decoder has not seen.
        self.unseen: set[int] = set()
        #: OID of the root by OID of the partition, for partitions that send rows under the root's name.
        self._roots: dict[int, int] = {}
        #: OIDs of the last two announcements, until another message follows.
        self._run: list[int] = []

    def note_partitions(
        self, chunk: MessageChunk, first: int, last: int, *, streamed: bool
    ) -> None:
        """Find partitions in the server's own stream: root, partition, and then a row of the root.

        :param first: number of the first message to look at, which follows the last one of the previous call.
        :param last: number of the last message, plus one.
        :param streamed: the messages have a transaction ID after the tag.
        """
        offset = 1 + _OID.size * streamed
        starts, ends = chunk.offsets[first:last], chunk.offsets[first + 1 : last + 1]
        tags = chunk.data[starts]

        def oid(index: int) -> int:
            if ends[index] - starts[index] < offset + _OID.size:
                return -1  # The decoder refuses it.
            at = int(starts[index]) + offset
            return int.from_bytes(chunk.data[at : at + _OID.size].tobytes(), "big")

        def look(index: int) -> None:
            """Look at the message after an announcement."""
            if index == len(tags) or _ANNOUNCES[tags[index]]:
                return
            if _ROWS[tags[index]] and len(self._run) == 2:
                root, partition = self._run
                if root == oid(index) != partition:
                    self._roots[partition] = root
            self._run.clear()

        look(0)
        for index in np.flatnonzero(_ANNOUNCES[tags]).tolist():
            if tags[index] == _RELATION:
                self._run = [*self._run[-1:], oid(index)]
            look(index + 1)

    def learn(self, fragment: Fragment, position: int, *, unseen: bool) -> None:
        """Note announcements to everybody; ``unseen``: the decoder does not see them now."""
        for oid, (index, body) in relations_in(fragment).items():
            self._messages[oid] = (position + index, body)
            if unseen:
                self.unseen.add(oid)
            else:
                self.unseen.discard(oid)

    def note(self, fragment: Fragment, position: int, unfinished: Unfinished) -> None:
        """Note announcements that hold inside of a streamed transaction."""
        for oid, (index, body) in relations_in(fragment).items():
            unfinished.announce(oid, position + index, body)

    def complete(self, fragment: Fragment, unfinished: Unfinished) -> None:
        """Put the announcements that a prepared transaction's rows rely on in front of its rows.

        Its spool is read later, perhaps in another run, after other announcements. Its rows may rely on an
        older announcement even if the transaction makes its own: it can change the columns of a table between
        them.
        """
        rows = set(row_oids(fragment))
        partitions = {oid for oid, root in self._roots.items() if root in rows}
        relied_on = self._messages.keys() & (rows | partitions)
        if relied_on - unfinished.oids:
            # For all partitions: these messages may come between a partition's announcement and its row.
            for each in self._announcements(
                relied_on - (unfinished.oids - partitions), unfinished.xid
            ):
                unfinished.spool.append(each)
        unfinished.add_oids(rows | partitions | set(relations_in(fragment)))

    def promote(self, streamed: Unfinished) -> None:
        """Take over the announcements of a streamed transaction that committed."""
        for oid, (position, body) in streamed.announced.items():
            if oid not in self._messages or self._messages[oid][0] < position:
                self._messages[oid] = (position, body)

    def again(self, oids: set[int]) -> Iterator[Fragment]:
        """Send the decoder the announcements of these relations, and of those that it has not seen."""
        yield from self._announcements(
            {oid for oid in oids | self.unseen if oid in self._messages}, 0
        )
        self.unseen.clear()

    def _announcements(self, oids: set[int], xid: int) -> Iterator[Fragment]:
        """Announcements of relations, in an order that shows the decoder the partitions among them.

        A relation between two announcements of its root is a partition of it. All other relations are
        announced twice. Otherwise the server's own order (root, partition, row) could come about by accident.
        """
        partitions = {oid for oid in oids if self._roots.get(oid) in self._messages}
        for oid in sorted(oids - partitions):
            for _ in range(2):
                yield one_message(self._messages[oid][1], xid)
        for oid in sorted(partitions):
            root = self._messages[self._roots[oid]][1]
            for body in (root, self._messages[oid][1], root):
                yield one_message(body, xid)

    def settle(self, fragment: Fragment) -> Iterator[Fragment]:
        """Whole transactions. What the decoder has not seen comes after the first Begin."""
        begins = np.flatnonzero(fragment.tags == ord("B"))
        if not self.unseen or not len(begins):
            yield fragment
            return
        offset = int(begins[0]) + 1
        yield _part(fragment, 0, offset)
        yield from self.again(set())
        yield _part(fragment, offset, len(fragment))


def relations_in(fragment: Fragment) -> dict[int, tuple[int, bytes]]:
    """By OID: the last Relation message of each relation in a fragment, and its index."""
    found: dict[int, tuple[int, bytes]] = {}
    indexes = np.flatnonzero(fragment.tags == _RELATION)
    if not len(indexes):
        return found
    offsets = fragment.offsets
    for index in indexes.tolist():
        body = fragment.data[offsets[index] : offsets[index + 1]].tobytes()
        if len(body) > _OID.size:
            found[_OID.unpack_from(body, 1)[0]] = (index, body)
    return found


def row_oids(fragment: Fragment) -> list[int]:
    """OIDs of the relations that rows and truncates of a fragment change."""
    starts = fragment.offsets[:-1]
    rows = starts[_ROWS[fragment.tags] & (fragment.lengths > _OID.size)]
    found = set()
    if len(rows):
        words = np.ndarray(
            (len(fragment.data) - _OID.size + 1,),
            dtype=">u4",
            buffer=fragment.data.data,
            strides=(1,),
        )
        found |= set(np.unique(words[rows + 1]).tolist())
    for index in np.flatnonzero(fragment.tags == ord("T")).tolist():
        body = fragment.data[starts[index] : starts[index] + fragment.lengths[index]].tobytes()
        found |= {
            int(each) for each in np.frombuffer(body[6 : 6 + (len(body) - 6) // 4 * 4], ">u4")
        }
    return sorted(found)


def _part(fragment: Fragment, first: int, last: int) -> Fragment:
    offsets = fragment.offsets
    return Fragment(
        fragment.data[offsets[first] : offsets[last]],
        fragment.lengths[first:last],
        fragment.xids[first:last],
    )
