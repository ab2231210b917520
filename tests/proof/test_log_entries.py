"""The current rows that follow from a change log: after random programs, and with old keys of all types."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.errors import LakeUnavailable
from airflow_provider_pgoutput.log_rows import LogRows
from airflow_provider_pgoutput.proof import log_entries
from airflow_provider_pgoutput.proof.log_entries import CurrentRows, DoubledEntries, UnknownRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.large_string()),
        ("body", pa.large_string()),
        ("n", pa.int32()),
        (log_entries.LSN, pa.int64()),
        (log_entries.SEQ, pa.int64()),
        (log_entries.OP, pa.large_string()),
        (log_entries.OLD_KEY, pa.map_(pa.large_string(), pa.large_string())),
        (log_entries.UNCHANGED, pa.list_(pa.large_string())),
    ]
)
_NAMES = ("id", "place", "body", "n")
_ROWS = LogRows(("id", "place"), is_full=False, former={"body": ("text",)})


class _Log:
    """A table of the source and the entries that its change log gets."""

    def __init__(self, seed: int) -> None:
        self.chosen = random.Random(seed)  # noqa: S311 - no secret
        self.rows: list[dict[str, Any]] = []
        self.entries: list[dict[str, Any]] = []
        self._lsn = 100

    def _emit(self, op: str, row: dict[str, Any], **more: Any) -> None:
        self._lsn += self.chosen.randrange(2)
        seq = len(self.entries) if op != "C" else -1 - len(self.entries)
        empty: list[Any] | None = None if op == "C" else []
        lists = {log_entries.UNCHANGED: empty, log_entries.OLD_KEY: empty}
        entry = {log_entries.LSN: self._lsn, log_entries.SEQ: seq, log_entries.OP: op}
        self.entries.append({**row, **lists, **entry, **more})

    def copy(self) -> None:
        self._lsn += 1
        lsn = self._lsn
        for row in self.rows:
            self._emit("C", row)
            self.entries[-1][log_entries.LSN] = lsn
        self._lsn = lsn + 1

    def insert(self, number: int) -> None:
        row = {"id": number, "place": "x", "body": f"{len(self.entries)}", "n": 0}
        self.rows.append(row)
        self._emit("I", row)

    def update(self, row: dict[str, Any], **changes: Any) -> None:
        old = dict(row)
        row.update(changes)
        more: dict[str, Any] = {}
        if "body" not in changes and old["body"] is not None:
            more = {"body": None, log_entries.UNCHANGED: [self.chosen.choice(["body", "text"])]}
        if old["id"] != row["id"]:
            more[log_entries.OLD_KEY] = [("id", str(old["id"])), ("place", "x")]
        self._emit("U", row, **more)

    def step(self) -> None:
        ids = [row["id"] for row in self.rows]
        free = sorted(set(range(12)) - set(ids))
        what = self.chosen.choice(
            ["insert", "n", "n", "body", "move", "move", "swap", "delete", "end"]
        )
        if what == "insert" and free:
            self.insert(self.chosen.choice(free))
        elif not ids:
            return
        elif what == "n":
            self.update(self.chosen.choice(self.rows), n=self.chosen.randrange(9))
        elif what == "body":
            self.update(self.chosen.choice(self.rows), body=self.chosen.choice([None, "new"]))
        elif what == "move" and free:
            self.update(self.chosen.choice(self.rows), id=self.chosen.choice(free))
        elif what == "swap" and len(ids) > 1:
            one, other = self.chosen.sample(self.rows, 2)
            first, second = one["id"], other["id"]
            self.update(one, id=-1)
            self.update(other, id=first)
            self.update(one, id=second)
        elif what == "delete":
            row = self.rows.pop(self.chosen.randrange(len(self.rows)))
            self._emit("D", {**row, "body": None, "n": None})
        elif what == "end" and self.chosen.random() < 0.1:
            self.rows.clear()
            self._emit("T", dict.fromkeys(_NAMES))

    def read(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The entries in an order that is not theirs, a few at a time."""
        mixed = random.Random(1).sample(self.entries, len(self.entries))  # noqa: S311
        for begin in range(0, len(mixed), 7):
            yield pa.RecordBatch.from_pylist(mixed[begin : begin + 7], _SCHEMA).select(list(names))


def _rows(log: _Log, rows: LogRows = _ROWS) -> Counter[tuple[Any, ...]]:
    current = CurrentRows.of(log.read, rows, _NAMES)
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in current.batches(log.read, _NAMES):
        found.update(tuple(row.values()) for row in batch.to_pylist())
    return found


def _wanted(log: _Log) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in _NAMES) for row in log.rows)


