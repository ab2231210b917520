"""Tables that are gone at the source, or have no columns: what is staged of them, and what is named."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.batch.passed_over import PassedOver, since_by_oid, to_text
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.errors import PgoutputError, TableRefused
from tests.capture.pipeline_support import checkpoint_with_shapes

if TYPE_CHECKING:
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

#: The table of GOES that gets a new column.
ADDS = "new_column_retyped"
COPIES = SchemaPolicy(on_unknown_default="copy", on_type_change="copy", on_unsure_column="copy")


def after(manifest: Manifest, before: Checkpoint | None = None) -> Checkpoint:
    """The checkpoint of a lake that has this batch and those before it."""
    found = checkpoint_with_shapes(manifest)
    if before is None:
        before = dataclasses.replace(found, tables={}, shapes={})
    known = [PassedOver(oid, "", since) for oid, since in before.passed_over.items()]
    texts = [to_text(known), to_text(manifest.passed_over)]
    return dataclasses.replace(
        found,
        tables={**(before.tables or {}), **(found.tables or {})},
        shapes={**before.shapes, **found.shapes},
        passed_over=since_by_oid(text for text in texts if text),
    )


def passed_over(manifest: Manifest) -> dict[str, int]:
    """By table: how many changes are passed over."""
    assert Manifest.from_json(manifest.to_json()) == manifest
    return {each.table_name: each.changes for each in manifest.passed_over if each.since_lsn}


def rows(source: Source, manifest: Manifest, name: str) -> list[Any]:
    """Column a of the changes that apply sees, in order; none where the batch does not have the table."""
    found = [each for each in manifest.tables if each.name == name]
    if not found:
        return []
    until = found[0].until_lsn
    changes = source.changes(manifest, name)
    kept = [e for e in changes if until is None or e["commit_lsn"] < Lsn.parse(until)]
    assert len(kept) == found[0].counts.changes
    return [each["a"] for each in kept]


#: What is done to a table g (a int PRIMARY KEY, d int) that has a row 1; what of column a is staged then, and
#: how many changes are passed over.
GOES: dict[str, tuple[tuple[str, ...], list[Any], int]] = {
    "plain": (("INSERT INTO {g} VALUES (2, 2)", "DROP TABLE {g}"), [2], 0),
    "retyped": (
        (
            "INSERT INTO {g} VALUES (2, 2)",
            "ALTER TABLE {g} ALTER d TYPE text",
            "INSERT INTO {g} VALUES (3, 'x')",
            "UPDATE {g} SET d = 'y'",
            "DROP TABLE {g}",
        ),
        [2],
        4,
    ),
    "retyped_twice": (
        (
            "ALTER TABLE {g} ALTER d TYPE bigint",
            "INSERT INTO {g} VALUES (2, 2)",
            "ALTER TABLE {g} ALTER d TYPE text",
            "INSERT INTO {g} VALUES (3, 'x')",
            "ALTER TABLE {g} ALTER d TYPE bigint USING 0",
            "INSERT INTO {g} VALUES (4, 4)",
            "DROP TABLE {g}",
        ),
        [2],
        2,
    ),
    "new_column_retyped": (
        (
            "ALTER TABLE {g} ADD e int",
            "INSERT INTO {g} VALUES (2, 2, 2)",
            "ALTER TABLE {g} ALTER e TYPE text",
            "INSERT INTO {g} VALUES (3, 3, 'x')",
            "DROP TABLE {g}",
        ),
        [2],
        1,
    ),
    "in_one_transaction": (
        (
            "INSERT INTO {g} VALUES (2, 2)",
            "BEGIN",
            "INSERT INTO {g} VALUES (3, 3)",
            "ALTER TABLE {g} ALTER d TYPE text",
            "INSERT INTO {g} VALUES (4, 'x')",
            "DROP TABLE {g}",
            "COMMIT",
        ),
        [2],
        2,
    ),
    "renamed": (
        (
            "ALTER TABLE {g} RENAME TO {g}_now",
            "INSERT INTO {g}_now VALUES (2, 2)",
            "DROP TABLE {g}_now",
        ),
        [2],
        0,
    ),
    "moved": (
        (
            "CREATE SCHEMA IF NOT EXISTS s",
            "ALTER TABLE {g} SET SCHEMA s",
            "INSERT INTO s.{g} VALUES (2, 2)",
            "DROP TABLE s.{g}",
        ),
        [2],
        0,
    ),
    "key": (
        (
            "INSERT INTO {g} VALUES (2, 2)",
            "ALTER TABLE {g} REPLICA IDENTITY FULL",
            "ALTER TABLE {g} DROP CONSTRAINT {g}_pkey, ADD PRIMARY KEY (d)",
            "UPDATE {g} SET a = 3 WHERE a = 2",
            "DROP TABLE {g}",
        ),
        [2, 3],
        0,
    ),
    "key_of_full": (
        (
            "ALTER TABLE {g} REPLICA IDENTITY FULL",
            "INSERT INTO {g} VALUES (2, 2)",
            "ALTER TABLE {g} DROP CONSTRAINT {g}_pkey, ADD PRIMARY KEY (d)",
            "INSERT INTO {g} VALUES (3, 3)",
            "ALTER PUBLICATION q DROP TABLE {g}",
        ),
        [],
        2,
    ),
    "unpublished": (
        (
            "INSERT INTO {g} VALUES (2, 2)",
            "ALTER TABLE {g} ALTER d TYPE text",
            "INSERT INTO {g} VALUES (3, 'x')",
            "ALTER PUBLICATION q DROP TABLE {g}",
        ),
        [2],
        1,
    ),
    "no_columns": (
        (
            "INSERT INTO {g} VALUES (2, 2)",
            "ALTER TABLE {g} DROP a, DROP d",
            "INSERT INTO {g} DEFAULT VALUES",
        ),
        [2],
        1,
    ),
}


@pytest.mark.parametrize(
    ("transport", "policy"),
    [("sql", SchemaPolicy()), ("walsender", SchemaPolicy()), ("sql", COPIES)],
)
def test_of_tables_that_are_gone_is_staged_what_can_be_followed(
    source: Source, transport: str, policy: SchemaPolicy
) -> None:
    source.execute(
        *(f"CREATE TABLE {g} (a int PRIMARY KEY, d int)" for g in GOES),
        *(f"INSERT INTO {g} VALUES (1, 1)" for g in GOES),
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN small AS int CHECK (VALUE < 100)",
        "CREATE TABLE typed (a int PRIMARY KEY, d mood[], e small[])",
        "INSERT INTO typed VALUES (1, '{ok}', '{1}')",
        f"CREATE PUBLICATION q FOR TABLE {', '.join(GOES)}, typed, t",
    )
    options = {"publication_names": ("q",), "transport": transport, "schema_policy": policy}
    first = after(source.stage(**options))
    source.execute(
        *(each.format(g=g) for g, (statements, _, _) in GOES.items() for each in statements),
        # Whether arrays of types that are gone can be followed is another question.
        "INSERT INTO typed VALUES (2, '{sad}', '{2}')",
        "DROP TABLE typed",
        "DROP TYPE mood",
        "DROP DOMAIN small",
        "INSERT INTO t VALUES (1, 'x')",
    )
    manifest = source.stage(checkpoint=first, **options)
    assert rows(source, manifest, "public.t") == [1]
    wanted = {f"public.{g}": count for g, (_, _, count) in GOES.items() if count}
    expected = {g: staged for g, (_, staged, _) in GOES.items()}
    if policy is COPIES:
        # What older rows show in the new column is not known, and only a copy would do.
        wanted[f"public.{ADDS}"], expected[ADDS] = 2, []
    for g, staged in expected.items():
        assert rows(source, manifest, f"public.{g}") == staged, g
    found = passed_over(manifest)
    found.pop("public.typed", None)
    assert found == wanted
    # What a run finds that follows one which was killed is the same.
    assert source.stage(checkpoint=first, **options).batch_id == manifest.batch_id


def test_what_follows_in_later_batches_is_passed_over_until_the_table_is_copied(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the columns are again what they were before the change that could not be followed."""
    source.execute(
        "CREATE TABLE g (a int PRIMARY KEY, d int)",
        "INSERT INTO g VALUES (1, 1)",
        "CREATE PUBLICATION q FOR TABLE g, t",
    )
    options: dict[str, Any] = {"publication_names": ("q",)}
    lake = after(source.stage(**options))
    source.execute(
        "INSERT INTO t VALUES (1, 'x')",
        "ALTER TABLE g ALTER d TYPE text",
        "INSERT INTO g VALUES (2, 'x')",
        "INSERT INTO t VALUES (2, 'x')",
        "ALTER TABLE g ALTER d TYPE int USING 0",
        "INSERT INTO g VALUES (3, 3)",
        "INSERT INTO t VALUES (3, 'x')",
        "INSERT INTO g VALUES (4, 4)",
        "ALTER PUBLICATION q DROP TABLE g",
    )
    found, seen = [], []
    for _batch in range(6):
        manifest = source.stage(checkpoint=lake, max_changes=1, **options)
        lake = after(manifest, lake)
        found.append(passed_over(manifest))
        seen += rows(source, manifest, "public.t")
        assert rows(source, manifest, "public.g") == []
    assert seen == [1, 2, 3]
    assert [each for each in found if each] == [{"public.g": 1}] * 3
    assert len(lake.passed_over) == 1
    (since,) = lake.passed_over.values()
    said = [each.getMessage() for each in caplog.records if "passed over" in each.getMessage()]
    assert len(said) == 3
    assert all(each.startswith(f"public.g: its changes from LSN {since} on") for each in said)

    # Published again and not copied it stays so; a copy ends it.
    source.execute("ALTER PUBLICATION q ADD TABLE g", "INSERT INTO g VALUES (5, 5)")
    manifest = source.stage(checkpoint=lake, initial_copy="never", **options)
    assert passed_over(manifest) == {"public.g": 1}
    assert "copy_tables=['public.g']" in caplog.text
    lake = after(manifest, lake)
    source.execute("INSERT INTO g VALUES (6, 6)")
    manifest = source.stage(checkpoint=lake, **options)
    assert len(source.copied(manifest, "public.g")) == 6
    assert passed_over(manifest) == {}
    lake = after(manifest, lake)
    assert lake.passed_over == {}
    source.execute("INSERT INTO g VALUES (7, 7)")
    assert rows(source, source.stage(checkpoint=lake, **options), "public.g") == [7]


