"""What an exception of pyiceberg means: a refusal, a wrong setting, or a catalog that may answer next time.

pyiceberg has classes for the answers of a REST catalog. In other cases it passes on the client's exception:
botocore's for Glue, SQLAlchemy's for a SQL catalog, and Arrow's for the store. ``batch/lake_causes.py`` has
the table of causes.

Sources:
https://py.iceberg.apache.org/reference/pyiceberg/exceptions/
https://boto3.amazonaws.com/v1/documentation/api/latest/guide/error-handling.html
https://docs.sqlalchemy.org/en/20/core/exceptions.html#sqlalchemy.exc.DBAPIError
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch import lake_causes
from airflow_provider_pgoutput.batch.lake_causes import Cause
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
    PgoutputError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGIN = "check the credential of the iceberg connection and the rights that it has at the catalog."
_AWS_LOGIN = (
    "check the keys of the iceberg connection (client.* or glue.*), or the worker's identity, and its rights"
    " in Glue."
)
_SQL_LOGIN = (
    "check user and password in the uri of the iceberg connection, and the user's rights on the catalog's"
    " tables. Of a file of SQLite check who may write it."
)
_STORE_LOGIN = (
    "check the keys of the store in the iceberg connection, or the worker's identity, and the rights on the"
    " warehouse."
)
_AGAIN = "check the iceberg connection and the catalog; then try again."
_NO_KEYS = (
    "if it lasts, set client.access-key-id and client.secret-access-key in the iceberg connection, or give"
    " the worker an IAM role."
)
_BOTOCORE = "botocore.exceptions"
#: botocore raises these before it sends a request: it finds no credentials.
_NO_CREDENTIALS = ("NoCredentialsError", "CredentialRetrievalError")
_HALF_A_LOGIN = "give both keys, or a profile that the worker has, in the iceberg connection."
#: The same, if a setting is missing or wrong: the advice by the name of the class.
_LACKS = {
    "NoRegionError": "set client.region in the iceberg connection, or AWS_REGION for the worker.",
    "PartialCredentialsError": _HALF_A_LOGIN,
    "ProfileNotFound": _HALF_A_LOGIN,
}


@contextlib.contextmanager
def lake_errors(action: str) -> Iterator[None]:
    """Turn pyiceberg's exceptions into our own, without their text: it may contain credentials.

    pyiceberg's exceptions have no common base class.

    :param action: what cannot be done with the lake: ``read``, ``written``, ``opened``, ``changed``.
    :raises LakeDenied: the login has no right to do it.
    :raises ConfigurationError: a setting or a module is missing or wrong.
    :raises LakeUnavailable: anything else. The next try may succeed.
    """
    try:
        yield
    except PgoutputError:
        raise
    except Exception as error:
        raise lake_failure(error, f"The lake cannot be {action}") from None


def lake_failure(error: Exception, what: str, table: str | None = None) -> PgoutputError:
    """The error for an exception of pyiceberg.

    :param what: what cannot be done, as the beginning of a sentence.
    :param table: the table that the error names; None: none.
    """
    text = f"{what} ({type(error).__name__})."
    if named := _of_pyiceberg(error, text, table):
        return named
    for each in _chain(error):
        if named := _of_botocore(each, text, table):
            return named
        if cause := _cause_of_azure(each):
            return _named(cause, text, table, _STORE_LOGIN)
        if cause := _cause_of_database(each):
            return _named(cause, text, table, _SQL_LOGIN)
    return _named(lake_causes.of_arrow(error), text, table, _STORE_LOGIN)


def _of_pyiceberg(error: Exception, text: str, table: str | None) -> PgoutputError | None:
    """The error for one of pyiceberg's own classes, or for a module that it cannot import."""
    from pyiceberg.exceptions import (  # noqa: PLC0415
        ForbiddenError,
        NotInstalledError,
        OAuthError,
        UnauthorizedError,
    )

    if isinstance(error, (ForbiddenError, OAuthError, UnauthorizedError)):
        return LakeDenied(text, table=table, advice=_LOGIN)
    # The driver of a database, or the client of a store.
    lacking = next((each for each in _chain(error) if isinstance(each, ModuleNotFoundError)), None)
    advice = f"install the Python module {lacking.name} on the workers." if lacking else ""
    if isinstance(error, NotInstalledError):
        # pyiceberg itself wrote this text. It names an extra, but not always that of the module.
        return ConfigurationError(text, table=table, advice=f"{advice} pyiceberg says: {error}.")
    return ConfigurationError(text, table=table, advice=advice) if lacking else None


