"""Scenarios C89 to C91: what a publication covers. C92, which has to fail, is a test of its own."""

from __future__ import annotations

from tests.conformance.scenario import Scenario

SCENARIOS = (
    Scenario(
        "C89",
        "temporary and unlogged tables never appear, a new table does",
        group="all_tables",
        setup=("CREATE PUBLICATION {p} FOR ALL TABLES",),
        dml=(
            "CREATE TEMP TABLE tt AS SELECT 1 a",
            "UPDATE tt SET a = 2",
            "CREATE UNLOGGED TABLE tu AS SELECT 1 a",
            "UPDATE tu SET a = 2",
            "CREATE TABLE n(a int primary key)",
            "INSERT INTO n VALUES (1)",
        ),
        expected={"n": [("1",)]},
        absent_tables=("tt", "tu"),
        # The new table is copied, so its row is no change.
        changes=(),
    ),
    Scenario(
        "C90",
        "a materialized view never appears, CREATE TABLE AS does",
        group="all_tables",
        setup=("CREATE PUBLICATION {p} FOR ALL TABLES", "CREATE TABLE b(a int primary key)"),
        dml=(
            "INSERT INTO b VALUES (1)",
            "CREATE MATERIALIZED VIEW mv AS SELECT * FROM b",
            "REFRESH MATERIALIZED VIEW mv",
            "CREATE TABLE c AS SELECT * FROM b",
        ),
        expected={"b": [("1",)], "c": [("1",)]},
        absent_tables=("mv",),
        changes=(1,),
    ),
    Scenario(
        "C91",
        "a table leaves the publication and comes back: it is copied again",
        # A copy takes all transactions before it into its batch.
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key, b text)",
            "CREATE PUBLICATION {p} FOR TABLE t",
        ),
        dml=(
            "INSERT INTO t VALUES (1, 'a')",
            "ALTER PUBLICATION {p} DROP TABLE t",
            "INSERT INTO t VALUES (2, 'b')",
            "ALTER PUBLICATION {p} ADD TABLE t",
            "INSERT INTO t VALUES (3, 'c')",
            "ALTER PUBLICATION {p} SET (publish = 'insert')",
            "DELETE FROM t",
            "INSERT INTO t VALUES (4, 'd')",
        ),
        # The deletes, which are not published, are in the copy.
        expected={"t": [("4", "d")]},
        warning=("c91.t",),
        changes=(),
    ),
)
