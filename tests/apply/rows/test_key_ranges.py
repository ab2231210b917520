"""How rows are found by many keys, and how files without any are passed over; and that the lake is right."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.iceberg.sql import Sql
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.rows import apply_few, apply_keyed, key_ranges
from airflow_provider_pgoutput.apply.rows.segments import Segment
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.batch.table_version import TableVersion
from tests.apply.build import Source, column
from tests.apply.conftest import source_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_UUID_OID = 2950
#: SQL of a key of each ranged type out of a number of a thousand million, and what Spark calls the type.
_FORMS = {
    "int": ("CAST(k AS INT) + 1000000000", "INT"),
    "long": ("CAST(k AS BIGINT) * 9000000000", "BIGINT"),
    "decimal(38, 4)": (
        "CAST(concat(k, '000000000000000000000000.0001') AS DECIMAL(38,4))",
        "DECIMAL(38,4)",
    ),
    "uuid": (
        "lower(concat(lpad(hex(k + 1000000000), 8, '0'), '-0000-7000-8000-', lpad(hex(k % 7 + 9), 12, '0')))",
        "STRING",
    ),
    "date": ("date_add(DATE '0001-01-01', CAST((k + 1000000000) DIV 600 AS INT))", "DATE"),
}


@pytest.fixture(autouse=True)
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver, which writes few changes itself, finds keys in another way."""
    monkeypatch.setattr(apply_few, "MOST_CHANGES", 0)


def _segment(*lake_types: str) -> Segment:
    columns = tuple(
        replace(column(f"c{i}", "string"), type_oid=_UUID_OID)
        if kind == "uuid"
        else column(f"c{i}", kind)
        for i, kind in enumerate(lake_types)
    )
    version = TableVersion(0, "public", "t", "d", columns, tuple(each.name for each in columns))
    return Segment("public.t", (version,), columns, tuple(range(len(columns))), full=False)


def _ranges(keys: DataFrame, segment: Segment) -> tuple[key_ranges.KeyRanges, ...]:
    row = keys.agg(*key_ranges.extremes(segment)).collect()[0]
    found = key_ranges.extremes_of(row.asDict(), segment)
    (whole, *_) = key_ranges.whole(segment, found)
    assert len(whole.ranges) == 1
    return key_ranges.narrow(keys, segment, found)


def _frame(spark: SparkSession, numbers: list[int], lake_type: str) -> DataFrame:
    form, kind = _FORMS[lake_type]
    frame = spark.createDataFrame([(each,) for each in numbers], "k long")
    return frame.select(F.expr(form).cast(kind).alias("n0"))


@pytest.mark.parametrize("lake_type", _FORMS)
def test_every_key_lies_in_a_range(spark: SparkSession, lake_type: str) -> None:
    chance = random.Random(lake_type)  # noqa: S311 - a test has to repeat itself
    segment = _segment(lake_type)
    many = 1_000_000_000
    clusters = [chance.randrange(-many, many) for _ in range(5)]
    for numbers in (
        [chance.randrange(-many, many) for _ in range(500)],
        [min(many, each + chance.randrange(1000)) for each in clusters for _ in range(100)],
        [-many, many],
        [7],
        [-1, 0, 1],
    ):
        keys = _frame(spark, numbers, lake_type).persist()
        (found,) = _ranges(keys, segment)
        assert 1 <= len(found.ranges) <= 16
        assert keys.where(f"NOT {found.condition(Sql('n0'))}").isEmpty()
        keys.unpersist()


@pytest.mark.parametrize("lake_type", _FORMS)
def test_what_lies_in_the_widest_gaps_is_in_no_range(spark: SparkSession, lake_type: str) -> None:
    segment = _segment(lake_type)
    keys = _frame(spark, [-900_000_000, *range(0, 9000, 600), 900_000_000], lake_type)
    (found,) = _ranges(keys, segment)
    assert len(found.ranges) == 3
    between = _frame(spark, [-500_000_000, 500_000_000], lake_type)
    assert between.where(found.condition(Sql("n0"))).isEmpty()


def test_a_key_of_several_columns_has_ranges_of_each_that_may_stand_in_a_statement(
    spark: SparkSession,
) -> None:
    segment = _segment("int", "string", "long")
    keys = spark.sql("SELECT 1 AS n0, 'a' AS n1, 5L AS n2 UNION ALL SELECT 9, 'b', 5L")
    first, second = _ranges(keys, segment)
    assert (first.position, len(first.ranges)) == (0, 2)
    assert second.condition(Sql("x")) == "(x BETWEEN 5L AND 5L)"


@pytest.mark.parametrize("kind", ["INT", "BIGINT"])
def test_bits_of_words_find_the_keys_and_no_other(spark: SparkSession, kind: str) -> None:
    chance = random.Random(kind)  # noqa: S311 - a test has to repeat itself
    most = (1 << 31 if kind == "INT" else 1 << 63) - 1
    near = [*range(-130, 130), -most - 1, -most, most - 1, most]
    every = [*near, *(chance.randrange(-most, most) for _ in range(200))]
    wanted = {each for each in every if chance.random() < 0.5}
    rows = spark.createDataFrame([(each,) for each in every], "id long")
    rows = rows.select(F.col("id").cast(kind).alias("id")).alias("t")
    keys = spark.createDataFrame([(each,) for each in wanted], "n0 long")
    words = key_ranges.words(keys.select(F.col("n0").cast(kind).alias("n0")), "n0").alias("w")
    assert words.count() < len(wanted)
    condition = F.expr(key_ranges.condition(Sql("t.id"), Sql("w")))
    found = [row["id"] for row in rows.join(words, condition).select("t.id").collect()]
    assert sorted(found) == sorted(each for each in every if each in wanted)


