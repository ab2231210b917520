r"""``python -m benchmarks.proof``: a verification beside a full copy of the same tables, in one run.

A table of 6 columns and one of 19. Each is copied and applied in processes of their own, read by psql's
``\copy ... (FORMAT binary)`` to ``/dev/null``, and verified. Then 2 % of the rows change, and only what
changed is verified: neighbours first, and then one row in each block. Then three rows are deleted in the
lake, and it is verified again: what that takes more is the drill down. At last the slot is dropped, every
2,000th row is changed, and the run after it stages and applies the rows that differ. CPU time counts on both
sides, because it depends less on the load of the machine than seconds do. Prints figures and targets as JSON.
``--rows 200000`` is a short form, which shows that all of it runs; ``--tables narrow`` measures one table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_pgoutput.batch.jobs import ApplyJob
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.proof.request import AUTO, FULL
from benchmarks.copy import SCHEMA as COPY_SCHEMA
from benchmarks.lake import say
from benchmarks.staging import stage_once
from benchmarks.tiny_batch import Submitter
from benchmarks.workloads import DATABASE, Source
from quickstart.spark import LocalLake, class_archive_option

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 5_000_000
_NAMESPACE = "proven"
_NARROW = """
CREATE TABLE narrow (id int8 PRIMARY KEY, customer int4, amount numeric(12,2), created timestamptz, note text,
                     paid bool);
INSERT INTO narrow
SELECT g, g % 100000, (g % 1000000) / 100.0, timestamptz '2024-01-01Z' + g * interval '1.3 s',
       'note ' || md5(g::text), g % 3 = 0
  FROM generate_series(1, {}) g
