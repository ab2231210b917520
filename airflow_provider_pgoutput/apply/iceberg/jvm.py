"""The JVM below PySpark: its errors (which reach Python in two forms), classes, collections and session.

Nothing here knows of tables.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: What a call into the JVM raises. PySpark turns some exceptions into its own and leaves the others as they
#: are.
JAVA_ERRORS = (Py4JJavaError, CapturedException)
#: How many lines of a stack trace go into the log for each exception.
_INNERMOST = 12


def java_class(error: Exception) -> str:
    """The class name of the Java exception behind a Python one."""
    if isinstance(error, CapturedException):
        origin = getattr(error, "_origin", None)
        return type(error).__name__ if origin is None else str(origin.getClass().getName())
    assert isinstance(error, Py4JJavaError)
    return str(error.java_exception.getClass().getName())


def java_exception(error: Exception) -> Any:
    """The Java exception behind a Python one; None: PySpark kept only its text."""
    if isinstance(error, CapturedException):
        return getattr(error, "_origin", None)
    assert isinstance(error, Py4JJavaError)
    return error.java_exception


def java_classes(error: Exception) -> list[str]:
    """The class names of the Java exception behind a Python one and of its causes, outermost first."""
    found, cause = [java_class(error)], java_exception(error)
    while cause is not None and (cause := cause.getCause()) is not None:
        found.append(str(cause.getClass().getName()))
    return found


def traces(error: Exception) -> Iterator[tuple[str, list[str]]]:
    """Class name and innermost stack frames of the Java exception behind a Python one, and of its causes."""
    cause = java_exception(error)
    while cause is not None:
        places = [str(each) for each in list(cause.getStackTrace())[:_INNERMOST]]
        yield str(cause.getClass().getName()), places
        cause = cause.getCause()


def said(error: Exception) -> str:
    """The first line of the message of the innermost Java exception behind a Python one."""
    cause = java_exception(error)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    text = "" if cause is None else str(cause.getMessage() or "")
    return text.partition("\n")[0] or "no more is known."


def class_named(jvm: Any, name: str) -> Any:
    """The Java class of a full name.

    The name is resolved in one step. With ``jvm.org.apache...`` the JVM first looks through every jar for a
    class ``org``, in each package that PySpark imports.
    """
    return getattr(jvm, name)


def elements(collection: Any) -> Iterator[Any]:
    """The elements of a Java collection.

    Python's own loop ends with a Java exception, and PySpark asks the JVM many questions about each one.
    """
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def entries(java_map: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values of a Java map whose keys are strings."""
    for entry in elements(java_map.entrySet()):
        yield str(entry.getKey()), entry.getValue()


def texts(jvm: Any, java_map: Any) -> dict[str, str]:
    """A Java map of texts. Its text crosses to Python at once; an entry alone would take five calls."""
    mapper = class_named(jvm, "org.apache.iceberg.util.JsonUtil").mapper()
    found: dict[str, str] = json.loads(str(mapper.writeValueAsString(java_map)))
    return found


def activate(spark: SparkSession) -> None:
    """Make ``spark`` the session of this thread.

    Catalogs are looked up in the settings of the active session.
    """
    jvm: Any = spark._jvm
    sessions = class_named(jvm, "org.apache.spark.sql.classic.SparkSession")
    sessions.setActiveSession(spark._jsparkSession)
