"""The staging area's object store: names, bytes, nothing else. A small true implementation of a seam.

An object appears whole or not at all. ``StagingArea`` is the product's seam to it; apply reaches the same
objects through Hadoop's file system (``hadoop``).
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.layout import join
from airflow_provider_pgoutput.capture.staging.area import Entry, StagingArea
from tests.simulation.java import JavaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.world import World

URI = "store://staging"
#: Everything was written long ago, so retention may take all that nobody needs.
WRITTEN = datetime(2020, 1, 1, tzinfo=UTC)


class Area(StagingArea):
    """The staging area over a dictionary."""

    def __init__(self, world: World) -> None:
        self.staging_uri = URI
        self._world = world
        self.objects: dict[str, bytes] = {}

    def write_whole(self, relative: str, content: bytes) -> None:
        """See ``StagingArea``."""
        with self._world.write(f"put {relative}", "storage"):
            self.objects[relative] = content

    def read(self, relative: str) -> bytes:
        """See ``StagingArea``."""
        self._world.step(f"get {relative}")
        if relative not in self.objects:
            raise self._world.unavailable("storage")
        return self.objects[relative]

    def names(self, folder: str) -> list[str]:
        """See ``StagingArea``."""
        return [each.name for each in self.entries(folder)]

    def entries(self, folder: str, *, recursive: bool = False) -> list[Entry]:
        """See ``StagingArea``."""
        self._world.step(f"list {folder}")
        prefix = f"{folder}/"
        return [
            Entry(path, len(self.objects[path]), WRITTEN)
            for path in sorted(self.objects)
            if path.startswith(prefix) and (recursive or "/" not in path[len(prefix) :])
        ]

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See ``StagingArea``."""
        self._world.step("sizes")
        found = (self.objects.get(path) for path in paths)
        return [None if each is None else len(each) for each in found]

    def sync(self, *folders: str) -> None:
        """See ``StagingArea``: what was put is durable."""

    def delete_file(self, relative: str) -> None:
        """See ``StagingArea``."""
        self._world.step(f"delete {relative}")
        self.objects.pop(relative, None)

    def delete_folder(self, relative: str) -> None:
        """See ``StagingArea``."""
        self._world.step(f"delete {relative}/")
        for path in [each for each in self.objects if each.startswith(f"{relative}/")]:
            del self.objects[path]

    def delete_empty_folders(self, relative: str) -> None:
        """See ``StagingArea``."""

    def content(self, uri: str) -> bytes:
        """The object behind a URI.

        :raises JavaError: there is none.
        """
        relative = uri.removeprefix(f"{URI}/")
        assert join(URI, relative) == uri
        if relative not in self.objects:
            raise JavaError("java.io.FileNotFoundException")
        return self.objects[relative]


class _Stream:
    def __init__(self, content: bytes) -> None:
        self.content = content

    def close(self) -> None:
        pass


def hadoop(area: Area) -> dict[str, Any]:
    """Hadoop's classes that ``apply/rows/staged_files.py`` uses, by name. They change nothing: no step."""

    class FileSystem:
        def getFileStatus(self, path: str) -> Any:  # noqa: N802 - Java's name
            return SimpleNamespace(getLen=lambda: len(area.content(path)))

        def open(self, path: str) -> _Stream:
            return _Stream(area.content(path))

        def getConf(self) -> None:  # noqa: N802 - Java's name
            """The area needs none."""

    class Path(str):
        __slots__ = ()

        def getFileSystem(self, _configuration: Any) -> FileSystem:  # noqa: N802 - Java's name
            return FileSystem()

    return {
        "org.apache.hadoop.fs.Path": Path,
        "org.apache.commons.io.IOUtils.toString": lambda stream, _: stream.content.decode(),
        "org.apache.commons.codec.digest.DigestUtils.sha256Hex": lambda stream: hashlib.sha256(
            stream.content
        ).hexdigest(),
        "org.apache.parquet.ParquetReadOptions.builder": lambda: SimpleNamespace(
            build=lambda: None
        ),
        "org.apache.parquet.hadoop.util.HadoopInputFile.fromPath": lambda path, _: path,
        "org.apache.parquet.hadoop.ParquetFileReader.open": lambda path, _: _footer(
            area.content(path)
        ),
    }


def _footer(content: bytes) -> Any:
    """What ``apply/rows/staged_files.py`` asks a ``ParquetFileReader`` about a file of ``source.py``."""
    columns = SimpleNamespace(
        toString=lambda: "message rows {\n  optional t id;\n  optional t value;\n}"
    )
    return SimpleNamespace(
        getRecordCount=lambda: len(json.loads(content)),
        getFileMetaData=lambda: SimpleNamespace(getSchema=lambda: columns),
        close=lambda: None,
    )
