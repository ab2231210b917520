"""What an error of the staging area's file system means: a wrong setting, a missing right, or a silence.

Arrow gives most errors of an object store as ``OSError`` without a number, so the text is looked at.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
    PgoutputError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Temporary credentials ran out. A retry takes new ones.
_EXPIRED = re.compile(r"Expired|EXPIRED")
_DENIED = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_SIGNATURE"
    r"|MISSING_AUTHENTICATION_TOKEN|UNRECOGNIZED_CLIENT|INVALID_CLIENT_TOKEN_ID)\b"
    r"|AWS Error \w+ \(HTTP status 40[13]\)"
)
_NO_BUCKET = re.compile(r"AWS Error NO_SUCH_BUCKET\b|^Bucket '.*' not found")
_OTHER_REGION = re.compile(r"PermanentRedirect|AuthorizationHeaderMalformed")


@contextlib.contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Turn an error of the file system into one of this package, see ``storage_error``."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise storage_error(action, error) from error


def storage_error(action: str, error: Exception) -> PgoutputError:
    """The error to raise for one of the file system.

    :param action: what the staging area did not do: ``write``, ``read``, ``list``, ``delete``, ``open``.
    """
    text = getattr(error, "strerror", None) or str(error)
    said = f"The staging area did not {action}: {text}"
    if isinstance(error, PermissionError) or (_DENIED.search(text) and not _EXPIRED.search(text)):
        return LakeDenied(
            said,
            advice="give the worker's identity the right to read, write, list and delete below staging_uri."
            " On S3 check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the role's policy. If the keys come"
            " from the machine's metadata service, it may have been silent: clear the task.",
        )
    if _NO_BUCKET.search(text):
        return ConfigurationError(said, advice="correct the bucket in staging_uri, or make it.")
    if _OTHER_REGION.search(text):
        return ConfigurationError(
            said, advice="give the worker the region of the bucket in AWS_REGION."
        )
    return LakeUnavailable(
        said,
        advice="of a bucket on S3, give the worker its region in AWS_REGION; else check the address."
        if action == "open"
        else "check its free space, its address and the right to write; then try again.",
    )
