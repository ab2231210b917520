"""Tables that are dropped, made again, renamed and moved, from the source into the lake.

Scenarios C52, C57 to C59, C90, C91 and more. What is not here: partitions (``test_partition_life.py``), and
that nothing is published of what is refused by default (``test_refusals.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import TableRefused
from tests.conformance.groups import collected_warnings
from tests.conformance.many_tables import Tables

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline


#: By table: how it is made again, after rows 1 to 3 of the former one were copied.
MADE_AGAIN = {
    "same": (
        "CREATE TABLE same(a int PRIMARY KEY, b text)",
        "INSERT INTO same VALUES (1, 'new'), (7, 'new')",
    ),
    "reshaped": (
        "CREATE TABLE reshaped(c numeric(9, 2), b int PRIMARY KEY, a text)",
        "INSERT INTO reshaped VALUES (1.5, 2, 'new'), (2.5, 8, NULL)",
    ),
    "keyless": (
        "CREATE TABLE keyless(a int, b text)",
        "ALTER TABLE keyless REPLICA IDENTITY FULL",
        "INSERT INTO keyless VALUES (1, 'twice'), (1, 'twice'), (2, NULL)",
    ),
    "logged": (
        "CREATE TABLE logged(a int PRIMARY KEY, c int)",
        "INSERT INTO logged VALUES (4, 4), (5, 5)",
        "DROP TABLE logged",
        "CREATE TABLE logged(a int PRIMARY KEY, b text)",
        "INSERT INTO logged VALUES (5, 'third')",
    ),
    "emptied": ("CREATE TABLE emptied(a int PRIMARY KEY, b text)",),
    "narrower": ("CREATE TABLE narrower(a int PRIMARY KEY)", "INSERT INTO narrower VALUES (4)"),
    "thin_log": ("CREATE TABLE thin_log(a int PRIMARY KEY)", "INSERT INTO thin_log VALUES (4)"),
}


def filled(*names: str) -> tuple[str, ...]:
    """Statements that make tables with three rows."""
    return tuple(
        statement
        for name in names
        for statement in (
            f"CREATE TABLE {name}(a int PRIMARY KEY, b text)",
            f"INSERT INTO {name} SELECT g, '{name} ' || g FROM generate_series(1, 3) g",
        )
    )


def test_a_table_that_was_made_again_replaces_the_former_one(pipeline: Pipeline) -> None:
    """C57: refused by default; with ``copy`` exactly the new table's rows, while other tables flow."""
    tables = Tables(pipeline, logs=("public.logged", "public.thin_log"))
    tables.run(
        *filled(*MADE_AGAIN, "beside", "dropped"),
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
    )
    tables.assert_equal(*MADE_AGAIN, "beside", "dropped")
    kept = tables.source_rows("dropped")
    for name, statements in MADE_AGAIN.items():
        tables.execute(
            f"INSERT INTO {name} VALUES (9, 'of the former one')",
            f"DELETE FROM {name} WHERE a = 2",
            f"DROP TABLE {name}",
            *statements,
        )
    tables.execute("UPDATE beside SET b = 'flows' WHERE a = 2", "DROP TABLE dropped")
    names = {f"public.{name}" for name in MADE_AGAIN}
    assert tables.refused(TableRefused, "dropped and created again") in names
    batch = tables.run(on_recreated_table="copy")
    assert {each.name for each in batch.tables if each.copy_lsn is not None} == names
    said = {each.name: [str(one) for one in each.schema_changes] for each in batch.tables}
    assert {name: changes for name, changes in said.items() if changes} == {
        "public.reshaped": [
            "column c was added, numeric(9,2)",
            "column b changed from text to integer",
            "column a changed from integer to text",
            "the key changed from (a) to (b)",
        ],
        "public.keyless": [
            "the key changed from (a) to (none)",
            "the replica identity changed from d to f",
        ],
        "public.narrower": ["column b was dropped"],
        "public.thin_log": ["column b was dropped"],
    }
    tables.assert_equal(*MADE_AGAIN, "beside")
    tables.assert_holds("dropped", kept)

    # From now on they are tables like any other, whatever the policy.
    tables.run(
        # Columns that the former ones had are new ones.
        "ALTER TABLE narrower ADD b text",
        "ALTER TABLE thin_log ADD b text",
        *(f"INSERT INTO {name}(a, b) VALUES (11, '12')" for name in MADE_AGAIN),
        "UPDATE reshaped SET c = 3 WHERE b = 2",
        "DELETE FROM same WHERE a = 1",
        "DELETE FROM keyless WHERE ctid = '(0,1)'",
        "TRUNCATE logged",
        "INSERT INTO logged VALUES (12, 'after')",
    )
    tables.assert_equal(*MADE_AGAIN, "beside")
    tables.assert_repeatable()


