"""Batches of the past applied again: in place, and into another namespace. What is refused leaves nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.table import IcebergTable
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.apply.table import checkpoint
from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, ApplyJob, ReplayJob, TableOptions
from airflow_provider_pgoutput.errors import (
    BatchGap,
    BatchRefused,
    PublishRefused,
    TableRefused,
    TableRolledBack,
)
from tests.apply.build import COMMIT_TIME, COMPLETE_UNTIL, Source, column, opened, replay_of
from tests.apply.conftest import sort, source_rows
from tests.apply.fold_cases import a_is
from tests.faults.crash_points import crash_points

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from tests.apply.build import Relation

#: That of slices is in test_shared_tables.py.
POINTS = [
    each
    for each in crash_points("apply")
    if each.startswith("replay.") and not each.startswith("replay.slice")
]


class Story:
    """Two tables, copied in the first of four batches; the second table changes in the first and third."""

    def __init__(self, spark: SparkSession, source: Source) -> None:
        self.spark, self.source = spark, source
        columns = (column("a"), column("b", "string"))
        self.one = source.table("one", columns, key=("a",))
        self.two = source.table("two", columns, key=("a",))
        for a in range(4):
            self.one.insert(a, "first")
            self.two.insert(a, "first")
        source.pending.clear()  # The copies hold it.
        source.copy(self.one)
        source.copy(self.two)
        self.plans = [self._next()]
        self.after: list[list[tuple[Any, ...]]] = [source_rows(self.one)]
        for number in (1, 2, 3):
            self.one.update(a_is(number), {"b": f"batch {number}"})
            self.one.insert(10 + number, "new")
            if number == 2:
                self.two.delete(a_is(0))
            self.plans.append(self._next())
            self.after.append(source_rows(self.one))

    def _next(self) -> ApplyJob:
        plan = self.source.stage()
        apply_batch(self.spark, plan)
        return plan

    def plan(
        self, first: int = 0, last: int = 3, target: str | None = None, **changed: Any
    ) -> ReplayJob:
        uris = [each.manifest_uri for each in self.plans[first : last + 1]]
        changed |= {"namespace": target or self.source.slot_name, "in_place": target is None}
        return replay_of(self.plans[last], uris, **changed)

    def table(self, relation: Relation, namespace: str | None = None) -> IcebergTable:
        name = TableName("lake", namespace or self.source.slot_name, relation.name)
        found = IcebergTable.load(self.spark, name)
        assert found is not None
        return found

    def rows(self, relation: Relation, namespace: str | None = None) -> list[tuple[Any, ...]]:
        name = TableName("lake", namespace or self.source.slot_name, relation.name)
        self.spark.catalog.refreshTable(name.sql)
        return sort(tuple(row) for row in self.spark.table(name.sql).select("a", "b").collect())

    def checkpoint(self, namespace: str | None = None) -> Lsn | None:
        plan = replace(self.plans[0], namespace=namespace or self.source.slot_name)
        manifest = opened(self.spark, self.plans[0]).manifest
        return checkpoint.read(self.spark, plan, manifest).end_lsn

    def sql(self, text: str, relation: Relation) -> None:
        name = TableName("lake", self.source.slot_name, relation.name)
        self.spark.sql(text.format(sql=name.sql, target=name.target))

    def assert_whole(self) -> None:
        for relation in (self.one, self.two):
            assert self.rows(relation) == source_rows(relation), relation.name


@pytest.fixture
def story(spark: SparkSession, source: Source) -> Story:
    return Story(spark, source)


@pytest.fixture(scope="module")
def shared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """For tests that leave its namespace as it is."""
    return Story(spark, Source(tmp_path_factory.mktemp("replay") / "staging", "slot_replay"))


@pytest.mark.parametrize("first", [0, 2], ids=["from the copies", "from a snapshot"])
def test_in_place_undoes_what_others_did(spark: SparkSession, story: Story, first: int) -> None:
    story.sql("DELETE FROM {sql} WHERE a < 3", story.one)
    story.sql("UPDATE {sql} SET b = 'wrong'", story.two)
    before, two = story.checkpoint(), (story.rows(story.two), story.table(story.two).head)
    for _ in range(2):
        # Twice gives the same. A table that was not chosen stays as it is.
        result = replay(spark, story.plan(first, tables=("public.one",)))
        assert story.rows(story.one) == source_rows(story.one)
        assert (story.rows(story.two), story.table(story.two).head) == two
    replay(spark, story.plan(first))
    story.assert_whole()
    assert result.batches == 4 - first
    assert story.checkpoint() == before
    # The pipeline goes on as if nothing had been.
    story.one.insert(99, "later")
    apply_batch(spark, story.source.stage())
    story.assert_whole()


def test_a_table_that_somebody_rolled_back_is_repaired_without_a_gap(
    spark: SparkSession, story: Story
) -> None:
    """The snapshot that the batches go on from is beside main's history then, not in it."""
    first = min(
        (row.committed_at, row.snapshot_id)
        for row in spark.sql(f"SELECT * FROM lake.{story.source.slot_name}.one.snapshots").collect()
    )[1]
    story.sql(f"CALL lake.system.rollback_to_snapshot('{{target}}', {first})", story.one)
    story.one.insert(50, "next")
    coming = story.source.stage()
    with pytest.raises(TableRolledBack):
        apply_batch(spark, coming)
    replay(spark, story.plan(3, tables=("public.one",)))
    assert story.rows(story.one) == story.after[3]
    apply_batch(spark, coming)
    story.assert_whole()


