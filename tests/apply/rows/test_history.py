"""A history has each version of each row: what the entries of a change log lead to."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.apply.rows import apply_keyed, table_state
from airflow_provider_pgoutput.batch.answers import SET_ASIDE
from airflow_provider_pgoutput.batch.jobs import (
    CHANGE_LOG,
    HISTORY,
    UPSERT,
    ApplyJob,
    TableOptions,
)
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.errors import RowMissing, TableRefused
from tests.apply.build import COMMIT_TIME, FIRST_LSN, column, numbered, replay_of
from tests.apply.conftest import sort, source_rows
from tests.apply.fold_cases import a_is
from tests.apply.histories import OF_HISTORY, derived
from tests.apply.rows.test_quarantine import killed_at
from tests.apply.test_random_programs import COLUMNS, _random_change, _swap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from tests.apply.build import Relation, Source

_PAGE = Path(__file__).parents[3] / "docs/how-to/history_tables.md"
_POINTS = (
    "apply.after_branch",
    "apply.after_copy",
    "apply.after_delete",
    "apply.after_append",
    "apply.before_publish",
    "apply.after_publish",
)


def _both(spark: SparkSession, source: Source, job: ApplyJob | None = None) -> None:
    """Apply the next batch to histories, and to change logs in another namespace."""
    job = job or source.stage()
    apply_batch(spark, replace(job, mode=HISTORY))
    apply_batch(spark, replace(job, mode=CHANGE_LOG, namespace=f"{source.slot_name}_logs"))


def _check(spark: SparkSession, lake_rows: Any, relations: Iterable[Relation]) -> None:
    for t in relations:
        names = [each.name for each in t.version.columns]
        log = f"lake.{t.source.slot_name}_logs.{t.name}"
        found = lake_rows(t, *names, *OF_HISTORY)
        assert found == derived(spark, log, t), t.name
        current = [row[: len(names)] for row in found if row[-1]]
        assert sort(current) == source_rows(t), t.name


@pytest.mark.slow
def test_each_kind_of_change_makes_and_ends_versions(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """In one batch and over several, inside a transaction and outside, with values that were left out."""
    t = source.table("t", COLUMNS, key=("a",), toast=("b",))
    for a in (1, 2, 3):
        t.insert(a, f"large {a}", 0, "d")
    source.pending.clear()
    source.copy(t)
    _both(spark, source)
    first = source.lsn
    assert lake_rows(t, "a", *OF_HISTORY) == [(a, first, -1, None, True) for a in (1, 2, 3)]
    with source.transaction():
        t.update(a_is(1), {"c": 1})
        t.update(a_is(1), {"c": 2})
        t.update(a_is(2), {"a": 4})
        t.update(a_is(4), {"a": 5})
        t.delete(a_is(3))
        t.insert(3, None, 7, "d")
    _both(spark, source)
    lsn = source.lsn - 0x30
    assert lake_rows(t, "a", "b", "c", *OF_HISTORY) == sort(
        [
            (1, "large 1", 0, first, -1, lsn, False),
            (1, "large 1", 1, lsn, 0, lsn, False),
            (1, "large 1", 2, lsn, 1, None, True),
            (2, "large 2", 0, first, -1, lsn, False),
            (4, "large 2", 0, lsn, 2, lsn, False),
            (5, "large 2", 0, lsn, 3, None, True),
            (3, "large 3", 0, first, -1, lsn, False),
            (3, None, 7, lsn, 5, None, True),
        ]
    )
    with source.transaction():
        t.update(a_is(5), {"c": 8})
        t.truncate()
        t.insert(5, "new", 0, "d")
        t.truncate()
        t.insert(6, "new", 0, "d")
    t.update(a_is(6), {"a": 1})
    _both(spark, source)
    _check(spark, lake_rows, [t])
    times = ("_pgoutput_valid_from", "_pgoutput_valid_to", "_pgoutput_valid_to_lsn")
    for since, until, until_lsn in lake_rows(t, *times)[3:]:
        assert (until is None) == (until_lsn is None)
        assert since is None or since.year == 2026


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(1, 6))]
)
def test_it_equals_what_a_change_log_gives(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    seed: int,
    large: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After random programs, cut anywhere; batches overlap, and some are applied twice."""
    if large:
        monkeypatch.setattr(apply_keyed, "_MANY_ROWS", 0)
        monkeypatch.setattr(table_state, "_ROWS_OF_ONE_TASK", 0)
    random_ = random.Random(seed)  # noqa: S311 - not for secrets
    tables = [
        source.table("pair", COLUMNS, key=("a", "d"), toast=("b", "d")),
        source.table("full", COLUMNS, key=("a",), identity="f", toast=("b",)),
    ]
    for round_ in range(3):
        for _ in range(random_.randrange(5, 25)):
            with source.transaction():
                for _ in range(random_.randrange(1, 6)):
                    _random_change(random_, random_.choice(tables))
                if random_.random() < 0.3:
                    _swap(random_, tables[1])
        if round_ == 1:
            # What came since the last batch is in the copies only.
            source.pending.clear()
            for each in tables:
                source.copy(each)
        before, pending = source.staged_to, list(source.pending)
        job = source.stage(
            random_.randrange(1, len(source.pending) + 1) if source.pending else None
        )
        _both(spark, source, job)
        if round_ == 2 and source.pending:
            # Another attempt at the same batch reads further.
            source.staged_to, source.pending = before, pending
            _both(spark, source)
            apply_batch(spark, replace(job, mode=HISTORY))
    _both(spark, source)
    _check(spark, lake_rows, tables)


