"""A source that passes for the one of a recorded lake: same system identifier, OIDs and rows, and its slot.

A folder of PostgreSQL has tens of megabytes, so none is kept. A new server gets the number of the old one,
and does the same statements again. What is not here: the recording (``record.py``).
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import psycopg

from quickstart.binaries import account_options, server_account
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from quickstart.postgres import EmbeddedPostgres

SLOT = "old"
SYSTEM_IDENTIFIER = 7_500_000_000_000_000_001
_FIRST_OID = 50_000
#: The lake was recorded far behind this segment, so the position of a new server is before the lake's.
FIRST_SEGMENT, RECORDED_SEGMENT = "000000010000000000000003", "00000001000000000000000A"
SETUP = (
    "CREATE TABLE orders (a int PRIMARY KEY, note text, large text, price numeric(12, 2))",
    "ALTER TABLE orders ALTER large SET STORAGE EXTERNAL",
    "CREATE TABLE bag (a int, y text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "CREATE TABLE events (a int PRIMARY KEY, what text)",
    "CREATE PUBLICATION p FOR TABLE orders, bag, events",
    "INSERT INTO orders SELECT i, 'note ' || i, repeat('x', 2100), i * 1.5 FROM generate_series(1, 9) i",
    "INSERT INTO bag SELECT i % 2, 'y' FROM generate_series(1, 4) i",
    "INSERT INTO events VALUES (1, 'one'), (2, 'two')",
)
#: What each batch after the copy carries.
BATCHES = (
    (
        "UPDATE orders SET note = NULL WHERE a <= 2",  # Its large value is not sent.
        "UPDATE orders SET a = 10 WHERE a = 3",
        "INSERT INTO orders VALUES (20, 'rejected', 'short', 'NaN')",
        "UPDATE events SET what = 'changed' WHERE a = 1",
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
    ),
    (
        "ALTER TABLE orders ADD added int DEFAULT 7",
        "INSERT INTO orders VALUES (11, 'new', 'short', 0.25, 8)",
        "ALTER TABLE events RENAME what TO word",
        "INSERT INTO events VALUES (3, 'three')",
        "DELETE FROM events WHERE a = 2",
    ),
    (
        "UPDATE orders SET note = 'waits' WHERE a = 4",
        "DELETE FROM orders WHERE a = 5",
        "TRUNCATE bag",
        "INSERT INTO bag VALUES (7, 'after the truncate')",
    ),
)


def start(server: EmbeddedPostgres, segment: str) -> None:
    """Start a new server under the number of the recorded one.

    :param segment: the WAL file with which it begins.
    """
    server.start()
    server.stop()
    control = server.data_directory / "global" / "pg_control"
    control.write_bytes(_renamed(control.read_bytes()))
    program = server.installation.program("pg_resetwal")
    command = [str(program), "-f", "-o", str(_FIRST_OID), "-l", segment, str(server.data_directory)]
    subprocess.run(command, check=True, cwd="/", **account_options(server_account()))
    server.start()
    with psycopg.connect(server.conninfo()) as session:
        found = session.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
    assert found == (SYSTEM_IDENTIFIER,)
    # It takes an OID, and all that are given later have to be the same.
    reader_conninfo(server.conninfo())


def _renamed(control: bytes) -> bytes:
    """The control file with the other system identifier, and with the checksum that then fits."""
    (end,) = [
        number
        for number in range(64, 512, 4)
        if _crc32c(control[:number]) == int.from_bytes(control[number : number + 4], "little")
    ]
    body = SYSTEM_IDENTIFIER.to_bytes(8, "little") + control[8:end]
    return body + _crc32c(body).to_bytes(4, "little") + control[end + 4 :]


def _crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (0x82F63B78 if found & 1 else 0)
    return found ^ 0xFFFFFFFF


def resume(conninfo: str, end_lsn: str) -> None:
    """Bring a new server to where the recorded one was: rows, slot, and a position past the lake's."""
    with psycopg.connect(conninfo, autocommit=True) as session:
        for statement in (*SETUP, *(each for batch in BATCHES for each in batch)):
            session.execute(statement.encode())
        session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        behind = session.execute("SELECT pg_current_wal_lsn() < %s::pg_lsn", (end_lsn,)).fetchone()
        assert behind == (True,), "the slot has to be before the lake"
        while behind == (True,):
            session.execute("SELECT pg_logical_emit_message(false, 'forward', '')")
            session.execute("SELECT pg_switch_wal()")
            behind = session.execute(
                "SELECT pg_current_wal_lsn() < %s::pg_lsn", (end_lsn,)
            ).fetchone()
