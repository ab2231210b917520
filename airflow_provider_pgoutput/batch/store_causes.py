"""Why an object store failed, read from the errors of Arrow: a refusal, a wrong setting, or anything else.

The staging area is read through Arrow, and so are the files of the lake's tables. Arrow has no classes for
causes, so the text decides.

Source: https://github.com/apache/arrow/blob/main/cpp/src/arrow/filesystem/s3_internal.h (S3ErrorToString)
"""

from __future__ import annotations

import enum
import re

#: Temporary credentials ran out. A retry takes new ones.
_EXPIRED = re.compile(r"Expired|EXPIRED")
_DENIED = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_SIGNATURE"
    r"|MISSING_AUTHENTICATION_TOKEN|UNRECOGNIZED_CLIENT|INVALID_CLIENT_TOKEN_ID)\b"
    r"|AWS Error \w+ \(HTTP status 40[13]\)"
)
_NO_BUCKET = re.compile(r"AWS Error NO_SUCH_BUCKET\b|^Bucket '.*' not found")
_OTHER_REGION = re.compile(r"PermanentRedirect|AuthorizationHeaderMalformed")


class StoreCause(enum.Enum):
    """A cause that another try does not mend."""

    DENIED = enum.auto()
    NO_BUCKET = enum.auto()
    OTHER_REGION = enum.auto()


def store_cause(error: Exception) -> StoreCause | None:
    """The cause of an error of Arrow; None: it is another one, and another try may help."""
    text = store_text(error)
    if isinstance(error, PermissionError) or (_DENIED.search(text) and not _EXPIRED.search(text)):
        return StoreCause.DENIED
    if _NO_BUCKET.search(text):
        return StoreCause.NO_BUCKET
    if _OTHER_REGION.search(text):
        return StoreCause.OTHER_REGION
    return None


def store_text(error: Exception) -> str:
    """What such an error says, without the number of the operating system."""
    return getattr(error, "strerror", None) or str(error)
