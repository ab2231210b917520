"""Masks values before anything is written: a column of PostgreSQL's texts becomes a column of masked texts.

NULL stays NULL. Equal texts have equal masks, so each text of a column is masked once, however often it
comes.

Source: https://www.rfc-editor.org/rfc/rfc2104 (HMAC)
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgoutput.capture.types.arrow_bytes import CastResult, InvalidEncoding
from airflow_provider_pgoutput.capture.types.scalars import cast_string
from airflow_provider_pgoutput.lake.arrow_types import arrow_type
from airflow_provider_pgoutput.masks import HASH, NULL, REDACT, REDACTED_TEXT, hmac_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.capture.types.arrow_bytes import Caster, Printer
    from airflow_provider_pgoutput.masks import Mask

_DIGEST_BYTES = 32
#: By byte: its two hexadecimal digits, as they lie in memory.
_HEXADECIMAL = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
_NOTHING_REJECTED = np.empty(0, dtype=np.int64)


class HashTexts:
    """HMAC-SHA-256 of texts, in hexadecimal digits.

    An HMAC is two digests, and each begins with a block that follows from the secret. Both blocks are
    digested once, here. Python's own HMAC does that for each text, and takes more than twice as long for a
    short one.
    """

    def __init__(self, secret: bytes) -> None:
        self._inner, self._outer = map(hashlib.sha256, hmac_blocks(secret))

    def __call__(self, texts: pa.Array) -> pa.Array:
        """The hashes of texts: Arrow ``binary``, without nulls."""
        digests = []
        new_inner, new_outer = self._inner.copy, self._outer.copy
        for text in texts.to_pylist():
            inner, outer = new_inner(), new_outer()
            inner.update(text)
            outer.update(inner.digest())
            digests.append(outer.digest())
        digits = _HEXADECIMAL[np.frombuffer(b"".join(digests), np.uint8)]
        width = 2 * _DIGEST_BYTES
        offsets = np.arange(0, width * (len(texts) + 1), width, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
        return pa.Array.from_buffers(pa.binary(), len(texts), buffers)


def mask_of_texts(mask: Mask, secret: bytes | None) -> Callable[[pa.Array], pa.Array]:
    """What masks texts: Arrow ``binary``, without nulls.

    :param secret: of ``hash``.
    """
    if mask.kind == HASH:
        assert secret is not None, "the request has a secret if it has a hash"
        return HashTexts(secret)
    if mask.kind == REDACT:
        return lambda texts: pa.repeat(pa.scalar(REDACTED_TEXT.encode()), len(texts))
    length = mask.length

    def first_characters(texts: pa.Array) -> pa.Array:
        try:
            characters = texts.cast(pa.string())
        except pa.ArrowInvalid:
            raise InvalidEncoding from None
        return pc.utf8_slice_codeunits(characters, 0, length).cast(pa.binary())

    return first_characters


def masked_printer(mask: Mask, secret: bytes | None, texts: Printer | None) -> Printer:
    """What turns raw values into masked texts.

    :param texts: prints values in binary form; None: the values are text.
    """
    if mask.kind == NULL:
        return lambda raw: pa.nulls(len(raw), pa.binary())
    masked = mask_of_texts(mask, secret)

    def printed(raw: pa.Array) -> pa.Array:
        # Few values are often many rows.
        encoded = raw.dictionary_encode()
        unique = encoded.dictionary
        return masked(unique if texts is None else texts(unique)).take(encoded.indices)

    return printed


def masked_caster(mask: Mask, lake_type: str, printer: Printer) -> Caster:
    """What casts raw values to masked ones.

    :param printer: see ``masked_printer``.
    """
    if mask.kind == NULL:
        kind = arrow_type(lake_type)
        return lambda raw: CastResult(pa.nulls(len(raw), kind), _NOTHING_REJECTED)
    return lambda raw: cast_string(printer(raw))
