"""ALTER TABLE while a pipeline runs, from a real server to Iceberg tables.

Each test has a table and a pipeline of its own and takes a few batches. The rows are read with Spark and with
pyiceberg, which have to agree; what became of the fields is read with pyiceberg.
"""

from __future__ import annotations

import json
import logging
import math
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch.checkpoint import LATER_COLUMNS
from airflow_provider_pgoutput.batch.shape import RETYPED, UNPUBLISHED
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.errors import TableRefused, ValueRefused
from tests.conformance.compare import quoted
from tests.conformance.one_table import as_before, begun
from tests.conformance.pipeline import CATALOG
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from tests.conformance.one_table import Lake
    from tests.conformance.pipeline import Pipeline


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The test's warnings. Airflow, once it is imported, lets everyone else's INFO through as well."""
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_a_renamed_column_keeps_its_field(lake: Lake) -> None:
    """Swaps, a new column under the old name, the key: all without a row event, then in one transaction."""
    fields = lake.fields()
    manifest = lake.run("ALTER TABLE t RENAME a TO x", "INSERT INTO t VALUES (4, 40, 400)")
    assert lake.said(manifest) == ["column a was renamed to x"]
    assert lake.fields() == {"id": fields["id"], "x": fields["a"], "b": fields["b"]}
    assert lake.agrees()
    manifest = lake.run(
        "BEGIN; UPDATE t SET x = 11 WHERE id = 1; ALTER TABLE t RENAME x TO y;"
        " ALTER TABLE t RENAME b TO x; ALTER TABLE t RENAME y TO b; ALTER TABLE t RENAME id TO key;"
        " UPDATE t SET x = 22 WHERE key = 2; DELETE FROM t WHERE key = 3; COMMIT"
    )
    assert lake.fields() == {"key": fields["id"], "b": fields["a"], "x": fields["b"]}
    assert sorted(lake.said(manifest)) == [
        "column b was renamed to x",
        "column id was renamed to key",
        "column x was renamed to b",
    ]
    assert lake.agrees()
    lake.run(
        "ALTER TABLE t RENAME b TO c",
        "INSERT INTO t VALUES (5, 50, 500)",
        "ALTER TABLE t ADD b int DEFAULT 7",
        "UPDATE t SET c = 51 WHERE key = 5",
    )
    assert lake.fields()["c"] == fields["a"]
    assert lake.agrees()
    assert lake.table().schema().identifier_field_names() == {"key"}
    # The key takes the name that another column leaves.
    lake.run(
        "ALTER TABLE t RENAME c TO was_c",
        "ALTER TABLE t RENAME key TO c",
        "UPDATE t SET was_c = 52 WHERE c = 5",
    )
    assert lake.agrees()
    assert lake.table().schema().identifier_field_names() == {"c"}


def test_names_are_the_columns_own_whatever_is_in_them(lake: Lake) -> None:
    """Names that differ only in case, that need quoting, that change places; and all of it in one batch."""
    fields = lake.fields()
    lake.run(
        'ALTER TABLE t ADD "A" int DEFAULT 7, ADD "sel""ect` .\'日本" text',
        'UPDATE t SET "A" = 8, "sel""ect` .\'日本" = \'x\' WHERE id = 1',
    )
    assert lake.agrees()
    manifest = lake.run(
        "BEGIN; UPDATE t SET a = 11 WHERE id = 2; ALTER TABLE t RENAME a TO spare;"
        ' ALTER TABLE t RENAME "A" TO a; ALTER TABLE t RENAME spare TO "A";'
        ' UPDATE t SET "A" = 12 WHERE id = 3; ALTER TABLE t RENAME "sel""ect` .\'日本" TO "B";'
        " INSERT INTO t VALUES (4, 40, 400, 44, 'y'); COMMIT"
    )
    assert len(lake.said(manifest)) == 3
    assert lake.agrees()
    assert (lake.fields()["A"], lake.fields()["b"]) == (fields["a"], fields["b"])


def test_a_column_dropped_and_added_again_is_new(lake: Lake) -> None:
    fields = lake.fields()
    manifest = lake.run(
        "UPDATE t SET b = 1 WHERE id = 1",
        "ALTER TABLE t DROP b",
        "UPDATE t SET a = 11 WHERE id = 1",
        "ALTER TABLE t ADD b text",
        "INSERT INTO t VALUES (4, 40, 'new')",
    )
    assert lake.said(manifest) == ["column b was dropped", "column b was added, text"]
    assert lake.agrees()
    assert lake.fields()["b__old_3"] == fields["b"]
    # The values of rows that did not change are where they were.
    assert [row for row in lake.rows("id", "b__old_3") if row[0] in {2, 3}] == [(2, 200), (3, 300)]
    # With the same type, and no row that tells before from after: the row may be of either.
    again = "ALTER TABLE t DROP b, ADD b text"
    lake.execute(again, "INSERT INTO t VALUES (5, 50, 'five')")
    with pytest.raises(TableRefused, match="took its place") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", "b")
    lake.run(schema_policy=SchemaPolicy(on_unsure_column="ignore"))
    assert lake.agrees()
    assert [row for row in lake.rows("id", "b__old_4") if row[0] == 4] == [(4, "new")]
    # Here the row is the older column's, so only a copy is right.
    policy = SchemaPolicy(on_unsure_column="copy")
    manifest = lake.run("UPDATE t SET b = 'x' WHERE id = 4", again, schema_policy=policy)
    assert manifest.tables[0].copy_lsn is not None
    assert lake.agrees()
    assert lake.run("UPDATE t SET b = 'y' WHERE id = 5").changes == 1
    assert lake.agrees()


def test_what_was_dropped_is_dropped_on_request(lake: Lake) -> None:
    lake.pipeline.plan_options["drop_columns"] = True
    lake.run(
        "UPDATE t SET b = 1 WHERE id = 1", "ALTER TABLE t DROP b", "UPDATE t SET a = 2 WHERE id = 1"
    )
    assert set(lake.fields()) == {"id", "a"}
    assert lake.agrees()


def test_a_constraint_that_comes_and_goes_changes_no_field(lake: Lake) -> None:
    fields = lake.fields()
    lake.run("ALTER TABLE t ALTER b SET NOT NULL", "UPDATE t SET a = 11 WHERE id = 1")
    manifest = lake.run(
        "UPDATE t SET a = 12 WHERE id = 1",
        "ALTER TABLE t ALTER b DROP NOT NULL",
        "UPDATE t SET b = NULL WHERE id = 1",
    )
    assert not lake.said(manifest)
    assert lake.fields() == fields
    assert lake.agrees()


def test_an_added_generated_column_comes_where_it_is_published(lake: Lake) -> None:
    """From version 18 on; before, it is no column of the lake."""
    version = int(lake.execute("SELECT current_setting('server_version_num')")[0][0]) // 10_000
    if version >= 18:
        lake.execute("ALTER PUBLICATION p SET (publish_generated_columns = stored)")
    lake.run(
        "UPDATE t SET a = 11 WHERE id = 1",
        "ALTER TABLE t ADD g int GENERATED ALWAYS AS (a * 2) STORED",
        "UPDATE t SET a = 12 WHERE id = 1",
        "INSERT INTO t(id, a) VALUES (4, 40)",
    )
    assert ("g" in lake.fields()) == (version >= 18)
    assert lake.agrees("id", "a", "b")
    if version >= 18:
        # What the server computed for the other rows it tells nobody, see docs/explanation/schema_changes.md.
        assert lake.rows("id", "g")[0] == (1, 24)
        assert lake.rows("id", "g")[3] == (4, 80)
        lake.run(copy_tables=("public.t",))
        assert lake.agrees()


def test_types_that_iceberg_can_widen_are_widened(lake: Lake) -> None:
    lake.run("ALTER TABLE t ADD n numeric(6, 2), ADD r real", "UPDATE t SET n = 1.5, r = 2.5")
    fields = lake.fields()
    manifest = lake.run(
        "ALTER TABLE t ALTER a TYPE bigint, ALTER n TYPE numeric(20, 2), ALTER r TYPE float8",
        "INSERT INTO t VALUES (4, 5000000000, 1, 123456789012.25, 1e300)",
    )
    assert lake.said(manifest) == [
        "column a changed from integer to bigint",
        "column n changed from numeric(6,2) to numeric(20,2)",
        "column r changed from real to double precision",
    ]
    assert lake.fields() == fields
    assert lake.agrees()


def test_values_that_a_change_of_type_converted_are_warned_of_or_copied(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """Iceberg has nothing to follow, and no row event tells of the other values."""
    lake.run(
        "ALTER TABLE t ADD s timestamp, ADD u timestamp",
        "UPDATE t SET s = '2026-01-01 00:00:00.6', u = s",
    )
    rounded = "ALTER TABLE t ALTER {} TYPE timestamp(0)"
    with caplog.at_level(logging.WARNING, "airflow_provider_pgoutput"):
        lake.run(rounded.format("s"), "INSERT INTO t(id) VALUES (4)")
    (warning,) = warnings_of(caplog)
    assert all(each in warning for each in ("public.t", "column s", "copy_tables"))
    assert not lake.differs("id", "a", "b", "u")
    assert lake.differs("s")
    policy = SchemaPolicy(on_type_change="copy")
    lake.run(rounded.format("u"), "INSERT INTO t(id) VALUES (5)", schema_policy=policy)
    assert lake.agrees()


def test_a_type_that_cannot_be_followed_is_refused_copied_or_made_a_new_column(lake: Lake) -> None:
    fields = lake.fields()
    lake.execute("UPDATE t SET a = 11 WHERE id = 1", "ALTER TABLE t ALTER b TYPE text")
    lake.execute("INSERT INTO t VALUES (4, 40, 'four')")
    with pytest.raises(TableRefused, match="one of three") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", "b")
    assert lake.fields() == fields
    # The same batch, taken as a new column: the old values stay beside it.
    lake.pipeline.plan_options["keep_retyped_columns"] = True
    lake.run()
    assert lake.fields()["b__old_3"] == fields["b"]
    assert lake.rows("id", "a", "b", "b__old_3") == [
        *((1, 11, None, 100), (2, 20, None, 200), (3, 30, None, 300), (4, 40, "four", None)),
    ]
    # Copied again, although a batch without the copy was staged already.
    del lake.pipeline.plan_options["keep_retyped_columns"]
    lake.execute("ALTER TABLE t ALTER a TYPE text USING 'a' || a", "DELETE FROM t WHERE id = 2")
    with pytest.raises(TableRefused, match="one of three"):
        lake.run()
    manifest = lake.run(schema_policy=SchemaPolicy(on_type_change="copy"))
    assert manifest.tables[0].copy_lsn is not None
    assert lake.agrees()
    assert set(lake.fields()) == {"id", "a", "b", "b__old_3"}
    lake.run("UPDATE t SET b = 'x'")
    assert lake.agrees()


def test_an_unchanged_large_value_of_a_converted_column_is_never_null(lake: Lake) -> None:
    """It is in the column of the type of before only, and PostgreSQL does not send it again."""
    lake.run(
        "ALTER TABLE t ADD c text",
        # Too large to stay in the row, also compressed.
        "UPDATE t SET c = (SELECT string_agg(md5(g::text), '') FROM generate_series(1, 300) g)"
        " WHERE id < 3",
    )
    lake.pipeline.plan_options["keep_retyped_columns"] = True
    lake.execute(
        "UPDATE t SET a = 10 WHERE id = 3",
        "ALTER TABLE t ALTER c TYPE bytea USING convert_to(c, 'UTF8')",
        "UPDATE t SET a = 11 WHERE id = 1",
    )
    with pytest.raises(TableRefused, match="unchanged value") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", "c")
    lake.run("INSERT INTO t VALUES (4, 4, 4, 'x')", copy_tables=("public.t",))
    assert lake.agrees()
    lake.run("UPDATE t SET a = 12 WHERE id = 2")
    assert lake.agrees()


def test_columns_that_are_no_longer_sent_keep_what_the_lake_has(lake: Lake) -> None:
    """A column list that is narrowed between two rows of a batch; a default is nobody's value then."""
    lake.run("ALTER TABLE t ADD c int DEFAULT 7", "UPDATE t SET c = 8 WHERE id = 1")
    ((publication,),) = lake.execute("SELECT pubname FROM pg_publication WHERE NOT puballtables")
    lake.run(
        "UPDATE t SET c = 9 WHERE id = 2",
        f"ALTER PUBLICATION {publication} SET TABLE t (id, a, b)",
        "UPDATE t SET a = 2 WHERE id < 3",
        "INSERT INTO t VALUES (4, 40, 400, 10)",
        "UPDATE t SET a = 2 WHERE id = 4",
        "INSERT INTO t VALUES (5, 50, 500, 10)",
        "UPDATE t SET id = 1 - id WHERE id < 2",
        "UPDATE t SET id = 1 - id WHERE id < 2",
        # It came back to the publication, so it would be copied.
        initial_copy="never",
    )
    assert lake.agrees("id", "a", "b")
    assert lake.rows("id", "c") == [(1, None), (2, 9), (3, 7), (4, None), (5, None)]
    # A row has nothing of the one that had its key before.
    again = "DELETE FROM t WHERE id = {0}", "INSERT INTO t VALUES ({0}, 30, 300, 11)"
    lake.run("UPDATE t SET a = 3 WHERE id < 4", *(each.format(3) for each in again))
    assert lake.agrees("id", "a", "b")
    assert lake.rows("id", "c") == [(1, None), (2, 9), (3, None), (4, None), (5, None)]


