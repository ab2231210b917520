"""A file of a target is missing or damaged: the target is set aside, and the others go on.

Only what is proved to be of the target counts. A staged file, a file that the run itself wrote, a table of
the pipeline's own and a store that is out set nothing aside.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from py4j.protocol import Py4JJavaError

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply import pipeline
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.maintain import maintain
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import apply_few
from airflow_provider_pgoutput.batch.checkpoint import CHECKPOINT_TABLE, QUARANTINE_TABLE
from airflow_provider_pgoutput.batch.jobs import COPY_ON_WRITE, MERGE_ON_READ, MaintenanceJob
from airflow_provider_pgoutput.errors import (
    LakeUnavailable,
    SparkFailed,
    TableDamaged,
    TableRefused,
)
from tests.apply.build import column
from tests.apply.conftest import source_rows
from tests.apply.fold_cases import a_is
from tests.apply.rows.test_quarantine import UNFIT, stage
from tests.apply.test_set_aside import aside, catch_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.apply.build import Relation, Source


def files(spark: SparkSession, source: Source, name: str = "t") -> list[Path]:
    """The data files and delete files of a table."""
    table = TableName("lake", source.slot_name, name).sql
    spark.catalog.refreshTable(table)
    rows = spark.sql(f"SELECT file_path FROM {table}.files").collect()
    return [Path(urlsplit(row["file_path"]).path) for row in rows]


@contextmanager
def damaged(file: Path, content: Callable[[int], bytes | None]) -> Iterator[None]:
    """Give a file another content, or none, and then put it back.

    :param content: is called with the size of the file.
    """
    # A store has no such files. Hadoop's local file system compares each file with one.
    checksum = file.with_name(f".{file.name}.crc")
    checksum.unlink(missing_ok=True)
    whole = file.read_bytes()
    other = content(len(whole))
    if other is None:
        file.unlink()
    else:
        file.write_bytes(other)
    yield
    file.write_bytes(whole)


#: What may happen to a file, and what is said of it.
MISSING = (lambda size: None, "is missing")
OTHER_BYTES = (os.urandom, "is no Parquet file any more")
CUT = (lambda size: os.urandom(size - 20), "bytes in place of")


@pytest.fixture
def third(source: Source) -> Relation:
    return source.table("third", (column("a"), column("b", "string")), key=("a",))


def change(*relations: Relation) -> None:
    """Change the first row of each table, and add one."""
    for relation in relations:
        number = len(relation.rows) + 10
        relation.update(a_is(1), {"b": f"changed {number}"})
        relation.insert(number, f"new {number}", *(0,) * (len(relation.version.columns) - 2))


@pytest.mark.further
@pytest.mark.parametrize(
    ("content", "most_changes", "write_mode", "way"),
    [
        (MISSING, None, MERGE_ON_READ, "file"),
        (OTHER_BYTES, 0, MERGE_ON_READ, "copy"),
        pytest.param(MISSING, 0, COPY_ON_WRITE, "copy", marks=pytest.mark.exhaustive),
        pytest.param(MISSING, 0, MERGE_ON_READ, "file", marks=pytest.mark.exhaustive),
        pytest.param(CUT, 0, COPY_ON_WRITE, "file", marks=pytest.mark.exhaustive),
        pytest.param(OTHER_BYTES, None, MERGE_ON_READ, "file", marks=pytest.mark.exhaustive),
    ],
)
def test_a_table_with_a_damaged_file_is_set_aside_and_comes_back(
    spark: SparkSession,
    source: Source,
    table: Relation,
    other: Relation,
    third: Relation,
    lake_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
    content: Any,
    most_changes: int | None,
    write_mode: str,
    way: str,
) -> None:
    if most_changes is not None:
        monkeypatch.setattr(apply_few, "MOST_CHANGES", most_changes)

    def staged() -> ApplyJob:
        return dataclasses.replace(aside(source.stage()), write_mode=write_mode)

    for relation in (other, third):
        relation.insert(1, "first")
    apply_batch(spark, staged())
    (file,) = files(spark, source)
    jobs = []
    with damaged(file, content[0]):
        for reason in (f"The file {file.name} of the table ", "The table lacks an earlier batch"):
            change(table, other, third)
            jobs.append(staged())
            result = apply_batch(spark, jobs[-1])
            (why,) = result.set_aside.values()
            assert why.startswith(f"TableDamaged: {reason}")
            assert "What to do: put " in why
            assert "copy_tables" in why
            assert list(result.set_aside) == ["public.t"]
            assert len(result.published) == 2
            for relation in (other, third):
                assert lake_rows(relation) == source_rows(relation)
            if len(jobs) == 1:
                assert content[1] in why
                loaded = IcebergTable.load(spark, TableName("lake", source.slot_name, "t"))
                assert loaded is not None
                assert not loaded.branch_ages_ms()
                with pytest.raises(TableRefused, match="because of TableDamaged: The file"):
                    catch_up(spark, jobs)
        if way == "copy":
            source.copy(table)
            change(other)
            assert not apply_batch(spark, staged()).set_aside
            assert lake_rows(table) == source_rows(table)
    if way == "file":
        catch_up(spark, jobs)
        assert lake_rows(table) == source_rows(table)
    change(table, other, third)
    assert not apply_batch(spark, staged()).set_aside
    for relation in (table, other, third):
        assert lake_rows(relation) == source_rows(relation)


def metadata_file(spark: SparkSession, source: Source, name: str) -> Path:
    """The newest metadata file of a table."""
    loaded = IcebergTable.load(spark, TableName("lake", source.slot_name, name))
    assert loaded is not None
    return Path(urlsplit(str(loaded.java.operations().current().metadataFileLocation())).path)


def forget(spark: SparkSession, source: Source, *names: str) -> None:
    """Let Spark read the metadata file again, as the driver of the next batch does."""
    for name in names:
        with contextlib.suppress(Py4JJavaError):
            spark.catalog.refreshTable(TableName("lake", source.slot_name, name).sql)


@pytest.mark.further
def test_a_table_without_its_metadata_file_is_set_aside_and_comes_back(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any
) -> None:
    other.insert(1, "first")
    apply_batch(spark, source.stage())
    file, jobs = metadata_file(spark, source, "t"), []
    with damaged(file, MISSING[0]):
        for _ in range(2):
            change(table, other)
            jobs.append(aside(source.stage()))
            forget(spark, source, "t")
            why = apply_batch(spark, jobs[-1]).set_aside["public.t"]
            assert why.startswith("TableDamaged: ")
            assert lake_rows(other) == source_rows(other)
            forget(spark, source, "t")
            # The batch again: the checkpoint has it.
            assert not apply_batch(spark, jobs[-1]).published
        assert "The table lacks an earlier batch" in why
        forget(spark, source, "t")
        job = MaintenanceJob(
            staging_uri=source.staging.as_uri(),
            catalog_name="lake",
            namespace=source.slot_name,
            slot_name=source.slot_name,
        )
        # It passes the table over.
        assert f"{source.slot_name}.other" in maintain(spark, job).tables
    catch_up(spark, jobs)
    change(table, other)
    assert not apply_batch(spark, aside(source.stage())).set_aside
    assert lake_rows(table) == source_rows(table)


@pytest.mark.further
def test_a_store_without_the_metadata_files_of_all_tables_is_tried_again(
    spark: SparkSession,
    source: Source,
    table: Relation,
    other: Relation,
    lake_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Perhaps its disk is gone since the checkpoint was read. So no table is blamed."""
    other.insert(1, "first")
    apply_batch(spark, source.stage())
    change(table, other)
    job = aside(source.stage())
    with contextlib.ExitStack() as gone:

        def vanish(*_: object) -> None:
            for name in ("t", "other", CHECKPOINT_TABLE):
                gone.enter_context(damaged(metadata_file(spark, source, name), MISSING[0]))
            forget(spark, source, "t", "other")

        # It comes right after the checkpoint was read.
        monkeypatch.setattr(pipeline, "refuse_gap", vanish)
        with pytest.raises(LakeUnavailable):
            apply_batch(spark, job)
    monkeypatch.undo()
    assert not apply_batch(spark, job).set_aside
    assert lake_rows(table) == source_rows(table)


