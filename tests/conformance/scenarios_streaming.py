"""Scenarios C70 to C79, C82, C83: savepoints, streamed transactions, prepared transactions."""

from __future__ import annotations

from tests.conformance.scenario import In, Scenario

SETUP = ("CREATE TABLE t(a int primary key, b text)", "CREATE PUBLICATION {p} FOR TABLE t")


def insert(number: int) -> str:
    """One row."""
    return f"INSERT INTO t VALUES ({number}, 'r{number}')"


def insert_many(first: int, last: int) -> str:
    """Rows of 200 bytes."""
    return f"INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series({first}, {last}) g"


def rows(*numbers: int) -> list[tuple[str | None, ...]]:
    """What ``insert`` wrote."""
    return [(str(number), f"r{number}") for number in numbers]


def many_rows(first: int, last: int) -> list[tuple[str | None, ...]]:
    """What ``insert_many`` wrote."""
    return [(str(number), "x" * 200) for number in range(first, last + 1)]


def evolved(number: int) -> tuple[str | None, ...]:
    """A row of C77 at its end: columns a, b, c, d, e, f."""
    since = {"c": 4, "d": 1001, "e": 2002, "f": 5001}
    return (str(number), "x", *(str(number) if number >= each else None for each in since.values()))


SCENARIOS = (
    Scenario(
        "C70",
        "80 nested savepoints, released with the outermost",
        group="streaming",
        setup=SETUP,
        dml=(
            "BEGIN",
            *(f"SAVEPOINT s{number}" for number in range(80)),
            *(insert(1), insert(2), insert(3)),
            "RELEASE SAVEPOINT s0",
            insert(4),
            "COMMIT",
        ),
        expected={"t": rows(1, 2, 3, 4)},
        changes=(4,),
    ),
    Scenario(
        "C71",
        "savepoints, some rolled back, in a transaction that is sent whole",
        group="reading",
        setup=SETUP,
        dml=(
            *("BEGIN", insert(3), "SAVEPOINT s1", insert(4), "SAVEPOINT s2", insert(5)),
            *("SAVEPOINT s3", insert(6), "ROLLBACK TO s2", insert(7), "ROLLBACK TO s1", insert(8)),
            *("SAVEPOINT s4", insert(9), "SAVEPOINT s5", insert(10), "COMMIT"),
        ),
        expected={"t": rows(3, 8, 9, 10)},
        changes=(4,),
    ),
    Scenario(
        "C72",
        "a streamed transaction rolls savepoints back",
        group="streaming",
        setup=SETUP,
        dml=(
            *("BEGIN", insert(3), "SAVEPOINT s1", insert(4), "SAVEPOINT s2", insert(5)),
            *("ROLLBACK TO s1", insert(8), "COMMIT"),
        ),
        expected={"t": rows(3, 8)},
        changes=(2,),
    ),
    Scenario(
        "C73",
        "savepoints of a streamed transaction are aborted in another order than they nest",
        group="streaming",
        setup=SETUP,
        dml=(
            *("BEGIN", insert(11), "SAVEPOINT s1", insert(12), "SAVEPOINT s2", insert(13)),
            *("SAVEPOINT s3", insert(14), "RELEASE s2", insert(15), "ROLLBACK TO s1", "COMMIT"),
        ),
        expected={"t": rows(11)},
        changes=(1,),
    ),
    Scenario(
        "C74",
        "a large subtransaction of a streamed transaction is rolled back",
        group="streaming",
        setup=SETUP,
        dml=(
            *("BEGIN", insert_many(1, 1500), "SAVEPOINT a", insert_many(2001, 3500)),
            *("ROLLBACK TO a", insert(9999), "COMMIT"),
        ),
        expected={"t": [*many_rows(1, 1500), *rows(9999)]},
        changes=(1501,),
    ),
    Scenario(
        "C75",
        "a streamed transaction is rolled back as a whole",
        group="streaming",
        setup=SETUP,
        dml=("BEGIN", insert_many(1, 1500), "ROLLBACK", insert(1)),
        expected={"t": rows(1)},
        changes=(1,),
    ),
    Scenario(
        "C76",
        "columns are added and dropped in subtransactions of a streamed transaction",
        group="streaming",
        setup=SETUP,
        dml=(
            *("BEGIN", insert_many(3, 500), "ALTER TABLE t ADD c int", "SAVEPOINT s1"),
            "INSERT INTO t SELECT g, 'lost', g FROM generate_series(501, 1000) g",
            *("ALTER TABLE t ADD d int", "SAVEPOINT s2"),
            "INSERT INTO t SELECT g, 'lost', g, g FROM generate_series(1001, 1500) g",
            *("ALTER TABLE t DROP c", "ROLLBACK TO s1"),
            "INSERT INTO t SELECT g, 'kept', g FROM generate_series(501, 1000) g",
            "COMMIT",
        ),
        expected={
            "t": [
                *((*row, None) for row in many_rows(3, 500)),
                *((str(number), "kept", str(number)) for number in range(501, 1001)),
            ]
        },
        changes=(998,),
    ),
    Scenario(
        "C77",
        "columns are added in the middle and at the end of small and large transactions",
        group="streaming",
        setup=(*SETUP, "INSERT INTO t VALUES (1, 'x'), (2, 'x')"),
        dml=(
            *("BEGIN", "INSERT INTO t VALUES (3, 'x')", "ALTER TABLE t ADD c int"),
            *("INSERT INTO t VALUES (4, 'x', 4)", "COMMIT", "BEGIN"),
            "INSERT INTO t SELECT g, 'x', g FROM generate_series(5, 1000) g",
            "ALTER TABLE t ADD d int",
            "INSERT INTO t SELECT g, 'x', g, g FROM generate_series(1001, 2000) g",
            *("COMMIT", "BEGIN", "INSERT INTO t VALUES (2001, 'x', 2001, 2001)"),
            "ALTER TABLE t ADD e int",
            *("INSERT INTO t VALUES (2002, 'x', 2002, 2002, 2002)", "COMMIT", "BEGIN"),
            "INSERT INTO t SELECT g, 'x', g, g, g FROM generate_series(2003, 5000) g",
            *("ALTER TABLE t ADD f int", "COMMIT", "BEGIN"),
            "INSERT INTO t SELECT g, 'x', g, g, g, g FROM generate_series(5001, 5005) g",
            "COMMIT",
        ),
        expected={"t": [evolved(number) for number in range(1, 5006)]},
        changes=(2, 1996, 2, 2998, 5),
    ),
    Scenario(
        "C78",
        "blocks of two streamed transactions interleave",
        group="streaming",
        setup=SETUP,
        dml=(
            In("first", "BEGIN"),
            In("first", insert(1)),
            In("second", "BEGIN"),
            In("second", insert(2)),
            In("first", insert(3)),
            In("second", "COMMIT"),
            In("first", "COMMIT"),
        ),
        expected={"t": rows(1, 2, 3)},
        changes=(1, 2),
    ),
    Scenario(
        "C79",
        "two_phase: prepared, committed, rolled back, and prepared without a change",
        group="two_phase",
        setup=SETUP,
        dml=(
            *("BEGIN", insert(1), "PREPARE TRANSACTION 'c79_1'", insert(99)),
            "COMMIT PREPARED 'c79_1'",
            *("BEGIN", insert(2), "PREPARE TRANSACTION 'c79_2'", "ROLLBACK PREPARED 'c79_2'"),
            *("BEGIN", "SELECT * FROM t FOR SHARE", "PREPARE TRANSACTION 'c79_3'"),
            "COMMIT PREPARED 'c79_3'",
        ),
        expected={"t": rows(1, 99)},
        changes=(1, 1),
    ),
    Scenario(
        "C82",
        "two_phase: a savepoint rolled back, and gids that are empty, long, quoted or used twice",
        group="two_phase",
        setup=SETUP,
        dml=(
            *("BEGIN", insert(21), "SAVEPOINT s", insert(22), "ROLLBACK TO s"),
            *("PREPARE TRANSACTION ''", "COMMIT PREPARED ''"),
            *(
                "BEGIN",
                insert(23),
                "PREPARE TRANSACTION 'c82 ../''\"; DROP TABLE t;--" + "x" * 170 + "'",
            ),
            "COMMIT PREPARED 'c82 ../''\"; DROP TABLE t;--" + "x" * 170 + "'",
            *("BEGIN", insert(24), "PREPARE TRANSACTION 'c82'", "ROLLBACK PREPARED 'c82'"),
            *("BEGIN", insert(25), "PREPARE TRANSACTION 'c82'", "COMMIT PREPARED 'c82'"),
        ),
        expected={"t": rows(21, 23, 25)},
        changes=(1, 1, 1),
    ),
    Scenario(
        "C83",
        "two_phase: streamed transactions with updates and deletes, one committed, one rolled back",
        group="two_phase",
        setup=(*SETUP, "INSERT INTO t VALUES (1, 'foo'), (2, 'bar')"),
        dml=(
            *("BEGIN", "INSERT INTO t SELECT g, repeat('y', 2000) FROM generate_series(3, 5) g"),
            *("UPDATE t SET b = 'even' WHERE a % 2 = 0", "DELETE FROM t WHERE a % 3 = 0"),
            *("PREPARE TRANSACTION 'c83_1'", insert(99999), "COMMIT PREPARED 'c83_1'"),
            *("BEGIN", insert_many(100, 400), "DELETE FROM t WHERE a < 100"),
            *("PREPARE TRANSACTION 'c83_2'", "ROLLBACK PREPARED 'c83_2'"),
        ),
        expected={
            "t": [
                *(("1", "foo"), ("2", "even"), ("4", "even"), ("5", "y" * 2000)),
                *rows(99999),
            ]
        },
        changes=(1, 6),
    ),
)
