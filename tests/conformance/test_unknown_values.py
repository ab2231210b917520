"""Tables without a key whose old rows have values that nobody told, from the source into the lake.

PostgreSQL fills an added column in without row events. When the column is dropped again, or the table written
anew, nobody tells the value any more; but old rows (REPLICA IDENTITY FULL) hold it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from tests.conformance.many_tables import Tables

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline


#: By table, with rows (1, x), (1, x), (2, y), (3, NULL): what happens between the first batch and the second.
CHANGES: dict[str, tuple[str, ...]] = {
    "constant": (
        "ALTER TABLE constant ADD c int DEFAULT -1",
        "UPDATE constant SET a = 10 WHERE ctid = '(0,1)'",
        "DELETE FROM constant WHERE a = 3",
        "ALTER TABLE constant DROP c",
    ),
    "rewritten": (
        "ALTER TABLE rewritten ADD c int DEFAULT -1",
        "VACUUM FULL rewritten",
        "DELETE FROM rewritten WHERE a = 2",
        "UPDATE rewritten SET b = 'z' WHERE ctid = '(0,1)'",
    ),
    "several": (
        "ALTER TABLE several ADD c int DEFAULT -1",
        "UPDATE several SET c = 5 WHERE a = 1",
        "ALTER TABLE several ADD d float8 DEFAULT random()",
        "UPDATE several SET d = 7 WHERE a = 2",
        "INSERT INTO several VALUES (1, 'x', -1, NULL), (1, 'x', NULL, 3)",
        "DELETE FROM several WHERE ctid IN ('(0,5)', '(0,7)')",
        "DELETE FROM several WHERE c IS NULL",
        "DELETE FROM several WHERE a = 3",
        "ALTER TABLE several DROP c",
        "ALTER TABLE several DROP d",
    ),
    "again": (
        "ALTER TABLE again ADD c int DEFAULT -1",
        "UPDATE again SET b = 'z' WHERE a = 2",
        "ALTER TABLE again DROP c",
        "ALTER TABLE again ADD c int DEFAULT -2",
        "UPDATE again SET b = 'w' WHERE a = 3",
        "DELETE FROM again WHERE ctid = '(0,1)'",
        "ALTER TABLE again DROP c",
    ),
    "alike": (
        "ALTER TABLE alike ADD c int DEFAULT -1",
        "INSERT INTO alike VALUES (1, 'x', 5), (1, 'x', NULL), (1, 'x', -1)",
        "DELETE FROM alike WHERE a = 1 AND c = 5",
        "DELETE FROM alike WHERE ctid = '(0,1)'",
        "DELETE FROM alike WHERE c IS NULL",
        "ALTER TABLE alike DROP c",
    ),
    "truncated": (
        "ALTER TABLE truncated ADD c int DEFAULT -1",
        "DELETE FROM truncated WHERE a = 3",
        "TRUNCATE truncated",
        "INSERT INTO truncated VALUES (1, 'x', NULL), (4, 'x', 9)",
        "UPDATE truncated SET a = 5 WHERE a = 4",
        "ALTER TABLE truncated DROP c",
    ),
    "short_lived": (
        "INSERT INTO short_lived VALUES (7, 'in the batch'), (8, 'too')",
        "ALTER TABLE short_lived ADD c int DEFAULT -1",
        "DELETE FROM short_lived WHERE a = 7",
        "UPDATE short_lived SET a = 9 WHERE a = 8",
        "ALTER TABLE short_lived DROP c",
    ),
    "logged": (
        "ALTER TABLE logged ADD c int DEFAULT -1",
        "UPDATE logged SET a = 10 WHERE a = 2",
        "ALTER TABLE logged DROP c",
    ),
    "listed": (
        "ALTER TABLE listed ADD c int[] DEFAULT '{1}', ADD d text[] DEFAULT '{x}'",
        "UPDATE listed SET a = 10 WHERE a = 2",
        "DELETE FROM listed WHERE ctid = '(0,1)'",
        "ALTER TABLE listed DROP c, DROP d",
    ),
    "volatile": (
        "ALTER TABLE volatile ADD c float8 DEFAULT random()",
        "INSERT INTO volatile VALUES (4)",
    ),
}
#: What comes after the second batch.
LATER = (
    "DELETE FROM rewritten WHERE ctid = '(0,2)'",
    "DELETE FROM volatile WHERE a = 1 AND ctid = '(0,1)'",
    "UPDATE volatile SET b = 'w' WHERE a = 2",
    "DELETE FROM volatile WHERE a = 4",
    "DELETE FROM constant WHERE a = 10",
    "UPDATE again SET b = 'v' WHERE b = 'w'",
)


@pytest.mark.further
def test_a_row_is_found_although_nobody_told_what_a_column_holds_in_it(pipeline: Pipeline) -> None:
    """With the warning alone, which is the default; what the source shows of a and b is in the lake."""
    tables = Tables(pipeline, logs=("public.logged",))
    tables.run(
        *(
            statement
            for name in CHANGES
            for statement in (
                f"CREATE TABLE {name} (a int, b text)",
                f"ALTER TABLE {name} REPLICA IDENTITY FULL",
                f"INSERT INTO {name} VALUES (1, 'x'), (1, 'x'), (2, 'y'), (3, NULL)",
            )
        ),
        f"CREATE PUBLICATION p FOR TABLE {', '.join(CHANGES)}",
    )

    def assert_equal() -> None:
        for name in CHANGES.keys() - {"logged"}:
            rows = Counter(tables.execute(f"SELECT a::text, b FROM {name}"))
            assert tables.lake_rows(name, columns=("a", "b")) == rows, name

    tables.run(*(statement for statements in CHANGES.values() for statement in statements))
    assert_equal()
    tables.run(*LATER)
    assert_equal()
    tables.assert_repeatable()


def test_a_copy_brings_in_what_nobody_told(pipeline: Pipeline) -> None:
    pipeline.capture_options["schema_policy"] = SchemaPolicy(on_unknown_default="copy")
    tables = Tables(pipeline)
    names = ("rewritten", "volatile")
    tables.run(
        *(
            statement
            for name in names
            for statement in (
                f"CREATE TABLE {name} (a int, b text)",
                f"ALTER TABLE {name} REPLICA IDENTITY FULL",
                f"INSERT INTO {name} VALUES (1, 'x'), (1, 'x'), (2, 'y')",
            )
        ),
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    manifest = tables.run(
        "ALTER TABLE rewritten ADD c int DEFAULT -1",
        "VACUUM FULL rewritten",
        "DELETE FROM rewritten WHERE ctid = '(0,1)'",
        "ALTER TABLE volatile ADD c int DEFAULT (random() * 100)::int",
        "DELETE FROM volatile WHERE ctid = '(0,1)'",
    )
    assert {each.name for each in manifest.tables if each.copy_lsn} == {
        f"public.{n}" for n in names
    }
    tables.assert_equal(*names)
