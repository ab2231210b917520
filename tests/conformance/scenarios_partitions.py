"""Scenarios C45 to C50, C52: partitions, inheritance, schemas."""

from __future__ import annotations

from tests.conformance.scenario import Scenario

PARTITIONED = (
    "CREATE TABLE t(a int primary key, b text) PARTITION BY LIST (a)",
    "CREATE TABLE t1(b text, a int not null)",
    "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES IN (1, 2, 3)",
    "CREATE TABLE t2 PARTITION OF t FOR VALUES IN (4, 5, 6)",
    "CREATE TABLE td PARTITION OF t DEFAULT",
)
VIA_ROOT = "CREATE PUBLICATION {p} FOR TABLE t WITH (publish_via_partition_root)"
ROWS = "INSERT INTO t VALUES (3, 'copied'), (6, 'copied'), (9, 'copied')"
CHANGES = (
    "INSERT INTO t VALUES (1, 'x')",
    "UPDATE t1 SET b = 'leaf' WHERE a = 3",
    "UPDATE t SET a = 2 WHERE a = 1",
    "UPDATE t SET a = 4 WHERE a = 2",
    "DELETE FROM t WHERE a = 3",
)

SCENARIOS = (
    Scenario(
        "C45",
        "published as partitions: rows move between them, each is truncated alone and with all",
        group="reading",
        setup=(*PARTITIONED, "CREATE PUBLICATION {p} FOR TABLE t", ROWS),
        dml=(
            *CHANGES,
            "TRUNCATE t2",
            "INSERT INTO t VALUES (5, 'new')",
            "TRUNCATE t",
            "INSERT INTO t VALUES (1, 'one'), (4, 'four'), (8, 'eight')",
        ),
        expected={"t1": [("one", "1")], "t2": [("4", "four")], "td": [("8", "eight")]},
        changes=(1, 1, 1, 2, 1, 1, 1, 3, 3),
    ),
    Scenario(
        "C46",
        "published via the root: one table, in the order of the root's columns",
        group="reading",
        setup=(*PARTITIONED, VIA_ROOT, ROWS),
        dml=(
            *CHANGES,
            "INSERT INTO t VALUES (5, 'new')",
            "TRUNCATE t",
            "INSERT INTO t VALUES (1, 'one'), (4, 'four'), (8, 'eight')",
        ),
        expected={"t": [("1", "one"), ("4", "four"), ("8", "eight")]},
        changes=(1, 1, 1, 2, 1, 1, 1, 3),
    ),
    Scenario(
        "C47",
        "root and partitions in publications of both kinds: each row once, under the root",
        group="every_table",
        setup=(
            "CREATE PUBLICATION {p}_all FOR ALL TABLES WITH (publish_via_partition_root)",
            *PARTITIONED,
            "CREATE PUBLICATION {p}_leaf FOR TABLE t1",
            "CREATE TABLE u(a int primary key) PARTITION BY RANGE (a)",
            ("CREATE TABLE u1 PARTITION OF u FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (a)"),
            "CREATE TABLE u11 PARTITION OF u1 FOR VALUES FROM (0) TO (50)",
            "CREATE PUBLICATION {p}_middle FOR TABLE u1 WITH (publish_via_partition_root)",
            ROWS,
            "INSERT INTO u VALUES (1)",
        ),
        dml=(
            "INSERT INTO t VALUES (1, 'x')",
            "INSERT INTO t1 VALUES ('y', 2)",
            "INSERT INTO u VALUES (2)",
        ),
        expected={
            "t": [("1", "x"), ("2", "y"), ("3", "copied"), ("6", "copied"), ("9", "copied")],
            "u": [("1",), ("2",)],
        },
        absent_tables=("t1", "t2", "td", "u1", "u11"),
        changes=(1, 1, 1),
    ),
    Scenario(
        "C48",
        "rows of a detached and dropped partition stay in the lake",
        group="reading",
        setup=(*PARTITIONED, VIA_ROOT),
        dml=(
            "INSERT INTO t VALUES (4, 'x'), (5, 'old')",
            "ALTER TABLE t DETACH PARTITION t2",
            "INSERT INTO t2 VALUES (6, 'y')",
            "DROP TABLE t2",
            "INSERT INTO t VALUES (5, 'z')",
        ),
        expected={"t": [("4", "x"), ("5", "z")]},
        differs_because="detaching a partition sends no change; a row with the same key replaces it",
        changes=(2, 1),
    ),
    Scenario(
        "C49",
        "columns of the root are dropped and added again",
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key, b text) PARTITION BY LIST (a)",
            "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1, 2, 3)",
            VIA_ROOT,
        ),
        dml=(
            "INSERT INTO t VALUES (1, 'before')",
            "ALTER TABLE t DROP b, ADD c int DEFAULT 6",
            "ALTER TABLE t ADD b text",
            "INSERT INTO t VALUES (2, 7, 'after')",
            "UPDATE t SET c = 8 WHERE a = 1",
        ),
        expected={"t": [("1", "8", None), ("2", "7", "after")]},
        surplus_columns=("b__old_2",),
        changes=(1, 1, 1),
    ),
    Scenario(
        "C50",
        "inheritance: rows of the child are the child's only",
        group="reading",
        setup=(
            "CREATE TABLE par(a int primary key)",
            "CREATE TABLE chi(b text, primary key (a)) INHERITS (par)",
            "CREATE PUBLICATION {p} FOR TABLE par",
            "INSERT INTO par VALUES (1)",
            "INSERT INTO chi VALUES (11, 'copied')",
        ),
        dml=(
            "INSERT INTO par VALUES (2)",
            "INSERT INTO chi VALUES (12, 'x')",
            "UPDATE par SET a = a + 100",
        ),
        expected={
            "par": [("101",), ("102",)],
            "chi": [("111", "copied"), ("112", "x")],
        },
        differs_because="a SELECT from the parent shows the child's rows too",
        changes=(1, 1, 4),
    ),
    Scenario(
        "C52",
        "a table moves into a published schema, and another one out and back",
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key)",
            "CREATE SCHEMA c52_other",
            "CREATE TABLE c52_other.u(a int primary key)",
            "CREATE PUBLICATION {p} FOR TABLES IN SCHEMA c52",
        ),
        dml=(
            "INSERT INTO t VALUES (1)",
            "INSERT INTO c52_other.u VALUES (1)",
            "ALTER TABLE c52_other.u SET SCHEMA c52",
            "INSERT INTO u VALUES (2)",
            "ALTER TABLE t SET SCHEMA c52_other",
            "INSERT INTO c52_other.t VALUES (2)",
            "ALTER TABLE c52_other.t SET SCHEMA c52",
            "INSERT INTO t VALUES (3)",
        ),
        # What `t` got outside of the schema is not published: it is copied again, and `u`, which is new, too.
        expected={"t": [("1",), ("2",), ("3",)], "u": [("1",), ("2",)]},
        warning=("c52.t",),
        changes=(),
    ),
)
