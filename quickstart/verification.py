"""Runs the DAG that verifies the lake beside the pipeline, as a user's weekly DAG would run."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.layout import mark_folder
from airflow_provider_pgoutput.errors import SourceError
from quickstart.dag_runs import newest_result, run_dag
from quickstart.place import SLOT_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quickstart.place import DemoPlace

VERIFY_DAG_ID = "pgoutput_verify"
_SECONDS_TO_BEGIN = 120


@contextlib.contextmanager
def verification(
    place: DemoPlace, environment: dict[str, str]
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Begin a verification; the pipeline's next run ends its batch where it compares.

    :returns: what waits for its end, and returns what it found: ``lsn`` and ``tables``.
    :raises SourceError: it failed, or did not begin.
    """
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_dag, place, environment, VERIFY_DAG_ID, dag_id=VERIFY_DAG_ID)
        marks = place.staging / mark_folder(SLOT_NAME)
        end = time.monotonic() + _SECONDS_TO_BEGIN
        while not run.done() and not (marks.is_dir() and any(marks.iterdir())):
            if time.monotonic() > end:
                raise SourceError(f"{VERIFY_DAG_ID} left no mark in {_SECONDS_TO_BEGIN} s.")
            time.sleep(0.2)

        def found() -> dict[str, Any]:
            run.result()
            result = newest_result(place.airflow_database, VERIFY_DAG_ID, "verify")
            if result is None:
                raise SourceError(f"{VERIFY_DAG_ID} left no result.")
            return result

        yield found
