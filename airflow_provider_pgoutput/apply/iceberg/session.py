"""A Spark session with settings of our own: a user's settings for other jobs must not change a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Settings of Iceberg's write-audit-publish. In a table with ``write.wap.enabled`` they would put our commits
#: outside of every branch, or on another branch.
#: https://iceberg.apache.org/docs/latest/spark-configuration/
_OF_AUDITS = ("spark.wap.id", "spark.wap.branch")


#: Key sets up to this size are sent to every executor. Then the target need not be shuffled.
_BROADCAST_BYTES = 64 << 20


def isolated(spark: SparkSession) -> SparkSession:
    """A session with the same catalogs. No other thread sees its settings and views."""
    session = cloned(spark)
    for key, value in {
        # Statements contain text of the source. Spark must not replace ``${...}`` in it.
        "spark.sql.variable.substitute": "false",
        # In PostgreSQL two names may differ in case only.
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.autoBroadcastJoinThreshold": str(_BROADCAST_BYTES),
        "spark.sql.iceberg.check-nullability": "false",
        # Old defaults that some clusters keep. Each of them silently changes values or drops them.
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.legacy.timeParserPolicy": "CORRECTED",
        "spark.sql.timestampType": "TIMESTAMP_LTZ",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.storeAssignmentPolicy": "ANSI",
        "spark.sql.parser.escapedStringLiterals": "false",
        # Three statements read the folded rows. Compressing them would cost more than the fold itself.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
    }.items():
        session.conf.set(key, value)
    for key in _OF_AUDITS:
        session.conf.unset(key)
    return session


def cloned(spark: SparkSession) -> SparkSession:
    """A session with the same settings. Later settings and views of one are not those of the other."""
    java: Any = spark._jsparkSession
    return type(spark)(spark.sparkContext, java.cloneSession())
