"""``decode_parallelism``: a slot decoded by several connections at once gives the batch that one gives.

Random sessions are read so by ``torture.py``. What is not here: where the cuts are
(``stream/test_sql_parallel.py``), and a stream that is cut and joined again (``stream/test_sql.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import ConfigurationError
from tests.capture.pipeline_support import PROGRAM, Source, checkpoint_of, process_body

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

#: Parallelism and size of the parts; the backlog has some hundred times as much.
PARTS = ((2, 1 << 13), (3, 20_000), (3, 1 << 17))
COPIES = "pg_replication_slots WHERE temporary"
DECODING = (
    "pg_stat_activity WHERE datname = current_database() AND state = 'active'"
    " AND query LIKE '%pg_logical_slot_peek_binary_changes(%' AND pid <> pg_backend_pid()"
)


#: Ends a backend whose answer has begun: before that the driver ends the whole process
#: (docs/explanation/reading_the_slot.md).
END_ONE = (
    "SELECT pg_terminate_backend(max(pid)) FROM pg_stat_progress_copy"
    " WHERE datname = current_database() AND tuples_processed > 0"
)


def wait_for_copies(source: Source, wanted: int) -> None:
    """Until there are so many temporary slots; the server looks every two seconds who is still there."""
    deadline = time.monotonic() + 15
    while len(source.execute(f"SELECT 1 FROM {COPIES}")) != wanted:
        assert time.monotonic() < deadline, f"there are not {wanted} copies"
        time.sleep(0.01)


def fill(source: Source) -> Checkpoint:
    """A transaction that is open all the time, savepoints, new shapes, a truncate, messages, an origin."""
    checkpoint = checkpoint_of(source.stage())
    insert = "INSERT INTO t SELECT g, repeat('x', 90) FROM generate_series({}, {}) g"
    with psycopg.connect(source.conninfo) as long, psycopg.connect(source.conninfo) as nested:
        long.execute(insert.format(-2000, -1500))
        for number in range(40):
            source.execute(insert.format(number * 1000, number * 1000 + 150))
            nested.execute(insert.format(100_000 + number * 1000, 100_000 + number * 1000 + 50))
            nested.execute("SAVEPOINT s")
            nested.execute("UPDATE t SET b = 'undone' WHERE a >= 100000")
            nested.execute("ROLLBACK TO s")
            source.execute(f"SELECT pg_logical_emit_message({number % 2 == 0}, 'p', 'm{number}')")
            if number % 10 == 9:
                long.execute(insert.format(-1400 + number * 20, -1400 + number * 20 + 15))
                nested.commit()
                source.execute(f"CREATE TABLE other_{number} (id int)", "ANALYZE t")
        long.commit()
        nested.execute("ALTER TABLE t ADD c int DEFAULT 7")
        nested.execute(insert.format(500_000, 500_500).replace("INTO t", "INTO t(a, b)"))
        nested.commit()
    source.execute(
        "UPDATE t SET c = a WHERE a % 3 = 0",
        "ALTER TABLE t RENAME c TO d",
        "DELETE FROM t WHERE a % 5 = 0",
        "ALTER TABLE t DROP d",
        "TRUNCATE t",
        "INSERT INTO t VALUES (1, 'last')",
    )
    return checkpoint


def elsewhere(source: Source, number: int) -> Source:
    """The same source with a staging area of its own, where no sealed batch is found."""
    return dataclasses.replace(source, staging=source.staging / str(number))


def content(source: Source, manifest: Manifest) -> dict[str, Any]:
    """All that a batch says, but for how its rows are spread over files."""
    tables = {
        each.name: (
            dataclasses.replace(each, versions=()),
            [dataclasses.replace(version, files=()) for version in each.versions],
            [sum(file.rows for file in version.files) for version in each.versions],
            [_without_empty(row) for row in source.changes(manifest, each.name)],
        )
        for each in manifest.tables
    }
    # The server's own records move the end of the WAL between two reads.
    # The runs began one after the other, so each is complete up to another time.
    beside = dataclasses.replace(
        manifest, tables=(), message_files=(), end_lsn=manifest.start_lsn, complete_until=None
    )
    return {"tables": tables, "messages": source.messages(manifest), "beside": beside}


def _without_empty(row: dict[str, Any]) -> dict[str, Any]:
    """A file has no column that is empty throughout it."""
    return {name: value for name, value in row.items() if value not in (None, False)}


@pytest.mark.parametrize(
    "options",
    [
        {"streaming": "on"},
        {"messages": True},
        pytest.param({"streaming": "off"}, marks=pytest.mark.exhaustive),
        pytest.param({"binary": True}, marks=pytest.mark.exhaustive),
    ],
    ids=str,
)
def test_any_parallelism_stages_the_same_batch(source: Source, options: dict[str, Any]) -> None:
    (database,) = source.execute("SELECT current_database()")[0]
    source.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    checkpoint = fill(source)
    how = {"checkpoint": checkpoint, "options": StreamOptions(**options)}
    staged = []
    for number, (parallelism, part_bytes) in enumerate(((1, 1 << 30), *PARTS)):
        each = elsewhere(source, number)
        manifest = each.stage(decode_parallelism=parallelism, part_bytes=part_bytes, **how)
        staged.append(content(each, manifest))
        wait_for_copies(source, 0)
    counts = staged[0]["beside"]
    assert counts.transactions > 40
    assert staged[0]["tables"]["public.t"][0].counts.inserts > 8000
    assert len(staged[0]["messages"]) == (40 if "messages" in options else 0)
    for parallel in staged[1:]:
        assert parallel == staged[0]
    assert source.confirmed() == str(checkpoint.end_lsn)


def test_a_limit_ends_the_same_batch_whoever_reads(source: Source) -> None:
    """Parts come in their order, so the first commit past a limit is the same one."""
    checkpoint = fill(source)
    ends = set()
    for parallelism in (1, 3):
        for number, limits in enumerate(({"max_changes": 2000}, {"max_bytes": 200_000})):
            manifest = elsewhere(source, 2 * parallelism + number).stage(
                checkpoint=checkpoint,
                decode_parallelism=parallelism,
                part_bytes=1 << 13,
                **limits,
            )
            ends.add((*limits, manifest.end_lsn, manifest.changes, manifest.transactions))
    assert len(ends) == 2


def test_a_slot_with_two_phase_is_read_by_one_connection(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy would send prepared transactions at their commit."""
    options = StreamOptions(two_phase=True)
    checkpoint = checkpoint_of(source.stage(options=options))
    for number in range(4):
        rows = f"generate_series({number}000, {number}500)"
        with psycopg.connect(source.conninfo, autocommit=True) as session:
            session.execute("BEGIN")
            session.execute(f"INSERT INTO t SELECT g FROM {rows} g".encode())
            session.execute(f"PREPARE TRANSACTION 'g{number}'".encode())
        source.execute(f"INSERT INTO t VALUES (-{number} - 1)", f"COMMIT PREPARED 'g{number}'")
    with caplog.at_level("INFO"):
        batch = source.stage(
            checkpoint=checkpoint, options=options, decode_parallelism=3, part_bytes=1 << 13
        )
    assert batch.changes == 4 * 502
    assert not [each for each in caplog.messages if "connections" in each]


