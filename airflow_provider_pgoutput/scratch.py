"""Private folders on the worker's own disk, which are removed soon after their process ends.

A process that is killed cannot remove its folder. So each folder is locked while its process lives, and
whoever makes a new folder removes those that are not locked.
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

    :param use: what it is for, as a part of its name. Only folders of the same use are removed.
    :raises OSError: the directory cannot be written.
    """

    def __init__(self, use: str) -> None:
        prefix = f"{_PREFIX}{use}-"
        _remove_abandoned(prefix)
        while True:
            # mkdtemp makes it 0700.
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            # Another process may have removed it as abandoned before it was locked.
            if _lock_own(self._lock) and self.path.exists():
                return
            os.close(self._lock)

    def remove(self) -> None:
        """Remove the folder with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # Folders of other users cannot be opened, and another process may remove the same one just now.
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if _locked(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _lock_own(folder: int) -> bool:
    """Lock a folder that was just made. If the file system has no locks, no folder counts as abandoned."""
    try:
        return _locked(folder)
    except OSError:
        return True


def _locked(folder: int) -> bool:
    """Take the lock of an open folder, unless somebody has it. It is released with the process."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
