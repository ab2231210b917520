"""The current rows of a change log: which entries they are, and which entries have values that were left out.

First only keys and positions are read. Then the entries that count are read as rows. The rules are those of
the view (``apply/table/current_rows.py``), in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch import changes as staged
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import LakeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from airflow_provider_pgoutput.log_rows import LogRows

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]
    #: Gives the entries with some fields, always in the same order.
    Read = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]

LSN, SEQ, OP = map(staged.metadata, (staged.COMMIT_LSN, staged.SEQ, staged.OP))
OLD_KEY, UNCHANGED = "_pgoutput_old_key", "_pgoutput_unchanged"
#: So many entries since the newest copy are looked at: some 100 bytes of memory each.
MOST_ENTRIES: Final = 20_000_000
#: So many rows with values that were left out are put together at once.
_ROWS_AT_ONCE: Final = 20_000
_NEVER = np.iinfo(np.int64).min


class UnknownRows(Exception):
    """The current rows do not follow from the entries; the text says why."""


class DoubledEntries(Exception):
    """Entries are in the change log more than once; the text says how many."""

    @classmethod
    def refuse(cls, is_doubled: Mask, lsns: Numbers) -> None:
        """Raise it if there is one.

        :param is_doubled: by entry, whether it equals the one before it.
        :param lsns: the commit LSN of each entry.
        """
        if count := np.count_nonzero(is_doubled):
            lsn = Lsn(lsns[is_doubled].min())
            raise cls(
                f"{count} of its entries are in it twice, the first of them of the commit at {lsn}."
            )


@dataclass(frozen=True)
class CurrentRows:
    """Which entries are current rows. An entry is named by its number in the order of reading."""

    #: The LSN of each entry, to see that a second reading has the same order.
    lsns: Numbers
    #: Numbers of the entries whose values are all there, ascending.
    whole: Numbers
    #: Numbers of the entries that leave values out, ascending.
    lacking: Numbers
    #: For each of ``lacking`` the entry that has its value, by field; -1: no entry has it.
    givers: Mapping[str, Numbers]

    @classmethod
    def of(cls, read: Read, rows: LogRows, fields: Sequence[str]) -> CurrentRows:
        """Find them.

        :param fields: names of the fields whose values are asked for.
        :raises UnknownRows: they do not follow from the entries.
        :raises DoubledEntries: an entry behind the newest copy is there more than once.
        """
        if rows.why_unknown is not None:
            raise UnknownRows(rows.why_unknown)
        entries = _Entries.read(read, rows, fields)
        if not rows.key:
            found = np.flatnonzero(entries.lasts)
            _refuse_doubled(entries, found)
            return cls(entries.lsns, found, np.empty(0, np.int64), {})
        return _Events(entries).current()

    def batches(self, read: Read, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The current rows, with these fields.

        :raises LakeUnavailable: the entries came in another order than before.
        """
        for first, rows in self._numbered(read, names):
            inside = self.whole[slice(*np.searchsorted(self.whole, [first, first + rows.num_rows]))]
            if len(inside):
                yield rows.take(pa.array(inside - first)).select(list(names))
        for begin in range(0, len(self.lacking), _ROWS_AT_ONCE):
            yield self._filled(read, names, slice(begin, begin + _ROWS_AT_ONCE))

    def _filled(self, read: Read, names: Sequence[str], some: slice) -> pa.RecordBatch:
        lacking = self.lacking[some]
        givers = {name: numbers[some] for name, numbers in self.givers.items() if name in names}
        needed = np.unique(np.concatenate([lacking, *givers.values()]))
        needed = needed[needed >= 0]
        parts = []
        for first, rows in self._numbered(read, names):
            inside = needed[slice(*np.searchsorted(needed, [first, first + rows.num_rows]))]
            if len(inside):
                parts.append(rows.take(pa.array(inside - first)).select(list(names)))
        held = pa.Table.from_batches(parts).combine_chunks()
        columns = []
        for name in names:
            numbers = givers.get(name, lacking)
            places = pa.array(np.searchsorted(needed, numbers), mask=numbers < 0)
            columns.append(held.column(name).combine_chunks().take(places))
        return pa.RecordBatch.from_arrays(columns, names=list(names))

    def _numbered(self, read: Read, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The entries, and the number of the first one of each batch."""
        first = 0
        for rows in read((*dict.fromkeys((*names, LSN)),)):
            lsns = _numbers(rows.column(LSN))
            if not np.array_equal(lsns, self.lsns[first : first + len(lsns)]):
                raise LakeUnavailable("The entries of the change log came in another order.")
            yield first, rows
            first += rows.num_rows


@dataclass(frozen=True)
class _Entries:
    """What is needed of every entry of a change log."""

    lsns: Numbers
    seqs: Numbers
    ops: NDArray[np.str_]
    #: Which entries no truncate and no copy ended.
    lasts: Mask
    #: The number of each entry's key: equal keys have equal numbers.
    keys: Numbers
    #: The numbers of the entries that moved their row, and that of the key before.
    moved: Numbers
    old_keys: Numbers
    #: By field: which entries leave its value out.
    left_out: Mapping[str, Mask]

    @classmethod
    def read(cls, read: Read, rows: LogRows, fields: Sequence[str]) -> _Entries:
        lsns, seqs, ops = _positions(read)
        lasts = _lasting(lsns, seqs, ops)
        if np.count_nonzero(lasts) > MOST_ENTRIES:
            raise UnknownRows(
                f"It has more than {MOST_ENTRIES} entries since its newest copy, too many to look at."
            )
        if not rows.key or not len(lsns):
            none = np.empty(0, np.int64)
            return cls(lsns, seqs, ops, lasts, none, none, none, {})
        names = {each: name for name in fields for each in rows.names(name) if name not in rows.key}
        parts: list[list[pa.Array]] = [[] for _ in rows.key]
        old: list[list[pa.Array]] = [[] for _ in rows.key]
        moved, left_out = [], {name: np.zeros(len(lsns), np.bool_) for name in fields}
        first = 0
        for batch in read((*rows.key, LSN, OP, OLD_KEY, UNCHANGED)):
            here = lasts[first : first + batch.num_rows]
            for part, name in zip(parts, rows.key, strict=True):
                part.append(_storage(batch.column(name)).filter(pa.array(here)))
            places = np.flatnonzero(_has_entries(batch.column(OLD_KEY)) & here)
            moved.append(places + first)
            maps = batch.column(OLD_KEY).take(pa.array(places)).to_pylist()
            for part, name in zip(old, rows.key, strict=True):
                texts = [_text(dict(each), rows.names(name)) for each in maps]
                part.append(_parsed(texts, _storage(batch.column(name)).type, name))
            _note_left_out(batch.column(UNCHANGED), first, names, left_out)
            first += batch.num_rows
        numbers = _key_numbers(parts, old)
        keys = np.full(len(lsns), -1, np.int64)
        keys[lasts] = numbers[: np.count_nonzero(lasts)]
        moves = np.concatenate(moved) if moved else np.empty(0, np.int64)
        old_keys = numbers[np.count_nonzero(lasts) :]
        some = {name: mask for name, mask in left_out.items() if mask.any()}
        return cls(lsns, seqs, ops, lasts, keys, moves, old_keys, some)


class _Events:
    """The entries as events on keys, in order of key and position."""

    def __init__(self, entries: _Entries) -> None:
        self._entries = entries
        own = np.flatnonzero(entries.lasts)
        #: The entry of each event.
        number = np.concatenate([own, entries.moved])
        key = np.concatenate([entries.keys[own], entries.old_keys])
        leaves = np.concatenate(
            [np.zeros(len(own), np.bool_), np.ones(len(entries.moved), np.bool_)]
        )
        order = np.lexsort((entries.seqs[number], entries.lsns[number], key))
        self._number, self._leaves, key = number[order], leaves[order], key[order]
        ops = entries.ops[self._number]
        # Copied rows have no number in their commit. An entry that moved its row counts once.
        is_doubled = ~self._leaves & (ops != staged.COPIED)
        is_doubled[:1] = False
        for each in (key, self._leaves, entries.lsns[self._number], entries.seqs[self._number]):
            is_doubled[1:] &= each[1:] == each[:-1]
        DoubledEntries.refuse(is_doubled, entries.lsns[self._number])
        is_moved = np.zeros(len(entries.lsns), np.bool_)
        is_moved[entries.moved] = True
        self._is_there = ~self._leaves & (ops != staged.DELETE)
        self._moved = is_moved[self._number] & ~self._leaves
        self._comes = self._is_there & (
            (ops == staged.INSERT) | (ops == staged.COPIED) | self._moved
        )
        self._first = np.flatnonzero(np.r_[len(key) > 0, key[1:] != key[:-1]])
        #: The newest event of the same key, up to each event, that leaves a row there; -1: none.
        places = np.arange(len(key))
        begins = np.repeat(self._first, np.diff(np.r_[self._first, len(key)]))
        newest = np.maximum.accumulate(np.where(self._is_there, places, -1))
        self._newest = np.where(newest >= begins, newest, -1)
        before = np.r_[-1, newest[:-1]] if len(key) else newest
        self._before = np.where(before >= begins, before, -1)
        #: By entry: the event with which its row left the old key.
        self._departure = np.full(len(entries.lsns), -1, np.int64)
        self._departure[self._number[self._leaves]] = places[self._leaves]

    def current(self) -> CurrentRows:
        """The entries that are current rows."""
        none = np.empty(0, np.int64)
        if not len(self._first):
            return CurrentRows(self._entries.lsns, none, none, {})
        last = np.r_[self._first[1:], len(self._number)] - 1
        # Two rows may have one key for a moment: a DEFERRABLE key. Then more rows came to it than left it.
        change = np.where(self._comes, 1, np.where(self._is_there, 0, -1))
        stays = self._is_there[last] | (np.add.reduceat(change, self._first) > 0)
        events = self._newest[last[stays]]
        numbers = self._number[events]
        lacks = np.zeros(len(numbers), np.bool_)
        for mask in self._entries.left_out.values():
            lacks |= mask[numbers]
        lacking = events[lacks][np.argsort(numbers[lacks])]
        return CurrentRows(
            self._entries.lsns,
            np.sort(numbers[~lacks]),
            self._number[lacking],
            {name: self._giver(lacking, mask) for name, mask in self._entries.left_out.items()},
        )

    def _giver(self, events: Numbers, left_out: Mask) -> Numbers:
        """For each event the entry with the value: its own, or an older one of the same row; -1: none."""
        at = events.copy()
        while True:
            open_ = np.flatnonzero(at >= 0)
            open_ = open_[left_out[self._number[at[open_]]]]
            if not len(open_):
                return np.where(at >= 0, self._number[at], -1)
            here = at[open_]
            # The row came from another key: there it is the newest row before it left.
            left = np.where(self._moved[here], self._departure[self._number[here]], here)
            at[open_] = self._before[left]


def _refuse_doubled(entries: _Entries, numbers: Numbers) -> None:
    """Refuse entries of a log without a key that are there more than once.

    :param numbers: of the entries that no copy and no truncate ended.
    :raises DoubledEntries: there is one.
    """
    numbers = numbers[entries.ops[numbers] != staged.COPIED]
    lsns, seqs = entries.lsns[numbers], entries.seqs[numbers]
    order = np.lexsort((seqs, lsns))
    lsns, seqs = lsns[order], seqs[order]
    is_doubled = np.zeros(len(lsns), np.bool_)
    is_doubled[1:] = (lsns[1:] == lsns[:-1]) & (seqs[1:] == seqs[:-1])
    DoubledEntries.refuse(is_doubled, lsns)


def _positions(read: Read) -> tuple[Numbers, Numbers, NDArray[np.str_]]:
    lsns, seqs, ops = [], [], []
    for rows in read((LSN, SEQ, OP)):
        lsns.append(_numbers(rows.column(LSN)))
        seqs.append(_numbers(rows.column(SEQ)))
        ops.append(rows.column(OP).to_numpy(zero_copy_only=False).astype("U1"))
    if not lsns:
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, "U1")
    return np.concatenate(lsns), np.concatenate(seqs), np.concatenate(ops)


def _lasting(lsns: Numbers, seqs: Numbers, ops: NDArray[np.str_]) -> Mask:
    """Which entries no truncate and no copy ended."""
    is_truncate = ops == staged.TRUNCATE
    ends = is_truncate | (ops == staged.COPIED)
    if not ends.any():
        return np.ones(len(lsns), np.bool_)
    # A copy ends what is before all of its rows.
    seq = np.where(is_truncate, seqs, _NEVER)
    lsn = lsns[ends].max()
    last = seq[ends & (lsns == lsn)].max()
    found: Mask = ~is_truncate & ((lsns > lsn) | ((lsns == lsn) & (seqs > last)))
    return found


def _numbers(column: pa.Array) -> Numbers:
    found: Numbers = pc.fill_null(column, _NEVER).to_numpy(zero_copy_only=False)
    return found


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _has_entries(maps: pa.Array) -> Mask:
    has_some = np.diff(maps.offsets.to_numpy()) > 0
    found: Mask = has_some & maps.is_valid().to_numpy(zero_copy_only=False)
    return found


def _text(old: Mapping[str, str | None], names: Sequence[str]) -> str | None:
    return next((old[name] for name in names if old.get(name) is not None), None)


def _parsed(texts: Sequence[str | None], kind: pa.DataType, name: str) -> pa.Array:
    """Old values of a key column, from the texts that apply writes (Spark's).

    :raises UnknownRows: a text is of a kind that is not read here.
    """
    try:
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return pa.array([None if each is None else bytes.fromhex(each) for each in texts], kind)
        if pa.types.is_fixed_size_binary(kind):
            return pa.array([None if each is None else UUID(each).bytes for each in texts], kind)
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            plain = pa.array(texts, pa.string()).cast(pa.timestamp(kind.unit))
            return pc.assume_timezone(plain, "UTC").cast(kind)
        return pa.array(texts, pa.string()).cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise UnknownRows(f"Old keys of its column {name} cannot be read.") from error


def _key_numbers(parts: Sequence[Sequence[pa.Array]], old: Sequence[Sequence[pa.Array]]) -> Numbers:
    """A number for each key: first those of entries, then those of moved rows before they moved."""
    found: Numbers | None = None
    for one, other in zip(parts, old, strict=True):
        column = pa.chunked_array([*one, *other]).combine_chunks()
        codes = pc.dictionary_encode(column, null_encoding="encode").indices
        number = codes.to_numpy(zero_copy_only=False).astype(np.int64)
        if found is None:
            found = number
        else:
            both = found * (number.max(initial=0) + 1) + number
            found = np.unique(both, return_inverse=True)[1].astype(np.int64)
    assert found is not None, "there is a key"
    return found


def _note_left_out(
    column: pa.Array, first: int, names: Mapping[str, str], left_out: Mapping[str, Mask]
) -> None:
    """Note which entries leave values out.

    :param names: the field's name now, by each name that it had.
    """
    flat = column.flatten()
    if not len(flat):
        return
    places = pc.list_parent_indices(column).to_numpy() + first
    for name in pc.unique(flat).to_pylist():
        if name in names:
            chosen = pc.equal(flat, name).to_numpy(zero_copy_only=False)
            left_out[names[name]][places[chosen]] = True
