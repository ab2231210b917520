"""The program ``pgoutput``: the same commands as ``airflow pgoutput``, which Airflow has from 3.2 on."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    :param arguments: the words after the program's name; None: those of this process.
    """
    # This import sets up Airflow's log, which Airflow 3.2 and 3.3 write to the standard output. There the log
    # would be between the rows that a script reads.
    with redirect_stdout(sys.stderr):
        from airflow_provider_pgoutput.cli.definition import get_cli_commands  # noqa: PLC0415

    (group,) = get_cli_commands()
    parser = argparse.ArgumentParser(prog=group.name, description=group.help)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in group.subcommands:
        described = command.description or command.help
        its_parser = commands.add_parser(command.name, help=command.help, description=described)
        for argument in command.args:
            argument.add_to_parser(its_parser)
        its_parser.set_defaults(run=command.func)
    given = parser.parse_args(arguments)
    given.run(given)
