"""The tables that every engine has to read: what happens to them at the source, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput.batch.jobs import CHANGE_LOG, TableOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Each list of statements is one batch; the first one is before the initial copy.
Batches = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """One table: how it comes to be, how it is read, and what the reader must find."""

    name: str
    #: What is special about it, for the page.
    about: str
    #: By column: its kind, see ``reader.canonical``.
    columns: dict[str, str]
    batches: Batches
    #: What happens after the maintenance.
    later: tuple[str, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)
    #: SQL of the rows that the lake must have; without it all rows of the source.
    expected: str | None = None

    @property
    def query(self) -> str:
        """SQL of the rows that the lake must have."""
        return self.expected or f"SELECT {', '.join(self.columns)} FROM {self.name}"


def _scalars(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "scalar")


#: Small files, so that one commit deletes rows of several of them.
_SMALL = TableOptions(properties={"write.target-file-size-bytes": "65536"})

TABLES = (
    Table(
        "orders",
        "updates and deletes in rows of several files, in most batches",
        _scalars("id", "word", "price", "made_at", "paid", "weight"),
        (
            (
                (
                    "CREATE TABLE orders(id int PRIMARY KEY, word text, price numeric(12, 2),"
                    " made_at timestamptz, paid bool, weight float8)"
                ),
                (
                    "INSERT INTO orders SELECT g, md5(g::text), g / 7.0, '2024-02-29 10:00:00.123456+00',"
                    " g % 2 = 0, g / 4.0 FROM generate_series(1, 3000) g"
                ),
            ),
            *(
                (
                    (
                        f"INSERT INTO orders SELECT g, 'new', g, now(), NULL, 'NaN' FROM"
                        f" generate_series({number}0001, {number}0500) g"
                    ),
                    f"UPDATE orders SET word = 'batch {number}' WHERE id % 11 = {number}",
                    f"DELETE FROM orders WHERE id % 13 = {number}",
                )
                for number in range(1, 4)
            ),
        ),
        (
            "DELETE FROM orders WHERE id % 17 = 1",
            "UPDATE orders SET paid = NOT paid WHERE id % 5 = 1",
        ),
        _SMALL,
    ),
    Table(
        "scattered",
        "updates and deletes in some of several files, of thousands of rows each",
        _scalars("id", "word"),
        (
            (
                "CREATE TABLE scattered(id int PRIMARY KEY, word text)",
                "INSERT INTO scattered SELECT g, md5(g::text) FROM generate_series(1, 40000) g",
            ),
            ("UPDATE scattered SET word = 'one' WHERE id < 13333 AND id % 7 = 0",),
        ),
        (
            "UPDATE scattered SET word = 'two' WHERE id < 13333 AND id % 7 = 1",
            "DELETE FROM scattered WHERE id > 20000 AND id % 11 = 0",
        ),
        TableOptions(properties={"write.target-file-size-bytes": "300000"}),
    ),
    Table(
        "moved",
        "keys that change, also in a circle",
        _scalars("id", "part", "word"),
        (
            (
                "CREATE TABLE moved(id bigint, part text, word text, PRIMARY KEY (id, part))",
                "INSERT INTO moved SELECT g, 'a', g FROM generate_series(1, 400) g",
            ),
            ("UPDATE moved SET id = id + 1000 WHERE id % 3 = 0",),
            ("UPDATE moved SET id = -id", "UPDATE moved SET part = 'b' WHERE id < -1000"),
            ("UPDATE moved SET id = -id WHERE id % 2 = 0",),
        ),
        ("UPDATE moved SET id = id + 5000 WHERE id > 0",),
    ),
    Table(
        "truncated",
        "`TRUNCATE` between inserts",
        _scalars("id", "word"),
        (
            (
                "CREATE TABLE truncated(id int PRIMARY KEY, word text)",
                "INSERT INTO truncated SELECT g, 'old' FROM generate_series(1, 200) g",
            ),
            ("UPDATE truncated SET word = 'older' WHERE id < 50",),
            (
                "TRUNCATE truncated",
                "INSERT INTO truncated SELECT g, 'new' FROM generate_series(1, 60) g",
            ),
            ("DELETE FROM truncated WHERE id % 4 = 0",),
        ),
        ("TRUNCATE truncated",),
    ),
    Table(
        "reshaped",
        "columns renamed, widened, dropped, swapped and added without a default",
        _scalars("id", "grown", "cents", "exact", "left_one", "right_one", "note"),
        (
            (
                (
                    "CREATE TABLE reshaped(id int PRIMARY KEY, small int, price numeric(6, 2), half float4,"
                    " right_one text, left_one text, gone int)"
                ),
                "INSERT INTO reshaped SELECT g, g, g, g + 0.5, 'r', 'l', g FROM generate_series(1, 300) g",
            ),
            ("UPDATE reshaped SET small = -1 WHERE id % 10 = 0",),
            (
                "ALTER TABLE reshaped RENAME small TO grown",
                "ALTER TABLE reshaped ALTER grown TYPE bigint",
                "UPDATE reshaped SET grown = 1099511627776 WHERE id % 7 = 0",
            ),
            (
                "ALTER TABLE reshaped ALTER price TYPE numeric(12, 2)",
                "ALTER TABLE reshaped RENAME price TO cents",
                "ALTER TABLE reshaped ALTER half TYPE float8",
                "ALTER TABLE reshaped RENAME half TO exact",
                "ALTER TABLE reshaped RENAME left_one TO between_two",
                "ALTER TABLE reshaped RENAME right_one TO left_one",
                "ALTER TABLE reshaped RENAME between_two TO right_one",
                "ALTER TABLE reshaped DROP gone",
                "ALTER TABLE reshaped ADD note text",
                "UPDATE reshaped SET note = 'n', cents = 1234567890.12 WHERE id % 6 = 0",
            ),
        ),
        ("DELETE FROM reshaped WHERE id % 9 = 0",),
    ),
    Table(
        "defaults",
        "columns added with a constant default",
        _scalars("id", "number", "word", "price", "since", "moment", "flag"),
        (
            (
                "CREATE TABLE defaults(id int PRIMARY KEY)",
                "INSERT INTO defaults SELECT g FROM generate_series(1, 300) g",
            ),
            ("DELETE FROM defaults WHERE id % 10 = 0",),
            (
                (
                    "ALTER TABLE defaults ADD number int DEFAULT 7, ADD word text DEFAULT 'seven',"
                    " ADD price numeric(8, 2) DEFAULT 7.25, ADD since date DEFAULT '2024-02-29'"
                ),
                "UPDATE defaults SET number = NULL WHERE id % 11 = 0",
                "INSERT INTO defaults VALUES (1001, 8, 'eight', 8, '2024-03-01')",
            ),
            (
                (
                    "ALTER TABLE defaults ADD moment timestamptz DEFAULT '2024-02-29 12:00:00+00',"
                    " ADD flag bool DEFAULT true"
                ),
                "UPDATE defaults SET flag = false WHERE id % 13 = 0",
            ),
        ),
        ("UPDATE defaults SET word = 'later' WHERE id % 3 = 0",),
    ),
    Table(
        "partitioned",
        "partitions by day, bucket, truncated text and value; rows that change their partition",
        _scalars("id", "at", "code", "country", "word"),
        (
            (
                (
                    "CREATE TABLE partitioned(id int PRIMARY KEY, at timestamptz, code text, country text,"
                    " word text)"
                ),
                (
                    "INSERT INTO partitioned SELECT g, "
                    " timestamptz '2024-02-28 22:00:00+00' + g * interval '1 h',"
                    " chr(97 + g % 2) || 'bcdef', CASE WHEN g % 3 > 0 THEN 'c' || g % 3 END, 'w'"
                    " FROM generate_series(1, 60) g"
                ),
            ),
            ("UPDATE partitioned SET word = 'changed' WHERE id % 7 = 0",),
            (
                "UPDATE partitioned SET at = at + interval '1 day', country = 'c9' WHERE id % 5 = 0",
                "DELETE FROM partitioned WHERE id % 8 = 0",
            ),
            ("UPDATE partitioned SET at = NULL, code = NULL WHERE id % 9 = 0",),
        ),
        ("DELETE FROM partitioned WHERE id % 11 = 0",),
        TableOptions(partitioned_by=("days(at)", "bucket(2, id)", "truncate(1, code)", "country")),
    ),
    Table(
        "lists",
        "lists of numbers, texts and days",
        {"id": "scalar", **dict.fromkeys(("numbers", "words", "days"), "list of scalar")},
        (
            (
                "CREATE TABLE lists(id int PRIMARY KEY, numbers int[], words text[], days date[])",
                (
                    "INSERT INTO lists SELECT g, ARRAY[g, NULL, -g], ARRAY['a', NULL, ''], '{2024-02-29}'"
                    " FROM generate_series(1, 50) g"
                ),
            ),
            ("UPDATE lists SET numbers = '{}', words = ARRAY['x'] WHERE id % 4 = 0",),
            ("DELETE FROM lists WHERE id % 6 = 0",),
        ),
        ("UPDATE lists SET days = '{0001-01-01,NULL}' WHERE id % 5 = 0",),
    ),
    Table(
        "structs",
        "structs, lists of structs and maps",
        {"id": "scalar", "place": "struct", "places": "list of struct", "pairs": "map"},
        (
            (
                "CREATE TABLE structs(id int PRIMARY KEY, place place, places place[], pairs hstore)",
                (
                    "INSERT INTO structs SELECT g, ROW(g, 'x'::text)::place,"
                    " ARRAY[ROW(g, 'y'::text)::place, ROW(NULL::int, 'z'::text)::place],"
                    " 'a=>1, b=>NULL' FROM generate_series(1, 50) g"
                ),
            ),
            ("UPDATE structs SET place = ROW(NULL, 'changed'), pairs = '' WHERE id % 4 = 0",),
            ("DELETE FROM structs WHERE id % 6 = 0",),
        ),
        ("UPDATE structs SET places = '{}' WHERE id % 5 = 0",),
    ),
    Table(
        "nulls",
        "NULL as a list, a struct and a map",
        {"id": "scalar", "numbers": "list of scalar", "place": "struct", "pairs": "map"},
        (
            (
                "CREATE TABLE nulls(id int PRIMARY KEY, numbers int[], place place, pairs hstore)",
                (
                    "INSERT INTO nulls SELECT g, '{1}', ROW(1, 'x'::text)::place, 'a=>1'"
                    " FROM generate_series(1, 20) g"
                ),
            ),
            ("UPDATE nulls SET numbers = NULL, place = NULL, pairs = NULL WHERE id % 4 = 0",),
        ),
        ("DELETE FROM nulls WHERE id % 3 = 0",),
    ),
    Table(
        "keyless",
        "no key: equal rows, deleted by position",
        _scalars("a", "b"),
        (
            (
                "CREATE TABLE keyless(a int, b text)",
                "ALTER TABLE keyless REPLICA IDENTITY FULL",
                "INSERT INTO keyless SELECT g % 5, 'x' FROM generate_series(1, 100) g",
            ),
            ("DELETE FROM keyless WHERE ctid IN (SELECT ctid FROM keyless WHERE a = 2 LIMIT 7)",),
            ("UPDATE keyless SET b = NULL WHERE ctid IN (SELECT ctid FROM keyless LIMIT 9)",),
        ),
        ("DELETE FROM keyless WHERE a = 4",),
    ),
    Table(
        "scalars",
        "the other types",
        _scalars("id", "s", "r", "raw", "day", "clock", "moment", "uid", "doc", "net", "big")
        | {"raw": "bytes"},
        (
            (
                (
                    "CREATE TABLE scalars(id int PRIMARY KEY, s smallint, r real, raw bytea,"
                    " day date, clock time,"
                    " moment timestamp,"
                    " uid uuid, doc jsonb, net inet, big numeric(38, 10))"
                ),
                (
                    "INSERT INTO scalars SELECT g, g, g + 0.25, decode(md5(g::text), 'hex'),"
                    " date '2000-01-01' + g, '10:00', '2024-02-29 23:59:59.999999', md5(g::text)::uuid,"
                    " '{\"a\": 1}',"
                    " '10.0.0.1', 12345678901234567890.0123456789 FROM generate_series(1, 40) g"
                ),
            ),
            ("UPDATE scalars SET r = 'NaN', raw = '', doc = NULL WHERE id % 4 = 0",),
            (
                "UPDATE scalars SET big = -big, day = NULL WHERE id % 5 = 0",
                "DELETE FROM scalars WHERE id = 1",
            ),
        ),
        ("DELETE FROM scalars WHERE id % 6 = 0",),
        expected="SELECT id, s, r, raw, day, clock::text, moment, uid::text, doc::text, host(net), big"
        " FROM scalars",
    ),
    Table(
        "extremes",
        "dates and moments of the years 1 and 9999",
        _scalars("id", "day", "moment", "instant"),
        (
            (
                "CREATE TABLE extremes(id int PRIMARY KEY, day date, moment timestamp, instant timestamptz)",
                (
                    "INSERT INTO extremes VALUES"
                    " (1, '0001-01-01', '0001-01-01 00:00:00', '0001-01-02 00:00:00+00'),"
                    " (2, '9999-12-31', '9999-12-31 23:59:59.999999', '9999-12-30 23:59:59.999999+00'),"
                    " (3, '1969-12-31', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999999+00')"
                ),
            ),
            ("DELETE FROM extremes WHERE id = 3",),
        ),
        ("INSERT INTO extremes VALUES (4, NULL, NULL, NULL)",),
    ),
    Table(
        "emptied",
        "all rows deleted one by one",
        _scalars("id"),
        (
            (
                "CREATE TABLE emptied(id int PRIMARY KEY)",
                "INSERT INTO emptied SELECT g FROM generate_series(1, 20) g",
            ),
            ("DELETE FROM emptied WHERE id <= 10",),
            ("DELETE FROM emptied",),
        ),
        ("INSERT INTO emptied VALUES (1)",),
    ),
    Table(
        "history",
        "a change log",
        _scalars("id", "word", "_pgoutput_op"),
        (
            (
                "CREATE TABLE history(id int PRIMARY KEY, word text)",
                "INSERT INTO history VALUES (1, 'a')",
            ),
            ("INSERT INTO history VALUES (2, 'b')",),
            ("UPDATE history SET word = 'c' WHERE id = 1", "DELETE FROM history WHERE id = 2"),
        ),
        ("DELETE FROM history WHERE id = 9",),
        TableOptions(mode=CHANGE_LOG),
        "VALUES (1, 'a', 'C'), (2, 'b', 'I'), (1, 'c', 'U'), (2, NULL, 'D')",
    ),
)

#: Before the tables.
SETUP = ("CREATE EXTENSION hstore", "CREATE TYPE place AS (n int, word text)")


def most_batches(tables: Sequence[Table]) -> int:
    """Of the table that has the most."""
    return max(len(each.batches) for each in tables)


def batch(tables: Sequence[Table], number: int) -> list[str]:
    """The statements of a batch, for all tables."""
    return [
        statement
        for table in tables
        if number < len(table.batches)
        for statement in table.batches[number]
    ]


def table_options(tables: Sequence[Table]) -> dict[str, Any]:
    """The option of the apply for these tables."""
    return {f"public.{each.name}": each.options for each in tables}
