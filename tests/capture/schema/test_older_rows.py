"""What rows that are older than an added column show in it: what the server holds is staged, or warned of.

Staged from a real server; what apply does with it is in ``tests/conformance/test_schema_changes.py``.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.capture import stage
from airflow_provider_pgoutput.capture.schema import older_rows
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.errors import TableRefused
from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.batch.table_version import Column
    from tests.capture.pipeline_support import Source

DEFAULT = SchemaPolicy(on_unknown_default="default")
#: What adds column c to t, which has a row by then, and whether nobody can tell what that row has.
ADDED: dict[str, tuple[Sequence[str], bool]] = {
    "nothing": (["ADD c int"], False),
    "a constant": (["ADD c int DEFAULT 7"], False),
    "a constant, dropped": (["ADD c int DEFAULT 7", "ALTER c DROP DEFAULT"], False),
    "later rows only": (["ADD c int", "ALTER c SET DEFAULT 8"], False),
    "no constant": (["ADD c float8 DEFAULT random()"], True),
    "no constant, dropped": (["ADD c float8 DEFAULT random()", "ALTER c DROP DEFAULT"], True),
    "a constant, dropped and forgotten": (
        ["ADD c int DEFAULT 7", "ALTER c DROP DEFAULT", "ALTER b TYPE varchar(9)"],
        True,
    ),
    "written anew for another column": (["ALTER b TYPE varchar(9)", "ADD c int"], True),
}


def statements(added: str) -> list[str]:
    return [f"ALTER TABLE t {each}" for each in ADDED[added][0]]


def column(manifest: Manifest, name: str, table: str = "public.t") -> Column:
    """A column of the newest version."""
    (found,) = [each for each in manifest.tables if each.name == table]
    return next(each for each in found.versions[-1].columns if each.name == name)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said of older rows."""
    return [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.WARNING and each.name == older_rows.__name__
    ]


def held(source: Source, relation: str = "t") -> str | None:
    """What the source shows in the oldest row."""
    ((value,),) = source.execute(f"SELECT c::text FROM {relation} WHERE a = 1")
    return None if value is None else str(value)


