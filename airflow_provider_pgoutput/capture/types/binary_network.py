"""Printers of the binary form of addresses: inet, cidr, macaddr, macaddr8, and pg_lsn's two halves.

Source: ``src/backend/utils/adt/network.c``, ``inet_net_ntop.c``, ``mac.c``, ``mac8.c`` and ``pg_lsn.c``
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import MalformedText, at_rows_of, cut
from airflow_provider_pgoutput.capture.types.binary_scalars import fixed_bytes
from airflow_provider_pgoutput.capture.types.printing import decimals, dense_runs, joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.capture.types.binary_scalars import Printer

#: Family, length of the prefix in bits, whether it is a cidr, bytes of the address.
_HEAD_BYTES = 4
#: By family as on the wire: bytes of an address.
_ADDRESS_BYTES = {2: 4, 3: 16}
_BYTES = pa.array([b"%d" % number for number in range(256)], pa.binary())
_WORDS = 8


def address_printer(*, is_cidr: bool) -> Printer:
    """A printer of ``cidr``, which always shows its prefix, or of ``inet``, which hides that of a host."""

    def texts(raw: pa.Array) -> pa.Array:
        runs = dense_runs(raw, _HEAD_BYTES)
        head = runs.starts[:, None] + np.arange(_HEAD_BYTES)
        families, bits, _, sizes = runs.data[head].T if len(head) else np.empty((4, 0), np.uint8)
        found, order = [], []
        for family, size in _ADDRESS_BYTES.items():
            rows = np.flatnonzero(families == family)
            firsts = runs.starts[rows] + _HEAD_BYTES
            if (sizes[rows] != size).any() or (firsts + size != runs.ends[rows]).any():
                raise MalformedText
            octets = runs.data[firsts[:, None] + np.arange(size)]
            address = _version_4(octets) if size == 4 else _version_6(octets)
            prefix = joined(b"/", decimals(bits[rows]))
            if not is_cidr:
                prefix = pc.if_else(pa.array(bits[rows] == 8 * size), pa.scalar(b""), prefix)
            found.append(joined(address, prefix))
            order.append(rows)
        return at_rows_of(raw, _in_order(found, order, len(families)))

    return texts


def _in_order(found: list[pa.Array], order: list[NDArray[np.int64]], count: int) -> pa.Array:
    """Texts of some rows each as texts of all rows."""
    rows = np.concatenate(order)
    if len(rows) != count:
        raise MalformedText
    places = np.empty(count, dtype=np.int64)
    places[rows] = np.arange(count)
    return pa.concat_arrays(found).take(pa.array(places))


def _version_4(octets: NDArray[np.uint8]) -> pa.Array:
    a, b, c, d = (_BYTES.take(pa.array(octets[:, place])) for place in range(4))
    return joined(a, b".", b, b".", c, b".", d)


def _version_6(octets: NDArray[np.uint8]) -> pa.Array:
    """Eight words, the first longest run of two or more zeros as ``::``; the last two may be an IPv4."""
    words = octets.astype(np.int64)[:, 0::2] * 256 + octets[:, 1::2]
    base, length = _longest_zeros(words)
    # As ::1.2.3.4 and ::ffff:1.2.3.4 are written.
    has_ipv4 = (base == 0) & ((length == 6) | ((length == 5) & (words[:, 5] == 0xFFFF)))
    hexadecimal = _hex(words.reshape(-1))
    ipv4 = joined(b":", _version_4(octets[:, 12:]))
    nothing = pa.scalar(b"")
    parts = []
    for place in range(_WORDS):
        word = hexadecimal.take(pa.array(np.arange(len(words)) * _WORDS + place))
        shown = word if place == 0 else joined(b":", word)
        inside = (place >= base) & (place < base + length)
        opening = pa.array(inside & (place == base))
        shown = pc.if_else(pa.array(inside), pc.if_else(opening, pa.scalar(b":"), nothing), shown)
        if place >= 6:
            shown = pc.if_else(pa.array(has_ipv4), ipv4 if place == 6 else nothing, shown)
        parts.append(shown)
    closing = pc.if_else(pa.array((base + length == _WORDS) & ~has_ipv4), pa.scalar(b":"), nothing)
    return joined(*parts, closing)


def _longest_zeros(words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the first longest run of two or more zeros begins (past the end: none does), and its length."""
    base = np.full(len(words), _WORDS + 1, dtype=np.int64)
    length = np.zeros(len(words), dtype=np.int64)
    current = np.zeros(len(words), dtype=np.int64)
    for place in range(_WORDS):
        current = np.where(words[:, place] == 0, current + 1, 0)
        better = (current > length) & (current > 1)
        base = np.where(better, place + 1 - current, base)
        length = np.where(better, current, length)
    return base, length


def _hex(numbers: NDArray[Any], *, upper: bool = False) -> pa.Array:
    """Numbers below 2**32 in hexadecimal, without zeros before."""
    wire = numbers.astype(">u4")
    digits = binascii.hexlify(np.ascontiguousarray(wire).view(np.uint8).data)
    shown = np.frombuffer(digits.upper() if upper else digits, dtype=np.uint8)
    count = np.ones(len(numbers), dtype=np.int64)
    for place in range(1, 8):
        count += numbers >= 16**place
    ends = (np.arange(len(numbers), dtype=np.int64) + 1) * 8
    return cut(shown, ends - count, ends)


def mac_printer(size: int) -> Printer:
    """A printer of ``macaddr`` or ``macaddr8``: bytes in hexadecimal with colons."""

    def texts(raw: pa.Array) -> pa.Array:
        found = fixed_bytes(raw, size)
        digits = np.frombuffer(binascii.hexlify(found.data), dtype=np.uint8).reshape(-1, size, 2)
        shown = np.full((len(found), size, 3), ord(":"), dtype=np.uint8)
        shown[:, :, :2] = digits
        width = 3 * size
        starts = np.arange(len(found), dtype=np.int64) * width
        return at_rows_of(raw, cut(shown.reshape(-1), starts, starts + width - 1))

    return texts


def lsn_texts(raw: pa.Array) -> pa.Array:
    """``16/B374D848``."""
    found = fixed_bytes(raw, 8)
    halves = found.reshape(-1).view(">u4").astype(np.int64).reshape(-1, 2)
    shown = [_hex(np.ascontiguousarray(halves[:, place]), upper=True) for place in range(2)]
    return at_rows_of(raw, joined(shown[0], b"/", shown[1]))
