"""What an error of the staging area's file system means: a wrong setting, a missing right, or a silence.

Arrow gives most errors of an object store as ``OSError`` without a number, so the text is looked at.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_pgoutput.batch.lake_causes import Cause, of_arrow, store_text
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
    PgoutputError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    cause = of_arrow(error)
    said = f"The staging area did not {action}: {store_text(error)}"
    if cause is Cause.DENIED:
        return LakeDenied(
            said,
            advice="give the worker's identity the right to read, write, list and delete below staging_uri."
            " On S3 check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the role's policy. If the keys come"
            " from the machine's metadata service, it may have been silent: clear the task.",
        )
    if cause is Cause.NO_BUCKET:
        return ConfigurationError(said, advice="correct the bucket in staging_uri, or make it.")
    if cause is Cause.OTHER_REGION:
        return ConfigurationError(
            said, advice="give the worker the region of the bucket in AWS_REGION."
        )
    return LakeUnavailable(
        said,
        advice="of a bucket on S3, give the worker its region in AWS_REGION; else check the address."
        if action == "open"
        else "check its free space, its address and the right to write; then try again.",
    )
