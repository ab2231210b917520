"""The benchmark of manifests measures writing and reading, and its manifest is one that is read again."""

from __future__ import annotations

from airflow_provider_pgoutput.batch.manifest import Manifest
from benchmarks.manifests import made, run


def test_the_manifest_of_many_tables_survives_its_json() -> None:
    manifest = made(tables=50, columns=4)
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert manifest.changes == len(manifest.tables) == 50


def test_a_small_run_gives_all_figures() -> None:
    figures = run(tables=50, columns=3, repetitions=1)
    assert set(figures) == {"write_cpu_s", "read_cpu_s", "mib"}
    assert all(figure > 0 for figure in figures.values())