"""
#: Least rows that the lake's side reads and hashes in a CPU second.
_RATES = {"narrow": 3_000_000, "trips": 1_500_000}
#: The kernel counts CPU time in ticks of so many seconds.
_TICK = 0.01
_MOST_OF_RECOVERY = 1 / 3
#: By table: what changes while the slot is lost.
_CHANGED = {"narrow": "customer = customer + 1", "trips": "passenger_count = 9"}
#: Which 2 % of the rows change: neighbours, or one in each block.
_TWO_PERCENT = {"neighbours": "id <= {0} / 50", "scattered": "id % 50 = 3"}
_MOST_OF_CHANGES = 0.1
_MOST_OF_COPY, _MOST_DRILL_SECONDS, _MOST_MIB = 0.2, 2.0, 512


class Cost(NamedTuple):
    """What something took."""

    seconds: float
    #: Of our processes, and of the server's.
    cpu_seconds: float
    server_cpu_seconds: float

    @property
    def both(self) -> float:
        """CPU seconds of both sides."""
        return self.cpu_seconds + self.server_cpu_seconds


def make_tables(source: Source, rows: int, names: list[str]) -> dict[str, int]:
    """Make the tables with their publications; the rows of each."""
    makers = {"narrow": _make_narrow, "trips": _make_trips}
    counts = {name: makers[name](source, rows) for name in names}
    for name in counts:
        source.connection.execute(f"VACUUM (FREEZE, ANALYZE) {name}".encode())
        source.connection.execute(f"CREATE PUBLICATION p_{name} FOR TABLE {name}".encode())
    source.connection.execute("CHECKPOINT")
    return counts


def _make_narrow(source: Source, rows: int) -> int:
    source.connection.execute(_NARROW.format(rows).encode())
    return rows


def _make_trips(source: Source, rows: int) -> int:
    count = rows * 3 // 5
    trips = next(
        each for each in COPY_SCHEMA.read_text().split(";\n") if "CREATE TABLE trips" in each
    )
    source.connection.execute(trips.replace(":rows", str(count)).encode())
    source.connection.execute("ALTER TABLE trips ADD id int8 GENERATED ALWAYS AS IDENTITY")
    source.connection.execute("ALTER TABLE trips DROP airport_fee, ADD PRIMARY KEY (id)")
    return count


class Case:
    """One table: its copy, its reading by psql, and its verifications."""

    def __init__(self, source: Source, lake: LocalLake, table: str, folder: Path) -> None:
        self.source, self.lake, self.table, self.staging = source, lake, table, folder / table
        self.order: dict[str, Any] = {
            "conninfo": source.conninfo,
            "slot": f"bench_{table}",
            "publication": f"p_{table}",
            "staging_uri": str(self.staging),
            "namespace": f"{_NAMESPACE}_{table}",
            "catalog_properties": lake.pyiceberg_properties(),
        }

    def copy(self, submitter: Submitter) -> Cost:
        """The first run of a pipeline: all rows are staged and applied."""

        def staged() -> tuple[float, float]:
            more = {"transport": "sql", "options": {}, "copy_connections": 2}
            one = stage_once(self.source.conninfo, self.staging, self.order | more)
            return one.seconds, one.cpu_seconds or 0.0

        stage = self._timed(staged)
        return self._applied(stage, submitter)

    def recover(self, submitter: Submitter) -> tuple[Cost, dict[str, Any]]:
        """Lose the slot and some changes; stage and apply what differs. The cost, and the figures."""
        slot = self.order["slot"]
        self.source.connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        self.source.connection.execute(
            f"UPDATE {self.table} SET {_CHANGED[self.table]} WHERE id % 2000 = 7".encode()
        )
        self.source.connection.execute("CHECKPOINT")
        more = {"namespace_after_loss": self.order["namespace"]}
        found: list[int] = []

        def staged() -> tuple[float, float]:
            one = stage_once(self.source.conninfo, self.staging, self.order | more)
            found.append(one.rows or 0)
            return one.seconds, one.cpu_seconds or 0.0

        stage = self._timed(staged)
        whole = self._applied(stage, submitter)
        return whole, {**whole._asdict(), "stage": stage._asdict(), "rows_staged": found[0]}

    def _applied(self, stage: Cost, submitter: Submitter) -> Cost:
        """Apply the newest batch, and add what that costs."""
        manifest = max(self.staging.glob("*/manifests/*.json"), key=lambda each: each.name)
        job = ApplyJob(
            manifest_uri=manifest.as_uri(),
            staging_uri=self.staging.as_uri(),
            catalog_name="lake",
            namespace=self.order["namespace"],
        )
        path = manifest.with_suffix(".job")
        path.write_text(job.to_json())
        apply = submitter.apply(path)
        return Cost(
            stage.seconds + apply.seconds,
            stage.cpu_seconds + apply.cpu_seconds,
            stage.server_cpu_seconds,
        )

    def read_with_psql(self) -> Cost:
        """Receive and drop."""

        def read() -> tuple[float, float]:
            command = f"\\copy {self.table} TO '/dev/null' WITH (FORMAT binary)"
            self.source.run_program("psql", "-qXc", command, f"--dbname={DATABASE}")
            return 0.0, 0.0

        return self._timed(read)

    def verify(self, method: str = FULL) -> tuple[Cost, dict[str, Any]]:
        """Verify in a process of its own; the cost, and what it says."""
        found: dict[str, Any] = {}

        def verified() -> tuple[float, float]:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.proof_once"],
                input=json.dumps(self.order | {"method": method}),
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise RuntimeError(f"verifying failed:\n{done.stderr[-4000:]}")
            found.update(json.loads(done.stdout.splitlines()[-1]))
            return found["seconds"], found["cpu_seconds"]

        return self._timed(verified), found

    def verify_changes(self, where: str, submitter: Submitter) -> tuple[Cost, dict[str, Any]]:
        """Verify, change some rows in the pipeline's sight, and verify what changed."""
        self.verify(AUTO)
        self.source.connection.execute(
            f"UPDATE {self.table} SET {_CHANGED[self.table]} WHERE {where}".encode()
        )
        order = self.order
        stage_batch(
            CaptureRequest(
                conninfo=order["conninfo"],
                slot_name=order["slot"],
                publication_names=(order["publication"],),
                staging_uri=order["staging_uri"],
                checkpoint=read_checkpoint(
                    "lake", order["catalog_properties"], order["namespace"], order["slot"]
                ),
                attempt="bench",
            )
        )
        self._applied(Cost(0.0, 0.0, 0.0), submitter)
        return self.verify(AUTO)

    def delete_three_rows(self, rows: int) -> None:
        """Delete rows of three ranges of keys in the lake."""
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - it takes a second

        catalog = load_catalog("lake", **self.lake.pyiceberg_properties())
        table = catalog.load_table((self.order["namespace"], self.table))
        table.delete(f"id IN (1, {rows // 2}, {rows})")

    def _timed(self, work: Callable[[], tuple[float, float]]) -> Cost:
        before = self.source.cpu_seconds()
        seconds, cpu = work()
        after = self.source.cpu_seconds()
        if before is None or after is None:
            raise RuntimeError("This system does not tell the CPU time of other processes.")
        return Cost(seconds, cpu, after - before)


