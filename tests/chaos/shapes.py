"""Random statements that change what tables are: columns, keys, names, partitions, types.

Each function draws one; None: there is nothing that it could be about. Where the documentation says that
a change is in no stream and that no warning comes, the function notes it in ``draw.silent``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos import known
from tests.chaos.drawing import quoted
from tests.chaos.tables import KINDS, TYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.chaos.drawing import Column, Drawing, Table

_MOST_TABLES = 9
#: Columns share these names, so names come back.
_NAMES = tuple(f"c{number}" for number in range(1, 9))
_RETYPES = {
    "smallint": ("integer", "bigint"),
    "integer": ("bigint", "text", "numeric(12,2)"),
    "bigint": ("text", "integer", "numeric"),
    "numeric(8,2)": ("numeric(12,2)", "text", "numeric"),
    "character varying(10)": ("text", "character varying(20)"),
    "character(4)": ("character(6)", "text"),
    "real": ("double precision",),
    "date": ("timestamp", "text"),
    "timestamp with time zone": ("timestamp", "timestamptz(0)"),
    "json": ("jsonb",),
    "text": ("varchar(10) USING left({0}, 9)", "varchar(20000)"),
    "mood": ("text",),
    "small": ("int", "bigint"),
    "integer[]": ("bigint[]", "text"),
    "numeric": ("numeric(38,4)", "text"),
}
_VOLATILE = {
    "int": "(random() * 100)::int",
    "timestamptz": "clock_timestamp()",
    "uuid": "gen_random_uuid()",
}
#: Bounds of the partitions of ``tables.py``, by the end of their names, and which table holds them.
_BOUNDS = {
    "_0": ("", "FOR VALUES FROM (MINVALUE) TO (8)"),
    "_10": ("_1", "FOR VALUES FROM (8) TO (12)"),
    "_11": ("_1", "FOR VALUES FROM (12) TO (16)"),
    "_2": ("", "DEFAULT"),
}


def _plain(columns: list[Column]) -> list[Column]:
    return [
        each for each in columns if not each.in_key and not each.generated and each.name[0] == "c"
    ]


def _column(draw: Drawing) -> tuple[Table, Column] | None:
    table = draw.whole_table()
    columns = _plain(draw.columns(table)) if table else []
    return (table, draw.chance.choice(columns)) if table and columns else None


def _default(draw: Drawing, kind: str) -> str:
    drawn = draw.chance.random()
    if drawn < 0.45:
        return ""
    if drawn < 0.6 and kind in _VOLATILE:
        return f" DEFAULT {_VOLATILE[kind]}"
    row = draw.rows(
        "SELECT to_regtype(%s)::oid::int",
        kind.partition("(")[0].strip() if "[]" not in kind else kind,
    )
    oid = row[0][0]
    if oid is None:
        return ""
    value = draw.values.of(oid, nullable=True, few=True)
    return f"{draw.chance.choice(('', ' NOT NULL') if value != 'NULL' else ('',))} DEFAULT {value}"


def add_column(draw: Drawing) -> str | None:
    """With any type, with any default."""
    table = draw.whole_table()
    if table is None:
        return None
    name, kind = draw.chance.choice(_NAMES), draw.chance.choice(TYPES)
    return f"ALTER TABLE {table.sql} ADD {name} {kind}{_default(draw, kind)}"


def add_generated_column(draw: Drawing) -> str | None:
    """Made of another column."""
    found = _column(draw)
    if found is None:
        return None
    table, column = found
    name = draw.chance.choice(_NAMES)
    return f"ALTER TABLE {table.sql} ADD {name} boolean GENERATED ALWAYS AS ({column.sql} IS NULL) STORED"


def drop_column(draw: Drawing) -> str | None:
    found = _column(draw)
    return f"ALTER TABLE {found[0].sql} DROP {found[1].sql} CASCADE" if found else None


def replace_column(draw: Drawing) -> str | None:
    """Dropped and added again in one statement."""
    found = _column(draw)
    if found is None:
        return None
    table, column = found
    kind = column.type_name if draw.happens(0.5) else draw.chance.choice(TYPES)
    return f"ALTER TABLE {table.sql} DROP {column.sql} CASCADE, ADD {column.sql} {kind}"


def rename_column(draw: Drawing) -> str | None:
    found = _column(draw)
    if found is None:
        return None
    return f"ALTER TABLE {found[0].sql} RENAME {found[1].sql} TO {draw.chance.choice(_NAMES)}"


def rename_key(draw: Drawing) -> str | None:
    table = draw.whole_table()
    key = [each for each in draw.columns(table) if each.in_key] if table else []
    if table is None or not key:
        return None
    column = draw.chance.choice(key)
    name = column.name.removesuffix("_r") if column.name.endswith("_r") else f"{column.name}_r"
    return f"ALTER TABLE {table.sql} RENAME {column.sql} TO {quoted(name)}"


def swap_columns(draw: Drawing) -> str | None:
    """Two columns take each other's names, in one statement."""
    table = draw.whole_table()
    columns = _plain(draw.columns(table)) if table else []
    if table is None or len(columns) < 2:
        return None
    one, two = draw.chance.sample(columns, 2)
    renames = ((one.sql, "spare"), (two.sql, one.sql), ("spare", two.sql))
    steps = "; ".join(f"ALTER TABLE {table.sql} RENAME {old} TO {new}" for old, new in renames)
    return f"DO $$ BEGIN {steps}; END $$"


