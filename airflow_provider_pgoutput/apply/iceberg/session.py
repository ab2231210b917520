"""A Spark session with settings of our own: a user's settings for other jobs must not change a batch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession


#: Settings of Iceberg's write-audit-publish. In a table with ``write.wap.enabled`` they would put our commits
#: outside of every branch, or on another branch.
#: https://iceberg.apache.org/docs/latest/spark-configuration/
_OF_AUDITS = ("spark.wap.id", "spark.wap.branch")


#: Key sets up to this size are sent to every executor. Then the target need not be shuffled.
_BROADCAST_BYTES = 64 << 20


class Sessions:
    """The session of a job, and sessions for its tables.

    A new session opens the catalog anew: it connects to the database, or logs in over REST. Spark never
    closes that catalog. So a table's session is used again for other tables, and there are only as many as
    tables that are prepared at the same time.

    :ivar spark: the session of the job, see ``isolated``.
    """

    def __init__(self, spark: SparkSession) -> None:
        self.spark = isolated(spark)
        self._idle: list[SparkSession] = []

    @contextlib.contextmanager
    def of_table(self, settings: Mapping[str, str]) -> Iterator[SparkSession]:
        """A session that nobody else uses meanwhile.

        A view of the table before may still be there. Each writer makes its own before it reads one.

        :param settings: the same keys each time, so that none is left over from another table.
        """
        try:
            session = self._idle.pop()
        except IndexError:
            session = cloned(self.spark)
        for key, value in settings.items():
            session.conf.set(key, value)
        try:
            yield session
        finally:
            self._idle.append(session)


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
