"""What apply refuses, what it survives, and that a refused batch leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply import pipeline
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.publish import publish
from airflow_provider_pgoutput.apply.rows import prepare
from airflow_provider_pgoutput.apply.rows.staged_files import StagedBatch, read_job
from airflow_provider_pgoutput.apply.schema.column_map import COLUMNS_PROPERTY
from airflow_provider_pgoutput.apply.schema.evolve import evolve
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.apply.table.target import start, targets
from airflow_provider_pgoutput.batch.jobs import ApplyJob, TableOptions
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import (
    BatchGap,
    BatchRefused,
    ConfigurationError,
    PgoutputError,
    PublishRefused,
    RowMissing,
    TableRefused,
    TableRolledBack,
)
from tests.apply.build import Source, column, opened
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.apply.build import Relation


@pytest.fixture
def table(source: Source) -> Relation:
    """A table of three rows in the source, not yet staged."""
    made = source.table(
        "t", (column("a"), column("b", "string"), column("c")), key=("a",), toast=("b",)
    )
    with source.transaction():
        for a in (1, 2, 3):
            made.insert(a, f"b{a}", 0)
    return made


def name_of(relation: Relation) -> TableName:
    return TableName("lake", relation.source.slot_name, relation.name)


def loaded(spark: SparkSession, relation: Relation) -> IcebergTable:
    found = IcebergTable.load(spark, name_of(relation))
    assert found is not None
    return found


def prepared(spark: SparkSession, plan: ApplyJob) -> tuple[StagedBatch, Any, Any]:
    """Prepare the only table of a batch, as a driver does before it publishes."""
    batch = opened(spark, plan)
    progress = checkpoint.read(spark, plan, batch.manifest)
    (target,) = targets(plan, batch.manifest)
    begin = start(spark, target, batch.manifest, progress)
    return batch, prepare.prepare(spark, batch, target, begin), progress


def test_main_moved_between_prepare_and_publish(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"c": 1})
    batch, waiting, progress = prepared(spark, source.stage())
    spark.sql(f"CALL lake.system.rewrite_data_files(table => '{name_of(table).target}',"
              " options => map('rewrite-all', 'true'))")  # fmt: skip
    moved_to = loaded(spark, table).head
    publish(spark, batch, waiting, progress)
    assert lake_rows(table) == source_rows(table)
    assert loaded(spark, table).head != moved_to


def test_a_second_driver_is_refused_and_changes_nothing(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.insert(4, "b4", 0)
    plan = source.stage()
    _, zombie, _ = prepared(spark, plan)
    stale = loaded(spark, table)
    apply_batch(spark, plan)
    head = loaded(spark, table).head
    manifest = opened(spark, plan).manifest
    for seen in (stale, loaded(spark, table)):
        with pytest.raises(PublishRefused):
            seen.publish(zombie.branch, zombie.base, zombie.head, manifest, 7)
    assert loaded(spark, table).head == head
    assert lake_rows(table) == source_rows(table)


def test_a_main_that_keeps_moving_ends_the_apply(
    spark: SparkSession,
    source: Source,
    table: Relation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply_batch(spark, source.stage())
    table.insert(4, "b4", 0)
    batch, waiting, progress = prepared(spark, source.stage())
    real = IcebergTable.publish

    def after_somebody_else(self: IcebergTable, *arguments: Any) -> int:
        self.java.newFastAppend().commit()
        self.java.refresh()
        return real(self, *arguments)

    monkeypatch.setattr(IcebergTable, "publish", after_somebody_else)
    with pytest.raises(PublishRefused):
        publish(spark, batch, waiting, progress)


def test_publishing_tags_removes_the_branch_and_records_the_batch(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    plan = source.stage()
    apply_batch(spark, plan)
    manifest = opened(spark, plan).manifest
    found = loaded(spark, table)
    assert set(found.java.refs()) == {"main", f"pgoutput_{manifest.end_lsn.sortable}"}
    marker = found.marker(source.slot_name)
    assert marker is not None
    assert (marker.batch_id, marker.end_lsn) == (manifest.batch_id, manifest.end_lsn)
    progress = checkpoint.read(spark, plan, manifest)
    assert progress.end_lsn == manifest.end_lsn
    assert progress.tables == {name_of(table).target: manifest.end_lsn}


def test_the_marker_survives_expiry_of_its_snapshot(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    plan = source.stage()
    apply_batch(spark, replace(plan, tag_retention_days=0))
    spark.sql(f"INSERT INTO {name_of(table).sql} VALUES (99, 'theirs', 0)")
    found = loaded(spark, table)
    found.java.expireSnapshots().expireSnapshotId(found.java.currentSnapshot().parentId()).commit()
    found.java.refresh()
    marker = found.marker(source.slot_name)
    assert marker is not None
    assert marker.end_lsn == opened(spark, plan).manifest.end_lsn


def test_a_table_that_was_rolled_back_is_refused_until_it_is_copied_again(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    first = loaded(spark, table).head
    table.insert(4, "b4", 0)
    apply_batch(spark, source.stage())
    loaded(spark, table).java.manageSnapshots().setCurrentSnapshot(first).commit()
    table.insert(5, "b5", 0)
    pending, staged_to = list(source.pending), source.staged_to
    with pytest.raises(TableRolledBack, match="copy the table again"):
        apply_batch(spark, source.stage())
    assert loaded(spark, table).head == first
    source.pending, source.staged_to = pending, staged_to
    source.copy(table)
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_a_table_that_was_rolled_back_to_what_is_not_ours_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    """Where our own snapshots before it have expired, only the property says what was published since."""
    apply_batch(spark, source.stage())
    spark.sql(f"INSERT INTO {name_of(table).sql} VALUES (99, 'theirs', 0)")
    found = loaded(spark, table)
    theirs = found.head
    for tag in [each for each in found.java.refs() if each != "main"]:
        found.java.manageSnapshots().removeTag(tag).commit()
    found.java.expireSnapshots().expireSnapshotId(found.java.currentSnapshot().parentId()).commit()
    table.insert(4, "b4", 0)
    apply_batch(spark, source.stage())
    assert not loaded(spark, table).applied(source.slot_name).was_rolled_back
    loaded(spark, table).java.manageSnapshots().setCurrentSnapshot(theirs).commit()
    assert loaded(spark, table).applied(source.slot_name).was_rolled_back
    table.insert(5, "b5", 0)
    with pytest.raises(TableRolledBack, match="copy the table again"):
        apply_batch(spark, source.stage())
    assert loaded(spark, table).head == theirs


def test_a_batch_past_the_checkpoint_is_a_gap(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.insert(4, "b4", 0)
    between = source.stage()
    table.insert(5, "b5", 0)
    after = source.stage()
    with pytest.raises(BatchGap):
        apply_batch(spark, after)
    apply_batch(spark, between)
    apply_batch(spark, after)
    assert lake_rows(table) == source_rows(table)


def test_a_batch_that_repeats_older_transactions_takes_only_the_new_ones(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    pending = list(source.pending)
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"a": 7})
    table.insert(1, "new", 1)
    source.pending = pending + source.pending
    source.staged_to = 0x1_0000_1000
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_an_empty_batch_moves_the_checkpoint_and_no_table(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    head = loaded(spark, table).head
    source.lsn += 0x1000
    plan = source.stage()
    apply_batch(spark, plan)
    manifest = opened(spark, plan).manifest
    assert checkpoint.read(spark, plan, manifest).end_lsn == manifest.end_lsn
    assert loaded(spark, table).head == head


@pytest.mark.parametrize("toasted", [{"c": 1}, {"a": 9}])
def test_a_partial_update_of_a_row_that_is_not_there(
    spark: SparkSession, source: Source, table: Relation, toasted: dict[str, int]
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 2")
    head = loaded(spark, table).head
    table.update(a_is(2), toasted)
    with pytest.raises(RowMissing, match="copy the table again") as raised:
        apply_batch(spark, source.stage())
    assert raised.value.table == "public.t"
    assert loaded(spark, table).head == head


def test_a_deleted_row_without_a_key_that_is_not_there(spark: SparkSession, source: Source) -> None:
    full = source.table("f", (column("a"),), identity="f")
    full.insert(1)
    full.insert(2)
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(full).sql} WHERE a = 2")
    full.delete(a_is(2))
    with pytest.raises(RowMissing):
        apply_batch(spark, source.stage())


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


def _say(plan: ApplyJob, folder: Path, **fields: object) -> ApplyJob:
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


def test_somebody_elses_table_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {name_of(table).namespace_sql}")
    spark.sql(f"CREATE TABLE {name_of(table).sql} (a INT, b STRING, c INT) USING iceberg")
    spark.sql(f"INSERT INTO {name_of(table).sql} VALUES (1, 'theirs', 0)")
    with pytest.raises(TableRefused):
        apply_batch(spark, source.stage())


def test_a_table_of_another_system_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    source.system_identifier = "another"
    table.insert(4, "b4", 0)
    with pytest.raises(TableRefused, match="another PostgreSQL system"):
        apply_batch(spark, source.stage())


def test_a_table_that_was_created_again_at_the_source_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    table.oid += 1
    table.insert(4, "b4", 0)
    with pytest.raises(TableRefused, match="created again"):
        apply_batch(spark, source.stage())


def test_a_renamed_table_is_refused_until_its_target_is_named(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.name = "t_new"
    table.insert(4, "b4", 0)
    plan = source.stage()
    with pytest.raises(TableRefused, match="renamed"):
        apply_batch(spark, plan)
    apply_batch(spark, replace(plan, table_options={"public.t_new": TableOptions(target="t")}))
    assert lake_rows(table, target="t") == source_rows(table)


def test_a_type_that_iceberg_cannot_follow_is_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    apply_batch(spark, source.stage())
    table.alter(columns=(column("a"), column("b", "string"), column("c", "string")))
    table.insert(4, "b4", "text")
    with pytest.raises(TableRefused, match="type changed from int to string") as raised:
        apply_batch(spark, source.stage())
    assert raised.value.column == "c"


def test_two_tables_with_one_target_are_refused(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    other = source.table("t", (column("a"),), key=("a",), schema_name="s")
    other.insert(1)
    plan = replace(source.stage(), table_options={"s.t": TableOptions(target="t")})
    with pytest.raises(ConfigurationError):
        apply_batch(spark, plan)


def race(spark: SparkSession, plan: ApplyJob) -> None:
    """Apply a batch by two drivers at once."""
    refused: list[BaseException] = []

    def run() -> None:
        try:
            pipeline.apply_batch(spark, plan)
        except PublishRefused as refusal:
            refused.append(refusal)

    drivers = [threading.Thread(target=run) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    if len(refused) == 2:  # Each removed the other's branch; a retry settles it.
        apply_batch(spark, plan)


def test_drivers_that_race_leave_one_result(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"c": 1})
    table.insert(9, "b9", 0)
    race(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_a_column_that_two_writers_add_is_added_once(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """The table that is evolved was loaded before somebody else added the column."""
    plan = source.stage()
    apply_batch(spark, plan)
    name = TableName(plan.catalog, plan.namespace, "t")
    stale = IcebergTable.load(spark, name)
    assert stale is not None
    spark.sql(f"ALTER TABLE {name.sql} ADD COLUMN d int")
    evolve(spark, stale, [*table.version.columns, column("d")], ("a",), {}, {})
    assert [field.name for field in spark.table(name.sql).schema.fields].count("d") == 1
    table.alter(columns=(*table.version.columns, column("d")))
    table.update(a_is(1), {"d": 5})
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_columns_that_changed_after_they_were_looked_at_are_left_alone(
    spark: SparkSession, source: Source, table: Relation
) -> None:
    """Another driver renamed a column, which moves no branch; to this one it is still the old name's."""
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"c": 5})
    plan = source.stage()
    batch = opened(spark, plan)
    (target,) = targets(plan, batch.manifest)
    begin = start(spark, target, batch.manifest, checkpoint.read(spark, plan, batch.manifest))

    class Overtaken(prepare.TablePreparation):
        def write(self) -> None:
            """See ``Preparation``; somebody else is faster."""
            numbers = '{"relation_oid": 1, "fields": {}}'
            sql = f"ALTER TABLE {target.name.sql} SET TBLPROPERTIES ('{COLUMNS_PROPERTY}' = '{numbers}')"
            spark.sql(sql)
            super().write()

    with pytest.raises(PublishRefused, match="columns changed"):
        Overtaken(spark, batch, target, begin).run()
    assert not loaded(spark, table).branch_ages_ms()