def retype(draw: Drawing) -> str | None:
    """A type that Iceberg can follow, or cannot, or need not."""
    found = _column(draw)
    if found is None:
        return None
    table, column = found
    kinds = _RETYPES.get(column.type_name)
    if not kinds:
        return None
    kind = draw.chance.choice(kinds).format(column.sql)
    if "USING" in kind:
        draw.silent.append((table.oid, column.name))
    return f"ALTER TABLE {table.sql} ALTER {column.sql} TYPE {kind}"


def convert(draw: Drawing) -> str | None:
    """The values of all rows change, the type does not."""
    found = _column(draw)
    if found is None or found[1].type_name not in {"integer", "bigint", "numeric"}:
        return None
    table, column = found
    draw.silent.append((table.oid, column.name))
    return (
        f"ALTER TABLE {table.sql} ALTER {column.sql} TYPE {column.type_name} USING {column.sql} + 1"
    )


def change_default(draw: Drawing) -> str | None:
    found = _column(draw)
    if found is None:
        return None
    table, column = found
    value = draw.values.of(column.type_oid, nullable=True, few=True)
    what = draw.chance.choice(
        (f"SET DEFAULT {value}", "DROP DEFAULT", "SET NOT NULL", "DROP NOT NULL")
    )
    return f"ALTER TABLE {table.sql} ALTER {column.sql} {what}"


def change_storage(draw: Drawing) -> str | None:
    found = _column(draw)
    if found is None:
        return None
    storage = draw.chance.choice(("EXTERNAL", "EXTENDED", "MAIN"))
    return f"ALTER TABLE {found[0].sql} ALTER {found[1].sql} SET STORAGE {storage}"


def drop_expression(draw: Drawing) -> str | None:
    """A generated column becomes a plain one, or gets another expression."""
    table = draw.whole_table()
    columns = [each for each in draw.columns(table) if each.generated == "s"] if table else []
    if table is None or not columns:
        return None
    column = draw.chance.choice(columns)
    if draw.version >= 17 and column.type_name == "integer" and draw.happens(0.5):
        return f"ALTER TABLE {table.sql} ALTER {column.sql} SET EXPRESSION AS (a + 2)"
    return f"ALTER TABLE {table.sql} ALTER {column.sql} DROP EXPRESSION"


_UNIQUE_INDEXES = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indpred IS NULL ORDER BY c.oid
"""


def change_identity(draw: Drawing) -> str | None:
    """Another replica identity of a whole table."""
    table = draw.table(lambda each: not each.is_leaf and each.kind == "r")
    if table is None:
        return None
    indexes = [name for (name,) in draw.rows(_UNIQUE_INDEXES, table.oid)]
    ways = [
        "FULL",
        "FULL",
        "DEFAULT",
        "DEFAULT",
        *(f"USING INDEX {quoted(each)}" for each in indexes),
    ]
    if draw.happens(0.1):
        ways = ["NOTHING"]
    return f"ALTER TABLE {table.sql} REPLICA IDENTITY {draw.chance.choice(ways)}"


def change_leaf_identity(draw: Drawing) -> str | None:
    """Another replica identity of a partition, which need not be its root's."""
    table = draw.table(lambda each: each.is_leaf and each.kind == "r")
    if table is None:
        return None
    indexes = [name for (name,) in draw.rows(_UNIQUE_INDEXES, table.oid)]
    ways = ["FULL", "DEFAULT", *(f"USING INDEX {quoted(each)}" for each in indexes)]
    return f"ALTER TABLE {table.sql} REPLICA IDENTITY {draw.chance.choice(ways)}"


