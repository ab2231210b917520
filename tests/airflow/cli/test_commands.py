"""``pgoutput``: where a pipeline stands, and which batches lie around a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.cli import cli_parser
from airflow.models.connection import Connection
from airflow.utils.session import create_session
from pyiceberg.catalog import load_catalog
from sqlalchemy import delete

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.cli import script
from airflow_provider_pgoutput.proof.digest import Digest
from airflow_provider_pgoutput.proof.record import record_proof
from airflow_provider_pgoutput.proof.report import Differences, Proof, TableProof
from tests.airflow.command_line import run

if TYPE_CHECKING:
    from tests.airflow.conftest import TestLake


def test_help_needs_no_connection(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli_parser.get_parser().parse_args(["pgoutput", "--help"])
    assert "doctor" in capsys.readouterr().out


def test_the_program_prints_what_the_command_of_airflow_prints(
    healthy: Lsn, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["status", "--slot-name", slot, "--namespace", "shop"]
    _, rows = run(capsys, *given)
    script.main([*given, "--output", "json"])
    assert json.loads(capsys.readouterr().out) == rows != []


def test_the_program_does_not_print_its_log_between_the_rows(healthy: Lsn, slot: str) -> None:
    source = json.loads(os.environ["AIRFLOW_CONN_POSTGRES_DEFAULT"])
    # The second host is not asked, but each host must be verified. So the log has a warning.
    source["host"] += ",127.0.0.2"
    source["extra"]["sslmode"] = "disable"
    program = str(Path(sys.executable).with_name("pgoutput"))
    ended = subprocess.run(
        [program, "doctor", "--slot-name", slot, "--namespace", "shop", "--output", "json"],
        env={**os.environ, "AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps(source)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert "does not verify its server" in ended.stderr
    assert json.loads(ended.stdout) == []


def test_the_program_refuses_a_command_that_it_does_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main(["repair"])
    assert "doctor" in capsys.readouterr().err


def test_status_shows_each_table(
    healthy: Lsn, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows = run(capsys, "status", "--slot-name", slot, "--namespace", "shop")
    assert code == 0
    assert [(row["table"], row["lsn"]) for row in rows] == [
        ("(all)", str(healthy)),
        ("public.t", str(healthy)),
    ]


def test_status_shows_what_is_set_aside(
    lake: TestLake, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.record(slot, "0/20", start_lsn="0/10", tables={"public.t": 7})
    lake.record(slot, "0/30", start_lsn="0/20", set_aside={"public.t": 7, "public.new": 8})
    _, rows = run(capsys, "status", "--slot-name", slot, "--namespace", "shop")
    why = "since 0/20, 1 batches: RowMissing: A row is missing. What to do: copy it."
    assert [(row["table"], row["lsn"], row["set_aside"]) for row in rows] == [
        ("(all)", "0/30", ""),
        ("public.t", "0/20", why),
        ("public.new", "", why),
    ]


def test_status_shows_incomplete_tables(
    lake: TestLake, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.record(slot, "0/20", start_lsn="0/10", tables={"public.t": 7, "public.u": 8})
    lake.quarantine(slot, "public.t", 7)
    _, rows = run(capsys, "status", "--slot-name", slot, "--namespace", "shop")
    assert [(row["table"], row["incomplete"]) for row in rows] == [
        ("(all)", ""),
        ("public.t", "2 keys in pgoutput_quarantine since LSN 0/11"),
        ("public.u", ""),
    ]


def test_status_shows_what_the_newest_verification_of_each_table_found(
    lake: TestLake, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {"public.t": 7, "public.u": 8, "public.v": 9}
    lake.record(slot, "0/20", start_lsn="0/10", tables=tables)
    catalog = load_catalog(lake.catalog_name, **lake.properties)
    two, three = Digest(2, 5), Digest(3, 6)
    differs = Differences(1, 0, 0, 1, 1, 1)
    t, u, v = tables
    for lsn, proofs in {
        "0/15": (
            TableProof(t, "shop.t", two, two),
            TableProof(u, "shop.u", three, three),
            TableProof(v, "shop.v", two, two),
        ),
        "0/20": (
            TableProof(t, "shop.t", three, two, differs),
            TableProof(u, "shop.u", not_compared="it is a change log"),
        ),
    }.items():
        record_proof(catalog, "shop", Proof(slot, "1", Lsn.parse(lsn), proofs))
    record_proof(
        catalog, "shop", Proof("other", "1", Lsn.parse("0/30"), (TableProof(v, "shop.v"),))
    )
    _, rows = run(capsys, "status", "--slot-name", slot, "--namespace", "shop")
    found = {row["table"]: row["verified"].rpartition(",")[0] for row in rows}
    assert found == {
        "(all)": "1 of 3 tables, 2 rows equal at 0/15 to 0/20",
        t: "different at 0/20",
        u: "not compared (it is a change log) at 0/20",
        v: "equal at 0/15",
    }


def test_connections_of_the_metadata_database_are_found(
    healthy: Lsn,
    slot: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Most are kept there, and outside of a task Airflow looks there only when it is told to."""
    stored = []
    for conn_id in ("postgres_default", "iceberg_default"):
        body = os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"]
        monkeypatch.delenv(f"AIRFLOW_CONN_{conn_id.upper()}")
        stored.append(Connection.from_json(body, conn_id=f"kept_{conn_id}"))
    with create_session() as session:
        session.add_all(stored)
    lake = ("--iceberg-conn-id", "kept_iceberg_default", "--catalog-name", "iceberg_default")
    at = ("--slot-name", slot, "--namespace", "shop", *lake)
    try:
        assert run(capsys, "doctor", "--postgres-conn-id", "kept_postgres_default", *at) == (0, [])
        assert run(capsys, "status", *at)[0] == 0
        assert run(capsys, "lsn-at", "2026-02-01", *at)[0] == 0
    finally:
        with create_session() as session:
            session.execute(delete(Connection).where(Connection.conn_id.like("kept_%")))
    assert "_AIRFLOW_PROCESS_CONTEXT" not in os.environ


