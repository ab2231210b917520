"""The hash functions of a digest: PostgreSQL's own ones, or md5 where a server computes others.

A form hashes a value together with a seed, and what comes out is the seed of the next value. ``finished``
makes the hash of a row of the last seed, a number of 64 bits. Each function is there twice, as a template of
SQL and for Arrow, and both give the same.

* PostgreSQL's own functions make a number of the value and the seed at once.
* With md5 a seed is a text: it grows by each value, and md5 is computed once, of all of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import ByteRuns
from airflow_provider_pgoutput.proof.server_hashes import (
    hash_bytes,
    hash_float8,
    hash_int4,
    hash_int8,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_pgoutput.proof.server_hashes import Hashes

    #: The seeds of some rows: numbers of 64 bits for the server's functions, texts for md5.
    Seeds = Any


class Moment(NamedTuple):
    """How SQL hashes a ``timestamp`` or a ``timestamptz``."""

    #: The template that calls a hash function.
    function: str
    #: The SQL of what it hashes, with ``{}`` for the moment.
    taken: str
    #: The SQL of what is hashed in place of NULL.
    sentinel: str


class HashFunctions(Protocol):
    """The functions of a digest. A template has ``{value}``, and once ``{seed}``: a seed is long."""

    @property
    def int4(self) -> str:
        """The template for an ``int4``."""

    @property
    def long(self) -> str:
        """The template for an ``int8``."""

    @property
    def float8(self) -> str:
        """The template for a ``float8``."""

    @property
    def text(self) -> str:
        """The template for a text."""

    @property
    def uuid(self) -> str:
        """The template for a uuid."""

    @property
    def finished(self) -> str:
        """The template for the hash of a row, an ``int8``. It has only ``{seed}``."""

    def moment(self, kind: str) -> Moment:
        """How a moment is hashed.

        :param kind: ``timestamp`` or ``timestamptz``.
        """

    def first(self, salt: int) -> str:
        """The SQL of the seed of a row's first value."""

    def firsts(self, salt: int, count: int) -> Seeds:
        """The same for rows of the lake."""

    def hash_int4(self, values: NDArray[np.int32], seeds: Seeds) -> Seeds:
        """What ``int4`` computes."""

    def hash_long(self, values: NDArray[np.int64], seeds: Seeds) -> Seeds:
        """What ``long`` computes."""

    def hash_float8(self, values: NDArray[np.float64], seeds: Seeds) -> Seeds:
        """What ``float8`` computes."""

    def hash_moments(self, microseconds: NDArray[np.int64], seeds: Seeds) -> Seeds:
        """What ``moment`` computes.

        :param microseconds: since 2000; the greatest ``int8`` stands for NULL.
        """

    def hash_texts(self, values: pa.Array, seeds: Seeds, sentinel: bytes) -> Seeds:
        """What ``text`` computes. The sentinel is hashed in place of NULL."""

    def hash_uuids(self, values: pa.Array, seeds: Seeds, sentinel: bytes) -> Seeds:
        """What ``uuid`` computes. The sentinel is hashed in place of NULL."""

    def finish(self, seeds: Seeds) -> Hashes:
        """What ``finished`` computes."""


#: An interval without months has the hash of its microseconds.
_SINCE_2000: Final = "({{}} OPERATOR(pg_catalog.-) '2000-01-01 00:00:00+00'::pg_catalog.{kind})"
#: The interval of the greatest ``int8`` of microseconds.
_LONGEST_INTERVAL: Final = "'2562047788:00:54.775807'::pg_catalog.interval"


