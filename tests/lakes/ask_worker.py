"""Asks catalogs as the worker does, and says with which error each of them answers.

It asks for a checkpoint, or whether the login may write. What is logged meanwhile is part of the answer then.

It is started by its path in an environment with the clients of all catalogs, with a request as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.errors import PgoutputError
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.rights import refuse_login_that_only_reads
from airflow_provider_pgoutput.lake.state import open_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping


class _Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def main() -> None:
    """Ask each catalog of the request; print class and message of its error, or nothing."""
    request = json.load(sys.stdin)
    print(json.dumps({name: _answer(**each) for name, each in request.items()}))


def _answer(properties: Mapping[str, Any], *, writes: bool = False) -> object:
    if writes:
        return _rights(properties)
    try:
        read_checkpoint("lake", properties, "n", "slot")
    except PgoutputError as error:
        return [type(error).__name__, str(error)]
    return None


def _rights(properties: Mapping[str, Any]) -> dict[str, Any]:
    found, said = _Lines(), None
    logger = logging.getLogger("airflow_provider_pgoutput.lake.rights")
    logger.setLevel(logging.INFO)
    logger.addHandler(found)
    try:
        refuse_login_that_only_reads(open_catalog("lake", properties), "n")
    except PgoutputError as error:
        said = [type(error).__name__, str(error)]
    logger.removeHandler(found)
    return {"error": said, "logged": found.lines}


if __name__ == "__main__":
    main()