def test_the_batches_around_a_time(lake: TestLake, capsys: pytest.CaptureFixture[str]) -> None:
    def noon(minute: int) -> datetime:
        return datetime(2026, 1, 31, 12, minute, tzinfo=UTC)

    # The second batch was empty; a row of a table says nothing new.
    for end, time in (("0/10", noon(0)), ("0/20", None), ("0/30", noon(20)), ("0/40", noon(40))):
        lake.record("past", end, tables={"public.t": 1}, last_commit_time=time)
    at = ("--slot-name", "past", "--namespace", "shop")

    def ends(time: str) -> list[tuple[str, str]]:
        code, rows = run(capsys, "lsn-at", time, *at)
        assert code == 0
        return [(row["batch"], row["end_lsn"]) for row in rows]

    assert ends("2026-01-31T12:19:59") == [("before", "0/20"), ("reaches past", "0/30")]
    # A transaction that committed at the time itself is not past it.
    assert ends("2026-01-31T13:20:00+01:00") == [("before", "0/30"), ("reaches past", "0/40")]
    assert ends("2026-01-30T00:00:00Z") == [("reaches past", "0/10")]
    assert ends("2026-02-01") == [("before", "0/40")]
    # Nobody knows when that was copied, until a batch with a time follows.
    lake.record("past", "0/50", copied=3)
    assert ends("2026-02-01") == [("before", "0/40"), ("reaches past", "0/50")]
    lake.record("past", "0/60", last_commit_time=noon(50))
    assert ends("2026-01-31T12:45:00") == [("before", "0/40"), ("reaches past", "0/50")]
    assert ends("2026-02-01") == [("before", "0/60")]
    # The same where there were changes beside the copy.
    lake.record("past", "0/70", copied=3, last_commit_time=noon(51))
    assert ends("2026-01-31T12:55:00") == [("before", "0/60"), ("reaches past", "0/70")]
    lake.record("past", "0/80", last_commit_time=noon(56))
    assert ends("2026-01-31T12:57:00") == [("before", "0/80")]
    assert run(capsys, "lsn-at", "noon", *at)[0] == 2
    assert run(capsys, "lsn-at", "2026-02-01", "--slot-name", "x", "--namespace", "shop")[0] == 2


def test_with_nothing_wrong_there_is_one_sentence(
    healthy: Lsn, slot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--slot-name", slot, "--namespace", "shop", "--output", "table"]
    for command, namespace, sentence in (
        (
            "doctor",
            "shop",
            f"slot {slot}, the checkpoint ({healthy}) and 1 tables of the lake agree",
        ),
        ("doctor", "empty", "nothing was applied from it yet"),
        ("status", "empty", "was applied to namespace empty yet"),
    ):
        arguments[3] = namespace
        given = cli_parser.get_parser().parse_args(["pgoutput", command, *arguments])
        given.func(given)
        (line,) = capsys.readouterr().out.strip().splitlines()
        assert sentence in line


def test_a_slot_that_is_nowhere_is_a_problem(
    lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Most likely its name is misspelt. A script must not take that for a healthy pipeline."""
    code, rows = run(capsys, "doctor", "--slot-name", "misspelt", "--namespace", "shop")
    assert code == 1
    assert [(row["severity"], row["where"]) for row in rows] == [("problem", "slot")]
    assert "There is no slot misspelt at the source" in rows[0]["what"]
