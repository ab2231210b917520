"""Filters of whole stage runs: what is staged is what PostgreSQL's own row filter lets through.

``test_conditions.py`` compares conditions with the server. Here two publications have the same tables. One
has the condition as its row filter. The other has none, and the run has the condition in ``filters``.
"""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from tests.capture.pipeline_support import checkpoint_with_shapes
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

CONDITION = "(region = 'eu' AND amount >= 10) OR active"
FILTERS = {"public.orders": CONDITION}
WAYS = [("sql", False), ("walsender", True), ("sql", True), ("walsender", False)]
ALL = "FULL"
#: Has the columns of the condition, and no large ones.
INDEX = "USING INDEX orders_wide"
REGIONS = ["'eu'", "'us'", "''"]
AMOUNTS = ["0", "9.99", "10", "'NaN'", "250.5"]
#: Without the old row the server cannot send a large value of a row that enters the filter.
BODIES = {ALL: ["NULL", "'small'", "repeat('x', 3000) || random()"], INDEX: ["NULL", "'small'"]}


def make_orders(source: Source, identity: str = ALL) -> None:
    """``orders``, published with all rows by ``p``, and with a row filter by ``own``."""
    source.execute(
        "CREATE TABLE orders(id int PRIMARY KEY, region text NOT NULL, amount numeric(8,2) NOT NULL,"
        " active bool NOT NULL, body text, at timestamptz DEFAULT now())",
        "CREATE UNIQUE INDEX orders_wide ON orders(active, region, id, amount)",
        f"ALTER TABLE orders REPLICA IDENTITY {identity}",
        "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL",
        "ALTER PUBLICATION p ADD TABLE orders",
        f"CREATE PUBLICATION own FOR TABLE orders WHERE ({CONDITION}), t",
    )


def insert(chance: random.Random, key: int, identity: str) -> str:
    values = ", ".join(map(chance.choice, (REGIONS, AMOUNTS, ["true", "false", "false"])))
    body = chance.choice(BODIES[identity])
    return (
        f"INSERT INTO orders(id, region, amount, active, body) VALUES ({key}, {values}, {body})"
        " ON CONFLICT DO NOTHING"
    )


def some_statement(chance: random.Random, identity: str) -> str:
    """One that changes ``orders``. Many rows enter or leave the filter, some with a new key."""
    key, kind = chance.randrange(40), chance.random()
    if kind < 0.3:
        return insert(chance, key, identity)
    if kind < 0.45:
        return f"DELETE FROM orders WHERE id % 7 = {key % 7}"
    if kind < 0.47:
        return "TRUNCATE orders"
    changed = [
        f"region = {chance.choice(REGIONS)}",
        f"amount = {chance.choice(AMOUNTS)}",
        f"active = {chance.random() < 0.3}",
        "at = now()",
        f"id = id + {100 * chance.randrange(1, 9)}",
    ]
    some = ", ".join(chance.sample(changed, chance.choice((1, 1, 2))))
    return f"UPDATE orders SET {some} WHERE id % 5 = {key % 5}"


def run_program(source: Source, chance: random.Random, identity: str) -> None:
    for _ in range(12):
        statements = [some_statement(chance, identity) for _ in range(chance.choice((1, 3, 8)))]
        block = "; ".join(
            # A key that is taken already is no error of the program.
            f"BEGIN {each}; EXCEPTION WHEN unique_violation THEN NULL; END"
            for each in statements
        )
        end = "RAISE EXCEPTION 'away';" if chance.random() < 0.1 else ""
        source.execute(
            f"DO $$ BEGIN BEGIN {block}; {end} EXCEPTION WHEN raise_exception THEN NULL; END; END $$"
        )


def staged(source: Source, manifest: Manifest, name: str = "public.orders") -> list[dict[str, Any]]:
    """The changes of a table, without their numbers: the server numbers only those that it sends."""
    if not any(each.name == name for each in manifest.tables):
        return []
    return [
        {key: value for key, value in row.items() if key != "seq" and value not in {None, False}}
        for row in source.changes(manifest, name)
    ]


