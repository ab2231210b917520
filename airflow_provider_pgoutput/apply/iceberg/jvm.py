"""The JVM below PySpark: its errors (which reach Python in two forms), classes, collections and session.

Nothing here knows of tables.
"""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NewType

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.version import __version__ as spark_version

from airflow_provider_pgoutput.apply.iceberg.spark_jars import missing_class
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

#: An ``org.apache.iceberg.expressions.Expression``: values in it are objects, and never text of a statement.
Expression = NewType("Expression", object)
#: What a call into the JVM raises. PySpark turns some exceptions into its own and leaves the others as they
#: are.
JAVA_ERRORS = (Py4JJavaError, CapturedException)
#: The class of sessions, which Spark 4 moved.
_SESSION = (
    f"org.apache.spark.sql.{'' if spark_version.startswith('3.') else 'classic.'}SparkSession"
)
#: Attribute of Py4J's view of the JVM: the classes that were asked for, by name.
_CLASSES = "_pgoutput_classes"
#: So many characters cross in one packet: the buffer of Java's side has 8 KiB.
_PIECE = 6_000
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


def exceptions(error: Exception) -> Iterator[Any]:
    """The Java exception behind a Python one and its causes, outermost first."""
    cause = java_exception(error)
    while cause is not None:
        yield cause
        cause = cause.getCause()


def java_classes(error: Exception) -> list[str]:
    """The class names of the Java exception behind a Python one and of its causes, outermost first."""
    found = [str(each.getClass().getName()) for each in exceptions(error)]
    return found or [java_class(error)]


def traces(error: Exception) -> Iterator[tuple[str, list[str]]]:
    """Class name and innermost stack frames of the Java exception behind a Python one, and of its causes."""
    for each in exceptions(error):
        places = [str(place) for place in list(each.getStackTrace())[:_INNERMOST]]
        yield str(each.getClass().getName()), places


def said(error: Exception) -> str:
    """The first line of the message of the innermost Java exception behind a Python one."""
    messages = [str(each.getMessage() or "") for each in exceptions(error)]
    text = messages[-1] if messages else ""
    return text.partition("\n")[0] or "no more is known."


def class_named(jvm: Any, name: str) -> Any:
    """The Java class of a full name.

    The name is resolved in one step. With ``jvm.org.apache...`` the JVM first looks through every jar for a
    class ``org``, in each package that PySpark imports.

    :raises ConfigurationError: Spark's jars do not have it.
    """
    # Py4J asks the JVM for every attribute again.
    known = vars(jvm).setdefault(_CLASSES, {})
    if name not in known:
        found = getattr(jvm, name)
        if isinstance(found, JavaPackage):
            # Py4J takes every name that is no class for a package.
            raise missing_class(name)
        known[name] = found
    return known[name]


def has_class(jvm: Any, name: str) -> bool:
    """Whether Spark's jars have the Java class of a full name."""
    try:
        class_named(jvm, name)
    except ConfigurationError:
        return False
    return True


def elements(collection: Any) -> Iterator[Any]:
    """The elements of a Java collection.

    Python's own loop ends with a Java exception, and PySpark asks the JVM many questions about each one.
    """
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def all_of(jvm: Any, closeable: Any) -> list[Any]:
    """The elements of a ``CloseableIterable``, which is closed."""
    lists = class_named(jvm, "org.apache.iceberg.relocated.com.google.common.collect.Lists")
    try:
        return list(elements(lists.newArrayList(closeable)))
    finally:
        closeable.close()


def entries(java_map: Any) -> Iterator[tuple[str, Any]]:
    """Keys and values of a Java map whose keys are strings."""
    for entry in elements(java_map.entrySet()):
        yield str(entry.getKey()), entry.getValue()


def java_list(jvm: Any, values: Iterable[object]) -> Any:
    """A Java list."""
    found = class_named(jvm, "java.util.ArrayList")()
    for value in values:
        found.add(value)
    return found


def texts(jvm: Any, java_map: Any) -> dict[str, str]:
    """A Java map of texts. Its text crosses to Python at once; an entry alone would take five calls."""
    mapper = class_named(jvm, "org.apache.iceberg.util.JsonUtil").mapper()
    found: dict[str, str] = json.loads(str(mapper.writeValueAsString(java_map)))
    return found


def many_texts(jvm: Any, java_map: Any) -> dict[str, str]:
    """As ``texts``, for a map of many. Its text crosses in pieces.

    Java sends a longer text in several packets, and waits 40 ms for the system's receipt of the first one.
    """
    mapper = class_named(jvm, "org.apache.iceberg.util.JsonUtil").mapper()
    writer = class_named(jvm, "java.io.StringWriter")()
    mapper.writeValue(writer, java_map)
    buffer = writer.getBuffer()
    length = int(buffer.length())
    ends = (*range(0, length, _PIECE), length)
    pieces = (str(buffer.substring(one, end)) for one, end in itertools.pairwise(ends))
    found: dict[str, str] = json.loads("".join(pieces))
    return found


def schema_as_json(jvm: Any, schema: Any) -> dict[str, Any]:
    """A schema of Java as Iceberg's JSON. It crosses to Python at once, like the properties.

    Source: https://iceberg.apache.org/spec/#appendix-c-json-serialization
    """
    parser = class_named(jvm, "org.apache.iceberg.SchemaParser")
    body: dict[str, Any] = json.loads(str(parser.toJson(schema)))
    return body


def constant(jvm: Any) -> Any:
    """A Java function that gives the same for every argument.

    Java's standard library has none, and a class of our own would need a jar.

    Source: https://docs.oracle.com/en/java/javase/17/docs/api/java.base/java/lang/invoke/package-summary.html
    """
    text = class_named(jvm, "java.lang.Class").forName("java.lang.String")
    one = class_named(jvm, "java.lang.invoke.MethodHandles").constant(text, "one")
    return _made_of(jvm, one, "java.util.function.Function")


def nothing(jvm: Any) -> Any:
    """A Java consumer that does nothing, made as ``constant``."""
    kinds = class_named(jvm, "java.lang.invoke.MethodType")
    no_value = class_named(jvm, "java.lang.Void").TYPE
    empty = class_named(jvm, "java.lang.invoke.MethodHandles").empty(kinds.methodType(no_value))
    return _made_of(jvm, empty, "java.util.function.Consumer")


def _made_of(jvm: Any, handle: Any, interface: str) -> Any:
    """An object whose single method calls a method handle without its argument."""
    named = class_named(jvm, "java.lang.Class").forName
    arguments = class_named(jvm, "java.util.ArrayList")()
    arguments.add(named("java.lang.Object"))
    handles = class_named(jvm, "java.lang.invoke.MethodHandles")
    proxies = class_named(jvm, "java.lang.invoke.MethodHandleProxies")
    return proxies.asInterfaceInstance(
        named(interface), handles.dropArguments(handle, 0, arguments)
    )


def activate(spark: SparkSession) -> None:
    """Make ``spark`` the session of this thread.

    Catalogs are looked up in the settings of the active session.
    """
    jvm: Any = spark._jvm
    class_named(jvm, _SESSION).setActiveSession(spark._jsparkSession)
