"""Keeps transactions that wait for their commit on the worker's disk, with bounded memory.

All spools of a read share a budget of memory. When it is used up, the largest spool writes its content to a
file. The file is in a private folder of the system's temporary directory (``scratch.py``). The folder is
removed after the read. Nothing here is durable, and need not be: the server sends an unfinished transaction
again.
``pgoutput/reassemble.py`` decides which messages a spool gets.
"""

from __future__ import annotations

import contextlib
import errno
import tempfile
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from airflow_provider_pgoutput.capture.pgoutput.spool import Fragment, joined
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import StagingFull
from airflow_provider_pgoutput.scratch import ScratchFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Memory for all spools of a read.
SPILL_BYTES: Final = 32 << 20
#: Memory of a fragment in addition to its bytes.
_FRAGMENT_BYTES: Final = 512
#: A file is read in fragments of at most this size, unless it was written in larger ones.
_WRITTEN_FRAGMENT_BYTES: Final = 4 << 20
#: For each message its length (8 bytes) and its transaction ID (4 bytes).
_BYTES_BESIDE_MESSAGE: Final = 12


@dataclass(frozen=True, slots=True)
class _Written:
    """Where a fragment is in the file: first its lengths, then its IDs, then its data."""

    position: int
    messages: int
    size_bytes: int


class SpillFolder:
    """Makes spools that share one budget. Two threads use it: one reads, one handles ended transactions.

    :param memory_bytes: about how much all spools together keep in memory.
    """

    def __init__(self, memory_bytes: int = SPILL_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._folder: ScratchFolder | None = None
        self._spools: dict[int, FileSpool] = {}
        self._made = 0
        #: Held while a spool changes. A spool that exceeds the budget makes another one write.
        self.lock = threading.RLock()
        self.held_bytes = 0
        #: Bytes written to files so far.
        self.written_bytes = 0

    def wrote(self, count: int) -> None:
        """Count bytes that were written to a file."""
        self.written_bytes += count

    def new(self) -> FileSpool:
        """Make an empty spool."""
        with self.lock:
            spool = FileSpool(self, self._made)
            self._spools[self._made] = spool
            self._made += 1
            return spool

    def close(self) -> None:
        """Remove all files. No spool may be used afterwards."""
        self._spools.clear()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def held(self, more_bytes: int) -> None:
        """Count the bytes that a spool took into memory or released.

        If it is too much, write the largest spool.
        """
        self.held_bytes += more_bytes
        while self.held_bytes > self._memory_bytes:
            max(self._spools.values(), key=lambda each: each.held_bytes).write_out()

    def path(self, number: int) -> Path:
        """The file of a spool."""
        if self._folder is None:
            self._folder = ScratchFolder("spill")
        return self._folder.path / str(number)

    def forget(self, number: int) -> None:
        """Drop a spool."""
        self._spools.pop(number, None)


class FileSpool:
    """See ``Spool``; made by ``SpillFolder.new``."""

    def __init__(self, folder: SpillFolder, number: int) -> None:
        self._folder = folder
        self._number = number
        self._held: list[Fragment] = []
        self._written: list[_Written] = []
        self.held_bytes = 0

    def append(self, fragment: Fragment) -> None:
        """See ``Spool``."""
        size = _size(fragment)
        with self._folder.lock:
            self._held.append(fragment)
            self.held_bytes += size
            self._folder.held(size)

    def fragments(self) -> Iterator[Fragment]:
        """See ``Spool``."""
        with self._folder.lock:
            written, held = tuple(self._written), tuple(self._held)
        if written:
            with _disk_errors("read back"), self._folder.path(self._number).open("rb") as file:
                for each in written:
                    yield _read(file, each)
        yield from held

    def discard(self) -> None:
        """See ``Spool``."""
        with self._folder.lock:
            if self._written:
                self._folder.path(self._number).unlink(missing_ok=True)
            self._folder.forget(self._number)
            self._written, self._held = [], []
            self._release()

    def write_out(self) -> None:
        """Move the content in memory to the file.

        :raises StagingFull: the disk has no room for it.
        """
        with _disk_errors("put aside"), self._folder.path(self._number).open("ab") as file:
            for fragment in _gathered(self._held):
                position = file.tell()
                for array in (fragment.lengths, fragment.xids, fragment.data):
                    file.write(np.ascontiguousarray(array).data)
                self._written.append(_Written(position, len(fragment), len(fragment.data)))
                self._folder.wrote(file.tell() - position)
        reach("stage.after_spill")
        self._held = []
        self._release()

    def _release(self) -> None:
        released, self.held_bytes = self.held_bytes, 0
        self._folder.held(-released)


@contextlib.contextmanager
def _disk_errors(action: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StagingFull(
            f"A streamed transaction cannot be {action} in {tempfile.gettempdir()}: {error.strerror}.",
            advice="make room and keep others from removing files there, point TMPDIR to another disk, or "
            "set streaming to 'off', so that the server keeps transactions until they commit.",
        ) from error


def _size(fragment: Fragment) -> int:
    return len(fragment.data) + _BYTES_BESIDE_MESSAGE * len(fragment) + _FRAGMENT_BYTES


def _gathered(fragments: list[Fragment]) -> Iterator[Fragment]:
    """Fewer, larger fragments of many small ones."""
    waiting: list[Fragment] = []
    size = 0
    for fragment in fragments:
        waiting.append(fragment)
        size += len(fragment.data)
        if size >= _WRITTEN_FRAGMENT_BYTES:
            yield joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield joined(waiting)


def _read(file: IO[bytes], written: _Written) -> Fragment:
    file.seek(written.position)
    size = written.messages * _BYTES_BESIDE_MESSAGE + written.size_bytes
    content = np.fromfile(file, dtype=np.uint8, count=size)
    if len(content) != size:
        raise OSError(errno.EIO, "the file is shorter than it was")
    first, second = 8 * written.messages, 12 * written.messages
    return Fragment(
        content[second:], content[:first].view(np.int64), content[first:second].view(np.uint32)
    )
