"""Files of the staging area: columns that come and go, budgets, checksums, whole manifests."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyarrow import fs, parquet

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, Table
from airflow_provider_pgoutput.capture.source.catalog import Server
from airflow_provider_pgoutput.capture.staging import writers
from airflow_provider_pgoutput.capture.staging.area import StagedOutput, StagingArea, Written
from airflow_provider_pgoutput.capture.staging.manifests import find_sealed
from airflow_provider_pgoutput.capture.staging.manifests import seal as seal_at
from airflow_provider_pgoutput.capture.staging.writers import TableWriter, WriterPool
from airflow_provider_pgoutput.errors import (
    BatchRefused,
    ConfigurationError,
    LakeUnavailable,
    SlotBusy,
)
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("commit_lsn", pa.int64()), ("n0", pa.string()), ("o0", pa.string())])


def writer(area: StagingArea, folder: str = "f") -> TableWriter:
    return TableWriter(area, folder, "changes", SCHEMA, frozenset({"commit_lsn", "n0"}))


def rows(first: int, count: int, *, old: bool = False) -> pa.RecordBatch:
    columns = {"commit_lsn": list(range(first, first + count)), "n0": ["x"] * count}
    if old:
        columns["o0"] = ["y"] * count
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(
    ("parts", "codecs"), [([500], ["SNAPPY"]), ([20_000], ["ZSTD"]), ([20_000, 5], ["ZSTD"] * 2)]
)
def test_only_a_file_that_stays_small_is_compressed_by_the_cheaper_codec(
    tmp_path: Path, parts: list[int], codecs: list[str]
) -> None:
    one = writer(StagingArea(str(tmp_path)))
    for number, count in enumerate(parts):
        if number:
            one.take()()
        one.append(rows(number * 100_000, count))
    one.complete()
    (file,) = one.files
    found = parquet.read_metadata(tmp_path / file.path)
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    assert [each.column(0).compression for each in groups] == codecs
    assert file.rows == sum(parts)


def test_a_staging_uri_with_credentials_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="a user or a password") as refused:
        StagingArea("s3://key:secret@bucket/folder")
    assert "secret" not in str(refused.value)


def test_the_container_of_azures_file_system_is_no_login() -> None:
    StagingArea("abfss://container@account.dfs.core.windows.net/folder")
    with pytest.raises(ConfigurationError, match="a user or a password"):
        StagingArea("abfss://user:secret@account.dfs.core.windows.net/folder")


def test_a_column_that_is_null_throughout_is_left_out_of_its_file(tmp_path: Path) -> None:
    pool = WriterPool(8 << 20)
    table = pool.add(writer(StagingArea(str(tmp_path))))
    for first, old in ((0, False), (10, True), (20, False)):
        table.append(rows(first, 10, old=old))
        table.take()()
    pool.finish()
    assert [file.columns for file in table.files] == [
        ("commit_lsn", "n0"),
        ("commit_lsn", "n0", "o0"),
    ]
    assert [(file.min_commit_lsn, file.max_commit_lsn) for file in table.files] == [
        ("0/0", "0/9"),
        ("0/A", "0/1D"),
    ]
    for file in table.files:
        content = (tmp_path / file.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file.sha256
        assert len(content) == file.size_bytes
        assert parquet.read_table(tmp_path / file.path).num_rows == file.rows


def test_the_largest_buffer_is_written_when_the_budget_is_full(tmp_path: Path) -> None:
    area = StagingArea(str(tmp_path))
    one = rows(0, 1000)
    pool = WriterPool(one.nbytes * 20)
    tables = [pool.add(writer(area, f"f{number}")) for number in range(30)]
    for number in range(300):
        pool.append(tables[number % 30], one)
        assert sum(table.buffered_bytes for table in tables) <= one.nbytes * 20
    pool.finish()
    assert [sum(file.rows for file in table.files) for table in tables] == [10_000] * 30


def test_large_files_are_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "FILE_BYTES", 1)
    pool = WriterPool(8)
    table = pool.add(writer(StagingArea(str(tmp_path))))
    for first in range(0, 30, 10):
        pool.append(table, rows(first, 10))
    pool.finish()
    assert [file.path for file in table.files] == [
        f"f/changes-0000{number}.parquet" for number in range(3)
    ]


class _SlowStore(StagingArea):
    """An area whose files become durable only when so many of them are at it at the same time."""

    def __init__(self, staging_uri: str, together: int) -> None:
        super().__init__(staging_uri)
        self._together = threading.Barrier(together)

    def create(self, relative: str) -> StagedOutput:
        output = super().create(relative)
        finish = output.finish

        def wait_and_finish() -> Written:
            self._together.wait(timeout=30)
            return finish()

        output.finish = wait_and_finish  # type: ignore[method-assign]
        return output


@pytest.mark.parametrize(("count", "rows_each"), [(8, 10), (2, 200_000)])
def test_files_wait_for_a_slow_store_at_the_same_time(
    tmp_path: Path, count: int, rows_each: int
) -> None:
    pool = WriterPool(64 << 20)
    area = _SlowStore(str(tmp_path), together=count)
    tables = [pool.add(writer(area, f"f{number}")) for number in range(count)]
    for number, table in enumerate(tables):
        pool.append(table, rows(number, rows_each))
    pool.finish()
    for number, table in enumerate(tables):
        (file,) = table.files
        assert file.min_commit_lsn == str(Lsn(number))
        assert parquet.read_table(tmp_path / file.path).num_rows == file.rows == rows_each


def test_a_file_that_cannot_be_completed_among_others_is_an_error(tmp_path: Path) -> None:
    area = StagingArea(str(tmp_path))
    pool = WriterPool(8 << 20)
    for number in range(20):
        pool.append(pool.add(writer(area, f"f{number}")), rows(0, 10))
    area.create("f7/changes-00000.parquet").finish()
    with pytest.raises(LakeUnavailable):
        pool.finish()
    pool.abandon()


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    area = StagingArea(str(tmp_path))
    area.write_whole("a/b.json", b"1")
    with pytest.raises(LakeUnavailable):
        area.create("a/b.json")
    assert area.read("a/b.json") == b"1"
    assert area.names("a") == ["b.json"]
    assert area.names("nowhere") == []


def test_no_other_user_can_read_what_is_staged(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        area = StagingArea(str(tmp_path / "not" / "there" / "yet"))
        area.write_whole("s/manifests/m.json", b"1")
        area.create("s/data/a/1-v1/changes-00000.parquet").finish()
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path != tmp_path]
    assert len(made) == 10
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {0o600}


@pytest.mark.parametrize("uri", ["relative/path", "~/staging", "nope://x/y", ""])
def test_a_staging_uri_that_is_none_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        StagingArea(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "abfss://c@acc.dfs.core.windows.net/f?sv=2024&sig=5eCr3t",
        "s3://bucket/folder?access_key=5eCr3t",
        "file:///tmp/folder#5eCr3t",
    ],
)
def test_what_stands_behind_a_staging_uri_is_refused_and_not_repeated(uri: str) -> None:
    """It would be in XCom, in logs and on spark-submit's command line."""
    with pytest.raises(ConfigurationError) as refusal:
        StagingArea(uri)
    assert "5eCr3t" not in str(refusal.value)


