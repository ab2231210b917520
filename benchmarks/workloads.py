"""Prepares a server for the workloads of workloads.sql and runs them. Measures nothing.

Each workload is decoded from a slot that was made just before it and is never advanced. A contender
gets a copy of that slot, so that all of them read the same WAL from the same position.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
from psycopg.rows import scalar_row

from quickstart.postgres import HOST, SUPERUSER, EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLICATION = "pub"
SCHEMA = Path(__file__).with_name("workloads.sql")

#: Server settings of all figures, see workloads.sql.
SERVER_SETTINGS = {
    "fsync": "off",
    "shared_buffers": "512MB",
    "jit": "off",
    "autovacuum": "off",
    "wal_level": "logical",
}

#: The id, 31 times 32 digits, and what the protocol puts around them.
HUGE_ROW_BYTES = 1020

DATABASE = "bench"
PGBENCH_CLIENTS = 4

#: What a row change starts with in protocol version 1: insert, update, delete, truncate.
_ROW_MESSAGES = "(73, 85, 68, 84)"


@dataclass(frozen=True, slots=True)
class Workload:
    """What one workload does at scale 1."""

    name: str
    description: str
    #: SQL with one ``%s`` for the size, or None: pgbench.
    statement: str | None
    #: Transactions (W4: rows) at scale 1; pgbench: transactions per client.
    size: int
    #: SQL that makes rows and tables before the slot is made, or None.
    prepare: str | None = None
    #: SQL that drops the tables that ``prepare`` made, or None.
    clean: str | None = None


WORKLOADS = {
    each.name: each
    for each in (
        Workload("W1", "2 M narrow changes, 1000 per transaction", "CALL w1(%s, 1)", 2000),
        Workload("W2", "400 k changes of 30 columns", "CALL w2(%s, 1)", 400),
        Workload("W3", "200 k pgbench transactions of 4 changes", None, 50_000),
        Workload("W4", "one transaction of 1 M inserts", "CALL w4(%s)", 1_000_000),
        # The other workloads should not run in a database with 400 more tables.
        Workload(
            "W5",
            "400 tables that get 500 inserts each, in turns",
            "CALL w5(400, %s)",
            500,
            prepare="CALL w5_create(400)",
            clean="CALL w5_drop(400)",
        ),
        Workload("W6", "300 k changes with REPLICA IDENTITY FULL", "CALL w6(%s, 1)", 300),
        Workload(
            "W7",
            "200 k updates beside 4 kB of unchanged TOAST",
            "CALL w7(%s)",
            200,
            prepare="CALL w7_fill()",
        ),
        Workload("W8", "300 k changes of jsonb, numeric, arrays and times", "CALL w8(%s, 1)", 300),
    )
}


@dataclass(frozen=True, slots=True)
class Backlog:
    """A finished workload that waits in the WAL."""

    workload: Workload
    #: The slot to copy.
    slot: str
    #: Past the last commit of the workload, before the tail row.
    end_lsn: str
    #: Row changes that the server's own decoding finds up to ``end_lsn``.
    rows: int


class Source:
    """The server with the database of the workloads; a context manager.

    :ivar conninfo: for our own readers, with the password.
    :ivar connection: autocommit, for everything that the benchmark itself asks the server.
    """

    def __init__(self, home: Path, pgbench_scale: int = 10) -> None:
        self.server = EmbeddedPostgres(home, settings=SERVER_SETTINGS)
        self._pgbench_scale = pgbench_scale

    def __enter__(self) -> Source:
        self.server.start()
        with psycopg.connect(self.server.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}".encode())
        self.conninfo = self.server.conninfo(DATABASE)
        self.connection = psycopg.connect(self.conninfo, autocommit=True)
        self.run_program("pgbench", "--initialize", "--quiet", f"--scale={self._pgbench_scale}")
        self.connection.execute(SCHEMA.read_bytes())
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.server.destroy()

    def run_program(self, name: str, *arguments: str) -> None:
        """Run a client program of the server's own version against the database."""
        environment = {
            **os.environ,
            "PGHOST": HOST,
            "PGPORT": str(self.server.port),
            "PGUSER": SUPERUSER,
            "PGPASSWORD": self.server.password,
            "PGDATABASE": DATABASE,
        }
        program = str(self.server.installation.program(name))
        done = subprocess.run(
            [program, *arguments], check=False, capture_output=True, text=True, env=environment
        )
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")

    def cpu_seconds(self) -> float | None:
        """User and system time that the server's processes have used, the ended ones too.

        None where there is no ``/proc``. https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
        """
        if not Path("/proc/self/stat").is_file():
            return None
        lines = (self.server.data_directory / "postmaster.pid").read_text().splitlines()
        main = Path("/proc") / lines[0].strip()
        # The main process sums up its ended children; of a living one only its own time counts.
        found = sum(_clock_ticks(main)[:4])
        for child in (main / "task" / main.name / "children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                found += sum(_clock_ticks(Path("/proc") / child)[:2])
        return found / os.sysconf("SC_CLK_TCK")

    def scalar(self, statement: str, *parameters: object) -> object:
        """First value of the first row that a statement returns."""
        with self.connection.cursor(row_factory=scalar_row) as cursor:
            return cursor.execute(statement.encode(), parameters).fetchone()

    def count_messages(self, slot: str, end_lsn: str, condition: str = "true") -> int:
        """Messages that the slot's decoding gives up to an LSN; the server counts them itself."""
        return int(
            str(
                self.scalar(
                    "SELECT count(*) FROM pg_logical_slot_peek_binary_changes(%s, %s, NULL,"
                    f" 'proto_version', '1', 'publication_names', %s) WHERE {condition}",
                    slot,
                    end_lsn,
                    PUBLICATION,
                )
            )
        )


def _clock_ticks(process: Path) -> list[int]:
    """Fields 14 to 17 of ``/proc/<pid>/stat``: own user and system time, the children's."""
    # The name in field 2 may hold blanks and parentheses; what follows the last one may not.
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return [int(each) for each in fields[11:15]]


@contextmanager
def backlog(source: Source, workload: Workload, scale: float) -> Iterator[Backlog]:
    """Run a workload behind a new slot; the slot and the WAL it holds go away afterwards."""
    slot = f"bench_{workload.name.lower()}"
    if workload.prepare is not None:
        source.connection.execute(workload.prepare.encode())
    source.scalar("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    try:
        run(source, workload, scale)
        end_lsn = str(source.scalar("SELECT pg_current_wal_flush_lsn()::text"))
        source.connection.execute("INSERT INTO bench_tail (note) VALUES ('past the end')")
        # Nobody's figures should pay for writing back what the workload left in the buffers.
        source.connection.execute("CHECKPOINT")
        rows = source.count_messages(slot, end_lsn, f"get_byte(data, 0) IN {_ROW_MESSAGES}")
        yield Backlog(workload, slot, end_lsn, rows)
    finally:
        source.scalar("SELECT pg_drop_replication_slot(%s)", slot)
        if workload.clean is not None:
            source.connection.execute(workload.clean.encode())


@contextmanager
def huge_backlog(source: Source, gigabytes: float) -> Iterator[Backlog]:
    """One transaction of rows of some 1 kB; the slot and its WAL go away afterwards."""
    workload = Workload("huge", "one transaction", None, 0)
    rows = max(1, round(gigabytes * 1e9 / HUGE_ROW_BYTES))
    source.connection.execute("CREATE TABLE bench_huge(id bigint PRIMARY KEY, content text)")
    source.scalar("SELECT pg_create_logical_replication_slot('bench_huge', 'pgoutput')")
    try:
        source.connection.execute(
            "INSERT INTO bench_huge SELECT g, repeat(md5(g::text), 31)"
            f" FROM generate_series(1, {rows}) g".encode()
        )
        end_lsn = str(source.scalar("SELECT pg_current_wal_flush_lsn()::text"))
        yield Backlog(workload, "bench_huge", end_lsn, rows)
    finally:
        source.scalar("SELECT pg_drop_replication_slot('bench_huge')")


def run(source: Source, workload: Workload, scale: float) -> None:
    """Run one workload to its end."""
    size = max(1, round(workload.size * scale))
    if workload.statement is None:
        source.run_program("pgbench", "-n", f"-c{PGBENCH_CLIENTS}", "-j1", f"-t{size}")
    else:
        source.connection.execute(workload.statement.encode(), (size,))


@contextmanager
def copied_slot(source: Source, backlog: Backlog) -> Iterator[str]:
    """A copy of the workload's slot for one contender."""
    name = f"{backlog.slot}_copy"
    source.scalar("SELECT pg_copy_logical_replication_slot(%s, %s)", backlog.slot, name)
    try:
        yield name
    finally:
        source.scalar("SELECT pg_drop_replication_slot(%s)", name)