@dataclass(frozen=True)
class ServerFunctions:
    """PostgreSQL's own functions with a seed, see ``server_hashes.py``."""

    #: Whether the server has ``timestamptz_hash_extended``.
    hashes_timestamptz: bool = False
    int4 = "pg_catalog.hashint4extended({value}, {seed})"
    #: ``hashint8extended`` folds the upper half of a number into the lower one. So the upper half goes into
    #: the seed, too.
    long = (
        "pg_catalog.hashint8extended({value},"
        " {seed} OPERATOR(pg_catalog.#) ({value} OPERATOR(pg_catalog.>>) 32))"
    )
    float8 = "pg_catalog.hashfloat8extended({value}, {seed})"
    text = 'pg_catalog.hashtextextended({value} COLLATE pg_catalog."C", {seed})'
    uuid = "pg_catalog.uuid_hash_extended({value}, {seed})"
    finished = "{seed}"

    def moment(self, kind: str) -> Moment:
        """See ``HashFunctions``. Each of the functions hashes the microseconds."""
        if kind == "timestamp" or self.hashes_timestamptz:
            function = f"pg_catalog.{kind}_hash_extended({{value}}, {{seed}})"
            return Moment(function, "{}", f"'infinity'::pg_catalog.{kind}")
        # To make a ``timestamp`` of a ``timestamptz``, the server would ask the rules of the time zone for
        # each row.
        function = "pg_catalog.interval_hash_extended({value}, {seed})"
        return Moment(function, _SINCE_2000.format(kind=kind), _LONGEST_INTERVAL)

    def first(self, salt: int) -> str:
        """See ``HashFunctions``."""
        return f"'{salt}'::pg_catalog.int8"

    def firsts(self, salt: int, count: int) -> Hashes:
        """See ``HashFunctions``."""
        return np.broadcast_to(np.array([salt], np.int64).view(np.uint64), count)

    def hash_int4(self, values: NDArray[np.int32], seeds: Hashes) -> Hashes:
        """See ``HashFunctions``."""
        return hash_int4(values, seeds)

    def hash_long(self, values: NDArray[np.int64], seeds: Hashes) -> Hashes:
        """See ``HashFunctions``."""
        return hash_int8(values, seeds ^ (values >> np.int64(32)).view(np.uint64))

    def hash_float8(self, values: NDArray[np.float64], seeds: Hashes) -> Hashes:
        """See ``HashFunctions``."""
        return hash_float8(values, seeds)

    def hash_moments(self, microseconds: NDArray[np.int64], seeds: Hashes) -> Hashes:
        """See ``HashFunctions``."""
        return hash_int8(microseconds, seeds)

    def hash_texts(self, values: pa.Array, seeds: Hashes, sentinel: bytes) -> Hashes:
        """See ``HashFunctions``."""
        runs = runs_of(values)
        hashes = hash_bytes(runs.data, runs.starts, runs.ends, seeds)
        if values.null_count:
            rows = np.flatnonzero(is_null(values))
            begin = np.zeros(len(rows), dtype=np.int64)
            data = np.frombuffer(sentinel, dtype=np.uint8)
            hashes[rows] = hash_bytes(data, begin, begin + len(sentinel), seeds[rows])
        return hashes

    def hash_uuids(self, values: pa.Array, seeds: Hashes, sentinel: bytes) -> Hashes:
        """See ``HashFunctions``."""
        return self.hash_texts(values, seeds, sentinel)

    def finish(self, seeds: Hashes) -> Hashes:
        """See ``HashFunctions``."""
        return seeds


