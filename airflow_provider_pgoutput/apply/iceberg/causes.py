"""Finds the cause of a failure of Spark, Iceberg or a store in the chain of Java's exceptions.

Only what is sure has an error here: a missing jar, a Java that is too old, a login that is refused, a bucket
that does not exist. A retry would end in the same way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import exceptions
from airflow_provider_pgoutput.apply.iceberg.spark_jars import missing_class, to_add, versions_here
from airflow_provider_pgoutput.batch.spark_packages import DRIVERS, store_of
from airflow_provider_pgoutput.errors import ConfigurationError, LakeDenied, LakeUnavailable

if TYPE_CHECKING:
    from airflow_provider_pgoutput.errors import PgoutputError

_MISSING = ("NoClassDefFoundError", "ClassNotFoundException")
#: The class is there, in a version that does not fit.
_OTHER_VERSION = ("NoSuchMethodError", "NoSuchFieldError", "AbstractMethodError")
#: Refusals of a catalog.
_DENIED = ("NotAuthorizedException", "ForbiddenException")
#: How file systems of Hadoop and Java itself say it. S3A is such a file system.
_DENIED_FILES = ("java.nio.file.AccessDeniedException", ".AccessControlException")
_NO_BUCKET = ("NoSuchBucketException", "org.apache.hadoop.fs.s3a.UnknownStoreException")
#: Where the exceptions of the two AWS SDKs are.
_AWS, _AWS_1 = "software.amazon.awssdk.services.", "com.amazonaws.services."
_AWS_ANSWER = "software.amazon.awssdk.awscore.exception.AwsServiceException"
_AWS_1_ANSWER = "com.amazonaws.AmazonServiceException"
_AWS_CLIENT = "software.amazon.awssdk.core.exception.SdkClientException"
#: Java's class files of version 45 are of Java 1.
_CLASS_FILES_OF_JAVA_0 = 44
_CLASS = re.compile(r"[A-Za-z_$][\w$]*(?:[./][\w$]+)+")
#: Iceberg makes some classes by name. If such a class lacks a jar, the text of another exception says so.
_LACKS = re.compile(r"(?:NoClassDefFoundError|ClassNotFoundException): ")
_CLASS_FILE = re.compile(r"(\S+) has been compiled.*?version (\d+)\..*?up to (\d+)\.", re.DOTALL)


def sure_cause(
    error: Exception, table: str | None = None, *, may_be_committed: bool = False
) -> PgoutputError | None:
    """The error for a cause that does not pass by itself; None: the chain names no such cause.

    :param error: one of ``JAVA_ERRORS``.
    :param table: the target, ``namespace.table``, if it is known.
    :param may_be_committed: a commit may have gone through. Then a refusal is no cause: it may be the answer
        to a second request, after the answer to the first was lost.
    """
    chain = [(str(each.getClass().getName()), each) for each in exceptions(error)]
    for find in (_jars,) if may_be_committed else (_jars, _refusal):
        for name, exception in chain:
            if named := find(name, exception, table):
                return named
    return None


def _jars(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    """A jar that is missing or does not fit."""
    message = _message(exception)
    # A class that could not be initialized is there.
    is_there = message.startswith("Could not initialize class")
    lacks = name == "java.lang.NoSuchMethodException" and _LACKS.search(message)
    if lacks or (name.endswith(_MISSING) and not is_there):
        return missing_class(_class_in(message), table)
    if name.endswith(_OTHER_VERSION):
        return _other_version(message, table)
    if name.endswith("UnsupportedClassVersionError"):
        return _old_java(message, table)
    if name == "org.apache.hadoop.fs.UnsupportedFileSystemException":
        return _no_file_system(message, table)
    if name == "java.sql.SQLException" and message.startswith("No suitable driver"):
        return _no_driver(message, table)
    return None


def _refusal(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    """A catalog or a store that does not let this login in, or has no such bucket."""
    if name.endswith(_NO_BUCKET):
        return _no_bucket(name, table)
    if name.startswith((_AWS, _AWS_1)):
        return _of_aws(name, exception, table)
    if name == _AWS_CLIENT:
        return _of_aws_client(_message(exception), table)
    if name.endswith(_DENIED_FILES):
        return _denied("The store", "the files", name, table)
    if name.endswith(_DENIED) or (
        _is_a(exception, "java.sql.SQLException") and _is_login(exception)
    ):
        return denied(name, table)
    return None


def _is_a(exception: Any, class_name: str) -> bool:
    """Whether an exception is of a class or of one below it."""
    java_class = exception.getClass()
    while java_class is not None:
        if str(java_class.getName()) == class_name:
            return True
        java_class = java_class.getSuperclass()
    return False


def denied(java_class: str, table: str | None) -> LakeDenied:
    """The error for a catalog that refuses."""
    return LakeDenied(
        f"The catalog does not take the login, or forbids what was asked: {java_class}.",
        table=table,
        advice="check the credential of the iceberg connection and the rights that it has at the catalog.",
    )


def _denied(what: str, of: str, java_class: str, table: str | None) -> LakeDenied:
    return LakeDenied(
        f"{what} does not take Spark's login, or forbids what was asked: {java_class}.",
        table=table,
        advice=f"check the keys that Spark has for {of} (s3.* of the iceberg connection for tables,"
        " spark.hadoop.fs.s3a.* for the staging area, or an identity of its own), and their rights.",
    )


def _of_aws(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    if not (_is_a(exception, _AWS_ANSWER) or _is_a(exception, _AWS_1_ANSWER)):
        return None  # No service answered.
    if name.startswith(_AWS):
        status, details = int(exception.statusCode()), exception.awsErrorDetails()
        code = "" if details is None else str(details.errorCode())
    else:
        status, code = int(exception.getStatusCode()), str(exception.getErrorCode())
    is_store = ".services.s3." in name
    # Glue refuses with HTTP 400.
    if status in (401, 403) or code == "AccessDeniedException":
        answer = f"{name}, HTTP {status}"
        return (
            _denied("The object store", "S3", answer, table) if is_store else denied(answer, table)
        )
    if is_store and (code == "NoSuchBucket" or status == 301):
        return _no_bucket(f"{name}, HTTP {status}", table)
    return None


def _of_aws_client(message: str, table: str | None) -> PgoutputError | None:
    if message.startswith("Unable to load credentials"):
        # The machine's identity may be slow to answer.
        return LakeUnavailable(
            "Spark found no login for AWS.",
            table=table,
            advice="if it lasts, give the iceberg connection s3.access-key-id and s3.secret-access-key, or"
            " Spark's machines an identity.",
        )
    if message.startswith("Unable to load region"):
        return ConfigurationError(
            "Spark does not know the AWS region.",
            table=table,
            advice="give the iceberg connection client.region, or Spark the variable AWS_REGION.",
        )
    return None


def _no_bucket(answer: str, table: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"There is no such bucket, or it is in another region: {answer}.",
        table=table,
        advice="correct the warehouse, the staging_uri or the region.",
    )


def _is_login(exception: Any) -> bool:
    """Whether a database refuses a login (SQLSTATE 28) or a right (42501)."""
    state = str(exception.getSQLState())
    return state.startswith("28") or state == "42501"


def _no_driver(message: str, table: str | None) -> ConfigurationError:
    found = re.search(r"jdbc:(\w+):", message)
    database = found[1] if found else "?"
    package = DRIVERS.get(database)
    return ConfigurationError(
        f"Spark has no JDBC driver for the catalog's database, {database}.",
        table=table,
        advice=to_add(package.names) if package else "add the driver's jar to Spark's jars.",
    )


def _no_file_system(message: str, table: str | None) -> ConfigurationError:
    """Iceberg asks Hadoop for the files of a store if it lacks the store's own client."""
    found = re.search(r'scheme "(\w+)"', message)
    scheme = found[1] if found else "?"
    package = store_of(scheme, versions_here())
    return ConfigurationError(
        f"Spark has no client for the store of {scheme}:// paths.",
        table=table,
        advice=to_add(package.names) if package else "add the jar of its client to Spark's jars.",
    )


