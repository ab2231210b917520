"""What a pipeline refuses of a table's schema or of its target, because rows would be lost, doubled or NULL.

Rows B30 and B31 of bad input. What is not here: changes of the source that are followed
(``test_schema_changes.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import TableRefused, TableRolledBack, ValueRefused
from tests.conformance.compare import quoted
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from tests.conformance.one_table import Lake


def name_of(lake: Lake) -> str:
    return quoted(CATALOG, lake.pipeline.namespace, "t")


def test_a_key_that_older_rows_have_and_nobody_tells_is_refused(lake: Lake) -> None:
    """A new serial key is in all rows, without an event: they would not be found, and double."""
    lake.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD k serial PRIMARY KEY",
        "UPDATE t SET a = 11 WHERE id = 1",
    )
    for _ in range(2):
        with pytest.raises(TableRefused, match="cannot be found") as refused:
            lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", "k")
    lake.run(copy_tables=("public.t",))
    assert lake.agrees()
    lake.run("UPDATE t SET a = 12 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    assert lake.agrees()
    # Padded otherwise, and so is every key that comes from now on.
    lake.run("ALTER TABLE t ADD c char(3)", "UPDATE t SET c = id")
    lake.run("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (c)", "UPDATE t SET a = 13")
    lake.execute("ALTER TABLE t ALTER c TYPE char(5)", "UPDATE t SET a = 14")
    with pytest.raises(TableRefused, match="cannot be found"):
        lake.run()
    lake.run(copy_tables=("public.t",))
    assert lake.agrees()


def test_another_key_under_full_is_refused_or_copied(lake: Lake) -> None:
    """No version is announced: rows from before it would be taken for one by a key that was none yet."""
    lake.run(
        "ALTER TABLE t ALTER b TYPE text USING 'a', REPLICA IDENTITY FULL",
        "UPDATE t SET b = 'a'",
        copy_tables=("public.t",),
    )
    lake.execute(
        "UPDATE t SET b = 'ax' WHERE id = 2",
        "UPDATE t SET b = 'ay' WHERE id = 3",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (b)",
    )
    for _ in range(2):
        with pytest.raises(TableRefused, match="under REPLICA IDENTITY FULL") as refused:
            lake.run()
    assert "copy_tables=['public.t']" in str(refused.value)
    lake.run(copy_tables=("public.t",))
    assert lake.agrees()
    lake.run("UPDATE t SET b = 'az' WHERE id = 2", "DELETE FROM t WHERE id = 3")
    assert lake.agrees()


def test_a_key_is_not_put_into_a_new_column(lake: Lake) -> None:
    """With ``keep_retyped_columns`` older rows would have no key any more."""
    lake.pipeline.plan_options["keep_retyped_columns"] = True
    lake.execute("ALTER TABLE t ALTER id TYPE text", "UPDATE t SET a = 11 WHERE id = '1'")
    with pytest.raises(TableRefused, match="one of three"):
        lake.run()
    lake.run(copy_tables=("public.t",))
    assert lake.agrees()


def test_a_copied_key_that_its_type_cannot_hold_is_refused(lake: Lake) -> None:
    """Both rows would be found under no key, or under one."""
    lake.execute(
        "CREATE TABLE h (id int, until timestamptz, PRIMARY KEY (id, until))",
        "INSERT INTO h VALUES (1, 'infinity'), (1, '-infinity'), (1, '2024-01-01 UTC')",
        "ALTER PUBLICATION p ADD TABLE h",
    )
    for _ in range(2):
        with pytest.raises(ValueRefused, match="A row has no value in a key column") as refused:
            lake.run()
        assert (refused.value.table, refused.value.column) == ("public.h", "until")
    lake.execute("DELETE FROM h WHERE until <> '2024-01-01 UTC'")
    max(lake.pipeline.staging.rglob("manifests/*.json")).unlink()
    lake.run(copy_tables=("public.h",))
    name = quoted(CATALOG, lake.pipeline.namespace, "h")
    assert lake.pipeline.spark.table(name).count() == 1


@pytest.mark.parametrize("column", ["id", "b"])
def test_a_column_that_was_dropped_from_the_target_is_missed(lake: Lake, column: str) -> None:
    """Also when it came back with another type."""
    spark, name = lake.pipeline.spark, name_of(lake)
    if column == "id":
        spark.sql(f"ALTER TABLE {name} DROP IDENTIFIER FIELDS id")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN {column}")
    lake.execute("UPDATE t SET a = 11 WHERE id = 1")
    with pytest.raises(TableRefused, match="Somebody dropped the column") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", column)
    spark.sql(f"ALTER TABLE {name} ADD COLUMN {column} string")
    with pytest.raises(TableRefused, match="Somebody dropped the column"):
        lake.run()
    lake.run(copy_tables=("public.t",))
    assert lake.agrees()


def test_a_target_that_is_gone_or_another_table_is_refused(lake: Lake) -> None:
    spark, name = lake.pipeline.spark, name_of(lake)
    spark.sql(f"DROP TABLE {name}")
    lake.execute("UPDATE t SET a = 11 WHERE id = 1")
    with pytest.raises(TableRolledBack, match="copy the table again"):
        lake.run()
    spark.sql(f"CREATE TABLE {name} (id string, a int, b int) USING iceberg")
    with pytest.raises(TableRolledBack, match="copy the table again"):
        lake.run()
    spark.sql(f"INSERT INTO {name} VALUES ('theirs', 0, 0)")
    with pytest.raises(TableRefused, match="did not write"):
        lake.run()
    with pytest.raises(TableRefused, match="did not write"):
        lake.run(copy_tables=("public.t",))
    spark.sql(f"DROP TABLE {name}")
    lake.run(copy_tables=("public.t",))
    assert lake.agrees()


def test_a_target_of_the_first_format_is_refused_until_it_is_upgraded(lake: Lake) -> None:
    spark, name = lake.pipeline.spark, name_of(lake)
    spark.sql(f"DROP TABLE {name}")
    spark.sql(
        f"CREATE TABLE {name} (id int, a int, b int) USING iceberg"
        " TBLPROPERTIES ('format-version' = '1')"
    )
    with pytest.raises(TableRefused, match="format version 1") as refused:
        lake.run(copy_tables=("public.t",))
    assert "'format-version' = '2'" in str(refused.value)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '2')")
    lake.run(copy_tables=("public.t",))
    lake.run("UPDATE t SET a = 11 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    assert lake.agrees()


def test_a_table_with_the_properties_of_ours_is_not_ours(lake: Lake) -> None:
    """Another UUID: made from the statement that shows ours, properties and all, and filled by hand."""
    spark, name = lake.pipeline.spark, name_of(lake)
    rows = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
    pairs = ", ".join(
        f"'{row.key}' = '{row.value}'"
        for row in rows
        if row.key.startswith("pgoutput.") and "'" not in row.value
    )
    assert "pgoutput.relation-oid" in pairs
    spark.sql(f"CREATE TABLE {name[:-1]}_saved` USING iceberg AS SELECT * FROM {name}")
    spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE {name} (id int, a int, b int) USING iceberg TBLPROPERTIES ({pairs})")
    lake.execute("UPDATE t SET a = 11 WHERE id = 1")
    with pytest.raises(TableRolledBack, match="copy the table again"):
        lake.run()
    spark.sql(f"INSERT INTO {name} SELECT id, a, b FROM {name[:-1]}_saved`")
    with pytest.raises(TableRefused, match="did not write"):
        lake.run()
    spark.sql(f"DROP TABLE {name}")
    lake.run(copy_tables=("public.t",))
    assert lake.agrees()
