"""Slices: several tables of sources are written to one table of the lake, and each has its own rows in it.

Example: ``eu.orders`` and ``us.orders`` are both written to ``shop.orders``, which has a constant column
``region``. Rows of the first have ``eu`` in it, rows of the second ``us``. Each of the two is a *slice*. The
tables of the source may be in one database, or in several databases with a slot each.

The rest of the package sees a slice like a table of its own:

* It has its own applied LSN. Each commit says in its snapshot summary which slices it changed
  (``SUMMARY_SLICE``).
* It has its own table properties, such as the OID of its source. All slices would give a property the same
  name, so the table keeps it under a longer one: ``pgoutput.relation-oid`` of the slice with the id ``ab12``
  is ``pgoutput.slice.ab12.relation-oid``.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Property of a table that is shared: the names of its constant columns, as a JSON list in order.
SHARED_BY = "pgoutput.shared-by"
#: Key of the snapshot summary of every commit to slices: their ids, with a space between two.
SUMMARY_SLICE = "pgoutput.slice"
_PREFIX = "pgoutput.slice."
#: Property of a slice: its constants.
_CONSTANTS = "pgoutput.slice-constants"
#: Each slice has its own properties with names that begin like this. Others are those of the whole table.
_OF_SLICES = (
    "pgoutput.applied.",
    "pgoutput.fill.",
    "pgoutput.columns",
    "pgoutput.constant-columns",
    "pgoutput.log-rows",
    "pgoutput.masks",
    "pgoutput.relation-oid",
    "pgoutput.row-filter",
    "pgoutput.slice-constants",
    "pgoutput.slot",
    "pgoutput.source-table",
    "pgoutput.system-identifier",
)
_Value = TypeVar("_Value")


class SharedProperties(dict[str, str]):
    """The properties of a shared table. Nobody changes them after they were read.

    So they are taken apart once, and not anew for each slice.
    """

    @functools.cached_property
    def apart(self) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """The properties of the whole table, and by a slice's id its own ones with their usual names."""
        return _taken_apart(self)

    @functools.cached_property
    def slices(self) -> tuple[Slice, ...]:
        """See ``slices_of``."""
        return tuple(_slices_of(self.apart[1]))


@dataclass(frozen=True)
class Slice:
    """The rows of one table of a source in a table of the lake that several share."""

    #: Names and texts of its constant columns, by name in order.
    constants: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, constants: Mapping[str, str]) -> Slice:
        """The slice whose rows have these texts in these columns."""
        return cls(tuple(sorted(constants.items())))

    @functools.cached_property
    def id(self) -> str:
        """A short name for the constants."""
        return hashlib.sha256(json.dumps(self.constants).encode()).hexdigest()[:16]

    @property
    def shared_by(self) -> str:
        """What ``SHARED_BY`` says of the table."""
        return json.dumps([name for name, _ in self.constants])

    @property
    def of_table(self) -> dict[str, str]:
        """The properties that a shared table gets with this slice."""
        return {SHARED_BY: self.shared_by, _CONSTANTS: json.dumps(dict(self.constants))}

    def seen(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The properties of the table as the slice sees them: its own ones have their usual names."""
        common, of_slices = _apart(properties)
        return {**common, **of_slices.get(self.id, {})}

    def is_in(self, summary_text: str | None) -> bool:
        """Whether a commit changed the slice.

        :param summary_text: the commit's ``SUMMARY_SLICE``; None: it has none.
        """
        return summary_text is not None and self.id in summary_text.split(" ")

    def stored(self, properties: Mapping[str, _Value]) -> dict[str, _Value]:
        """The properties that the slice sets, with the names under which the table keeps them."""
        return {self.stored_name(name): value for name, value in properties.items()}

    def stored_name(self, name: str) -> str:
        """The name under which the table keeps one property of the slice."""
        is_own = name.startswith(_OF_SLICES)
        return f"{_PREFIX}{self.id}.{name.removeprefix('pgoutput.')}" if is_own else name


def slices_of(properties: Mapping[str, str]) -> Iterable[Slice]:
    """All slices that a table ever had. A table that is not shared has none."""
    if isinstance(properties, SharedProperties):
        return properties.slices
    return _slices_of(_apart(properties)[1])


def texts_of_slices(properties: Mapping[str, str], name: str) -> list[tuple[Slice, str]]:
    """Each slice of a shared table that has a property of its own, and its text."""
    own = _apart(properties)[1]
    found = ((each, own[each.id].get(name)) for each in slices_of(properties))
    return [(slice_, text) for slice_, text in found if text is not None]


def views_of(properties: Mapping[str, str]) -> list[tuple[Slice | None, Mapping[str, str]]]:
    """Each slice of a table, and the properties as it sees them. A table that is not shared counts as one."""
    if SHARED_BY not in properties:
        return [(None, properties)]
    shared = SharedProperties(properties)
    return [(each, each.seen(shared)) for each in shared.slices]


def _slices_of(of_slices: Mapping[str, Mapping[str, str]]) -> Iterator[Slice]:
    for _, found in sorted(of_slices.items()):
        if _CONSTANTS in found:
            yield Slice.of(json.loads(found[_CONSTANTS]))


def _apart(
    properties: Mapping[str, str],
) -> tuple[Mapping[str, str], Mapping[str, Mapping[str, str]]]:
    return (
        properties.apart if isinstance(properties, SharedProperties) else _taken_apart(properties)
    )


def _taken_apart(
    properties: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """See ``SharedProperties.apart``."""
    common: dict[str, str] = {}
    of_slices: dict[str, dict[str, str]] = {}
    for name, text in properties.items():
        if name.startswith(_PREFIX):
            slice_id, _, rest = name.removeprefix(_PREFIX).partition(".")
            of_slices.setdefault(slice_id, {})[f"pgoutput.{rest}"] = text
        else:
            common[name] = text
    return common, of_slices
