"""Asks catalogs for a checkpoint, as the worker does, and says with which error each of them answers.

It is started by its path in an environment with the clients of all catalogs, with a request as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import PgoutputError
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping


def main() -> None:
    """Ask each catalog of the request; print class and message of its error, or nothing."""
    request = json.load(sys.stdin)
    print(json.dumps({name: _answer(each["properties"]) for name, each in request.items()}))


def _answer(properties: Mapping[str, str]) -> list[str] | None:
    try:
        read_checkpoint("lake", properties, "n", "slot")
    except PgoutputError as error:
        return [type(error).__name__, str(error)]
    return None


if __name__ == "__main__":
    main()
