"""Finds out whether a failure is the damage of one table: a file of it is missing or damaged.

If a file is missing, Java's message names it. If its bytes are damaged, most messages name no file. Either
way a message proves nothing: the file may be a staged one, one that this run wrote itself, one of the
pipeline's own tables, or the store may be out. So the driver looks for itself. The damage is the table's only
if main's head needs the file, the file and the newest metadata file lie in the table's folder, and one of
these holds:

* the file is missing while the store shows the newest metadata file;
* the file has another size than Iceberg noted;
* it does not end as a Parquet file.

``IcebergTable.load`` finds a missing metadata file. The files of an encrypted table are not looked at. What
is stored may have another size than Iceberg noted. In all other cases the failure stays what it was.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.jvm import (
    JAVA_ERRORS,
    class_named,
    elements,
    exceptions,
    java_classes,
    said,
)
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.batch.lake_causes import ENCRYPTION_KEY, lies_in
from airflow_provider_pgoutput.errors import PgoutputError, TableDamaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg.sql import TableName

log = logging.getLogger(__name__)

#: What stands between the folders of a path, and around paths in a message.
_BETWEEN = re.compile(r"[/\\\s'\"]+")
#: The end of a file's name. ``org.apache.parquet.io`` has none. A pattern of whole names would take hours for
#: a long value without gaps, and a message may quote one.
_END = re.compile(r"\.(?:parquet|orc|avro|puffin)(?!\w|\.\w)")
_PARQUET = ".parquet"
#: These may come from damaged bytes. Parquet throws a plain ``RuntimeException`` for a file without a footer.
_OTHER_BYTES = ("java.lang.RuntimeException", "java.io.EOFException")
_OTHER_BYTES_OF_LIBRARIES = (
    ".TProtocolException",
    ".ParquetDecodingException",
    ".ChecksumException",
)
#: Parts of what Parquet says of a file that does not end as a Parquet file.
_NO_FOOTER = ("is not a Parquet file", "footer is too large", "corrupted file")
#: If no message names a file and the table has more files than this, none is looked at.
_MOST_FILES = 1000


class _File(NamedTuple):
    """A file that main's head needs."""

    path: str
    #: None: Iceberg did not note it.
    size_bytes: int | None


def damage(spark: SparkSession, name: TableName, error: Exception) -> TableDamaged | None:
    """The error for a table with a file that is missing or damaged; None: the failure is something else.

    :param error: one of ``JAVA_ERRORS``.
    """
    named = _files_named(error)
    if not named and not _may_be_damaged_bytes(error):
        return None
    try:
        table = IcebergTable.load(spark, name)
        if table is None or ENCRYPTION_KEY in table.properties:
            return None
        head = table.head
        for file in _suspects(spark, table, named):
            if what := _damage_of(spark, table, file):
                # Somebody may have compacted the table meanwhile, and removed a file that it needs no more.
                now = IcebergTable.load(spark, name)
                is_same = now is not None and now.head == head
                return TableDamaged.of_file(file.path, what, name.target) if is_same else None
    except (PgoutputError, *JAVA_ERRORS) as why:
        # The failure keeps its own name.
        found = why if isinstance(why, PgoutputError) else java_classes(why)[-1]
        log.warning("%s: whether a file of it is damaged is not known: %s", name.target, found)
    return None


def _files_named(error: Exception) -> frozenset[str]:
    """The names of files in the messages of a Java exception and its causes."""
    messages = (str(each.getMessage() or "") for each in exceptions(error))
    words = (word for message in messages for word in _BETWEEN.split(message))
    ends = ((word, [*_END.finditer(word)]) for word in words)
    return frozenset(word[: found[-1].end()] for word, found in ends if found)


def _may_be_damaged_bytes(error: Exception) -> bool:
    """Whether a Java exception may come from damaged bytes."""
    innermost = java_classes(error)[-1]
    return innermost in _OTHER_BYTES or innermost.endswith(_OTHER_BYTES_OF_LIBRARIES)


def _suspects(spark: SparkSession, table: IcebergTable, named: frozenset[str]) -> Iterator[_File]:
    """The files of these names that main's head needs: metadata first, because it leads to the others.

    :param named: if it is empty, all data files and delete files are suspects.
    """
    snapshot = table.java.currentSnapshot()
    if snapshot is None:
        return
    manifest_list = str(snapshot.manifestListLocation())
    if _base_name(manifest_list) in named:
        yield _File(manifest_list, None)
    for manifest in elements(snapshot.allManifests(table.java.io())):
        path = str(manifest.path())
        if _base_name(path) in named:
            yield _File(path, int(manifest.length()))
    if not named and _number_of_files(snapshot) > _MOST_FILES:
        log.warning("%s has too many files to look for a damaged one.", table.name.target)
        return
    # https://iceberg.apache.org/docs/latest/spark-queries/#files
    files = spark.table(f"{table.name.sql}.files").select("file_path", "file_size_in_bytes")
    if named:
        files = files.where(F.substring_index(F.col("file_path"), "/", -1).isin(*named))
    for row in files.distinct().limit(_MOST_FILES).collect():
        yield _File(row["file_path"], row["file_size_in_bytes"])


def _number_of_files(snapshot: Any) -> int:
    """How many data files and delete files an ``org.apache.iceberg.Snapshot`` has, as its summary says.

    Source: https://iceberg.apache.org/spec/#optional-snapshot-summary-fields
    """
    summary = snapshot.summary()
    return sum(int(summary.get(f"total-{kind}-files") or 0) for kind in ("data", "delete"))


def _damage_of(spark: SparkSession, table: IcebergTable, file: _File) -> str | None:
    """What is wrong with a file, in words; None: it is whole, or nobody can say."""
    location = str(table.java.location())
    metadata = str(table.java.operations().current().metadataFileLocation())
    if not all(lies_in(location, each) for each in (file.path, metadata)):
        return None
    io = table.java.io()
    found = io.newInputFile(file.path)
    if not found.exists():
        return "is missing" if io.newInputFile(metadata).exists() else None
    size_bytes = int(found.getLength())
    if file.size_bytes is not None and size_bytes != file.size_bytes:
        return f"has {size_bytes} bytes in place of {file.size_bytes}"
    if file.path.endswith(_PARQUET) and not _has_footer(spark, found):
        return "is no Parquet file any more"
    return None


def _has_footer(spark: SparkSession, file: Any) -> bool:
    """Whether a Parquet file ends as one.

    :param file: an ``org.apache.iceberg.io.InputFile``.
    """
    jvm: Any = spark._jvm
    metrics = class_named(jvm, "org.apache.iceberg.MetricsConfig").getDefault()
    try:
        class_named(jvm, "org.apache.iceberg.parquet.ParquetUtil").fileMetrics(file, metrics)
    except JAVA_ERRORS as error:
        is_no_footer = any(each in said(error) for each in _NO_FOOTER)
        if is_no_footer or java_classes(error)[-1].endswith(_OTHER_BYTES_OF_LIBRARIES):
            return False
        raise
    return True


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]
