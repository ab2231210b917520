"""Scenarios C20 to C26, C41 to C44: unchanged TOAST and TRUNCATE. Not here: types and DDL."""

from __future__ import annotations

from tests.conformance.scenario import Scenario

LARGE = "k" * 9000
TOASTED = (
    "CREATE TABLE t(a int primary key, b text, c int)",
    "ALTER TABLE t ALTER b SET STORAGE EXTERNAL",
    "CREATE PUBLICATION {p} FOR TABLE t",
    "INSERT INTO t VALUES (1, repeat('k', 9000), 0)",
)
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"
TABLE = ("CREATE TABLE t(a int primary key, b text)", "CREATE PUBLICATION {p} FOR TABLE t")

SCENARIOS = (
    Scenario(
        "C20",
        "unchanged TOAST keeps its value byte for byte",
        setup=TOASTED,
        dml=("UPDATE t SET c = 1",),
        expected={"t": [("1", LARGE, "1")]},
        changes=(1,),
    ),
    Scenario(
        "C21",
        "unchanged TOAST is filled from the old row; the row is deleted by its whole",
        setup=(*TOASTED, FULL),
        dml=(
            "INSERT INTO t VALUES (2, repeat('l', 9000), 0)",
            "UPDATE t SET c = 1",
            "DELETE FROM t WHERE a = 2",
        ),
        expected={"t": [("1", LARGE, "1")]},
        changes=(1, 2, 1),
    ),
    Scenario(
        "C22",
        "a real NULL is not unchanged TOAST",
        setup=TOASTED,
        dml=("UPDATE t SET b = NULL, c = 2",),
        expected={"t": [("1", None, "2")]},
        changes=(1,),
    ),
    Scenario(
        "C23",
        "unchanged TOAST of a row that was inserted in the same transaction",
        setup=TOASTED,
        dml=(
            "BEGIN",
            "INSERT INTO t VALUES (2, repeat('z', 9000), 0)",
            "UPDATE t SET c = 5 WHERE a = 2",
            "COMMIT",
        ),
        expected={"t": [("1", LARGE, "0"), ("2", "z" * 9000, "5")]},
        changes=(2,),
    ),
    Scenario(
        "C24",
        "unchanged TOAST moves with its row to another key",
        setup=TOASTED,
        dml=("UPDATE t SET a = 7",),
        expected={"t": [("7", LARGE, "0")]},
        changes=(1,),
    ),
    Scenario(
        "C25",
        "a key that is itself unchanged TOAST",
        setup=(
            "CREATE TABLE t(k text primary key, v int)",
            "ALTER TABLE t ALTER k SET STORAGE EXTERNAL",
            "CREATE PUBLICATION {p} FOR TABLE t",
            "INSERT INTO t VALUES (repeat('k', 2500), 0)",
        ),
        dml=("UPDATE t SET v = 1", "UPDATE t SET k = k || '1'"),
        expected={"t": [("k" * 2500 + "1", "1")]},
        changes=(1, 1),
    ),
    Scenario(
        "C41",
        "TRUNCATE of several tables, one of them not published",
        setup=(
            "CREATE TABLE t(a int primary key)",
            "CREATE TABLE u(a int primary key)",
            "CREATE TABLE w(a int)",
            "INSERT INTO t VALUES (1), (2)",
            "INSERT INTO u VALUES (3)",
            "CREATE PUBLICATION {p} FOR TABLE t, u",
        ),
        dml=("TRUNCATE t, u, w RESTART IDENTITY CASCADE",),
        expected={"t": [], "u": []},
        changes=(2,),
    ),
    Scenario(
        "C42",
        "TRUNCATE that is not published leaves the row",
        setup=(
            "CREATE TABLE t(a int primary key)",
            "CREATE PUBLICATION {p} FOR TABLE t WITH (publish = 'insert')",
        ),
        dml=("INSERT INTO t VALUES (1)", "TRUNCATE t"),
        expected={"t": [("1",)]},
        differs_because="the publication holds inserts only",
        changes=(1,),
    ),
    Scenario(
        "C43",
        "insert, truncate and insert in one transaction",
        setup=(*TABLE, "INSERT INTO t VALUES (7, 'before')"),
        dml=(
            "BEGIN",
            "INSERT INTO t VALUES (1, 'x')",
            "TRUNCATE t",
            "INSERT INTO t VALUES (2, 'y')",
            "COMMIT",
        ),
        expected={"t": [("2", "y")]},
        changes=(3,),
    ),
    Scenario(
        "C44",
        "insert, truncate and insert in three transactions",
        setup=(*TABLE, "INSERT INTO t VALUES (7, 'before')"),
        dml=("INSERT INTO t VALUES (1, 'x')", "TRUNCATE t", "INSERT INTO t VALUES (3, 'z')"),
        expected={"t": [("3", "z")]},
        changes=(1, 1, 1),
    ),
)