def test_of_two_first_runs_on_one_target_the_later_one_leaves_the_table_alone(
    spark: SparkSession, source: Source, tmp_path: Path, lake_rows: Any
) -> None:
    """Another pipeline made the table after this one looked for it and found none."""
    owner = source.table("t", (column("a"),), key=("a",))
    owner.insert(1)
    first = source.stage()
    other = Source(tmp_path / "other", "another_slot", "999")
    other.table("t", (column("a"), column("z", "string")), key=("a",)).insert(7, "z")
    plan = replace(other.stage(), namespace=source.slot_name)
    batch = opened(spark, plan)
    (target,) = targets(plan, batch.manifest)
    progress = checkpoint.read(spark, plan, batch.manifest)
    begin = start(spark, target, batch.manifest, progress)

    class Overtaken(prepare.TablePreparation):
        def create(self) -> IcebergTable:
            """See ``Preparation``; somebody else is faster."""
            apply_batch(spark, first)
            return super().create()

    with pytest.raises(PublishRefused, match="made the table"):
        Overtaken(spark, batch, target, begin).run()
    with pytest.raises(TableRefused, match="another slot"):
        apply_batch(spark, plan)
    owner.insert(2)
    apply_batch(spark, source.stage())
    assert lake_rows(owner) == source_rows(owner)
    assert [str(each) for each in spark.table(target.name.sql).columns] == ["a"]


