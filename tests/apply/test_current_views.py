"""A view beside a change log shows the source's rows, whatever happens to the table."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.iceberg.views import View
from airflow_provider_pgoutput.apply.maintain import maintain
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, ApplyJob, MaintenanceJob
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.apply.build import Source, column, numbered
from tests.apply.conftest import sort, source_rows
from tests.apply.iceberg.test_causes import set_catalog
from tests.apply.test_crashes import Killed

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.table_version import Column
    from tests.apply.build import Relation


def _job(source: Source, **options: Any) -> ApplyJob:
    return replace(source.stage(), mode=CHANGE_LOG, current_views=True, **options)


def _apply(spark: SparkSession, source: Source, **options: Any) -> None:
    apply_batch(spark, _job(source, **options))


def _shown(spark: SparkSession, relation: Relation, *more: str) -> list[tuple[Any, ...]]:
    """The rows of the view, in the columns of the source. A reader has settings of its own."""
    reader = spark.newSession()
    reader.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    name = f"lake.`{relation.source.slot_name}`.`{relation.name}_current`"
    names = [*(each.name for each in relation.version.columns), *more]
    rows = reader.sql(f"SELECT * FROM {name}").collect()
    return sort(tuple(_plain(row[each]) for each in names) for row in rows)


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_the_view_equals_the_source_after_random_programs(
    spark: SparkSession, source: Source, version: int
) -> None:
    """Also values that were left out, under any number of keys that a row had before."""
    chosen = random.Random(version)  # noqa: S311 - no secret
    columns = (column("select"), column("a`b", "string"), column("place", "string"), column("v0"))
    t = source.table("odd name", columns, key=("select", "place"), toast=("a`b",))
    for number in range(1, 9):
        t.insert(number, f"first {number}", "x", 0)
    source.pending.clear()
    source.copy(t)
    _apply(spark, source, format_version=version)
    assert _shown(spark, t) == source_rows(t)
    for batch in range(2):
        if batch == 1:
            t.alter((*t.version.columns, column("new", missing="7")))
        for number in range(60):
            _change(t, chosen, f"{batch} {number}")
        _apply(spark, source, format_version=version)
        assert _shown(spark, t) == source_rows(t)


def _change(t: Relation, chosen: random.Random, text: str) -> None:
    ids = [row["select"] for row in t.rows]
    free = sorted(set(range(1, 13)) - set(ids))
    what = chosen.choice(
        ["insert", "text", "number", "move", "move", "move", "swap", "delete", "truncate"]
    )
    if what == "truncate" and chosen.random() < 0.1:
        t.truncate()
    elif what == "insert" and free:
        t.insert(chosen.choice(free), text, "x", *(0,) * (len(t.version.columns) - 3))
    elif not ids:
        return
    elif what == "text":
        t.update(_is(chosen.choice(ids)), {"a`b": chosen.choice([text, None])})
    elif what == "number":
        t.update(_is(chosen.choice(ids)), {"v0": chosen.randrange(99)})
    elif what == "move" and free:
        t.update(_is(chosen.choice(ids)), {"select": chosen.choice(free)})
    elif what == "swap" and len(ids) > 1:
        one, other = chosen.sample(ids, 2)
        with t.source.transaction():
            t.update(_is(one), {"select": -1})
            t.update(_is(other), {"select": one})
            t.update(_is(-1), {"select": other})
    elif what == "delete":
        t.delete(_is(chosen.choice(ids)))


def _is(number: int) -> Any:
    return lambda row: row["select"] == number


def test_keys_of_all_types_that_have_a_text(spark: SparkSession, source: Source) -> None:
    values: dict[str, tuple[Any, Any]] = {
        "long": (1 << 60, 2),
        "double": (0.1, float("inf")),
        "string": ("it's\\", ""),
        "boolean": (True, False),
        "binary": (b"\x00\xff", b""),
        "date": (date(2026, 2, 28), date(1, 1, 1)),
        "timestamp": (datetime(2026, 1, 2, 3, 4, 5, 6), datetime(1970, 1, 1)),
        "timestamptz": (
            datetime(2026, 10, 25, 1, 30, 0, 1, tzinfo=UTC),
            datetime(1970, 1, 1, tzinfo=UTC),
        ),
        "decimal(12, 2)": (Decimal("-1.10"), Decimal("3.00")),
    }
    key = tuple(column(f"k{number}", kind) for number, kind in enumerate(values))
    names = tuple(each.name for each in key)
    t = source.table("t", (*key, column("b", "string")), key=names, toast=("b",))
    t.insert(*(one for one, _ in values.values()), "kept")
    for name, (_, other) in zip(names, values.values(), strict=True):
        t.update(lambda row: True, {name: other})
    _apply(spark, source)
    view = spark.table(f"lake.{source.slot_name}.t_current").select("b", "_pgoutput_unchanged")
    assert [tuple(row) for row in view.collect()] == [("kept", [])]


def test_the_view_follows_columns_and_ends_with_its_key(
    spark: SparkSession, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """A renamed column keeps its values, also those that were left out under its former name."""
    caplog.set_level("INFO")
    columns = numbered((column("id"), column("body", "string"), column("n")))
    t = source.table("t", columns, key=("id",), toast=("body",))
    t.insert(1, "large", 0)
    t.insert(2, "larger", 0)
    _apply(spark, source)
    t.update(_id(1), {"id": 3})
    _apply(spark, source)
    assert "Replaced" not in caplog.text, "the columns are the same"
    key, body, n = t.version.columns
    wide = replace(n, lake_type="long", type_name="long")
    _alter(t, (replace(key, name="key"), replace(body, name="content"), wide))
    t.update(lambda row: row["key"] == 3, {"n": 1 << 40})
    t.update(lambda row: row["key"] == 2, {"key": 4})
    _apply(spark, source)
    assert _shown(spark, t, "_pgoutput_unchanged") == sort(
        [(3, "large", 1 << 40, []), (4, "larger", 0, [])]
    )
    assert "Replaced" in caplog.text
    # With another key, nothing tells which older entry is of which row.
    t.alter(key=("key", "content"))
    t.update(lambda row: row["key"] == 3, {"n": 5})
    _apply(spark, source)
    assert View.load(spark, _name(t)) is None
    assert "The key of the table changed" in caplog.text
    t.update(lambda row: row["key"] == 3, {"n": 6})
    source.copy(t)
    _apply(spark, source)
    assert _shown(spark, t) == source_rows(t)
    # Nothing but a truncate tells that the copy of an empty table ended all rows.
    t.update(lambda row: row["key"] == 3, {"n": 7})
    t.rows.clear()
    source.copy(t)
    _apply(spark, source)
    assert _shown(spark, t) == []


def _id(number: int) -> Any:
    return lambda row: row["id"] == number


def _alter(t: Relation, columns: tuple[Column, ...]) -> None:
    """Begin a version whose columns have other names, and give the rows these names."""
    names = dict(zip((c.name for c in t.version.columns), (c.name for c in columns), strict=True))
    t.rows = [{names[name]: value for name, value in row.items()} for row in t.rows]
    t.toast = frozenset(names[name] for name in t.toast)
    t.alter(columns, key=tuple(names[name] for name in t.version.key_columns))


def _name(t: Relation) -> TableName:
    return TableName("lake", t.source.slot_name, f"{t.name}_current")


def test_tables_without_a_key(
    spark: SparkSession, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """If rows only come, all of them are current. Else nothing tells which entries are of one row."""
    caplog.set_level("INFO")
    only_inserts = source.table("i", (column("a"),), identity="d")
    full = source.table("f", (column("a"),), identity="f")
    swapped = source.table("s", (column("id"), column("b", "string")), key=("id",), identity="f")
    only_inserts.insert(1)
    only_inserts.truncate()
    for _ in range(2):
        only_inserts.insert(2)
    full.insert(1)
    swapped.insert(1, "one")
    swapped.insert(2, "two")
    with source.transaction():
        # UPDATE s SET id = 3 - id, with a DEFERRABLE key.
        swapped.update(lambda row: row["b"] == "one", {"id": 2})
        swapped.update(lambda row: row["b"] == "two", {"id": 1})
    _apply(spark, source)
    assert _shown(spark, only_inserts) == [(2,), (2,)]
    assert View.load(spark, _name(full)) is None
    assert (
        f"{source.slot_name}.f gets no view of its current rows. The table has no key"
        in caplog.text
    )
    assert _shown(spark, swapped) == source_rows(swapped)


@pytest.mark.slow
def test_what_others_made_stays(spark: SparkSession, source: Source) -> None:
    namespace = f"lake.{source.slot_name}"
    spark.sql(f"CREATE NAMESPACE {namespace}")
    spark.sql(f"CREATE VIEW {namespace}.t_current AS SELECT 1 AS mine")
    t = source.table("t", (column("a"), column("b", "string")), key=("a",))
    t.insert(1, "x")
    job = _job(source)

    def refused(match: str) -> None:
        with pytest.raises(TableRefused, match=match) as error:
            apply_batch(spark, job)
        assert error.value.table == f"{source.slot_name}.t"
        assert IcebergTable.load(spark, TableName("lake", source.slot_name, "t")) is None

    refused("t_current is not one of this pipeline")
    assert spark.table(f"{namespace}.t_current").columns == ["mine"]
    spark.sql(f"DROP VIEW {namespace}.t_current")
    spark.sql(f"CREATE TABLE {namespace}.t_current (mine INT) USING iceberg")
    refused("a table has that name")
    spark.sql(f"DROP TABLE {namespace}.t_current")
    apply_batch(spark, job)
    assert _shown(spark, t) == [(1, "x")]
    # Somebody's own query under our name is as much theirs.
    spark.sql(f"CREATE OR REPLACE VIEW {namespace}.t_current AS SELECT 2 AS mine")
    t.insert(2, "y")
    job = _job(source)
    with pytest.raises(TableRefused, match="t_current was changed by somebody else"):
        apply_batch(spark, job)
    assert spark.table(f"{namespace}.t_current").columns == ["mine"]
    spark.sql(f"DROP VIEW {namespace}.t_current")
    apply_batch(spark, job)
    other = source.table("t_current", (column("a"),), key=("a",))
    other.insert(1)
    t.insert(3, "z")
    with pytest.raises(TableRefused, match=r"the target of public\.t_current has that name"):
        _apply(spark, source)


@pytest.mark.parametrize("kind", ["hadoop", pytest.param("jdbc", marks=pytest.mark.slow)])
def test_a_catalog_without_views_is_refused_before_anything_is_written(
    spark: SparkSession, source: Source, tmp_path: Path, kind: str
) -> None:
    """Also if the tables are there already. A SQL catalog of the older schema keeps no views."""
    name, of_kind = f"{kind}_only", {"type": kind}
    if kind == "jdbc":
        of_kind |= {"uri": f"jdbc:sqlite:{tmp_path / 'catalog.db'}"}
    set_catalog(spark, name, warehouse=(tmp_path / "lake").as_uri(), **of_kind)
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    job = replace(_job(source), catalog_name=name)
    with pytest.raises(ConfigurationError, match="keeps no views"):
        apply_batch(spark, job)
    assert spark.sql(f"SHOW NAMESPACES IN {name}").collect() == []
    apply_batch(spark, replace(job, current_views=False))
    t.insert(2)
    job = replace(_job(source), catalog_name=name)
    with pytest.raises(ConfigurationError, match="keeps no views"):
        apply_batch(spark, job)
    table = f"{name}.{source.slot_name}.t"
    spark.catalog.refreshTable(table)
    assert [row["a"] for row in spark.table(table).collect()] == [1]
    apply_batch(spark, replace(job, current_views=False))
    spark.catalog.refreshTable(table)
    assert sort((row["a"],) for row in spark.table(table).collect()) == [(1,), (2,)]


def test_maintenance_and_listings_of_tables_leave_views_out(
    spark: SparkSession, source: Source, lake_catalog_properties: dict[str, str]
) -> None:
    t = source.table("t", (column("a"), column("b", "string")), key=("a",))
    for number in range(2):
        t.insert(number, None)
        _apply(spark, source)
    job = MaintenanceJob(
        slot_name=source.slot_name,
        namespace=source.slot_name,
        catalog_name="lake",
        staging_uri=source.staging.as_uri(),
    )
    result = maintain(spark, job)
    assert f"{source.slot_name}.t" in result.tables
    assert not any("current" in name for name in result.tables)
    assert _shown(spark, t) == source_rows(t)
    catalog = load_catalog("lake", **lake_catalog_properties)
    listed = {name for _, name in catalog.list_tables(source.slot_name)}
    assert listed == {"t", "pgoutput_checkpoint"}
    with pytest.raises(NoSuchTableError):
        catalog.load_table(f"{source.slot_name}.t_current")


@pytest.mark.slow
def test_a_view_that_a_killed_task_did_not_make_comes_with_the_next_try(
    spark: SparkSession, source: Source
) -> None:
    t = source.table("t", (column("a"),), key=("a",))
    t.insert(1)
    job = _job(source)

    def kill(point: str) -> None:
        if point == "apply.between_publishes":
            raise Killed

    with crash_points.watched(kill), pytest.raises(Killed):
        apply_batch(spark, job)
    assert View.load(spark, _name(t)) is None
    apply_batch(spark, job)
    assert _shown(spark, t) == [(1,)]
