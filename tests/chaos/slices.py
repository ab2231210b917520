"""Tables with the same columns, which are written to one table of the lake. A constant tells them apart."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tests.chaos.tables import TYPES

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from tests.chaos.options import Options

TARGET = "slices"
COLUMN = "slice"
_NAMES = ("slice_a", "slice_b", "slice_c")
#: All slices of a table have to have these in common.
_COMMON = ("mode", "renamed_columns", "keep_retyped_columns")


def make(chance: random.Random) -> Iterator[str]:
    """Statements that make them."""
    columns = ", ".join(f"c{number} {chance.choice(TYPES)}" for number in (1, 2, 3))
    identity = chance.choice(("DEFAULT", "FULL"))
    for name in _NAMES[: chance.choice((2, 3))]:
        yield f"CREATE TABLE {name} (id int PRIMARY KEY, {columns})"
        yield f"ALTER TABLE {name} REPLICA IDENTITY {identity}"


def are_among(names: Sequence[str]) -> list[str]:
    """Those of the tables that are slices, ``schema.table``."""
    return [each for each in names if each.partition(".")[2] in _NAMES]


def share(chance: random.Random, names: Sequence[str], options: Options) -> None:
    """Let the slices be written to one table, by their names or by a pattern."""
    first = options.tables.get(names[0], {})
    common = {name: first[name] for name in _COMMON if name in first}
    by_pattern = chance.random() < 0.5
    if by_pattern:
        options.plan["shared_names"] = {rf"public\.slice_(?P<{COLUMN}>[a-z])": TARGET}
    for name in names:
        own = copy.deepcopy(common)
        options.tables[name] = own if by_pattern else {**own, **shared(name)}


def shared(name: str) -> dict[str, Any]:
    """The options of a slice that is given by its name.

    :param name: the table at the beginning, ``schema.table``.
    """
    return {"shared": True, "target": TARGET, "constant_columns": {COLUMN: name[-1]}}