@contextlib.contextmanager
def decoding_in_a_process(source: Source, checkpoint: Checkpoint) -> Iterator[Interrupted]:
    """A process in which the server decodes parts of a backlog, which takes it a while."""
    insert = "INSERT INTO t SELECT g, repeat('x', 90) FROM generate_series({}, {}) g"
    source.execute(*(insert.format(n * 50_000 + 1, (n + 1) * 50_000) for n in range(6)))
    request = source.request(checkpoint=checkpoint, decode_parallelism=3, part_bytes=1 << 22)
    with (
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        psycopg.connect(source.conninfo, autocommit=True) as session,
    ):
        assert process.stdin is not None
        process.stdin.write(json.dumps(process_body(request)))
        process.stdin.close()
        process.stdin = None
        deadline = time.monotonic() + 30
        while len(session.execute(f"SELECT FROM {DECODING}").fetchall()) < 2:
            assert time.monotonic() < deadline, "two connections never decoded at once"
            assert process.poll() is None, "it ended before"
        yield Interrupted(process, session)


class Interrupted(NamedTuple):
    """A process that stages a batch, and a session to look at the server with."""

    process: subprocess.Popen[str]
    session: psycopg.Connection[Any]


def expect_nothing_staged_and_all_of_it_next(source: Source, checkpoint: Checkpoint) -> None:
    wait_for_copies(source, 0)
    assert len(source.manifests()) == 1
    assert source.confirmed() == str(checkpoint.end_lsn)
    assert source.stage(checkpoint=checkpoint, decode_parallelism=3).changes == 300_000


def test_copies_are_gone_soon_after_a_kill(source: Source) -> None:
    """SIGKILL while several connections decode: nobody is left who could tidy up."""
    checkpoint = checkpoint_of(source.stage())
    with decoding_in_a_process(source, checkpoint) as (process, _):
        process.kill()
        assert process.wait() == -signal.SIGKILL
    expect_nothing_staged_and_all_of_it_next(source, checkpoint)


def test_an_error_in_one_part_fails_the_batch(source: Source) -> None:
    """One of several backends is ended while it decodes: nothing is sealed, and a retry finds all."""
    checkpoint = checkpoint_of(source.stage())
    with decoding_in_a_process(source, checkpoint) as (process, session):
        while session.execute(END_ONE).fetchone() != (True,):
            assert process.poll() is None, "it ended before"
        _, said = process.communicate(timeout=60)
        assert process.returncode == 1, said
    assert "\nairflow_provider_pgoutput.errors.SourceUnavailable: " in said, said
    expect_nothing_staged_and_all_of_it_next(source, checkpoint)


@pytest.mark.parametrize("parallelism", [0, 9])
def test_a_parallelism_out_of_range_is_refused(source: Source, parallelism: int) -> None:
    with pytest.raises(ConfigurationError, match="decode_parallelism is 1 to 8"):
        source.request(decode_parallelism=parallelism)
