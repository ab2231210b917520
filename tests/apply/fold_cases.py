"""Cases of the fold: each makes a table and changes it, a transaction or more before each ``yield``.

The first step leaves rows that later steps may find in the target. Ids are those of the conformance
scenarios, where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.apply.build import column

if TYPE_CHECKING:
    from tests.apply.build import Relation, Source

Case = Callable[["Source"], Iterator["Relation"]]
AB = (column("a"), column("b", "string"))
ABC = (column("a"), column("b", "string"), column("c"))
BIG = "z" * 3000


def a_is(value: Any) -> Any:
    return lambda row: row["a"] == value


def c01_insert_update_delete(source: Source) -> Iterator[Relation]:
    t = source.table("c01", AB, key=("a",))
    t.insert(1, "x")
    t.insert(2, "y")
    yield t
    t.update(a_is(1), {"b": "z"})
    yield t
    t.delete(a_is(2))
    yield t


def c02_key_update(source: Source) -> Iterator[Relation]:
    t = source.table("c02", AB, key=("a",))
    t.insert(1, "x")
    yield t
    t.update(a_is(1), {"a": 9})
    yield t


def c03_negated_keys(source: Source) -> Iterator[Relation]:
    t = source.table("c03", AB, key=("a",))
    for a in range(1, 21):
        t.insert(a, None)
    yield t
    with source.transaction():
        t.update_all(lambda row: {"a": -row["a"]})
    yield t
    with source.transaction():
        for a in range(-20, -10):
            t.delete(a_is(a))
    yield t


def c04_swap_of_deferrable_keys(source: Source) -> Iterator[Relation]:
    t = source.table("c04", AB, key=("a",), identity="f")
    t.insert(1, "one")
    t.insert(2, "two")
    yield t
    with source.transaction():
        t.update_all(lambda row: {"a": 3 - row["a"]})
    yield t
    with source.transaction():
        t.update(a_is(1), {"b": "again"})
        t.update_all(lambda row: {"a": 3 - row["a"]})
        t.delete(a_is(1))
    yield t


def c06_again_after_delete(source: Source) -> Iterator[Relation]:
    t = source.table("c06", AB, key=("a",))
    t.insert(0, "other")
    yield t
    with source.transaction():
        t.insert(1, "a")
        t.delete(a_is(1))
        t.insert(1, "b")
    yield t


def c07_update_of_nothing(source: Source) -> Iterator[Relation]:
    t = source.table("c07", AB, key=("a",))
    t.insert(1, "x")
    yield t
    t.update(a_is(1), {})
    yield t


def c12_one_copy_of_equal_rows(source: Source) -> Iterator[Relation]:
    t = source.table("c12", (column("a"),), identity="f")
    for _ in range(3):
        t.insert(1)
    yield t
    t.update(a_is(1), {"a": 2})
    yield t
    t.delete(a_is(1))
    yield t


def c13_squares_of_equal_rows(source: Source) -> Iterator[Relation]:
    t = source.table("c13", (column("a"),), identity="f")
    with source.transaction():
        for a in (*range(1, 11), *range(1, 11)):
            t.insert(a)
    yield t
    with source.transaction():
        t.update_all(lambda row: {"a": row["a"] ** 2})
    yield t


def c14_nulls_match_nulls(source: Source) -> Iterator[Relation]:
    t = source.table("c14", AB, identity="f")
    t.insert(1, None)
    t.insert(2, None)
    yield t
    t.update(a_is(1), {"a": 2})
    yield t


def c14_values_that_spark_takes_for_equal(source: Source) -> Iterator[Relation]:
    columns = (column("x", "double"), column("m", "map<string, string>"))
    t = source.table("c14b", columns, identity="f")
    t.insert(0.0, {"k": "v", "l": None})
    t.insert(-0.0, {"k": "v", "l": None})
    t.insert(math.nan, None)
    t.insert(math.nan, {})
    yield t
    t.delete(lambda row: math.copysign(1, row["x"]) < 0 and not math.isnan(row["x"]))
    t.delete(lambda row: math.isnan(row["x"]) and row["m"] is None)
    yield t


def c15_other_key_in_the_middle(source: Source) -> Iterator[Relation]:
    t = source.table("c15", (column("a"), column("b")), key=("a",), identity="i")
    t.insert(1, 1)
    t.insert(2, 2)
    t.insert(3, 3)
    yield t
    t.update(a_is(3), {"a": 30})
    t.alter(key=("b",))
    t.update(a_is(1), {"a": -1})
    t.delete(a_is(2))
    yield t


def c17_no_key_at_all(source: Source) -> Iterator[Relation]:
    t = source.table("c17", (column("a"),))
    t.insert(1)
    t.insert(1)
    yield t
    t.insert(1)
    yield t


def c18_full_after_a_column_was_added(source: Source) -> Iterator[Relation]:
    t = source.table("c18", (column("a"),), identity="f")
    t.insert(1)
    t.insert(5)
    yield t
    t.alter(columns=(column("a"), column("b", "boolean", missing="f")))
    t.update(a_is(1), {"a": 2})
    yield t
    t.insert(7, True)
    yield t


def _only_null_becomes_a_value(
    source: Source, name: str, key: tuple[str, ...]
) -> Iterator[Relation]:
    """Old tuples that are NULL in a column throughout: no value of it is staged."""
    t = source.table(name, AB, key=key, identity="f")
    t.insert(1, None)
    t.insert(2, None)
    yield t
    t.update(a_is(1), {"b": "x"})
    yield t
    t.update(a_is(1), {"b": None})
    t.update(a_is(2), {"b": "y", "a": 3})
    yield t


def null_becomes_a_value_with_a_key(source: Source) -> Iterator[Relation]:
    yield from _only_null_becomes_a_value(source, "null_key", ("a",))


def null_becomes_a_value_without_a_key(source: Source) -> Iterator[Relation]:
    yield from _only_null_becomes_a_value(source, "null_bag", ())


def full_rows_go_before_a_column_is_added(source: Source) -> Iterator[Relation]:
    """Of the rows that go no value of the column was ever sent, and it has one."""
    t = source.table("late", (column("a"),), identity="f")
    t.insert(1)
    t.insert(2)
    yield t
    t.delete(a_is(1))
    t.alter(columns=(column("a"), column("c", missing="7")))
    t.insert(1, None)
    yield t


def c19_full_after_a_column_was_dropped(source: Source) -> Iterator[Relation]:
    t = source.table("c19", (column("a"), column("b")), identity="f")
    t.insert(1, 1)
    t.insert(2, 2)
    yield t
    t.alter(columns=(column("a"),))
    t.update(a_is(1), {"a": 3})
    yield t


def c20_unchanged_toast(source: Source) -> Iterator[Relation]:
    t = source.table("c20", ABC, key=("a",), toast=("b",))
    t.insert(1, BIG, 0)
    t.insert(2, BIG + "2", 0)
    t.insert(3, None, 0)
    yield t
    t.update(a_is(1), {"c": 1})
    t.update(a_is(3), {"c": 3})
    yield t
    t.update(a_is(2), {"b": None, "c": 2})
    yield t
    t.update(a_is(1), {"c": 5})
    yield t


def c21_unchanged_toast_with_whole_rows(source: Source) -> Iterator[Relation]:
    t = source.table("c21", ABC, key=("a",), identity="f", toast=("b",))
    t.insert(1, BIG, 0)
    t.insert(2, BIG, 0)
    yield t
    t.update(a_is(1), {"c": 1})
    yield t
    t.delete(a_is(2))
    yield t


def c21_unchanged_toast_without_a_key(source: Source) -> Iterator[Relation]:
    t = source.table("c21b", ABC, identity="f", toast=("b",))
    t.insert(1, BIG, 0)
    t.insert(1, BIG, 0)
    yield t
    t.update(a_is(1), {"c": 1})
    yield t


def c23_toast_inside_one_transaction(source: Source) -> Iterator[Relation]:
    t = source.table("c23", ABC, key=("a",), toast=("b",))
    t.insert(1, "o", 0)
    yield t
    with source.transaction():
        t.insert(2, BIG, 0)
        t.update(a_is(2), {"c": 5})
    yield t


def c24_toast_moves_with_its_key(source: Source) -> Iterator[Relation]:
    t = source.table("c24", ABC, key=("a",), toast=("b",))
    t.insert(1, BIG, 0)
    t.insert(2, BIG + "2", 0)
    yield t
    t.update(a_is(1), {"a": 7})
    yield t
    with source.transaction():
        t.update(a_is(7), {"a": 8})
        t.update(a_is(2), {"a": 7})
        t.update(a_is(8), {"c": 9, "a": 2})
    yield t
    t.update(a_is(7), {"a": 100})
    for a in range(100, 111):
        t.update(a_is(a), {"a": a + 1})
    t.insert(100, "new", 1)
    yield t


def c25_toasted_key(source: Source) -> Iterator[Relation]:
    t = source.table("c25", (column("k", "string"), column("v")), key=("k",), toast=("k",))
    t.insert(BIG, 0)
    yield t
    t.update(lambda row: row["k"] == BIG, {"v": 1})
    yield t
    t.update(lambda row: row["k"] == BIG, {"k": BIG + "1"})
    yield t


def c43_truncate_between_changes(source: Source) -> Iterator[Relation]:
    t = source.table("c43", AB, key=("a",))
    t.insert(5, "five")
    yield t
    with source.transaction():
        t.insert(1, "a")
        t.truncate()
        t.insert(2, "b")
    yield t


def c44_truncate_between_transactions(source: Source) -> Iterator[Relation]:
    t = source.table("c44", AB, key=("a",))
    t.insert(1, "a")
    yield t
    t.truncate()
    yield t
    t.insert(3, "c")
    yield t


def c44_truncate_without_a_key(source: Source) -> Iterator[Relation]:
    t = source.table("c44b", AB, identity="f")
    t.insert(1, "a")
    t.insert(1, "a")
    yield t
    t.truncate()
    t.insert(1, "a")
    t.delete(a_is(1))
    t.insert(2, "b")
    yield t


def c53_columns_come_and_go(source: Source) -> Iterator[Relation]:
    t = source.table("c53", AB, key=("a",))
    t.insert(1, "x")
    yield t
    with source.transaction():
        t.insert(2, "y")
        t.alter(columns=(*AB, column("c", missing="7")))
        t.insert(3, "z", 8)
        t.alter(columns=(column("a"), column("c", missing="7")))
        t.insert(4, 9)
    yield t


def c66_names(source: Source) -> Iterator[Relation]:
    columns = tuple(
        column(name) for name in ("a'", "B c", "select", "日本", "x.y", "b`t", "n0", "A'")
    )
    t = source.table("T'; DROP TABLE x;-- `.", columns, key=("a'", "select"))
    t.insert(*range(8))
    t.insert(*range(10, 18))
    yield t
    t.update(lambda row: row["a'"] == 0, {"x.y": -1})
    t.update(lambda row: row["a'"] == 10, {"select": -1})
    yield t


def b34_keys_of_every_kind(source: Source) -> Iterator[Relation]:
    columns = (
        column("t", "string"),
        column("d", "decimal(12, 2)"),
        column("f", "double"),
        column("b", "binary"),
        column("v"),
    )
    t = source.table("b34", columns, key=("t", "d", "f", "b"))
    t.insert("1.0", Decimal("1.00"), math.nan, b"\x00", 0)
    t.insert("1.00", Decimal("-1.00"), -0.0, b"", 0)
    yield t
    t.update(lambda row: row["t"] == "1.0", {"v": 1})
    t.update(lambda row: row["t"] == "1.00", {"t": "1.0", "f": 0.0})
    yield t


def zeros_with_a_sign(source: Source) -> Iterator[Relation]:
    t = source.table("zeros", (column("f", "double"), column("v")), key=("f",))
    t.insert(-0.0, 1)
    yield t
    t.update(lambda row: row["f"] == 0, {"v": 2})
    yield t


def zeros_with_a_sign_and_full(source: Source) -> Iterator[Relation]:
    columns = (column("f", "float"), column("v"))
    t = source.table("zeros_full", columns, key=("f",), identity="f")
    t.insert(-0.0, 1)
    t.insert(1.0, 1)
    yield t
    t.update(lambda row: row["f"] == 0, {"v": 2})
    yield t


def wider_types(source: Source) -> Iterator[Relation]:
    t = source.table("wider", (column("a"), column("d", "decimal(12, 2)")), key=("a",))
    t.insert(1, Decimal("1.50"))
    yield t
    t.update(a_is(1), {"d": Decimal("2.50")})
    t.alter(columns=(column("a", "long"), column("d", "decimal(14, 2)")))
    t.insert(1 << 40, Decimal("123456789012.50"))
    yield t


def _names_of_our_statements(source: Source, name: str, key: tuple[str, ...]) -> Iterator[Relation]:
    names = ("t", "k", "file", "position", "copies", "number", "n0", "i0", "c0", "x0", "live", "op")
    t = source.table(name, tuple(column(each) for each in names), key=key, identity="f")
    for value in range(3):
        t.insert(*(value for _ in names))
    if not key:
        t.insert(*(2 for _ in names))
    yield t
    t.delete(lambda row: row["t"] == 2)
    t.update(lambda row: row["t"] == 1, {"k": 10})
    yield t


def names_of_our_statements_without_a_key(source: Source) -> Iterator[Relation]:
    """Spark takes ``t._file`` for a field of a column ``t``."""
    yield from _names_of_our_statements(source, "own_names", ())


def names_of_our_statements_with_a_key(source: Source) -> Iterator[Relation]:
    yield from _names_of_our_statements(source, "own_names_key", ("t",))


CASES: tuple[Case, ...] = tuple(
    value
    for name, value in list(globals().items())
    if callable(value)
    and getattr(value, "__module__", "") == __name__
    and name not in {"a_is"}
    and not name.startswith("_")
)
