"""The hash functions of numpy give what the server's give."""

from __future__ import annotations

import itertools
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.proof.server_hashes import (
    KNOWN,
    are_known,
    hash_bytes,
    hash_float8,
    hash_int4,
    hash_int8,
    hash_numeric,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from quickstart.postgres import EmbeddedPostgres

#: What a driver sends as a ``bigint``: the bits of a hash with a sign.
SEEDS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1, 2**32, -(2**63)])
INT8 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 0, 2**32 - 1, 2**63 - 1, -(2**63)])
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324])
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=50)


def _hash_texts(values: Sequence[str], seeds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    texts = [each.encode() for each in values]
    ends = np.cumsum([len(each) for each in texts])
    starts = ends - [len(each) for each in texts]
    return hash_bytes(np.frombuffer(b"".join(texts), np.uint8), starts, ends, seeds)


def _hash_numerics(
    digits: int, scale: int
) -> tuple[str, st.SearchStrategy[int], Callable[..., Any]]:
    """Numbers with many zeros among their digits, too."""
    least = 10 ** (digits - 1)
    numbers = st.integers(least, 10 * least - 1)
    groups = st.sets(st.sampled_from(range(digits - 1)), max_size=3)
    with_zeros = st.builds(lambda places: least + sum(7 * 10**each for each in places), groups)
    return (
        "int8",
        numbers | with_zeros,
        lambda values, seeds: hash_numeric(np.array(values, np.int64), digits, scale, seeds),
    )


#: By function of the server: the type of its argument, and the function of numpy.
FUNCTIONS: dict[str, tuple[str, st.SearchStrategy[Any], Callable[..., Any]]] = {
    "hashint4extended(v, s)": (
        "int4",
        st.integers(-(2**31), 2**31 - 1),
        lambda values, seeds: hash_int4(np.array(values, np.int32), seeds),
    ),
    "hashint8extended(v, s)": (
        "int8",
        INT8,
        lambda values, seeds: hash_int8(np.array(values, np.int64), seeds),
    ),
    "hashfloat8extended(v, s)": (
        "float8",
        FLOATS,
        lambda values, seeds: hash_float8(np.array(values, np.float64), seeds),
    ),
    'hashtextextended(v COLLATE "C", s)': ("text", TEXTS, _hash_texts),
    "uuid_hash_extended(v, s)": (
        "uuid",
        st.uuids(),
        lambda values, seeds: hash_bytes(
            np.frombuffer(b"".join(each.bytes for each in values), np.uint8),
            np.arange(len(values)) * 16,
            np.arange(len(values)) * 16 + 16,
            seeds,
        ),
    ),
    "timestamp_hash_extended('2000-01-01'::timestamp + v * interval '1 microsecond', s)": (
        "int8",
        st.integers(-(2**53), 2**53),
        lambda values, seeds: hash_int8(np.array(values, np.int64), seeds),
    ),
    **{
        f"hash_numeric_extended(v / 1e{scale}, s)": _hash_numerics(digits, scale)
        for digits, scale in (
            *((2, 0), (11, 2), (13, 2), (12, 11), (17, 1), (17, 4), (17, 15), (17, 16)),
            *((5, 3), (16, 6), (17, 0)),
        )
    },
}


@pytest.fixture(scope="module")
def session(postgres_server: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as opened:
        yield opened


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_server_computes_the_same(session: psycopg.Connection[Any], function: str) -> None:
    kind, values, ours = FUNCTIONS[function]

    @settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(values, SEEDS), min_size=1, max_size=80))
    def compare(pairs: list[tuple[Any, int]]) -> None:
        found, seeds = [list(each) for each in zip(*pairs, strict=True)]
        theirs = session.execute(
            f"SELECT {function} FROM unnest(%s::{kind}[], %s::int8[]) WITH ORDINALITY AS u(v, s, o)"
            " ORDER BY o",
            (found, seeds),
        ).fetchall()
        hashes = ours(found, np.array(seeds, np.int64).view(np.uint64)).view(np.int64)
        assert hashes.tolist() == [value for (value,) in theirs]

    compare()


def test_a_seed_is_used_in_whole() -> None:
    """Each bit of a seed changes the hash, so a chain of hashes forgets nothing."""
    seeds = np.array([0, *(1 << bit for bit in range(64))], dtype=np.uint64)
    for hashes in (
        hash_int4(np.full(65, 7, np.int32), seeds),
        hash_float8(np.full(65, 7.5), seeds),
        _hash_texts(["a text of some length"] * 65, seeds),
    ):
        assert len(set(hashes.tolist())) == 65


def test_a_bit_of_a_value_changes_the_hash() -> None:
    none = np.zeros(1, np.uint64)
    text = b"twenty-five bytes of text"
    changed = [
        bytes(byte ^ (1 << bit) if place == at else byte for place, byte in enumerate(text))
        for at, bit in itertools.product(range(len(text)), range(8))
    ]
    texts = [text, *changed, text[:-1], b"\x00" + text, text + b"\x00"]
    found = {
        int(
            hash_bytes(
                np.frombuffer(each, np.uint8), np.zeros(1, int), np.array([len(each)]), none
            )[0]
        )
        for each in texts
    }
    assert len(found) == len(texts)
    numbers = np.array([0, *(1 << bit for bit in range(31))], np.int32)
    assert len(set(hash_int4(numbers, np.zeros(32, np.uint64)).tolist())) == 32


def test_nan_is_one_value_whatever_its_bits_are() -> None:
    other = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    hashes = hash_float8(np.array([math.nan, other]), np.ones(2, np.uint64))
    assert hashes[0] == hashes[1]


def test_a_server_with_other_functions_is_known(postgres_server: EmbeddedPostgres) -> None:
    with connect(postgres_server.conninfo()) as session:
        assert are_known(session)
        for expression, value in KNOWN:
            assert not are_known(session, [(expression, value + 1)])
        assert not are_known(session, [("pg_catalog.hash_of_another_system(7)", 1)])
        # The session goes on.
        assert are_known(session)