_PRIMARY_KEY = "SELECT conname FROM pg_constraint WHERE conrelid = %s AND contype = 'p'"


def change_key(draw: Drawing) -> str | None:
    """Another primary key, or none."""
    table = draw.table(lambda each: not each.is_leaf and each.kind == "r")
    if table is None:
        return None
    found = draw.rows(_PRIMARY_KEY, table.oid)
    columns = [each.sql for each in draw.columns(table) if each.not_null and not each.generated]
    if not found:
        return (
            f"ALTER TABLE {table.sql} ADD PRIMARY KEY ({draw.chance.choice(columns)})"
            if columns
            else None
        )
    drop = f"DROP CONSTRAINT {quoted(found[0][0])}"
    if draw.happens(0.3):
        return f"ALTER TABLE {table.sql} {drop}"
    chosen = draw.chance.sample(columns, min(len(columns), draw.chance.choice((1, 2))))
    return f"ALTER TABLE {table.sql} {drop}, ADD PRIMARY KEY ({', '.join(chosen)})"


def rewrite(draw: Drawing) -> str | None:
    """All rows into another file; not in a transaction."""
    table = draw.table(lambda each: each.kind == "r")
    if table is None:
        return None
    key = draw.rows(_PRIMARY_KEY, table.oid)
    if key and draw.happens(0.3):
        return f"CLUSTER {table.sql} USING {quoted(key[0][0])}"
    return f"VACUUM (FULL) {table.sql}"


def rename_table(draw: Drawing) -> str | None:
    table = draw.table(lambda each: each.kind == "r" and not each.is_leaf)
    if table is None:
        return None
    name = table.name.removesuffix("_n") if table.name.endswith("_n") else f"{table.name}_n"
    return f"ALTER TABLE {table.sql} RENAME TO {quoted(name)}"


def move_table(draw: Drawing) -> str | None:
    table = draw.table(lambda each: each.kind == "r" and not each.is_leaf)
    if table is None:
        return None
    schemas = [
        name
        for (name,) in draw.rows(
            "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'other%' OR nspname = 'public' ORDER BY 1"
        )
    ]
    return f"ALTER TABLE {table.sql} SET SCHEMA {quoted(draw.chance.choice(schemas))}"


def rename_schema(draw: Drawing) -> str | None:
    found = draw.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'other%' ORDER BY 1")
    if not found:
        return None
    name = found[0][0]
    return f"ALTER SCHEMA {quoted(name)} RENAME TO {'other' if name != 'other' else 'other_n'}"


def drop_table(draw: Drawing) -> str | None:
    table = draw.table(lambda each: not each.is_leaf)
    return f"DROP TABLE {table.sql} CASCADE" if table else None


def create_table(draw: Drawing) -> str | None:
    """A table of some kind; under the name of one that is gone, where there is one."""
    present = {each.name for each in draw.tables()}
    if len(present) > _MOST_TABLES:
        return None
    kinds = [each for each in KINDS if each.name not in known.TABLES]
    kind = draw.chance.choice(kinds)
    names = [each for each in (kind.name, f"{kind.name}_2") if each not in present]
    if not names:
        return None
    return "; ".join([*kind.make(draw.chance, names[0]), *_published(draw, names[0])])


def recreate_table(draw: Drawing) -> str | None:
    """Dropped and made again, of the same kind, in one transaction."""
    table = draw.table(lambda each: not each.is_leaf and each.schema == "public")
    if table is None:
        return None
    kind = next((each for each in KINDS if table.name in {each.name, f"{each.name}_2"}), None)
    if kind is None:
        return None
    steps = [f"DROP TABLE {table.sql} CASCADE", *kind.make(draw.chance, table.name)]
    return "; ".join([*steps, *_published(draw, table.name)])


def _published(draw: Drawing, name: str) -> Iterator[str]:
    """Mostly a new table is published at once; a publication of all tables does that by itself."""
    if draw.lists_tables and draw.happens(0.75):
        yield f"ALTER PUBLICATION {draw.chance.choice(draw.publications)} ADD TABLE {name}"


_PARENT = """
SELECT inhparent::regclass::text, pg_partition_root(inhrelid)::oid::int
  FROM pg_inherits WHERE inhrelid = %s
"""


