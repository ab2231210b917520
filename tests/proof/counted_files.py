"""Files of a lake that are counted when they are opened to be read."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath
from typing import ClassVar

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO


class CountedFiles(PyArrowFileIO):
    """For the property ``py-io-impl`` of a catalog."""

    #: By suffix: ``.json`` is of a table, ``.avro`` of a snapshot, and ``.parquet`` has rows.
    opened: ClassVar[Counter[str]] = Counter()

    def new_input(self, location: str) -> PyArrowFile:
        """Count the file."""
        self.opened[PurePosixPath(location).suffix] += 1
        return super().new_input(location)
