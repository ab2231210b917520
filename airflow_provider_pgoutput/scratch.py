"""Private folders on the worker's own disk that outlive no process for long.

A process that is killed cannot remove its folder. Each folder is therefore locked while its process lives,
and whoever makes a new one removes those that nobody locks. What is not here: what the folders hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "pgoutput-"


class ScratchFolder:
    """A new folder in the system's temporary directory (``TMPDIR``), for this user only.

    :param use: what it is for, a part of its name; only folders of the same use are swept.
    :raises OSError: when the directory does not take it.
    """

    def __init__(self, use: str) -> None:
        prefix = f"{_PREFIX}{use}-"
        _remove_abandoned(prefix)
        while True:
            # mkdtemp makes it 0700.
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            # Another process may have taken it for abandoned before it was locked.
            if _lock_own(self._lock) and self.path.exists():
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # Those of other users cannot be opened, and others may remove the same one just now.
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _locked(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _lock_own(folder: int) -> bool:
    """Lock a folder that was just made; where the file system locks none, nobody takes it for abandoned."""
    try:
        return _locked(folder)
    except OSError:
        return True


def _locked(folder: int) -> bool:
    """Take the lock of an open folder, unless somebody holds it; it goes with the process."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
