"""Into which parts a backlog is cut, and how many connections decode them at once. Arithmetic only.

A part is a range of LSNs. The server decodes it from where the copy of the slot restarts, so what lies
between that position and the part's start is read for nothing. A part is therefore never narrower than
that distance: the work stays within a small factor of reading once, however long a transaction was open.

What is not here: connections and threads (``sql_parts.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: WAL of a part at most, unless a long transaction makes it more: the server puts the answer into a
#: temporary file.  Every part reads the WAL again from where the slot restarts: with 64 MiB two million
#: changes took a quarter longer, and one long transaction half as long again (docs/performance.md).
PART_BYTES: Final = 192 << 20
#: WAL for which a connection that was asked for is opened at least.
_SMALLEST_PART_BYTES: Final = 16 << 20
#: WAL for which another connection pays: a copy of the slot takes some hundredths of a second.
_BYTES_PER_CONNECTION: Final = 32 << 20
#: Pages of the WAL are multiples of it (``wal_block_size``), and their headers much shorter.
_BLOCK_BYTES: Final = 1024
#: Connections at most, when nobody says how many: our own decoder cannot take more than so many servers'
#: cores make (docs/performance.md, the simulation).
_MOST_UNASKED: Final = 4
#: Connections at most in any case; each has chunks in memory.
MOST_CONNECTIONS: Final = 8


def sensible_connections(backlog_bytes: int, cores: int, free_slots: int) -> int:
    """How many connections decode a backlog, when nobody says it.

    :param cores: those of this machine, of which the reader itself needs one.
    :param free_slots: replication slots that the server could still make; half of them are left to others.
    """
    return max(
        1, min(_MOST_UNASKED, cores, backlog_bytes // _BYTES_PER_CONNECTION, free_slots // 2)
    )


def useful_connections(backlog_bytes: int, part_bytes: int) -> int:
    """How many connections find a part to decode."""
    return max(1, -(-backlog_bytes // min(part_bytes, _SMALLEST_PART_BYTES)))


@dataclass(frozen=True, slots=True)
class Cutting:
    """How ``[start, target)`` is cut for some connections.

    Parts are equally wide and as many for each connection, so that all are done at about the same time;
    whoever is free takes the next one. Narrower parts towards the end would keep connections waiting: parts
    are handed over in order, so one that is done early waits for the one before.

    :param part_bytes: WAL of a part at most, unless a long transaction makes it more.
    """

    start: int
    target: int
    connections: int
    part_bytes: int = PART_BYTES

    def end(self, low: int, restart: int) -> int:
        """Where the part that starts at ``low`` ends.

        :param restart: from where the server reads the WAL for it.
        """
        width = max(self._width, low - restart, _BLOCK_BYTES)
        rest = self.target - low - width
        if rest < width // 4:
            # To get to so small a rest would cost more than to read it.
            return self.target
        # A cut inside the header of a WAL page would have the record behind it on both sides.
        return (low + width) // _BLOCK_BYTES * _BLOCK_BYTES

    @property
    def _width(self) -> int:
        """What each part would have if no transaction were long."""
        total = max(1, self.target - self.start)
        rounds = -(-total // (self.connections * self.part_bytes))
        return -(-total // (self.connections * rounds))
