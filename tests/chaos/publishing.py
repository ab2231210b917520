"""Random statements that change what is published."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.chaos.drawing import Drawing, Table

_MEMBERS = """
SELECT c.oid::int, n.nspname, c.relname, c.relkind::text, c.relispartition
  FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
  JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s ORDER BY c.oid
"""


def _members(draw: Drawing, publication: str) -> list[Table]:
    from tests.chaos.drawing import Table

    return [Table(*row) for row in draw.rows(_MEMBERS, publication)]


def entry(draw: Drawing, table: Table) -> str:
    """A table with a column list or a row filter, or neither."""
    drawn = draw.chance.random()
    columns = draw.columns(table)
    # Of two publications the server decodes only the same column list.
    if drawn < 0.25 and len(draw.publications) == 1:
        kept = [
            each.sql
            for each in columns
            if each.in_key or (not each.generated and draw.happens(0.7))
        ]
        return f"{table.sql} ({', '.join(kept)})" if kept else table.sql
    key = [each for each in columns if each.in_key and each.type_name in {"integer", "bigint"}]
    if drawn < 0.5 and key:
        return f"{table.sql} WHERE ({key[0].sql} % {draw.chance.choice((2, 3))} <> 0)"
    return table.sql


def add_member(draw: Drawing) -> str | None:
    """A table is published, once more or for the first time."""
    publication = draw.chance.choice(draw.publications)
    present = {each.oid for each in _members(draw, publication)}
    table = draw.table(lambda each: each.oid not in present and not each.is_leaf)
    return f"ALTER PUBLICATION {publication} ADD TABLE {entry(draw, table)}" if table else None


def drop_member(draw: Drawing) -> str | None:
    """A table is published no more."""
    publication = draw.chance.choice(draw.publications)
    members = _members(draw, publication)
    if not members:
        return None
    return f"ALTER PUBLICATION {publication} DROP TABLE {draw.chance.choice(members).sql}"


def replace_member(draw: Drawing) -> str | None:
    """A table gets another column list or another row filter."""
    publication = draw.chance.choice(draw.publications)
    members = _members(draw, publication)
    if not members:
        return None
    table = draw.chance.choice(members)
    return (
        f"ALTER PUBLICATION {publication} DROP TABLE {table.sql};"
        f" ALTER PUBLICATION {publication} ADD TABLE {entry(draw, table)}"
    )


def change_operations(draw: Drawing) -> str:
    """A publication leaves operations out, or publishes all."""
    publication = draw.chance.choice(draw.publications)
    publish = draw.chance.choice(
        (
            "insert, update, delete, truncate",
            "insert, update, delete, truncate",
            "insert",
            "insert, update, delete",
        )
    )
    return f"ALTER PUBLICATION {publication} SET (publish = '{publish}')"


def generated_columns(draw: Drawing) -> str | None:
    """A publication publishes generated columns, or does not (PostgreSQL 18)."""
    if draw.version < 18:
        return None
    value = draw.chance.choice(("stored", "none"))
    # The server refuses to decode a table that two publications publish with different columns.
    return "; ".join(
        f"ALTER PUBLICATION {each} SET (publish_generated_columns = {value})"
        for each in draw.publications
    )


def create_statements(draw: Drawing, style: str, via_root: bool) -> list[str]:
    """The publications at the beginning."""
    options = f"WITH (publish_via_partition_root = {str(via_root).lower()})"
    tables = [each for each in draw.tables() if not each.is_leaf]
    if style == "all":
        return [f"CREATE PUBLICATION p FOR ALL TABLES {options}"]
    if style == "schema":
        return [f"CREATE PUBLICATION p FOR TABLES IN SCHEMA public, other {options}"]
    if style == "two":
        half = len(tables) // 2
        return [
            f"CREATE PUBLICATION {name} FOR TABLE {', '.join(each.sql for each in part)} {options}"
            for name, part in (("p", tables[: half + 1]), ("q", tables[half:]))
        ]
    return [f"CREATE PUBLICATION p FOR TABLE {', '.join(each.sql for each in tables)} {options}"]
