"""What the files of a folder hold: their bytes, and what lies compressed in them."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

from pyarrow import parquet

if TYPE_CHECKING:
    from pathlib import Path

_SYNC_BYTES = 16


def holders_of(folder: Path, *values: str | bytes) -> list[str]:
    """Paths, below the folder's parent, of the files that hold one of the values in any form."""
    wanted = [each if isinstance(each, bytes) else each.encode() for each in values]
    found = []
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        content = content_of(path)
        if any(each in content for each in wanted):
            found.append(str(path.relative_to(folder.parent)))
    return found


def content_of(path: Path) -> bytes:
    """The bytes of a file, and what lies compressed in it: values as Python shows them, blocks of Avro."""
    content = path.read_bytes()
    if path.suffix == ".parquet":
        return content + str(parquet.read_table(path).to_pylist()).encode()
    if path.suffix == ".avro":
        return content + _avro_blocks(content)
    if path.suffix == ".gz" or path.name.endswith(".gz.metadata.json"):
        return content + gzip.decompress(content)
    return content


def _avro_blocks(content: bytes) -> bytes:
    """The blocks of an Avro file that is compressed by deflate.

    Source: https://avro.apache.org/docs/current/specification/#object-container-files
    """
    assert b"avro.codec\x0edeflate" in content
    sync, found = content[-_SYNC_BYTES:], b""
    for block in content.split(sync)[1:-1]:
        _, position = _long(block, 0)
        size, position = _long(block, position)
        assert len(block) == position + size
        found += zlib.decompress(block[position:], wbits=-15)
    return found


def _long(content: bytes, position: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    number = shift = 0
    while True:
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
