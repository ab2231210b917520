"""Runs the commands of ``pgoutput`` in this process, through Airflow's own parser of command lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow.cli import cli_parser

if TYPE_CHECKING:
    import pytest


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, str]]]:
    """Run a command; its exit code and what it printed."""
    capsys.readouterr()
    given = cli_parser.get_parser().parse_args(["pgoutput", *arguments, "--output", "json"])
    code = 0
    try:
        given.func(given)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 2
    printed = capsys.readouterr().out
    return code, json.loads(printed) if printed.strip() else []
