"""What the lake has in place of a column of the source: its type, its name and its values.

No code of the pipeline is used here.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Kind:
    """A type of the source, as far as its values are concerned."""

    name: str
    #: Of a list.
    element: Kind | None = None
    #: The Iceberg type.
    lake: str = "string"


@dataclass
class Column:
    """A published column."""

    #: In the lake.
    name: str
    kind: Kind
    source_name: str
    #: A word of ``on_the_way.py``; empty: its values are plain.
    mask: str = ""


@dataclass(frozen=True)
class Way:
    """What happens to the rows of a table on the way to the lake."""

    #: By the name of a column at the source: its mask.
    masks: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    #: Which rows pass; empty: all.
    condition: str = ""
    #: By the name of a column at the source: its name in the lake.
    names: Mapping[str, str] = field(default_factory=dict)
    #: Columns that only the lake has, and their text.
    constants: Mapping[str, str] = field(default_factory=dict)
    #: Whether the table of the lake has rows of other tables, too. The constants tell which rows are whose.
    is_shared: bool = False

    def column(self, name: str, kind: Kind) -> Column:
        """A column of the source as the lake has it."""
        mask = self.masks.get(name, "")
        is_text = mask.partition("(")[0] in {"hash", "redact", "truncate"}
        return Column(self.names.get(name, name), Kind(kind.name) if is_text else kind, name, mask)

    def masked_text(self, name: str, text: str | None) -> str | None:
        """What becomes of the text of a column of the source."""
        found = self.masked(None if text is None else text.encode(), self.masks.get(name, ""))
        return None if found is None else found.decode()

    def masked(self, text: bytes | None, mask: str) -> bytes | None:
        """What becomes of the text of a value."""
        if text is None or mask == "null":
            return None
        if mask == "hash":
            return hmac.new(self.secret.encode(), text, hashlib.sha256).hexdigest().encode()
        if mask == "redact":
            return b"***"
        if mask:
            length = int(mask.partition("(")[2].rstrip(")"))
            return text.decode()[:length].encode()
        return text
