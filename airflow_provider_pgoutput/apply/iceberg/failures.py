"""Gives failures of Iceberg's catalog a class: no answer, a refusal, or not known.

Iceberg throws ``CommitStateUnknownException`` for 5xx answers of a REST catalog. When the connection or the
catalog's database breaks, it throws plain exceptions. In both cases the commit may have gone through.
Exceptions that are sure that nothing was committed implement ``CleanableFailure``. Whether a commit went
through is looked up where the commit is made. ``causes.py`` comes first: it knows the causes that are sure.

Source: https://iceberg.apache.org/javadoc/latest/org/apache/iceberg/exceptions/package-summary.html
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.apply.iceberg.causes import sure_cause
from airflow_provider_pgoutput.apply.iceberg.jvm import (
    JAVA_ERRORS,
    class_named,
    java_classes,
    java_exception,
    traces,
)
from airflow_provider_pgoutput.errors import (
    CommitStateUnknown,
    LakeUnavailable,
    PgoutputError,
    PublishRefused,
    SparkFailed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = logging.getLogger(__name__)

_REFUSED = ("CommitFailedException", "ValidationException", "IllegalArgumentException")
#: The request or its answer may be lost. The dot excludes subclasses, which are answers of the catalog.
_UNKNOWN = ("CommitStateUnknownException", ".RESTException", "UncheckedSQLException")
_NO_ANSWER = ("ServiceFailureException", "ServiceUnavailableException")
#: Iceberg's wrapper of every ``java.io.IOException``.
_OF_FILES = "RuntimeIOException"


def commit_failure(jvm: Any, error: Exception, table: str) -> PgoutputError:
    """The error for a failed commit. Unless it is a sure refusal, its outcome is not known.

    :param error: one of ``JAVA_ERRORS``.
    :param table: the target, ``namespace.table``.
    """
    found = java_classes(error)
    if named := sure_cause(error, table, may_be_committed=_is_unknown(found)):
        return named
    if found[0].endswith(_REFUSED):
        return PublishRefused("The table changed while it was committed to.", table=table)
    cleanable = class_named(jvm, "org.apache.iceberg.exceptions.CleanableFailure")
    clean = cleanable._java_lang_class
    if clean.isInstance(java_exception(error)):
        return LakeUnavailable(f"The catalog failed: {found[0]}.", table=table)
    return _unknown(found[0], table)


def failure(error: Exception, table: str | None = None) -> PgoutputError | None:
    """The error for a failed Spark statement; None: the catalog did not cause the failure.

    :param error: one of ``JAVA_ERRORS``.
    :param table: the target, ``namespace.table``, if it is known.
    """
    found = java_classes(error)
    if named := sure_cause(error, table, may_be_committed=_is_unknown(found)):
        return named
    if unknown := next((each for each in found if each.endswith(_UNKNOWN)), None):
        return _unknown(unknown, table)
    if silent := next((each for each in found if each.endswith(_NO_ANSWER)), None):
        return LakeUnavailable(f"The catalog did not answer: {silent}.", table=table)
    if any(each.endswith(_OF_FILES) for each in found):
        return LakeUnavailable(
            f"A file of the lake could not be read or written: {found[-1]}.",
            table=table,
            advice="nothing, if the store was out: the next try reads it again. If it lasts, look whether the"
            " table's files are whole; copy_tables copies the table again.",
        )
    if any(each.endswith("CommitFailedException") for each in found):
        return PublishRefused("The table kept changing while it was committed to.", table=table)
    return None


@contextmanager
def named_failures() -> Iterator[None]:
    """Turn every failure of Spark or Iceberg inside, if no step gave it a class, into one of our errors."""
    try:
        yield
    except JAVA_ERRORS as error:
        raise failure(error) or unnamed(error) from error


def unnamed(error: Exception, table: str | None = None) -> SparkFailed:
    """The error for a failure without a class of its own. The log says where it was thrown.

    Java's own message is not shown: it may quote a row's value.

    :param error: one of ``JAVA_ERRORS``.
    :param table: the target, ``namespace.table``, if it is known.
    """
    for name, places in traces(error):
        log.error("%s: %s at %s", table or "Spark", name, ", ".join(places) or "?")
    found = java_classes(error)
    return SparkFailed(
        f"Spark or Iceberg failed: {found[0]}"
        + ("." if len(found) == 1 else f", because of {found[-1]}."),
        table=table,
        advice="nothing, if executors or memory were lost: the next try does it again. If it lasts, report"
        " the lines before this one in the Spark job's log, which say where it was thrown.",
    )


def _is_unknown(found: Sequence[str]) -> bool:
    """Whether one of these Java classes leaves open if a commit went through."""
    return any(each.endswith(_UNKNOWN) for each in found)


def _unknown(java_class: str, table: str | None) -> CommitStateUnknown:
    return CommitStateUnknown(
        f"The catalog did not say whether it committed: {java_class}.", table=table
    )