def test_a_renamed_or_moved_table_goes_on_as_it_is_told(pipeline: Pipeline) -> None:
    """C58: each is refused by name; its ``target`` option or ``copy_tables`` goes on, for good."""
    tables = Tables(pipeline, logs=("public.logged", "public.logged_now"))
    old = ("renamed", "copied", "moved", "east", "west", "logged")
    tables.run(*filled(*old), "CREATE SCHEMA s", f"CREATE PUBLICATION p FOR TABLE {', '.join(old)}")
    former = tables.source_rows("copied")
    tables.execute(
        "UPDATE renamed SET b = 'before' WHERE a = 1",
        "ALTER TABLE renamed RENAME TO renamed_now",
        "UPDATE renamed_now SET b = 'after' WHERE a = 2",
        "ALTER TABLE copied RENAME TO copied_now",
        "DELETE FROM copied_now WHERE a = 3",
        "ALTER TABLE moved SET SCHEMA s",
        "UPDATE s.moved SET a = 4 WHERE a = 1",
        "ALTER TABLE logged RENAME TO logged_now",
        "DELETE FROM logged_now WHERE a = 1",
        # Each takes the name of the other.
        "ALTER TABLE east RENAME TO aside",
        "ALTER TABLE west RENAME TO east",
        "ALTER TABLE aside RENAME TO west",
        "UPDATE east SET b = 'was west' WHERE a = 1",
        "UPDATE west SET b = 'was east' WHERE a = 1",
    )
    told = [
        {"public.renamed_now": "renamed"},
        {"s.moved": "moved"},
        {"public.logged_now": "logged"},
        {"public.east": "west", "public.west": "east"},
    ]
    targets: dict[str, str] = {}
    copies: tuple[str, ...] = ()
    for _refusal in range(len(told) + 1):
        name = tables.refused(TableRefused, "was renamed", attempts=1, copy_tables=copies)
        if name == "public.copied_now":
            copies = ("public.copied_now",)
            continue
        (new,) = (each for each in told if name in each)
        targets |= new
        tables.set_targets(targets)
    tables.run(copy_tables=copies)
    assert len(targets) == 5
    for name, target in targets.items():
        tables.assert_holds(name, tables.source_rows(name), target=target)
    tables.assert_equal("copied_now")
    tables.assert_holds("copied", former)

    # Renamed again, and another table takes its name: the two policies together.
    tables.execute(
        "INSERT INTO copied_now VALUES (5, 'before')",
        "ALTER TABLE copied_now RENAME TO archive",
        "INSERT INTO archive VALUES (6, 'after')",
        *filled("copied_now"),
        "ALTER PUBLICATION p ADD TABLE copied_now",
        "INSERT INTO copied_now VALUES (7, 'new')",
        *(f"INSERT INTO {name} VALUES (8, 'later')" for name in targets),
    )
    assert tables.refused(TableRefused, "renamed to public.archive") == "public.copied_now"
    # The copy of the new one takes the place of the former one's rows, so that is copied under its new name.
    tables.run(on_recreated_table="copy")
    tables.assert_equal("copied_now", "archive")
    for name, target in targets.items():
        tables.assert_holds(name, tables.source_rows(name), target=target)
    tables.assert_repeatable()


