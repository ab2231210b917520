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
    from collections.abc import Iterable, Iterator, Mapping

    from airflow.sdk import Context

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.batch.manifest import Manifest

log = logging.getLogger(__name__)

_MOST_LOGGED = 50
#: Names in a message.
_MOST_NAMES = 10


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
    """A name for the files of one try. It is new each time, even if Airflow runs the same try twice."""
    return f"{context['ti'].try_number}-{uuid.uuid4().hex[:12]}"


@contextmanager
def log_group(title: str) -> Iterator[None]:
    """Fold the lines that are logged inside, below a title, in Airflow's view of the log."""
    log.info("::group::%s", title)
    try:
        yield
    finally:
        log.info("::endgroup::")


def summary(what: str, manifest: Manifest, seconds: float, source_lsn: Lsn | None = None) -> str:
    """Say in a sentence what a task did with a batch.

    Example: ``Staged 42,544 changes of 4 tables, 0/A226EF8 to 0/A7FA798, in 5.2 s (8,182 rows/s). The source
    is 1.2 MB ahead.``

    :param source_lsn: where the server was; None: it is not known.
    """
    copied = sum(table.counts.copied for table in manifest.tables)
    counts = [
        f"{count:,} {noun if count == 1 else plural}"
        for count, noun, plural in (
            (manifest.changes, "change", "changes"),
            (copied, "copied row", "copied rows"),
            (manifest.logical_messages, "message", "messages"),
        )
        if count
    ]
    changed = len(manifest.changed_tables)
    tables = f" of {_number(changed, 'table')}" if changed else ""
    rows = manifest.changes + copied
    rate = f" ({rows / seconds:,.0f} rows/s)" if rows and seconds >= 0.1 else ""
    text = (
        f"{what} {' and '.join(counts) or 'no changes'}{tables}, {manifest.start_lsn} to"
        f" {manifest.end_lsn}, in {seconds:,.1f} s{rate}."
    )
    if source_lsn is not None and source_lsn > manifest.end_lsn:
        text += f" The source is {_bytes(source_lsn - manifest.end_lsn)} ahead."
    return text


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _bytes(count: int) -> str:
    if count < 1000:
        return _number(count, "byte")
    size, unit = count / 1000, "kB"
    for larger in ("MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:,.1f} {unit}"


def few(names: Iterable[str]) -> str:
    """The first ten names, for a message, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return f"{', '.join(found[:_MOST_NAMES])}{more}"


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
