"""What a history table has, by definition: the versions that the entries of a change log lead to.

It reads the entries one by one, and shares no code with the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.apply.conftest import sort

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from tests.apply.build import Relation

OF_HISTORY = (
    "_pgoutput_valid_from_lsn",
    "_pgoutput_seq",
    "_pgoutput_valid_to_lsn",
    "_pgoutput_is_current",
)


@dataclass
class Version:
    """One version of a row."""

    values: dict[str, Any]
    since: int
    seq: int
    until: int | None = None

    def row(self, names: Sequence[str]) -> tuple[Any, ...]:
        values = (self.values.get(name) for name in names)
        return (*values, self.since, self.seq, self.until, self.until is None)


@dataclass
class Derived:
    """The versions that the entries so far lead to."""

    key: tuple[str, ...]
    ended: list[Version] = field(default_factory=list)
    #: The versions that are there, oldest first.
    there: list[Version] = field(default_factory=list)

    @property
    def versions(self) -> list[Version]:
        return [*self.ended, *self.there]

    def end(self, versions: Iterable[Version], lsn: int) -> None:
        for each in list(versions):
            each.until = lsn
            self.ended.append(each)
            self.there = [other for other in self.there if other is not each]

    def under(self, values: dict[str, Any]) -> Version | None:
        """The version under a key.

        A deferrable key may stand twice: then the older row leaves it first. If both are equal, nothing tells
        them apart, and the older one stays.
        """
        found = [e for e in self.there if all(e.values[n] == values[n] for n in self.key)]
        if len(found) > 1 and found[0].values == found[-1].values:
            return found[-1]
        return next(iter(found), None)

    def follow(self, entry: dict[str, Any], names: Sequence[str], kinds: Mapping[str, Any]) -> None:
        op, lsn, seq = (entry[f"_pgoutput_{each}"] for each in ("op", "commit_lsn", "seq"))
        values = {name: entry[name] for name in names}
        if op == "T":
            self.end(self.there, lsn)
            return
        before = None
        if op != "I":
            old = {name: kinds[name](text) for name, text in entry["_pgoutput_old_key"].items()}
            before = self.under({**values, **old})
        if before is not None:
            self.end([before], lsn)
        if op == "D":
            return
        for name in entry["_pgoutput_unchanged"]:
            assert before is not None, "the row was there"
            values[name] = before.values[name]
        self.there.append(Version(values, lsn, seq))

    def copy(self, rows: Sequence[dict[str, Any]], names: Sequence[str], lsn: int) -> None:
        """Follow the rows of a copy."""
        copied = [{name: row[name] for name in names} for row in rows]
        stays = [e for e in self.there if any(e.values == row for row in copied)]
        self.end([e for e in self.there if not any(e is s for s in stays)], lsn)
        for row in copied:
            if not any(each.values == row for each in stays):
                self.there.append(Version(row, lsn, -1))


def derived(spark: SparkSession, log: str, relation: Relation) -> list[tuple[Any, ...]]:
    """The versions that follow from a change log.

    :param log: its name in Spark.
    """
    names = [each.name for each in relation.version.columns]
    kinds = {
        each.name: int if each.lake_type == "int" else str for each in relation.version.columns
    }
    entries = [row.asDict() for row in spark.table(log).collect()]
    return sort(versions(entries, names, kinds, relation.version.key_columns))


def versions(
    entries: Iterable[dict[str, Any]],
    names: Sequence[str],
    kinds: Mapping[str, Any],
    key: tuple[str, ...],
) -> list[tuple[Any, ...]]:
    """The values in some columns of each version that entries of a change log lead to, and ``OF_HISTORY``.

    :param kinds: by column of the key: what makes a value of the text of an old key.
    """
    found = Derived(key)
    by_position: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for entry in entries:
        place = entry["_pgoutput_commit_lsn"], max(entry["_pgoutput_seq"], -1)
        by_position.setdefault(place, []).append(entry)
    for lsn, seq in sorted(by_position):
        several = by_position[lsn, seq]
        if seq == -1:
            found.copy([e for e in several if e["_pgoutput_op"] == "C"], names, lsn)
        else:
            (entry,) = several
            found.follow(entry, names, kinds)
    return [each.row(names) for each in found.versions]