def detach(draw: Drawing) -> str | None:
    table = draw.table(lambda each: each.is_leaf)
    if table is None:
        return None
    (parent, root) = draw.rows(
        _PARENT,
        table.oid,
    )[0]
    draw.silent.append((root, "*"))
    return f"ALTER TABLE {parent} DETACH PARTITION {table.sql}"


def attach(draw: Drawing) -> str | None:
    """A partition that was detached comes back, with its rows."""
    table = draw.table(lambda each: not each.is_leaf and _ending(each.name) in _BOUNDS)
    if table is None:
        return None
    ending = _ending(table.name)
    middle, bounds = _BOUNDS[ending]
    parent = table.name.removesuffix(ending) + middle
    found = draw.table(lambda each: each.name == parent and each.kind == "p")
    if found is None:
        return None
    root = draw.rows("SELECT pg_partition_root(%s)::oid::int", found.oid)[0][0]
    draw.silent.append((root, "*"))
    return f"ALTER TABLE {found.sql} ATTACH PARTITION {table.sql} {bounds}"


def _ending(name: str) -> str:
    return name[name.rfind("_") :] if "_" in name else name


def truncate_leaf(draw: Drawing) -> str | None:
    table = draw.table(lambda each: each.is_leaf)
    if table is None:
        return None
    root = draw.rows("SELECT pg_partition_root(%s)::oid::int", table.oid)[0][0]
    draw.silent.append((root, "*"))
    return f"TRUNCATE {table.sql}"


def replace_leaf(draw: Drawing) -> str | None:
    """A partition is dropped, and one of the same bounds made in its place."""
    table = draw.table(lambda each: each.is_leaf and _ending(each.name) in _BOUNDS)
    if table is None:
        return None
    (parent, root) = draw.rows(
        _PARENT,
        table.oid,
    )[0]
    draw.silent.append((root, "*"))
    bounds = _BOUNDS[_ending(table.name)][1]
    return f"DROP TABLE {table.sql}; CREATE TABLE {table.sql} PARTITION OF {parent} {bounds}"


def add_label(draw: Drawing) -> str | None:
    number = draw.chance.randrange(30)
    place = draw.chance.choice(("", " BEFORE 'sad'"))
    return f"ALTER TYPE mood ADD VALUE IF NOT EXISTS 'm{number}'{place}"


def rename_label(draw: Drawing) -> str | None:
    """PostgreSQL sends nothing of the rows that have the label."""
    labels = [each for (each,) in draw.rows("SELECT unnest(enum_range(NULL::mood))::text")]
    old = draw.chance.choice(labels)
    new = old.removesuffix("!") if old.endswith("!") else f"{old}!"
    return f"ALTER TYPE mood RENAME VALUE '{old}' TO '{new}'"


def change_attributes(draw: Drawing) -> str | None:
    """Attributes of a composite come, go, or get other names."""
    rows = draw.rows(
        "SELECT attname FROM pg_attribute"
        " WHERE attrelid = 'address'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    added = [name for (name,) in rows if name.startswith("z")]
    if added and draw.happens(0.5):
        what = draw.chance.choice(
            (f"DROP ATTRIBUTE {added[0]}", f"RENAME ATTRIBUTE {added[0]} TO z9")
        )
        return f"ALTER TYPE address {what}"
    kind = draw.chance.choice(("text", "int", "mood"))
    return f"ALTER TYPE address ADD ATTRIBUTE z{draw.chance.randrange(9)} {kind}"


def replace_enum(draw: Drawing) -> str | None:
    """Another type takes the place of an enum in one column, and its name."""
    found = draw.rows(
        "SELECT c.oid::regclass::text, quote_ident(a.attname), format_type(a.atttypid, -1), c.oid::int"
        " FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE c.relkind = 'r'"
        " AND NOT c.relispartition AND NOT attisdropped"
        " AND a.atttypid IN ('mood'::regtype, 'mood[]'::regtype)"
    )
    if not found:
        return None
    table, column, kind, _ = draw.chance.choice(list(found))
    new = kind.replace("mood", "feeling")
    return (
        "DO $$ BEGIN IF to_regtype('feeling') IS NULL THEN"
        " CREATE TYPE feeling AS ENUM ('sad', 'ok', 'happy', 'new');"
        f" END IF; END $$; ALTER TABLE {table} ALTER {column} TYPE {new} USING {column}::text::{new}"
    )


def index(draw: Drawing) -> str | None:
    found = _column(draw)
    if found is None:
        return None
    return f"CREATE INDEX ON {found[0].sql} ({found[1].sql})"
