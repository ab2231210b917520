"""Every scenario read from a live server with every protocol version: the same changes as with version 1.

The server streams every transaction (before version 16: every one beyond 64 kB), so small ones come in
blocks too. What version 1 sends is decoded by the reference decoder, the others by the fast way.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.capture.pgoutput.support import (
    SCENARIOS,
    Outcome,
    Reading,
    decoder_outcome,
    reference_outcome,
)
from tests.vectors.record import PINNED, peek, run_script, run_work

if TYPE_CHECKING:
    from airflow_provider_pgoutput.quickstart.postgres import EmbeddedPostgres

pytestmark = pytest.mark.postgres

STREAM_EVERYTHING = "SET debug_logical_replication_streaming = immediate"
STREAM_EARLY = "SET logical_decoding_work_mem = '64kB'"
#: proto_version, streaming, two_phase
WAYS = [
    (version, streaming, two_phase)
    for version in (2, 3, 4)
    for streaming in ("off", "on", "parallel")
    for two_phase in (False, True)
    if (streaming != "parallel" or version == 4) and (not two_phase or version > 2)
]


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_version_sends_the_same_changes(
    name: str, postgres_server: EmbeddedPostgres, postgres_database: str
) -> None:
    scenario = SCENARIOS[name]
    major = postgres_server.major
    if major < scenario["min_server_version"]:
        pytest.skip(f"needs PostgreSQL {scenario['min_server_version']}")
    asked = {
        option: value
        for option, value in scenario["pgoutput_options"].items()
        if option not in {"streaming", "two_phase"}
    }
    run_script(postgres_database, scenario["setup"])
    with psycopg.connect(postgres_database, autocommit=True, options=PINNED) as session:
        session.execute("SELECT pg_create_logical_replication_slot('whole', 'pgoutput')")
        session.execute(
            "SELECT pg_create_logical_replication_slot('prepares', 'pgoutput', false, true)"
        )
        run_work(postgres_database, scenario)
        session.execute(STREAM_EVERYTHING if major > 15 else STREAM_EARLY)
        plain = {"proto_version": "1", "publication_names": "p", **asked}
        expected = reference_outcome(
            peek(session, "whole", plain), reading=Reading(binary="binary" in asked)
        )
        for version, streaming, two_phase in WAYS:
            if version < 4 or major > 15:
                found = _read(session, plain, version, streaming, two_phase)
                whole = streaming == "off"
                assert _told(found, whole) == _told(expected, whole), (
                    version,
                    streaming,
                    two_phase,
                )


def _read(
    session: psycopg.Connection[Any],
    plain: dict[str, str],
    version: int,
    streaming: str,
    two_phase: bool,
) -> Outcome:
    options = {**plain, "proto_version": str(version), "streaming": streaming}
    if streaming == "off":
        del options["streaming"]
    if two_phase:
        options["two_phase"] = "true"
    bodies = peek(session, "prepares" if two_phase else "whole", options)
    # Whether a server sends commits of empty prepared transactions depends on its minor version.
    reading = Reading(version, streaming == "parallel", two_phase, True, "binary" in plain)
    return decoder_outcome([bodies], reading=reading)


def _told(outcome: Outcome, whole: bool) -> object:
    """What must not depend on the version; an empty transaction can be told or not.

    Of a transaction that is streamed the server does not know yet where it came from.
    """
    changes, state = outcome
    if not whole:
        changes = {
            oid: [dataclasses.replace(each, origin=None, origin_lsn=None) for each in of_relation]
            for oid, of_relation in changes.items()
        }
    messages = sorted(state["messages"], key=lambda each: (each.lsn, each.prefix))
    return changes, messages, state["origins"]