@pytest.mark.parametrize("added", ADDED)
def test_of_older_rows_that_is_staged_which_the_server_holds_or_it_is_warned_of(
    source: Source, added: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With ``on_unknown_default="default"``, which writes no default that the rows have not."""
    source.execute("INSERT INTO t VALUES (1, 'x')")
    first = checkpoint_with_shapes(source.stage())
    source.execute(*statements(added), "INSERT INTO t(a, c) VALUES (2, 9)")
    manifest = source.stage(checkpoint=first, schema_policy=DEFAULT)
    said, is_unknown = warnings(caplog), ADDED[added][1]
    assert [("public.t" in each, "column c" in each) for each in said] == [
        (True, True)
    ] * is_unknown
    if not is_unknown:
        assert column(manifest, "c").missing_value == held(source)
    # What follows in the next batch is no news.
    caplog.clear()
    source.execute("INSERT INTO t(a, c) VALUES (3, 9)")
    source.stage(checkpoint=checkpoint_with_shapes(manifest), schema_policy=DEFAULT)
    assert not warnings(caplog)


def test_a_generated_column_that_becomes_an_ordinary_one_has_values_that_nobody_sent(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written anew for that, and the table had the column all the time."""
    source.execute(
        "CREATE TABLE g(a int PRIMARY KEY, c int GENERATED ALWAYS AS (a * 2) STORED)",
        "INSERT INTO g VALUES (1)",
        "ALTER PUBLICATION p ADD TABLE g",
    )
    first = checkpoint_with_shapes(source.stage())
    # The default is that of later rows.
    source.execute(
        "ALTER TABLE g ALTER c DROP EXPRESSION, ALTER c SET DEFAULT 7",
        "INSERT INTO g VALUES (2, 9)",
    )
    again = source.stage(checkpoint=first, schema_policy=SchemaPolicy(on_unknown_default="copy"))
    assert source.copied(again, "public.g") == [{"a": 1, "c": 2}, {"a": 2, "c": 9}]
    assert not warnings(caplog)
    other = str(source.staging / "other")
    manifest = source.stage(checkpoint=first, staging_uri=other, schema_policy=DEFAULT)
    (said,) = warnings(caplog)
    assert "public.g" in said
    assert "column c was there before" in said
    (table,) = manifest.tables
    assert [str(each) for each in table.schema_changes] == [
        "column c is published from now on, integer"
    ]
    assert column(manifest, "c", "public.g").missing_value is None


def test_a_generated_column_that_is_published_later_has_values_that_nobody_sent(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """From version 18 on, where the last batch's manifest is not there to say what was published."""
    version = int(source.execute("SHOW server_version_num")[0][0])
    if version < 180000:
        pytest.skip("this is about PostgreSQL 18")
    source.execute(
        "ALTER TABLE t ADD c int GENERATED ALWAYS AS (a * 2) STORED",
        "INSERT INTO t VALUES (1, 'x')",
    )
    first = checkpoint_with_shapes(source.stage())
    source.execute(
        "ALTER PUBLICATION p SET (publish_generated_columns = stored)",
        "INSERT INTO t VALUES (2, 'y')",
    )
    other = str(source.staging / "other")
    manifest = source.stage(checkpoint=first, staging_uri=other, schema_policy=DEFAULT)
    assert "column c was there before" in warnings(caplog)[0]
    assert [str(each) for each in manifest.tables[0].schema_changes] == [
        "column c is published from now on, integer"
    ]
    again = source.stage(checkpoint=first, schema_policy=SchemaPolicy(on_unknown_default="copy"))
    assert [row["c"] for row in source.copied(again, "public.t")] == [2, 4]


def test_a_default_of_now_is_taken_where_the_table_was_written_anew(source: Source) -> None:
    source.execute("INSERT INTO t VALUES (1, 'x')")
    first = checkpoint_with_shapes(source.stage())
    source.execute("ALTER TABLE t ADD c int DEFAULT 7", "VACUUM FULL t", "INSERT INTO t VALUES (2)")
    manifest = source.stage(checkpoint=first, schema_policy=DEFAULT)
    assert column(manifest, "c").missing_value == "7"


def test_a_table_that_was_written_anew_between_its_last_row_and_the_end_of_its_batch_is_seen(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch before knows the place of after the change, but not the column: then it tells nothing."""
    source.execute("INSERT INTO t VALUES (1, 'x')")
    first = checkpoint_with_shapes(source.stage())
    source.execute("INSERT INTO t VALUES (2)", "ALTER TABLE t ADD c float8 DEFAULT random()")
    source.execute("ALTER TABLE t ALTER c DROP DEFAULT")
    second = source.stage(checkpoint=first)
    assert [each.versions[-1].columns[-1].name for each in second.tables] == ["b"]
    source.execute("INSERT INTO t(a, c) VALUES (3, 9)")
    source.stage(checkpoint=checkpoint_with_shapes(second))
    assert len(warnings(caplog)) == 1


def test_a_lake_that_does_not_know_the_place_goes_by_the_definition_of_now(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """As a version before left it. The file of a table that was never written anew is known all the same."""
    source.execute("INSERT INTO t VALUES (1, 'x')")
    first = source.stage()
    (table,) = first.tables
    assert table.storage is not None
    before = checkpoint_with_shapes(first)
    shapes = {oid: replace(each, storage=None) for oid, each in before.shapes.items()}
    before = replace(before, shapes=shapes)
    source.execute(*statements("later rows only"), "INSERT INTO t VALUES (2)")
    assert column(source.stage(checkpoint=before, schema_policy=DEFAULT), "c").missing_value is None
    assert not warnings(caplog)
    source.execute("VACUUM FULL t", "INSERT INTO t VALUES (3)")
    manifest = source.stage(
        checkpoint=before, schema_policy=DEFAULT, staging_uri=str(source.staging / "other")
    )
    assert column(manifest, "c").missing_value == "8"


@pytest.mark.parametrize("is_root", [True, False])
def test_what_partitions_keep_for_older_rows_is_what_their_table_shows(
    source: Source, is_root: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The partitioned table itself keeps nothing; numbers of columns differ between leaves."""
    source.execute(
        "CREATE TABLE r(a int, b text, PRIMARY KEY (a)) PARTITION BY RANGE (a)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2(junk int, b text, a int NOT NULL)",
        "ALTER TABLE r2 DROP junk",
        "ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (10) TO (20)",
        f"CREATE PUBLICATION q FOR TABLE r WITH (publish_via_partition_root = {is_root})",
        "INSERT INTO r VALUES (1, 'x'), (11, 'x')",
    )
    first = checkpoint_with_shapes(source.stage(publication_names=("q",)))
    source.execute(
        "ALTER TABLE r ADD c int DEFAULT 7, ADD d text",
        "ALTER TABLE r ALTER c DROP DEFAULT, ALTER d SET DEFAULT 'later'",
        # Made since then, it keeps nothing.
        "CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (20) TO (30)",
        "INSERT INTO r VALUES (2, 'x', 9), (12, 'x', 9), (22, 'x', 9)",
    )
    manifest = source.stage(
        publication_names=("q",), checkpoint=first, schema_policy=DEFAULT, initial_copy="never"
    )
    names = ["public.r"] if is_root else ["public.r1", "public.r2"]
    for name in names:
        assert column(manifest, "c", name).missing_value == held(source, "r") == "7"
        assert column(manifest, "d", name).missing_value is None
    assert not warnings(caplog)


@pytest.mark.parametrize("is_root", [True, False])
def test_what_was_written_into_partitions_is_warned_of(
    source: Source, is_root: bool, caplog: pytest.LogCaptureFixture
) -> None:
    source.execute(
        "CREATE TABLE r(a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        f"CREATE PUBLICATION q FOR TABLE r WITH (publish_via_partition_root = {is_root})",
        "INSERT INTO r VALUES (1, 'x'), (11, 'x')",
    )
    first = checkpoint_with_shapes(source.stage(publication_names=("q",)))
    source.execute(
        "ALTER TABLE r ADD c float8 DEFAULT random()",
        "ALTER TABLE r ALTER c DROP DEFAULT",
        "INSERT INTO r VALUES (2, 'x', 9), (12, 'x', 9)",
    )
    source.stage(publication_names=("q",), checkpoint=first, schema_policy=DEFAULT)
    assert len(warnings(caplog)) == (1 if is_root else 2)


def test_a_key_that_was_filled_by_row_events_is_known_and_one_that_was_not_is_refused(
    source: Source,
) -> None:
    source.execute("INSERT INTO t VALUES (1, 'x')")
    first = checkpoint_with_shapes(source.stage())
    source.execute(
        "ALTER TABLE t ADD c int",
        "UPDATE t SET c = 5",
        "ALTER TABLE t ALTER c SET NOT NULL, DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (c)",
        "INSERT INTO t VALUES (2, 'x', 6)",
    )
    second = checkpoint_with_shapes(source.stage(checkpoint=first))
    source.execute(
        "ALTER TABLE t ADD k serial",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k)",
        "INSERT INTO t VALUES (3, 'x', 7)",
    )
    with pytest.raises(TableRefused, match="cannot be found"):
        source.stage(checkpoint=second)


def test_a_partition_attached_with_another_past_shows_another_value(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Its value is not that of the partitions that were there, which show NULL; a new one shows nothing."""
    source.execute(
        "CREATE TABLE r(a int PRIMARY KEY) PARTITION BY RANGE (a)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE PUBLICATION q FOR TABLE r WITH (publish_via_partition_root)",
        "INSERT INTO r VALUES (1)",
    )
    options: dict[str, Any] = {"publication_names": ("q",)}
    first = checkpoint_with_shapes(source.stage(**options))
    source.execute(
        "ALTER TABLE r ADD c int DEFAULT 7",
        "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        "INSERT INTO r VALUES (11, 8)",
    )
    second = source.stage(**options, checkpoint=first)
    assert column(second, "c", "public.r").missing_value == held(source, "r") == "7"
    assert not warnings(caplog)
    source.execute(
        "ALTER TABLE r ADD d int",
        "CREATE TABLE r3(a int NOT NULL, c int DEFAULT 7)",
        "INSERT INTO r3 VALUES (21)",
        "ALTER TABLE r3 ADD d int DEFAULT 5",
        "ALTER TABLE r ATTACH PARTITION r3 FOR VALUES FROM (20) TO (30)",
        "INSERT INTO r VALUES (2)",
    )
    # A run that copies would copy r again, because r3 brought rows.
    third = source.stage(**options, checkpoint=checkpoint_with_shapes(second), initial_copy="never")
    assert column(third, "d", "public.r").missing_value is None
    (warning,) = warnings(caplog)
    assert "column d" in warning


def test_what_was_written_into_rows_between_their_copy_and_the_next_batch_is_warned_of(
    source: Source, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first batch knows the place of before its copy, so also of before the column."""
    source.execute("INSERT INTO t VALUES (1, 'x')")
    copied = stage.ServerRows.copy

    def copy_then_alter(self: Any, *args: Any) -> Any:
        point = copied(self, *args)
        source.execute("ALTER TABLE t ADD c float8 DEFAULT random()")
        source.execute("ALTER TABLE t ALTER c DROP DEFAULT")
        return point

    monkeypatch.setattr(stage.ServerRows, "copy", copy_then_alter)
    first = source.stage()
    monkeypatch.undo()
    assert [each.name for each in first.tables[0].versions[-1].columns] == ["a", "b"]
    source.execute("INSERT INTO t(a, c) VALUES (2, 9)")
    source.stage(checkpoint=checkpoint_with_shapes(first))
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("kind", "value", "staged"),
    [
        ("box", "(1,1),(0,0)", "(1,1),(0,0)"),
        ("int[]", "{1,NULL}", '["1", null]'),
        ("text", 'a"b,{}', 'a"b,{}'),
    ],
)
def test_a_kept_value_is_read_whatever_its_type(
    source: Source, kind: str, value: str, staged: str
) -> None:
    source.execute("INSERT INTO t VALUES (1, 'x')")
    first = source.stage()
    source.execute(f"ALTER TABLE t ADD c {kind} DEFAULT '{value}'", "INSERT INTO t VALUES (2)")
    second = source.stage(checkpoint=checkpoint_with_shapes(first))
    assert (column(second, "c").missing_value, held(source)) == (staged, value)