@pytest.mark.parametrize(
    "transport", [pytest.param("sql", marks=pytest.mark.exhaustive), "walsender"]
)
def test_c59_two_tables_that_had_one_name_in_a_transaction_are_told_apart(
    pipeline: Pipeline, transport: str
) -> None:
    """C59: refused by name; then each has its own rows, though version 15 announces no renamed schema."""
    tables = Tables(pipeline)
    tables.run(
        "CREATE SCHEMA s1",
        "CREATE TABLE s1.t(a int PRIMARY KEY)",
        "INSERT INTO s1.t VALUES (0)",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    former = tables.source_rows("s1.t")
    tables.execute(
        "BEGIN",
        "INSERT INTO s1.t VALUES (1)",
        "ALTER SCHEMA s1 RENAME TO s2",
        "CREATE SCHEMA s1",
        "CREATE TABLE s1.t(a int PRIMARY KEY)",
        "INSERT INTO s1.t VALUES (2)",
        "INSERT INTO s2.t VALUES (3)",
        "COMMIT",
    )
    refused = "renamed to s2.t, and another made under its name"
    assert tables.refused(TableRefused, refused, transport=transport) == "s1.t"
    tables.assert_holds("s1.t", former)
    tables.run(on_recreated_table="copy", transport=transport)
    assert tables.lake_rows("s1.t") == {("2",): 1}
    assert tables.lake_rows("s2.t") == {("0",): 1, ("1",): 1, ("3",): 1}

    # Without a copy the rows of one transaction come under two names of a schema, or on 15 under the first.
    tables.execute(
        "BEGIN",
        "INSERT INTO s1.t VALUES (4)",
        "INSERT INTO s2.t VALUES (5)",
        "ALTER SCHEMA s2 RENAME TO s3",
        "INSERT INTO s3.t VALUES (6)",
        "DELETE FROM s3.t WHERE a = 1",
        "COMMIT",
    )
    assert tables.refused(TableRefused, "was renamed", transport=transport) == "s3.t"
    target = pipeline.plan(tables.batches[0]).target_name("s2", "t")
    tables.set_targets({"s3.t": target})
    tables.run(transport=transport)
    tables.assert_holds("s3.t", tables.source_rows("s3.t"), target=target)
    tables.assert_equal("s1.t")
    tables.assert_repeatable()


def test_tables_that_leave_a_publication_and_come_to_one(pipeline: Pipeline) -> None:
    """C52, C91: what the publications lacked for a while is copied, and what left stays as it was."""
    tables = Tables(pipeline, logs=("public.logged",))
    tables.run(
        *(f"CREATE SCHEMA {name}" for name in ("s", "other", "outside")),
        *filled("s.gone", "s.back", "s.across", "outside.came", "logged", "left_out"),
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA s, other, TABLE logged, left_out",
    )
    tables.assert_equal("s.gone", "s.back", "s.across", "logged", "left_out")
    seen = ("s.gone", "s.back", "left_out")
    tables.execute(*(f"UPDATE {name} SET b = 'in time' WHERE a = 1" for name in seen))
    kept = {name: tables.source_rows(name) for name in ("s.gone", "left_out")}
    outside = ("came", "gone", "back")
    with collected_warnings() as warnings:
        tables.run(
            "ALTER TABLE s.gone SET SCHEMA outside",
            "ALTER TABLE s.back SET SCHEMA outside",
            "ALTER PUBLICATION p DROP TABLE logged, left_out",
            # Nobody sends these.
            *(f"DELETE FROM outside.{name} WHERE a = 1" for name in outside),
            *(f"INSERT INTO outside.{name} VALUES (5, 'unseen')" for name in outside),
            *(f"DELETE FROM {name} WHERE a = 2" for name in ("logged", "left_out")),
            "ALTER TABLE outside.came SET SCHEMA s",
            "ALTER TABLE outside.back SET SCHEMA s",
            "ALTER PUBLICATION p ADD TABLE logged",
            "INSERT INTO s.back VALUES (6, 'seen')",
            "INSERT INTO logged VALUES (6, 'seen')",
        )
    tables.assert_equal("s.came", "s.back", "s.across", "logged")
    for name, rows in kept.items():
        tables.assert_holds(name, rows)
    said = "\n".join(warnings)
    for name in ("s.back", "public.logged"):
        assert f"the publications lacked {name}" in said

    # From one published schema to another: published since then only, so it is copied under its new name.
    former = tables.source_rows("s.across")
    with collected_warnings() as warnings:
        tables.run(
            "ALTER TABLE s.across SET SCHEMA other",
            "UPDATE other.across SET b = 'across' WHERE a = 2",
            "UPDATE s.came SET b = 'later' WHERE a = 5",
            "DELETE FROM logged WHERE a = 3",
            "TRUNCATE s.back",
        )
    assert "the publications lacked other.across" in "\n".join(warnings)
    tables.assert_equal("other.across", "s.came", "logged", "s.back")
    tables.assert_holds("s.across", former)
    tables.assert_repeatable()


@pytest.mark.parametrize(
    "transport", ["sql", pytest.param("walsender", marks=pytest.mark.exhaustive)]
)
def test_c91_without_a_copy_what_was_published_flows_and_the_gap_is_named(
    pipeline: Pipeline, transport: str
) -> None:
    """C91 with ``initial_copy="never"``: rows 1, 3 and 4, which are sent; row 2 and the deletes are not."""
    tables = Tables(pipeline)
    tables.run("CREATE TABLE t(a int PRIMARY KEY, b text)", "CREATE PUBLICATION p FOR TABLE t")
    with collected_warnings() as warnings:
        batch = tables.run(
            "INSERT INTO t VALUES (1, 'a')",
            "ALTER PUBLICATION p DROP TABLE t",
            "INSERT INTO t VALUES (2, 'b')",
            "ALTER PUBLICATION p ADD TABLE t",
            "INSERT INTO t VALUES (3, 'c')",
            "ALTER PUBLICATION p SET (publish = 'insert')",
            "DELETE FROM t",
            "INSERT INTO t VALUES (4, 'd')",
            initial_copy="never",
            transport=transport,
        )
    (table,) = batch.tables
    assert (table.copy_lsn, table.counts.changes) == (None, 3)
    assert tables.lake_rows("t") == {("1", "a"): 1, ("3", "c"): 1, ("4", "d"): 1}
    said = "\n".join(warnings)
    assert "the publications lacked public.t" in said
    assert "Publication p was altered" in said
    # What the warning says closes it.
    tables.run(copy_tables=("public.t",))
    tables.assert_equal("t")
    tables.assert_repeatable()


def test_c90_new_tables_are_left_out_or_stop_the_run_until_they_are_named(
    pipeline: Pipeline,
) -> None:
    """C90: ``on_new_table``, with a publication that takes up whatever is made."""
    tables = Tables(pipeline)
    tables.run(*filled("old"), "CREATE PUBLICATION p FOR ALL TABLES")
    tables.execute(*filled("c"), "DELETE FROM c WHERE a = 1", "DELETE FROM old WHERE a = 1")
    assert tables.refused(TableRefused, "lake does not have it", on_new_table="fail") == "public.c"
    with collected_warnings() as warnings:
        tables.run(on_new_table="ignore")
    assert any("public.c" in each and "left out" in each for each in warnings)
    tables.assert_equal("old")
    assert "c" not in pipeline.snapshot_ids()
    tables.run("UPDATE c SET b = 'x'", "DELETE FROM old WHERE a = 2", on_new_table="ignore")
    assert "c" not in pipeline.snapshot_ids()
    tables.run(on_new_table="fail", copy_tables=("public.c",))
    tables.run("DELETE FROM c WHERE a = 2", on_new_table="fail")
    tables.assert_equal("old", "c")
    # And a table that was left out, once they are copied again.
    tables.run(*filled("d"), on_new_table="ignore")
    tables.run()
    tables.assert_equal("d")
    tables.assert_repeatable()


def test_two_tables_of_one_target_are_refused_also_when_the_second_comes_later(
    pipeline: Pipeline,
) -> None:
    """The copy of the second would take the rows of the first out of the lake."""
    tables = Tables(pipeline)
    tables.run(
        "CREATE TABLE sales__orders (a int PRIMARY KEY, b text)",
        "INSERT INTO sales__orders SELECT g, 'first' FROM generate_series(1, 5) g",
        "CREATE PUBLICATION p FOR TABLE sales__orders",
    )
    tables.execute(
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (a int PRIMARY KEY, b text)",
        "INSERT INTO sales.orders VALUES (1, 'second')",
        "ALTER PUBLICATION p ADD TABLE sales.orders",
    )
    assert tables.refused(TableRefused, "also that of public.sales__orders") == "sales.orders"
    tables.assert_equal("sales__orders")
    tables.set_targets({"sales.orders": "orders_of_sales"})
    tables.run()
    tables.run("UPDATE sales__orders SET b = 'changed' WHERE a = 1")
    tables.assert_equal("sales__orders")
    tables.assert_holds(
        "sales.orders", tables.source_rows("sales.orders"), target="orders_of_sales"
    )
