"""Files of a batch are checked before Spark reads a row. A refused batch leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows.staged_files import read_job
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError, PgoutputError
from tests.apply.conftest import source_rows
from tests.apply.drivers import name_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.apply.build import Relation, Source


def _break_json(plan: ApplyJob, folder: Path) -> ApplyJob:
    _manifest_file(plan, folder).write_text("{")
    return plan


def _drop_manifest(plan: ApplyJob, folder: Path) -> ApplyJob:
    _manifest_file(plan, folder).unlink()
    return plan


def _newer_format(plan: ApplyJob, folder: Path) -> ApplyJob:
    return _edit(plan, folder, "format_version", 99)


def _other_slot(plan: ApplyJob, folder: Path) -> ApplyJob:
    return _edit(plan, folder, "slot_name", "another")


def _other_name(plan: ApplyJob, folder: Path) -> ApplyJob:
    file = _manifest_file(plan, folder)
    other = file.with_name(file.name.replace("0", "1", 1))
    file.rename(other)
    return replace(plan, manifest_uri=other.as_uri())


def _truncate_file(plan: ApplyJob, folder: Path) -> ApplyJob:
    file = _staged_file(folder)
    file.write_bytes(file.read_bytes()[:-1])
    return plan


def _flip_bit(plan: ApplyJob, folder: Path) -> ApplyJob:
    file = _staged_file(folder)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return plan


def _say(plan: ApplyJob, folder: Path, **fields: Any) -> ApplyJob:
    """Let the manifest say something else of the first file, which has the name and hash that it names."""
    manifest = Manifest.from_json(_manifest_file(plan, folder).read_text())
    table, *others = manifest.tables
    version, *versions = table.versions
    file, *files = version.files
    version = replace(version, files=(replace(file, **fields), *files))
    table = replace(table, versions=(version, *versions))
    _manifest_file(plan, folder).write_text(replace(manifest, tables=(table, *others)).to_json())
    return plan


def _other_rows(plan: ApplyJob, folder: Path) -> ApplyJob:
    return _say(plan, folder, rows=1_000)


def _other_columns(plan: ApplyJob, folder: Path) -> ApplyJob:
    return _say(plan, folder, columns=("commit_lsn", "seq"))


def _no_parquet(plan: ApplyJob, folder: Path) -> ApplyJob:
    content = b"PAR1 and then something else"
    _staged_file(folder).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return _say(plan, folder, size_bytes=len(content), sha256=digest)


def _drop_file(plan: ApplyJob, folder: Path) -> ApplyJob:
    _staged_file(folder).unlink()
    return plan


def _manifest_file(plan: ApplyJob, folder: Path) -> Path:
    return folder / plan.manifest_uri.removeprefix(plan.staging_uri + "/")


def _staged_file(folder: Path) -> Path:
    return next(folder.rglob("*.parquet"))


def _edit(plan: ApplyJob, folder: Path, field: str, value: object) -> ApplyJob:
    file = _manifest_file(plan, folder)
    body = json.loads(file.read_text())
    body[field] = value
    file.write_text(json.dumps(body))
    return plan


@pytest.mark.parametrize(
    "damage",
    [_break_json, _drop_manifest, _newer_format, _other_slot, _other_name,
     _truncate_file, _flip_bit, _drop_file, _other_rows, _other_columns, _no_parquet],
)  # fmt: skip
def test_a_damaged_batch_is_refused_before_anything_is_written(
    spark: SparkSession, source: Source, table: Relation, damage: Any
) -> None:
    plan = damage(source.stage(), source.staging)
    with pytest.raises(BatchRefused):
        apply_batch(spark, plan)
    assert IcebergTable.load(spark, name_of(table)) is None


def test_only_what_the_manifest_names_is_read(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """Not a file beside; and where a link leads to has to be what the capture wrote."""
    plan = source.stage()
    staged = _staged_file(source.staging)
    shutil.copy(staged, staged.with_name("another.parquet"))
    kept = shutil.move(staged, source.staging / "elsewhere")
    staged.symlink_to(kept)
    apply_batch(spark, plan)
    assert lake_rows(table) == source_rows(table)
    table.insert(4, "b4", 0)
    plan = source.stage()
    other = next(
        each
        for each in source.staging.rglob("*.parquet")
        if each.name != "another.parquet" and not each.is_symlink()
    )
    other.unlink()
    other.symlink_to(kept)
    with pytest.raises(BatchRefused):
        apply_batch(spark, plan)


def test_a_path_that_leaves_the_staging_area_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    plan = source.stage()
    manifest = Manifest.from_json(_manifest_file(plan, source.staging).read_text())
    (only,) = manifest.tables
    (version,) = only.versions
    file = replace(version.files[0], path="../../etc/passwd")
    moved = replace(only, versions=(replace(version, files=(file,)),))
    with pytest.raises(BatchRefused):
        apply_batch(spark, source.write(replace(manifest, tables=(moved,))))


def test_s3_is_opened_by_s3a_unless_somebody_says_otherwise(spark: SparkSession) -> None:
    """Arrow, which stages, knows no ``s3a://``; the jar of S3A is not among those of the tests."""
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    key, s3a = "fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert configuration.get(key) is None
    try:
        with pytest.raises(ConfigurationError, match=r"lacks .*S3AFileSystem.*hadoop-aws:"):
            read_job(spark, "s3://bucket/plan.json")
        assert configuration.get(key) == s3a
        configuration.set(key, "org.apache.hadoop.fs.RawLocalFileSystem")
        with pytest.raises(PgoutputError):
            read_job(spark, "s3://another/plan.json")
        assert configuration.get(key) == "org.apache.hadoop.fs.RawLocalFileSystem"
    finally:
        configuration.unset(key)