def copied(source: Source, manifest: Manifest) -> list[dict[str, Any]]:
    return sorted(source.copied(manifest, "public.orders"), key=lambda row: row["id"])


def both(source: Source) -> tuple[Source, dict[str, Any]]:
    """The same database with another slot, and what makes its run use the server's own filter."""
    other = dataclasses.replace(
        source, slot_name=f"{source.slot_name}_own", staging=source.staging / "own"
    )
    return other, {"publication_names": ("own",)}


def compare(source: Source, seed: int, identity: str = ALL, **options: Any) -> None:
    """Copy the tables, run a program, and stage it: with the server's filter and with ours."""
    other, own = both(source)
    chance = random.Random(seed)  # noqa: S311 - a test has to repeat itself
    source.execute(*(insert(chance, key, identity) for key in range(20)))
    first = source.stage(filters=FILTERS, **options)
    theirs = other.stage(**own, **options)
    assert 0 < len(copied(source, first)) < 20
    assert copied(source, first) == copied(other, theirs)
    run_program(source, chance, identity)
    second = source.stage(filters=FILTERS, checkpoint=checkpoint_with_shapes(first), **options)
    theirs = other.stage(checkpoint=checkpoint_with_shapes(theirs), **own, **options)
    assert staged(source, second) == staged(other, theirs)
    assert {"I", "U", "D"} <= {row["op"] for row in staged(source, second)}


@pytest.mark.parametrize("seed", slow_but_each(5, range(10)))
@pytest.mark.parametrize(("transport", "binary"), slow_but_each(2, WAYS))
@pytest.mark.parametrize("identity", [ALL, INDEX])
def test_what_is_staged_is_what_the_servers_own_filter_sends(
    source: Source, identity: str, transport: str, binary: bool, seed: int
) -> None:
    make_orders(source, identity)
    compare(source, seed, identity, transport=transport, options=StreamOptions(binary=binary))


@pytest.mark.parametrize("streaming", ["on", "off"])
def test_a_streamed_transaction_is_filtered_as_any_other(source: Source, streaming: str) -> None:
    version, database = source.execute(
        "SELECT current_setting('server_version_num')::int, current_database()"
    )[0]
    if version >= 160000:
        source.execute(
            f"ALTER DATABASE {database} SET debug_logical_replication_streaming = immediate"
        )
    make_orders(source)
    compare(source, 77, options=StreamOptions(streaming=streaming))


def crossing(source: Source, *statements: str) -> list[dict[str, Any]]:
    """The changes that statements become, after a copy of three rows: the filter has only row 1."""
    source.execute(
        "INSERT INTO orders VALUES (1, 'eu', 20, false, 'one'), (2, 'eu', 1, false, 'two'),"
        " (3, 'us', 20, false, 'three')"
    )
    first = source.stage(filters=FILTERS)
    assert [row["id"] for row in copied(source, first)] == [1]
    source.execute(*statements)
    second = source.stage(filters=FILTERS, checkpoint=checkpoint_with_shapes(first))
    return staged(source, second)


@pytest.mark.parametrize("identity", [ALL, INDEX])
def test_an_update_that_crosses_the_filter_is_an_insert_or_a_delete(
    source: Source, identity: str
) -> None:
    make_orders(source, identity)
    changes = crossing(
        source,
        "UPDATE orders SET amount = 30, at = NULL WHERE id = 1",
        "UPDATE orders SET amount = 30, id = 20 WHERE id = 2",
        "UPDATE orders SET region = 'us', id = 10 WHERE id = 1",
        "UPDATE orders SET amount = 1, at = NULL WHERE id = 3",
        "UPDATE orders SET body = 'new' WHERE id = 20",
        "DELETE FROM orders WHERE id = 3",
        "DELETE FROM orders WHERE id = 20",
        "INSERT INTO orders VALUES (5, 'us', 1, false)",
        "TRUNCATE orders",
    )
    assert [(row["op"], row.get("id"), row.get("o0")) for row in changes] == [
        ("U", 1, 1),
        ("I", 20, None),
        ("D", None, 1),
        ("U", 20, 20 if identity == ALL else None),
        ("D", None, 20),
        ("T", None, None),
    ]
    entered, left = changes[1], changes[2]
    assert entered["body"] == "two"
    assert "old_kind" not in entered
    assert not {"id", "region", "amount", "body"} & left.keys()
    assert left["old_kind"] == ("O" if identity == ALL else "K")


