"""``python -m benchmarks.manifests``: CPU seconds to write and to read the manifest of many tables.

Each table has one staged file. Writing makes the batch id and the text; reading checks the id. Neither counts
the disk. Prints medians as JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.batch.membership import (
    PublicationVersion,
    PublishedSet,
    TableMembership,
)
from airflow_provider_pgoutput.batch.shape import Storage
from airflow_provider_pgoutput.batch.table_version import Column, Counts, StagedFile, TableVersion

if TYPE_CHECKING:
    from collections.abc import Callable

TABLES = 4_000
COLUMNS = 3
_TYPES = (
    (20, "bigint", "long"),
    (25, "text", "string"),
    (1184, "timestamp with time zone", "timestamptz"),
)


def made(tables: int, columns: int) -> Manifest:
    """A manifest as a run leaves it in which each table got one row."""
    oids = range(16384, 16384 + tables)
    marks = tuple(TableMembership(oid, f"public.table_{oid}", (f"p {oid} 750",)) for oid in oids)
    return Manifest(
        slot_name="bench",
        system_identifier="7000000000000000001",
        timeline=1,
        database="bench",
        publication_names=("p",),
        start_lsn=Lsn(0x10000000),
        end_lsn=Lsn(0x20000000),
        tables=tuple(_table(oid, columns) for oid in oids),
        transactions=tables,
        published=PublishedSet((PublicationVersion("p", 16383, "750", False, False),), marks),
    )


def _table(oid: int, columns: int) -> Table:
    types = [_TYPES[number % len(_TYPES)] for number in range(columns)]
    known = tuple(
        Column(f"column_{at}", type_oid, -1, name, lake_type, at == 0, attribute_number=at + 1)
        for at, (type_oid, name, lake_type) in enumerate(types)
    )
    staged = StagedFile(
        kind="changes",
        path=f"bench/data/0000000010000000-0123456789ab/{oid}-v1/changes-00000.parquet",
        rows=1,
        size_bytes=2_000 + oid,
        sha256=f"{oid:064x}",
        columns=("commit_lsn", "seq", "op", "xid", "commit_ts", *(f"n{n}" for n in range(columns))),
        min_commit_lsn="0/10000010",
        max_commit_lsn="0/1FFFFFF0",
    )
    version = TableVersion(1, "public", f"table_{oid}", "d", known, ("column_0",), (staged,))
    return Table(
        oid,
        "public",
        version.table_name,
        (version,),
        Counts(inserts=1),
        storage=Storage(columns, ((oid, oid),)),
        highest_number=columns,
        types=(),
    )


def run(tables: int, columns: int, repetitions: int) -> dict[str, float]:
    """Median CPU seconds, and the size of the text."""
    writing, reading = [], []
    size = 0
    for _ in range(repetitions):
        # A manifest keeps its id, so each repetition has one of its own.
        manifest = made(tables, columns)
        written = _cpu_seconds(manifest.to_json)
        text = manifest.to_json().encode("ascii")
        del manifest
        writing.append(written)
        reading.append(_cpu_seconds(functools.partial(Manifest.from_json, text)))
        size = len(text)
    return {
        "write_cpu_s": statistics.median(writing),
        "read_cpu_s": statistics.median(reading),
        "mib": size / (1 << 20),
    }


def _cpu_seconds(action: Callable[[], object]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.manifests", description=__doc__)
    parser.add_argument("--tables", type=int, default=TABLES)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()
    print(json.dumps(run(options.tables, options.columns, options.repetitions), indent=1))


if __name__ == "__main__":
    main()
