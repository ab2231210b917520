"""Record the raw messages of every scenario from real servers: ``python -m tests.vectors.record [name ...]``.

``scenarios.json`` beside this file says what to do and which messages must come, in the notation of
``tests/capture/pgoutput/notation.py``. Each run replaces ``<scenario>/pg<version>.hex``, one message a
line, for each version whose server is on this machine or can be fetched; long ones are compressed
(``.hex.gz``). OIDs of user-defined types, LSNs, xids and times differ from run to run; the tests do not
look at them.

The vectors are of 15.18, 16.14, 17.11 and 18.6. The first two send the ``COMMIT PREPARED`` of a
transaction that changed nothing; 15.19 and 16.15 do not. Scenarios that end in an error and send nothing
are in ``refused.json``; of them there is nothing to record.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart.binaries import Installation, find_installation
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation

FOLDER = Path(__file__).parent
VERSIONS = (15, 16, 17, 18)
_SETTINGS = {"fsync": "off", "max_prepared_transactions": "10"}
PINNED = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c bytea_output=hex"
    " -c extra_float_digits=1"
)
#: Characters of a file beyond which it is compressed.
_PLAIN_SIZE = 64_000


def main() -> None:
    names = set(sys.argv[1:])
    scenarios = json.loads((FOLDER / "scenarios.json").read_text())
    for version in VERSIONS:
        try:
            installation = _installation(version)
        except ConfigurationError:
            print(f"PostgreSQL {version}: not on this machine")
            continue
        home = Path(tempfile.mkdtemp(prefix="pgoutput-record-"))
        server = EmbeddedPostgres(home, installation=installation, settings=_SETTINGS)
        try:
            server.start()
            for scenario in scenarios:
                wanted = not names or scenario["name"] in names
                if wanted and version >= scenario["min_server_version"]:
                    write(scenario, server.major, record(server, scenario))
        finally:
            server.destroy()
        print(f"PostgreSQL {server.version}: recorded")


def _installation(version: int) -> Installation:
    try:
        return find_installation(version)
    except ConfigurationError:
        return find_or_fetch_installation(version)


def record(server: EmbeddedPostgres, scenario: dict[str, Any]) -> list[bytes]:
    """Run one scenario in a database of its own and give what the slot gives."""
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        session.execute("DROP DATABASE IF EXISTS recorded")
        session.execute("CREATE DATABASE recorded")
    conninfo = server.conninfo("recorded")
    run_script(conninfo, scenario["setup"])
    with psycopg.connect(conninfo, autocommit=True, options=PINNED) as session:
        slot = scenario.get("slot_arguments", "'s','pgoutput'")
        session.execute(f"SELECT pg_create_logical_replication_slot({slot})")
        run_work(conninfo, scenario)
        session.execute(decode_settings(scenario, server.major))
        bodies = peek(session, "s", plugin_options(scenario))
        session.execute("SELECT pg_drop_replication_slot('s')")
    return bodies


def plugin_options(scenario: dict[str, Any]) -> dict[str, str]:
    """The options of a scenario's read, with the lowest protocol version that has them."""
    asked = scenario["pgoutput_options"]
    version = 1
    if "streaming" in asked:
        version = 4 if asked["streaming"] == "parallel" else 2
    if "two_phase" in asked:
        version = max(version, 3)
    return {"proto_version": str(version), "publication_names": "p", **asked}


def decode_settings(scenario: dict[str, Any], major: int) -> str:
    """Statements for the session that reads the slot."""
    name = "decode_settings_pg15" if major == 15 else "decode_settings"
    settings: str = scenario.get(name) or scenario.get("decode_settings", "")
    return settings


def peek(session: psycopg.Connection[Any], slot: str, options: dict[str, str]) -> list[bytes]:
    """The messages of a slot, which stays where it is."""
    arguments = [text for option in options.items() for text in option]
    rows = session.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes("
        f"%s, NULL, NULL, {', '.join(['%s'] * len(arguments))})",
        [slot, *arguments],
        binary=True,
    ).fetchall()
    return [data for (data,) in rows]


def write(scenario: dict[str, Any], major: int, bodies: list[bytes]) -> None:
    """Replace the file of one scenario and version."""
    folder = FOLDER / scenario["name"]
    folder.mkdir(exist_ok=True)
    plain, compressed = folder / f"pg{major}.hex", folder / f"pg{major}.hex.gz"
    text = "".join(f"{body.hex()}\n" for body in bodies)
    plain.unlink(missing_ok=True)
    compressed.unlink(missing_ok=True)
    if len(text) > _PLAIN_SIZE:
        compressed.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        plain.write_text(text)


def run_work(conninfo: str, scenario: dict[str, Any]) -> None:
    """Run what a scenario does: a script, or the statements of several sessions in turns."""
    if "sessions" not in scenario:
        run_script(conninfo, scenario["dml"])
        return
    with contextlib.ExitStack() as stack:
        sessions: dict[int, psycopg.Connection[Any]] = {}
        for number, statement in scenario["sessions"]:
            if number not in sessions:
                sessions[number] = stack.enter_context(psycopg.connect(conninfo, autocommit=True))
            sessions[number].execute(statement)


def run_script(conninfo: str, script: str) -> None:
    """Run a script as psql does: statement by statement, with ``COPY ... FROM STDIN`` and its data."""
    psql = find_installation(18).program("psql")
    command = [str(psql), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", conninfo]
    # Statements of one line must not become one implicit transaction, as they would with --command.
    done = subprocess.run(command, input=script, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"psql: {done.stderr}\nin: {script}")


if __name__ == "__main__":
    main()
