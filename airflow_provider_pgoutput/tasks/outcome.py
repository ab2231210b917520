"""Turns errors of this package into errors of Airflow.

The class of an error decides, not its text. If somebody has to act first, the task fails at once. Any other
error stays as it is, and Airflow retries the task.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.airflow_versions import AirflowFailException
from airflow_provider_pgoutput.errors import (
    CopyAgainError,
    FatalError,
    PgoutputError,
    RetryableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Context

log = logging.getLogger(__name__)


@contextmanager
def airflow_outcome(context: Context) -> Iterator[None]:
    """Turn an error that no retry can mend into an ``AirflowFailException`` with the same text.

    The log says in short lines what happened, where and what to do, before Airflow prints a traceback.

    A ``RetryableError`` passes. Airflow then retries the task as often as its ``retries`` say. After the last
    try the error's advice does not speak of a next one.
    """
    try:
        yield
    except (FatalError, CopyAgainError) as error:
        _log(error)
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error
    except RetryableError as error:
        if context["ti"].try_number > context["ti"].max_tries:
            error.say_no_try_is_left()
        _log(error)
        raise


def _log(error: PgoutputError) -> None:
    for line in error.lines():
        log.error("%s", line)
