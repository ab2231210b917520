"""Why a catalog or an object store failed: one table of the answers that another try does not mend.

The worker asks through Python, and Spark through Java. The exceptions differ, but not what a server says: the
code and the HTTP status of AWS, the SQLSTATE or the number of a database, or a text. ``lake/failures.py`` and
``capture/staging/storage_errors.py`` take these from Python's exceptions, ``apply/iceberg/causes.py`` from
Java's.

Sources:
https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
https://docs.aws.amazon.com/glue/latest/webapi/CommonErrors.html
https://github.com/apache/arrow/blob/main/cpp/src/arrow/filesystem/s3_internal.h (S3ErrorToString)
https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
https://cloud.google.com/storage/docs/json_api/v1/status-codes
https://www.postgresql.org/docs/current/errcodes-appendix.html
https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html
https://www.sqlite.org/rescode.html
"""

from __future__ import annotations

import enum
import re
from http import HTTPStatus
from urllib.parse import urlsplit

#: A property of encrypted tables. What is stored of their files may have another size than Iceberg noted.
#: https://iceberg.apache.org/docs/latest/encryption/
ENCRYPTION_KEY = "encryption.key-id"

#: Codes of AWS, as ``_plain`` writes them. HTTP statuses do not suffice: Glue denies access with 400.
_AWS_DENIED = frozenset(
    {
        "accessdenied",
        "accountproblem",
        "allaccessdisabled",
        "incompletesignature",
        "invalidaccesskeyid",
        "invalidclienttokenid",
        "invalidsecurity",
        "invalidsignature",
        "missingauthenticationtoken",
        "notauthorized",
        "notsignedup",
        "optinrequired",
        "signaturedoesnotmatch",
        "unrecognizedclient",
    }
)
_AWS_OTHER_REGION = frozenset({"permanentredirect", "authorizationheadermalformed"})
#: Azure calls a bucket so, and over its other interface a file system.
_AZURE_NO_BUCKET = frozenset({"ContainerNotFound", "FilesystemNotFound"})
#: Google answers 403 to who asks too often, too.
_GOOGLE_TOO_OFTEN = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "quotaExceeded"})
#: Google's reason is the same for a bucket and an object.
_GOOGLE_NO_BUCKET = "bucket does not exist"
#: Temporary credentials ran out. A retry takes new ones.
_EXPIRED = re.compile("expired|not valid in the specified time frame", re.IGNORECASE)
_HTTP_DENIED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

#: What Arrow says of an answer of S3.
_ARROW = re.compile(r"AWS Error (\w+)(?: \(HTTP status (\d+)\))?")
#: The same of Azure.
_ARROW_AZURE = re.compile(r"Azure Error: \[(\w*)\] (\d+)")
#: The same of Google.
_ARROW_GOOGLE = re.compile(r"google::cloud::Status\(.*?http_status_code=(\d+)", re.DOTALL)

#: Of MySQL and MariaDB: what they say when somebody logs in.
_MYSQL_DENIED = frozenset(
    {
        1044,  # the database
        1045,  # user or password
        1130,  # the client's host
        1698,  # a login without a password
        1820,  # the password has to be changed
        1862,  # the password expired
        3118,  # the account is locked
        4151,  # the same in MariaDB
    }
)
#: A table, a column, a privilege of the server. Their SQLSTATE is that of a wrong statement.
_MYSQL_FORBIDDEN = frozenset({1142, 1143, 1227})
_MYSQL_NO_DATABASE = 1049
#: Of SQLite: no right, a file that cannot be written, and a refusal by the library.
_SQLITE_FORBIDDEN = frozenset({3, 8, 23})
#: Another process may end this state: SQLITE_READONLY_RECOVERY and SQLITE_READONLY_ROLLBACK.
#: https://www.sqlite.org/rescode.html
_SQLITE_MAY_PASS = frozenset({264, 776})
#: An extended code of SQLite has the code in its lowest byte.
_SQLITE_CODE = 0xFF

#: What PostgreSQL says of a refused login, without the names in quotes. libpq gives no SQLSTATE then.
_LIBPQ_DENIED = re.compile(
    "authentication failed|no password supplied|no pg_hba.conf entry|pg_hba.conf rejects"
    "|is not permitted to log in|permission denied for database|FATAL: +role +does not exist"
)
_LIBPQ_NO_DATABASE = re.compile("FATAL: +database +does not exist")
#: libpq tries all addresses of a host, and each with TLS and without. Each try begins so in its text.
_LIBPQ_TRY = "connection to server"
_QUOTED = re.compile(r"\"[^\"]*\"")


class Cause(enum.Enum):
    """A cause that another try does not mend."""

    #: The login, or a request over HTTP.
    DENIED = enum.auto()
    #: A statement in a database, which did nothing.
    FORBIDDEN = enum.auto()
    NO_BUCKET = enum.auto()
    OTHER_REGION = enum.auto()
    NO_DATABASE = enum.auto()


