"""Scenarios C55, C56, C64, C65, C80, C93, C102: DDL that sends nothing; forms of values."""

from __future__ import annotations

from tests.conformance.scenario import In, Scenario

PUBLISH = "CREATE PUBLICATION {p} FOR TABLE t"
TABLE = "CREATE TABLE t(a int primary key, b text)"

SCENARIOS = (
    Scenario(
        "C55",
        "rewrites of the table send no rows",
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key, b int)",
            "CREATE TABLE v(a int primary key, b int)",
            "CREATE PUBLICATION {p} FOR TABLE t, v",
            "INSERT INTO t VALUES (1, 2)",
            "INSERT INTO v VALUES (1, 2)",
        ),
        dml=(
            "ALTER TABLE t ALTER b TYPE bigint",
            "ALTER TABLE t ADD c int NOT NULL DEFAULT 7",
            "INSERT INTO t VALUES (2, 3000000000, 8)",
            "ALTER TABLE v ADD c int NOT NULL DEFAULT 7",
            "VACUUM FULL v",
            "INSERT INTO v VALUES (2, 3, 8)",
        ),
        expected={
            "t": [("1", "2", "7"), ("2", "3000000000", "8")],
            "v": [("1", "2", None), ("2", "3", "8")],
        },
        differs_because=(
            "after a rewrite between the ADD COLUMN and the next batch PostgreSQL no longer knows the"
            " column's value in older rows: NULL in `v` until they change, with a warning;"
            " `on_unknown_default` brings the value"
        ),
        warning=("c55.v", "column c", "copy_tables"),
        changes=(1, 1),
    ),
    Scenario(
        "C56",
        "DDL alone sends nothing: a new column is seen with the next row",
        group="reading",
        setup=(TABLE, PUBLISH, "INSERT INTO t VALUES (1, 'x')"),
        dml=("ALTER TABLE t ADD c int", "CREATE TABLE other(x int)"),
        expected={"t": [("1", "x")]},
        absent_columns=("c",),
        changes=(),
    ),
    Scenario(
        "C64",
        "values in binary form",
        group="binary",
        setup=(
            "CREATE TYPE mood AS ENUM ('sad', 'happy')",
            (
                "CREATE TABLE t(a int primary key, m mood, n numeric(12, 3), u numeric, f float8,"
                " d date, ts timestamptz, by bytea, j jsonb, ar int[])"
            ),
            PUBLISH,
            (
                "INSERT INTO t VALUES (0, 'sad', 1, 1, 1, '2026-01-01', '2026-01-01 00:00:00+00', '', '1',"
                " '{}')"
            ),
        ),
        dml=(
            (
                "INSERT INTO t VALUES (1, 'happy', -12345.678, 1e40, 0.1, '2024-02-29',"
                " '2024-02-29 12:00:00.5+02', '\\x00ff', '{\"a\": [1]}', '{1,NULL,3}')"
            ),
            "UPDATE t SET m = 'happy', n = 2.5 WHERE a = 0",
        ),
        expected={
            "t": [
                (
                    *("0", "happy", "2.500", "1", "1.0", "2026-01-01", "2026-01-01 00:00:00+00"),
                    *("\\x", "1", "[]"),
                ),
                (
                    *("1", "happy", "-12345.678", "1" + "0" * 40, "0.1", "2024-02-29"),
                    *("2024-02-29 10:00:00.5+00", "\\x00ff", '{"a": [1]}', '["1", null, "3"]'),
                ),
            ]
        },
        changes=(1, 1),
    ),
    Scenario(
        "C65",
        "a database in LATIN1",
        group="latin1",
        setup=(TABLE, PUBLISH, "INSERT INTO t VALUES (0, 'ÿ copied')"),
        dml=("INSERT INTO t VALUES (1, 'é')", "UPDATE t SET b = 'à ' || b WHERE a = 0"),
        expected={"t": [("0", "à ÿ copied"), ("1", "é")]},
        changes=(1, 1),
    ),
    Scenario(
        "C80",
        "without two_phase a prepared transaction comes at its COMMIT PREPARED",
        group="reading",
        setup=(TABLE, PUBLISH),
        dml=(
            "BEGIN",
            "INSERT INTO t VALUES (1, 'x')",
            "PREPARE TRANSACTION 'c80_1'",
            "INSERT INTO t VALUES (99, 'between')",
            "COMMIT PREPARED 'c80_1'",
            "BEGIN",
            "INSERT INTO t VALUES (2, 'y')",
            "PREPARE TRANSACTION 'c80_2'",
            "ROLLBACK PREPARED 'c80_2'",
        ),
        expected={"t": [("1", "x"), ("99", "between")]},
        changes=(1, 1),
    ),
    Scenario(
        "C93",
        "a table is published while transactions write to it: it is copied after they ended",
        group="reading",
        setup=(
            "CREATE TABLE t(a int primary key)",
            "CREATE TABLE u(a int primary key)",
            PUBLISH,
        ),
        dml=(
            In("first", "BEGIN"),
            In("first", "INSERT INTO u VALUES (11)"),
            In("second", "BEGIN"),
            In("second", "INSERT INTO u VALUES (21)"),
            "ALTER PUBLICATION {p} ADD TABLE u",
            In("second", "INSERT INTO u VALUES (22)"),
            In("second", "INSERT INTO t VALUES (1)"),
            In("second", "COMMIT"),
            In("first", "INSERT INTO u VALUES (12)"),
            In("first", "COMMIT"),
            "INSERT INTO u VALUES (99)",
        ),
        expected={"t": [("1",)], "u": [(each,) for each in ("11", "12", "21", "22", "99")]},
        changes=(1,),
    ),
    Scenario(
        "C102",
        "a primary key WITHOUT OVERLAPS: the text of the range is part of the key",
        group="reading",
        least_version=18,
        setup=(
            "CREATE TABLE t(id int4range, v daterange, b text, PRIMARY KEY (id, v WITHOUT OVERLAPS))",
            PUBLISH,
            "INSERT INTO t VALUES ('[1,1]', '[2026-01-01,2026-01-31]', 'copied')",
        ),
        dml=(
            (
                "INSERT INTO t VALUES ('[1,2)', '[2026-02-01,2026-03-01)', 'x'),"
                " ('[2,3)', '[2026-01-01,2026-03-01)', 'y')"
            ),
            "UPDATE t SET b = 'u' WHERE id = '[1,2)' AND v @> date '2026-01-15'",
            "UPDATE t SET v = '[2026-02-01,2026-02-15]' WHERE b = 'x'",
            "DELETE FROM t WHERE id = '[2,3)'",
        ),
        expected={
            "t": [
                ("[1,2)", "[2026-01-01,2026-02-01)", "u"),
                ("[1,2)", "[2026-02-01,2026-02-16)", "x"),
            ]
        },
        changes=(2, 1, 1, 1),
    ),
)
