"""Tables at the edge of what PostgreSQL allows, up to the lake: 1600 columns, and names of every character.

Each is copied, changed, and read with Spark and with pyiceberg. What is not here: what is staged of so many
columns (``tests/capture/test_server_states.py``), names of schemas and tables (C66).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import TableRefused
from tests.conformance.one_table import Lake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conformance.pipeline import Pipeline


MOST_COLUMNS, MOST_KEY_COLUMNS = 1600, 32
#: Types of the wide table's columns in turn, and a value of a row's number ``g`` and the column's number.
WIDE_TYPES = {
    "int": "g * 10000 + {0}",
    "text": "chr(97 + ({0} + g) % 26)",
    "boolean": "({0} + g) % 2 = 0",
    "date": "date '2000-01-01' + {0} + g",
    "numeric(9,2)": "({0} + g) / 100.0",
    "real": "NULL",
}
#: What looks like something else in SQL, in Spark, in Iceberg, in a path or in a format string.
NAMES = (
    *("a", "A", "É", "é", "e\u0301", "ß", "SS", "İ", "i", "ı"),
    *('a"b', '""', "a`b", "``", "`a`", "a.b", ".", "..", "a.b.c", "../x", "/", "\\", "a'b", "''"),
    *("new\nline", "tab\t", "\r", "\x01", "\x7f", " ", "  ", " lead", "trail ", "\u00a0", "\ufeff"),
    *("\u200b", "\u202e", "日本", "😀", "👩‍💻", "العربية", "x" * 63, "é" * 31),
    *(
        "$",
        "$1",
        "${x}",
        "%",
        "%s",
        "%(x)s",
        "{0}",
        "{}",
        "#",
        "--",
        ";",
        "/*",
        "?",
        ":x",
        "@",
        "!",
    ),
    *("=", "a=b", ",", "(a)", "<a>", "[0]", "*", "a->b", "|", "&", "^", "~", "-", "+", "1", "0x1"),
    *("select", "NULL", "true", "interval", "user", "table", "end", "date '2000-01-01'"),
    *(
        "_File",
        "file",
        "file_path",
        "pos",
        "pos_",
        "_metadata",
        "metadata",
        "partition",
        "_row_id_",
    ),
    *("element", "key", "value", "key_value", "list", "n0", "o0", "c0", "op", "_op", "branch_x"),
    *("pgoutput_seq", "_pgoutput", "source", "target", "t", "s", "__index_level_0__", "row"),
)
#: Some of what Iceberg keeps for itself: https://iceberg.apache.org/spec/#reserved-field-ids
RESERVED = ("_file", "_row_id", "_change_type")


@pytest.fixture
def lake(pipeline: Pipeline) -> Lake:
    """Without a table."""
    return Lake(pipeline)


@pytest.mark.exhaustive  # Spark takes a minute to plan so many columns, and more.
def test_as_many_columns_as_a_table_can_have(lake: Lake) -> None:
    kinds = [list(WIDE_TYPES)[number % len(WIDE_TYPES)] for number in range(1, MOST_COLUMNS)]
    defined = ", ".join(f"c{number} {kind}" for number, kind in enumerate(kinds, 1))
    made = ", ".join(WIDE_TYPES[kind].format(number) for number, kind in enumerate(kinds, 1))
    rows = "INSERT INTO t SELECT g, {} FROM generate_series({}, {}) g"
    lake.run(
        f"CREATE TABLE t(id int PRIMARY KEY, {defined})",
        "CREATE PUBLICATION p FOR TABLE t",
        rows.format(made, 1, 4),
    )
    lake.run(
        rows.format(made, 5, 8),
        "UPDATE t SET c1 = NULL, c2 = false, c1599 = NULL WHERE id IN (1, 5)",
        "UPDATE t SET id = 9 WHERE id = 2",
        "DELETE FROM t WHERE id IN (3, 6)",
        "ALTER TABLE t RENAME c800 TO renamed",
        "UPDATE t SET renamed = NULL WHERE id = 4",
    )
    assert len(lake.fields()) == MOST_COLUMNS
    assert len(lake.source_rows("id")) == 6
    assert lake.agrees()


@pytest.mark.further
def test_columns_of_every_name(lake: Lake) -> None:
    """There when the table was made, added, renamed; of the key and not."""
    later, there = NAMES[1::3], NAMES[::3] + NAMES[2::3]
    keys = there[:MOST_KEY_COLUMNS]
    lake.run(
        f"CREATE TABLE t({_texts(there)}, PRIMARY KEY ({', '.join(map(_quoted, keys))}))",
        "CREATE PUBLICATION p FOR TABLE t",
        _rows(len(there), 1, 6),
    )
    fields = lake.fields()
    assert tuple(fields) == there
    added = (f"ALTER TABLE t ADD {_quoted(each)} text DEFAULT 'of then'" for each in later)
    # Every third name goes to another column, of the key or not.
    old = there[::3]
    new = (*old[1:], old[0])
    lake.run(
        *added,
        _rows(len(NAMES), 7, 9),
        *(f"ALTER TABLE t RENAME {_quoted(each)} TO spare{n}" for n, each in enumerate(old)),
        *(f"ALTER TABLE t RENAME spare{n} TO {_quoted(each)}" for n, each in enumerate(new)),
        *_changes(),
    )
    renamed = dict(zip(old, new, strict=True))
    wanted = {renamed.get(name, name): number for name, number in fields.items()}
    found = lake.fields()
    assert {name: found[name] for name in wanted} == wanted
    assert set(found) == set(NAMES)
    assert len(lake.source_rows("a")) == 7
    assert lake.agrees()


@pytest.mark.parametrize("name", RESERVED)
def test_a_name_that_iceberg_keeps_for_itself_is_refused(lake: Lake, name: str) -> None:
    lake.execute(f'CREATE TABLE t(id int PRIMARY KEY, "{name}" int)')
    lake.execute("CREATE PUBLICATION p FOR TABLE t", "INSERT INTO t VALUES (1, 1)")
    with pytest.raises(TableRefused, match="name of a metadata column") as refused:
        lake.run()
    assert (refused.value.table, refused.value.column) == ("public.t", name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _texts(names: Sequence[str]) -> str:
    return ", ".join(f"{_quoted(name)} text" for name in names)


def _rows(columns: int, first: int, last: int) -> str:
    """No two values of the table are the same."""
    values = ", ".join(f"'{number}.' || g" for number in range(columns))
    return f"INSERT INTO t SELECT {values} FROM generate_series({first}, {last}) g"


def _changes() -> tuple[str, ...]:
    """Every column is changed in some row; rows move to other keys and go."""
    changed = ", ".join(f"{_quoted(name)} = {_quoted(name)} || '!'" for name in NAMES)
    nulls = ", ".join(f"{_quoted(name)} = NULL" for name in NAMES[1::3])
    key = _quoted(NAMES[3])
    return (
        f"UPDATE t SET {changed} WHERE {key} LIKE '%.1' OR {key} LIKE '%.8'",
        f"UPDATE t SET {nulls} WHERE {key} LIKE '%.3' OR {key} LIKE '%.9'",
        f"DELETE FROM t WHERE {key} LIKE '%.2' OR {key} LIKE '%.7'",
    )
