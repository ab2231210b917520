"""Programs of Debian's packages: ``apt-get`` downloads them, and they are unpacked into the cache folder.

Nothing is installed.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from quickstart.jars import cache_folder


class NotHere(Exception):
    """The packages are not to be had on this machine; the message says which, and why."""


def unpacked(name: str, *packages: str) -> Path:
    """The folder with some unpacked packages. They are fetched once.

    :param name: of the folder.
    :raises NotHere: there is no ``apt-get``, or it does not find them.
    """
    target = cache_folder() / name
    if not target.is_dir():
        if shutil.which("apt-get") is None:
            raise NotHere(f"{name} comes from Debian's packages, and there is no apt-get here.")
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
        try:
            subprocess.run(
                ["apt-get", "download", *packages], cwd=unfinished, check=True, capture_output=True
            )
            for package in unfinished.glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(package), str(unfinished)], check=True)
                package.unlink()
        except subprocess.CalledProcessError as error:
            shutil.rmtree(unfinished)
            raise NotHere(f"{name} could not be had from Debian's packages: {error}") from error
        with contextlib.suppress(OSError):  # Another process was faster.
            unfinished.rename(target)
    return target
