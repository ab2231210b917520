"""Where the files of tables lie: which of them share a folder, and whether one is there.

What is not here: what is done with the files (``maintain.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_pgoutput.apply.java import JAVA_ERRORS, class_named, java_class
from airflow_provider_pgoutput.errors import LakeUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.apply.iceberg import IcebergTable


def are_shared(table: IcebergTable, present: Sequence[IcebergTable]) -> bool:
    """Whether another table of the namespace lies in, above or below the folder of this one."""
    own = _folder(table)
    others = (_folder(each) for each in present if each is not table)
    return any(each.startswith(own) or own.startswith(each) for each in others)


def location(table: IcebergTable) -> str:
    """The URI of a table's folder."""
    return str(table.java.location()).rstrip("/")


def exists(spark: SparkSession, table: IcebergTable, folder: str) -> bool:
    """Whether a folder of a Hadoop file system is there: a table without rows may have none for them.

    :raises LakeUnavailable: the file system did not answer.
    """
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    try:
        path = class_named(jvm, "org.apache.hadoop.fs.Path")(folder)
        return bool(path.getFileSystem(context._jsc.hadoopConfiguration()).exists(path))
    except JAVA_ERRORS as error:
        raise LakeUnavailable(
            f"The folder of its files did not answer: {java_class(error)}.", table=table.name.target
        ) from error


def _folder(table: IcebergTable) -> str:
    """The location without its scheme: ``file:/x``, ``file:///x`` and ``/x`` are one, so are s3 and s3a."""
    parts = urlsplit(location(table))
    return f"{parts.netloc}{parts.path}/"
