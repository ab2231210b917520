"""``make demo``: a PostgreSQL under load flows through Airflow and Spark into Iceberg; then compare.

Start reading at `run_demo`; it is the whole demonstration on one screen.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from quickstart.compare import Comparison, compare_tables
from quickstart.dag_runs import TASKS, DagRun, prepare_airflow, run_dag
from quickstart.pgbench import SCALE, TABLES, Load, create_database
from quickstart.place import DAG_ID, DATABASE, NAMESPACE, DemoPlace
from quickstart.postgres import EmbeddedPostgres
from quickstart.verification import VERIFY_DAG_ID, verification

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INCREMENTAL_RUNS_UNDER_LOAD = 3


def run_demo(place: DemoPlace) -> int:
    """Run the demonstration; return 0 if the lake equals PostgreSQL, else 1.

    :raises PgoutputError: a step failed; the message says which and shows its log.
    """
    began = time.monotonic()
    with place.locked():
        say("removing what an earlier demo left")
        place.clear()
        with EmbeddedPostgres(place.postgres_home()) as server:
            say(f"PostgreSQL {server.version} runs on port {server.port}; pgbench -i -s {SCALE}")
            create_database(server, place.logs / "pgbench-init.log")
            environment = place.environment(server)
            say("preparing Airflow and the Iceberg catalog")
            prepare_airflow(environment, place.logs / "airflow-db.log")
            place.lake.create()
            runs: list[DagRun] = []
            with Load(server, place.logs / "pgbench.log") as load:
                say("pgbench's standard load runs from here on")
                for number in range(1, INCREMENTAL_RUNS_UNDER_LOAD + 1):
                    what = "slot + initial copy" if number == 1 else "changes since the last run"
                    runs.append(_one_run(place, environment, number, what))
                    load.check()
                say(
                    f"airflow dags test {VERIFY_DAG_ID} begins, and compares where the next run ends"
                )
                with verification(place, environment) as found:
                    what = "changes up to the LSN of the verification"
                    runs.append(_one_run(place, environment, len(runs) + 1, what))
                    load.check()
                    proof = found()
            say("the load has stopped")
            runs.append(_one_run(place, environment, len(runs) + 1, "the rest of the changes"))
            say("comparing every row of every table")
            comparisons = _compare(place, server)
    _print_report(runs, comparisons, proof)
    took = time.monotonic() - began
    problems = _problems(runs, comparisons, proof)
    if problems:
        print(f"\nDIFFERENT after {took:.0f} s: {'; '.join(problems)}.", flush=True)
        return 1
    _print_where(place)
    print(f"\nEQUAL: the lake holds exactly what PostgreSQL holds ({took:.0f} s).", flush=True)
    return 0


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"demo: {text}", flush=True)


def _one_run(place: DemoPlace, environment: dict[str, str], number: int, what: str) -> DagRun:
    say(f"airflow dags test {DAG_ID}, run {number}: {what}")
    run = run_dag(place, environment, number)
    steps = ", ".join(f"{task} {run.seconds.get(task, 0):.1f} s" for task in TASKS)
    what = f"{run.copied:,} rows copied, " if run.copied else ""
    say(f"  {what}{run.changes:,} changes, up to {run.end_lsn} ({steps})")
    return run


def _compare(place: DemoPlace, server: EmbeddedPostgres) -> list[Comparison]:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - slow to import

    catalog = load_catalog(place.lake.catalog_name, **place.lake.pyiceberg_properties())
    pairs = [(f"public.{table}", f"{NAMESPACE}.{table}") for table in TABLES]
    return compare_tables(server.conninfo(DATABASE), catalog, pairs)


def _problems(
    runs: Sequence[DagRun], comparisons: Sequence[Comparison], proof: Mapping[str, Any]
) -> list[str]:
    """Say what is wrong: differences, and runs that prove nothing because they carried nothing."""
    found = [
        f"{each.table} lacks {each.missing:,} rows and has {each.surplus:,} too many"
        for each in comparisons
        if not each.is_equal
    ]
    found += [f"{each.table} is empty" for each in comparisons if each.source_rows == 0]
    equal = {each["table_name"] for each in proof["tables"] if each["is_equal"]}
    found += [
        f"{each.table} was not proven equal under load"
        for each in comparisons
        if each.table not in equal
    ]
    found += [f"run {run.number} had no changes" for run in runs[1:-1] if run.changes == 0]
    return found


def _print_report(
    runs: Sequence[DagRun], comparisons: Sequence[Comparison], proof: Mapping[str, Any]
) -> None:
    head = ("run", "copied", "changes", "start LSN", "end LSN")
    lines = [(*head, *(f"{task} s" for task in TASKS), "total s")]
    for run in runs:
        seconds = [f"{run.seconds.get(name, 0):.1f}" for name in (*TASKS, "total")]
        counts = (str(run.number), f"{run.copied:,}", f"{run.changes:,}")
        lines.append((*counts, run.start_lsn, run.end_lsn, *seconds))
    print("\n" + _aligned(lines))
    rows: list[tuple[str, ...]] = [("table", "PostgreSQL rows", "lake rows", "missing", "surplus")]
    rows += [
        (c.table, *(f"{n:,}" for n in (c.source_rows, c.lake_rows, c.missing, c.surplus)))
        for c in comparisons
    ]
    print("\n" + _aligned(rows), flush=True)
    equal = [each for each in proof["tables"] if each["is_equal"]]
    count = sum(each["source_rows"] for each in equal)
    print(
        f"\nUnder load, {VERIFY_DAG_ID} proved {len(equal)} of {len(proof['tables'])} tables"
        f" ({count:,} rows) equal at {proof['lsn']}.",
        flush=True,
    )


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _print_where(place: DemoPlace) -> None:
    lake = place.lake
    properties = json.dumps(lake.pyiceberg_properties())
    print(f"""
The lake is in {lake.home}. Look at it

with pyiceberg:
.venv/bin/python - <<'EOF'
from pyiceberg.catalog import load_catalog
catalog = load_catalog("{lake.catalog_name}", **{properties})
print(catalog.load_table("{NAMESPACE}.pgbench_branches").scan().to_arrow())
EOF

with Spark SQL:
.venv/bin/python -m quickstart sql \\
    "SELECT bid, bbalance FROM {lake.catalog_name}.{NAMESPACE}.pgbench_branches ORDER BY bid"

in Airflow, with the database running again:
make airflow""")  # noqa: S608 - printed, not run
