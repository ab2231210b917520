"""What those of our Spark applications share whose driver runs on Airflow's worker.

Worker and driver talk through files in a folder that only the worker's user can enter:

1. The worker writes the job.
2. The driver reads the job and deletes it at once, because there may be a password in it.
3. The driver writes its answer, or the error that ended it.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import SparkContext

from airflow_provider_pgoutput.capture.copy_job import (
    FAILURE_FILE,
    JOB_FILE,
    MISSING_MODULE,
    Failure,
)
from airflow_provider_pgoutput.errors import ConfigurationError, PgoutputError, SparkFailed
from airflow_provider_pgoutput.parent_watch import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

    from py4j.protocol import Py4JJavaError

log = logging.getLogger(__name__)

OK = 0
FAILED = 1

_MARKS = "<pgoutput-failure>", "</pgoutput-failure>"
_FAILURE = re.compile("(.*?)".join(_MARKS), re.DOTALL)


class TaskFailed(Exception):
    """One of our errors on its way from an executor to the driver, which gets only its text."""

    @classmethod
    def of(cls, failure: Failure) -> TaskFailed:
        """The exception for a failure.

        The traceback that Spark prints quotes the line that raises it, so that line must not have the marks.
        Raise it ``from None``: the words of its cause may quote rows.
        """
        return cls(failure.to_json().join(_MARKS))


class JobFailed(Exception):
    """A task failed with an error of ours."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def failure_of(message: str) -> Failure | None:
    """The error that ended a task, from Spark's message; None: it is not one of ours."""
    found = _FAILURE.search(message)
    return None if found is None else Failure.from_json(found[1])


def other_failure(
    error: Py4JJavaError, work: str, table: str, page: str, option: str
) -> PgoutputError:
    """The error for a failed Spark job, if ``failure_of`` knows none.

    :param work: what Spark did with the table, as the end of a sentence: ``copied the table``.
    :param page: of the how-to pages; it lists the packages that executors need.
    :param option: the argument that has the job's configuration.
    """
    if missing := MISSING_MODULE.search(str(error)):
        return ConfigurationError(
            f"The executors' Python lacks the package {missing[1].partition('.')[0]}.",
            advice=f"install what docs/how-to/{page} lists on the executors, and name that"
            f" Python as spark.pyspark.python in {option}.",
        )
    # What Java says of it may quote a value.
    return SparkFailed(
        f"Spark failed while it {work}: {error.java_exception.getClass().getName()}.",
        table=table,
        advice="nothing, if executors or memory were lost: the next try goes on or begins again. If it"
        " lasts, see the log of Spark's executors.",
    )


def run_driver(
    description: str,
    run: Callable[[SparkContext, str, Path], None],
    arguments: list[str] | None = None,
) -> int:
    """Run the job in ``--folder``, and return the exit status.

    :param run: gets the text of the job and the folder. Its ``PgoutputError`` or ``JobFailed`` is left in the
        folder.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--folder", required=True, type=Path, help="the folder of the job")
    folder = parser.parse_args(arguments).folder
    logging.basicConfig(
        stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    die_with_parent(FAILED)
    job_file = folder / JOB_FILE
    text = job_file.read_text(encoding="utf-8")
    job_file.unlink()
    context = SparkContext.getOrCreate()
    try:
        run(context, text, folder)
    except (PgoutputError, JobFailed) as error:
        failure = error.failure if isinstance(error, JobFailed) else Failure.of(error)
        log.error("%s: %s", failure.error, failure.message)
        write_whole(folder / FAILURE_FILE, failure.to_json())
        return FAILED
    finally:
        context.stop()
    return OK


def write_whole(path: Path, text: str) -> None:
    """Write a file that the worker sees whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.rename(path)