def _old_java(message: str, table: str | None) -> ConfigurationError:
    what = "A jar needs a newer Java than the one on which Spark runs."
    if found := _CLASS_FILE.search(message):
        needed, here = (int(found[i]) - _CLASS_FILES_OF_JAVA_0 for i in (2, 3))
        what = f"{found[1].replace('/', '.')} needs Java {needed} and Spark runs on Java {here}."
    return ConfigurationError(
        what,
        table=table,
        advice="run Spark on Java 17 or 21: JAVA_HOME of spark-submit and, on a cluster, of its machines.",
    )


def _other_version(message: str, table: str | None) -> ConfigurationError:
    """Of ``'void a.B.c(int)'`` the class is ``a.B``."""
    found = re.search(r"([\w$]+(?:\.[\w$]+)+)\.[\w$<>]+\(", message)
    if found is None:
        return ConfigurationError(
            "Spark has a Java class in a version that does not fit.",
            table=table,
            advice="compare Spark's jars with docs/spark_jars.md.",
        )
    return ConfigurationError(
        f"Spark has the Java class {found[1]} in a version that does not fit.",
        table=table,
        advice=f"remove the jar that has it, if Spark has two; and {missing_class(found[1]).advice}",
    )


def _class_in(text: str) -> str:
    """The full name of the first class that a message of Java's linker names."""
    found = _CLASS.search(text, lacks.end() if (lacks := _LACKS.search(text)) else 0)
    return found[0].replace("/", ".") if found else "?"


def _message(exception: Any) -> str:
    return str(exception.getMessage() or "")
