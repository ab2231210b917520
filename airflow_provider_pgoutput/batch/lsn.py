"""LSNs: parse, print, compare. No other file knows their text forms.

An LSN is a byte position in the write-ahead log: a 64-bit number that PostgreSQL prints as two hexadecimal
halves (``16/B374D848``). It is compared as a number, because the texts compare wrongly (``0/9`` and
``0/10``). It is stored as text, because numbers in JSON lose bits past 2**53. Where texts are sorted (file
names, the checkpoint table) it has sixteen digits and no slash.

Source: https://www.postgresql.org/docs/current/datatype-pg-lsn.html
"""

from __future__ import annotations

import re

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