def test_a_large_value_of_a_row_that_enters_comes_from_the_old_row(source: Source) -> None:
    make_orders(source)
    (_, entered) = crossing(
        source,
        "UPDATE orders SET body = repeat('y', 9000) WHERE id = 1",
        "UPDATE orders SET body = repeat('x', 9000) WHERE id = 2",
        "UPDATE orders SET amount = 30 WHERE id = 2",
    )
    assert (entered["op"], entered["body"]) == ("I", "x" * 9000)
    assert "u4" not in entered


def test_a_large_value_that_nobody_sent_is_refused(source: Source) -> None:
    make_orders(source, INDEX)
    with pytest.raises(TableRefused, match="left out a large value"):
        crossing(
            source,
            "UPDATE orders SET body = repeat('x', 9000) WHERE id = 2",
            "UPDATE orders SET amount = 30 WHERE id = 2",
        )


def test_a_large_value_of_the_filter_itself_is_in_the_old_row(source: Source) -> None:
    source.execute(
        "CREATE TABLE orders(id int PRIMARY KEY, big text, n int)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "ALTER TABLE orders ALTER big SET STORAGE EXTERNAL",
        "ALTER PUBLICATION p ADD TABLE orders",
        "INSERT INTO orders VALUES (1, repeat('a', 9000), 1), (2, repeat('b', 9000), 1)",
    )
    filters = {"public.orders": f"big = '{'a' * 9000}'"}
    first = source.stage(filters=filters)
    source.execute("UPDATE orders SET n = 2")
    second = source.stage(filters=filters, checkpoint=checkpoint_with_shapes(first))
    assert [(row["op"], row["id"], row["n"]) for row in staged(source, second)] == [("U", 1, 2)]


def test_a_table_without_a_passing_change_is_not_in_the_batch(source: Source) -> None:
    make_orders(source)
    first = source.stage(filters=FILTERS)
    source.execute(
        "INSERT INTO orders VALUES (2, 'eu', 1, false, 'two')", "INSERT INTO t VALUES (1)"
    )
    second = source.stage(filters=FILTERS, checkpoint=checkpoint_with_shapes(first))
    assert [each.name for each in second.tables] == ["public.t"]


@pytest.mark.parametrize(
    ("identity", "filters", "words"),
    [
        ("DEFAULT", FILTERS, "not in the replica identity of the table"),
        ("NOTHING", FILTERS, "not in the replica identity of the table"),
        (ALL, {"public.nowhere": "a = 1"}, "names no published table: public.nowhere"),
        (ALL, {"public.orders": "nothing = 1"}, "no such column is published"),
        (ALL, {"public.orders": "amount = '1'"}, "compared with a number"),
        (ALL, {"public.orders": "body = 'a'"}, "collation is not deterministic"),
    ],
)
def test_a_filter_that_cannot_be_followed_is_refused_at_the_start(
    source: Source, identity: str, filters: dict[str, str], words: str
) -> None:
    make_orders(source)
    source.execute(
        "CREATE COLLATION any_case (locale = 'C')",
        # Not every build of the server has the provider that really makes such collations.
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'any_case'",
        "ALTER PUBLICATION p DROP TABLE orders",
        "DROP PUBLICATION own",
        "ALTER TABLE orders ALTER body TYPE text COLLATE any_case",
        f"ALTER TABLE orders REPLICA IDENTITY {identity}",
        "ALTER PUBLICATION p ADD TABLE orders",
    )
    with pytest.raises(ConfigurationError, match=words):
        source.stage(filters=filters)
    assert source.manifests() == []


