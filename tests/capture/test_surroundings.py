"""The machine that a worker runs on: a staging disk that is full (F27), clocks in other time zones (F46)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import LakeUnavailable
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.capture.pipeline_support import Source

_LARGEST_FILE_BYTES = 1 << 20


@contextlib.contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Let writes past a size of a file fail, as those to a disk without room do; nothing need be mounted."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("first", [True, False], ids=["copy", "changes"])
def test_f27_a_full_disk_ends_the_run_and_the_next_one_goes_on(source: Source, first: bool) -> None:
    fill = (
        "INSERT INTO t SELECT g, md5(random()::text) || md5(random()::text) || md5(random()::text)"
        " FROM generate_series(1, 60000) g"
    )
    checkpoint = None
    if not first:
        checkpoint = checkpoint_of(source.stage())
    source.execute(fill)
    with (
        files_no_larger_than(_LARGEST_FILE_BYTES),
        pytest.raises(LakeUnavailable, match="staging area"),
    ):
        source.stage(checkpoint=checkpoint)
    assert len(source.manifests()) == (0 if first else 1)
    batch = source.stage(checkpoint=checkpoint)
    assert max(batch.sizes) > _LARGEST_FILE_BYTES, "the disk was never too small"
    read = source.copied if first else source.changes
    assert sorted(row["a"] for row in read(batch, "public.t")) == list(range(1, 60_001))


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_f46_the_time_zone_of_a_worker_changes_nothing(
    source: Source, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.execute(
        "CREATE TABLE times (a int PRIMARY KEY, d date, t time, z timetz, s timestamp, stz timestamptz,"
        " i interval, r tstzrange)",
        "ALTER PUBLICATION p ADD TABLE times",
    )
    checkpoint = checkpoint_of(source.stage())
    source.execute(
        "INSERT INTO times SELECT g, s::date, s::time, s::timetz, s, s, age(s), tstzrange(s, NULL)"
        " FROM generate_series(1, 48) g, LATERAL (SELECT timestamptz '2026-03-29 00:00+00'"
        " + g * interval '30 minutes') x(s)"
    )
    ids = set()
    for zone in ("UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/St_Johns"):
        monkeypatch.setenv("TZ", zone)
        monkeypatch.setenv("PGTZ", zone)
        worker = dataclasses.replace(
            source, staging=source.staging.with_name(zone.replace("/", "-"))
        )
        assert worker.stage_in_process(checkpoint=checkpoint, transport=transport) == 0
        (name,) = worker.manifests()
        text = (worker.staging / worker.slot_name / "manifests" / name).read_text()
        manifest = json.loads(text)
        assert manifest["tables"][0]["counts"]["inserts"] == 48
        # To its last byte, but for where it ends: the server writes on.
        files = [f["sha256"] for t in manifest["tables"] for v in t["versions"] for f in v["files"]]
        ids.add(tuple(files))
    assert len(ids) == 1
