"""LSNs: parse, print, compare. No other file knows their text forms.

An LSN is a byte position in the write-ahead log: a 64-bit number that PostgreSQL prints as two hexadecimal
halves (``16/B374D848``). It is compared as a number, because the texts compare wrongly (``0/9`` and
``0/10``). It is stored as text, because numbers in JSON lose bits past 2**53. Where texts are sorted (file
names, the checkpoint table) it has sixteen digits and no slash.

Source: https://www.postgresql.org/docs/current/datatype-pg-lsn.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from airflow_provider_pgoutput.errors import ConfigurationError

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_SORTABLE = re.compile(r"([0-9A-Fa-f]{8})([0-9A-Fa-f]{8})")
#: The advice for an LSN that is refused.
LSN_ADVICE = (
    "write it as PostgreSQL does, 16/B374D848, or as the checkpoint table does, 00000016B374D848."
)


class Lsn(int):
    """A position in the write-ahead log; an ``int`` that prints as PostgreSQL prints it."""

    __slots__ = ()

    def __new__(cls, value: int) -> Lsn:  # noqa: D102 - described by the class
        if not 0 <= value < 1 << 64:
            raise ConfigurationError("An LSN is an unsigned number of 64 bits.")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Parse PostgreSQL's text form (``16/B374D848``), or ``sortable``'s (``00000016B374D848``).

        :raises ConfigurationError: when ``text`` is neither two hexadecimal numbers around a slash nor
            exactly sixteen hexadecimal digits. Numbers are refused: their decimal digits mean something else.
        """
        known = isinstance(text, str)
        match = (_TEXT.fullmatch(text) or _SORTABLE.fullmatch(text)) if known else None
        if match is None:
            raise ConfigurationError(f"{text!r} is not an LSN.", advice=LSN_ADVICE)
        high, low = match.groups()
        return cls(int(high, 16) << 32 | int(low, 16))

    @classmethod
    def from_sortable(cls, text: str) -> Lsn:
        """The LSN of a text that ``sortable`` made."""
        return cls(int(text, 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    __repr__ = __str__

    @property
    def sortable(self) -> str:
        """Sixteen hexadecimal digits, which ``parse`` reads. These texts sort like the LSNs."""
        return f"{int(self):016X}"


@dataclass(frozen=True, slots=True)
class LsnOffset:
    """What the lake adds to the LSNs of a system.

    The LSNs of two systems mean different things, and the lake orders changes by LSN. An adopted server may
    have smaller LSNs than the lake. Then the lake adds an offset to them. Example: the lake is at
    16/B374D848, and the new server is at 0/1A2B3C0. With the offset 17/0 its changes get LSNs from 17/1A2B3C0
    on. Code that compares LSNs knows those of the lake only. The offset is added where an LSN comes from the
    server, and taken off where one goes there.

    An offset is a multiple of 2**32, so the second half of an LSN does not change. The length of a page
    and of a segment divides it.
    """

    bytes: int = 0

    @classmethod
    def past(cls, lsn: Lsn) -> LsnOffset:
        """The smallest offset that makes each LSN of a server greater than ``lsn``; 17/0 for 16/B374D848."""
        return cls(((lsn >> 32) + 1) << 32)

    def of_lake(self, text: str) -> Lsn:
        """The lake's LSN for one that the server sent as text."""
        return self.added_to(Lsn.parse(text))

    def added_to(self, lsn: Lsn) -> Lsn:
        """The lake's LSN for one of the server. 0/0 means none, and stays."""
        return Lsn(lsn + self.bytes) if lsn else lsn

    def of_server(self, lsn: Lsn) -> Lsn:
        """The server's LSN for one of the lake; 0/0 if ``lsn`` is smaller than the offset."""
        return Lsn(max(lsn - self.bytes, 0))

    def __str__(self) -> str:
        return str(Lsn(self.bytes))


#: The lake's LSNs are those of the server.
NO_OFFSET: Final = LsnOffset()
