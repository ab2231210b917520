"""Whether a change of type keeps the values of older rows. PostgreSQL sends none of them again.

``ALTER COLUMN TYPE`` without ``USING`` converts by the assignment cast. The answer is yes only for pairs of
types where that cast fails, or keeps the value as the lake has it. ``USING`` is not considered, because
neither stream nor catalog show it. ``batch/lake_types.py`` knows whether Iceberg can follow.

Source: https://www.postgresql.org/docs/current/sql-altertable.html and typeconv-query.html
"""

from __future__ import annotations

import re

_PARTS = re.compile(r"([^(]*?) ?(?:\(([\d,]+)\))?( with(?:out)? time zone)?")
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_TEXTS = frozenset({"text", "character varying"})
#: Types whose cast to text gives the text that their output function prints.
_TEXT_LIKE = frozenset({"uuid", "json", "jsonb", "xml"})
#: Types with one modifier, a length or a precision: a larger one keeps all values. The number is the modifier
#: of a type that is written without one; None: it has no limit.
_MODIFIED = {
    "character varying": None,
    "bit varying": None,
    "timestamp without time zone": 6,
    "timestamp with time zone": 6,
    "time without time zone": 6,
    "time with time zone": 6,
}


def keeps_values(before: str, after: str, *, as_text: bool = False) -> bool:
    """Whether ALTER COLUMN TYPE from one type to the other, in PostgreSQL's spelling, keeps all values.

    :param as_text: the lake has PostgreSQL's text of them, or a mask of it. A ``real`` of 0.1 is
        ``0.10000000149011612`` as ``double precision``.
    """
    (one, held), (two, wanted) = _parts(before), _parts(after)
    if one != two or one in _INTEGERS:
        return (
            ({one, two} <= _INTEGERS)
            or ((one, two) == ("real", "double precision") and not as_text)
            or (one in _TEXTS | _TEXT_LIKE and two in _TEXTS and not wanted)
        )
    if one == "numeric":
        return len(held) == len(wanted) == 2 and held[1] == wanted[1]
    if one in _MODIFIED:
        return _room(one, held) <= _room(one, wanted)
    return held == wanted


def _parts(spelled: str) -> tuple[str, tuple[int, ...]]:
    """The type without its modifiers, and the modifiers."""
    found = _PARTS.fullmatch(spelled)
    if found is None:
        return spelled, ()
    modifiers = tuple(int(each) for each in found[2].split(",")) if found[2] else ()
    return found[1] + (found[3] or ""), modifiers


def _room(name: str, modifiers: tuple[int, ...]) -> float:
    if modifiers:
        return modifiers[0]
    without = _MODIFIED[name]
    return float("inf") if without is None else without
