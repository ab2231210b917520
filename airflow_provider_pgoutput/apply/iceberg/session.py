"""A Spark session whose settings are ours: what a user configured for other jobs does not change a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Of Iceberg's write-audit-publish: with them a table of ``write.wap.enabled`` has commits staged outside of
#: every branch, or written to another one. https://iceberg.apache.org/docs/latest/spark-configuration/
_OF_AUDITS = ("spark.wap.id", "spark.wap.branch")


#: Keys up to this size are sent to every executor, so that the target need not be shuffled.
_BROADCAST_BYTES = 64 << 20


def isolated(spark: SparkSession) -> SparkSession:
    """A session with the same catalogs whose settings and views no other thread sees."""
    java: Any = spark._jsparkSession
    session = type(spark)(spark.sparkContext, java.cloneSession())
    for key, value in {
        # Text of the source stands in statements: it must not read Spark's variables.
        "spark.sql.variable.substitute": "false",
        # PostgreSQL's names that differ only in case are different names.
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.autoBroadcastJoinThreshold": str(_BROADCAST_BYTES),
        "spark.sql.iceberg.check-nullability": "false",
        # Old defaults that some clusters keep: each gives other values, or none, without a word.
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.legacy.timeParserPolicy": "CORRECTED",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.storeAssignmentPolicy": "ANSI",
        "spark.sql.parser.escapedStringLiterals": "false",
        # Folded rows are kept for the three statements that read them: packing them costs more than folding.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
    }.items():
        session.conf.set(key, value)
    for key in _OF_AUDITS:
        session.conf.unset(key)
    return session
