"""Record the raw messages of every scenario from real servers: ``python -m tests.vectors.record``.

``scenarios.json`` beside this file says what to do and which messages must come, in the notation of
``tests/capture/pgoutput/notation.py``. Each run replaces ``<scenario>/pg<version>.hex``, one message a
line, for each version whose server is on this machine. OIDs of user-defined types, LSNs, xids and times
differ from run to run; the tests do not look at them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.quickstart.binaries import find_installation
from airflow_provider_pgoutput.quickstart.postgres import EmbeddedPostgres

FOLDER = Path(__file__).parent
VERSIONS = (15, 16, 17, 18)
_SETTINGS = {"fsync": "off", "max_prepared_transactions": "10"}
_PINNED = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c bytea_output=hex"
    " -c extra_float_digits=1"
)


def main() -> None:
    for version in VERSIONS:
        try:
            installation = find_installation(version)
        except ConfigurationError:
            print(f"PostgreSQL {version}: not on this machine")
            continue
        home = Path(tempfile.mkdtemp(prefix="pgoutput-record-"))
        server = EmbeddedPostgres(home, installation=installation, settings=_SETTINGS)
        try:
            server.start()
            for scenario in json.loads((FOLDER / "scenarios.json").read_text()):
                if version >= scenario["min_server_version"]:
                    record(server, scenario)
        finally:
            server.destroy()
        print(f"PostgreSQL {server.version}: recorded")


def record(server: EmbeddedPostgres, scenario: dict[str, Any]) -> None:
    """Run one scenario in a database of its own and write what the slot gives."""
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute("DROP DATABASE IF EXISTS recorded")
        session.execute("CREATE DATABASE recorded")
    conninfo = server.conninfo("recorded")
    run_script(conninfo, scenario["setup"])
    with psycopg.connect(conninfo, autocommit=True, options=_PINNED) as session:
        session.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        run_script(conninfo, scenario["dml"])
        options = {"proto_version": "1", "publication_names": "p", **scenario["pgoutput_options"]}
        arguments = [text for option in options.items() for text in option]
        rows = session.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes("
            f"'s', NULL, NULL, {', '.join(['%s'] * len(arguments))})",
            arguments,
            binary=True,
        ).fetchall()
        session.execute("SELECT pg_drop_replication_slot('s')")
    folder = FOLDER / scenario["name"]
    folder.mkdir(exist_ok=True)
    text = "".join(f"{data.hex()}\n" for (data,) in rows)
    (folder / f"pg{server.major}.hex").write_text(text)


def run_script(conninfo: str, script: str) -> None:
    """Run a script as psql does: statement by statement, with ``COPY ... FROM STDIN`` and its data."""
    psql = find_installation(18).program("psql")
    command = [str(psql), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", conninfo]
    # Statements of one line must not become one implicit transaction, as they would with --command.
    done = subprocess.run(command, input=script, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"psql: {done.stderr}\nin: {script}")


if __name__ == "__main__":
    main()