def _chain(error: BaseException) -> Iterator[Any]:
    """An exception and its causes, outermost first. SQLAlchemy keeps the driver's exception in ``orig``."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "orig", None) or cause.__cause__


def _is_of(error: Any, module: str, *names: str) -> bool:
    """Whether an exception is of a class, or of a subclass. The module of the class need not be installed."""
    return any(each.__module__ == module and each.__name__ in names for each in type(error).__mro__)


def _of_botocore(error: Any, text: str, table: str | None) -> PgoutputError | None:
    """The error for an answer of AWS, or for a setting that its client lacks; None: it is not of botocore."""
    if _is_of(error, _BOTOCORE, "ClientError"):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        said = f"{text[:-1]}: {code or '?'}, HTTP {status}."
        return _named(lake_causes.of_aws(code, status), said, table, _AWS_LOGIN)
    if _is_of(error, _BOTOCORE, *_NO_CREDENTIALS):
        # The service that hands out a machine's credentials may be slow.
        return LakeUnavailable(text, table=table, advice=_NO_KEYS)
    advice = next(
        (advice for name, advice in _LACKS.items() if _is_of(error, _BOTOCORE, name)), None
    )
    return ConfigurationError(text, table=table, advice=advice) if advice else None


def _cause_of_azure(error: Any) -> Cause | None:
    """The cause of an exception of Azure's own client, which pyiceberg uses if Arrow is not asked for."""
    if not _is_of(error, "azure.core.exceptions", "HttpResponseError"):
        return None
    status, code = error.status_code, getattr(error, "error_code", None)
    return None if status is None else lake_causes.of_azure(str(code), status, str(error))


def _cause_of_database(error: Any) -> Cause | None:
    """The cause of an exception of a database driver: of SQLite, PostgreSQL or MySQL."""
    driver = type(error).__module__.partition(".")[0]
    first = error.args[0] if error.args else None
    match driver:
        case "sqlite3":
            number = getattr(error, "sqlite_errorcode", None)
            return None if number is None else lake_causes.of_sqlite(number)
        case "pg8000":
            # The fields of the server's message, by their letter.
            return lake_causes.of_sqlstate(str(first.get("C"))) if isinstance(first, dict) else None
        case "psycopg" | "psycopg2":
            sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
            if sqlstate:
                return lake_causes.of_sqlstate(sqlstate)
            return lake_causes.of_libpq(str(error))
        case "pymysql" | "MySQLdb" | "mysql" | "mariadb":
            number = getattr(error, "errno", None) or first
            return lake_causes.of_mysql(number) if isinstance(number, int) else None
    return None


def _named(cause: Cause | None, text: str, table: str | None, login: str) -> PgoutputError:
    """The error for a cause.

    :param login: what to check after a refusal.
    """
    match cause:
        case Cause.DENIED | Cause.FORBIDDEN:
            return LakeDenied(text, table=table, advice=login)
        case Cause.NO_BUCKET:
            advice = "correct the bucket of the warehouse, or make it."
            return ConfigurationError(text, table=table, advice=advice)
        case Cause.OTHER_REGION:
            advice = "set s3.region in the iceberg connection to the region of the bucket."
            return ConfigurationError(text, table=table, advice=advice)
        case Cause.NO_DATABASE:
            advice = "correct the database in the uri of the iceberg connection, or make it."
            return ConfigurationError(text, table=table, advice=advice)
    return LakeUnavailable(text, table=table, advice=_AGAIN)