@dataclass(frozen=True)
class Md5Functions:
    """The first half of the md5 of all values as text.

    :param mark: ends each text within a row. It has to be made of the salt: nobody can then make two rows
        whose values differ and whose texts together do not.
    """

    mark: str
    int4 = "pg_catalog.concat({seed}, {value}, ',')"
    long = int4
    #: All NaN are one value. Their bits may differ, so no bits stand for them.
    float8 = (
        "pg_catalog.concat({seed}, pg_catalog.encode(pg_catalog.float8send("
        "NULLIF({value}, 'NaN'::pg_catalog.float8)), 'hex'), ',')"
    )
    uuid = "pg_catalog.concat({seed}, pg_catalog.encode(pg_catalog.uuid_send({value}), 'hex'), ',')"
    finished = (
        "pg_catalog.concat('x', pg_catalog.\"left\"(pg_catalog.md5({seed}), 16))"
        '::pg_catalog."bit"(64)::pg_catalog.int8'
    )

    @property
    def text(self) -> str:
        """See ``HashFunctions``."""
        return f"pg_catalog.concat({{seed}}, {{value}}::pg_catalog.text, '{self.mark}')"

    def moment(self, kind: str) -> Moment:
        """See ``HashFunctions``."""
        microseconds = "(EXTRACT(epoch FROM {value}) * 1000000)::pg_catalog.int8"
        function = f"pg_catalog.concat({{seed}}, {microseconds}, ',')"
        return Moment(function, _SINCE_2000.format(kind=kind), _LONGEST_INTERVAL)

    def first(self, salt: int) -> str:
        """See ``HashFunctions``."""
        return f"'{salt},'"

    def firsts(self, salt: int, count: int) -> pa.Array:
        """See ``HashFunctions``."""
        return pa.repeat(pa.scalar(f"{salt},".encode(), pa.large_binary()), count)

    def hash_int4(self, values: NDArray[np.int32], seeds: pa.Array) -> pa.Array:
        """See ``HashFunctions``."""
        return _joined(seeds, pa.array(values).cast(pa.string()), ",")

    def hash_long(self, values: NDArray[np.int64], seeds: pa.Array) -> pa.Array:
        """See ``HashFunctions``."""
        return _joined(seeds, pa.array(values).cast(pa.string()), ",")

    def hash_float8(self, values: NDArray[np.float64], seeds: pa.Array) -> pa.Array:
        """See ``HashFunctions``."""
        sent = np.ascontiguousarray(values).astype(">f8").view("V8")
        kept = pa.Array.from_buffers(pa.binary(8), len(sent), [None, pa.py_buffer(sent)])
        digits = hexadecimal(kept).cast(pa.large_binary())
        empty = pa.scalar(b"", pa.large_binary())
        return _joined(seeds, pc.if_else(pa.array(np.isnan(values)), empty, digits), ",")

    def hash_moments(self, microseconds: NDArray[np.int64], seeds: pa.Array) -> pa.Array:
        """See ``HashFunctions``."""
        return self.hash_long(microseconds, seeds)

    def hash_texts(self, values: pa.Array, seeds: pa.Array, sentinel: bytes) -> pa.Array:
        """See ``HashFunctions``."""
        return _joined(seeds, _filled(values, sentinel), self.mark)

    def hash_uuids(self, values: pa.Array, seeds: pa.Array, sentinel: bytes) -> pa.Array:
        """See ``HashFunctions``."""
        return _joined(seeds, _filled(hexadecimal(values), sentinel.hex().encode()), ",")

    def finish(self, seeds: pa.Array) -> Hashes:
        """See ``HashFunctions``."""
        runs = runs_of(seeds)
        texts = runs.data.data
        digests = b"".join(
            hashlib.md5(texts[begin:end], usedforsecurity=False).digest()
            for begin, end in zip(runs.starts.tolist(), runs.ends.tolist(), strict=True)
        )
        return np.frombuffer(digests, ">u8")[::2].astype(np.uint64)


def _joined(seeds: pa.Array, pieces: pa.Array, end: str) -> pa.Array:
    """Each seed with its piece and the end of the piece behind it."""
    ends = pa.scalar(end.encode(), pa.large_binary())
    nothing = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(seeds, pieces.cast(pa.large_binary()), ends, nothing)


def _filled(values: pa.Array, sentinel: bytes) -> pa.Array:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    return pc.fill_null(values.cast(pa.large_binary()), pa.scalar(sentinel, pa.large_binary()))


def hexadecimal(values: pa.Array) -> pa.Array:
    """Bytes as their hexadecimal digits."""
    runs = runs_of(values)
    offsets = 2 * np.append(runs.starts, len(runs.data))
    digits = _HEXADECIMAL[runs.data].view(np.uint8)
    mask = None if values.null_count == 0 else pa.array(~is_null(values)).buffers()[1]
    return pa.Array.from_buffers(
        pa.large_binary(), len(values), [mask, pa.py_buffer(offsets), pa.py_buffer(digits)]
    )


_HEXADECIMAL = np.frombuffer("".join(f"{each:02x}" for each in range(256)).encode(), np.uint16)


def runs_of(values: pa.Array) -> ByteRuns:
    """The bytes of texts, of binaries, or of uuids."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_fixed_size_binary(values.type) or values.type in {
        pa.string_view(),
        pa.binary_view(),
    }:
        values = values.cast(pa.binary())
    return ByteRuns.of(values)


def is_null(values: pa.Array) -> NDArray[np.bool_]:
    """Which values are NULL."""
    found: NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return found
