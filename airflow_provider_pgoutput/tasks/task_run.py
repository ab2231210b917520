"""What every task of a pipeline has in common: its run, its log and its place in the lake.

What is not here: any decision about batches; those are made behind the doors.
"""

from __future__ import annotations

import logging
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.checkpoint import REJECTED_TABLE
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Context

log = logging.getLogger(__name__)


def refuse_backfill(context: Context) -> None:
    """Refuse a run that Airflow made for a date in the past.

    A slot cannot go back: such a run would read what is new now and file it under an old date.

    :raises ConfigurationError: when the run is a backfill run.
    """
    run_type = str(getattr(context["dag_run"].run_type, "value", context["dag_run"].run_type))
    if run_type == "backfill":
        raise ConfigurationError(
            "This is a backfill run, and a replication slot cannot go back in time.",
            advice="trigger an ordinary run to read what is new; replay staged batches to apply"
            " something again; name tables in copy_tables to copy them again.",
        )


def new_attempt(context: Context) -> str:
    """Name for the files of one try, different for each even if Airflow runs the same try twice."""
    return f"{context['ti'].try_number}-{uuid.uuid4().hex[:12]}"


@contextmanager
def log_group(title: str) -> Iterator[None]:
    """Fold what is logged inside under a line of its own in Airflow's log view."""
    log.info("::group::%s", title)
    try:
        yield
    finally:
        log.info("::endgroup::")


def log_tables(tables: Mapping[str, Mapping[str, int]]) -> None:
    """Log one line per table with its counts, zeros left out; warn of values that were set aside."""
    for name, counts in sorted(tables.items()):
        shown = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        log.info("%s: %s", name, shown or "no changes")
        if rejected := counts.get("rejected"):
            log.warning(
                "%s: %s value(s) did not fit their column: NULL in the table, their text is kept in %s.",
                name,
                f"{rejected:,}",
                REJECTED_TABLE,
            )
