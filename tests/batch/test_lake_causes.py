"""The table of causes: what servers say, and what it means to both engines."""

from __future__ import annotations

import pytest

from airflow_provider_pgoutput.batch import lake_causes
from airflow_provider_pgoutput.batch.lake_causes import Cause


@pytest.mark.parametrize(
    ("code", "status", "cause"),
    [
        # Glue denies access with 400.
        ("AccessDeniedException", 400, Cause.DENIED),
        ("UnrecognizedClientException", 400, Cause.DENIED),
        ("InvalidSignatureException", 400, Cause.DENIED),
        ("SignatureDoesNotMatch", 403, Cause.DENIED),
        ("ACCESS_DENIED", None, Cause.DENIED),
        ("", 401, Cause.DENIED),
        ("", 403, Cause.DENIED),
        ("NoSuchBucket", 404, Cause.NO_BUCKET),
        ("", 301, Cause.OTHER_REGION),
        # A retry takes new credentials.
        ("ExpiredToken", 400, None),
        ("ExpiredTokenException", 403, None),
        ("ThrottlingException", 400, None),
        ("InternalServiceException", 500, None),
    ],
)
def test_answers_of_aws(code: str, status: int | None, cause: Cause | None) -> None:
    assert lake_causes.of_aws(code, status) is cause


@pytest.mark.parametrize(
    ("sqlstate", "cause"),
    [
        ("28P01", Cause.DENIED),
        ("28000", Cause.DENIED),
        ("42501", Cause.FORBIDDEN),
        ("3D000", Cause.NO_DATABASE),
        ("08006", None),
        ("57P03", None),
        ("None", None),
    ],
)
def test_sqlstates(sqlstate: str, cause: Cause | None) -> None:
    assert lake_causes.of_sqlstate(sqlstate) is cause


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (1045, Cause.DENIED),
        (1044, Cause.DENIED),
        (1142, Cause.FORBIDDEN),
        (1049, Cause.NO_DATABASE),
        (1205, None),  # a lock was not given in time
        (2003, None),  # the client could not connect
    ],
)
def test_numbers_of_mysql(number: int, cause: Cause | None) -> None:
    assert lake_causes.of_mysql(number) is cause


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (8, Cause.FORBIDDEN),
        (8 | 5 << 8, Cause.FORBIDDEN),
        (8 | 1 << 8, None),  # another process may recover its journal
        (8 | 3 << 8, None),  # or roll it back
        (5, None),
        (14, None),
    ],
)
def test_numbers_of_sqlite(number: int, cause: Cause | None) -> None:
    assert lake_causes.of_sqlite(number) is cause


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("HEAD failed. Azure Error: [AuthenticationFailed] 403 Signature not valid", Cause.DENIED),
        # A retry takes a new token.
        ("HEAD failed. Azure Error: [AuthenticationFailed] 403 The token is expired", None),
        (
            "Azure Error: [AuthenticationFailed] 403 Signature not valid in the specified time frame",
            None,
        ),
        ("google::cloud::Status(NOT_FOUND: No such object: a http_status_code=404)", None),
        ("AWS Error ACCESS_DENIED during PutObject", Cause.DENIED),
        ("AWS Error UNKNOWN (HTTP status 400): ExpiredToken", None),
        ("AWS Error SLOW_DOWN (HTTP status 503)", None),
        ("something else", None),
    ],
)
def test_errors_of_arrow(text: str, cause: Cause | None) -> None:
    assert lake_causes.of_arrow(OSError(text)) is cause


_TRY = 'connection to server at "db", port 5432 failed: '


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f'{_TRY}FATAL:  password authentication failed for user "lake"\n', Cause.DENIED),
        (f'{_TRY}FATAL:  role "lake" does not exist\n', Cause.DENIED),
        (f'{_TRY}FATAL:  database "lake" does not exist\n', Cause.NO_DATABASE),
        (f'{_TRY}FATAL:  database "role does not exist" is starting up\n', None),
        (f"connection failed: {_TRY}FATAL:  password authentication failed", Cause.DENIED),
        (f"{_TRY}Connection refused\n", None),
        # Another address of the same host may let it in.
        (f"{_TRY}FATAL:  password authentication failed\n{_TRY}timeout expired\n", None),
        (2 * f"{_TRY}FATAL:  password authentication failed\n", Cause.DENIED),
        ("", None),
    ],
)
def test_texts_of_libpq(text: str, cause: Cause | None) -> None:
    assert lake_causes.of_libpq(text) is cause