def test_a_change_that_is_refused_when_it_is_read_is_passed_over_with_its_transaction(
    source: Source,
) -> None:
    """A value that does not fit, and a large value that the server left out."""
    source.execute(
        "CREATE TABLE v (a int PRIMARY KEY, d numeric(5, 2))",
        "CREATE TABLE f (a int PRIMARY KEY, b int, c text)",
        "ALTER TABLE f ALTER c SET STORAGE EXTERNAL",
        "INSERT INTO f VALUES (1, 1, repeat('x', 9000))",
        "CREATE PUBLICATION q FOR TABLE v, t, f WHERE (a > 5)",
    )
    options: dict[str, Any] = {
        "publication_names": ("q",),
        "value_policy": {"decimal": "fail"},
    }
    lake = after(source.stage(**options))
    source.execute(
        "INSERT INTO v VALUES (1, 1)",
        "BEGIN",
        "INSERT INTO v VALUES (2, 1)",
        "INSERT INTO v VALUES (3, 'NaN')",
        "COMMIT",
        "INSERT INTO v VALUES (4, 4)",
        "UPDATE f SET a = 7",
        "INSERT INTO f VALUES (8, 9, '')",
        "INSERT INTO t VALUES (1, 'x')",
    )
    with pytest.raises(PgoutputError):
        source.stage(checkpoint=lake, **options)
    source.execute("DROP TABLE v, f")
    manifest = source.stage(checkpoint=lake, **options)
    assert rows(source, manifest, "public.t") == [1]
    assert rows(source, manifest, "public.v") == [1]
    assert passed_over(manifest)["public.v"] == 3
    assert passed_over(manifest)["public.f"] == 2


