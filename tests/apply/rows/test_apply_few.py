"""Few changes are written by the driver: the same rows as by Spark, in one commit, and fenced alike."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.jvm import elements
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import apply_few
from airflow_provider_pgoutput.batch.checkpoint import marker_of
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, COPY_ON_WRITE, TableOptions
from airflow_provider_pgoutput.errors import PublishRefused
from tests.apply.build import Source, column, numbered, opened
from tests.apply.conftest import source_rows
from tests.apply.drivers import loaded, name_of, prepared
from tests.apply.fold_cases import a_is

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.apply.build import Relation

ABC = (column("a"), column("b", "string"), column("c"))
#: Types of values, two values of each, and whether a key may have it.
VALUES: dict[str, tuple[Any, Any]] = {
    "int": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "float": (float("-inf"), -0.0),
    "double": (1e308, -0.0),
    "string": ("", "\U0001f600 \\n\n\r'\"\x00e"),
    "boolean": (True, False),
    "binary": (b"", b"\x00\xff"),
    "date": (date(1, 1, 1), date(9999, 12, 31)),
    "timestamp": (datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "timestamptz": (datetime(1, 1, 1, tzinfo=UTC), datetime(1582, 10, 10, 1, 2, 3, 4, tzinfo=UTC)),
    "decimal(12, 2)": (Decimal("-9999999999.99"), Decimal("0.01")),
}


@pytest.fixture(params=[2, 3])
def stage(request: pytest.FixtureRequest, source: Source) -> Callable[[], ApplyJob]:
    """Stages a batch of tables in a format version."""
    return lambda: dataclasses.replace(source.stage(), format_version=request.param)


@contextmanager
def _noted() -> Iterator[list[str]]:
    """The crash points that are reached inside."""
    reached: list[str] = []
    with crash_points.watched(reached.append):
        yield reached


def _apply(spark: SparkSession, job: ApplyJob) -> bool:
    """Apply a batch; return whether the driver wrote rows itself."""
    with _noted() as reached:
        apply_batch(spark, job)
    return "apply.after_row_delta" in reached


def test_values_of_every_plain_type_are_those_that_spark_writes(
    spark: SparkSession,
    source: Source,
    stage: Callable[[], ApplyJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = (column("a"), *(column(f"c{i}", kind) for i, kind in enumerate(VALUES)))
    tables = [source.table(name, columns, key=("a",)) for name in ("driver", "spark")]
    for each in tables:
        each.insert(1, *(None for _ in VALUES))
        each.insert(2, *(pair[0] for pair in VALUES.values()))
    first = stage()
    for name in ("_pgoutput_commit_lsn", "_pgoutput_seq", "_pgoutput_op", "_pgoutput_xid"):
        first = dataclasses.replace(first, metadata_columns=(*first.metadata_columns, name))
    apply_batch(spark, first)
    for each in tables:
        with source.transaction():
            each.update(a_is(1), {f"c{i}": pair[1] for i, pair in enumerate(VALUES.values())})
            each.update(a_is(2), {f"c{i}": None for i in range(len(VALUES))})
            each.insert(3, *(pair[0] for pair in VALUES.values()))
            each.insert(4, *(pair[1] for pair in VALUES.values()))
        job = dataclasses.replace(stage(), metadata_columns=first.metadata_columns)
        if each.name == "spark":
            monkeypatch.setattr(apply_few, "MOST_CHANGES", 0)
        assert _apply(spark, job) == (each.name == "driver")
    # As text: it tells -0.0 from 0.0, and years that Python has not. The LSNs differ by one transaction.
    wanted = [f"CAST(`{each.name}` AS STRING)" for each in columns]
    wanted += ["_pgoutput_seq", "_pgoutput_op", "_pgoutput_commit_lsn IS NULL"]
    driver, by_spark = (
        sorted(map(str, spark.table(f"lake.{source.slot_name}.{n}").selectExpr(*wanted).collect()))
        for n in ("driver", "spark")
    )
    assert driver == by_spark
    assert len(driver) == 4


@pytest.mark.parametrize("kind", ["int", "long", "string"])
def test_keys_that_move_come_back_and_go(
    spark: SparkSession, source: Source, stage: Callable[[], ApplyJob], lake_rows: Any, kind: str
) -> None:
    def key(number: int) -> Any:
        return f"k\n'{number}\U0001f600" if kind == "string" else number - 5

    columns = (column("a", kind), column("b", "string"), column("c"))
    one = source.table("one", columns, key=("a",))
    two = source.table("two", columns, key=("a", "c"))
    for number in range(8):
        one.insert(key(number), f"b{number}", number)
        two.insert(key(number % 4), f"b{number}", number // 4)
    apply_batch(spark, stage())
    for round_ in range(3):
        with source.transaction():
            for each in (one, two):
                each.update(a_is(key(0)), {"a": key(100)})
                each.update(a_is(key(1)), {"a": key(0), "b": f"round {round_}"})
                each.update(a_is(key(100)), {"a": key(1)})
                each.delete(a_is(key(2)))
                each.insert(key(2), f"again {round_}", 7 + round_)
                each.insert(key(50), "comes", 0)
                each.delete(a_is(key(50)))
        assert _apply(spark, stage())
        for each in (one, two):
            assert lake_rows(each) == source_rows(each)


def test_a_batch_is_one_commit_with_one_file_of_rows_and_the_marker(
    spark: SparkSession, source: Source, stage: Callable[[], ApplyJob], table: Relation
) -> None:
    apply_batch(spark, stage())
    before = loaded(spark, table).head
    table.update(a_is(1), {"b": "new", "c": 1})
    table.delete(a_is(2))
    job = stage()
    assert _apply(spark, job)
    found = loaded(spark, table)
    snapshot = found.java.currentSnapshot()
    assert snapshot.parentId() == before
    summary = dict(snapshot.summary())
    assert snapshot.operation() == "overwrite"
    assert (summary["added-records"], summary["added-position-deletes"]) == ("1", "2")
    assert summary.get("added-dvs") == (None if job.format_version == 2 else "1")
    manifest = opened(spark, job).manifest
    assert summary.items() >= marker_of(manifest).items()
    assert found.branch_ages_ms() == {}


def test_a_batch_that_finds_nothing_to_change_is_recorded(
    spark: SparkSession,
    source: Source,
    stage: Callable[[], ApplyJob],
    table: Relation,
    lake_rows: Any,
) -> None:
    apply_batch(spark, stage())
    with source.transaction():
        table.insert(4, "b4", 0)
        table.delete(a_is(4))
    job = stage()
    assert _apply(spark, job)
    marker = loaded(spark, table).marker(source.slot_name)
    assert marker is not None
    assert marker.end_lsn == opened(spark, job).manifest.end_lsn
    assert lake_rows(table) == source_rows(table)


def test_rows_of_another_writer_with_the_same_key_are_replaced(
    spark: SparkSession,
    source: Source,
    stage: Callable[[], ApplyJob],
    table: Relation,
    lake_rows: Any,
) -> None:
    """Their files and their deletes are found like our own."""
    apply_batch(spark, stage())
    name = name_of(table).sql
    spark.sql(f"INSERT INTO {name} VALUES (1, 'theirs', 9), (7, 'theirs', 9)")
    spark.sql(f"DELETE FROM {name} WHERE a = 3")
    table.update(a_is(1), {"b": "ours", "c": 1})
    table.update(a_is(3), {"b": "ours", "c": 3})
    assert _apply(spark, stage())
    assert lake_rows(table) == sorted([*source_rows(table), (7, "theirs", 9)])


def test_a_table_that_was_upgraded_keeps_its_deletes(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """Deletes of format version 2 count no more in a data file that has a deletion vector."""
    apply_batch(spark, source.stage())
    table.delete(a_is(1))
    assert _apply(spark, source.stage())
    spark.sql(f"ALTER TABLE {name_of(table).sql} SET TBLPROPERTIES ('format-version' = '3')")
    for a in (2, 3):
        table.delete(a_is(a))
        table.insert(a + 10, "new", a)
        assert _apply(spark, source.stage())
        assert lake_rows(table) == source_rows(table)
    found = loaded(spark, table)
    left = found.java.currentSnapshot().summary()
    assert (left.get("total-delete-files"), left.get("total-position-deletes")) == ("1", "3")


def _toast(table: Relation) -> None:
    table.update(a_is(1), {"c": 5})


def _truncates(table: Relation) -> None:
    table.truncate()
    table.insert(1, "x", 1)


def _more_columns(table: Relation) -> None:
    table.alter((*table.version.columns, column("d")))
    table.insert(9, "x", 1, 2)


def _plain(table: Relation) -> None:
    table.update(a_is(1), {"b": "new", "c": 5})


def _many(table: Relation) -> None:
    with table.source.transaction():
        for number in range(apply_few.MOST_CHANGES + 1):
            table.insert(100 + number, "x", 1)


def _copied(table: Relation) -> None:
    table.source.copy(table)
    _plain(table)


def _job(**options: Any) -> Callable[[ApplyJob], ApplyJob]:
    return lambda job: dataclasses.replace(job, **options)


def _of_table(**options: Any) -> Callable[[ApplyJob], ApplyJob]:
    return _job(table_options={"public.t": TableOptions(**options)})


#: By name: the changes of the second batch, and the options of both.
LEFT_TO_SPARK: dict[str, tuple[Callable[[Relation], None], Callable[[ApplyJob], ApplyJob]]] = {
    "unchanged TOAST": (_toast, _job()),
    "truncate": (_truncates, _job()),
    "new column": (_more_columns, _job()),
    "many changes": (_many, _job()),
    "copy": (_copied, _job()),
    "soft delete": (_plain, _job(soft_delete=True)),
    "change log": (_plain, _of_table(mode=CHANGE_LOG)),
    "copy on write": (_plain, _job(write_mode=COPY_ON_WRITE)),
    "partitions": (_plain, _of_table(partitioned_by=("bucket(2, a)",))),
    "another format": (_plain, _of_table(properties={"write.format.default": "avro"})),
}


@pytest.mark.parametrize("case", LEFT_TO_SPARK)
def test_what_is_left_to_spark(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any, case: str
) -> None:
    change, options = LEFT_TO_SPARK[case]
    apply_batch(spark, options(source.stage()))
    change(table)
    assert not _apply(spark, options(source.stage()))
    if case == "soft delete":
        return
    if case != "change log":
        assert lake_rows(table) == source_rows(table)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {} ADD COLUMN mine string",
        "ALTER TABLE {} WRITE ORDERED BY c",
        "ALTER TABLE {} ADD PARTITION FIELD c",
    ],
)
def test_what_a_user_did_to_the_table_is_left_to_spark(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any, statement: str
) -> None:
    table.versions[-1] = dataclasses.replace(table.version, columns=numbered(table.version.columns))
    apply_batch(spark, source.stage())
    spark.sql(statement.format(name_of(table).sql))
    _plain(table)
    assert not _apply(spark, source.stage())
    assert lake_rows(table) == source_rows(table)


class Killed(BaseException):
    """Ends the apply as a kill would: nothing of ours catches it."""


def test_a_key_that_a_killed_attempt_renamed_is_found(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """The next attempt has nothing to rename, and main's snapshot still has the old name."""
    made = source.table("t", numbered(ABC), key=("a",))
    made.insert(1, "x", 1)
    made.insert(2, "x", 2)
    apply_batch(spark, source.stage())
    first, *others = made.version.columns
    made.alter((dataclasses.replace(first, name="z"), *others), key=("z",))
    for number, row in enumerate(made.rows, start=1):
        row["z"] = number
    made.update(lambda row: row["z"] == 1, {"b": "new", "c": 5})
    job = source.stage()

    def killed(name: str) -> None:
        if name == "apply.after_columns":
            raise Killed

    with crash_points.watched(killed), pytest.raises(Killed):
        apply_batch(spark, job)
    assert not _apply(spark, job)
    assert lake_rows(made) == source_rows(made) == [(1, "new", 5), (2, "x", 2)]
    made.update(lambda row: row["z"] == 2, {"b": "new", "c": 6})
    assert _apply(spark, source.stage())
    assert lake_rows(made) == source_rows(made)


