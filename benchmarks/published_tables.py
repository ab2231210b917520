"""``python -m benchmarks.published_tables``: what staging costs when many tables are published.

For each number of tables: a first run that copies them while they are empty, runs with nothing to do, and
runs in which each table gets so many rows. Each run is a process; its time starts when the imports are
done. Prints seconds, CPU seconds and MiB of memory as JSON, medians but for the first run. What is not here:
apply (``tables_of_a_batch.py``, ``few_changes.py``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lake import say
from benchmarks.staging import Measurement, stage_once
from benchmarks.workloads import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TABLES = (100, 1000, 4000)
CHANGES = 10
SLOT, PUBLICATION, SCHEMA = "published", "published", "published"
#: A transaction takes a lock for each table that it makes.
_TABLES_A_TRANSACTION = 500


def run(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All figures, by the number of tables and what was run."""
    found = {}
    with Source(folder / "server", pgbench_scale=1) as source:
        for tables in options.tables:
            measured = _measure(source, folder / f"staging-{tables}", tables, options)
            found[str(tables)] = {what: _figures(runs) for what, runs in measured.items()}
    return found


def _measure(
    source: Source, staging: Path, tables: int, options: argparse.Namespace
) -> dict[str, list[Measurement]]:
    def stage(**order: Any) -> Measurement:
        one = stage_once(
            source.conninfo,
            staging,
            {"slot": SLOT, "publication": PUBLICATION, "transport": "sql", "options": {}, **order},
        )
        say(f"{tables} tables: {one.rows} rows, {one.seconds:.2f} s, {one.cpu_seconds:.2f} CPU s")
        return one

    def advance() -> None:
        # Otherwise the next run gets the sealed batch of this one again.
        execute(b"SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", (SLOT,))

    execute = source.connection.execute
    execute(f"CREATE SCHEMA {SCHEMA}".encode())
    execute(b"CREATE TABLE not_published (a int)")
    execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLES IN SCHEMA {SCHEMA}".encode())
    _in_transactions(
        source,
        range(tables),
        lambda n: f"CREATE TABLE {SCHEMA}.t{n} (id bigint PRIMARY KEY, a int, b text)",
    )
    found = {"first run": [stage(copy_connections=1)], "nothing to do": [], "changes": []}
    for _ in range(options.repetitions):
        advance()
        execute(b"INSERT INTO not_published VALUES (1)")
        found["nothing to do"].append(stage())
    for repetition in range(options.repetitions):
        advance()
        _insert(source, range(tables), repetition * options.changes + 1, options.changes)
        found["changes"].append(stage())
    execute(b"DROP TABLE not_published")
    execute(b"SELECT pg_drop_replication_slot(%s)", (SLOT,))
    execute(f"DROP PUBLICATION {PUBLICATION}".encode())
    _in_transactions(source, range(tables), lambda n: f"DROP TABLE {SCHEMA}.t{n}")
    execute(f"DROP SCHEMA {SCHEMA}".encode())
    return found


def _insert(source: Source, tables: range, first: int, rows: int) -> None:
    values = f"SELECT i, i, 'text ' || i FROM generate_series({first}, {first + rows - 1}) i"
    _in_transactions(source, tables, lambda n: f"INSERT INTO {SCHEMA}.t{n} {values}")


def _in_transactions(source: Source, tables: range, statement: Callable[[int], str]) -> None:
    for start in range(0, len(tables), _TABLES_A_TRANSACTION):
        with source.connection.transaction():
            for number in tables[start : start + _TABLES_A_TRANSACTION]:
                source.connection.execute(statement(number).encode())


def _figures(runs: Iterable[Measurement]) -> dict[str, float | None]:
    runs = list(runs)
    return {
        "seconds": statistics.median(each.seconds for each in runs),
        "cpu_seconds": statistics.median(each.cpu_seconds or 0 for each in runs),
        "peak_mib": max(each.peak_mib or 0 for each in runs),
        "rows": runs[-1].rows,
    }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.published_tables", description=__doc__
    )
    parser.add_argument("--tables", nargs="+", type=int, default=list(TABLES))
    parser.add_argument("--changes", type=int, default=CHANGES, help="of each table, in each run")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-published-", dir="/var/tmp") as folder:
        # The server's account has to enter it.
        Path(folder).chmod(0o755)
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
