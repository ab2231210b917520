"""``python -m quickstart``: what the Makefile's targets run."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from airflow_provider_pgoutput.errors import PgoutputError

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m quickstart")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="a PostgreSQL under load into Iceberg, then compare")
    airflow = commands.add_parser("airflow", help="Airflow's web page while a pipeline runs")
    airflow.add_argument("--port", type=int, default=8080, help="of the web page")
    sql = commands.add_parser("sql", help="run a statement of Spark SQL on the demo's lake")
    sql.add_argument("statement")
    commands.add_parser("clean", help="remove what the demo left")
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("airflow_provider_pgoutput").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, _end)  # So that `with` blocks stop what they started.
    try:
        return _run(parsed)
    except PgoutputError as error:
        print(f"\nFAILED: {error}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("\nInterrupted; everything that was started has been stopped.", file=sys.stderr)
    return 1


def _run(parsed: argparse.Namespace) -> int:
    # Imported here, so that a missing dependency is a sentence and --help is quick.
    from quickstart import demo, looking  # noqa: PLC0415
    from quickstart.place import DemoPlace  # noqa: PLC0415

    place = DemoPlace.of_this_checkout()
    if parsed.command == "demo":
        return demo.run_demo(place)
    if parsed.command == "airflow":
        return looking.run_airflow(place, parsed.port)
    if parsed.command == "sql":
        return looking.run_sql(place, parsed.statement)
    with place.locked():
        place.clear()
    return 0


def _end(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