#: What Arrow says without a code.
_ARROW_CAUSES = (
    (re.compile(r"^Bucket '.*' not found"), Cause.NO_BUCKET),
    (re.compile(r"PermanentRedirect|AuthorizationHeaderMalformed"), Cause.OTHER_REGION),
)


def of_aws(code: str, status: int | None) -> Cause | None:
    """The cause of an answer of AWS; None: another one, and another try may help.

    :param code: the code of the error, in any spelling; empty: the answer has none.
    :param status: the HTTP status, if it is known.
    """
    plain = _plain(code)
    if _EXPIRED.search(plain):
        return None
    if plain == "nosuchbucket":
        return Cause.NO_BUCKET
    if plain in _AWS_OTHER_REGION or status == HTTPStatus.MOVED_PERMANENTLY:
        return Cause.OTHER_REGION
    return Cause.DENIED if plain in _AWS_DENIED else of_http(status)


def of_azure(code: str, status: int, text: str) -> Cause | None:
    """The cause of an answer of Azure's store.

    :param text: all that is known of the answer. Its code does not say that a token ran out.
    """
    if _EXPIRED.search(text):
        return None
    return Cause.NO_BUCKET if code in _AZURE_NO_BUCKET else of_http(status)


def of_google(status: int, text: str) -> Cause | None:
    """The cause of an answer of Google's store.

    :param text: all that is known of the answer. Google's reason is a word in it.
    """
    if any(reason in text for reason in _GOOGLE_TOO_OFTEN):
        return None
    if status == HTTPStatus.NOT_FOUND and _GOOGLE_NO_BUCKET in text:
        return Cause.NO_BUCKET
    return of_http(status)


def of_http(status: int | None) -> Cause | None:
    """The cause of an answer, if only its HTTP status is known."""
    return Cause.DENIED if status in _HTTP_DENIED else None


def of_arrow(error: Exception) -> Cause | None:
    """The cause of an error of Arrow's file systems.

    Arrow has no classes for the causes, so the text decides.
    """
    text = store_text(error)
    if google := _ARROW_GOOGLE.search(text):
        return of_google(int(google[1]), text)
    if isinstance(error, PermissionError):
        return Cause.DENIED
    for pattern, cause in _ARROW_CAUSES:
        if pattern.search(text):
            return cause
    if _EXPIRED.search(text):
        # The next attempt may have a new token. The code may be one that Arrow does not know.
        return None
    if azure := _ARROW_AZURE.search(text):
        return of_azure(azure[1], int(azure[2]), text)
    aws = _ARROW.search(text)
    return of_aws(aws[1], int(aws[2]) if aws[2] else None) if aws else None


def of_sqlstate(sqlstate: str) -> Cause | None:
    """The cause of a SQLSTATE."""
    if sqlstate.startswith("28"):
        return Cause.DENIED
    return {"42501": Cause.FORBIDDEN, "3D000": Cause.NO_DATABASE}.get(sqlstate)


def of_mysql(number: int) -> Cause | None:
    """The cause of an error of MySQL or MariaDB."""
    if number == _MYSQL_NO_DATABASE:
        return Cause.NO_DATABASE
    if number in _MYSQL_FORBIDDEN:
        return Cause.FORBIDDEN
    return Cause.DENIED if number in _MYSQL_DENIED else None


def of_sqlite(number: int) -> Cause | None:
    """The cause of an error of SQLite.

    A file that cannot be opened (14) is no sure cause: the process may have too many open files. Nor is a
    file that may only be read until another process has recovered or rolled back its journal.
    """
    if number in _SQLITE_MAY_PASS:
        return None
    return Cause.FORBIDDEN if number & _SQLITE_CODE in _SQLITE_FORBIDDEN else None


def of_libpq(text: str) -> Cause | None:
    """The cause of a text of libpq, which says why a connection failed. With other languages it is None.

    If libpq tried several times, each try has to say the same.
    """
    # psycopg writes words of its own before the first one.
    tries = _QUOTED.sub("", text).split(_LIBPQ_TRY)[1:]
    for pattern, cause in ((_LIBPQ_DENIED, Cause.DENIED), (_LIBPQ_NO_DATABASE, Cause.NO_DATABASE)):
        if tries and all(pattern.search(each) for each in tries):
            return cause
    return None


def store_text(error: Exception) -> str:
    """What an error of Arrow says, without the number of the operating system."""
    return getattr(error, "strerror", None) or str(error)


def _plain(code: str) -> str:
    """A code of AWS in one spelling: ``ACCESS_DENIED`` and ``AccessDeniedException`` are the same."""
    return code.replace("_", "").lower().removesuffix("exception")


def lies_in(location: str, path: str) -> bool:
    """Whether a file lies in a folder. ``file:/x`` and ``/x`` are the same, and so are s3 and s3a."""
    return _without_scheme(path).startswith(f"{_without_scheme(location).rstrip('/')}/")


def _without_scheme(uri: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.netloc}{parts.path}"