@pytest.mark.parametrize(
    "options", [{"initial_copy": "never"}, {"options": StreamOptions(two_phase=True)}]
)
def test_what_does_not_go_with_filters(source: Source, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="filters does not go with"):
        source.request(filters=FILTERS, **options)


@pytest.mark.parametrize("before", [FILTERS, {}])
def test_another_filter_needs_a_copy(source: Source, before: dict[str, str]) -> None:
    make_orders(source)
    source.execute("INSERT INTO orders VALUES (1, 'eu', 20, false), (2, 'us', 20, false)")
    first = source.stage(filters=before)
    lake = {"checkpoint": checkpoint_with_shapes(first)}
    source.execute("UPDATE orders SET amount = 30")
    after = {"public.orders": "region = 'us'"} if before else FILTERS
    with pytest.raises(ConfigurationError, match="were filtered in another way") as refused:
        source.stage(filters=after, **lake)
    assert "copy_tables=['public.orders']" in str(refused.value)
    second = source.stage(filters=after, copy_tables=["public.orders"], **lake)
    assert [row["id"] for row in copied(source, second)] == ([2] if before else [1])
    # The same filter in other words.
    source.execute("UPDATE orders SET amount = 40")
    words = {
        "public.orders": "REGION = 'us'" if before else f"(({CONDITION.replace('10', '010.0')}))"
    }
    third = source.stage(filters=words, checkpoint=checkpoint_with_shapes(second))
    assert [row["id"] for row in staged(source, third)] == ([2] if before else [1])


def test_a_sealed_batch_with_another_filter_is_refused(source: Source) -> None:
    make_orders(source)
    sealed = source.stage(filters=FILTERS)
    assert source.stage(filters=FILTERS).batch_id == sealed.batch_id
    for changed in ({"public.orders": "active"}, {}):
        with pytest.raises(ConfigurationError, match="sealed the next batch with another filter"):
            source.stage(filters=changed)


@pytest.mark.parametrize(
    "statements",
    [
        # The filter's column had another name when the change was made.
        [
            "ALTER TABLE orders RENAME region TO area",
            "INSERT INTO orders VALUES (1, 'eu', 20, false, 'eu')",
            "ALTER TABLE orders RENAME area TO region",
        ],
        # Another column had its name.
        [
            "ALTER TABLE orders RENAME region TO body2",
            "ALTER TABLE orders RENAME body TO region",
            "INSERT INTO orders VALUES (1, 'us', 20, false, 'eu')",
            "ALTER TABLE orders RENAME region TO body",
            "ALTER TABLE orders RENAME body2 TO region",
        ],
        [
            "ALTER TABLE orders REPLICA IDENTITY DEFAULT",
            "INSERT INTO orders VALUES (1, 'eu', 20, false)",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
        ],
    ],
)
def test_changes_of_columns_that_may_be_others_are_refused(
    source: Source, statements: list[str]
) -> None:
    make_orders(source)
    source.execute("DROP PUBLICATION own")
    first = source.stage(filters=FILTERS)
    source.execute(*statements)
    lake = {"checkpoint": checkpoint_with_shapes(first)}
    with pytest.raises(TableRefused, match="not known which changes of the table pass its filter"):
        source.stage(filters=FILTERS, **lake)
    second = source.stage(filters=FILTERS, copy_tables=["public.orders"], **lake)
    assert has_rows(source, second) == source.execute(
        f"SELECT id FROM orders WHERE {CONDITION} ORDER BY id"
    )


def has_rows(source: Source, manifest: Manifest) -> list[tuple[Any, ...]]:
    return [(row["id"],) for row in copied(source, manifest)]


