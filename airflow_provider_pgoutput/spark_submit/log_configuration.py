"""What Spark's own log says in a task's log, if the user has no configuration for it.

Without one, Spark tells a page about each of its steps, and the lines of our job are hard to find among them.

Source: https://spark.apache.org/docs/latest/configuration.html#configuring-logging and
https://logging.apache.org/log4j/2.x/manual/configuration.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

FILE_NAME = "log4j2.properties"
#: Errors of Spark, Iceberg and Hadoop, and warnings of what becomes of Spark's tasks: lost executors, failed
#: tasks. ``org`` has a level of its own, because ``apply/main.py`` sets the one of the root.
TEXT = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss,SSS} %p %c{1}: %m%n%ex
logger.org.name = org
logger.org.level = error
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = warn
"""
#: The user's wish for more, or for less.
LEVEL_KEY = "spark.log.level"
JAVA_OPTIONS_KEYS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_KINDS = ("properties", "yaml", "yml", "json", "jsn", "xml")
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


def has_own(
    conf_folder: Path | None,
    environment: Mapping[str, str],
    levels: Iterable[str | None],
    java_options: Iterable[str | None],
) -> bool:
    """Whether the user has said how Spark shall log. Then it logs so.

    :param conf_folder: Spark's, ``SPARK_CONF_DIR``; None: it was not found.
    :param environment: of spark-submit.
    :param levels: values of ``LEVEL_KEY``, wherever the user may have set it.
    :param java_options: values of ``JAVA_OPTIONS_KEYS``, in the same way.
    """
    if any(levels) or environment.get("LOG4J_CONFIGURATION_FILE"):
        return True
    options = [*java_options, *map(environment.get, _VARIABLES)]
    if any("log4j" in (each or "") for each in options):
        return True
    return conf_folder is not None and any(
        (conf_folder / f"log4j2.{kind}").is_file() for kind in _KINDS
    )


def java_option(file: Path) -> str:
    """What makes Java read a configuration. An address, because a path may have blanks."""
    return f"-Dlog4j2.configurationFile={file.absolute().as_uri()}"
