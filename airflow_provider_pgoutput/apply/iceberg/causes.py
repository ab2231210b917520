"""Looks through a chain of Java exceptions for the cause of a failure in Spark, Iceberg or a store.

``batch/lake_causes.py`` has the table of what servers say. The worker uses the same.

A cause is named only if it is certain: a missing jar, a Java that is too old, a refusal, a missing bucket. A
retry would not help. There is one exception: missing AWS credentials may come a moment later.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.jvm import exceptions
from airflow_provider_pgoutput.apply.iceberg.spark_jars import missing_class, to_add, versions_here
from airflow_provider_pgoutput.batch import lake_causes
from airflow_provider_pgoutput.batch.lake_causes import Cause
from airflow_provider_pgoutput.batch.spark_packages import DRIVERS, store_of
from airflow_provider_pgoutput.errors import ConfigurationError, LakeDenied, LakeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pgoutput.errors import PgoutputError

    _Finder = Callable[[str, Any, str | None], PgoutputError | None]

_MISSING = ("NoClassDefFoundError", "ClassNotFoundException")
#: The class is there, in a version that does not fit.
_OTHER_VERSION = ("NoSuchMethodError", "NoSuchFieldError", "AbstractMethodError")
#: Refusals of a catalog.
_DENIED = ("NotAuthorizedException", "ForbiddenException")
#: Java and Hadoop's file systems, S3A among them, throw these if access is denied.
_DENIED_FILES = ("java.nio.file.AccessDeniedException", ".AccessControlException")
_NO_BUCKET = ("NoSuchBucketException", "org.apache.hadoop.fs.s3a.UnknownStoreException")
#: Packages of AWS SDK 2 and AWS SDK 1.
_AWS, _AWS_1 = "software.amazon.awssdk.services.", "com.amazonaws.services."
_AWS_ANSWER = "software.amazon.awssdk.awscore.exception.AwsServiceException"
_AWS_1_ANSWER = "com.amazonaws.AmazonServiceException"
_AZURE_ANSWER = "com.azure.core.exception.HttpResponseException"
#: Azure's code stands in a header: only some of its exceptions have it.
_AZURE_CODE = "x-ms-error-code"
_GOOGLE_ANSWER = "com.google.cloud.BaseServiceException"
_SQLITE = "org.sqlite."
_AWS_CLIENT = "software.amazon.awssdk.core.exception.SdkClientException"
#: The version of a class file, minus this, is that of Java: 61 is Java 17.
_CLASS_FILES_OF_JAVA_0 = 44
_CLASS = re.compile(r"[A-Za-z_$][\w$]*(?:[./][\w$]+)+")
#: Iceberg makes some classes by name. If a jar is missing, the text of a NoSuchMethodException has this.
_LACKS = re.compile(r"(?:NoClassDefFoundError|ClassNotFoundException): ")
_CLASS_FILE = re.compile(r"(\S+) has been compiled.*?version (\d+)\..*?up to (\d+)\.", re.DOTALL)


def sure_cause(
    error: Exception, table: str | None = None, *, may_be_committed: bool = False
) -> PgoutputError | None:
    """The error for a cause that a retry does not mend; None: the chain shows none.

    :param error: one of ``JAVA_ERRORS``.
    :param table: the target, ``namespace.table``, if it is known.
    :param may_be_committed: a commit may have gone through. Then refusals of a login or a request do not
        count. Example: the commit succeeds, its answer is lost, the client asks again, and the second request
        gets 403. A statement that a database forbids was no commit.
    """
    chain = [(str(each.getClass().getName()), each) for each in exceptions(error)]
    for find in (_jars, _forbidden_statement) if may_be_committed else (_jars, _refusal):
        for name, exception in chain:
            if named := find(name, exception, table):
                return named
    return None


def _jars(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    """A missing jar, a jar of the wrong version, or a Java that is too old."""
    message = _message(exception)
    # Then the jar is there, and the class failed to start.
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
    """A refusal by the catalog or a store, a missing bucket, or no credentials or region of AWS."""
    if name.endswith(_NO_BUCKET):
        return _no_bucket(name, table)
    if of_cloud := _of_cloud(name, exception):
        return of_cloud(name, exception, table)
    if name.endswith(_DENIED_FILES):
        return _denied("The store", "the files", name, table)
    if name.endswith(_DENIED):
        return denied(name, table)
    return _of_database(name, exception, table)


def _of_cloud(name: str, exception: Any) -> _Finder | None:
    """What reads the exceptions of the clients of AWS, Azure or Google; None: it is of none of them."""
    if name.startswith((_AWS, _AWS_1, _AWS_CLIENT)):
        return _of_aws
    if _is_a(exception, _AZURE_ANSWER):
        return _of_azure
    return _of_google if _is_a(exception, _GOOGLE_ANSWER) else None


def _is_a(exception: Any, class_name: str) -> bool:
    """Whether an exception is of a class or of a subclass."""
    java_class = exception.getClass()
    while java_class is not None:
        if str(java_class.getName()) == class_name:
            return True
        java_class = java_class.getSuperclass()
    return False


def denied(java_class: str, table: str | None) -> LakeDenied:
    """The error for a catalog that refuses."""
    return LakeDenied(
        f"The catalog refused the credentials or the request. Java says {java_class}.",
        table=table,
        advice="check the credential in the iceberg connection, and its rights in the catalog.",
    )


def _denied(what: str, of: str, java_class: str, table: str | None) -> LakeDenied:
    return LakeDenied(
        f"{what} refused Spark's credentials or the request. Java says {java_class}.",
        table=table,
        advice=f"check the keys that Spark has for {of}, and their rights. For tables these are s3.*, adls.*"
        " or gcs.* in the iceberg connection, for the staging area spark.hadoop.fs.*. Without keys it is the"
        " identity of Spark's machines.",
    )


def _of_aws(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    """What a service of AWS answered, or what its client lacks: a sure cause, or something else (None)."""
    if name == _AWS_CLIENT:
        return _of_aws_client(_message(exception), table)
    if not (_is_a(exception, _AWS_ANSWER) or _is_a(exception, _AWS_1_ANSWER)):
        return None  # It is no answer, so it has no status.
    if name.startswith(_AWS):
        status, details = int(exception.statusCode()), exception.awsErrorDetails()
        code = "" if details is None else str(details.errorCode())
    else:
        status, code = int(exception.getStatusCode()), str(exception.getErrorCode())
    answer = f"{name}, HTTP {status}"
    match lake_causes.of_aws(code, status):
        case Cause.DENIED if ".services.s3." in name:
            return _denied("The object store", "S3", answer, table)
        case Cause.DENIED:
            return denied(answer, table)
        case Cause.NO_BUCKET | Cause.OTHER_REGION:
            return _no_bucket(answer, table)
    return None


def _of_azure(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    """What Azure answered: a sure cause, or something else (None)."""
    response = exception.getResponse()
    if response is None:
        return None  # The client failed before it asked.
    status = int(response.getStatusCode())
    code = str(response.getHeaderValue(_AZURE_CODE) or "")
    cause = lake_causes.of_azure(code, status, _message(exception))
    return _of_store(cause, "Azure", f"{name}, HTTP {status}", table)


def _of_google(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    """What Google answered: a sure cause, or something else (None)."""
    status = int(exception.getCode())
    # Of an upload the reason stands in the message only.
    cause = lake_causes.of_google(status, f"{exception.getReason()} {_message(exception)}")
    return _of_store(cause, "Google Cloud Storage", f"{name}, HTTP {status}", table)


def _of_store(cause: Cause | None, of: str, answer: str, table: str | None) -> PgoutputError | None:
    if cause is Cause.DENIED:
        return _denied("The object store", of, answer, table)
    return _no_bucket(answer, table) if cause is Cause.NO_BUCKET else None


def _of_aws_client(message: str, table: str | None) -> PgoutputError | None:
    """What the client of AWS lacks: credentials, a region, or something else (None)."""
    if message.startswith("Unable to load credentials"):
        # The service that hands out a machine's credentials may be slow.
        return LakeUnavailable(
            "Spark found no AWS credentials.",
            table=table,
            advice="if it lasts, set s3.access-key-id and s3.secret-access-key in the iceberg connection, or"
            " give Spark's machines an IAM role.",
        )
    if message.startswith("Unable to load region"):
        return ConfigurationError(
            "Spark does not know the AWS region.",
            table=table,
            advice="set client.region in the iceberg connection, or the variable AWS_REGION for Spark.",
        )
    return None


def _no_bucket(answer: str, table: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"There is no such bucket, or it is in another region: {answer}.",
        table=table,
        advice="correct the warehouse, the staging_uri or the region.",
    )


def _forbidden_statement(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    """A statement for which the user of a SQL catalog has no right."""
    is_forbidden = _cause_of_database(name, exception) is Cause.FORBIDDEN
    return denied(name, table) if is_forbidden else None


def _of_database(name: str, exception: Any, table: str | None) -> PgoutputError | None:
    """What the database of a SQL catalog refuses, or something else (None)."""
    match _cause_of_database(name, exception):
        case Cause.DENIED | Cause.FORBIDDEN:
            return denied(name, table)
        case Cause.NO_DATABASE:
            return ConfigurationError(
                "The SQL catalog's server has no database of that name.",
                table=table,
                advice="correct the database in the uri of the iceberg connection, or make it.",
            )
    return None


def _cause_of_database(name: str, exception: Any) -> Cause | None:
    """The cause of an exception of a driver, which is for SQLite, PostgreSQL or MySQL."""
    if not _is_a(exception, "java.sql.SQLException"):
        return None
    number = int(exception.getErrorCode())
    if name.startswith(_SQLITE):
        return lake_causes.of_sqlite(number)
    if number:
        # PostgreSQL has no numbers, and a SQLSTATE of MySQL says less.
        return lake_causes.of_mysql(number)
    return lake_causes.of_sqlstate(str(exception.getSQLState()))


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
    """Spark has no client for a store. Iceberg then asks Hadoop, which does not know the scheme either."""
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
        advice="run Spark on Java 17 or 21. Set JAVA_HOME for spark-submit and, on a cluster, everywhere.",
    )


def _other_version(message: str, table: str | None) -> ConfigurationError:
    """A class of the wrong version. Of ``'void a.B.c(int)'`` in the message it is ``a.B``."""
    found = re.search(r"([\w$]+(?:\.[\w$]+)+)\.[\w$<>]+\(", message)
    if found is None:
        return ConfigurationError(
            "Spark loaded a Java class of the wrong version.",
            table=table,
            advice="compare Spark's jars with docs/reference/spark_jars.md.",
        )
    return ConfigurationError(
        f"Spark loaded the wrong version of the Java class {found[1]}.",
        table=table,
        advice=f"if two of Spark's jars have it, remove the wrong one; else {missing_class(found[1]).advice}",
    )


def _class_in(text: str) -> str:
    """The first class name in a message, with dots. After ``NoClassDefFoundError: a/B`` it is ``a.B``."""
    found = _CLASS.search(text, lacks.end() if (lacks := _LACKS.search(text)) else 0)
    return found[0].replace("/", ".") if found else "?"


def _message(exception: Any) -> str:
    return str(exception.getMessage() or "")
