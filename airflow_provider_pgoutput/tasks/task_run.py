"""What the tasks of a pipeline have in common: their run, their attempt and their log."""

from __future__ import annotations

import logging
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.checkpoint import REJECTED_TABLE
from airflow_provider_pgoutput.batch.xcom import largest, totals
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Context

log = logging.getLogger(__name__)

_MOST_LOGGED = 50


def refuse_backfill(context: Context) -> None:
    """Refuse a run that Airflow made for a date in the past.

    A slot cannot go back. Such a run would read the changes of today and show them under an old date.

    :raises ConfigurationError: the run is a backfill run.
    """
    run_type = str(getattr(context["dag_run"].run_type, "value", context["dag_run"].run_type))
    if run_type == "backfill":
        raise ConfigurationError(
            "This is a backfill run, and a replication slot cannot go back in time.",
            advice="trigger an ordinary run to read new changes; replay staged batches to apply them"
            " again; name tables in copy_tables to copy them again.",
        )


def new_attempt(context: Context) -> str:
    """A name for the files of one try. It is another name even if Airflow runs the same try twice."""
    return f"{context['ti'].try_number}-{uuid.uuid4().hex[:12]}"


@contextmanager
def log_group(title: str) -> Iterator[None]:
    """Fold the lines that are logged inside, below a title, in Airflow's view of the log."""
    log.info("::group::%s", title)
    try:
        yield
    finally:
        log.info("::endgroup::")


def log_tables(tables: Mapping[str, Mapping[str, int]]) -> None:
    """Log a line for each table with its counts above zero. Warn of values that did not fit.

    Of more than 50 tables, only those with the highest counts have a line. One line sums up the others.
    """
    shown = largest(tables, _MOST_LOGGED)
    for name, counts in sorted(shown.items()):
        _log_counts(name, counts)
    if others := tables.keys() - shown.keys():
        _log_counts(f"{len(others):,} more tables", totals(tables[name] for name in others))


def _log_counts(name: str, counts: Mapping[str, int]) -> None:
    words = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    log.info("%s: %s", name, words or "no changes")
    if rejected := counts.get("rejected"):
        log.warning(
            "%s: %s value(s) did not fit their column. The table has NULL instead. %s has their text.",
            name,
            f"{rejected:,}",
            REJECTED_TABLE,
        )
