"""Values in binary form: the same walk, another kind byte, and any mixture of the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.pgoutput.decoder import Decoder
from airflow_provider_pgoutput.capture.pgoutput.reference import (
    UNCHANGED,
    Binary,
    Change,
    ReferenceDecoder,
    changes_of_block,
)
from airflow_provider_pgoutput.errors import ProtocolError
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.support import chunk_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.capture.pgoutput.reference import Tuple

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


def slowly(rows: list[bytes]) -> list[Change]:
    decoder = ReferenceDecoder()
    return [change for body in [*HEAD, *rows] for change in decoder.decode(body)]


def quickly(rows: list[bytes]) -> list[Change]:
    blocks = Decoder().decode(chunk_of([*HEAD, *rows]))
    return [change for block in blocks for change in changes_of_block(block)]


def bare(values: Tuple | None) -> list[object]:
    return [each.content if isinstance(each, Binary) else each for each in values or ()]


def forms(values: Tuple | None) -> set[type]:
    return {type(each) for each in values or () if isinstance(each, bytes | Binary)}


def test_binary_values_come_out_as_they_are() -> None:
    found, of_text = quickly(BINARY_ROWS), quickly(TEXT_ROWS)
    assert found == slowly(BINARY_ROWS)
    for one, other in zip(found, of_text, strict=True):
        assert (bare(one.new), bare(one.old)) == (bare(other.new), bare(other.old))
        assert forms(one.new) | forms(one.old) == {Binary}
        assert forms(other.new) | forms(other.old) == {bytes}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("place", range(4))
def test_a_row_of_the_other_form_is_told_from_those_around_it(place: int, binary: bool) -> None:
    ours, others = (BINARY_ROWS, TEXT_ROWS) if binary else (TEXT_ROWS, BINARY_ROWS)
    rows = [*ours[:place], others[place], *ours[place + 1 :]]
    found = quickly(rows)
    assert found == slowly(rows)
    wanted = [{Binary if binary == (number != place) else bytes} for number in range(4)]
    assert [forms(each.new) | forms(each.old) for each in found] == wanted


def test_columns_of_one_row_have_forms_of_their_own() -> None:
    """As with a type that has no send function: the server sends its text in binary mode too."""
    row = BINARY_ROWS[0].replace(b"b\0\0\0\x03", b"t\0\0\0\x03")
    (found,) = quickly([row])
    assert found.new == (Binary(b"1"), b"t\x00b")
    assert [found] == slowly([row])


@pytest.mark.parametrize("run", [slowly, quickly])
def test_a_value_of_no_known_form_is_refused(run: Callable[[list[bytes]], object]) -> None:
    row = TEXT_ROWS[0].replace(b"t\0\0\0\x01", b"x\0\0\0\x01")
    with pytest.raises(ProtocolError, match="a value of this kind may not stand here"):
        run([row])