def test_files_between_the_keys_of_a_batch_are_not_read(
    spark: SparkSession, source: Source, monkeypatch: pytest.MonkeyPatch, lake_rows: Any
) -> None:
    """Three files; rows of the first and the last change, large values left out, keys moved."""
    monkeypatch.setattr(apply_keyed, "_MANY_ROWS", 0)
    table = source.table("t", (column("id"), column("v", "string")), key=("id",), toast=("v",))
    for first in (0, 1000, 2000):
        with source.transaction():
            for number in range(first, first + 5):
                table.insert(number, f"large {number}")
        apply_batch(spark, source.stage())
    seen = _merged_ranges(monkeypatch)
    with source.transaction():
        table.update(lambda row: row["id"] in {1, 2003}, {})
        table.update(lambda row: row["id"] == 2, {"id": 3000})
        table.delete(lambda row: row["id"] == 2004)
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)
    ((of_key,),) = seen
    rows = spark.table(f"lake.{source.slot_name}.t").where(of_key.condition(Sql("id")))
    assert _skipped_files(rows) >= 1


@pytest.mark.parametrize(("kind", "least"), [("int", -(2**31)), ("long", -(2**63))])
def test_the_least_number_of_its_type_is_found_where_iceberg_truncates_it(
    spark: SparkSession, source: Source, lake_rows: Any, kind: str, least: int
) -> None:
    """Its partition is the last one: Iceberg's ``truncate`` overflows."""
    table = source.table("t", (column("id", kind), column("v")), key=("id",))
    with source.transaction():
        for number in (least, least + 3, 5, 7):
            table.insert(number, 1)
    options = {"public.t": TableOptions(partitioned_by=("truncate(10, id)",))}
    apply_batch(spark, replace(source.stage(), table_options=options))
    with source.transaction():
        table.update(lambda row: row["id"] in {least, 5}, {"v": 2})
        table.delete(lambda row: row["id"] == 7)
    apply_batch(spark, replace(source.stage(), table_options=options))
    assert lake_rows(table) == source_rows(table)


def test_dates_that_the_julian_calendar_has_are_found_whatever_the_cluster_prefers(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    table = source.table("t", (column("id", "date"), column("v")), key=("id",))
    days = [dt.date(1582, 10, 8), dt.date(1582, 10, 10), dt.date(1600, 1, 1)]
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        with source.transaction():
            for day in days:
                table.insert(day, 1)
        apply_batch(spark, source.stage())
        with source.transaction():
            table.update(lambda row: True, {"v": 2})
        apply_batch(spark, source.stage())
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert lake_rows(table) == source_rows(table)


def test_text_that_was_no_uuid_at_first_has_no_range(spark: SparkSession) -> None:
    segment = _segment("uuid")
    (version,) = segment.versions
    before = replace(version, columns=(column("c0", "string"),))
    keys = _frame(spark, [1, 2, 3], "uuid")
    assert len(_ranges(keys, segment)) == 1
    text = replace(segment, versions=(before, version))
    assert key_ranges.extremes(text) == []


def test_recent_uuids_are_found_in_the_newest_files(
    spark: SparkSession, source: Source, lake_rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of version 7, which begin with the time."""
    monkeypatch.setattr(apply_keyed, "_MANY_ROWS", 0)
    key = replace(column("id", "string"), type_oid=_UUID_OID)
    table = source.table("t", (key, column("v")), key=("id",))
    identifiers = [
        f"{at:08x}-0000-7000-8000-{at % 7:012x}" for at in range(1_700_000_000, 1_700_000_030)
    ]
    for first in (0, 10, 20):
        with source.transaction():
            for each in identifiers[first : first + 10]:
                table.insert(each, 1)
        apply_batch(spark, source.stage())
    seen = _merged_ranges(monkeypatch)
    with source.transaction():
        table.update(lambda row: row["id"] in {identifiers[1], identifiers[25]}, {"v": 2})
        table.delete(lambda row: row["id"] == identifiers[29])
    apply_batch(spark, source.stage())
    assert lake_rows(table) == source_rows(table)
    ((of_key,),) = seen
    assert (
        _skipped_files(spark.table(f"lake.{source.slot_name}.t").where(of_key.condition(Sql("id"))))
        >= 1
    )


def _skipped_files(rows: DataFrame) -> int:
    """Data files that the scan of a frame passed over."""
    rows.collect()
    scan: Any = rows._jdf.queryExecution().executedPlan().collectLeaves().head()
    metrics = scan.metrics()
    counts = {key: int(metrics.apply(key).value()) for key in _keys(metrics) if "Data" in key}
    return counts["skippedDataFiles"]


def _keys(metrics: Any) -> list[str]:
    found, each = [], metrics.keys().iterator()
    while each.hasNext():
        found.append(each.next())
    return found


def _merged_ranges(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ranges of every delete from now on."""
    seen: list[Any] = []
    known = apply_keyed._ranges

    def noted(*arguments: Any) -> Any:
        seen.append(known(*arguments))
        return seen[-1]

    monkeypatch.setattr(apply_keyed, "_ranges", noted)
    return seen
