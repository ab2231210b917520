"""The staging area: a folder on a disk or in an object store, used through pyarrow's file systems.

Local files are synced to the disk. A file that must appear whole is renamed into place. An object store shows
only whole objects, except that Azure's may first show an empty one. None of our files is empty, so an empty
file counts as not there yet. ``batch/layout.py`` makes all names.

Source: https://arrow.apache.org/docs/python/filesystems.html
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow import fs

from airflow_provider_pgoutput.batch.layout import join
from airflow_provider_pgoutput.capture.staging.storage_errors import storage_error, storage_errors
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

#: No access for other users, because the files contain rows.
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600


class Written(NamedTuple):
    """A file that is complete and durable."""

    size_bytes: int
    sha256: str


class Entry(NamedTuple):
    """A file of the area."""

    #: Relative to the staging root.
    path: str
    size_bytes: int
    #: When it was last written, in UTC.
    modified: datetime

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


class StagedOutput:
    """A file that is being written. It counts and hashes the bytes. After ``finish`` it is durable.

    It has the methods that ``pyarrow.PythonFile`` needs in a file to write to.
    """

    def __init__(self, sink: IO[bytes] | pa.NativeFile, *, local: bool) -> None:
        self._sink = sink
        self._local = local
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Write bytes, or an object that has them in a buffer; return how many."""
        view = memoryview(data)
        self._sink.write(view)
        self._digest.update(view)
        self.size_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size_bytes

    def flush(self) -> None:
        """Does nothing. ``finish`` flushes."""

    def close(self) -> None:
        """Note that pyarrow has ended. ``finish`` makes the file durable."""
        self.closed = True

    def finish(self) -> Written:
        """Make the file durable."""
        if self._local:
            self._sink.flush()
            os.fsync(self._sink.fileno())
        self._sink.close()
        return Written(self.size_bytes, self._digest.hexdigest())


#: Schemes of ``scheme://container@account/folder``.
_CONTAINER_FIRST = frozenset({"abfs", "abfss"})
#: Variables that name the AWS region. The first one that is set counts.
#: https://docs.aws.amazon.com/sdkref/latest/guide/feature-region.html
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")


#: How many small files are written, or folders are synced, at the same time.
_AT_ONCE = 8


