"""Whether the versions of a history fit together."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.chaos.oracle import LakeRows, SourceTable

_FIRST, _LAST = "_pgoutput_valid_from_lsn", "_pgoutput_valid_to_lsn"


def wrong_versions(source: SourceTable, lake: LakeRows, *, by_key: bool) -> list[str]:
    """What cannot be: a version that ends before it begins, or two of one key at once.

    :param by_key: whether the table had its key all the time.
    """
    began, ended = lake.columns[_FIRST], lake.columns[_LAST]
    current, numbers = lake.columns["_pgoutput_is_current"], lake.columns["_pgoutput_seq"]
    faults = []
    if any(is_current != (end is None) for is_current, end in zip(current, ended, strict=True)):
        faults.append("a version is current and has an end, or neither")
    if any(end is not None and end < begin for begin, end in zip(began, ended, strict=True)):
        faults.append("a version ends before it begins")
    if not by_key or not source.key or any(each not in lake.types for each in source.key):
        return faults
    versions: dict[Any, list[tuple[int, int, int | None]]] = defaultdict(list)
    for key, *version in zip(lake.rows(source.key), began, numbers, ended, strict=True):
        versions[key].append((version[0], version[1], version[2]))
    for key, found in versions.items():
        found.sort(key=lambda each: each[:2])
        if max(Counter(each[:2] for each in found).values()) > 1:
            faults.append(f"key {key} has two versions of one position")
        for (_, _, end), (begin, _, _) in pairwise(found):
            if end is None or end > begin:
                faults.append(f"two versions of key {key} are valid at once: {found}")
                break
    return faults[:5]
