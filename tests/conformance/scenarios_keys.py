"""Scenarios C01 to C19: keys, replica identities, counts. Not here: large values and DDL."""

from __future__ import annotations

from tests.conformance.scenario import Copy, Scenario

TABLE = "CREATE TABLE t(a int primary key, b text)"
DEFERRABLE = "CREATE TABLE t(a int primary key deferrable initially deferred, b text)"
PUBLISH = "CREATE PUBLICATION {p} FOR TABLE t"
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"

SCENARIOS = (
    Scenario(
        "C01",
        "insert, update, delete",
        setup=(TABLE, PUBLISH),
        dml=(
            "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
            "UPDATE t SET b = 'z' WHERE a = 1",
            "DELETE FROM t WHERE a = 2",
        ),
        expected={"t": [("1", "z")]},
        changes=(2, 1, 1),
    ),
    Scenario(
        "C02",
        "an update of the key leaves no row under the old key",
        setup=(TABLE, PUBLISH),
        dml=("INSERT INTO t VALUES (1, 'x')", "UPDATE t SET a = 9 WHERE a = 1"),
        expected={"t": [("9", "x")]},
        changes=(1, 1),
    ),
    Scenario(
        "C03",
        "every key is updated at once, then a part is deleted",
        setup=(TABLE, PUBLISH, "INSERT INTO t SELECT i, 'r' || i FROM generate_series(1, 20) i"),
        dml=("UPDATE t SET a = -a", "DELETE FROM t WHERE a < -10"),
        expected={"t": [(str(-i), f"r{i}") for i in range(1, 11)]},
        changes=(20, 10),
    ),
    Scenario(
        "C04",
        "two rows swap their keys in one statement",
        setup=(DEFERRABLE, FULL, PUBLISH, "INSERT INTO t VALUES (1, 'one'), (2, 'two')"),
        dml=("BEGIN", "UPDATE t SET a = 3 - a", "COMMIT"),
        expected={"t": [("2", "one"), ("1", "two")]},
        changes=(2,),
    ),
    Scenario(
        "C05",
        "a table without a usable replica identity is named before its first update",
        setup=(DEFERRABLE, PUBLISH, "INSERT INTO t VALUES (1, 'one')"),
        dml=("UPDATE t SET b = 'x'",),
        dml_sqlstate="55000",
        expected={"t": [("1", "one")]},
        warning=("c05.t", "replica identity"),
        changes=(),
    ),
    Scenario(
        "C06",
        "insert, delete and insert of one key in one transaction",
        setup=(TABLE, PUBLISH),
        dml=(
            "BEGIN",
            "INSERT INTO t VALUES (1, 'a')",
            "DELETE FROM t WHERE a = 1",
            "INSERT INTO t VALUES (1, 'b')",
            "COMMIT",
        ),
        expected={"t": [("1", "b")]},
        changes=(3,),
    ),
    Scenario(
        "C07",
        "an update that changes nothing is counted",
        setup=(TABLE, PUBLISH, "INSERT INTO t VALUES (1, 'x')"),
        dml=("UPDATE t SET b = b",),
        expected={"t": [("1", "x")]},
        changes=(1,),
    ),
    Scenario(
        "C08",
        "INSERT ... ON CONFLICT",
        setup=(TABLE, PUBLISH, "INSERT INTO t VALUES (1, 'x')"),
        dml=(
            "INSERT INTO t VALUES (1, 'y') ON CONFLICT (a) DO UPDATE SET b = excluded.b",
            "INSERT INTO t VALUES (1, 'q') ON CONFLICT DO NOTHING",
        ),
        expected={"t": [("1", "y")]},
        changes=(1,),
    ),
    Scenario(
        "C09",
        "rows of one COPY share one LSN",
        setup=(TABLE, PUBLISH),
        dml=(Copy("COPY t FROM STDIN", "1\ta\n2\tb\n3\tc\n"),),
        expected={"t": [("1", "a"), ("2", "b"), ("3", "c")]},
        changes=(3,),
    ),
    Scenario(
        "C10",
        "MERGE",
        setup=(TABLE, PUBLISH, "INSERT INTO t VALUES (1, 'x'), (2, 'y')"),
        dml=(
            (
                "MERGE INTO t USING (VALUES (1, 'n'), (5, 'new')) v(a, b) ON t.a = v.a"
                " WHEN MATCHED THEN UPDATE SET b = v.b WHEN NOT MATCHED THEN INSERT VALUES (v.a, v.b)"
            ),
        ),
        expected={"t": [("1", "n"), ("2", "y"), ("5", "new")]},
        changes=(2,),
    ),
    Scenario(
        "C11",
        "a cascade empties parent and child",
        setup=(
            "CREATE TABLE par(a int primary key)",
            "CREATE TABLE chi(b int primary key, a int references par on delete cascade)",
            "CREATE PUBLICATION {p} FOR TABLE par, chi",
            "INSERT INTO par VALUES (1)",
            "INSERT INTO chi VALUES (10, 1), (11, 1)",
        ),
        dml=("DELETE FROM par",),
        expected={"par": [], "chi": []},
        changes=(3,),
    ),
    Scenario(
        "C12",
        "without a key, exactly one of several equal rows is updated and one deleted",
        setup=("CREATE TABLE t(x int)", FULL, PUBLISH, "INSERT INTO t VALUES (1), (1), (1)"),
        dml=("UPDATE t SET x = 2 WHERE ctid = '(0,1)'", "DELETE FROM t WHERE ctid = '(0,2)'"),
        expected={"t": [("2",), ("1",)]},
        changes=(1, 1),
    ),
    Scenario(
        "C13",
        "without a key, every row of a multiset is updated",
        setup=(
            "CREATE TABLE t(a int)",
            FULL,
            PUBLISH,
            "INSERT INTO t SELECT i FROM generate_series(1, 10) i, generate_series(1, 2)",
        ),
        dml=("UPDATE t SET a = a * a",),
        expected={"t": [(str(i * i),) for i in range(1, 11) for _ in range(2)]},
        changes=(20,),
    ),
    Scenario(
        "C14",
        "without a key, NULL matches NULL",
        setup=("CREATE TABLE t(x int, y text)", FULL, PUBLISH),
        dml=("INSERT INTO t VALUES (1, NULL), (2, NULL)", "UPDATE t SET x = x + 1 WHERE x = 1"),
        expected={"t": [("2", None), ("2", None)]},
        changes=(2, 1),
    ),
    Scenario(
        "C15",
        "the replica identity moves to another index",
        setup=(
            "CREATE TABLE t(a int not null, b int not null)",
            "CREATE UNIQUE INDEX ia ON t(a)",
            "CREATE UNIQUE INDEX ib ON t(b)",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX ia",
            PUBLISH,
            "INSERT INTO t VALUES (1, 1), (2, 2)",
        ),
        dml=(
            "ALTER TABLE t REPLICA IDENTITY USING INDEX ib",
            "UPDATE t SET a = -a WHERE a = 1",
            "DELETE FROM t WHERE a = 2",
        ),
        expected={"t": [("-1", "1")]},
        changes=(1, 1),
    ),
    Scenario(
        "C16",
        "replica identity nothing brings inserts only",
        setup=(
            "CREATE TABLE t(a int primary key)",
            "ALTER TABLE t REPLICA IDENTITY NOTHING",
            "CREATE PUBLICATION {p} FOR TABLE t WITH (publish = 'insert')",
        ),
        dml=("INSERT INTO t VALUES (1)", "UPDATE t SET a = 2", "DELETE FROM t"),
        expected={"t": [("1",)]},
        differs_because="the publication holds inserts only",
        warning=("c16.t",),
        changes=(1,),
    ),
    Scenario(
        "C17",
        "a table without key and replica identity is not refused: its inserts are appended",
        setup=("CREATE TABLE t(a int)", PUBLISH, "INSERT INTO t VALUES (1)"),
        dml=(
            "INSERT INTO t VALUES (1), (1)",
            "INSERT INTO t VALUES (1)",
            "UPDATE t SET a = 2",
        ),
        dml_sqlstate="55000",
        expected={"t": [("1",)] * 4},
        warning=("c17.t", "replica identity"),
        changes=(2, 1),
    ),
    Scenario(
        "C18",
        "an added column has its default in rows that are older than it",
        setup=("CREATE TABLE t(a int)", FULL, "INSERT INTO t VALUES (1)", PUBLISH),
        dml=("ALTER TABLE t ADD b bool DEFAULT false NOT NULL", "UPDATE t SET a = a + 1"),
        expected={"t": [("2", "false")]},
        changes=(1,),
    ),
    Scenario(
        "C19",
        "without a key, a row is found after a column was dropped",
        setup=(
            "CREATE TABLE t(a int, b text, c int)",
            FULL,
            "INSERT INTO t VALUES (1, 'x', 7), (2, 'y', 8)",
            PUBLISH,
        ),
        dml=("ALTER TABLE t DROP b", "UPDATE t SET a = 10 WHERE a = 1"),
        expected={"t": [("10", "7"), ("2", "8")]},
        surplus_columns=("b",),
        changes=(1,),
    ),
)
