"""Reads from Origin messages where the transactions of a chunk were first committed. Vectorised.

The words of a refusal come from ``messages.py``, which parses the refused message again. ``transactions.py``
leaves out transactions with an origin.

Source: https://www.postgresql.org/docs/current/replication-origins.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pgoutput.messages import Origin, parse_origin

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.pgoutput.transactions import Messages, Positions

#: Tag and LSN, which stand before the name.
_HEAD_BYTES: Final = 9
_NO_ORIGIN: Final = -1


@dataclass(frozen=True, slots=True)
class ChunkOrigins:
    """The origins of a chunk's transactions."""

    names: pa.Array
    #: By transaction: position of its origin in ``names``; -1: none.
    code: NDArray[np.int32]
    #: By transaction: its commit LSN on the origin; 0: not known.
    lsn: NDArray[np.int64]

    def of(self, transaction: NDArray[np.int32]) -> tuple[pa.Array, pa.Array] | None:
        """Name and LSN of rows' origins, from the transaction of each; None: no row has an origin."""
        code, lsn = self.code[transaction], self.lsn[transaction]
        absent = code == _NO_ORIGIN
        if absent.all():
            return None
        names = self.names.take(pa.array(code, mask=absent))
        return names, pa.array(lsn, mask=absent | (lsn == 0))


class Origins:
    """The origin of the open transaction, and those of a chunk's transactions."""

    def __init__(self) -> None:
        self._open: Origin | None = None

    def follow(self, messages: Messages, positions: Positions) -> ChunkOrigins | None:
        """Read the origins of the next chunk's transactions; None: no transaction has one.

        :raises ProtocolError: an Origin message is not valid.
        """
        index = messages.of("O")
        if not len(index) and self._open is None:
            return None
        code = np.full(len(positions.commit_lsn), _NO_ORIGIN, dtype=np.int32)
        lsn = np.zeros(len(code), dtype=np.int64)
        names = pa.array([], pa.string())
        if len(index):
            names, codes, lsns = _fields(messages, positions, index)
            # If a transaction has several, the last one counts.
            code[positions.transaction[index]] = codes
            lsn[positions.transaction[index]] = lsns
        if self._open is not None and code[0] == _NO_ORIGIN:
            code[0], lsn[0] = len(names), self._open.commit_lsn
            names = pa.concat_arrays([names, pa.array([self._open.name])])
        self._open = None
        if code[-1] != _NO_ORIGIN:
            self._open = Origin(Lsn(int(lsn[-1])), names[int(code[-1])].as_py())
        return ChunkOrigins(names, code, lsn)


def _fields(
    messages: Messages, positions: Positions, index: NDArray[np.intp]
) -> tuple[pa.Array, NDArray[np.int32], NDArray[np.int64]]:
    """The distinct names. And for each Origin message its position among these, and its LSN."""
    starts, ends = messages.starts[index], messages.ends[index]
    lsn = messages.words(">i8")[starts + 1].astype(np.int64)
    wrong = (ends - starts <= _HEAD_BYTES) | (messages.data[ends - 1] != 0) | (lsn < 0)
    if wrong.any():
        _refuse(messages, positions, index[wrong])
    # Every second run of bytes is a name, without the NUL at its end.
    cuts = np.stack((starts + _HEAD_BYTES, ends - 1), axis=1).reshape(-1)
    buffers = [None, pa.py_buffer(cuts), pa.py_buffer(messages.data)]
    runs = pa.Array.from_buffers(pa.large_binary(), len(cuts) - 1, buffers)
    encoded = runs.take(pa.array(np.arange(len(index), dtype=np.int64) * 2)).dictionary_encode()
    try:
        names = encoded.dictionary.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        _refuse(messages, positions, index)
    if pc.any(pc.match_substring(names, "\0")).as_py():
        _refuse(messages, positions, index)
    return names, encoded.indices.to_numpy(), lsn


def _refuse(messages: Messages, positions: Positions, index: NDArray[np.intp]) -> NoReturn:
    """Raise the ProtocolError that says what is wrong with the first wrong message of some."""
    for each in index.tolist():
        parse_origin(messages.body(each), positions.lsn(each))
    raise AssertionError("the reference decoder accepts an Origin that this one refused")
