"""Names and arguments of the commands. Airflow (from 3.2 on) imports this at each start of its command line.

``commands.py``, which does the work, is imported when a command runs.
"""

from __future__ import annotations

from typing import Any

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ActionCommand,
    Arg,
    GroupCommand,
    lazy_load_command,
)

from airflow_provider_pgoutput.hooks import default_connections

_COMMANDS = "airflow_provider_pgoutput.cli.commands"


def _argument(flag: str, **options: Any) -> Arg:
    return Arg((flag,), **options)  # type: ignore[no-untyped-call]


_SLOT = _argument("--slot-name", help="The replication slot", required=True)
_NAMESPACE = _argument("--namespace", help="Namespace of the Iceberg tables", required=True)
_ICEBERG = _argument(
    "--iceberg-conn-id", help="Connection of the catalog", default=default_connections.ICEBERG
)
_CATALOG = _argument(
    "--catalog-name", help="Name of the catalog, if it is not the name of the connection"
)
_POSTGRES = _argument(
    "--postgres-conn-id", help="Connection of the source", default=default_connections.POSTGRES
)
_STAGING = _argument(
    "--staging-uri", help="Folder of the staging area; if given, its batches are examined, too"
)
_TWO_PHASE = _argument(
    "--two-phase", help="The slot is read with two_phase", action="store_true", default=False
)
_REPAIR = _argument(
    "--repair",
    help="Rebuild a lost checkpoint, and remove the branches of attempts that died",
    action="store_true",
    default=False,
)
_REPAIR_ROWS = _argument(
    "--repair",
    help="Let the pipeline read the rows that differ from the source again, then verify once more",
    action="store_true",
    default=False,
)
_PUBLICATIONS = _argument(
    "--publication-names", help="The publications, with commas between", required=True
)
_MARKED = _argument("--staging-uri", help="Folder of the staging area", required=True)
_TABLES = _argument(
    "--tables",
    help="schema.table of the source, with commas between; default: all published tables",
)
_KEYS = _argument(
    "--keys-shown", help="How many keys of rows that differ are printed", type=int, default=0
)
_SHARE = _argument(
    "--share",
    help="Compare only the next part of each table, such as 0.01",
    type=float,
    default=1.0,
)
_HASH = _argument(
    "--hash-function",
    help="What makes the digests: the server's own hash functions, or md5",
    choices=("server", "md5"),
    default="server",
)
_METHOD = _argument(
    "--method",
    help="auto: read only what changed since the last verification, if the server keeps WAL summaries",
    choices=("full", "auto"),
    default="full",
)
_WAIT = _argument(
    "--wait-seconds",
    help="The longest wait until the lake has reached the LSN",
    type=int,
    default=3600,
)
_MASK = _argument(
    "--mask-conn-id",
    help="Connection whose password is the secret of hashed columns; without it they are not compared",
)
_TIME = _argument(
    "time", help="A time of the source's clock in ISO 8601; a time without a zone is UTC"
)
_LAKE = (_SLOT, _NAMESPACE, _ICEBERG, _CATALOG)


def get_cli_commands() -> list[GroupCommand]:
    """The group ``airflow pgoutput``."""
    return [
        GroupCommand(
            name="pgoutput",
            help="PostgreSQL logical replication to Iceberg: where a pipeline stands, and what is wrong",
            subcommands=(
                ActionCommand(
                    name="status",
                    help="Where each table of a pipeline is, from the checkpoint table",
                    func=lazy_load_command(f"{_COMMANDS}.status"),
                    args=(*_LAKE, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="lsn-at",
                    help="The LSN that the lake had reached at a time, for queries of the past or replays",
                    description="Batches are whole: one ends before the time, the next one reaches past it.",
                    func=lazy_load_command(f"{_COMMANDS}.lsn_at"),
                    args=(_TIME, *_LAKE, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="doctor",
                    help="Compare slot, checkpoint, tables and staging",
                    description="Exit code 1 when there is a problem. Notes need no action.",
                    func=lazy_load_command(f"{_COMMANDS}.doctor"),
                    args=(*_LAKE, _POSTGRES, _STAGING, _TWO_PHASE, _REPAIR, ARG_OUTPUT),
                ),
                ActionCommand(
                    name="verify",
                    help="Compare lake and source at one LSN, row by row, by digests",
                    description="The pipeline has to run meanwhile. Exit code 1 when a table differs.",
                    func=lazy_load_command(f"{_COMMANDS}.verify"),
                    args=(
                        *(*_LAKE, _POSTGRES, _MARKED, _PUBLICATIONS, _MASK),
                        *(_TABLES, _SHARE, _KEYS, _WAIT, _METHOD, _HASH, _REPAIR_ROWS, ARG_OUTPUT),
                    ),
                ),
            ),
        )
    ]