@pytest.mark.parametrize("format_version", slow_but_each(2, [2, 3]))
def test_what_older_rows_show_is_null_a_default_or_copied(
    pipeline: Pipeline, format_version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario C55: after a rewrite, and for a default that is no constant, nobody tells."""
    pipeline.plan_options["format_version"] = format_version
    lake = begun(pipeline)
    rewritten = ("ALTER TABLE t ADD {0} int NOT NULL DEFAULT {1}", "VACUUM FULL t")
    add = [each.format("c", "6 + 1") for each in rewritten]
    with caplog.at_level(logging.WARNING, "airflow_provider_pgoutput"):
        lake.run(*add, "INSERT INTO t(id) VALUES (4)")
    (warning,) = [each for each in warnings_of(caplog) if "older rows" in each]
    assert "public.t" in warning
    assert "column c" in warning
    assert "copy_tables" in warning
    assert lake.rows("id", "c") == [(1, None), (2, None), (3, None), (4, 7)]
    policy, files = SchemaPolicy(on_unknown_default="default"), lake.data_files()
    add = [each.format("d", "6 + 2") for each in rewritten]
    lake.run(*add, "INSERT INTO t(id) VALUES (5)", schema_policy=policy)
    assert lake.rows("id", "d") == [(1, 8), (2, 8), (3, 8), (4, 8), (5, 8)]
    if format_version == 3:
        # The table says it of the files that there are.
        assert lake.table().schema().find_field("d").initial_default == 8
        assert files < lake.data_files()
    # A sequence is not moved by looking at it.
    caplog.clear()
    lake.execute("CREATE SEQUENCE s", "ALTER TABLE t ADD e bigint DEFAULT nextval('s')")
    with caplog.at_level(logging.WARNING, "airflow_provider_pgoutput"):
        lake.run("INSERT INTO t(id) VALUES (6)", schema_policy=policy)
    assert any("column e" in each for each in warnings_of(caplog))
    assert lake.execute("SELECT last_value FROM s") == [(6,)]
    lake.execute("ALTER TABLE t ADD f float8 DEFAULT random()", "INSERT INTO t(id) VALUES (7)")
    manifest = lake.run(schema_policy=SchemaPolicy(on_unknown_default="copy"))
    assert manifest.tables[0].copy_lsn is not None
    assert lake.agrees()


def test_defaults_that_iceberg_cannot_hold_are_written_into_the_rows(lake: Lake) -> None:
    """Its metadata is JSON: an infinity there would make the table unreadable for everybody."""
    lake.run(
        "ALTER TABLE t ADD c float8 DEFAULT 'Infinity', ADD d real DEFAULT '-Infinity'",
        "ALTER TABLE t ADD e real DEFAULT 'NaN', ADD f float8 DEFAULT 1.5",
        "UPDATE t SET a = 5 WHERE id = 1",
    )
    assert lake.agrees("id", "a", "b", "c", "d", "f")
    assert all(math.isnan(value) for (value,) in lake.rows("e"))
    lake.run("UPDATE t SET c = 0, e = 0 WHERE id = 2")
    assert lake.agrees("id", "a", "b", "c", "d", "f")


def test_the_default_of_a_new_column_is_not_taken_for_the_former_ones_of_its_name(
    lake: Lake,
) -> None:
    """What is read has the columns of then, and the catalog those of now."""
    lake.run("ALTER TABLE t ADD c numeric(12,2)", "UPDATE t SET c = 4 WHERE id = 1")
    lake.run(
        "UPDATE t SET c = 5 WHERE id = 1",
        "ALTER TABLE t RENAME c TO former",
        "ALTER TABLE t ADD c text DEFAULT 'n/a'",
        "INSERT INTO t(id) VALUES (4)",
    )
    assert lake.agrees()


def test_a_column_that_the_table_is_sorted_by_is_not_dropped(lake: Lake) -> None:
    name = quoted(CATALOG, lake.pipeline.namespace, "t")
    lake.pipeline.spark.sql(f"ALTER TABLE {name} WRITE ORDERED BY b")
    lake.execute("ALTER TABLE t ALTER b TYPE text USING b::text")
    lake.run("UPDATE t SET a = 5 WHERE id = 1", copy_tables=("public.t",))
    found = lake.rows()
    assert len(found) == len(lake.source_rows("id"))
    assert lake.agrees("id", "a")
    lake.run("INSERT INTO t VALUES (4, 4, 'four')")
    assert lake.agrees("id", "a")


def test_images_of_before_a_rewrite_and_after_it_are_not_compared(lake: Lake) -> None:
    """With the whole old row to compare: what goes after its table was rewritten looks like another row."""
    lake.run("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET a = 1 WHERE id = 3")
    with psycopg.connect(lake.pipeline.conninfo) as session:
        session.execute("UPDATE t SET a = 2 WHERE id < 3")
        session.execute("INSERT INTO t VALUES (4, 40, 400), (5, 50, 500)")
        session.execute("ALTER TABLE t ADD c float8 DEFAULT random()")
        session.execute("DELETE FROM t WHERE id IN (1, 4)")
        session.execute("UPDATE t SET a = 3 WHERE id IN (2, 5)")
        session.execute("INSERT INTO t VALUES (1, 7, 7, 7)")
        session.execute("ALTER TABLE t ADD d float8 DEFAULT random()")
        session.execute("UPDATE t SET id = 6 WHERE id = 1")
        session.execute("DELETE FROM t WHERE id = 5")
    lake.run()
    assert lake.agrees("id", "a", "b")
    assert lake.rows("id", "c") != lake.source_rows("id", "c"), "nobody told what older rows show"
    # An update without a change tells it.
    lake.run("UPDATE t SET a = a")
    assert lake.agrees()


def test_keys_swap_while_the_columns_change(lake: Lake) -> None:
    """A rename does not wait until keys are checked, and a key of the user's own is never checked."""
    lake.execute("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t REPLICA IDENTITY FULL")
    lake.execute("ALTER TABLE t ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED")
    lake.run("UPDATE t SET b = b + 1")
    with psycopg.connect(lake.pipeline.conninfo) as session:
        session.execute("UPDATE t SET id = 2 WHERE a = 10")
        session.execute("ALTER TABLE t RENAME b TO c")
        session.execute("UPDATE t SET id = 1 WHERE a = 20")
    lake.run()
    assert lake.agrees()
    lake.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    with psycopg.connect(lake.pipeline.conninfo) as session:
        session.execute("UPDATE t SET id = 3 WHERE a = 20")
        session.execute("ALTER TABLE t ADD d int DEFAULT 7")
        session.execute("UPDATE t SET id = 1 WHERE a = 30")
    lake.run(key_columns={"public.t": ("id",)})
    assert lake.agrees()
    lake.execute("ALTER TABLE t ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED")
    lake.run("UPDATE t SET a = 0", key_columns={"public.t": ("id",)})
    with psycopg.connect(lake.pipeline.conninfo) as session:
        session.execute("UPDATE t SET d = 70 + id, c = 0")
        session.execute("ALTER TABLE t ALTER d TYPE bigint")
        session.execute("UPDATE t SET id = id + 1")
    lake.run(key_columns={"public.t": ("id",)})
    assert lake.agrees()


def test_a_key_that_is_renamed_under_full_finds_the_rows_of_before(lake: Lake) -> None:
    """Their images alone would not: what older rows show in a column is another thing here."""
    lake.run(
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE t ADD c float8 DEFAULT random()",
        "INSERT INTO t VALUES (4, 40, 400, 4)",
    )
    assert lake.rows("id", "c") == [(1, None), (2, None), (3, None), (4, 4.0)]
    lake.run(
        "UPDATE t SET a = 11 WHERE id = 1",
        "DELETE FROM t WHERE id = 3",
        "ALTER TABLE t RENAME id TO k",
        "UPDATE t SET a = 22 WHERE k = 2",
    )
    assert lake.agrees()
    # The key takes the name that another column leaves.
    lake.run(
        "UPDATE t SET b = 1 WHERE k = 1",
        "ALTER TABLE t RENAME k TO spare",
        "ALTER TABLE t RENAME a TO k",
        "ALTER TABLE t RENAME spare TO a",
        "UPDATE t SET b = 2 WHERE a = 2",
        "INSERT INTO t(a, k) VALUES (5, 11)",
    )
    assert lake.agrees()


def test_columns_that_users_added_keep_their_values(lake: Lake) -> None:
    name = quoted(CATALOG, lake.pipeline.namespace, "t")
    spark = lake.pipeline.spark
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
    spark.sql(f"UPDATE {name} SET note = concat('n', id)")
    lake.run(
        "UPDATE t SET a = 0 WHERE id < 3", "DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (4)"
    )
    assert lake.agrees()
    assert lake.rows("id", "note") == [(1, "n1"), (2, "n2"), (4, None)]
    # A rename does not take such a column over.
    with pytest.raises(TableRefused, match="added to the target"):
        lake.run("ALTER TABLE t RENAME b TO note", "UPDATE t SET note = 5 WHERE id = 1")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN note TO remark")
    lake.run()
    assert lake.agrees()
    assert lake.rows("id", "remark") == [(1, "n1"), (2, "n2"), (4, None)]
    # Nor does a copy lose it.
    lake.run("INSERT INTO t VALUES (5)", "DELETE FROM t WHERE id = 2", copy_tables=("public.t",))
    assert lake.agrees()
    assert lake.rows("id", "remark") == [(1, "n1"), (4, None), (5, None)]


def test_a_lake_of_before_columns_had_numbers_goes_on(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    """The checkpoint table, the target and a sealed batch as the version before made them."""
    fields = lake.fields()
    with lake.table("pgoutput_checkpoint").update_schema() as change:
        for name in LATER_COLUMNS:
            change.delete_column(name)
    lake.forget_numbers()
    lake.execute("UPDATE t SET a = 11 WHERE id = 1", "INSERT INTO t VALUES (4, 40, 400)")
    lake.pipeline.apply(as_before(lake.pipeline.stage(), lake.pipeline.staging))
    assert lake.agrees()
    assert "pgoutput.columns" not in lake.table().properties
    # The batch shows the column under both names, so it is known to be one.
    lake.run(
        "UPDATE t SET a = 12 WHERE id = 2",
        "ALTER TABLE t RENAME a TO x",
        "UPDATE t SET x = 13 WHERE id = 3",
    )
    assert lake.fields() == {"id": fields["id"], "x": fields["a"], "b": fields["b"]}
    assert lake.agrees()
    # Before the first batch with numbers nothing tells a rename from a new column: that is said.
    lake.forget_numbers()
    with caplog.at_level(logging.WARNING, "airflow_provider_pgoutput"):
        lake.run("ALTER TABLE t RENAME x TO y", "UPDATE t SET y = 14 WHERE id = 3")
    (warning,) = [each for each in warnings_of(caplog) if "renamed" in each]
    assert "public.t" in warning
    assert "copy_tables" in warning
    lake.run("UPDATE t SET b = 0 WHERE id = 1", copy_tables=("public.t",))
    assert lake.agrees()


def test_an_infinite_default_of_an_added_column_is_null_or_refused(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    lake.execute(
        "ALTER TABLE t ADD c timestamptz DEFAULT 'infinity', ADD d date DEFAULT '0044-03-15 BC'",
        "INSERT INTO t VALUES (4, 40, 400, '2024-01-01', '2024-01-01')",
    )
    with pytest.raises(ValueRefused, match="older rows show"):
        lake.run(value_policy={"default": "fail"})
    lake.run()
    assert lake.agrees("id", "a", "b")
    assert [row[1:] == (None, None) for row in lake.rows("id", "c", "d")] == [True] * 3 + [False]
    said = [each for each in warnings_of(caplog) if "older rows show" in each]
    assert len(said) == len(set(said)) == 2
    lake.run(copy_tables=("public.t",))
    assert lake.agrees("id", "a", "b")


def test_every_change_is_in_the_log_in_xcom_and_a_row_of_the_history(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "airflow_provider_pgoutput")
    manifest = lake.run(
        "ALTER TABLE t ADD c date",
        "INSERT INTO t VALUES (4, 4, 4, 'infinity')",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)",
        "UPDATE t SET b = 0",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET b = 2",
    )
    lake.run("UPDATE t SET b = 1")
    rows = lake.table("pgoutput_checkpoint").scan().to_arrow().to_pylist()
    rows = sorted((row for row in rows if row["table_name"]), key=lambda row: row["end_lsn"])
    changes = [
        "column c was added, date",
        "the key changed from (id) to (a)",
        "the replica identity changed from d to f",
    ]
    assert [row["schema_changes"] for row in rows] == [None, json.dumps(changes), None]
    assert lake.said(manifest) == changes
    logged = [each.getMessage() for each in caplog.records]
    assert [each for each in logged if each in {f"public.t: {one}." for one in changes}] == [
        f"public.t: {one}." for one in changes
    ]
    # The old image of each later update holds the infinity as well.
    assert batch_xcom(manifest, "uri")["tables"]["public.t"]["rejected"] == rows[1]["rejected"] > 0
    # The columns are kept where they are not what the row before says.
    assert [row["columns"] is None for row in rows] == [False, False, True]
    assert lake.agrees("id", "a", "b")


def test_a_type_and_a_narrower_column_list_are_told_everywhere(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "airflow_provider_pgoutput")
    manifest = lake.run(
        "ALTER TABLE t ALTER a TYPE bigint",
        "UPDATE t SET a = 5000000000 WHERE id = 1",
        "ALTER PUBLICATION p SET TABLE t (id, a)",
        "UPDATE t SET a = 6 WHERE id = 2",
        # It came back to the publication, so it would be copied.
        initial_copy="never",
    )
    changes = ["column a changed from integer to bigint", "column b is no longer published"]
    assert [each.kind for each in manifest.tables[0].schema_changes] == [RETYPED, UNPUBLISHED]
    assert lake.said(manifest) == changes
    logged = [each.getMessage() for each in caplog.records]
    assert [each for each in logged if each.startswith("public.t: column")] == [
        f"public.t: {each}." for each in changes
    ]
    rows = lake.table("pgoutput_checkpoint").scan().to_arrow().to_pylist()
    (row,) = [e for e in rows if e["table_name"] and e["batch_id"] == manifest.batch_id]
    assert row["schema_changes"] == json.dumps(changes)
    assert lake.agrees("id", "a")