def test_a_column_that_is_renamed_while_the_branch_is_written_keeps_its_values(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """Spark gives NULL to columns that it does not find by the batch's names, and moves no branch."""
    kinds = (("a", "int"), ("b", "string"), ("c", "int"))
    columns = [replace(column(*kind), attribute_number=i) for i, kind in enumerate(kinds, 1)]
    table = source.table("numbered", tuple(columns), key=("a",))
    table.insert(1, "b1", 0)
    table.insert(2, "b2", 0)
    apply_batch(spark, source.stage())
    table.update(a_is(1), {"b": "new", "c": 5})
    names = ["c"]

    def rename(point: str) -> None:
        if point == "apply.after_branch" and names:
            spark.sql(f"ALTER TABLE {name_of(table).sql} RENAME COLUMN {names.pop()} TO cc")

    with crash_points.watched(rename):
        apply_batch(spark, source.stage())
    assert not names
    assert lake_rows(table) == source_rows(table)


def test_drivers_that_add_a_column_at_once_leave_one(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    table.alter(columns=(*table.version.columns, column("d")))
    table.update(a_is(1), {"d": 5})
    race(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


def test_s3_is_opened_by_s3a_unless_somebody_says_otherwise(spark: SparkSession) -> None:
    """Arrow, which stages, knows no ``s3a://``; the jar of S3A is not among those of the tests."""
    context: Any = spark.sparkContext
    configuration = context._jsc.hadoopConfiguration()
    key, s3a = "fs.s3.impl", "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert configuration.get(key) is None
    try:
        with pytest.raises(ConfigurationError, match="Spark cannot open s3 paths"):
            read_job(spark, "s3://bucket/plan.json")
        assert configuration.get(key) == s3a
        configuration.set(key, "org.apache.hadoop.fs.RawLocalFileSystem")
        with pytest.raises(PgoutputError):
            read_job(spark, "s3://another/plan.json")
        assert configuration.get(key) == "org.apache.hadoop.fs.RawLocalFileSystem"
    finally:
        configuration.unset(key)