def test_a_renamed_column_of_the_filter_needs_a_copy(source: Source) -> None:
    make_orders(source)
    first = source.stage(filters=FILTERS)
    lake = {"checkpoint": checkpoint_with_shapes(first)}
    source.execute(
        "DROP PUBLICATION own",
        "ALTER TABLE orders RENAME region TO area",
        "INSERT INTO orders VALUES (1, 'eu', 20, false)",
    )
    with pytest.raises(ConfigurationError, match="no such column is published"):
        source.stage(filters=FILTERS, **lake)
    renamed = {"public.orders": CONDITION.replace("region", "area")}
    with pytest.raises(ConfigurationError, match="a column of it was renamed"):
        source.stage(filters=renamed, **lake)
    second = source.stage(filters=renamed, copy_tables=["public.orders"], **lake)
    assert has_rows(source, second) == [(1,)]


@pytest.mark.parametrize("changes_before", [False, True])
def test_another_type_of_a_column_of_the_filter_needs_a_copy(
    source: Source, changes_before: bool
) -> None:
    """The server makes the values of all rows anew, so rows cross the filter, and sends none of them."""
    make_orders(source)
    source.execute(
        "DROP PUBLICATION own",
        "INSERT INTO orders VALUES (1, 'eu', 20, false), (2, 'eu', 200, false)",
    )
    first = source.stage(filters=FILTERS)
    lake = {"checkpoint": checkpoint_with_shapes(first)}
    if changes_before:
        source.execute("UPDATE orders SET amount = amount + 1")
    source.execute(
        "ALTER TABLE orders ALTER amount TYPE int USING amount / 10",
        "DELETE FROM orders WHERE id = 1",
    )
    with pytest.raises(ConfigurationError, match="got another type"):
        source.stage(filters=FILTERS, **lake)
    second = source.stage(filters=FILTERS, copy_tables=["public.orders"], **lake)
    assert has_rows(source, second) == [(2,)]


def test_a_truncate_before_any_row_of_a_root(source: Source) -> None:
    """The stream announces no partition with it."""
    source.execute(
        "CREATE TABLE parts(id int, region text, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        "CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu')",
        "ALTER TABLE parts_eu REPLICA IDENTITY FULL",
        "CREATE PUBLICATION roots FOR TABLE parts WITH (publish_via_partition_root = true)",
        "INSERT INTO parts VALUES (1, 'eu', 20)",
    )
    run = {"publication_names": ("roots",), "filters": {"public.parts": "n >= 10"}}
    first = source.stage(**run)
    source.execute(
        "TRUNCATE parts",
        "BEGIN; TRUNCATE parts; INSERT INTO parts VALUES (2, 'eu', 20), (3, 'eu', 1); COMMIT",
    )
    second = source.stage(**run, checkpoint=checkpoint_with_shapes(first))
    found = [(row["op"], row["id"]) for row in source.changes(second, "public.parts")]
    assert found == [("T", None), ("T", None), ("I", 2)]


def test_other_columns_may_come_and_go(source: Source) -> None:
    make_orders(source)
    first = source.stage(filters=FILTERS)
    source.execute(
        "DROP PUBLICATION own",
        "INSERT INTO orders VALUES (1, 'eu', 20, false), (2, 'us', 20, false)",
        "ALTER TABLE orders DROP body",
        "ALTER TABLE orders ADD more int",
        "INSERT INTO orders VALUES (3, 'eu', 20, false), (4, 'us', 20, false)",
        "ALTER TABLE orders ALTER more TYPE bigint",
        "UPDATE orders SET amount = 30.5",
    )
    second = source.stage(filters=FILTERS, checkpoint=checkpoint_with_shapes(first))
    ids = [(row["op"], row["id"]) for row in staged(source, second)]
    assert ids == [("I", 1), ("I", 3), ("U", 1), ("U", 3)]


