"""What the judge knows of tables that are set aside, and of rows in the quarantine; see ``judge.py``.

Nothing of the product is asked. The rows of the checkpoint table are read as docs/reference/tables.md says.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

from tests.simulation.quarantine import entries
from tests.simulation.source import ACCOUNTS

if TYPE_CHECKING:
    from tests.simulation.world import World

#: Places of the texts in a reason.
_ERROR, _MESSAGE, _ADVICE, _TARGET, _UNSTAGED_SINCE = range(5)


def number(text: str) -> int:
    """An LSN as PostgreSQL writes it, as a number."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


@functools.lru_cache(maxsize=4096)
def _parsed(content: bytes) -> Any:
    return json.loads(content)


class Aside:
    """What one world says about tables that are set aside."""

    def __init__(self, world: World) -> None:
        self._world = world

    def violation(self, oid: int, end: int, checkpoint: int, *, kept: bool) -> str:
        """What is wrong with a table that lacks changes before the checkpoint; empty: it is set aside.

        :param end: where the table ends in the lake.
        :param kept: whether what it lacks has to be staged.
        """
        lacks = self._changes(oid, end, checkpoint)
        if not lacks:
            return ""
        first = lacks[0][0]
        rows = [
            each
            for each in self._world.recorded()
            if each["relation_oid"] == oid and each["table_name"] is not None
        ]
        told = [each for each in rows if each["set_aside"] and self._is_about(each, first)]
        if not told:
            return f"I2: it ends at {end:X}, the checkpoint is past it, and nothing says so"
        newest = max(int(each["end_lsn"], 16) for each in told)
        returned = [
            each
            for each in rows
            if not each["set_aside"] and int(each["end_lsn"], 16) > max(newest, first)
        ]
        if returned:
            return f"I2: it ends at {end:X}, and the checkpoint table says that it is back"
        for each in told:
            reason = json.loads(each["set_aside"])
            if not (reason[_ERROR] and reason[_MESSAGE] and reason[_ADVICE]):
                return "I8: it is set aside, and nobody says why or what to do"
        is_unstaged = any(
            json.loads(each["set_aside"])[_UNSTAGED_SINCE] for each in rows if each["set_aside"]
        )
        if kept and not is_unstaged and not self._staged(oid, lacks):
            return "I2: it is set aside, and the staging area lacks some of its changes"
        return ""

    def lacks(self, oid: int, end: int, checkpoint: int) -> bool:
        """Whether changes of a table between two LSNs are missing in it."""
        return bool(self._changes(oid, end, checkpoint))

    def _is_about(self, row: Any, first: int) -> bool:
        """Whether a row says that a table lacks a change."""
        since = json.loads(row["set_aside"])[_UNSTAGED_SINCE]
        if since:
            return number(since) <= first
        return int(row["start_lsn"], 16) <= first < int(row["end_lsn"], 16)

    def _changes(self, oid: int, since: int, until: int) -> list[tuple[int, int]]:
        """Commit LSN and number of the changes of a table."""
        published = self._world.source.published.get(oid, until)
        return [
            (each.commit_lsn, at)
            for each in self._world.source.transactions
            if max(since, published) <= each.commit_lsn < until
            for at, change in enumerate(each.changes)
            if change[0] == oid
        ]

    def _staged(self, oid: int, wanted: list[tuple[int, int]]) -> bool:
        """Whether batches hold these changes, or a copy from after them."""
        found, copied = self.staged(oid)
        return all(each in found or each[0] < copied for each in wanted)

    def staged(self, oid: int) -> tuple[set[tuple[int, int]], int]:
        """The staged changes of a table, and the LSN of its newest staged copy."""
        objects, copied = self._world.area.objects, 0
        found: set[tuple[int, int]] = set()
        for path, content in objects.items():
            if "/manifests/" not in path:
                continue
            for table in _parsed(content)["tables"]:
                if table["relation_oid"] != oid:
                    continue
                if table["copy_lsn"] is not None:
                    copied = max(copied, number(table["copy_lsn"]))
                files = [file for version in table["versions"] for file in version["files"]]
                for file in files:
                    if file["kind"] == "changes" and file["path"] in objects:
                        rows = _parsed(objects[file["path"]])
                        found |= {(row[0], row[1]) for row in rows}
        return found, copied

    def rows_violation(self, rows: dict[int, int], end: int, deleted: dict[int, int]) -> str:
        """What is wrong with the accounts; empty: each row is the source's, and each other one is told.

        :param deleted: by key: where the table was when somebody deleted the row in the lake.
        """
        expected = self._world.source.rows_at(ACCOUNTS, end)
        if any(expected.get(key) != value for key, value in rows.items()):
            return f"I1: accounts is not the source at {end:X}"
        noted = entries(self._world, ACCOUNTS)
        if len({(each.commit_lsn, each.seq) for each in noted}) < len(noted):
            return "I3: a change is in the quarantine twice"
        lacking = expected.keys() - rows.keys() - {each.key for each in noted}
        for key in lacking:
            gone_at = deleted.get(key)
            if gone_at is None:
                return f"I1: accounts lacks the row {key} at {end:X}, and nothing says so"
            untouched = not self._touches(key, gone_at, end, whole=False)
            # An attempt that was killed may have ended the entry already.
            is_ahead = self._touches(key, end, self._world.source.lsn, whole=True)
            if not (untouched or is_ahead or self.staged(ACCOUNTS)[1] >= end):
                return f"I1: accounts lacks the row {key} at {end:X}, which has no entry"
        return ""

    def _touches(self, key: int, since: int, until: int, *, whole: bool) -> bool:
        """Whether a change of a row committed in a range.

        :param whole: only changes after which the row is known, or gone.
        """
        return any(
            change[0] == ACCOUNTS
            and (change[1] == "T" or change[2] == key)
            and not (whole and change[1] == "P")
            for each in self._world.source.transactions
            if since <= each.commit_lsn < until
            for change in each.changes
        )

    def entries_violation(self) -> str:
        """What is wrong with the quarantine once nothing is left to do; empty: nothing."""
        table = self._world.catalog.tables.get(self._world.targets["accounts"])
        rows = {} if table is None or table.main is None else table.main.rows or {}
        noted = entries(self._world, ACCOUNTS)
        held = sorted(each.key for each in noted if each.key in rows)
        return f"I2: the rows {held} are in the lake and in the quarantine" if held else ""