@pytest.mark.parametrize("key", ["double", "date", "decimal(12, 2)", "boolean", "uuid"])
def test_keys_of_other_types_are_left_to_spark(
    spark: SparkSession, source: Source, lake_rows: Any, key: str
) -> None:
    values = {
        **VALUES,
        "double": (0.5, -0.0),
        "uuid": ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"),
    }
    made = source.table("t", (column("a", key), column("b", "string")), key=("a",))
    for value in values[key]:
        made.insert(value, "x")
    apply_batch(spark, source.stage())
    made.update(a_is(values[key][1]), {"b": "y"})
    assert not _apply(spark, source.stage())
    assert lake_rows(made) == source_rows(made)


@pytest.mark.parametrize("limit", ["_MOST_ROWS", "_MOST_FILES"])
def test_large_tables_are_left_to_spark(
    spark: SparkSession,
    source: Source,
    table: Relation,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
) -> None:
    apply_batch(spark, source.stage())
    monkeypatch.setattr(apply_few, limit, 0)
    _plain(table)
    assert not _apply(spark, source.stage())


@pytest.mark.parametrize("removed", [False, True])
def test_main_that_moved_while_the_driver_wrote_is_seen(
    spark: SparkSession,
    source: Source,
    stage: Callable[[], ApplyJob],
    table: Relation,
    lake_rows: Any,
    removed: bool,
) -> None:
    """Somebody else deletes the row whose position was found, and perhaps takes the batch over as well."""
    apply_batch(spark, stage())
    table.update(a_is(1), {"b": "new", "c": 1})
    met: list[str] = []

    def others(name: str) -> None:
        if name != "apply.before_row_delta" or met:
            return
        found = loaded(spark, table)
        met.extend(found.branch_ages_ms())
        if removed:
            found.remove_branches(met)
        spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 1")
        spark.sql(f"INSERT INTO {name_of(table).sql} VALUES (8, 'theirs', 8)")

    with crash_points.watched(others):
        apply_batch(spark, stage())
    assert len(met) == 1
    assert lake_rows(table) == sorted([*source_rows(table), (8, "theirs", 8)])
    assert loaded(spark, table).branch_ages_ms() == {}