@pytest.mark.parametrize("via_root", [True, False])
def test_partitions(source: Source, via_root: bool) -> None:
    source.execute(
        "CREATE TABLE parts(id int, region text, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region)",
        "CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu')",
        "CREATE TABLE parts_us PARTITION OF parts FOR VALUES IN ('us')",
        "ALTER TABLE parts_eu REPLICA IDENTITY FULL",
        "ALTER TABLE parts_us REPLICA IDENTITY FULL",
        f"CREATE PUBLICATION roots FOR TABLE parts WITH (publish_via_partition_root = {via_root})",
        "INSERT INTO parts VALUES (1, 'eu', 20), (2, 'us', 1), (3, 'us', 20)",
    )
    names = ["public.parts"] if via_root else ["public.parts_eu", "public.parts_us"]
    filters = dict.fromkeys(names, "n >= 10")
    run = {"publication_names": ("roots", "p"), "filters": filters}
    first = source.stage(**run)
    found = [row["id"] for name in names for row in source.copied(first, name)]
    assert sorted(found) == [1, 3]
    # From one partition to the other, which are a delete and an insert; and into the filter.
    source.execute(
        "UPDATE parts SET region = 'us' WHERE id = 1",
        "UPDATE parts SET region = 'eu', n = 10 WHERE id = 2",
        "UPDATE parts SET n = 9 WHERE id = 3",
    )
    second = source.stage(**run, checkpoint=checkpoint_with_shapes(first))
    changes = sorted(
        (row for name in names for row in source.changes(second, name)),
        key=lambda row: (row["commit_lsn"], row["seq"]),
    )
    assert [(row["op"], row["id"] or row["o0"]) for row in changes] == [
        ("D", 1),
        ("I", 1),
        ("I", 2),
        ("D", 3),
    ]
    if not via_root:
        return
    source.execute("ALTER TABLE parts_us REPLICA IDENTITY DEFAULT")
    with pytest.raises(ConfigurationError, match=r"replica identity of partition public\.parts_us"):
        source.stage(**run, checkpoint=checkpoint_with_shapes(second))


def test_a_filter_sees_plain_values_of_masked_columns(source: Source) -> None:
    source.execute(
        "CREATE TABLE orders(id int PRIMARY KEY, region text, name text)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "ALTER PUBLICATION p ADD TABLE orders",
        "INSERT INTO orders VALUES (1, 'eu', 'a'), (2, 'us', 'b')",
    )
    run: dict[str, Any] = {
        "filters": {"public.orders": "region = 'eu'"},
        "columns": {"public.orders.region": "hash"},
        "mask_secret": b"a secret of these tests, long enough",
    }
    first = source.stage(**run)
    assert [row["id"] for row in copied(source, first)] == [1]
    assert copied(source, first)[0]["region"] != "eu"
    source.execute(
        "UPDATE orders SET region = 'eu' WHERE id = 2", "DELETE FROM orders WHERE id = 1"
    )
    second = source.stage(**run, checkpoint=checkpoint_with_shapes(first))
    assert [row["op"] for row in staged(source, second)] == ["I", "D"]


def test_a_filter_and_the_row_filter_of_the_publication_both_count(source: Source) -> None:
    source.execute(
        "CREATE TABLE orders(id int PRIMARY KEY, region text, n int)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "CREATE PUBLICATION low FOR TABLE orders WHERE (n < 10)",
        "CREATE PUBLICATION high FOR TABLE orders WHERE (n > 20)",
        "INSERT INTO orders VALUES (1, 'eu', 1), (2, 'us', 1), (3, 'eu', 15), (4, 'eu', 30)",
    )
    run = {"filters": {"public.orders": "region = 'eu'"}, "publication_names": ("low", "high")}
    first = source.stage(**run)
    assert [row["id"] for row in copied(source, first)] == [1, 4]
    source.execute("UPDATE orders SET n = n + 8", "UPDATE orders SET region = 'eu' WHERE id = 2")
    second = source.stage(**run, checkpoint=checkpoint_with_shapes(first))
    assert [
        (row["op"], row["id"] or row["o0"]) for row in source.changes(second, "public.orders")
    ] == [
        ("U", 1),
        ("I", 3),
        ("U", 4),
        ("I", 2),
    ]