@pytest.mark.slow
def test_a_key_that_a_row_comes_to_and_leaves_keeps_its_version(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """Only a deferrable key allows it. The version from before the transaction stays, and has no gap."""
    t = source.table("t", COLUMNS, key=("a",), identity="f")
    for a in (1, 2, 3):
        t.insert(a, "same", 0, "d")
    _apply(spark, source)
    one, other, third = t.rows
    for at_once in (False, True):
        with source.transaction():
            first, second = one["a"], other["a"]
            t.update(lambda each: each is one, {"a": second})
            t.update(lambda each: each is other, {"a": first})
        if not at_once:
            _apply(spark, source)
        with source.transaction():
            t.update(lambda each: each is third, {"a": 1, "c": 7})
            t.update(lambda each: each is third, {"a": 3})
        if at_once:
            t.update_all({"b": "new"})
        _apply(spark, source)
        found = lake_rows(t, "a", "b", "c", "d", *OF_HISTORY)
        assert sort(row[:4] for row in found if row[-1]) == source_rows(t)
    for key in (1, 2, 3):
        spans = [(row[4], row[6]) for row in found if row[0] == key and row[4] != row[6]]
        spans.sort()
        assert [until for _, until in spans] == [*(since for since, _ in spans[1:]), None], key


def a_is_id(value: int) -> Any:
    return lambda row: row["id"] == value


def _apply(spark: SparkSession, source: Source, **options: Any) -> None:
    apply_batch(spark, replace(source.stage(), mode=HISTORY, **options))


def _copy(t: Relation) -> None:
    """Let the next batch hold a copy, past the end of the last one."""
    t.source.lsn += 0x100
    t.source.copy(t)


def test_a_copy_ends_what_differs_and_leaves_the_rest(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """Values of users stay, and a column of another type keeps its earlier values in the earlier versions."""
    columns = numbered((column("id"), column("v", "string"), column("w", "double")))
    t = source.table("t", columns, key=("id",))
    for number in (1, 2, 3):
        t.insert(number, "v", float("nan"))
    _apply(spark, source, metadata_columns=("_pgoutput_op",))
    first = lake_rows(t, "_pgoutput_valid_from_lsn")
    name = f"lake.{source.slot_name}.t"
    spark.sql(f"ALTER TABLE {name} ADD COLUMN mine STRING")
    spark.sql(f"UPDATE {name} SET mine = concat('mine ', id)")
    t.rows = [{"id": 1, "v": "v", "w": float("nan")}, {"id": 2, "v": "other", "w": -0.0}]
    t.rows.append({"id": 4, "v": None, "w": 0.0})
    _copy(t)
    copied = source.lsn
    job = source.stage()
    manifest = Manifest.from_json(Path(job.manifest_uri.removeprefix("file://")).read_text())
    time = "2026-03-04T05:06:07.000008+00:00"
    tables = tuple(replace(each, copy_time=time) for each in manifest.tables)
    job = source.write(replace(manifest, tables=tables))
    apply_batch(spark, replace(job, mode=HISTORY, metadata_columns=("_pgoutput_op",)))
    at = datetime(2026, 3, 4, 5, 6, 7, 8)
    shown: tuple[str, ...] = (
        "id",
        "v",
        "mine",
        "_pgoutput_valid_from_lsn",
        "_pgoutput_valid_to_lsn",
        "_pgoutput_op",
    )
    assert lake_rows(t, *shown) == sort(
        [
            (1, "v", "mine 1", first[0][0], None, "I"),
            (2, "v", "mine 2", first[1][0], copied, "I"),
            (2, "other", "mine 2", copied, None, "C"),
            (3, "v", "mine 3", first[2][0], copied, "I"),
            (4, None, None, copied, None, "C"),
        ]
    )
    times = lake_rows(t, "_pgoutput_valid_from", "_pgoutput_valid_to", "_pgoutput_is_current")
    assert [each for each in times if at in each] == sort(
        [(at, None, True), (at, None, True), *((COMMIT_TIME.replace(tzinfo=None), at, False),) * 2]
    )
    id_, v, w = t.version.columns
    t.alter((id_, replace(v, lake_type="int", type_name="int4"), w))
    t.rows = [{"id": 1, "v": 7, "w": float("nan")}, {"id": 2, "v": None, "w": -0.0}]
    _copy(t)
    _apply(spark, source)
    shown = ("id", "v", "v__old_2", "_pgoutput_is_current")
    assert lake_rows(t, *shown) == sort(
        [
            (1, None, "v", False),
            (1, 7, None, True),
            (2, None, "v", False),
            (2, None, "other", False),
            (2, None, None, True),
            (3, None, "v", False),
            (4, None, None, False),
        ]
    )
    t.rows = []
    _copy(t)
    _apply(spark, source)
    assert not any(row[0] for row in lake_rows(t, "_pgoutput_is_current"))


def test_columns_that_change_and_values_of_users(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    columns = numbered((column("id"), column("v", "string"), column("gone")))
    t = source.table("t", columns, key=("id",), toast=("v",))
    for number in (1, 2, 3):
        t.insert(number, f"large {number}", 0)
    _apply(spark, source, soft_delete=False)
    name = f"lake.{source.slot_name}.t"
    spark.sql(f"ALTER TABLE {name} ADD COLUMN mine STRING")
    spark.sql(f"UPDATE {name} SET mine = concat('mine ', id)")
    id_, v, gone = t.version.columns
    new = replace(column("new", missing="7"), attribute_number=4)
    t.rows = [{"id": row["id"], "text": row["v"], "gone": row["gone"]} for row in t.rows]
    t.toast = frozenset({"text"})
    t.alter((id_, replace(v, name="text"), gone, new))
    t.update(a_is_id(1), {"new": 8})
    t.update(a_is_id(2), {"id": 4})
    t.delete(a_is_id(3))
    t.insert(3, "small", 1, 9)
    _apply(spark, source)
    shown = ("id", "text", "new", "mine", "_pgoutput_is_current")
    assert lake_rows(t, *shown) == sort(
        [
            (1, "large 1", 7, "mine 1", False),
            (1, "large 1", 8, "mine 1", True),
            (2, "large 2", 7, "mine 2", False),
            # The values of users belong to a key, as in mode upsert.
            (4, "large 2", 7, None, True),
            (3, "large 3", 7, "mine 3", False),
            (3, "small", 9, None, True),
        ]
    )
    t.alter((id_, replace(v, name="text"), new))
    t.update(a_is_id(1), {"new": 10})
    _apply(spark, source)
    shown = ("id", "text", "gone", "new", "mine")
    assert (1, "large 1", None, 10, "mine 1") in lake_rows(t, *shown)
    # Else this session would show the table as it was when it last wrote to it.
    spark.catalog.refreshTable(name)
    current = spark.table(name).where("_pgoutput_is_current").select("id", "text", "new").collect()
    assert sort(tuple(row) for row in current) == source_rows(t)


def test_what_is_refused_leaves_the_lake_as_it_was(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    bag = source.table("bag", COLUMNS, identity="f")
    bag.insert(1, "b", 0, "d")
    with pytest.raises(TableRefused, match="no key"):
        _apply(spark, source)
    assert IcebergTable.load(spark, TableName("lake", source.slot_name, "bag")) is None
    del source.relations["public.bag"]
    t = source.table("t", COLUMNS, key=("a",), toast=("b",))
    t.insert(1, "large", 0, "d")
    source.staged_to = FIRST_LSN
    _apply(spark, source)
    held = lake_rows(t, "a", *OF_HISTORY)
    for mode in (UPSERT, CHANGE_LOG):
        t.update(a_is(1), {"c": 5})
        before = source.staged_to
        with pytest.raises(TableRefused, match="was written in mode 'history'"):
            apply_batch(spark, replace(source.stage(), mode=mode))
        source.staged_to = before
    # An update of a row that the lake never had.
    t.rows.append({"a": 2, "b": "unseen", "c": 0, "d": "d"})
    t.update(a_is(2), {"c": 1})
    with pytest.raises(RowMissing):
        _apply(spark, source)
    assert lake_rows(t, "a", *OF_HISTORY) == held
    refs = spark.table(f"lake.{source.slot_name}.t.refs").where("type = 'BRANCH'").collect()
    assert [row["name"] for row in refs] == ["main"]


def test_kills_and_replays_change_nothing(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """A killed apply is run again; batches are applied again, and a table is set aside."""
    t = source.table("t", COLUMNS, key=("a",), toast=("b",))
    for a in (1, 2, 3):
        t.insert(a, f"large {a}", 0, "d")
    source.pending.clear()
    source.copy(t)
    jobs = [replace(source.stage(), mode=HISTORY)]
    assert killed_at("apply.after_copy", spark, jobs[0])
    apply_batch(spark, jobs[0])
    for number, point in enumerate(_POINTS, start=1):
        with source.transaction():
            t.update(a_is(number), {"a": number + 10})
            t.update(a_is(number + 10), {"c": number})
            t.insert(number, f"new {number}", 0, "d")
        t.insert(number + 3, f"large {number + 3}", 0, "d")
        if number == 2:
            t.rows[0]["c"] = 77
            source.copy(t)
        jobs.append(replace(source.stage(), mode=HISTORY))
        assert killed_at(point, spark, jobs[-1]), point
        apply_batch(spark, jobs[-1])
    names = ("a", "b", "c", *OF_HISTORY)
    held = lake_rows(t, *names)
    assert sort(row[:3] for row in held if row[-1]) == sort(row[:3] for row in source_rows(t))
    uris = [each.manifest_uri for each in jobs]
    replay(spark, replay_of(jobs[-1], uris[3:], in_place=True))
    assert lake_rows(t, *names) == held
    elsewhere = f"{source.slot_name}_again"
    replay(spark, replay_of(jobs[-1], uris, namespace=elsewhere))
    found = spark.table(f"lake.{elsewhere}.t").select(*names).collect()
    assert sort(tuple(row) for row in found) == held
    with pytest.raises(TableRefused, match="cannot begin anew in place"):
        replay(spark, replay_of(jobs[-1], uris, in_place=True))
    # A table that is set aside gets the batches that it lacks, or comes back with a copy.
    aside: dict[str, Any] = {"mode": HISTORY, "on_table_refused": SET_ASIDE}
    t.update(a_is(1), {"c": 5})
    lacked = replace(source.stage(), **aside)
    broken = {t.full_name: TableOptions(mode=CHANGE_LOG)}
    assert apply_batch(spark, replace(lacked, table_options=broken)).set_aside
    replay(spark, replay_of(lacked, [lacked.manifest_uri], in_place=True, catch_up=True))
    assert (1, "new 1", 5) in [row[:3] for row in lake_rows(t, *names) if row[-1]]
    t.update(a_is(1), {"c": 6})
    assert apply_batch(spark, replace(source.stage(), **aside, table_options=broken)).set_aside
    t.update(a_is(2), {"c": 6})
    source.copy(t)
    apply_batch(spark, replace(source.stage(), **aside))
    current = [row[:3] for row in lake_rows(t, *names) if row[-1]]
    assert sort(current) == sort(row[:3] for row in source_rows(t))


def test_the_queries_of_the_page(spark: SparkSession, source: Source) -> None:
    now, at_time, at_lsn = re.findall(r"```sql\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    t = source.table("prices", COLUMNS, key=("a",))
    then = []
    for number in range(1, 4):
        with source.transaction():
            t.insert(number, None, 0, "d")
            t.update(a_is(number), {"c": 1})
            t.update(a_is(1), {"c": number, "d": f"d{number}"})
        then.append((source.lsn, source_rows(t)))
    t.delete(a_is(2))
    t.truncate()
    t.insert(9, None, 0, "d")
    _apply(spark, source)

    def rows(query: str) -> list[Any]:
        frame = spark.sql(query.replace("lake.shop.", f"lake.{source.slot_name}."))
        return sort(tuple(row) for row in frame.select("a", "b", "c", "d").collect())

    assert rows(now) == source_rows(t)
    assert rows(at_time) == source_rows(t)
    assert rows(at_time.replace("2026-03", "2025-03")) == []
    for lsn, wanted in then:
        assert rows(at_lsn.replace("100004A30", f"{lsn:X}")) == wanted


def test_files_in_which_no_version_is_current_are_not_read(
    spark: SparkSession, source: Source
) -> None:
    t = source.table("t", COLUMNS, key=("a",))
    for a in range(5):
        t.insert(a, None, 0, "d")
    _apply(spark, source)
    t.update_all({"c": 1})
    _apply(spark, source)
    files = spark.table(f"lake.{source.slot_name}.t.data_files")
    ended = files.where("NOT readable_metrics._pgoutput_is_current.upper_bound").collect()
    assert len(ended) == 1
    Path(ended[0]["file_path"].removeprefix("file:")).unlink()
    t.update_all({"c": 2})
    t.delete(a_is(3))
    _apply(spark, source)
    spark.catalog.refreshTable(f"lake.{source.slot_name}.t")
    current = spark.table(f"lake.{source.slot_name}.t").where("_pgoutput_is_current")
    assert sort(tuple(row) for row in current.select("a", "b", "c", "d").collect()) == source_rows(
        t
    )
