"""What tells the rows of a change log apart: its key, and the names that its columns had. A table property.

An entry names columns in ``_pgoutput_old_key`` and ``_pgoutput_unchanged``, by the names of that time.
Example: column ``code`` was renamed to ``sku``. Older entries still have the old key ``{"code": "A1"}``.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Names of key columns, and whether old rows are whole (``REPLICA IDENTITY FULL``).
Identity = tuple[tuple[str, ...], bool]
#: Property of a change log: what is in ``LogRows``, as JSON.
PROPERTY = "pgoutput.log-rows"
#: Suffix of the name of the view that shows the current rows of a change log.
VIEW_SUFFIX = "_current"


@dataclass(frozen=True, slots=True)
class LogRows:
    """Which entries of a change log are of one row, from its newest copy on."""

    #: Names of the key columns.
    key: tuple[str, ...]
    #: Whether an entry has the whole old row (``REPLICA IDENTITY FULL``).
    is_full: bool
    #: By the name of a column now: the names that it had before.
    former: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: Why the entries of one row cannot be found before the next copy; None: they can.
    unclear: str | None = None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> LogRows | None:
        """What the properties of a table say; None: nothing."""
        text = properties.get(PROPERTY)
        return None if text is None else cls.from_json(text)

    @classmethod
    def from_json(cls, text: str) -> LogRows:
        """What the value of the property says."""
        body = json.loads(text)
        former = {name: tuple(names) for name, names in body["former"].items()}
        return cls(tuple(body["key"]), body["is_full"], former, body["unclear"])

    def to_json(self) -> str:
        """The value of the property."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    def names(self, column: str) -> tuple[str, ...]:
        """The names of a column, the one of now first."""
        return (column, *self.former.get(column, ()))

    @property
    def why_unknown(self) -> str | None:
        """Why the current rows do not follow from the entries; None: they do."""
        if self.unclear is None and self.is_full and not self.key:
            return "The table has no key, so nothing tells which entries are of one row."
        return self.unclear


def begun(identities: Sequence[Identity]) -> LogRows:
    """The key by which the entries of one batch belong to rows.

    :param identities: of the versions that have entries, with the names of the lake.
    """
    key, is_full = identities[-1]
    distinct = {(frozenset(each), full and not each) for each, full in identities}
    return LogRows(key, is_full, unclear=_OTHER_KEY if len(distinct) > 1 else None)


def gone_on(
    before: LogRows | None,
    identities: Sequence[Identity],
    renamed: Mapping[str, str],
    names: Iterable[str],
) -> LogRows:
    """What the entries say after a batch that copies nothing.

    :param before: what they said; None: it is not known.
    :param identities: see ``begun``.
    :param renamed: by the name before the batch: the name after it, of columns that are renamed.
    :param names: of all columns after the batch.
    """
    now = begun(identities)
    if before is None:
        return dataclasses.replace(now, unclear=_OF_EARLIER)
    former = {
        renamed.get(name, name): (*earlier, *((name,) if name in renamed else ()))
        for name, earlier in {**dict.fromkeys(renamed, ()), **before.former}.items()
    }
    key = tuple(renamed.get(name, name) for name in before.key)
    unclear = before.unclear or now.unclear
    if (set(key), before.is_full and not key) != (set(now.key), now.is_full and not now.key):
        unclear = unclear or _OTHER_KEY
    used = Counter([*names, *(each for earlier in former.values() for each in earlier)])
    if max(used.values()) > 1:
        unclear = unclear or _OTHER_NAMES
    return dataclasses.replace(now, former=former, unclear=unclear)


_OTHER_KEY = "The key of the table changed, and older entries do not have the new one."
_OTHER_NAMES = (
    "A column has the name that another one had, so older entries do not tell which one they mean."
)
_OF_EARLIER = "Older entries are from a version of this package that did not note the key."
