"""The benchmark measures what it says: at a tiny size it runs, loses nothing and writes its figures."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.parquet as pq
import pytest

from airflow_provider_pgoutput.batch.manifest import Manifest
from benchmarks import report, run
from benchmarks.staging import CONTENDERS, Measurement, median
from benchmarks.synthetic_batch import OLD_ROWS, BatchWriter
from benchmarks.synthetic_keys import KEYS, key_arrays
from tests.evidence import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.further
@pytest.mark.slow
def test_a_tiny_run_writes_figures_for_every_reader(tmp_path: Path) -> None:
    output = tmp_path / "latest.json"
    scale = [
        "--scale",
        "0.002",
        "--repetitions",
        "1",
        "--contenders",
        *CONTENDERS,
        "sql_parallel_2",
    ]
    rows = {"W1": 4000, "W3": 4 * 4 * 100, "W5": 400, "W6": 1000, "W7": 1000, "W8": 1000}
    workloads = ["--workloads", *rows]
    assert run.main([*scale, *workloads, "--no-apply", "--output", str(output)]) == 0

    written = json.loads(output.read_text())
    assert {name: case["rows"] for name, case in written["staging"].items()} == rows
    for case in written["staging"].values():
        for transport in ("sql", "walsender", "sql_parallel_2"):
            figures = case[transport]
            assert figures["rows_per_s"] > 0
            assert figures["rows_per_cpu_s"] > 0
            assert 0 < figures["rows_per_cpu_s_with_server"] < figures["rows_per_cpu_s"]
            assert figures["peak_mib"] > 0
            assert figures["ratio_to_pg_recvlogical"] > 0
            assert figures["ratio_to_server"] > 0
    for name in ("W1", "W2"):
        assert written["decoder"][name]["rows_per_s"] > 0
    for transport in ("sql", "walsender"):
        assert written["large"][transport]["rows"] >= 9000
    for table, count in (("trips", 40_000), ("mixed", 1000)):
        case = written["copy"][table]
        assert case["rows"] == count
        for reader in ("copy", "psql_text", "psql_binary"):
            assert case[reader]["rows_per_s"] > 0
            assert case[reader]["rows_per_cpu_s"] > 0
        assert case["copy"]["peak_mib_per_connection"] > 0
    assert len(written["targets"]) == 3 * (2 + 1 + 2) + 3 * (1 + 1 + 2) + 2 + 2 + 4 + 3


def test_a_target_is_missed_by_the_figure_below_it() -> None:
    measured = {
        "sql": Measurement(1.0, 0.5, 600.0, 100),
        "pg_recvlogical": Measurement(3.9),
        "server": Measurement(0.9),
    }
    case = report.staging_case(100, measured)
    assert case["sql"]["rows_per_s"] == 100
    assert case["sql"]["rows_per_cpu_s"] == 200
    apply = {"10k": {"ratio_to_merge": 15.0}, "1M": {"ratio_to_merge": 3.9}}
    verdicts = report.verdicts({"staging": {"W1": case}, "apply": apply})
    assert [(each.case, each.target, each.met) for each in verdicts] == [
        ("W1 sql", "x pg_recvlogical", False),
        ("W1 sql", "x server alone", True),
        ("W1 sql", "MiB at most", False),
        ("apply 10k", "x bare MERGE", True),
        ("apply 1M", "x bare MERGE", False),
    ]


def test_the_median_keeps_the_worst_memory() -> None:
    runs = [Measurement(3.0, 1.0, 10.0), Measurement(1.0, 2.0, 30.0), Measurement(2.0, 3.0, 20.0)]
    assert median(runs) == Measurement(2.0, 3.0, 30.0)


def test_a_synthetic_batch_is_a_sealed_batch_beside_its_own_fold(tmp_path: Path) -> None:
    writer = BatchWriter(tmp_path, table_rows=10_000)
    copy = Manifest.from_json(writer.write_copy().manifest_path.read_text())
    batch = writer.write_changes(1000)
    manifest = Manifest.from_json(batch.manifest_path.read_text())
    assert manifest.start_lsn == copy.end_lsn

    (staged,) = manifest.tables[0].versions[0].files
    rows = pq.read_table(tmp_path / staged.path).to_pylist()
    folded: dict[int, tuple[str, int]] = {}
    for row in rows:
        key = row["o0"] if row["op"] == "D" else row["n0"]
        if row["op"] == "I":
            assert key not in folded, "an insert of a row that is there"
        folded[key] = ("D", 0) if row["op"] == "D" else ("U", row["n1"])
    expected = {
        row["id"]: ("D", 0) if row["op"] == "D" else ("U", row["a"])
        for row in pq.read_table(batch.folded_path).to_pylist()
    }
    assert folded == expected
    assert len(folded) < len(rows), "some keys change more than once"


def test_recent_changes_are_of_the_newest_rows_but_for_a_few(tmp_path: Path) -> None:
    writer = BatchWriter(tmp_path, table_rows=1_000_000)
    batch = writer.write_changes(1000, recent=True)
    ids = pq.read_table(batch.folded_path, columns=["id"]).column("id").to_pylist()
    assert 0 < sum(each < 980_000 for each in ids) <= OLD_ROWS


def test_keys_of_different_rows_differ_and_are_what_postgresql_would_send() -> None:
    numbers = np.arange(10_000, dtype=np.int64)
    for kind, columns in KEYS.items():
        keys = key_arrays(kind, numbers)
        assert len(keys) == len(columns)
        assert len(set(zip(*(each.to_pylist() for each in keys), strict=True))) == len(numbers)
    for kind in ("uuid", "uuid v7"):
        (uuids,) = key_arrays(kind, numbers)
        assert [str(uuid.UUID(each)) for each in uuids.to_pylist()] == uuids.to_pylist()
    in_order = uuids.to_pylist()[::10]
    assert in_order == sorted(in_order)
    assert {uuid.UUID(each).version for each in in_order} == {7}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "arguments", "figures"),
    [
        pytest.param(
            "growth",
            [
                "--kinds",
                "recent uuid v7",
                "random text pair",
                "--rows=2000",
                "--changes=100",
            ],
            {"recent uuid v7": {"2000"}, "random text pair": {"2000"}},
            marks=pytest.mark.exhaustive,
        ),
        (
            "published_tables",
            ["--tables=2", "--repetitions=1"],
            {"2": {"first run", "nothing to do", "changes"}},
        ),
        pytest.param(
            "tables_of_a_batch",
            ["--tables", "1", "2", "--rows=4000", "--changes=200"],
            {"1", "2"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "many_slices",
            ["--tables=2", "--repetitions=1"],
            {"2 own", "2 shared", "2 partitioned"},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "few_changes",
            ["--tables=2", "--rows=1000", "--warm-up=0"],
            {way: {"seconds", "cpu_seconds"} for way in ("apply", "apply_by_spark", "merge")},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "file_health",
            [
                "--rows=4000",
                "--batches=2",
                "--changes=100",
                "--maintain-every=1",
                "--measure-every=1",
                "--format-versions=3",
            ],
            {"health_3": {"1", "2"}},
            marks=pytest.mark.exhaustive,
        ),
        (
            "connections",
            ["--scale=0.002", "--cases", "busy cores"],
            {"busy cores": {"automatic", "one", "two"}},
        ),
        pytest.param(
            "proof",
            ["--rows=4000"],
            dict.fromkeys(
                ("narrow", "trips"),
                {
                    "rows",
                    "copy",
                    "psql_server_cpu_seconds",
                    "proof",
                    "recovery",
                    "drill_down_seconds",
                }
                | {"peak_mib", "targets"},
            ),
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "tiny_batch",
            ["--rows=4000", "--warm-up=0"],
            {run: {"seconds", "cpu_seconds", "times_as_long"} for run in ("empty", "batch")},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "beside",
            [str(ROOT), "--workloads=W1", "--parts", "sql", "apply", "--scale=0.002"],
            {
                each: {"cpu_seconds", "cpu_seconds_of_other", "cpu_ratio", "seconds_ratio"}
                for each in ("W1 sql", "W1 apply")
            },
            marks=pytest.mark.exhaustive,
        ),
        pytest.param(
            "many_tables",
            ["--tables=2", "--leaves=3"],
            {case: {"first run", "changes", "nothing to do"} for case in ("tables", "leaves")},
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_tiny_run_of_a_measurement_prints_its_figures(
    module: str, arguments: list[str], figures: set[str] | dict[str, set[str]]
) -> None:
    command = [sys.executable, "-m", f"benchmarks.{module}", "--repetitions", "1", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    # Not every Java writes class archives.
    found.pop("batch_with_class_archive", None)
    assert set(found) == set(figures)
    if isinstance(figures, dict):
        assert {kind: set(sizes) for kind, sizes in found.items()} == figures
