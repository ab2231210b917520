"""Values in binary form: the same walk, another kind byte, and no mixture of the two."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    UNCHANGED,
    Change,
    ReferenceDecoder,
    changes_of_block,
)
from airflow_provider_pgoutput.errors import ProtocolError
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.support import chunk_of

T = 16385
LSN = 1000
HEAD = [encode.begin(LSN), encode.relation(T)]
TEXT_ROWS = [
    encode.insert(T, [b"1", b"t\x00b"]),
    encode.insert(T, [b"2", None]),
    encode.update(T, [b"1", UNCHANGED], [b"1", None]),
    encode.delete(T, [b"22", None]),
]


def in_binary(row: bytes) -> bytes:
    """The same row with binary values; the lengths tell values from kinds in these rows."""
    return row.replace(b"t\0\0\0", b"b\0\0\0")


BINARY_ROWS = [in_binary(row) for row in TEXT_ROWS]


def slowly(rows: list[bytes], *, binary: bool) -> list[Change]:
    decoder = ReferenceDecoder(binary=binary)
    return [change for body in [*HEAD, *rows] for change in decoder.decode(body)]


def quickly(rows: list[bytes], *, binary: bool) -> list[Change]:
    blocks = Decoder(binary=binary).decode(chunk_of([*HEAD, *rows]))
    return [change for block in blocks for change in changes_of_block(block)]


def test_binary_values_come_out_as_they_are() -> None:
    assert quickly(BINARY_ROWS, binary=True) == slowly(BINARY_ROWS, binary=True)
    assert quickly(BINARY_ROWS, binary=True) == quickly(TEXT_ROWS, binary=False)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("place", range(4))
def test_a_value_of_the_other_form_is_refused(place: int, binary: bool) -> None:
    ours, others = (BINARY_ROWS, TEXT_ROWS) if binary else (TEXT_ROWS, BINARY_ROWS)
    rows = [*ours[:place], others[place], *ours[place + 1 :]]
    for run in (slowly, quickly):
        with pytest.raises(ProtocolError, match="a value of this kind may not stand here"):
            run(rows, binary=binary)
