"""Masked values of whole columns, against Python's own HMAC and slices."""

from __future__ import annotations

import hashlib
import hmac

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.capture.types.arrow_bytes import InvalidEncoding
from airflow_provider_pgoutput.capture.types.masked import masked_printer
from airflow_provider_pgoutput.masks import Mask

VALUES = [b"a", None, b"", b"a", "\u00e9\u65e5".encode(), b"\xff\x00", b"long" * 5000]


@pytest.mark.parametrize("length", [16, 63, 64, 65, 200])
def test_hashes_are_those_of_python(length: int) -> None:
    secret = bytes(range(length % 251)) + bytes(length - length % 251)
    masked = masked_printer(Mask("hash"), secret, None)
    wanted = [
        None if each is None else hmac.new(secret, each, hashlib.sha256).hexdigest().encode()
        for each in VALUES
    ]
    assert masked(pa.array(VALUES, pa.binary())).to_pylist() == wanted
    assert masked(pa.array(VALUES, pa.binary()).slice(2, 3)).to_pylist() == wanted[2:5]


@pytest.mark.parametrize("mask", [Mask("hash"), Mask("redact"), Mask("truncate", 2), Mask("null")])
def test_no_values_and_no_rows(mask: Mask) -> None:
    masked = masked_printer(mask, bytes(16), None)
    for values in ([], [None, None]):
        assert masked(pa.array(values, pa.binary())).to_pylist() == values


def test_other_masks() -> None:
    texts = pa.array(["\u00e9\u65e5x".encode(), None, b"a"], pa.binary())
    cut = masked_printer(Mask("truncate", 2), None, None)(texts)
    assert cut.to_pylist() == ["\u00e9\u65e5".encode(), None, b"a"]
    assert masked_printer(Mask("redact"), None, None)(texts).to_pylist() == [b"***", None, b"***"]
    assert masked_printer(Mask("null"), None, None)(texts).null_count == 3


def test_a_text_that_is_not_utf8_is_not_cut() -> None:
    with pytest.raises(InvalidEncoding):
        masked_printer(Mask("truncate", 2), None, None)(pa.array([b"\xff"], pa.binary()))