class _Killed(BaseException):
    """The end of the process, as no handler of an error sees it."""


@pytest.mark.parametrize("point", POINTS)
def test_killed_in_place_it_is_noticed_and_run_again(
    spark: SparkSession, story: Story, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def reach(name: str) -> None:
        if name == point:
            raise _Killed

    with monkeypatch.context() as patched:
        for module in ("replay", "rewind"):
            patched.setattr(f"airflow_provider_pgoutput.apply.{module}.reach", reach)
        with pytest.raises(_Killed):
            replay(spark, story.plan(1))
    story.one.insert(50, "next")
    coming = story.source.stage()
    with pytest.raises(TableRolledBack):
        apply_batch(spark, coming)
    replay(spark, story.plan(1))
    apply_batch(spark, coming)
    story.assert_whole()


def test_into_another_namespace(spark: SparkSession, story: Story) -> None:
    """Beside what is there: as it was in between, then forward; and as a change log, of one table."""
    namespace = f"{story.source.slot_name}_again"
    live = story.table(story.one).head
    replay(spark, story.plan(0, 1, target=namespace))
    assert story.rows(story.one, namespace) == story.after[1]
    assert story.checkpoint(namespace) == opened(spark, story.plans[1]).manifest.end_lsn
    # What overlaps is not applied twice.
    replay(spark, story.plan(1, 3, target=namespace))
    assert story.rows(story.one, namespace) == source_rows(story.one)
    assert story.rows(story.two, namespace) == source_rows(story.two)
    # That namespace is a lake like any other.
    story.one.insert(77, "next")
    coming = story.source.stage()
    apply_batch(spark, replace(coming, namespace=namespace))
    assert story.rows(story.one, namespace) == source_rows(story.one)
    assert story.table(story.one).head == live


def test_a_change_log_is_never_written_twice(spark: SparkSession, shared: Story) -> None:
    """In place its copy would be added to what is there, and every change after it; so it is refused."""
    namespace = f"{shared.source.slot_name}_twice"
    plan = shared.plan(0, 3, target=namespace, mode=CHANGE_LOG)
    replay(spark, plan)
    before = shared.rows(shared.one, namespace)
    in_place = replace(plan, in_place=True)
    for tag in [each for each in shared.table(shared.one, namespace).java.refs() if each != "main"]:
        spark.sql(f"ALTER TABLE lake.{namespace}.one DROP TAG {tag}")
    spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{namespace}.one', retain_last => 1,"
        " older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )
    with pytest.raises(TableRefused, match="replay it into another namespace"):
        replay(spark, in_place)
    with pytest.raises(TableRefused, match="only added at its end"):
        replay(spark, plan)
    assert shared.rows(shared.one, namespace) == before


def test_holes_in_another_namespace_are_refused(spark: SparkSession, shared: Story) -> None:
    """A table without a change in the batches would lack what lies in the hole, and nobody would look."""
    namespace = f"{shared.source.slot_name}_holes"
    replay(spark, shared.plan(0, 0, target=namespace))
    with pytest.raises(BatchGap, match="the checkpoint is"):
        replay(spark, shared.plan(2, 3, target=namespace))
    log = f"{shared.source.slot_name}_log_holes"
    chosen: dict[str, Any] = {"mode": CHANGE_LOG, "tables": ("public.one",)}
    replay(spark, shared.plan(1, 1, target=log, **chosen))
    with pytest.raises(BatchGap, match="the target ends at"):
        replay(spark, shared.plan(3, 3, target=log, **chosen))
    with pytest.raises(TableRefused, match="only added at its end"):
        replay(spark, shared.plan(0, 3, target=log, **chosen))


def test_a_replay_run_again_names_the_snapshots_of_their_time(
    spark: SparkSession, shared: Story
) -> None:
    namespace = f"{shared.source.slot_name}_again"
    for last in (3, 1):
        replay(spark, shared.plan(0, last, target=namespace))
    manifest = opened(spark, shared.plans[1]).manifest
    plan = replace(shared.plans[1], namespace=namespace)
    known = checkpoint.snapshots_at(spark, plan, manifest, manifest.end_lsn, {})
    end_lsn, snapshots = known[f"{namespace}.one"]
    assert end_lsn == manifest.end_lsn
    table = shared.table(shared.one, namespace)
    assert {table.end_of(each, manifest.slot_name) for each in snapshots} == {end_lsn}
    # What was damaged is undone there as well.
    spark.sql(f"DELETE FROM lake.{namespace}.one WHERE a < 3")
    rebuilt = shared.plan(2, 3)
    replay(spark, replace(rebuilt, namespace=namespace))
    assert shared.rows(shared.one, namespace) == source_rows(shared.one)


def test_a_writer_in_between_is_no_success(
    spark: SparkSession, story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Main moves while the copy is prepared; looked at again, the table seems to hold every batch."""
    from airflow_provider_pgoutput.apply import pipeline

    publish: Any = vars(pipeline)["publish"]
    moved: list[Any] = []

    def after_a_foreign_commit(*given: Any) -> Any:
        if not moved:
            moved.append(True)
            story.sql("DELETE FROM {sql} WHERE a = 2", story.one)
        return publish(*given)

    monkeypatch.setattr(pipeline, "publish", after_a_foreign_commit)
    with pytest.raises(PublishRefused, match="Somebody else wrote"):
        replay(spark, story.plan(0, tables=("public.one",)))
    replay(spark, story.plan(0, tables=("public.one",)))
    assert story.rows(story.one) == source_rows(story.one)


def test_a_writer_in_between_is_no_success_for_a_table_of_one_batch(
    spark: SparkSession, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing came after its copy, so that what it says of itself is what the replay makes of it."""
    from airflow_provider_pgoutput.apply import pipeline

    t = source.table("t", (column("a"),), key=("a",))
    for a in range(4):
        t.insert(a)
    source.pending.clear()
    source.copy(t)
    plan = source.stage()
    apply_batch(spark, plan)
    name = TableName("lake", source.slot_name, "t")
    spark.sql(f"DELETE FROM {name.sql} WHERE a = 1")
    publish: Any = vars(pipeline)["publish"]
    moved: list[Any] = []

    def after_a_foreign_commit(*given: Any) -> Any:
        if not moved:
            moved.append(True)
            spark.sql(f"DELETE FROM {name.sql} WHERE a = 2")
        return publish(*given)

    monkeypatch.setattr(pipeline, "publish", after_a_foreign_commit)
    wanted = replay_of(plan, [plan.manifest_uri], in_place=True)
    with pytest.raises(PublishRefused, match="Somebody else wrote"):
        replay(spark, wanted)
    replay(spark, wanted)
    spark.catalog.refreshTable(name.sql)
    assert sort(tuple(row) for row in spark.table(name.sql).collect()) == source_rows(t)


def test_another_target_than_the_pipelines_is_refused(spark: SparkSession, shared: Story) -> None:
    tables = {"public.one": TableOptions(target="other")}
    with pytest.raises(TableRefused, match=r"writes the table to .*\.one"):
        replay(spark, shared.plan(0, table_options=tables))
    assert IcebergTable.load(spark, TableName("lake", shared.source.slot_name, "other")) is None


def test_other_deletes_than_the_pipelines_are_refused_in_place(
    spark: SparkSession, shared: Story
) -> None:
    """Rows that the pipeline keeps, marked, would be gone for good; here it is the other way round."""
    before = shared.rows(shared.one)
    with pytest.raises(TableRefused, match="soft_delete=False") as refused:
        replay(spark, shared.plan(1, 3, soft_delete=True))
    assert "as the pipeline" in (refused.value.advice or "")
    assert shared.rows(shared.one) == before


def test_a_change_log_may_begin_anywhere(spark: SparkSession, shared: Story) -> None:
    namespace = f"{shared.source.slot_name}_log"
    plan = shared.plan(2, 3, target=namespace, mode=CHANGE_LOG, tables=("public.one",))
    replay(spark, plan)
    replay(spark, plan)
    assert shared.rows(shared.one, namespace) == sort(
        [(2, "batch 2"), (12, "new"), (3, "batch 3"), (13, "new")]
    )
    # Some tables only: nobody may take the namespace for one that has the batches.
    assert shared.checkpoint(namespace) is None
    assert IcebergTable.load(spark, TableName("lake", namespace, "two")) is None


def test_what_cannot_be_whole_is_refused_before_anything_is_written(
    spark: SparkSession, shared: Story
) -> None:
    namespace = f"{shared.source.slot_name}_refused"
    staging = shared.source.staging
    first, _, *others = shared.plan().manifest_uris
    wrong: list[tuple[type[Exception], str, ReplayJob]] = [
        (BatchGap, "no copy of it", shared.plan(1, target=namespace)),
        (
            BatchGap,
            "the next one starts at",
            replace(shared.plan(0, target=namespace), manifest_uris=(first, *others)),
        ),
        (
            BatchRefused,
            "public.nothing",
            shared.plan(0, target=namespace, tables=("public.nothing",)),
        ),
        (BatchGap, "another run", shared.plan(0, 2)),
    ]
    for error, message, plan in wrong:
        with pytest.raises(error, match=message):
            replay(spark, plan)
    heads = [shared.table(each).head for each in (shared.one, shared.two)]
    damaged = opened(spark, shared.plans[3]).manifest.tables[0].versions[0].files[0]
    whole = (staging / damaged.path).read_bytes()
    content = bytearray(whole)
    content[len(content) // 2] ^= 1
    (staging / damaged.path).write_bytes(bytes(content))
    for plan in (shared.plan(0, target=namespace), shared.plan(1)):
        with pytest.raises(BatchRefused, match="SHA-256"):
            replay(spark, plan)
    (staging / damaged.path).write_bytes(whole)
    assert spark.catalog.databaseExists(f"lake.{namespace}") is False
    assert [shared.table(each).head for each in (shared.one, shared.two)] == heads


def test_a_renamed_table_is_one_table(spark: SparkSession, story: Story) -> None:
    """Whichever name is given, no batch of it is left out."""
    del story.source.relations["public.one"]
    story.one.name = "renamed"
    version = replace(story.one.version, version=1, table_name="renamed", files=())
    story.one.versions.append(version)
    story.source.relations["public.renamed"] = story.one
    story.one.insert(60, "renamed")
    tables = {"public.renamed": TableOptions(target="one")}
    plan = replace(story.source.stage(), table_options=tables)
    apply_batch(spark, plan)
    story.plans.append(plan)
    namespace = f"{story.source.slot_name}_renamed"
    with pytest.raises(TableRefused, match=r"was renamed at the source, from public\.one"):
        replay(spark, story.plan(0, 4, target=namespace, table_options={}))
    chosen: dict[str, Any] = {"tables": ("public.renamed",), "table_options": tables}
    story.one.name = "one"  # The target.
    for job in (story.plan(1, 4, **chosen), story.plan(0, 4, target=namespace, **chosen)):
        replay(spark, job)
        assert story.rows(story.one, job.namespace) == source_rows(story.one)


def test_changed_columns_go_to_another_namespace_only(spark: SparkSession, story: Story) -> None:
    """In place, rows of before the change would get NULL where the change gave them a value."""
    story.one.alter((*story.one.version.columns, column("c", "int", missing="5")))
    story.one.update(a_is(1), {"c": 6})
    story.plans.append(story._next())
    for first in (0, 2, 4):
        with pytest.raises(TableRefused, match="columns changed"):
            replay(spark, story.plan(first, 4))
    namespace = f"{story.source.slot_name}_columns"
    replay(spark, story.plan(0, 4, target=namespace))
    name = TableName("lake", namespace, "one")
    rows = sort(tuple(row) for row in spark.table(name.sql).select("a", "b", "c").collect())
    assert rows == source_rows(story.one)


def test_a_snapshot_that_expired_is_not_guessed(spark: SparkSession, story: Story) -> None:
    name = f"{story.source.slot_name}.one"
    for tag in [each for each in story.table(story.one).java.refs() if each != "main"]:
        spark.sql(f"ALTER TABLE lake.{name} DROP TAG {tag}")
    spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{name}', retain_last => 1,"
        " older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )
    with pytest.raises(TableRefused, match="not there any more"):
        replay(spark, story.plan(2))
    replay(spark, story.plan(0))
    story.assert_whole()


@pytest.mark.parametrize("left", ["history", "tags"])
def test_the_snapshots_tell_what_a_checkpoint_that_was_rebuilt_does_not(
    spark: SparkSession, story: Story, left: str
) -> None:
    """It has the newest row of each table only; the summaries and the tags have the others."""
    name = f"{story.source.slot_name}.one"
    newest = story.checkpoint()
    assert newest is not None
    spark.sql(
        f"DELETE FROM lake.{story.source.slot_name}.pgoutput_checkpoint WHERE target = '{name}'"
        f" AND end_lsn < '{newest.sortable}'"
    )
    if left == "tags":
        between = story.table(story.one).head
        story.sql("DELETE FROM {sql} WHERE a = 1", story.one)
        spark.sql(
            f"CALL lake.system.expire_snapshots(table => '{name}', retain_last => 1,"
            " older_than => TIMESTAMP '2100-01-01 00:00:00')"
        )
        assert story.table(story.one).java.snapshot(between) is not None, "its tag holds it"
    else:
        for tag in [each for each in story.table(story.one).java.refs() if each != "main"]:
            spark.sql(f"ALTER TABLE lake.{name} DROP TAG {tag}")
        story.sql("DELETE FROM {sql} WHERE a = 1", story.one)
    assert story.rows(story.one) != source_rows(story.one)
    replay(spark, story.plan(2, tables=("public.one",)))
    story.assert_whole()


def test_all_tables_at_one_lsn_as_the_docs_say(spark: SparkSession, shared: Story) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "replay.md").read_text(encoding="utf-8")
    lookup, past = page.partition("```sql\n")[2].partition("```")[0].strip().rstrip(";").split(";")
    namespace = shared.source.slot_name
    end_lsn = opened(spark, shared.plans[1]).manifest.end_lsn
    for old, new in (
        ("lake.shop", f"lake.{namespace}"),
        ("'shop'", f"'{namespace}'"),
        ("00000016B374D848", end_lsn.sortable),
    ):
        assert old in lookup
        lookup = lookup.replace(old, new)
    checkpoint = spark.table(f"lake.{namespace}.pgoutput_checkpoint")
    times = checkpoint.select("last_commit_time", "complete_until").collect()
    # The first batch is the copies alone.
    assert {tuple(each and each.astimezone(UTC) for each in row) for row in times} == {
        (None, COMPLETE_UNTIL),
        (COMMIT_TIME, COMPLETE_UNTIL),
    }
    snapshots = {row["target"]: row["snapshot_id"] for row in spark.sql(lookup).collect()}
    assert set(snapshots) == {f"{namespace}.one", f"{namespace}.two"}
    assert "lake.shop.orders VERSION AS OF 5938112049870214000" in past
    read = past.replace("lake.shop.orders", f"lake.{namespace}.one").replace(
        "5938112049870214000", str(snapshots[f"{namespace}.one"])
    )
    assert sort(tuple(row) for row in spark.sql(read).collect()) == shared.after[1]


def test_a_replay_over_a_table_that_was_made_again_can_be_repeated(
    spark: SparkSession, source: Source
) -> None:
    story = Story(spark, source)
    story.one.oid += 100
    story.one.insert(90, "of the new one")
    source.pending.clear()
    source.copy(story.one)
    story.plans.append(story._next())
    story.one.insert(91, "later")
    story.plans.append(story._next())
    for _ in range(2):
        replay(spark, story.plan(0, 5, target=f"{source.slot_name}_again"))
        assert story.rows(story.one, f"{source.slot_name}_again") == source_rows(story.one)


def test_nothing_goes_back_if_a_table_was_made_again_since(
    spark: SparkSession, story: Story
) -> None:
    story.one.oid += 100
    story.one.insert(90, "of the new one")
    story.source.pending.clear()
    story.source.copy(story.one)
    story.plans.append(story._next())
    heads = [story.table(each).head for each in (story.one, story.two)]
    with pytest.raises(TableRefused, match="created again at the source since"):
        replay(spark, story.plan(1, 4))
    assert [story.table(each).head for each in (story.one, story.two)] == heads
    story.assert_whole()
    for first in (0, 4):
        replay(spark, story.plan(first, 4))
        story.assert_whole()


def test_it_does_not_begin_inside_a_batch(spark: SparkSession, story: Story) -> None:
    """The slot was read again from a position in the midst of a batch that was applied."""
    source, one = story.source, story.one
    one.update(a_is(1), {"b": "before"})
    one.update(a_is(2), {"b": "after"})
    inside, kept = source.pending[0][0] + 0x30, source.pending[1:]
    whole = story._next()
    one.update(a_is(3), {"b": "later"})
    source.pending, source.staged_to = kept + source.pending, inside
    again = story._next()
    story.assert_whole()

    def in_place(*jobs: ApplyJob) -> ReplayJob:
        return replay_of(again, [each.manifest_uri for each in jobs], in_place=True)

    with pytest.raises(TableRefused, match="begins at") as refusal:
        replay(spark, in_place(again))
    assert str(opened(spark, whole).manifest.start_lsn) in str(refusal.value.advice)
    story.assert_whole()
    replay(spark, in_place(whole, again))
    story.assert_whole()


def test_a_table_that_a_longer_batch_leaves_as_it_was_says_where_it_is(
    spark: SparkSession, story: Story
) -> None:
    """What two batches did to the row and undid is nothing in the one that was read again over both."""
    source = story.source
    bag = source.table("bag", (column("a"),), identity="f")
    bag.insert(1)
    story._next()
    start, kept = source.staged_to, []
    for a in (1, 2):
        bag.update(a_is(a), {"a": 3 - a})
        kept += source.pending
        story._next()
    story.one.update(a_is(1), {"b": "later"})
    source.pending, source.staged_to = kept + source.pending, start
    again = story._next()
    replay(spark, replay_of(again, [again.manifest_uri], in_place=True))
    story.assert_whole()
    bag.insert(5)
    story._next()
    name = TableName("lake", source.slot_name, "bag")
    spark.catalog.refreshTable(name.sql)
    assert sort(tuple(row) for row in spark.table(name.sql).collect()) == source_rows(bag)


def test_a_table_that_was_rolled_back_in_another_namespace_is_refused(
    spark: SparkSession, shared: Story
) -> None:
    namespace = f"{shared.source.slot_name}_back"
    replay(spark, shared.plan(0, 1, target=namespace))
    table = shared.table(shared.one, namespace)
    first = table.snapshot_of(opened(spark, shared.plans[0]).manifest.batch_id)
    assert first is not None
    table.go_back(first)
    with pytest.raises(TableRolledBack, match="the table says"):
        replay(spark, shared.plan(2, 3, target=namespace))
    replay(spark, shared.plan(1, 3, target=namespace))
    assert shared.rows(shared.one, namespace) == source_rows(shared.one)


def test_a_change_log_goes_on_after_its_first_snapshots_expired(
    spark: SparkSession, shared: Story
) -> None:
    namespace = f"{shared.source.slot_name}_goes_on"
    replay(spark, shared.plan(0, 1, target=namespace, mode=CHANGE_LOG))
    for tag in [each for each in shared.table(shared.one, namespace).java.refs() if each != "main"]:
        spark.sql(f"ALTER TABLE lake.{namespace}.one DROP TAG {tag}")
    spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{namespace}.one', retain_last => 1,"
        " older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )
    replay(spark, shared.plan(2, 3, target=namespace, mode=CHANGE_LOG))
    whole = f"{shared.source.slot_name}_whole"
    replay(spark, shared.plan(0, 3, target=whole, mode=CHANGE_LOG))
    assert shared.rows(shared.one, namespace) == shared.rows(shared.one, whole)
