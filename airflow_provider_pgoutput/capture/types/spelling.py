"""How ``format_type`` spells a built-in type and its modifier, and what the modifier of a numeric says.

Source: https://www.postgresql.org/docs/current/functions-info.html (format_type).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lake_types import MAX_DECIMAL_PRECISION

if TYPE_CHECKING:
    from collections.abc import Callable

#: ``atttypmod`` of ``varchar`` and ``bpchar`` counts a header of this many bytes.
_HEADER = 4
_INTERVAL_RANGES = {
    1 << 2: " year",
    1 << 1: " month",
    1 << 3: " day",
    1 << 10: " hour",
    1 << 11: " minute",
    1 << 12: " second",
    1 << 2 | 1 << 1: " year to month",
    1 << 3 | 1 << 10: " day to hour",
    1 << 3 | 1 << 10 | 1 << 11: " day to minute",
    1 << 3 | 1 << 10 | 1 << 11 | 1 << 12: " day to second",
    1 << 10 | 1 << 11: " hour to minute",
    1 << 10 | 1 << 11 | 1 << 12: " hour to second",
    1 << 11 | 1 << 12: " minute to second",
}
_INTERVAL_FULL_PRECISION = 0xFFFF


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a type is spelled: ``timestamp``, its modifier ``(3)``, and ``without time zone``."""

    #: Empty: the type's name in ``pg_type``.
    first: str = ""
    last: str = ""
    #: Spells a modifier that is not negative; None: the type has none.
    modifier: Callable[[int], str] | None = None
    #: The whole name if there is no modifier; empty: both parts.
    bare: str = ""

    def of(self, name: str, type_modifier: int) -> str:
        """The type's name and its modifier.

        :param name: in ``pg_type``, quoted if needed.
        :param type_modifier: -1 for none.
        """
        first = self.first or name
        if self.modifier is None or type_modifier < 0:
            return self.bare or first + self.last
        return first + self.modifier(type_modifier) + self.last


def length(type_modifier: int) -> str:
    """A number of characters, as ``varchar`` has it."""
    return f"({type_modifier - _HEADER})"


def number(type_modifier: int) -> str:
    """A modifier that is a plain number: of bits, of digits of a second, or of dimensions."""
    return f"({type_modifier})"


def precision_and_scale(type_modifier: int) -> str:
    """The modifier of ``numeric``."""
    precision, scale = _numeric(type_modifier)
    return f"({precision},{scale})"


def interval_fields(type_modifier: int) -> str:
    """The modifier of ``interval``: its fields, and the digits of a second."""
    fields = _INTERVAL_RANGES.get((type_modifier >> 16) & 0x7FFF, "")
    precision = type_modifier & 0xFFFF
    return fields if precision == _INTERVAL_FULL_PRECISION else f"{fields}({precision})"


def exact_decimal(type_modifier: int) -> str | None:
    """The decimal of the lake that holds all numbers of a numeric; None: no decimal does."""
    if type_modifier < 0:
        return None
    precision, scale = _numeric(type_modifier)
    if scale < 0:
        # numeric(3, -2) holds 99900: five digits before the point.
        precision, scale = precision - scale, 0
    # numeric(3, 5) holds 0.00999: Iceberg wants at least as much precision as scale.
    precision = max(precision, scale)
    return f"decimal({precision}, {scale})" if precision <= MAX_DECIMAL_PRECISION else None


def _numeric(type_modifier: int) -> tuple[int, int]:
    """Precision and scale (-1000 to 1000) of ``numeric``'s type modifier."""
    value = type_modifier - _HEADER
    return (value >> 16) & 0xFFFF, ((value & 0x7FF) ^ 0x400) - 0x400