@pytest.mark.parametrize("is_root", [True, False])
def test_partitions_whose_table_is_dropped_are_gone(source: Source, is_root: bool) -> None:
    source.execute(
        "CREATE TABLE r (a int, d int, PRIMARY KEY (a)) PARTITION BY RANGE (a)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        f"CREATE PUBLICATION q FOR TABLE r, t WITH (publish_via_partition_root = {is_root})",
        "INSERT INTO r VALUES (1, 1), (11, 1)",
    )
    lake = after(source.stage(publication_names=("q",)))
    source.execute(
        "INSERT INTO r VALUES (2, 2), (12, 2)",
        "ALTER TABLE r ALTER d TYPE text",
        "INSERT INTO r VALUES (3, 'x'), (13, 'x')",
        "DROP TABLE r",
        "INSERT INTO t VALUES (1, 'x')",
    )
    manifest = source.stage(checkpoint=lake, publication_names=("q",))
    assert rows(source, manifest, "public.t") == [1]
    staged = {each.name: rows(source, manifest, each.name) for each in manifest.tables}
    if is_root:
        assert staged["public.r"] == [2, 12]
        assert passed_over(manifest) == {"public.r": 2}
    else:
        assert (staged["public.r1"], staged["public.r2"]) == ([2], [12])
        assert passed_over(manifest) == {"public.r1": 1, "public.r2": 1}