@pytest.mark.further
def test_a_copy_that_reads_the_old_rows_needs_the_table_dropped(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any
) -> None:
    """With soft delete a copy marks the rows that are gone."""

    def staged() -> ApplyJob:
        return dataclasses.replace(aside(source.stage()), soft_delete=True)

    other.insert(1, "first")
    apply_batch(spark, staged())
    (file,) = files(spark, source)
    file.unlink()
    for _ in range(2):
        change(table, other)
        source.copy(table)
        assert apply_batch(spark, staged()).set_aside["public.t"].startswith("TableDamaged: ")
        assert lake_rows(other) == source_rows(other)
    spark.sql(f"DROP TABLE {TableName('lake', source.slot_name, 't').sql}")
    change(other)
    source.copy(table)
    assert not apply_batch(spark, staged()).set_aside
    assert lake_rows(table) == source_rows(table)


@pytest.mark.further
def test_a_table_that_is_damaged_when_it_is_prepared_again_is_set_aside(
    spark: SparkSession, source: Source, table: Relation, other: Relation, lake_rows: Any
) -> None:
    """Another writer moves main after the table was prepared, and a file is lost at that moment."""
    other.insert(1, "first")
    apply_batch(spark, source.stage())
    (file,) = files(spark, source)
    name = TableName("lake", source.slot_name, "t").sql
    change(table, other)

    def move(point: str) -> None:
        if point == "apply.after_prepare":
            spark.sql(f"INSERT INTO {name} (a, b, c) VALUES (99, 'of a user', 0)")
            file.unlink()

    with crash_points.watched(move):
        result = apply_batch(spark, aside(source.stage()))
    assert result.set_aside["public.t"].startswith(f"TableDamaged: The file {file.name} ")
    assert lake_rows(other) == source_rows(other)
    change(other)
    source.copy(table)
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


