"""Partitions that are attached, detached, dropped and made again, from the source into the lake.

What PostgreSQL does not send is said in a warning and stays out of the lake until a copy, and nothing else
differs. Moves of rows between partitions are in ``scenarios_partitions.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.errors import RowMissing, TableRefused
from tests.conformance.groups import collected_warnings
from tests.conformance.many_tables import Tables
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline


COLUMNS = "(a int PRIMARY KEY, b text)"


def partitioned(root: str) -> tuple[str, ...]:
    """Statements that make a table with three partitions of ten keys, the third one in two levels."""
    return (
        f"CREATE TABLE {root} {COLUMNS} PARTITION BY RANGE (a)",
        f"CREATE TABLE {root}_0 PARTITION OF {root} FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {root}_1 PARTITION OF {root} FOR VALUES FROM (10) TO (20)",
        f"CREATE TABLE {root}_2 PARTITION OF {root} FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (a)",
        f"CREATE TABLE {root}_20 PARTITION OF {root}_2 FOR VALUES FROM (20) TO (25)",
        f"INSERT INTO {root} SELECT g, 'row ' || g FROM generate_series(1, 24) g WHERE g % 10 IN (1, 2, 3)",
    )


def brought(root: str) -> tuple[str, ...]:
    """Statements that make a table with rows, one of them large, and attach it."""
    return (
        f"CREATE TABLE {root}_b {COLUMNS}",
        f"ALTER TABLE {root}_b ALTER b SET STORAGE EXTERNAL",
        f"INSERT INTO {root}_b VALUES (31, 'brought'), (32, 'brought'), (33, repeat('x', 9000))",
        f"ALTER TABLE {root} ATTACH PARTITION {root}_b FOR VALUES FROM (30) TO (40)",
    )


def test_partitions_published_as_themselves(pipeline: Pipeline) -> None:
    """Each is a table like any other: what it lacks is copied, and what left stays as it was."""
    tables = Tables(pipeline, logs=("public.r_1",))
    tables.run(*partitioned("r"), "CREATE PUBLICATION p FOR TABLE r")
    tables.assert_equal("r_0", "r_1", "r_20")
    tables.execute("UPDATE r SET b = 'last seen' WHERE a IN (1, 11, 21)")
    kept = {name: tables.source_rows(name) for name in ("r_0", "r_20")}
    with collected_warnings() as warnings:
        tables.run(
            *brought("r"),
            "UPDATE r SET b = 'touched' WHERE a = 31",
            "DELETE FROM r WHERE a = 32",
            "ALTER TABLE r DETACH PARTITION r_1",
            # Nobody sends these.
            "UPDATE r_1 SET b = 'alone' WHERE a = 12",
            "DELETE FROM r_1 WHERE a = 13",
            "ALTER TABLE r ATTACH PARTITION r_1 FOR VALUES FROM (10) TO (20)",
            "INSERT INTO r VALUES (15, 'seen')",
            "ALTER TABLE r DETACH PARTITION r_2 CONCURRENTLY",
            "INSERT INTO r_2 VALUES (20, 'alone')",
            "DROP TABLE r_0",
        )
    tables.assert_equal("r_b", "r_1")
    for name, rows in kept.items():
        tables.assert_holds(name, rows)
    assert "the publications lacked public.r_1" in "\n".join(warnings)

    # As rotating partitions do: another table under the name of one that was dropped.
    tables.execute(
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "INSERT INTO r VALUES (2, 'made again')",
        "UPDATE r SET a = 16 WHERE a = 31",
    )
    assert tables.refused(TableRefused, "created again") == "public.r_0"
    tables.run(on_recreated_table="copy")
    tables.assert_equal("r_0", "r_1", "r_b")
    tables.run("UPDATE r SET b = 'all' WHERE a <> 33")
    tables.assert_equal("r_0", "r_1", "r_b")
    tables.assert_holds("r_20", kept["r_20"])
    tables.assert_repeatable()


def test_partitions_published_via_their_root(pipeline: Pipeline) -> None:
    """Rows that come and go with a partition are in no stream; all others are right, and a copy mends it.

    With ``initial_copy="never"`` a run says so and goes on.
    """
    tables = Tables(pipeline, logs=("public.l",))
    tables.run(
        *partitioned("r"),
        *partitioned("l"),
        "CREATE PUBLICATION p FOR TABLE r, l WITH (publish_via_partition_root)",
    )
    tables.assert_equal("r", "l")
    left = tables.execute("SELECT a::text, b FROM r WHERE a >= 20 OR a < 10 AND a <> 1")
    changes = (
        "CREATE TABLE {0}_5 PARTITION OF {0} FOR VALUES FROM (50) TO (60)",
        "INSERT INTO {0} VALUES (51, 'of a new partition')",
        "ALTER TABLE {0} DETACH PARTITION {0}_2 CONCURRENTLY",
        "DELETE FROM {0}_2 WHERE a = 22",
        "DELETE FROM {0} WHERE a = 1",
        "DROP TABLE {0}_0",
        "UPDATE {0} SET a = 52 WHERE a = 11",
        "INSERT INTO {0} VALUES (34, 'seen')",
        # Of a row that the lake lacks: all of its values are sent.
        "UPDATE {0} SET b = 'seen' WHERE a = 31",
    )
    with collected_warnings() as warnings:
        tables.run(
            *brought("r"),
            *brought("l"),
            *(each.format(root) for each in changes for root in "rl"),
            initial_copy="never",
        )
    unseen = Counter(tables.execute("SELECT a::text, b FROM r_b WHERE a IN (32, 33)"))
    for root in "rl":
        tables.assert_holds(root, tables.source_rows(root) - unseen + Counter(left))
    said = "\n".join(warnings)
    for root in "rl":
        assert (
            f"{root} got partitions that were tables of their own and had rows: public.{root}_b"
            in said
        )
        assert f"2 partitions of public.{root} were detached or dropped" in said

    # An update that leaves out what the lake never got is refused, and never a NULL.
    tables.execute("UPDATE r SET a = 35 WHERE a = 33", "INSERT INTO l VALUES (36, 'later')")
    assert tables.refused(RowMissing, "leaves") == "public.r"
    tables.run(copy_tables=("public.r", "public.l"))
    tables.assert_equal("r", "l")
    tables.run(
        "ALTER TABLE r ATTACH PARTITION r_2 FOR VALUES FROM (20) TO (30)",
        "UPDATE r SET b = 'again' WHERE a IN (35, 36, 52)",
        "TRUNCATE l",
        "INSERT INTO l VALUES (12, 'new')",
    )
    # By default a root that lacks rows is copied again.
    tables.assert_equal("r")
    tables.assert_equal("l")
    tables.run(copy_tables=("public.r",))
    tables.assert_equal("r")
    tables.assert_repeatable()


def test_sixty_partitions_via_their_root_are_one_table_in_the_lake(pipeline: Pipeline) -> None:
    """Nothing of a partition arrives but its rows."""
    tables = Tables(pipeline)
    copied = tables.run(
        "CREATE TABLE r (a int PRIMARY KEY, b text) PARTITION BY LIST (a)",
        """DO $$ BEGIN FOR n IN 1..60 LOOP
             EXECUTE format('CREATE TABLE r_%s PARTITION OF r FOR VALUES IN (%s)', n, n);
           END LOOP; END $$""",
        "INSERT INTO r SELECT n, 'x' FROM generate_series(1, 60) n",
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)",
    )
    changed = tables.run("UPDATE r SET b = 'y' WHERE a > 20", "DELETE FROM r WHERE a = 60")
    assert [[each.name for each in batch.tables] for batch in (copied, changed)] == [
        ["public.r"],
        ["public.r"],
    ]
    tables.assert_equal("r")
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    made = {name for _, name in catalog.list_tables(pipeline.namespace)}
    assert {name for name in made if not name.startswith("pgoutput_")} == {"r"}


def test_partitions_that_send_their_key_alone_under_a_root_that_is_full(pipeline: Pipeline) -> None:
    """ALTER TABLE ... REPLICA IDENTITY FULL of a root is not that of its partitions, old or new."""
    tables = Tables(pipeline)
    tables.run(
        "CREATE TABLE r (a int PRIMARY KEY, b int, c text) PARTITION BY RANGE (a)",
        "ALTER TABLE r ALTER c SET STORAGE EXTERNAL",
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE r REPLICA IDENTITY FULL",
        "ALTER TABLE r_1 REPLICA IDENTITY FULL",
        "INSERT INTO r SELECT g, g, repeat('x', 9000) FROM generate_series(8, 12) g",
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)",
    )
    tables.run(
        # Sent without the large value, which no old row has.
        "UPDATE r SET b = 0 WHERE a IN (8, 11)",
        "UPDATE r SET a = a + 10 WHERE a = 9",
        "DO $$ BEGIN INSERT INTO r VALUES (1, 1, 'gone'), (13, 1, 'gone');"
        " UPDATE r SET b = 2 WHERE a IN (1, 13); DELETE FROM r WHERE a IN (1, 13); END $$",
        "CREATE TABLE r_2 PARTITION OF r FOR VALUES FROM (20) TO (30)",
        "INSERT INTO r VALUES (20, 1, 'new')",
        "UPDATE r SET b = NULL, c = NULL WHERE a = 20",
        "DELETE FROM r WHERE a = 12",
    )
    tables.assert_equal("r")
    tables.run("ALTER TABLE r_0 REPLICA IDENTITY FULL", "ALTER TABLE r_2 REPLICA IDENTITY FULL")
    tables.run("UPDATE r SET b = 7", "DELETE FROM r WHERE a = 8")
    tables.assert_equal("r")
    tables.assert_repeatable()


def test_c190_partitions_whose_identity_is_not_that_of_their_root(pipeline: Pipeline) -> None:
    """PostgreSQL does not hand USING INDEX down: by the index of the root, rows would stay and be doubled."""
    tables = Tables(pipeline, logs=("public.l",))
    for root in "rl":
        tables.execute(
            f"CREATE TABLE {root} (a int PRIMARY KEY, u int NOT NULL) PARTITION BY RANGE (a)",
            f"CREATE UNIQUE INDEX {root}_u ON {root} (u, a)",
            f"ALTER TABLE {root} REPLICA IDENTITY USING INDEX {root}_u",
            f"CREATE TABLE {root}_0 PARTITION OF {root} FOR VALUES FROM (0) TO (10)",
            f"INSERT INTO {root} VALUES (1, 1), (3, 3)",
        )
    # The other way round: the partition has an index of its own, which its root does not know.
    tables.run(
        "CREATE TABLE o (a int PRIMARY KEY, u int NOT NULL) PARTITION BY RANGE (a)",
        "CREATE TABLE o_0 PARTITION OF o FOR VALUES FROM (0) TO (10)",
        "CREATE UNIQUE INDEX o_0_u ON o_0 (u)",
        "ALTER TABLE o_0 REPLICA IDENTITY USING INDEX o_0_u",
        "INSERT INTO o VALUES (1, 1)",
        # All of it in whole old rows under a root that has no key.
        "CREATE TABLE f (a int, u int) PARTITION BY RANGE (a)",
        "CREATE TABLE f_0 PARTITION OF f FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE f_0 REPLICA IDENTITY FULL",
        "INSERT INTO f VALUES (1, NULL), (1, NULL), (2, 2)",
        "CREATE PUBLICATION p FOR TABLE r, l, o, f WITH (publish_via_partition_root)",
    )
    with collected_warnings() as warnings:
        tables.run(
            *(f"UPDATE {root} SET u = u + 1" for root in "rl"),
            "UPDATE r SET a = a + 1 WHERE a = 3",
            "DELETE FROM l WHERE a = 3",
            "ALTER TABLE r REPLICA IDENTITY FULL",
            "UPDATE r SET a = 5 WHERE a = 4",
            "UPDATE f SET u = 1 WHERE ctid = '(0,1)'",
            "DELETE FROM f WHERE a = 2",
        )
    tables.assert_equal("r", "l", "o", "f")
    assert "has the key (a), and 1 of its partitions have the replica identity (u)" in str(warnings)
    tables.execute("UPDATE o SET a = 2 WHERE a = 1")
    what = "does not say which row it means: the key is .a., and partition public.o_0"
    assert tables.refused(TableRefused, what) == "public.o"
    tables.run("DELETE FROM o", schema_policy=SchemaPolicy(on_unknown_default="copy"))
    tables.assert_equal("r", "o", "f")
    tables.run(
        "INSERT INTO o VALUES (1, 1)",
        "ALTER TABLE o_0 REPLICA IDENTITY DEFAULT",
        copy_tables=("public.o",),
    )
    tables.run("UPDATE o SET a = 2", "UPDATE f SET u = NULL", "DELETE FROM r WHERE a = 5")
    tables.assert_equal("r", "o", "f")
    tables.assert_repeatable()


def test_c191_primary_keys_of_partitions_alone(pipeline: Pipeline) -> None:
    """As partition managers make them: the owner names the key, and nothing has to be copied."""
    tables = Tables(pipeline)
    tables.run(
        "CREATE TABLE r (a int NOT NULL, b text) PARTITION BY RANGE (a)",
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES FROM (10) TO (20)",
        "ALTER TABLE r_0 ADD PRIMARY KEY (a)",
        "ALTER TABLE r_1 ADD PRIMARY KEY (a)",
        "INSERT INTO r VALUES (1, 'x'), (2, 'y')",
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)",
    )
    tables.run("INSERT INTO r VALUES (11, 'z')")
    tables.execute("UPDATE r SET b = 'new' WHERE a = 1", "UPDATE r SET a = 12 WHERE a = 2")
    assert tables.refused(TableRefused, "has no key") == "public.r"
    tables.run(key_columns={"public.r": ["a"]})
    tables.assert_equal("r")
    tables.run("DELETE FROM r WHERE a = 11", key_columns={"public.r": ["a"]})
    tables.assert_equal("r")


def test_partitions_without_a_key_that_all_of_them_send_are_refused(pipeline: Pipeline) -> None:
    """The root has none, so nothing says which row an update means that brings no old one."""
    tables = Tables(pipeline)
    tables.run(
        "CREATE TABLE r (a int NOT NULL, b text) PARTITION BY RANGE (a)",
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE r_0 ADD PRIMARY KEY (a)",
        "ALTER TABLE r REPLICA IDENTITY FULL",
        "ALTER TABLE r_0 REPLICA IDENTITY FULL",
        "INSERT INTO r VALUES (1, 'x'), (2, 'y')",
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)",
    )
    tables.execute(
        "ALTER TABLE r_0 REPLICA IDENTITY DEFAULT",
        "UPDATE r SET b = 'z' WHERE a = 1",
    )
    assert tables.refused(TableRefused, "has no key: partition public.r_0") == "public.r"
    tables.execute("ALTER TABLE r_0 REPLICA IDENTITY FULL")
    assert tables.refused(TableRefused, "has no key: partition public.r_0") == "public.r"
    tables.run("UPDATE r SET b = 'w' WHERE a = 2", copy_tables=("public.r",))
    tables.assert_equal("r")
