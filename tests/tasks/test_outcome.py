"""Every class of the error tree has one of three outcomes in Airflow, and its class alone decides."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgoutput import errors
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.tasks.outcome import airflow_outcome


def task_at(try_number: int = 1) -> Any:
    """The context of a task with two retries."""
    return {"ti": SimpleNamespace(try_number=try_number, max_tries=2)}


def _below(base: type[errors.PgoutputError]) -> list[type[errors.PgoutputError]]:
    return [base, *(leaf for each in base.__subclasses__() for leaf in _below(each))]


@pytest.mark.parametrize("error", [*_below(errors.FatalError), *_below(errors.CopyAgainError)])
def test_what_a_retry_cannot_help_fails_at_once_with_its_text(
    error: type[errors.PgoutputError],
) -> None:
    with pytest.raises(AirflowFailException) as caught, airflow_outcome(task_at()):
        raise error("It broke.", slot="s", lsn="0/1", advice="mend it.")
    assert str(caught.value) == (
        f"{error.__name__}: It broke. (slot s, LSN 0/1) What to do: mend it."
    )


@pytest.mark.parametrize("error", _below(errors.RetryableError))
def test_what_a_retry_can_help_is_left_to_airflow(error: type[errors.PgoutputError]) -> None:
    with pytest.raises(error, match="later"), airflow_outcome(task_at()):
        raise error("later")


@pytest.mark.parametrize("error", _below(errors.RetryableError))
@pytest.mark.parametrize("advice", ["nothing; the next attempt connects again.", "mend it.", None])
def test_after_the_last_try_no_error_promises_another(
    error: type[errors.RetryableError], advice: str | None
) -> None:
    with pytest.raises(error) as caught, airflow_outcome(task_at(2)):
        raise error("It broke.", advice=advice)
    assert "last try" not in str(caught.value)
    with pytest.raises(error) as caught, airflow_outcome(task_at(3)):
        raise error("It broke.", slot="s", advice=advice)
    text = str(caught.value)
    assert text.startswith("It broke. (slot s) What to do: ")
    assert text.count("What to do") == 1
    assert "nothing" not in text
    assert "clear the task" in text
    assert ("mend it" in text) == (advice == "mend it.")


def test_after_the_last_try_the_advice_for_an_error_that_lasts_stays() -> None:
    def last(error: errors.PgoutputError) -> str:
        with pytest.raises(errors.RetryableError) as caught, airflow_outcome(task_at(3)):
            raise error
        return str(caught.value)

    text = last(
        errors.SourceUnavailable("Gone.", advice="nothing; it connects again. If it lasts, look.")
    )
    assert text.startswith("Gone. What to do: If it lasts, look. This was the last try")
    # An error of a Spark job comes back as a text.
    told = str(
        errors.SparkFailed("Lost.", advice="nothing, if memory was short. If it lasts, report it.")
    )
    again = errors.error_named("SparkFailed", told)
    assert again is not None
    assert str(again) == told
    assert last(again) == f"{told} This was the last try: clear the task to try again."


@pytest.mark.parametrize(
    ("error", "heading"),
    [
        (errors.SourceUnavailable, "retry-helps"),
        (errors.WrongSlot, "somebody-has-to-act-first"),
        (errors.SlotLost, "the-tables-have-to-be-copied-again"),
    ],
)
def test_the_log_says_in_short_lines_what_happened_where_and_what_to_do(
    error: type[errors.PgoutputError], heading: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((AirflowFailException, error)), airflow_outcome(task_at()):
        raise error("It broke.", slot="s", table="a.t", advice="mend it.")
    *lines, more = caplog.messages
    assert lines == [
        f"{error.__name__}: It broke.",
        "Where: slot s, table a.t",
        "What to do: mend it.",
    ]
    assert more.startswith("More about it: https://")
    assert more.endswith(f"/docs/reference/errors.md#{heading}")
    # The traceback is Airflow's to print.
    assert all(record.exc_info is None for record in caplog.records)


def test_a_refused_port_without_retries_names_what_to_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no_retries: Any = {"ti": SimpleNamespace(try_number=1, max_tries=0)}
    with pytest.raises(errors.SourceUnavailable), airflow_outcome(no_retries):
        connect("host=127.0.0.1 port=1 user=nobody")
    (advice,) = [each for each in caplog.messages if each.startswith("What to do: ")]
    assert "nothing" not in advice
    assert "host and port of the connection" in advice
    assert "last try" in advice


def test_errors_of_others_pass_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), airflow_outcome(task_at()):
        raise ZeroDivisionError
