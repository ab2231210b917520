"""How fast raw columns are cast, per type: rows per CPU second on arrays of 65,536 rows.

``python benchmarks/casts.py [rows]``
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.capture.types.cast import ValuePolicy, column_caster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS = 65_536
_REPEATS = 9


def samples(rows: int) -> Iterator[tuple[str, str, Callable[[int], str]]]:
    """Name, lake type and the text of row ``i`` of each measured column."""
    random = np.random.default_rng(20260101)
    longs = random.integers(-(10**17), 10**17, rows)
    ints = random.integers(0, 10**6, rows)
    cents = random.integers(-(10**9), 10**9, rows)
    floats = random.normal(size=rows)
    micros = random.integers(0, 10**15, rows).astype("datetime64[us]")
    seconds = micros.astype("datetime64[s]")

    def moment(i: int) -> str:
        return str(micros[i]).replace("T", " ").rstrip("0")

    yield "boolean", "boolean", lambda i: "t" if ints[i] & 1 else "f"
    yield "integer", "int", lambda i: str(ints[i])
    yield "bigint", "long", lambda i: str(longs[i])
    yield "bigint, short", "long", str
    yield "real", "float", lambda i: str(np.float32(floats[i]))
    yield "double precision", "double", lambda i: repr(float(floats[i]))
    yield "numeric(12,2)", "decimal(12, 2)", lambda i: f"{cents[i] / 100:.2f}"
    yield "numeric(20,6)", "decimal(20, 6)", lambda i: f"{abs(longs[i]) // 10**4}.{ints[i]:06}"
    yield "numeric(38,10)", "decimal(38, 10)", lambda i: f"{abs(longs[i])}{ints[i]}.1234567890"
    yield "text, 20 bytes", "string", lambda i: f"value-{i:014}"
    yield "uuid", "string", lambda i: f"{i:08x}-0000-4000-8000-{i:012x}"
    yield "bytea, 16 bytes", "binary", lambda i: rf"\x{i:032x}"
    yield "date", "date", lambda i: str(micros[i])[:10]
    yield "timestamp, micros", "timestamp", moment
    yield "timestamptz, micros", "timestamptz", lambda i: f"{moment(i)}+00"
    yield "timestamptz, secs", "timestamptz", lambda i: f"{seconds[i]}+00".replace("T", " ")
    yield (
        "timestamptz, 1 % odd",
        "timestamptz",
        lambda i: f"{moment(i)}+00" if i % 100 else "infinity",
    )
    yield "integer[3]", "list<int>", lambda i: f"{{{ints[i]},2,3}}"
    yield "text[3], quoted", "list<string>", lambda i: f'{{x,"y {i}",NULL}}'
    yield "text[3], escaped", "list<string>", lambda i: rf'{{x,"y \"{i}\"",NULL}}'
    yield "hstore, 2 pairs", "map<string, string>", lambda i: f'"a"=>"{i}", "b"=>NULL'
    yield "vector(8)", "list<float>", lambda i: f"[{ints[i] / 1000},1,2,3.5,4,5,6,7]"


def seconds_per_cast(lake_type: str, raw: pa.Array) -> float:
    """CPU time of the best of some casts, as other programs run beside."""
    caster = column_caster(Column("c", 0, -1, lake_type, lake_type), ValuePolicy())
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.process_time()
        caster.cast(raw)
        best = min(best, time.process_time() - started)
    return best


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    print(f"{'type':<22} {'M rows/s':>9} {'with NULLs':>11}")
    for name, lake_type, text in samples(rows):
        values = [text(i).encode() for i in range(rows)]
        best = seconds_per_cast(lake_type, pa.array(values, pa.binary()))
        holes = [None if i % 10 == 0 else value for i, value in enumerate(values)]
        with_nulls = seconds_per_cast(lake_type, pa.array(holes, pa.binary()))
        print(f"{name:<22} {rows / best / 1e6:>9.1f} {rows / with_nulls / 1e6:>11.1f}")


if __name__ == "__main__":
    main()
