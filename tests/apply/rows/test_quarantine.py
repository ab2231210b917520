"""Rows that cannot be written: the lake has every other row, and never a part of one, whatever happens to it.

The judge shares no code with the fold. It knows which rows of the source the lake cannot have.
"""

from __future__ import annotations

import dataclasses
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.apply.rows import quarantine
from airflow_provider_pgoutput.apply.table.target import targets
from airflow_provider_pgoutput.batch.checkpoint import QUARANTINE_TABLE
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.table_version import Counts
from airflow_provider_pgoutput.errors import LakeDenied, RowMissing, ValueRefused
from tests.apply.build import Source, column, opened, replay_of
from tests.apply.conftest import source_rows
from tests.apply.drivers import name_of
from tests.apply.fold_cases import a_is
from tests.faults.rest_catalog import RestCatalog
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from quickstart.spark import LocalLake
    from tests.apply.build import Change, Relation

COLUMNS = (column("a"), column("b", "string"), column("c"), column("d", "string"))
#: Keys from here on are such that the lake's type does not hold them.
UNFIT = 900


def staged_as(value: Any) -> Any:
    """A value as capture stages it: NULL, if its column does not hold it."""
    return None if isinstance(value, int) and value >= UNFIT else value


def stage(source: Source, **options: Any) -> ApplyJob:
    """Stage what is pending, without the values that do not fit."""

    def fitting(row: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if row is None else {name: staged_as(value) for name, value in row.items()}

    def fit(change: Change) -> Change:
        return dataclasses.replace(change, new=fitting(change.new), old=fitting(change.old))

    source.pending = [
        (lsn, [(relation, fit(change)) for relation, change in changes])
        for lsn, changes in source.pending
    ]
    unfit = {name: _unfit_rows(rows) for name, (_, rows) in source._copies.items()}
    source._copies = {
        name: (lsn, [fitting(row) or {} for row in rows])
        for name, (lsn, rows) in source._copies.items()
    }
    job = source.stage()
    if any(unfit.values()):
        # Capture counts the values that it rejects.
        path = source.staging / job.manifest_uri.split("/staging/")[1]
        manifest = Manifest.from_json(path.read_text())
        tables = tuple(
            dataclasses.replace(each, counts=each.counts + Counts(rejected=unfit.get(each.name, 0)))
            for each in manifest.tables
        )
        job = source.write(dataclasses.replace(manifest, tables=tables))
    return dataclasses.replace(job, on_row_refused="quarantine", **options)


def _unfit_rows(rows: list[dict[str, Any]]) -> int:
    return sum(any(staged_as(value) != value for value in row.values()) for row in rows)


def stage_again(source: Source, start: int, taken: list[Any]) -> None:
    """Let the next batch begin where an earlier one began, and hold its changes, too."""
    source.pending[:0] = taken
    source.staged_to = start


class Killed(BaseException):
    """Ends an apply as a kill would."""


def killed_at(point: str, spark: SparkSession, job: ApplyJob) -> bool:
    """Apply, and die at a point; whether it was reached."""

    def kill(name: str) -> None:
        if name == point:
            raise Killed

    try:
        with crash_points.watched(kill):
            apply_batch(spark, job)
    except Killed:
        return True
    return False


def entries(spark: SparkSession, relation: Relation) -> list[dict[str, Any]]:
    """The entries of a table, in the order of their changes."""
    name = TableName("lake", relation.source.slot_name, QUARANTINE_TABLE)
    if not spark.catalog.tableExists(name.sql):
        return []
    spark.catalog.refreshTable(name.sql)
    rows = spark.table(name.sql).where(f"relation_oid = {relation.oid}").collect()
    found = [row.asDict() for row in rows]
    return sorted(found, key=lambda each: (each["commit_lsn"], each["seq"] or 0))


def keys(spark: SparkSession, relation: Relation) -> set[str]:
    return {each["key"] for each in entries(spark, relation)}


def test_a_row_that_the_lake_lacks_goes_to_the_quarantine_and_the_others_go_on(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 2")
    table.update(a_is(2), {"c": 1})
    table.update(a_is(1), {"c": 7})
    job = source.stage()
    with pytest.raises(RowMissing):
        apply_batch(spark, job)
    apply_batch(spark, dataclasses.replace(job, on_row_refused="quarantine"))
    rows = {row["a"]: tuple(row.values()) for row in table.rows}
    assert lake_rows(table) == [rows[1], rows[3]]
    (entry,) = entries(spark, table)
    assert (entry["key"], entry["op"], entry["error"]) == ('{"a":2}', "U", "RowMissing")
    assert (entry["table_name"], entry["commit_lsn"]) == ("public.t", source.lsn - 0x160)
    assert json.loads(entry["change"])["c"] == 1
    # Without its values it stays there, and each change of it is noted.
    table.update(a_is(2), {"c": 2})
    apply_batch(spark, stage(source))
    assert [json.loads(each["change"])["c"] for each in entries(spark, table)] == [1, 2]
    # With them it comes back.
    table.update(a_is(2), {"b": "all of it", "c": 3})
    apply_batch(spark, stage(source))
    assert entries(spark, table) == []
    assert lake_rows(table) == source_rows(table)


@pytest.mark.slow
@pytest.mark.parametrize("identity", ["d", "f"])
def test_a_key_that_the_lake_does_not_hold(
    spark: SparkSession, source: Source, lake_rows: Any, identity: str
) -> None:
    t = source.table("unfit", (column("a"), column("b", "string")), key=("a",), identity=identity)
    t.insert(1, "x")
    t.insert(2, "y")
    apply_batch(spark, stage(source))
    t.insert(UNFIT, "nan")
    t.insert(UNFIT + 1, "infinity")
    t.update(a_is(1), {"a": UNFIT + 2})
    t.update(a_is(UNFIT), {"a": 5})
    t.update(a_is(UNFIT + 1), {"b": "changed"})
    t.insert(3, "z")
    job = stage(source)
    with pytest.raises(ValueRefused):
        apply_batch(spark, dataclasses.replace(job, on_row_refused="fail"))
    apply_batch(spark, job)
    assert lake_rows(t) == [(2, "y"), (3, "z"), (5, "nan")]
    assert {(e["key"], e["error"]) for e in entries(spark, t)} == {('{"a":null}', "ValueRefused")}
    before = len(entries(spark, t))
    t.delete(a_is(UNFIT + 1))
    t.delete(a_is(2))
    apply_batch(spark, stage(source))
    assert lake_rows(t) == [(3, "z"), (5, "nan")]
    assert len(entries(spark, t)) == before + 1
    # A copy says what is there, and what the lake's type does not hold of it. The batch ends with it.
    t.insert(6, "v")
    source.copy(t)
    job = stage(source)
    with pytest.raises(ValueRefused):
        apply_batch(spark, dataclasses.replace(job, on_row_refused="fail"))
    apply_batch(spark, job)
    assert lake_rows(t) == [(3, "z"), (5, "nan"), (6, "v")]
    (entry,) = entries(spark, t)
    assert (entry["key"], entry["op"], entry["seq"]) == ('{"a":null}', "C", None)
    # The next batch begins where the copy was made.
    t.update(a_is(3), {"b": "changed"})
    apply_batch(spark, stage(source))
    assert entries(spark, t) == [entry]
    t.truncate()
    apply_batch(spark, stage(source))
    assert (lake_rows(t), entries(spark, t)) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_batch_keeps_the_entries_of_changes_that_the_table_has(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any, is_killed: bool
) -> None:
    """It begins before the table ends: a kill came before the checkpoint, or the slot is read again."""
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 2")
    table.update(a_is(2), {"c": 1})
    start, taken = source.staged_to, [*source.pending]
    job = stage(source)
    if is_killed:
        assert killed_at("apply.before_checkpoint", spark, job)
    else:
        apply_batch(spark, job)
    assert keys(spark, table) == {'{"a":2}'}
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 1")
    table.update(a_is(1), {"c": 1})
    table.update(a_is(3), {"c": 7})
    stage_again(source, start, taken)
    job = stage(source)
    assert killed_at("quarantine.after_append", spark, job)
    assert killed_at("quarantine.after_delete", spark, job)
    apply_batch(spark, job)
    assert [each["key"] for each in entries(spark, table)] == ['{"a":2}', '{"a":1}']
    assert lake_rows(table) == source_rows(table)[2:]


@pytest.mark.slow
def test_a_driver_that_others_overtook_leaves_newer_entries(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a IN (1, 2)")
    jobs = []
    for a in (1, 2):
        table.update(a_is(a), {"c": 1})
        jobs.append(stage(source))
    overtaken: list[str] = []

    def overtake(point: str) -> None:
        if point == "apply.after_prepare" and not overtaken:
            overtaken.append(point)
            for each in jobs:
                apply_batch(spark, each)

    with crash_points.watched(overtake):
        apply_batch(spark, jobs[0])
    assert overtaken
    assert [each["key"] for each in entries(spark, table)] == ['{"a":1}', '{"a":2}']
    assert lake_rows(table) == source_rows(table)[2:]


@pytest.mark.parametrize("is_truncated", slow_but_each(2, [True, False]))
def test_entries_end_although_no_row_of_the_lake_changes(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any, is_truncated: bool
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql}")
    table.update(a_is(2), {"c": 1})
    apply_batch(spark, stage(source))
    assert keys(spark, table) == {'{"a":2}'}
    if is_truncated:
        table.truncate()
    else:
        table.delete(a_is(2))
    job = stage(source)
    assert killed_at("quarantine.after_delete", spark, job)
    apply_batch(spark, job)
    assert entries(spark, table) == []
    assert lake_rows(table) == []


def test_a_table_that_is_made_again_ends_the_entries_of_the_old_one(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 2")
    table.update(a_is(2), {"c": 1})
    apply_batch(spark, stage(source))
    assert keys(spark, table) == {'{"a":2}'}
    again = source.table("t", table.version.columns, key=("a",), oid=table.oid + 1000)
    again.insert(2, "new", 0)
    source.copy(again)
    again.insert(3, "newer", 0)
    apply_batch(spark, stage(source))
    assert entries(spark, table) == []
    assert lake_rows(again) == source_rows(again)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["a change", "a copy", "a truncate"])
def test_entries_end_also_when_rows_are_refused_again(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any, way: str
) -> None:
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 2")
    table.update(a_is(2), {"c": 1})
    apply_batch(spark, stage(source))
    # What a batch does not touch stays where it is.
    table.update(a_is(1), {"b": "whole"})
    apply_batch(spark, source.stage())
    assert keys(spark, table) == {'{"a":2}'}
    if way == "a change":
        table.update(a_is(2), {"b": "all of it"})
    elif way == "a truncate":
        table.truncate()
    else:
        table.insert(4, "b4", 0)
        source.copy(table)
    apply_batch(spark, source.stage())
    assert entries(spark, table) == []
    assert lake_rows(table) == source_rows(table)


def test_a_login_without_a_right_to_a_quarantine_that_nobody_uses(
    spark: SparkSession,
    local_lake: LocalLake,
    source: Source,
    table: Relation,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = dataclasses.replace(source.stage(), catalog_name="denies_quarantine")
    batch = opened(spark, job)
    (target,) = targets(job, batch.manifest)
    catalog = RestCatalog(spark, local_lake)
    catalog.attach(job.catalog_name)
    try:
        assert IcebergTable.load(spark, target.name) is None
        catalog.denies = 403
        assert not quarantine.has_entries(spark, batch, target)
        with pytest.raises(LakeDenied):
            quarantine.has_entries(
                spark, opened(spark, dataclasses.replace(job, on_row_refused="quarantine")), target
            )
    finally:
        catalog.stop()
    assert "they do not end" in caplog.text


def test_a_row_that_leaves_such_a_key_is_taken_for_no_other_one(
    spark: SparkSession, source: Source, lake_rows: Any
) -> None:
    """The update leaves out a large value. Under its new key the target has that of another row."""
    t = source.table("unfit", (column("a"), column("b", "string")), key=("a",), toast=("b",))
    t.insert(5, "that of another row")
    t.insert(UNFIT, "its own")
    apply_batch(spark, stage(source))
    with source.transaction():
        t.delete(a_is(5))
        t.update(a_is(UNFIT), {"a": 5})
    with pytest.raises(ValueRefused, match="does not send all columns"):
        apply_batch(spark, stage(source))
    assert lake_rows(t) == [(5, "that of another row")]


def test_a_row_that_comes_back_in_the_same_batch(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any
) -> None:
    """The replica identity changes in between, so the batch has two parts."""
    apply_batch(spark, source.stage())
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a IN (2, 3)")
    table.update(a_is(2), {"c": 1})
    table.update(a_is(3), {"c": 1})
    table.alter(identity="f")
    table.update(a_is(2), {"c": 2})
    apply_batch(spark, stage(source))
    assert keys(spark, table) == {'{"a":3}'}
    assert lake_rows(table) == [row for row in source_rows(table) if row[0] != 3]


@pytest.mark.parametrize("answer", slow_but_each(2, ["quarantine", "fail"]))
def test_a_replay_brings_the_rows_back_when_the_cause_is_gone(
    spark: SparkSession, source: Source, table: Relation, lake_rows: Any, answer: str
) -> None:
    source.copy(table)
    jobs = [stage(source)]
    apply_batch(spark, jobs[0])
    spark.sql(f"DELETE FROM {name_of(table).sql} WHERE a = 2")
    table.update(a_is(2), {"c": 1})
    table.update(a_is(2), {"a": 12})
    jobs.append(stage(source))
    apply_batch(spark, jobs[1])
    assert keys(spark, table) == {'{"a":12}'}
    table.update(a_is(12), {"c": 2})
    jobs.append(stage(source))
    apply_batch(spark, jobs[2])
    assert len(entries(spark, table)) == 2
    uris = [each.manifest_uri for each in jobs]
    replay(spark, replay_of(jobs[0], uris, in_place=True, on_row_refused=answer))
    assert lake_rows(table) == source_rows(table)
    assert entries(spark, table) == []


def test_a_change_log_has_every_change(spark: SparkSession, source: Source, lake_rows: Any) -> None:
    t = source.table("log", (column("a"), column("b", "string")), key=("a",), toast=("b",))
    t.insert(UNFIT, "x")
    t.update(a_is(UNFIT), {"a": 7})
    apply_batch(spark, stage(source, mode="change_log"))
    assert lake_rows(t) == [(7, None), (None, "x")]
    assert entries(spark, t) == []


def _program(random_: random.Random, relation: Relation, hidden: dict[str, list[Any]]) -> None:
    """One change that the source would accept, or a row that comes without an event."""
    a, d = random_.randrange(10), "d" + str(random_.randrange(2))
    if random_.random() < 0.1 and relation.name == "unfit":
        a = UNFIT + random_.randrange(3)
    row = {"a": a, "b": random_.choice([None, "big" + str(random_.randrange(4))])}
    row |= {"c": random_.randrange(4), "d": d}
    key = relation.version.key_columns
    taken = any(all(each[name] == row[name] for name in key) for each in relation.rows)
    action = random_.choices("IUMDHT", (5, 7, 4, 3, 1, 0.2))[0]
    if action == "I" and not taken:
        relation.insert(*row.values())
    elif action == "H" and not taken and relation.name in hidden and staged_as(a) is not None:
        relation.rows.append(row)
        hidden[relation.name].append((row, dict(row)))
    elif action == "T":
        relation.truncate()
    elif relation.rows and action in "UMD":
        victim = random_.choice(relation.rows)
        changes = {name: row[name] for name in random_.sample(["b", "c"], random_.randrange(3))}
        if action == "M" and not taken:
            changes |= {"a": row["a"], "d": row["d"]}
        if relation.name == "unfit" and staged_as(victim["a"]) is None and "a" in changes:
            # It leaves the key with all of its values.
            changes["b"] = f"sent {random_.randrange(1000)}"
        if action == "D":
            relation.delete(lambda each: each is victim)
        else:
            relation.update(lambda each: each is victim, changes)


def _judge(
    spark: SparkSession, relation: Relation, found: list[tuple[Any, ...]], hidden: Any
) -> None:
    """Each row of the lake is the source's. Of each that it lacks there is an entry, and of no other one."""
    key = relation.version.key_columns

    def text(row: dict[str, Any]) -> str:
        return json.dumps({name: staged_as(row[name]) for name in key}, separators=(",", ":"))

    names = [each.name for each in relation.version.columns]
    lake = {text(dict(zip(names, row, strict=True))): row for row in found}
    assert len(lake) == len(found)
    source = {text(row): tuple(row.values()) for row in relation.rows}
    assert {text: row for text, row in source.items() if text in lake} == lake
    untouched = {
        text(row)
        for row in relation.rows
        if any(row is h and dict(row) == was for h, was in hidden)
    }
    lacking = source.keys() - lake.keys()
    noted = {each for each in keys(spark, relation) if "null" not in each}
    assert noted <= lacking
    assert {each for each in lacking if "null" not in each} - noted <= untouched


_ALL_WAYS = [
    (seed, options, kills)
    for seed in (0, 1, 2)
    for options in (
        {"write_mode": "merge-on-read"},
        {"write_mode": "copy-on-write"},
        {"soft_delete": True},
    )
    for kills in (True, False)
]


@pytest.mark.further
@pytest.mark.parametrize(
    ("seed", "options", "kills"),
    [
        # The first, with kills. Each takes half a minute.
        way if number == 0 else pytest.param(*way, marks=pytest.mark.exhaustive)
        for number, way in enumerate(_ALL_WAYS)
    ],
)
def test_random_programs(
    spark: SparkSession,
    source: Source,
    lake_rows: Any,
    seed: int,
    options: dict[str, Any],
    kills: bool,
) -> None:
    """Rows that the lake lacks, keys that it does not hold, moves between them, kills."""
    random_ = random.Random(seed)  # noqa: S311 - not for secrets
    tables = [
        source.table("pair", COLUMNS, key=("a", "d"), toast=("b",)),
        source.table("unfit", COLUMNS, key=("a",), toast=("b",)),
        source.table("whole", COLUMNS, key=("a",), identity="f", toast=("b",)),
    ]
    for each in tables:
        each.insert(20, "first", 0, "d0")
    apply_batch(spark, stage(source, **options))
    hidden: dict[str, list[Any]] = {}
    for each in tables[:2]:
        # The lake never got them.
        for a in range(0, 10, 2):
            each.rows.append({"a": a, "b": f"hidden {a}", "c": a, "d": "d0"})
        hidden[each.name] = [(row, dict(row)) for row in each.rows]
    marks = ("_pgoutput_op",) if options.get("soft_delete") else ()
    points = ("quarantine.after_delete", "quarantine.after_append", "apply.between_publishes")
    for _ in range(4):
        for _ in range(random_.randrange(1, 20)):
            with source.transaction():
                for _ in range(random_.randrange(1, 5)):
                    _program(random_, random_.choice(tables), hidden)
        start, taken = source.staged_to, [*source.pending]
        job = stage(source, **options)
        if kills:
            killed_at(random_.choice(points), spark, job)
            if random_.random() < 0.5:
                # The batch is staged again, and there is more to stage.
                _program(random_, random_.choice(tables), hidden)
                stage_again(source, start, taken)
                job = stage(source, **options)
        apply_batch(spark, job)
        for each in tables:
            names = [column.name for column in each.version.columns]
            found = lake_rows(each, *names, *marks)
            found = [row[: len(names)] for row in found if "D" not in row[len(names) :]]
            _judge(spark, each, found, hidden.get(each.name, []))
