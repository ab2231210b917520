"""Scenarios C53, C60 to C63, C66, C94: schema changes, types, settings and names."""

from __future__ import annotations

from tests.conformance.scenario import Rejected, Scenario

PUBLISH = "CREATE PUBLICATION {p} FOR TABLE t"
HUGE = "1" + "0" * 130
QUOTED_SCHEMA = '"Sch.""é"'
QUOTED_TABLE = """"T'; DROP TABLE x;--\""""
QUOTED = f"{QUOTED_SCHEMA}.{QUOTED_TABLE}"

#: Settings of a database that change the text of values, of every session that does not pin its own.
HOSTILE_SETTINGS = (
    "ALTER DATABASE {database} SET DateStyle = 'German, DMY'",
    "ALTER DATABASE {database} SET TimeZone = 'America/New_York'",
    "ALTER DATABASE {database} SET IntervalStyle = 'sql_standard'",
    "ALTER DATABASE {database} SET bytea_output = 'escape'",
    "ALTER DATABASE {database} SET extra_float_digits = -3",
    "ALTER DATABASE {database} SET client_encoding = 'LATIN1'",
)

SCENARIOS = (
    Scenario(
        "C53",
        "add with default, rename and drop of columns between rows of one transaction",
        setup=("CREATE TABLE t(a int primary key, b text)", PUBLISH),
        dml=(
            "BEGIN",
            "INSERT INTO t VALUES (1, 'x')",
            "ALTER TABLE t ADD c int DEFAULT 7",
            "INSERT INTO t VALUES (2, 'y')",
            "ALTER TABLE t RENAME b TO bb",
            "INSERT INTO t VALUES (3, 'z')",
            "ALTER TABLE t DROP bb",
            "INSERT INTO t VALUES (4, 8)",
            "COMMIT",
        ),
        expected={"t": [("1", "7"), ("2", "7"), ("3", "7"), ("4", "8")]},
        surplus_columns=("bb",),
        changes=(4,),
    ),
    Scenario(
        "C60",
        "enum, domain, composite and array of enum; a new label",
        setup=(
            "CREATE TYPE e AS ENUM ('r', 'g')",
            "CREATE DOMAIN d AS numeric(6,2) CHECK (value > 0)",
            "CREATE TYPE comp AS (x int, y text)",
            "CREATE TABLE t(a int primary key, e e, d d, c comp, ea e[])",
            PUBLISH,
        ),
        dml=(
            "INSERT INTO t VALUES (1, 'r', 12.5, ROW(1, 'q'), '{r,g}')",
            "ALTER TYPE e ADD VALUE 'b'",
            "INSERT INTO t VALUES (2, 'b', 1, NULL, NULL)",
        ),
        expected={
            "t": [
                ("1", "r", "12.50", "(1,q)", '["r", "g"]'),
                ("2", "b", "1.00", None, None),
            ]
        },
        changes=(1, 1),
    ),
    Scenario(
        "C61",
        "arrays with NULL, ranges, hstore, intervals, nested composites: all of insert, update, delete",
        setup=(
            "CREATE TYPE inner_type AS (x int, y text)",
            "CREATE TYPE outer_type AS (n inner_type, f float8)",
            (
                "CREATE TABLE t(a int primary key, ia int[], ta text[], na numeric(8,3)[], r int4range,"
                " nr numrange, mr int4multirange, h hstore, iv interval, co outer_type, da date[])"
            ),
            PUBLISH,
        ),
        dml=(
            (
                "INSERT INTO t VALUES (1, '{1,NULL,3}', '{a,NULL,\"b,c\",\"\"}', '{1.5,2.25}', '[1,10]',"
                " '(1.5,2.5]', '{[1,3),[5,7)}', 'k=>v, n=>NULL', '1 year 2 mons -3 days 04:05:06.7',"
                " ROW(ROW(1, 'q\"'), 0.1), '{2024-02-29,NULL}')"
            ),
            (
                "INSERT INTO t VALUES (2, '{}', NULL, '{}', 'empty', '(,)', '{}', '', '-178000000 years',"
                " NULL, '{}'), (3, NULL, '{x}', NULL, '(,5)', NULL, NULL, NULL, '0', NULL, NULL)"
            ),
            "UPDATE t SET ia = '{9}', h = 'x=>y', r = '[5,5]' WHERE a = 2",
            "DELETE FROM t WHERE a = 3",
        ),
        expected={
            "t": [
                (
                    "1",
                    '["1", null, "3"]',
                    '["a", null, "b,c", ""]',
                    '["1.500", "2.250"]',
                    "[1,11)",
                    "(1.5,2.5]",
                    "{[1,3),[5,7)}",
                    '{"k": "v", "n": null}',
                    "1 year 2 mons -3 days +04:05:06.7",
                    '("(1,""q"""""")",0.1)',
                    '["2024-02-29", null]',
                ),
                (
                    "2",
                    '["9"]',
                    None,
                    "[]",
                    "[5,6)",
                    "(,)",
                    "{}",
                    '{"x": "y"}',
                    "-178000000 years",
                    None,
                    "[]",
                ),
            ]
        },
        changes=(1, 2, 1, 1),
        database_setup=("CREATE EXTENSION IF NOT EXISTS hstore SCHEMA public",),
    ),
    Scenario(
        "C62",
        "values that a column of the lake cannot hold are NULL there and kept as text beside",
        setup=(
            (
                "CREATE TABLE t(a int primary key, n numeric, p numeric(6,2), d date, ts timestamp,"
                " tz timestamptz, f float8, iv interval, tt timetz, by bytea, j jsonb, m money,"
                " b1 bit(3), i inet, ar int[])"
            ),
            PUBLISH,
        ),
        dml=(
            "SET timezone = 'America/New_York'",
            "SET datestyle = 'German'",
            "SET intervalstyle = 'iso_8601'",
            "SET bytea_output = 'escape'",
            "SET extra_float_digits = 0",
            (
                "INSERT INTO t VALUES"
                " (1, 'NaN', 'NaN', 'infinity', '-infinity', 'infinity', '-Infinity',"
                " '1 year 2 mons -3 days 04:05:06.7', '24:00:00+05:30', '\\x00ff', '{\"a\":1}', 12.34,"
                " '101', '10.0.0.0/8', '{{1,2},{3,4}}'),"
                " (2, 'Infinity', 1.5, '0044-03-15 BC', '4713-01-01 BC', '294276-12-31 23:59:59+00',"
                " 'NaN', '-178000000 years', '00:00:00-15:59', '', 'null', -1, '000', '::1', '{1}'),"
                " (3, 1e130, NULL, '5874897-12-31', '20231-01-01', '2024-03-10 02:30:00', 0.1, '0',"
                " '12:00+00', NULL, NULL, NULL, NULL, NULL, NULL),"
                " (4, -0.0, 0, '9999-12-31', '0001-01-01', '9999-12-31 23:59:59.999999+00', '-0', NULL,"
                " NULL, NULL, NULL, NULL, NULL, NULL, '{}')"
            ),
        ),
        expected={
            "t": [
                (
                    *("1", "NaN", None, None, None, None, "-inf"),
                    *("1 year 2 mons -3 days +04:05:06.7", "24:00:00+05:30", "\\x00ff", '{"a": 1}'),
                    *("$12.34", "101", "10.0.0.0/8", None),
                ),
                (
                    *("2", "Infinity", "1.50", None, None, None, "nan", "-178000000 years"),
                    *("00:00:00-15:59", "\\x", "null", "-$1.00", "000", "::1", '["1"]'),
                ),
                (
                    *("3", HUGE, None, None, None, "2024-03-10 07:30:00+00", "0.1", "00:00:00"),
                    *("12:00:00+00", None, None, None, None, None, None),
                ),
                (
                    *("4", "0.0", "0.00", "9999-12-31", "0001-01-01 00:00:00"),
                    *("9999-12-31 23:59:59.999999+00", "-0.0"),
                    *(None, None, None, None, None, None, None, "[]"),
                ),
            ]
        },
        differs_because="the side table holds what the columns cannot",
        rejected=(
            Rejected("t", "p", '{"a": "1"}', "NaN"),
            Rejected("t", "d", '{"a": "1"}', "infinity"),
            Rejected("t", "ts", '{"a": "1"}', "-infinity"),
            Rejected("t", "tz", '{"a": "1"}', "infinity"),
            Rejected("t", "ar", '{"a": "1"}', "{{1,2},{3,4}}"),
            Rejected("t", "d", '{"a": "2"}', "0044-03-15 BC"),
            Rejected("t", "ts", '{"a": "2"}', "4713-01-01 00:00:00 BC"),
            Rejected("t", "tz", '{"a": "2"}', "294276-12-31 23:59:59+00"),
            Rejected("t", "d", '{"a": "3"}', "5874897-12-31"),
            Rejected("t", "ts", '{"a": "3"}', "20231-01-01 00:00:00"),
        ),
        changes=(4,),
    ),
    Scenario(
        "C63",
        "settings of the database do not change what the lake holds",
        group="settings",
        database_setup=HOSTILE_SETTINGS,
        setup=(
            (
                "CREATE TABLE t(a int primary key, d date, ts timestamp, tz timestamptz, iv interval,"
                " f float8, r real, by bytea, s text)"
            ),
            PUBLISH,
            (
                "INSERT INTO t VALUES (1, '1999-02-01', '1999-02-01 10:00:00', '1999-02-01 10:00:00+00',"
                " '1 mon -3 days 04:05:06.7', 0.1::float8 + 0.2::float8, 0.1, '\\x00ff', 'é')"
            ),
        ),
        dml=(
            (
                "INSERT INTO t VALUES (2, '2024-02-01', '2024-02-01 10:00:00', '2024-02-01 10:00:00+00',"
                " '1 mon -3 days 04:05:06.7', 0.1::float8 + 0.2::float8, 0.1, '\\x00ff', 'é€')"
            ),
        ),
        expected={
            "t": [
                (
                    *("1", "1999-02-01", "1999-02-01 10:00:00", "1999-02-01 10:00:00+00"),
                    *("1 mon -3 days +04:05:06.7", "0.30000000000000004", "0.1", "\\x00ff", "é"),
                ),
                (
                    *("2", "2024-02-01", "2024-02-01 10:00:00", "2024-02-01 10:00:00+00"),
                    *("1 mon -3 days +04:05:06.7", "0.30000000000000004", "0.1", "\\x00ff", "é€"),
                ),
            ]
        },
        changes=(1,),
    ),
    Scenario(
        "C66",
        "names that need quoting everywhere",
        setup=(
            f"CREATE SCHEMA {QUOTED_SCHEMA}",
            f'CREATE TABLE {QUOTED}("a\'" int primary key, "B c" text, "select" int, "日本" int)',
            f"CREATE PUBLICATION {{p}} FOR TABLE {QUOTED}",
            f"INSERT INTO {QUOTED} VALUES (0, 'copied', 0, 0)",
        ),
        dml=(
            f"INSERT INTO {QUOTED} VALUES (1, 'x', 2, 3)",
            f'UPDATE {QUOTED} SET "B c" = \'y\' WHERE "a\'" = 0',
        ),
        table_schema='Sch."é',
        expected={"T'; DROP TABLE x;--": [("1", "x", "2", "3"), ("0", "y", "0", "0")]},
        changes=(1, 1),
    ),
    Scenario(
        "C94",
        "VACUUM FULL and CLUSTER rewrite the table and send nothing",
        setup=(
            "CREATE TABLE t(a int primary key, b text)",
            PUBLISH,
            "INSERT INTO t VALUES (1, 'x')",
        ),
        dml=("VACUUM FULL t", "CLUSTER t USING t_pkey", "INSERT INTO t VALUES (2, 'y')"),
        expected={"t": [("1", "x"), ("2", "y")]},
        changes=(1,),
    ),
)
