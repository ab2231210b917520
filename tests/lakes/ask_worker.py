"""Asks catalogs as the worker does, and says with which error each of them answers.

It asks for a checkpoint, or whether the login may write.

It is started by its path in an environment with the clients of all catalogs, with a request as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import PgoutputError
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.rights import refuse_login_that_only_reads
from airflow_provider_pgoutput.lake.state import open_catalog

if TYPE_CHECKING:
    from collections.abc import Mapping


def main() -> None:
    """Ask each catalog of the request; print class and message of its error, or nothing."""
    request = json.load(sys.stdin)
    print(json.dumps({name: _answer(**each) for name, each in request.items()}))


def _answer(properties: Mapping[str, str], *, writes: bool = False) -> list[str] | None:
    try:
        if writes:
            refuse_login_that_only_reads(open_catalog("lake", properties), "n")
        else:
            read_checkpoint("lake", properties, "n", "slot")
    except PgoutputError as error:
        return [type(error).__name__, str(error)]
    return None


if __name__ == "__main__":
    main()