@pytest.mark.further
def test_what_is_not_proved_to_be_the_tables_damage_is_tried_again(
    spark: SparkSession,
    source: Source,
    table: Relation,
    other: Relation,
    lake_rows: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Staged files vanish, a file that the run wrote vanishes, and the store loses all of a table's files."""
    monkeypatch.setattr(apply_few, "MOST_CHANGES", 0)
    other.insert(1, "first")
    apply_batch(spark, source.stage())
    change(table, other)
    # The second table reads its staged files after the first one has its branch.
    job = dataclasses.replace(aside(source.stage()), parallel_tables=1)
    folder = source.staging.with_name("gone")

    def vanish(point: str) -> None:
        if point == "apply.after_branch":
            source.staging.rename(folder)

    with crash_points.watched(vanish), pytest.raises(SparkFailed):
        apply_batch(spark, job)
    folder.rename(source.staging)
    assert not apply_batch(spark, job).set_aside
    assert lake_rows(table) == source_rows(table)

    held = set(files(spark, source))
    location = next(iter(held)).parent.parent
    source.copy(table)
    change(table, other)
    job = aside(source.stage())

    def lose(point: str) -> None:
        if point == "apply.after_copy":
            for file in {*location.glob("data/*.parquet")} - held:
                file.unlink()

    with crash_points.watched(lose), pytest.raises(SparkFailed):
        apply_batch(spark, job)
    assert not apply_batch(spark, job).set_aside
    assert lake_rows(table) == source_rows(table)

    change(table, other)
    job = dataclasses.replace(aside(source.stage()), parallel_tables=1)
    away = location.with_name("away")

    def unmount(point: str) -> None:
        if point == "apply.after_branch":
            location.rename(away)

    with crash_points.watched(unmount), pytest.raises((SparkFailed, LakeUnavailable)):
        apply_batch(spark, job)
    # The branch was removed meanwhile, which wrote new metadata.
    shutil.copytree(away, location, dirs_exist_ok=True)
    assert not apply_batch(spark, job).set_aside
    for relation in (table, other):
        assert lake_rows(relation) == source_rows(relation)


@pytest.mark.further
def test_a_damaged_table_of_the_pipelines_own_is_blamed_on_no_target(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """The quarantine is read while a target is prepared."""
    columns = (column("a"), column("b", "string"), column("c"))
    table = source.table("t", columns, key=("a",), toast=("b",))
    table.insert(UNFIT, "unfit", 0)
    table.insert(1, "fits", 0)
    assert not apply_batch(spark, stage(source, on_table_refused="set_aside")).set_aside
    (file,) = files(spark, source, QUARANTINE_TABLE)
    change(table)
    job = stage(source, on_table_refused="set_aside")
    with damaged(file, MISSING[0]), pytest.raises(SparkFailed):
        apply_batch(spark, job)
    assert not apply_batch(spark, job).set_aside
    expected = [row for row in source_rows(table) if row[0] < UNFIT]
    assert lake_rows(table) == expected


@pytest.mark.further
def test_maintenance_names_the_table_and_maintains_the_others(
    spark: SparkSession, source: Source, table: Relation, other: Relation
) -> None:
    for number in (1, 2):
        other.insert(number, "new")
        change(table)
        apply_batch(spark, source.stage())
    file = next(each for each in files(spark, source) if "deletes" not in each.name)
    job = MaintenanceJob(
        staging_uri=source.staging.as_uri(),
        catalog_name="lake",
        namespace=source.slot_name,
        slot_name=source.slot_name,
        compact=True,
        compact_options={"rewrite-all": "true"},
    )
    with damaged(file, MISSING[0]):
        with pytest.raises(TableDamaged, match=file.name) as failed:
            maintain(spark, job)
        assert failed.value.table == f"{source.slot_name}.t"
        assert len(files(spark, source, "other")) == 1
    assert f"{source.slot_name}.t" in maintain(spark, job).tables
