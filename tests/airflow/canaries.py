"""Secrets that can be told from anything else, the places where they are planted, and where they must not be.

What is not here: the run that they are planted in (``example_pipeline.py``).
"""

from __future__ import annotations

import base64
import threading
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

_PLACES = (
    "postgres password",
    "postgres sslpassword",
    "iceberg password",
    "iceberg token",
    "iceberg credential",
    "iceberg header.Authorization",
    "iceberg header.X-Mine",
    "iceberg s3.access-key-id",
    "iceberg s3.secret-access-key",
    "iceberg s3.session-token",
    "iceberg adls.connection-string",
    "iceberg my-own-property",
    "spark password",
    "spark keystore",
)
#: By where it is planted. Letters and digits only: no escape and no encoding of a URL changes them.
CANARIES = {place: f"canary{number:02d}x0C0FFEE5EC2E7" for number, place in enumerate(_PLACES)}


def leaks(places: Mapping[str, str | bytes]) -> list[tuple[str, str]]:
    """Which canary is in which place, as it is or in the encoding of an HTTP header.

    :param places: what was found there.
    """
    found = []
    for place, content in places.items():
        held = content if isinstance(content, bytes) else content.encode()
        for name, canary in CANARIES.items():
            if any(each in held for each in _forms(canary)):
                found.append((name, place))
    return found


def _forms(canary: str) -> Iterable[bytes]:
    yield canary.encode()
    # Three places at which it may begin in what is encoded; the ends depend on its neighbours.
    for before in (b"", b"x", b"xx"):
        yield base64.b64encode(before + canary.encode() + b"xxx")[4:-8]


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its path."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class ProcessWatch:
    """Looks again and again at what the machine tells of the processes below this one."""

    def __init__(self) -> None:
        #: Command lines and environments, each once.
        self.seen: dict[str, str] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, name="process watch")

    def __enter__(self) -> ProcessWatch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        me = psutil.Process()
        while not self._done.wait(0.1):
            for process in me.children(recursive=True):
                for what, read in (("command", process.cmdline), ("environment", process.environ)):
                    self._note(what, process, read)

    def _note(self, what: str, process: psutil.Process, read: Any) -> None:
        try:
            text = repr(read())
        except psutil.Error:
            return  # It has ended.
        self.seen[f"{what} of process {process.pid}: {hash(text)}"] = text
