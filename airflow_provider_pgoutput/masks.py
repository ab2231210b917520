"""What a mask is: the words of the argument ``columns``, and how a manifest and the lake write masks down.

``capture/types/masked.py`` applies masks to values, ``capture/masking.py`` knows which column has which.
Standard library only: a DAG file is parsed with it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


#: HMAC-SHA-256 of the text, in hexadecimal digits.
HASH: Final = "hash"
#: ``REDACTED_TEXT`` in place of every value.
REDACT: Final = "redact"
#: The first characters of the text.
TRUNCATE: Final = "truncate"
#: NULL in every row.
NULL: Final = "null"
#: The lake does not have the column.
DROP: Final = "drop"

REDACTED_TEXT: Final = "***"

#: A shorter secret could be guessed.
LEAST_SECRET_BYTES: Final = 16

WITH_OTHER_HASHES: Final = (
    "The secret of the hash is another one than that of the lake's rows, so updates and deletes would miss"
    " their rows."
)

_TRUNCATE = re.compile(r"truncate\(([0-9]{1,9})\)")
_FINGERPRINT_OF: Final = b"airflow-provider-pgoutput: fingerprint of the secret of masks"
_FINGERPRINT_DIGITS: Final = 16
#: Bytes of a block of SHA-256.
_BLOCK_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Mask:
    """How one column is masked."""

    #: One of the words above.
    kind: str
    #: Of ``truncate``: how many characters stay.
    length: int = 0

    @classmethod
    def parse(cls, text: str, column: str) -> Mask:
        """Read a mask as the argument ``columns`` has it.

        :param column: ``schema.table.column``, for the error.
        :raises ConfigurationError: there is no such mask.
        """
        word = text.strip()
        if word in {HASH, REDACT, NULL, DROP}:
            return cls(word)
        found = _TRUNCATE.fullmatch(word.replace(" ", ""))
        if found is None or int(found[1]) < 1:
            raise ConfigurationError(
                f"columns[{column!r}] is no mask.",
                advice="use 'hash', 'redact', 'truncate(4)' with a number of characters, 'null' or 'drop'.",
            )
        return cls(TRUNCATE, int(found[1]))

    @property
    def is_text(self) -> bool:
        """Whether the column is a ``string`` in the lake, whatever its type is at the source."""
        return self.kind in {HASH, REDACT, TRUNCATE}

    def recorded(self, secret: bytes | None) -> str:
        """The mask as manifests and the lake write it down. Two texts are equal if the masked values are."""
        if self.kind == HASH:
            assert secret is not None, "the request has a secret if it has a hash"
            return f"{HASH} {fingerprint(secret)}"
        return f"{TRUNCATE}({self.length})" if self.kind == TRUNCATE else self.kind


def is_hash(recorded: str) -> bool:
    """Whether a mask that was written down is a hash."""
    return recorded.partition(" ")[0] == HASH


def recorded_mask(recorded: str, secret: bytes | None) -> Mask | None:
    """The mask that was written down; None: it is a hash, and this is not its secret."""
    if not is_hash(recorded):
        return Mask.parse(recorded, "")
    is_known = secret is not None and recorded == Mask(HASH).recorded(secret)
    return Mask(HASH) if is_known else None


def in_words(recorded: str | None) -> str:
    """A mask in words, without the fingerprint of its secret. None: there is none."""
    return "plain" if recorded is None else f"masked ({recorded.partition(' ')[0]})"


def parse_masks(columns: Mapping[str, str]) -> dict[str, Mask]:
    """Read the argument ``columns``.

    :raises ConfigurationError: a name is no ``schema.table.column``, or there is no such mask.
    """
    for name in columns:
        if name.count(".") < 2 or not all(name.split(".")):
            raise ConfigurationError(
                f"columns has {name!r}, which is not the name of a column.",
                advice="spell it schema.table.column.",
            )
    return {name: Mask.parse(text, name) for name, text in columns.items()}


def check_secret(masks: Mapping[str, Mask], secret: bytes | None) -> None:
    """Refuse hashes without a secret, and a secret that is too short.

    :raises ConfigurationError: it says which.
    """
    if not any(each.kind == HASH for each in masks.values()):
        return
    if not secret:
        raise ConfigurationError(
            "columns has a 'hash', and there is no secret for it.",
            advice="name a connection in mask_conn_id whose password is the secret.",
        )
    if len(secret) < LEAST_SECRET_BYTES:
        raise ConfigurationError(
            f"The secret of the masks is shorter than {LEAST_SECRET_BYTES} bytes, so it could be guessed.",
            advice='make one with python -c "import secrets; print(secrets.token_hex(32))".',
        )


def fingerprint(secret: bytes) -> str:
    """A text that shows whether a secret changed, and nothing else of it."""
    found = hmac.new(secret, _FINGERPRINT_OF, hashlib.sha256).hexdigest()
    return found[:_FINGERPRINT_DIGITS]


def hmac_blocks(secret: bytes) -> tuple[bytes, bytes]:
    """The blocks with which the inner and the outer digest of an HMAC-SHA-256 begin.

    Source: https://www.rfc-editor.org/rfc/rfc2104
    """
    key = hashlib.sha256(secret).digest() if len(secret) > _BLOCK_BYTES else secret
    key = key.ljust(_BLOCK_BYTES, b"\0")
    return bytes(each ^ 0x36 for each in key), bytes(each ^ 0x5C for each in key)


@dataclass(frozen=True, slots=True)
class MaskedColumn:
    """A column of a table and its mask, as manifests and the lake write them down."""

    #: ``pg_attribute.attnum``; 0: not known.
    number: int
    name: str
    #: See ``Mask.recorded``.
    mask: str


def masks_to_json(masks: Iterable[MaskedColumn]) -> str:
    """The text that the lake keeps as a table property."""
    return json.dumps([[each.number, each.name, each.mask] for each in masks])


def masks_from(body: Any) -> tuple[MaskedColumn, ...]:
    """Read the JSON form.

    :raises ValueError: it is something else.
    :raises TypeError: the same.
    """
    return tuple(MaskedColumn(int(number), str(name), str(mask)) for number, name, mask in body)