@pytest.mark.parametrize("seed", range(60))
def test_the_rows_are_those_of_the_source(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an entry that is lost, or a value that is another, shows. No second reading mixes entries up."""
    monkeypatch.setattr(log_entries, "_ROWS_AT_ONCE", 2)
    log = _Log(seed)
    for number in range(4):
        log.insert(number)
    log.entries.clear()
    log.copy()
    for _ in range(seed * 2):
        log.step()
    if seed % 5 == 0:
        log.copy()
        log.step()
    assert _rows(log) == _wanted(log)
    current = CurrentRows.of(log.read, _ROWS, _NAMES)
    if not log.rows:
        return
    row = log.rows[0]
    of_row = [e for e in log.entries if e[log_entries.OP] in "ICU" and e["id"] == row["id"]]
    newest = max(of_row, key=lambda e: (e[log_entries.LSN], e[log_entries.SEQ]))
    newest["n"] += 100
    assert _wanted(log) - _rows(log) == Counter([tuple(row[name] for name in _NAMES)])
    for entry in of_row:
        log.entries.remove(entry)
    assert row["id"] not in {each[0] for each in _rows(log)}
    log.entries[0][log_entries.LSN] += 1
    with pytest.raises(LakeUnavailable, match="another order"):
        list(current.batches(log.read, _NAMES))


@pytest.mark.parametrize("seed", range(20))
def test_an_entry_that_is_there_twice_is_seen(seed: int) -> None:
    """The rows that follow are often the same, and yet readers of the log count one too many."""
    log = _Log(seed)
    for number in range(4):
        log.insert(number)
    log.copy()
    for _ in range(20):
        log.step()
    log.insert(100)
    lasting = log.entries[max(n for n, e in enumerate(log.entries) if e[log_entries.OP] in "CT") :]
    for entry in [each for each in lasting if each[log_entries.OP] in "IUD"][:5]:
        log.entries.append(dict(entry))
        for rows in (_ROWS, LogRows((), is_full=False)):
            with pytest.raises(DoubledEntries, match="1 of its entries are in it twice"):
                _rows(log, rows)
        log.entries.pop()
    log.entries += [dict(each) for each in lasting if each[log_entries.OP] in "IUD"]
    with pytest.raises(DoubledEntries):
        _rows(log)


def test_two_rows_may_have_one_key_for_a_moment() -> None:
    """``UPDATE t SET id = 3 - id`` with a DEFERRABLE key."""
    log = _Log(0)
    for number in (1, 2):
        log.insert(number)
    one, other = log.rows
    log.update(one, id=2, body="one")
    log.update(other, id=1, body="other")
    assert _rows(log) == _wanted(log)


def test_a_log_without_a_key() -> None:
    log = _Log(0)
    for number in (1, 1):
        log.insert(number)
    assert _rows(log, LogRows((), is_full=False)).total() == 2
    with pytest.raises(UnknownRows, match="no key"):
        _rows(log, LogRows((), is_full=True))
    with pytest.raises(UnknownRows, match="changed"):
        _rows(log, LogRows(("id",), is_full=False, unclear="The key changed."))
    log.entries.clear()
    assert not _rows(log)


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        (-5, "-5", pa.int32()),
        (0.1, "0.1", pa.float64()),
        (float("inf"), "Infinity", pa.float64()),
        (1e22, "1.0E22", pa.float64()),
        ("it's", "it's", pa.large_string()),
        (True, "true", pa.bool_()),
        (b"\x00\xff", "00ff", pa.large_binary()),
        (date(2026, 2, 28), "2026-02-28", pa.date32()),
        (datetime(2026, 1, 2, 3, 4, 5, 600000), "2026-01-02 03:04:05.6", pa.timestamp("us")),
        (datetime(1970, 1, 1, tzinfo=UTC), "1970-01-01 00:00:00", pa.timestamp("us", "UTC")),
        (Decimal("-1.10"), "-1.10", pa.decimal128(12, 2)),
        (
            UUID("12345678-1234-5678-1234-567812345678").bytes,
            "12345678-1234-5678-1234-567812345678",
            pa.binary(16),
        ),
    ],
)
def test_old_keys_are_read_as_apply_writes_them(value: Any, text: str, kind: pa.DataType) -> None:
    parsed = log_entries._parsed([text, None], kind, "k")
    assert parsed.to_pylist() == [value, None]
    assert parsed.type == kind


def test_an_old_key_that_cannot_be_read_is_no_other_key() -> None:
    with pytest.raises(UnknownRows, match="Old keys of its column k cannot be read"):
        log_entries._parsed(["+12026-01-01"], pa.date32(), "k")