class StagingArea:
    """The folder below which everything of the pipeline is staged.

    :param staging_uri: an absolute path, or a URI that pyarrow knows (``s3://``, ``gs://``, ``abfss://``,
        ``file://``).
    :raises ConfigurationError: it is neither, or Spark would read it differently.
    :raises LakeUnavailable: the object store does not say in which region the bucket is.
    """

    def __init__(self, staging_uri: str) -> None:
        self.staging_uri = staging_uri.rstrip("/")
        _check_uri(self.staging_uri)
        self._filesystem, self._root = _opened(self.staging_uri)
        self._local = isinstance(self._filesystem, fs.LocalFileSystem)

    def uri(self, relative: str) -> str:
        """The URI of a file or folder of the area."""
        return join(self.staging_uri, relative)

    def create(self, relative: str) -> StagedOutput:
        """Open a new file for writing. Its folder is made if needed."""
        path = join(self._root, relative)
        with storage_errors("write"):
            if not self._local:
                return StagedOutput(self._filesystem.open_output_stream(path), local=False)
            _make_private(Path(path).parent)
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
            return StagedOutput(os.fdopen(number, "wb"), local=True)

    def write_whole(self, relative: str, content: bytes) -> None:
        """Write a file that other processes see whole or not at all, and that survives a power failure."""
        self.write_all({relative: content})

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write several files at the same time, each as ``write_whole`` does.

        :param files: the bytes of each file by its path.
        """
        with storage_errors("write"):
            if len(files) == 1:
                for relative, content in files.items():
                    self._write(relative, content)
            else:
                with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="write") as executor:
                    for _ in executor.map(self._write, files, files.values()):
                        pass
            if self._local:
                self._sync_folders(*(Path(join(self._root, each)).parent for each in files))

    def _write(self, relative: str, content: bytes) -> None:
        """Write one file. Its name is not durable yet."""
        temporary = f"{relative}.{uuid.uuid4().hex}.tmp" if self._local else relative
        output = self.create(temporary)
        output.write(content)
        output.finish()
        if self._local:
            Path(join(self._root, temporary)).replace(join(self._root, relative))

    def check(self, folder: str) -> None:
        """Write a file, read it back and delete it, to find out whether this worker may.

        :raises LakeDenied: the area does not let it.
        :raises ConfigurationError: there is no such bucket.
        :raises LakeUnavailable: it did not answer.
        """
        name, content = join(folder, f"check_{uuid.uuid4().hex}"), b"to be deleted"
        self.write_whole(name, content)
        try:
            if self.read(name) != content:
                raise ConfigurationError(
                    "The staging area gave other bytes back than were written.",
                    advice="check what stands behind staging_uri.",
                )
        finally:
            self.delete_file(name)
            self.delete_empty_folders(folder.rpartition("/")[0])

    def sync(self, *folders: str) -> None:
        """Make the names of the files in some folders durable."""
        if self._local:
            with storage_errors("write"):
                self._sync_folders(*(Path(join(self._root, each)) for each in folders))

    def read(self, relative: str) -> bytes:
        """All bytes of a file."""
        with (
            storage_errors("read"),
            self._filesystem.open_input_stream(join(self._root, relative)) as file,
        ):
            return bytes(file.read())

    def open(self, relative: str) -> pa.NativeFile:
        """Open a file for reading from its beginning."""
        with storage_errors("read"):
            return self._filesystem.open_input_stream(join(self._root, relative))

    def open_seekable(self, relative: str) -> pa.NativeFile:
        """Open a file for reading at any place."""
        with storage_errors("read"):
            return self._filesystem.open_input_file(join(self._root, relative))

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder, sorted; none if there is no such folder.

        Empty files are left out: their writer is still at work, or died.
        """
        selector = fs.FileSelector(join(self._root, folder), allow_not_found=True)
        with storage_errors("list"):
            found = self._filesystem.get_file_info(selector)
        return sorted(
            each.base_name for each in found if each.type == fs.FileType.File and each.size
        )

    def entries(self, folder: str, *, recursive: bool = False) -> list[Entry]:
        """The files in a folder, sorted by path; none if there is no such folder."""
        selector = fs.FileSelector(
            join(self._root, folder), allow_not_found=True, recursive=recursive
        )
        with storage_errors("list"):
            found = self._filesystem.get_file_info(selector)
        start = len(self._root.rstrip("/")) + 1
        return sorted(
            Entry(each.path[start:], each.size, each.mtime)
            for each in found
            if each.type == fs.FileType.File
        )

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Bytes of each file; None: there is no such file."""
        with storage_errors("list"):
            found = self._filesystem.get_file_info([join(self._root, path) for path in paths])
        return [each.size if each.type == fs.FileType.File else None for each in found]

    def delete_folder(self, relative: str) -> None:
        """Delete a folder with everything in it. It need not exist."""
        with storage_errors("delete"), contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_dir(join(self._root, relative))

    def delete_file(self, relative: str) -> None:
        """Delete a file. It need not exist."""
        with storage_errors("delete"), contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(join(self._root, relative))

    def delete_empty_folders(self, relative: str) -> None:
        """Delete the empty folders below a folder. An object store has none."""
        if not self._local:
            return
        for folder, _, _ in os.walk(join(self._root, relative), topdown=False):
            if folder != join(self._root, relative):
                # Another process may have written a file there just now.
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()

    def _sync_folders(self, *folders: Path) -> None:
        """Sync some folders and their parents up to the root, because any of them may be new.

        A batch of many tables has many folders, which mostly wait for the disk. So each is synced once, and
        several at the same time.
        """
        root = Path(self._root)
        found: set[Path] = set()
        for each in folders:
            folder = each
            # The parents of a folder that was found are found, too.
            while folder not in found:
                found.add(folder)
                folder = root if folder == root else folder.parent
        folders = tuple(found)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sync") as executor:
            for _ in executor.map(_sync_all, (folders[i::_AT_ONCE] for i in range(_AT_ONCE))):
                pass


def _sync_all(folders: Iterable[Path]) -> None:
    for each in folders:
        _sync_folder(each)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _check_uri(staging_uri: str) -> None:
    """Refuse a URI with secrets, or one that Arrow and Hadoop read differently."""
    parts = urlsplit(staging_uri)
    login, _, _ = parts.netloc.rpartition("@")
    # In Azure's URIs the container stands there.
    if login and (parts.scheme not in _CONTAINER_FIRST or ":" in login):
        raise ConfigurationError(
            "staging_uri has a user or a password in it, and it is shown in logs and in XCom.",
            advice="take it out, and give credentials to the worker and to Spark in their environment or"
            " as an identity.",
        )
    if parts.scheme and (parts.query or parts.fragment):
        raise ConfigurationError(
            "staging_uri has a part behind ? or #: Spark does not take it, and it is shown in logs and"
            " in XCom.",
            advice="take it out, and give region, endpoint and credentials to the worker in its environment"
            " (AWS_REGION, AWS_ENDPOINT_URL), to Spark in spark.hadoop.* settings, or as an identity.",
        )
    if parts.scheme and "%" in staging_uri:
        raise ConfigurationError(
            "staging_uri has an escape (%) in it: the worker would write to the folder that it stands for,"
            " and Spark would look for one that is called so.",
            advice="choose a folder whose name needs no escapes.",
        )
    if not parts.scheme and not staging_uri.startswith("/"):
        raise _no_uri()


def _opened(staging_uri: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI, and the folder in it."""
    filesystem: fs.FileSystem
    root: str
    try:
        filesystem, root = fs.FileSystem.from_uri(staging_uri)
    except (pa.ArrowInvalid, ValueError, TypeError):
        raise _no_uri() from None
    except OSError as error:
        # Arrow asks AWS for the region of a bucket, unless the URI names it. It ignores the environment. AWS
        # knows best, because a bucket may be anywhere. But not every network reaches AWS.
        # https://arrow.apache.org/docs/python/filesystems.html#s3
        region = next(filter(None, map(os.environ.get, _REGIONS)), None)
        if not region or not staging_uri.startswith("s3:"):
            raise storage_error("open", error) from error
        filesystem, root = fs.FileSystem.from_uri(f"{staging_uri}?region={quote(region, safe='')}")
    return filesystem, root


def _no_uri() -> ConfigurationError:
    return ConfigurationError(
        "staging_uri is neither an absolute path nor a URI of a known file system.",
        advice="use a form like /var/lib/staging, file:///var/lib/staging or s3://bucket/folder.",
    )


def _make_private(folder: Path) -> None:
    """Make a folder and those above it that lack, each for this user only.

    ``mkdir(parents=True)`` would make those above with the mode of the process's umask.
    """
    missing = [folder, *folder.parents]
    for each in reversed(missing[: next(i for i, at in enumerate(missing) if at.is_dir())]):
        # Another writer may make it just now.
        each.mkdir(mode=_FOLDER_MODE, exist_ok=True)
