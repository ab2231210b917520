"""Reads the files of a job and a batch. Refuses a file that is missing, damaged or of another pipeline.

Spark reads NULL for a column that a file lacks. So every file is hashed and its footer is compared with the
manifest before Spark reads a row. ``segments.py`` and ``fold.py`` read the rows.
"""

from __future__ import annotations

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.causes import sure_cause
from airflow_provider_pgoutput.apply.iceberg.jvm import JAVA_ERRORS, class_named, java_class
from airflow_provider_pgoutput.apply.iceberg.sql import quote
from airflow_provider_pgoutput.apply.schema.spark_types import spark_type
from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.jobs import AnyJob, WriteJob, job_from_json
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.crash_points import reach
from airflow_provider_pgoutput.errors import (
    BatchRefused,
    ConfigurationError,
    LakeUnavailable,
    PgoutputError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_pgoutput.batch.table_version import StagedFile

log = logging.getLogger(__name__)

#: More than any of our manifests has: a thousand tables of a hundred columns need about 20 MB.
_MAX_TEXT_BYTES = 256 << 20
#: Files that are hashed at the same time, if ``WriteJob.parallel_tables`` is not less.
_MOST_VERIFIERS = 4
#: Batches of more tables have no line in the log for each of them.
MOST_LOGGED = 50
#: A column in the text of a Parquet schema. Parts of a column are indented more.
_COLUMN = re.compile(r"^  \w+ \S+ (\w+)", re.MULTILINE)
_GLOB = re.compile(r"([\\{}\[\]*?])")


@dataclass(slots=True)
class TablesWithEntries:
    """OID and target of the tables that have entries in the quarantine. They are read when first needed."""

    _tables: frozenset[tuple[int, str]] | None = None

    def read_once(
        self, read: Callable[[], frozenset[tuple[int, str]]]
    ) -> frozenset[tuple[int, str]]:
        """The tables.

        :param read: reads them; it is called the first time only.
        """
        if self._tables is None:
            self._tables = read()
        return self._tables

    def add(self, relation_oid: int, target: str) -> None:
        """Note that a table has entries now."""
        assert self._tables is not None, "whoever writes entries has asked for them first"
        self._tables |= {(relation_oid, target)}


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch whose manifest and files were verified."""

    job: WriteJob
    manifest: Manifest
    quarantined: TablesWithEntries = field(default_factory=TablesWithEntries, compare=False)

    @property
    def logs_each_table(self) -> bool:
        """Whether the log has lines about each table. Thousands of lines would hide all others."""
        return len(self.manifest.tables) <= MOST_LOGGED

    @property
    def level_of_tables(self) -> int:
        """The level of an ordinary line in the log about one table of the batch."""
        return logging.INFO if self.logs_each_table else logging.DEBUG

    def path(self, file: StagedFile) -> str:
        """The URI of a staged file."""
        return layout.join(self.job.staging_uri, file.path)


def read_job(spark: SparkSession, job_uri: str) -> AnyJob:
    """Read the file of a job.

    :raises ConfigurationError: it is missing or is something else.
    """
    text = read_text(spark, job_uri)
    if text is None:
        raise ConfigurationError(
            f"There is no file of a job at {job_uri} that Spark's user may read.",
            advice="let Spark run as the worker's user, or stage on an object store. The task that starts"
            " Spark writes it.",
        )
    return job_from_json(text)


def open_batch(spark: SparkSession, job: WriteJob, manifest_uri: str) -> StagedBatch:
    """Read the manifest and verify every file that it names.

    :raises BatchRefused: something is missing, damaged, too new, or of another pipeline.
    :raises LakeUnavailable: the file system did not answer, or the manifest was replaced meanwhile.
    """
    text = read_text(spark, manifest_uri)
    if text is None:
        raise BatchRefused(
            f"There is no manifest at {manifest_uri} that Spark's user may read.",
            advice="let Spark run as the worker's user, or stage on an object store; if the file is gone,"
            " stage the batch again, which works while the slot is not past its start.",
        )
    manifest = Manifest.from_json(text)
    if manifest_uri != manifest.uri(job.staging_uri):
        raise BatchRefused(
            "The name of the manifest's file does not fit its content.",
            slot=manifest.slot_name,
            advice="do not apply this batch; find out who moved or wrote the manifest.",
        )
    batch = StagedBatch(job, manifest)
    reach("erase.manifest_was_read")
    try:
        _verify_files(spark, batch)
    except BatchRefused as error:
        if read_text(spark, manifest_uri) == text:
            raise
        # An erasure replaces a manifest, and then deletes the files that the old one names.
        raise LakeUnavailable(
            "The manifest was replaced while the files of its batch were read.",
            slot=manifest.slot_name,
            lsn=manifest.end_lsn,
            advice="nothing; the next attempt reads it again.",
        ) from error
    return batch


def _verify_files(spark: SparkSession, batch: StagedBatch) -> None:
    tables = batch.manifest.tables
    files = [each for table in tables for version in table.versions for each in version.files]
    files += batch.manifest.rejected_files
    files += batch.manifest.message_files
    # Made once, because making them is most of the work of reading a footer.
    options = class_named(_jvm(spark), "org.apache.parquet.ParquetReadOptions").builder().build()
    workers = min(_MOST_VERIFIERS, batch.job.parallel_tables)
    if workers <= 1:
        for file in files:
            _verify_file(spark, batch, file, options)
    else:
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="verify") as pool:
            # list() raises the first refusal.
            list(pool.map(lambda file: _verify_file(spark, batch, file, options), files))
    size_bytes = sum(file.size_bytes for file in files)
    log.info("Verified %d staged files of %d bytes.", len(files), size_bytes)


def _verify_file(spark: SparkSession, batch: StagedBatch, file: StagedFile, options: Any) -> None:
    path, file_system = _open(spark, batch.path(file))

    def refuse(what: str) -> BatchRefused:
        return BatchRefused(
            f"The staged file {file.path} {what}.",
            slot=batch.manifest.slot_name,
            advice="bring the file back, or stage the batch again, which works while the slot is not past"
            " its start.",
        )

    try:
        status = file_system.getFileStatus(path)
        if status.getLen() != file.size_bytes:
            raise refuse(f"has {status.getLen()} bytes in place of {file.size_bytes}")
        stream = file_system.open(path)
        try:
            # As a stream: a file may be larger than the driver's memory.
            digests = class_named(_jvm(spark), "org.apache.commons.codec.digest.DigestUtils")
            found = digests.sha256Hex(stream)
        finally:
            stream.close()
    except JAVA_ERRORS as error:
        if java_class(error).endswith("FileNotFoundException"):
            raise refuse("is missing") from error
        raise _unavailable(error) from error
    if found != file.sha256:
        raise refuse("is damaged: its SHA-256 is not the one in the manifest")
    footer = _footer(spark, path, file_system, options)
    if footer is None:
        raise refuse("is no Parquet file")
    rows, columns = footer
    if rows != file.rows:
        raise refuse(f"has {rows} rows in place of {file.rows}")
    if columns != file.columns:
        raise refuse("has other columns than the manifest says")


def _footer(
    spark: SparkSession, path: Any, file_system: Any, options: Any
) -> tuple[int, tuple[str, ...]] | None:
    """Number of rows and names of the columns of a Parquet file; None: it is not a Parquet file."""
    jvm = _jvm(spark)
    inputs = class_named(jvm, "org.apache.parquet.hadoop.util.HadoopInputFile")
    readers = class_named(jvm, "org.apache.parquet.hadoop.ParquetFileReader")
    try:
        reader = readers.open(inputs.fromPath(path, file_system.getConf()), options)
        try:
            schema = str(reader.getFileMetaData().getSchema().toString())
            return int(reader.getRecordCount()), tuple(_COLUMN.findall(schema))
        finally:
            reader.close()
    except JAVA_ERRORS as error:
        if java_class(error) == "java.lang.RuntimeException":
            return None
        raise _unavailable(error) from error


def read_files(
    spark: SparkSession,
    batch: StagedBatch,
    files: Sequence[StagedFile],
    schema: Sequence[tuple[str, str]],
) -> DataFrame:
    """Read staged files with an explicit schema: name and lake type of each column.

    A column that a file lacks is read as NULL. A file that cannot be read to its end is always an error.
    (Spark has settings to leave out the rest silently.)
    """
    ddl = ", ".join(f"{quote(name)} {spark_type(lake_type)}" for name, lake_type in schema)
    # Spark takes a path as a pattern, and the path of the staging area may have any character.
    paths = [_GLOB.sub(r"\\\1", batch.path(file)) for file in files]
    reader = spark.read.schema(ddl)
    for setting in ("ignoreCorruptFiles", "ignoreMissingFiles"):
        reader = reader.option(setting, False)
    return reader.parquet(*paths)


def iceberg_input(spark: SparkSession, batch: StagedBatch, file: StagedFile) -> Any:
    """A staged file as Iceberg's readers take it."""
    path, file_system = _open(spark, batch.path(file))
    inputs = class_named(_jvm(spark), "org.apache.iceberg.hadoop.HadoopInputFile")
    return inputs.fromPath(path, file_system, file_system.getConf())


def write_text(spark: SparkSession, uri: str, text: str) -> None:
    """Write a small text file. A file that is there is replaced.

    :raises ConfigurationError: Spark has no file system for the URI.
    :raises LakeUnavailable: the file system did not take the file.
    """
    path, file_system = _open(spark, uri)
    try:
        stream = file_system.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
    except JAVA_ERRORS as error:
        raise _unavailable(error) from error


def read_text(spark: SparkSession, uri: str) -> str | None:
    """Read a small text file; None: there is none.

    :raises BatchRefused: it is not small.
    :raises LakeUnavailable: the file system did not answer.
    """
    path, file_system = _open(spark, uri)
    try:
        length = file_system.getFileStatus(path).getLen()
        if length > _MAX_TEXT_BYTES:
            raise BatchRefused(f"The file at {uri} is too large for a job or a manifest.")
        stream = file_system.open(path)
        try:
            io = class_named(_jvm(spark), "org.apache.commons.io.IOUtils")
            return str(io.toString(stream, "UTF-8"))
        finally:
            stream.close()
    except JAVA_ERRORS as error:
        if java_class(error).endswith("FileNotFoundException"):
            return None
        raise _unavailable(error) from error


def _open(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """The Hadoop path and file system of a URI."""
    jvm = _jvm(spark)
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    try:
        if uri.startswith("s3://"):
            _know_s3(jvm, configuration)
        path = class_named(jvm, "org.apache.hadoop.fs.Path")(uri)
        return path, path.getFileSystem(configuration)
    except JAVA_ERRORS as error:
        is_unknown = java_class(error).endswith("UnsupportedFileSystemException")
        raise (None if is_unknown else sure_cause(error)) or ConfigurationError(
            f"Spark cannot open {uri.partition(':')[0]} paths: {java_class(error)}.",
            advice="give Spark the file system's jars and settings (docs/how-to/catalogs_and_stores.md,"
            " Staging on an object store).",
        ) from error


def _know_s3(jvm: Any, configuration: Any) -> None:
    """Let S3A open ``s3://`` paths if nothing else does: Arrow has no ``s3a://``, Hadoop has no ``s3://``.

    Source: https://hadoop.apache.org/docs/stable/hadoop-aws/tools/hadoop-aws/index.html
    """
    try:
        class_named(jvm, "org.apache.hadoop.fs.FileSystem").getFileSystemClass("s3", configuration)
    except JAVA_ERRORS as error:
        if not java_class(error).endswith("UnsupportedFileSystemException"):
            raise
        configuration.set("fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem")


def _unavailable(error: Exception) -> PgoutputError:
    return sure_cause(error) or LakeUnavailable(
        f"The staging area did not answer: {java_class(error)}."
    )


def _jvm(spark: SparkSession) -> Any:
    return spark._jvm
