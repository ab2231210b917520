"""Random statements on rows. Each function draws one; None: there is nothing that it could be about."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.drawing import Column, Drawing, Table


def _written(columns: list[Column]) -> list[Column]:
    return [each for each in columns if not each.generated and each.identity != "a"]


def _assignable(draw: Drawing, table: Table) -> list[Column]:
    return _written(draw.columns(table))


def _value(draw: Drawing, column: Column) -> str:
    few = column.in_key or column.name in {"a", "u", "x", "v", "k", "id"}
    return draw.values.of(
        column.type_oid, nullable=not column.not_null and not column.in_key, few=few
    )


def _some_rows(draw: Drawing, table: Table, most: int) -> str:
    """Rows that lie beside each other: the same ones each time, as far as the sessions let them."""
    skip, limit = draw.chance.randrange(20), draw.chance.randint(1, most)
    return (
        f"(tableoid, ctid) IN (SELECT tableoid, ctid FROM {table.sql} OFFSET {skip} LIMIT {limit})"
    )


def insert(draw: Drawing) -> str | None:
    """One row, or a few."""
    table = draw.whole_table() if draw.happens(0.85) else draw.table()
    return insert_into(draw, table) if table else None


def insert_into(draw: Drawing, table: Table, *, surely: bool = False) -> str | None:
    """Rows for a table.

    :param surely: fail where a row of the key is there.
    """
    columns = _assignable(draw, table)
    if not columns:
        return f"INSERT INTO {table.sql} DEFAULT VALUES"
    if draw.happens(0.2):
        columns = [each for each in columns if each.in_key or each.not_null or draw.happens(0.7)]
    if not columns:
        return None
    conflict = "" if surely else _conflict(draw, table, columns)
    rows = [
        f"({', '.join(_value(draw, each) for each in columns)})"
        for _ in range(1 if "UPDATE" in conflict else draw.chance.choice((1, 1, 2, 4)))
    ]
    names = ", ".join(each.sql for each in columns)
    return f"INSERT INTO {table.sql} ({names}) VALUES {', '.join(rows)}{conflict}"


def _conflict(draw: Drawing, table: Table, columns: list[Column]) -> str:
    drawn = draw.chance.random()
    key = [each for each in columns if each.in_key]
    others = [each for each in columns if not each.in_key]
    if drawn < 0.35 and key and others and not table.name.startswith("deferred"):
        one = draw.chance.choice(others)
        target = ", ".join(each.sql for each in key)
        return f" ON CONFLICT ({target}) DO UPDATE SET {one.sql} = excluded.{one.sql}"
    return " ON CONFLICT DO NOTHING" if drawn < 0.75 else ""


def insert_many(draw: Drawing) -> str | None:
    """Enough rows for a server to stream them, or to write them to its disk."""
    table = draw.whole_table()
    if table is None:
        return None
    columns = _assignable(draw, table)
    if not columns:
        return None
    start, count = draw.chance.randint(100, 5000), draw.chance.choice((40, 150, 500))
    values = ", ".join(
        draw.values.numbered(each.type_oid)
        if each.in_key or draw.happens(0.4)
        else _value(draw, each)
        for each in columns
    )
    names = ", ".join(each.sql for each in columns)
    conflict = "" if table.name.startswith("deferred") else " ON CONFLICT DO NOTHING"
    return (
        f"INSERT INTO {table.sql} ({names}) SELECT {values}"
        f" FROM generate_series({start}, {start + count}) g{conflict}"
    )


def _with_identity(draw: Drawing) -> Table | None:
    """A table; mostly not one that the server refuses to update."""
    return draw.table(lambda each: not each.name.startswith("inserts") or draw.happens(0.05))


def update(draw: Drawing) -> str | None:
    """Some columns of a few rows, now and then of all."""
    table = _with_identity(draw)
    columns = _assignable(draw, table) if table else []
    plain = [each for each in columns if not each.in_key]
    if table is None or not plain:
        return None
    chosen = draw.chance.sample(plain, min(len(plain), draw.chance.choice((1, 1, 2))))
    changes = ", ".join(f"{each.sql} = {_value(draw, each)}" for each in chosen)
    where = "" if draw.happens(0.1) else f" WHERE {_some_rows(draw, table, 5)}"
    return f"UPDATE {table.sql} SET {changes}{where}"


def update_nothing(draw: Drawing) -> str | None:
    """Rows that become what they are."""
    table = _with_identity(draw)
    columns = _assignable(draw, table) if table else []
    if table is None or not columns:
        return None
    name = draw.chance.choice(columns).sql
    return f"UPDATE {table.sql} SET {name} = {name} WHERE {_some_rows(draw, table, 4)}"


def move_key(draw: Drawing) -> str | None:
    """Another key for a row, or for a few."""
    table = draw.table()
    key = [each for each in _assignable(draw, table) if each.in_key] if table else []
    if table is None or not key:
        return None
    column = draw.chance.choice(key)
    if column.type_name in {"integer", "bigint"} and draw.happens(0.4):
        change, most = f"{column.sql} + {draw.chance.choice((1, -1, 10))}", 6
    else:
        change, most = _value(draw, column), 1
    return f"UPDATE {table.sql} SET {column.sql} = {change} WHERE {_some_rows(draw, table, most)}"


def swap_keys(draw: Drawing) -> str | None:
    """Two rows that take each other's keys, where the key is checked at the end."""
    table = draw.table(lambda each: each.name.startswith("deferred"))
    if table is None or not any(each.name == "id" for each in draw.columns(table)):
        return None
    one = draw.chance.randint(1, 12)
    return f"UPDATE {table.sql} SET id = {2 * one + 1} - id WHERE id IN ({one}, {one + 1})"


def delete(draw: Drawing) -> str | None:
    """A few rows."""
    table = _with_identity(draw)
    return f"DELETE FROM {table.sql} WHERE {_some_rows(draw, table, 4)}" if table else None


def delete_many(draw: Drawing) -> str | None:
    """All rows but the first ones, so that tables stay small."""
    table = draw.whole_table()
    if table is None:
        return None
    return (
        f"DELETE FROM {table.sql} WHERE (tableoid, ctid) IN"
        f" (SELECT tableoid, ctid FROM {table.sql} OFFSET {draw.chance.randint(3, 30)})"
    )


def truncate(draw: Drawing) -> str | None:
    """One table, or two in one statement."""
    tables = [each for each in draw.tables() if not each.is_leaf]
    if not tables:
        return None
    chosen = draw.chance.sample(tables, min(len(tables), draw.chance.choice((1, 1, 2))))
    names = ", ".join(each.sql for each in chosen)
    return f"TRUNCATE {names}{draw.chance.choice(('', ' RESTART IDENTITY CASCADE', ''))}"


def message(draw: Drawing) -> str:
    """A logical message."""
    transactional = draw.chance.choice(("true", "false"))
    return f"SELECT pg_logical_emit_message({transactional}, 'chaos', 'text {draw.chance.randrange(99)}')"
