"""Scenarios C27 to C34, C37 to C40: row filters, column lists, generated columns.

C35 and C36, which have to stop, are tests of their own.
"""

from __future__ import annotations

from tests.conformance.scenario import Scenario

TABLE = "CREATE TABLE t(a int primary key, b text)"
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"
FILTERED = "CREATE PUBLICATION {p} FOR TABLE t WHERE (a > 1000 AND b <> 'filtered')"
PARTITIONED = (
    "CREATE TABLE t(a int primary key) PARTITION BY RANGE (a)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10000)",
    "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10000) TO (20000)",
)
LONG = "1234567890" * 200

SCENARIOS = (
    Scenario(
        "C27",
        "rows that begin or cease to match a row filter",
        group="reading",
        setup=(TABLE, FULL, FILTERED, "INSERT INTO t VALUES (900, 'x'), (2000, 'copied')"),
        dml=(
            "INSERT INTO t VALUES (800,'x'), (1600,'t'), (1601,'t'), (1602,'filtered'), (1700,'t')",
            "UPDATE t SET b = NULL WHERE a = 1600",
            "UPDATE t SET b = 'u' WHERE a = 1601",
            "UPDATE t SET b = 'u2' WHERE a = 1602",
            "DELETE FROM t WHERE a = 1700",
            "DELETE FROM t WHERE a = 800",
        ),
        expected={"t": [("1601", "u"), ("1602", "u2"), ("2000", "copied")]},
        differs_because="the row filter leaves rows out",
        changes=(3, 1, 1, 1, 1),
    ),
    Scenario(
        "C28",
        "row filters of two publications are alternatives",
        group="reading",
        setup=(
            "CREATE TABLE t(c int primary key)",
            "CREATE PUBLICATION {p} FOR TABLE t WHERE (c % 2 = 0)",
            "CREATE PUBLICATION {p}_3 FOR TABLE t WHERE (c % 3 = 0)",
            "INSERT INTO t SELECT generate_series(11, 15)",
        ),
        dml=("INSERT INTO t SELECT generate_series(1, 7)",),
        expected={"t": [(each,) for each in ("2", "3", "4", "6", "12", "14", "15")]},
        differs_because="the row filters leave rows out",
        changes=(4,),
    ),
    Scenario(
        "C29",
        "a publication of the same table without a filter makes filters void",
        group="reading",
        setup=(
            "CREATE TABLE t(c int primary key)",
            "CREATE TABLE u(c int primary key)",
            "CREATE PUBLICATION {p} FOR TABLE t WHERE (c % 2 = 0), u WHERE (c % 2 = 0)",
            "CREATE PUBLICATION {p}_all FOR TABLE t",
            "CREATE PUBLICATION {p}_schema FOR TABLES IN SCHEMA c29",
            "INSERT INTO t VALUES (11)",
            "INSERT INTO u VALUES (11)",
        ),
        dml=("INSERT INTO t VALUES (1), (2), (3)", "INSERT INTO u VALUES (1), (2), (3)"),
        expected={
            "t": [("1",), ("2",), ("3",), ("11",)],
            "u": [("1",), ("2",), ("3",), ("11",)],
        },
        changes=(3, 3),
    ),
    Scenario(
        "C30",
        "an update that begins to match brings the whole row, unchanged TOAST and all",
        group="reading",
        setup=(
            "CREATE TABLE t(a text NOT NULL, b text NOT NULL)",
            "ALTER TABLE t ALTER a SET STORAGE EXTERNAL",
            "CREATE UNIQUE INDEX i ON t(a, b)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
            "CREATE PUBLICATION {p} FOR TABLE t WHERE (a = repeat('1234567890', 200) AND b < '10')",
            "INSERT INTO t VALUES (repeat('1234567890', 200), '1234567890')",
        ),
        dml=("UPDATE t SET b = '1'",),
        expected={"t": [(LONG, "1")]},
        changes=(1,),
    ),
    Scenario(
        "C31",
        "TRUNCATE passes a row filter that the rows did not",
        group="reading",
        setup=(TABLE, FULL, FILTERED, "INSERT INTO t VALUES (2000, 'copied')"),
        dml=("INSERT INTO t VALUES (1, 'x')", "TRUNCATE t"),
        expected={"t": []},
        changes=(1,),
    ),
    Scenario(
        "C32",
        "published via its root, a partition is filtered as the root is",
        group="reading",
        setup=(
            *PARTITIONED,
            (
                "CREATE PUBLICATION {p} FOR TABLE t WHERE (a < 5000), t1 WHERE (a < 6000)"
                " WITH (publish_via_partition_root)"
            ),
            "INSERT INTO t VALUES (3000), (5500), (13000)",
        ),
        dml=("INSERT INTO t VALUES (4000), (5600), (14000)",),
        expected={"t": [("3000",), ("4000",)]},
        differs_because="the row filter leaves rows out",
        changes=(1,),
    ),
    Scenario(
        "C33",
        "published as partitions, each is filtered by its own filter",
        group="reading",
        setup=(
            *PARTITIONED,
            "CREATE PUBLICATION {p} FOR TABLE t1 WHERE (a < 6000), t2 WHERE (a < 15000)",
            "INSERT INTO t VALUES (3000), (6500), (13000)",
        ),
        dml=("INSERT INTO t VALUES (4000), (5600), (7000), (14000), (16000)",),
        expected={"t1": [("3000",), ("4000",), ("5600",)], "t2": [("13000",), ("14000",)]},
        differs_because="the row filters leave rows out",
        changes=(3,),
    ),
    Scenario(
        "C34",
        "a column list: the other columns are not in the lake",
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key, b text, c int)",
            "CREATE PUBLICATION {p} FOR TABLE t(a, b)",
            "INSERT INTO t VALUES (0, 'copied', 1)",
        ),
        dml=(
            "INSERT INTO t VALUES (1, 'x', 3)",
            "UPDATE t SET c = 4",
            "UPDATE t SET b = 'y' WHERE a = 1",
        ),
        expected={"t": [("0", "copied"), ("1", "y")]},
        absent_columns=("c",),
        changes=(1, 2, 1),
    ),
    Scenario(
        "C37",
        "the primary key moves from one listed column to another",
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key, b int NOT NULL, c int)",
            "CREATE PUBLICATION {p} FOR TABLE t(a, b)",
            "INSERT INTO t VALUES (1, 22, 0), (2, 33, 0)",
        ),
        dml=(
            "UPDATE t SET b = b * 2",
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "ALTER TABLE t ADD PRIMARY KEY (b)",
            "UPDATE t SET b = b * 2",
            "INSERT INTO t VALUES (1, 110, 0)",
        ),
        expected={"t": [("1", "88"), ("2", "132"), ("1", "110")]},
        absent_columns=("c",),
        changes=(2, 2, 1),
    ),
    Scenario(
        "C38",
        "a column list that does not cover the new key: the publisher refuses updates",
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key, b text, c int NOT NULL)",
            "CREATE PUBLICATION {p} FOR TABLE t(a, b)",
        ),
        dml=(
            "INSERT INTO t VALUES (1, 'x', 3)",
            "ALTER TABLE t DROP CONSTRAINT t_pkey",
            "ALTER TABLE t ADD PRIMARY KEY (c)",
            "UPDATE t SET b = 'y'",
        ),
        dml_sqlstate="42P10",
        expected={"t": [("1", "x")]},
        absent_columns=("c",),
        changes=(1,),
    ),
    Scenario(
        "C39",
        "a stored generated column is not published",
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key, b int GENERATED ALWAYS AS (a * 2) STORED)",
            "CREATE PUBLICATION {p} FOR TABLE t",
            "INSERT INTO t VALUES (7)",
        ),
        dml=("INSERT INTO t VALUES (1)", "UPDATE t SET a = 2 WHERE a = 1"),
        expected={"t": [("2",), ("7",)]},
        absent_columns=("b",),
        changes=(1, 1),
    ),
    Scenario(
        "C40",
        "a stored generated column is published when option or column list ask for it, a virtual one never",
        group="reading",
        least_version=18,
        setup=(
            (
                "CREATE TABLE t(a int primary key, b int GENERATED ALWAYS AS (a * 2) STORED,"
                " c int GENERATED ALWAYS AS (a * 3) VIRTUAL)"
            ),
            "CREATE PUBLICATION {p} FOR TABLE t WITH (publish_generated_columns = stored)",
            (
                "CREATE TABLE listed(a int primary key, b int GENERATED ALWAYS AS (a * 2) STORED,"
                " c int GENERATED ALWAYS AS (a * 3) STORED)"
            ),
            # A column list publishes what it names, whatever the option says.
            "CREATE PUBLICATION {p}_list FOR TABLE listed (a, b)",
            "INSERT INTO t VALUES (7)",
            "INSERT INTO listed VALUES (7)",
        ),
        dml=(
            "INSERT INTO t VALUES (1)",
            "UPDATE t SET a = 2 WHERE a = 1",
            "INSERT INTO listed VALUES (1)",
            "UPDATE listed SET a = 2 WHERE a = 1",
        ),
        expected={"t": [("2", "4"), ("7", "14")], "listed": [("2", "4"), ("7", "14")]},
        absent_columns=("c",),
        changes=(1, 1, 1, 1),
    ),
)
