"""Every scenario read from a live server: the messages that were measured, and with every protocol version
the same changes as with version 1.

For the latter the server streams every transaction (before version 16: every one beyond 64 kB), so small
ones come in blocks too. What version 1 sends is decoded by the reference decoder, the others by the fast way.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.capture.pgoutput.notation import stream_notation
from tests.capture.pgoutput.support import (
    SCENARIOS,
    VECTORS,
    Outcome,
    Reading,
    decoder_outcome,
    expected_notation,
    reading_of,
    reference_outcome,
)
from tests.vectors.record import (
    PINNED,
    decode_settings,
    peek,
    plugin_options,
    run_script,
    run_work,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quickstart.postgres import EmbeddedPostgres

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


REFUSED: dict[str, dict[str, Any]] = {
    each["name"]: each for each in json.loads((VECTORS / "refused.json").read_text())
}


@pytest.fixture(scope="module")
def without_autovacuum(postgres_server: EmbeddedPostgres) -> Iterator[None]:
    """The server decides by the memory of all transactions where it ends a block of a streamed one.

    The invalidations of an ANALYZE count, too, those of other databases included. So autovacuum moves
    the end of a block by some rows.
    """
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM SET autovacuum = off")
        session.execute("SELECT pg_reload_conf()")
        waiting_until = time.monotonic() + 60
        while session.execute(
            "SELECT 1 FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'"
        ).fetchall():
            assert time.monotonic() < waiting_until, "an autovacuum worker does not end"
            time.sleep(0.05)
        yield
        session.execute("ALTER SYSTEM RESET autovacuum")
        session.execute("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("without_autovacuum")
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_server_sends_what_was_measured_and_every_version_the_same(
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
        assert _sent(session, name, major) == _settled(expected_notation(name, str(major)))
        session.execute(STREAM_EVERYTHING if major > 15 else STREAM_EARLY)
        plain = {"proto_version": "1", "publication_names": "p", **asked}
        expected = reference_outcome(peek(session, "whole", plain), reading=Reading())
        for version, streaming, two_phase in WAYS:
            if version < 4 or major > 15:
                found = _read(session, plain, version, streaming, two_phase)
                whole = streaming == "off"
                assert _told(found, whole) == _told(expected, whole), (
                    version,
                    streaming,
                    two_phase,
                )


@pytest.mark.parametrize("name", REFUSED)
def test_the_server_refuses_what_was_measured(
    name: str, postgres_server: EmbeddedPostgres, postgres_database: str
) -> None:
    """The publisher refuses the statement, or the read fails: nothing is sent."""
    scenario = REFUSED[name]
    if postgres_server.major > scenario["max_server_version"]:
        pytest.skip("this server sends something, see scenarios.json")
    run_script(postgres_database, scenario["setup"])
    with psycopg.connect(postgres_database, autocommit=True, options=PINNED) as session:
        session.execute("SELECT pg_create_logical_replication_slot('whole', 'pgoutput')")
        if "dml_error" in scenario:
            with pytest.raises(SystemExit, match=re.escape(scenario["dml_error"])):
                run_script(postgres_database, scenario["dml"])
            assert peek(session, "whole", plugin_options(scenario)) == []
            return
        run_script(postgres_database, scenario["dml"])
        with pytest.raises(psycopg.Error, match=re.escape(scenario["read_error"])):
            peek(session, "whole", plugin_options(scenario))


def _sent(session: psycopg.Connection[Any], name: str, major: int) -> str:
    """What the server sends when it is asked as in the scenario."""
    scenario = SCENARIOS[name]
    slot = "prepares" if "two_phase" in scenario["pgoutput_options"] else "whole"
    session.execute(decode_settings(scenario, major))
    bodies = peek(session, slot, plugin_options(scenario))
    session.execute("RESET ALL")
    return _settled(stream_notation(bodies, reading_of(name, str(major))))


def _settled(notation: str) -> str:
    """Without the end of prepared transactions that changed nothing, which some minor versions send."""
    begun = set(re.findall(r"(?:^| )[bp]\[([^]]*)\]", notation))
    return re.sub(
        r"(?:^| )[PKr]\[([^]]*)\]",
        lambda found: found[0] if found[1] in begun else "",
        notation,
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
    reading = Reading(version, streaming == "parallel", two_phase, True)
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
