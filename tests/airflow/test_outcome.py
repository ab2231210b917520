"""Every class of the error tree has one of three outcomes in Airflow, and its class alone decides."""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput import errors
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome


def _below(base: type[errors.PgoutputError]) -> list[type[errors.PgoutputError]]:
    return [base, *(leaf for each in base.__subclasses__() for leaf in _below(each))]


@pytest.mark.parametrize("error", [*_below(errors.FatalError), *_below(errors.CopyAgainError)])
def test_what_a_retry_cannot_help_fails_at_once_with_its_text(
    error: type[errors.PgoutputError],
) -> None:
    with pytest.raises(AirflowFailException) as caught, airflow_outcome():
        raise error("It broke.", slot="s", lsn="0/1", advice="mend it.")
    assert str(caught.value) == (
        f"{error.__name__}: It broke. (slot s, LSN 0/1) What to do: mend it."
    )


@pytest.mark.parametrize("error", _below(errors.RetryableError))
def test_what_a_retry_can_help_is_left_to_airflow(error: type[errors.PgoutputError]) -> None:
    with pytest.raises(error, match="later"), airflow_outcome():
        raise error("later")


def test_errors_of_others_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), airflow_outcome():
        raise ZeroDivisionError