@pytest.mark.parametrize("uri", ["file:///tmp/rev%20op", "s3://bucket/a%2Fb"])
def test_a_staging_uri_with_escapes_is_refused(uri: str) -> None:
    """Arrow reads them, and Hadoop takes them as they stand: each would have a folder of its own."""
    with pytest.raises(ConfigurationError, match="escape"):
        StagingArea(uri)


def test_a_path_may_have_a_percent_sign(tmp_path: Path) -> None:
    StagingArea(f"{tmp_path}/a%20b").write_whole("f", b"x")
    assert (tmp_path / "a%20b" / "f").read_bytes() == b"x"


@pytest.mark.parametrize("name", slow_but_each(2, ["AWS_REGION", "AWS_DEFAULT_REGION"]))
def test_the_region_of_a_bucket_that_aws_does_not_tell_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With the network or without: no bucket has a name of one letter."""
    for each in ("AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "eu-central-1")
    area = StagingArea("s3://b/folder")
    assert isinstance(area._filesystem, fs.S3FileSystem)
    assert area._filesystem.region == "eu-central-1"
    assert area.uri("f") == "s3://b/folder/f"


def test_a_bucket_that_cannot_be_asked_for_its_region_is_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the network or without: no bucket has a name of one letter."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LakeUnavailable, match="AWS_REGION"):
        StagingArea("s3://b/folder")


def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchRefused):
        StagingArea(str(tmp_path)).read("../secret")


def manifest(start: int, end: int, system: str = "7") -> Manifest:
    return Manifest("s", system, 1, "db", ("p",), Lsn(start), Lsn(end), ())


def test_the_batch_with_the_greatest_end_is_found(tmp_path: Path) -> None:
    area = StagingArea(tmp_path.as_uri())
    for each in (manifest(1, 5), manifest(1, 0x10), manifest(2, 0x20), manifest(1, 0x30, "8")):
        area.write_whole(
            f"s/manifests/{each.start_lsn.sortable}-{each.end_lsn.sortable}-{each.batch_id[:16]}.json",
            each.to_json().encode(),
        )
    found = find_sealed(area, "s", "7", Lsn(1))
    assert found is not None
    assert found[0] == manifest(1, 0x10)
    assert found[1].startswith("file://")
    assert find_sealed(area, "s", "7", Lsn(1), past=Lsn(0x10)) is None


def seal(area: StagingArea, sealed: Manifest, written: int = 0x1000) -> tuple[Manifest, str]:
    """Seal at a server that has written so much by then."""
    server = Server(180000, "7", 1, "db", Lsn(written), "logical")
    return seal_at(area, sealed, lambda: server)


def test_a_batch_that_is_covered_already_is_not_sealed_again(tmp_path: Path) -> None:
    area = StagingArea(str(tmp_path))
    first, uri = seal(area, manifest(1, 0x10))
    assert seal(area, manifest(1, 8)) == (first, uri)
    longer, _ = seal(area, manifest(1, 0x11))
    assert longer == manifest(1, 0x11)


def test_a_batch_of_a_past_that_was_undone_covers_none(tmp_path: Path) -> None:
    """The source's disk was brought back as it was at 0x20, on the same timeline."""
    area = StagingArea(str(tmp_path))
    undone, _ = seal(area, manifest(1, 0x30))
    assert find_sealed(area, "s", "7", Lsn(1)) == (undone, area.uri(name_of(undone)))
    again = manifest(1, 0x20)
    assert seal(area, again, written=0x20)[0] == again
    # Nor does it come back when the source has written past it.
    found = find_sealed(area, "s", "7", Lsn(1))
    assert found is not None
    assert found[0] == again


def name_of(sealed: Manifest) -> str:
    return layout.manifest_path(sealed.slot_name, sealed.start_lsn, sealed.end_lsn, sealed.batch_id)


def test_a_batch_covers_none_whose_copies_it_lacks(tmp_path: Path) -> None:
    """Whoever asked for a copy would be told that all is done."""
    area = StagingArea(str(tmp_path))
    seal(area, manifest(1, 0x10))
    table = Table(9, "public", "t", (), copy_lsn="0/8")
    with pytest.raises(SlotBusy, match=r"lacks the copies.*public\.t"):
        seal(area, dataclasses.replace(manifest(1, 0xF), tables=(table,)))
    copied = dataclasses.replace(manifest(1, 0x10), tables=(table,))
    assert seal(area, copied)[0] == copied