@pytest.mark.parametrize("transport", ["sql", "walsender"])
def test_a_table_without_columns_is_left_out_and_named_until_it_has_one(
    source: Source, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At the first run and later; one whose columns are all generated, and so not published, too."""
    source.execute(
        "CREATE TABLE z ()",
        "INSERT INTO z DEFAULT VALUES",
        "CREATE TABLE r (a int) PARTITION BY RANGE (a)",
        "CREATE TABLE gen (a int GENERATED ALWAYS AS (1) STORED)",
        "CREATE PUBLICATION q FOR ALL TABLES WITH (publish_via_partition_root = true)",
        "INSERT INTO t VALUES (1, 'x')",
    )
    options: dict[str, Any] = {"publication_names": ("q",), "transport": transport}

    def said() -> list[str]:
        found = [e.getMessage() for e in caplog.records if "single column" in e.getMessage()]
        caplog.clear()
        return found

    manifest = source.stage(**options)
    assert sorted(each.name for each in manifest.tables) == ["public.r", "public.t"]
    (one,) = said()
    assert "public.gen, public.z" in one
    lake = after(manifest)
    source.execute(
        "INSERT INTO z DEFAULT VALUES",
        "INSERT INTO gen DEFAULT VALUES",
        "CREATE TABLE later ()",
        "INSERT INTO later DEFAULT VALUES",
        "INSERT INTO t VALUES (2, 'x')",
    )
    manifest = source.stage(checkpoint=lake, **options)
    assert [each.name for each in manifest.tables] == ["public.t"]
    assert passed_over(manifest) == {}
    (one,) = said()
    assert "public.gen, public.later, public.z" in one
    lake = after(manifest, lake)

    # It joins as a table does that is published now.
    source.execute(
        "INSERT INTO z DEFAULT VALUES", "ALTER TABLE z ADD a int", "INSERT INTO z VALUES (7)"
    )
    with pytest.raises(PgoutputError, match="lake does not have it"):
        source.stage(checkpoint=lake, on_new_table="fail", **options)
    manifest = source.stage(checkpoint=lake, **options)
    copied = [each["a"] for each in source.copied(manifest, "public.z")]
    assert copied == [None, None, None, 7]
    lake = after(manifest, lake)

    # And leaves again when it has none: what was sent without columns is passed over.
    source.execute(
        "INSERT INTO z VALUES (8)",
        "ALTER TABLE z DROP a",
        "INSERT INTO z DEFAULT VALUES",
    )
    manifest = source.stage(checkpoint=lake, **options)
    assert rows(source, manifest, "public.z") == [8]
    assert passed_over(manifest) == {"public.z": 1}
    lake = after(manifest, lake)
    source.execute("INSERT INTO z DEFAULT VALUES")
    manifest = source.stage(checkpoint=lake, **options)
    lake = after(manifest, lake)
    assert passed_over(manifest) == {"public.z": 1}
    source.execute("ALTER TABLE z ADD b int DEFAULT 3")
    manifest = source.stage(checkpoint=lake, **options)
    assert len(source.copied(manifest, "public.z")) == 7
    lake = after(manifest, lake)

    # All columns go and others come between two runs: only a copy tells which rows there are.
    source.execute(
        "ALTER TABLE z DROP b", "INSERT INTO z DEFAULT VALUES", "ALTER TABLE z ADD c int DEFAULT 4"
    )
    with pytest.raises(TableRefused, match=r"copy_tables=\['public.z'\]"):
        source.stage(checkpoint=lake, **options)
    manifest = source.stage(checkpoint=lake, copy_tables=("public.z",), **options)
    assert [each["c"] for each in source.copied(manifest, "public.z")] == [4] * 8


AGAIN = (
    "DROP TABLE g",
    "CREATE TABLE g (a int PRIMARY KEY, d int)",
    "ALTER PUBLICATION q ADD TABLE g",
)


@pytest.mark.parametrize("is_known", [True, False])
def test_of_tables_with_one_name_that_are_gone_one_is_staged(
    source: Source, is_known: bool
) -> None:
    """The one that the lake knows, or the newest: two of one name would have one target."""
    source.execute(
        "CREATE TABLE g (a int PRIMARY KEY, d int)",
        f"CREATE PUBLICATION q FOR TABLE t{', g' if is_known else ''}",
    )
    options: dict[str, Any] = {"publication_names": ("q",)}
    lake = after(source.stage(**options))
    if not is_known:
        source.execute("ALTER PUBLICATION q ADD TABLE g")
    source.execute(
        "INSERT INTO g VALUES (1, 1)",
        *AGAIN,
        "INSERT INTO g VALUES (2, 2)",
        *AGAIN,
        "INSERT INTO g VALUES (3, 3)",
        "DROP TABLE g",
        "INSERT INTO t VALUES (1, 'x')",
    )
    manifest = source.stage(checkpoint=lake, **options)
    assert rows(source, manifest, "public.g") == ([1] if is_known else [3])
    assert [each.changes for each in manifest.passed_over] == [1, 1]
    assert rows(source, manifest, "public.t") == [1]


def test_a_table_that_took_a_name_and_went_is_not_staged_for_the_former_one(
    source: Source,
) -> None:
    """In a batch of its own, where the one that the lake knows has no change."""
    source.execute(
        "CREATE TABLE g (a int PRIMARY KEY, d int)", "CREATE PUBLICATION q FOR TABLE g, t"
    )
    options: dict[str, Any] = {"publication_names": ("q",)}
    lake = after(source.stage(**options))
    source.execute(
        *AGAIN, "INSERT INTO g VALUES (2, 2)", "DROP TABLE g", "INSERT INTO t VALUES (1, 'x')"
    )
    manifest = source.stage(checkpoint=lake, **options)
    assert rows(source, manifest, "public.g") == []
    assert passed_over(manifest) == {"public.g": 1}
    assert rows(source, manifest, "public.t") == [1]
