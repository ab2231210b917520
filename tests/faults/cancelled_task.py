"""A process that stages batches in children of its own, to be cancelled: what Airflow does to a task.

Reads requests from standard input, a line of JSON each, and forks a child for each, so that what takes time
to import is imported once. Answers with the child's process id and, asked by an empty line, with its exit
status. What is not here: when a child is cancelled, and what must be left; see ``test_cancelled_runs.py``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.errors import RetryableError
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

#: The child's exit status when it failed with an error that Airflow tries again.
RETRYABLE = 3
#: ... and when it failed otherwise.
FAILED = 4


def main() -> None:
    """Serve requests until standard input ends."""
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            status = FAILED
            try:
                status = _stage(json.loads(line))
            finally:
                os._exit(status)
        print(child, flush=True)
        # Until then its id is nobody else's, so it can be killed.
        sys.stdin.readline()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _stage(body: dict[str, Any]) -> int:
    lsn, system_identifier = body.pop("checkpoint")
    try:
        stage_batch(
            CaptureRequest(**body, checkpoint=Checkpoint(Lsn.parse(lsn), system_identifier))
        )
    except RetryableError as error:
        print(error, file=sys.stderr, flush=True)
        return RETRYABLE
    return 0


if __name__ == "__main__":
    main()
