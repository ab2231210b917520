"""The class archive of a driver's Java: what Java reads, checks and links when it starts, kept in one file.

A driver that starts with one has its classes in memory before it needs them. The first job that finds no
archive has Java write one when it ends; a file appears whole or not at all, because Java dies of one that
is cut off. What is not here: whether an archive fits (Java ignores one of other jars or of another Java, and
says so in the log), and where the option is written (``spark_files.py``).

Source: https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html (dynamic archives)
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

from airflow_provider_pgoutput.errors import ConfigurationError

log = logging.getLogger(__name__)

_MADE: Final = "classes.jsa"
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_CHUNK_BYTES: Final = 1 << 20
#: A copy takes seconds.
_ABANDONED_SECONDS: Final = 3600.0
#: Java warns of each class that it leaves out, some thousand lines.
_SILENT: Final = "-Xlog:cds=error -Xlog:cds+dynamic=error"


class ClassArchive:
    """The archive at one path on this machine, of one job.

    :param path: an absolute path; its folder is there and outlives the task.
    :raises ConfigurationError: when others than this user and root may write the file or its folder: what is
        in an archive is run.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._made: Path | None = None
        if not self._path.is_absolute() or not self._path.parent.is_dir():
            raise ConfigurationError(
                f"class_archive is {path!r}: no absolute path of a file in a folder of this machine.",
                advice="name a file in a folder that is there and that outlives the task.",
            )
        for each in (self._path.parent, self._path):
            if each.exists():
                _refuse_of_others(each)

    def java_options(self, folder: Path) -> str:
        """Java's options for the job: to read the archive, or to write it when there is none.

        :param folder: a private one, which the job outlives.
        """
        if self._path.exists():
            return _quoted(f"-XX:SharedArchiveFile={self._path}")
        self._made = folder / _MADE
        log.info(
            "Java writes the class archive %s when this job ends; it takes longer.", self._path
        )
        return f"{_quoted(f'-XX:ArchiveClassesAtExit={self._made}')} {_SILENT}"

    def keep(self) -> None:
        """Put what Java wrote where the next job looks for it; the job has ended well.

        That there is none fails nothing: the next job starts as this one did.
        """
        if self._made is None:
            return
        if not self._made.is_file():
            log.warning(
                "Java wrote no class archive: %s stays missing. It needs the archive of its own classes for"
                " that, which `java -Xshare:dump` makes.",
                self._path,
            )
            return
        try:
            _remove_abandoned(self._path)
            size = _replace(self._made, self._path)
        except OSError as error:
            log.warning(
                "The class archive %s could not be written: %s.", self._path, error.strerror
            )
            return
        log.info("Wrote the class archive %s (%d MiB).", self._path, size >> 20)


def _refuse_of_others(path: Path) -> None:
    found = path.stat()
    if found.st_uid not in {os.geteuid(), 0} or found.st_mode & _WRITABLE_BY_OTHERS:
        raise ConfigurationError(
            f"Others than this user may write {path}, and what is in a class archive is run.",
            advice="use a folder that is this user's or root's and that nobody else may write.",
        )


def _quoted(option: str) -> str:
    """An option as Spark splits a line of them: in double quotes, these and backslashes escaped."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _replace(source: Path, target: Path) -> int:
    """Put a copy of a file in the place of another, whole also after a crash; return its size in bytes."""
    # For this user only. Workers in containers may share the folder, and number their processes alike.
    descriptor, name = tempfile.mkstemp(prefix=_unfinished(target), dir=target.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file, source.open("rb") as made:
            shutil.copyfileobj(made, file, _CHUNK_BYTES)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        unfinished.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise
    return size


def _remove_abandoned(target: Path) -> None:
    """Remove the copies that processes began and were killed at."""
    begun_before = time.time() - _ABANDONED_SECONDS
    for path in target.parent.glob(f"{glob.escape(_unfinished(target))}*"):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < begun_before:
                path.unlink()


def _unfinished(target: Path) -> str:
    return f".{target.name}."
