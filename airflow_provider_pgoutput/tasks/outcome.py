"""The one place where errors of this package become what Airflow understands.

The class of an error decides, its text is never read: whoever has to act first gets a task that fails
at once, everything else is left as it is, so Airflow's ordinary retry applies.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput.errors import CopyAgainError, FatalError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def airflow_outcome() -> Iterator[None]:
    """Turn errors that a retry cannot help into ``AirflowFailException`` with the same text.

    A ``RetryableError`` passes unchanged: Airflow retries a task that raised it as often as its
    ``retries`` say.
    """
    try:
        yield
    except (FatalError, CopyAgainError) as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error