def test_a_driver_that_was_overtaken_publishes_nothing(
    spark: SparkSession,
    source: Source,
    stage: Callable[[], ApplyJob],
    table: Relation,
    lake_rows: Any,
) -> None:
    apply_batch(spark, stage())
    table.update(a_is(1), {"b": "new", "c": 1})
    job = stage()
    with _noted() as reached:
        batch, zombie, _ = prepared(spark, job)
    assert "apply.after_row_delta" in reached
    apply_batch(spark, job)
    head = loaded(spark, table).head
    with pytest.raises(PublishRefused):
        loaded(spark, table).publish(zombie.branch, zombie.base, zombie.head, batch.manifest, 7)
    assert loaded(spark, table).head == head
    assert lake_rows(table) == source_rows(table)


def test_deletes_are_in_a_file_for_each_data_file_or_in_one(
    spark: SparkSession, source: Source
) -> None:
    """As the table's own property says."""
    made = source.table("t", ABC, key=("a",))
    for number in range(2):
        made.insert(number, "x", 0)
        apply_batch(spark, source.stage())
    counts = []
    for granularity in ("file", "partition"):
        spark.sql(
            f"ALTER TABLE {name_of(made).sql} SET TBLPROPERTIES"
            f" ('write.delete.granularity' = '{granularity}')"
        )
        with source.transaction():
            made.update_all(lambda row: {"c": row["c"] + 1})
        assert _apply(spark, source.stage())
        snapshot = loaded(spark, made).java.currentSnapshot()
        io = loaded(spark, made).java.io()
        counts.append(len(list(elements(snapshot.addedDeleteFiles(io)))))
        if granularity == "file":
            # In two files again.
            spark.sql(f"INSERT INTO {name_of(made).sql} VALUES (5, 'theirs', 0)")
            made.rows.append({"a": 5, "b": "theirs", "c": 0})
    assert counts == [2, 1]