def measure(case: Case, submitter: Submitter, rows: int, repetitions: int) -> dict[str, Any]:
    """The figures of one table."""
    copy = case.copy(submitter)
    say(f"{case.table}: copy and apply {copy.both:.1f} CPU s")
    psql = statistics.median(case.read_with_psql().server_cpu_seconds for _ in range(repetitions))
    proofs = [case.verify() for _ in range(repetitions)]
    say(f"{case.table}: proof {proofs[-1][0].both:.1f} CPU s")
    changes = {}
    for name, where in _TWO_PERCENT.items():
        cost, found = case.verify_changes(where.format(rows), submitter)
        changes[name] = {**cost._asdict(), "carried": found["carried"]}
        say(f"{case.table}: proof of {name} {cost.both:.1f} CPU s, {found['carried']}")
        if found["different_rows"] or found["carried"] is None or found["carried"]["why_all"]:
            raise RuntimeError("Nothing was carried over.")
    of_neighbours = (
        changes["neighbours"]["cpu_seconds"] + changes["neighbours"]["server_cpu_seconds"]
    )
    case.delete_three_rows(rows)
    drills = [case.verify() for _ in range(repetitions)]
    if any(found["different_rows"] for _, found in proofs) or any(
        found["different_rows"] != 3 for _, found in drills
    ):
        raise RuntimeError("A verification did not find what is there.")
    recovery, recovered = case.recover(submitter)
    say(f"{case.table}: recovery {recovery.both:.1f} CPU s")
    proof = Cost(*(statistics.median(each) for each in zip(*(c for c, _ in proofs), strict=True)))
    # The least of each: other work on the machine only adds to it.
    drill = min(cost.seconds for cost, _ in drills) - min(cost.seconds for cost, _ in proofs)
    peak = max(found["peak_mib"] for _, found in (*proofs, *drills))
    return {
        "rows": rows,
        "copy": copy._asdict(),
        "psql_server_cpu_seconds": psql,
        "proof": proof._asdict(),
        "changes": changes,
        "recovery": recovered,
        "drill_down_seconds": drill,
        "peak_mib": peak,
        "targets": [
            _target("proof of copy, CPU of both sides", proof.both / copy.both, _MOST_OF_COPY),
            _target(
                "proof after 2 % of the rows changed, of copy, CPU of both sides",
                of_neighbours / copy.both,
                _MOST_OF_CHANGES,
            ),
            _target(
                "source's CPU, of a binary COPY's", proof.server_cpu_seconds / max(psql, _TICK), 1.0
            ),
            _target(
                "recovery of 0.05 % of the rows, of a copy, CPU of both sides",
                recovery.both / copy.both,
                _MOST_OF_RECOVERY,
            ),
            _target("drill down, seconds", drill, _MOST_DRILL_SECONDS),
            _target("worker, MiB", peak, _MOST_MIB),
            _target(
                "CPU seconds for a million rows of the lake",
                proof.cpu_seconds / rows * 1e6,
                1e6 / _RATES[case.table],
            ),
        ],
    }


def _target(name: str, measured: float, most: float) -> dict[str, Any]:
    return {"target": name, "measured": measured, "at_most": most, "met": measured <= most}


def run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of each table."""
    lake = LocalLake(folder / "lake").create()
    submitter = Submitter(lake, class_archive_option())
    with Source(folder / "server", pgbench_scale=1) as source:
        source.connection.execute("ALTER SYSTEM SET summarize_wal = on")
        source.connection.execute("SELECT pg_reload_conf()")
        counts = make_tables(source, options.rows, options.tables)
        return {
            table: measure(Case(source, lake, table, folder), submitter, count, options.repetitions)
            for table, count in counts.items()
        }


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the table with 6 columns")
    parser.add_argument("--repetitions", type=int, default=3, help="of all but the copy")
    parser.add_argument("--tables", nargs="+", choices=sorted(_RATES), default=sorted(_RATES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgoutput-proof-", dir="/var/tmp") as folder:
        # The server may run as another user.
        Path(folder).chmod(0o755)
        print(json.dumps(run(Path(folder), options), indent=1))


if __name__ == "__main__":
    main()
