"""Histories of a real source: as of each LSN that a transaction left, they show what the source had then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.jobs import TableOptions
from tests.conformance.pipeline import CATALOG

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.conformance.pipeline import Pipeline

    Rows = Counter[tuple[str | None, ...]]

#: The columns that are compared, by table. A key that PostgreSQL and Iceberg print differently is left out.
_COLUMNS = {
    "plain": ("a", "b", "c"),
    "whole": ("a", "v"),
    "wide": ("a", "b", "c"),
    "root": ("a", "v"),
    "filtered": ("a", "c", "v"),
    "numbers": ("v",),
    "moments": ("v",),
    "floats": ("v",),
    "floats_in_full": ("v",),
    "texts": ("k", "v"),
    "pairs": ("k1", "k2", "v"),
}
_KEYS = ("a", "k", "k1", "k2")
#: The tables whose keys are plain numbers. The others show keys of other types.
_MOST = ("plain", "whole", "wide", "root", "filtered")
_SETUP = """
CREATE TABLE plain (a int PRIMARY KEY, b text, c int);
ALTER TABLE plain ALTER b SET STORAGE EXTERNAL;
CREATE TABLE whole (a int PRIMARY KEY DEFERRABLE, v text);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE wide (a int PRIMARY KEY DEFERRABLE, b text, c int);
ALTER TABLE wide REPLICA IDENTITY FULL;
ALTER TABLE wide ALTER b SET STORAGE EXTERNAL;
CREATE TABLE root (a int PRIMARY KEY, v text) PARTITION BY RANGE (a);
CREATE TABLE root_1 PARTITION OF root FOR VALUES FROM (0) TO (10);
CREATE TABLE root_2 PARTITION OF root FOR VALUES FROM (10) TO (100);
CREATE TABLE filtered (a int PRIMARY KEY, c int, v text);
ALTER TABLE filtered REPLICA IDENTITY FULL;
CREATE TABLE numbers (k numeric(10,2) PRIMARY KEY, v int);
CREATE TABLE moments (k timestamptz PRIMARY KEY, v int);
CREATE TABLE floats (k float8 PRIMARY KEY, v int);
CREATE TABLE floats_in_full (k float8 PRIMARY KEY, v int);
ALTER TABLE floats_in_full REPLICA IDENTITY FULL;
CREATE TABLE texts (k text PRIMARY KEY, v int);
CREATE TABLE pairs (k1 int, k2 text, v int, PRIMARY KEY (k1, k2));
CREATE PUBLICATION p FOR TABLE plain, whole, wide, root, filtered WHERE (c > 0), numbers, moments, floats,
    floats_in_full, texts, pairs WITH (publish_via_partition_root);
INSERT INTO plain SELECT i, repeat(md5(i::text), 200), i FROM generate_series(1, 9) i;
INSERT INTO wide SELECT i, repeat(md5(i::text), 200), i FROM generate_series(1, 9) i;
INSERT INTO whole SELECT i, 'v' FROM generate_series(1, 9) i;
INSERT INTO root SELECT i, 'v' FROM generate_series(1, 20) i;
INSERT INTO filtered SELECT i, i - 3, 'v' FROM generate_series(1, 9) i;
INSERT INTO floats VALUES ('NaN', 1), ('-0.0', 2), ('Infinity', 3), (1, 4);
INSERT INTO floats_in_full VALUES ('NaN', 1), ('-0.0', 2), ('Infinity', 3), (1, 4);
INSERT INTO numbers SELECT i, i FROM generate_series(1, 5) i;
INSERT INTO moments VALUES ('2020-01-01', 1), ('2021-01-01', 2);
INSERT INTO texts VALUES ('', 1), (' ', 2), ('NULL', 3), (E'\\\\x00', 4);
INSERT INTO pairs SELECT i, 'k', i FROM generate_series(1, 5) i;
"""
#: Parts of a program, each with its transactions.
_PROGRAM = (
    (
        "UPDATE whole SET a = 3 - a WHERE a < 3",
        "UPDATE wide SET a = 3 - a WHERE a < 3",
    ),
    (
        "UPDATE whole SET a = 10 - a",
        "UPDATE wide SET a = 10 - a",
        (
            "SET CONSTRAINTS ALL DEFERRED; UPDATE whole SET a = 2 WHERE a = 1;"
            " DELETE FROM whole WHERE ctid = (SELECT max(ctid) FROM whole WHERE a = 2)"
        ),
        (
            "SET CONSTRAINTS ALL DEFERRED; UPDATE wide SET a = 1, c = 777 WHERE a = 2;"
            " UPDATE wide SET a = 30 WHERE a = 1 AND c = 777; UPDATE wide SET c = 778 WHERE a = 30"
        ),
    ),
    (
        "DELETE FROM plain WHERE a = 1; INSERT INTO plain VALUES (1, repeat(md5('1'), 200), 1)",
        (
            "UPDATE plain SET c = 100 WHERE a = 2; UPDATE plain SET c = 2 WHERE a = 2;"
            " UPDATE plain SET c = c WHERE a = 2"
        ),
        (
            "UPDATE plain SET a = 33 WHERE a = 3; INSERT INTO plain VALUES (3, 'x', 3);"
            " UPDATE plain SET a = 34 WHERE a = 33; UPDATE plain SET c = 7 WHERE a = 34;"
            " UPDATE plain SET a = 35 WHERE a = 3; UPDATE plain SET a = 3 WHERE a = 34"
        ),
        "UPDATE root SET a = a + 40 WHERE a = 5; UPDATE root SET v = 'w' WHERE a = 45",
        "UPDATE filtered SET c = 5 - c",
        "UPDATE filtered SET c = -c WHERE a < 7",
        "UPDATE filtered SET c = 10, a = a + 100 WHERE a < 4",
        "UPDATE floats SET v = v + 10; UPDATE floats_in_full SET v = v + 10",
        "UPDATE floats SET k = '0.0' WHERE k = 0; UPDATE floats_in_full SET k = '0.0' WHERE k = 0",
        "UPDATE floats_in_full SET k = '-0.0', v = 77 WHERE k = 0",
        "UPDATE floats SET k = 5 WHERE k = 'NaN'; UPDATE floats SET k = 'NaN' WHERE k = 1",
        (
            "UPDATE floats_in_full SET k = 5 WHERE k = 'NaN';"
            " UPDATE floats_in_full SET k = 'NaN' WHERE k = 1"
        ),
        "UPDATE texts SET v = v + 10; UPDATE numbers SET v = v + 10; UPDATE moments SET v = v + 10",
        "UPDATE pairs SET k2 = 'l', v = 9 WHERE k1 < 3; UPDATE pairs SET k1 = k1 + 10 WHERE k1 > 3",
    ),
    ("DELETE FROM plain WHERE a = 5", "DELETE FROM whole WHERE a = 5"),
    (
        "INSERT INTO plain VALUES (5, 'again', 5); UPDATE plain SET c = 6 WHERE a = 5",
        "INSERT INTO whole VALUES (5, 'again')",
    ),
    (
        "TRUNCATE root, whole, plain",
        "INSERT INTO plain VALUES (1, 'n', 1), (2, repeat('x', 5000), 2)",
        (
            "UPDATE plain SET a = 11 WHERE a = 2; TRUNCATE root, wide;"
            " INSERT INTO root VALUES (5, 'n'), (50, 'n');"
            " INSERT INTO wide VALUES (1, repeat('x', 5000), 1); UPDATE wide SET c = 3; TRUNCATE whole;"
            " INSERT INTO whole VALUES (1, 'n'); TRUNCATE whole; INSERT INTO whole VALUES (1, 'n'), (2, 'n')"
        ),
        "UPDATE whole SET a = 3 - a",
    ),
    (
        (
            "UPDATE plain SET c = 50 WHERE a = 11; ALTER TABLE plain ADD d int DEFAULT 9;"
            " UPDATE plain SET c = 51 WHERE a = 11; ALTER TABLE plain ADD e text;"
            " UPDATE plain SET a = 12 WHERE a = 11"
        ),
        (
            "UPDATE whole SET v = 'b' WHERE a = 1; ALTER TABLE whole ADD d int DEFAULT 9;"
            " UPDATE whole SET v = 'c' WHERE a = 1; UPDATE whole SET a = 3 - a"
        ),
    ),
)
_COPY_ON_WRITE = {f"write.{each}.mode": "copy-on-write" for each in ("merge", "update", "delete")}
_KINDS: dict[str, dict[str, Any]] = {
    "merge on read": {},
    "deletion vectors": {"format_version": 3, "metadata_columns": ("_pgoutput_op",)},
    "copy on write, apart": {
        "table_options": {
            f"public.{name}": TableOptions(
                properties=_COPY_ON_WRITE, partitioned_by=("_pgoutput_is_current",)
            )
            for name in _COLUMNS
        }
    },
}


class _Histories:
    """The histories of a source, and what the source held after each transaction."""

    def __init__(self, pipeline: Pipeline, tables: Collection[str]) -> None:
        self._pipeline = pipeline
        self._columns = {name: _COLUMNS[name] for name in tables}
        self._seen: list[tuple[int, dict[str, Rows]]] = []

    def commit(self, statements: str) -> None:
        """Run statements in one transaction."""
        with psycopg.connect(self._pipeline.conninfo) as session:
            session.execute(statements.encode())
        self.look()

    def look(self) -> None:
        """Remember what the source holds now."""
        with psycopg.connect(self._pipeline.conninfo, autocommit=True) as session:
            # A copy shows nothing before its own LSN, so the LSN to look at has to be past it.
            session.execute("SELECT pg_logical_emit_message(true, 'test', 'look')")
            now = session.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
            assert now is not None
            held = {}
            for name, columns in self._columns.items():
                where = " WHERE c > 0" if name == "filtered" else ""
                query = f"SELECT {', '.join(columns)} FROM {name}{where}"
                held[name] = Counter(map(_texts, session.execute(query.encode()).fetchall()))
        self._seen.append((int(now[0]), held))

    def run(self, **options: Any) -> None:
        """Make a whole run of the pipeline."""
        self._pipeline.apply(self._pipeline.stage(**options))
        self._pipeline.advance()

    def forget_before_last(self) -> None:
        """A copy shows nothing of what was before it and after the last batch."""
        del self._seen[:-1]

    def check(self) -> None:
        """Each history has the rows of each moment, and its columns fit together."""
        spark = self._pipeline.spark
        for name, columns in self._columns.items():
            table = f"{CATALOG}.{self._pipeline.namespace}.{name}"
            spark.catalog.refreshTable(table)
            versions = [row.asDict() for row in spark.table(table).collect()]
            for lsn, held in self._seen:
                found = Counter(
                    _texts(each[column] for column in columns)
                    for each in versions
                    if each["_pgoutput_valid_from_lsn"] < lsn
                    and (each["_pgoutput_is_current"] or each["_pgoutput_valid_to_lsn"] >= lsn)
                )
                assert found == held[name], f"{name} as of {lsn}"
            for each in versions:
                ended = not each["_pgoutput_is_current"]
                assert ended is (each["_pgoutput_valid_to_lsn"] is not None), name
                assert ended is (each["_pgoutput_valid_to"] is not None), name
            places = Counter(
                (
                    _texts(each[key] for key in _KEYS if key in each),
                    each["_pgoutput_valid_from_lsn"],
                    each["_pgoutput_seq"],
                )
                for each in versions
            )
            assert max(places.values(), default=1) == 1, f"{name}: two versions in one place"


def _texts(values: Any) -> tuple[str | None, ...]:
    return tuple(None if value is None else str(value) for value in values)


def _lived(
    pipeline: Pipeline, parts_of_a_batch: int, tables: Collection[str] = tuple(_COLUMNS)
) -> _Histories:
    """Histories that were copied and got the whole program.

    :param parts_of_a_batch: so many parts of the program become one batch.
    :param tables: those that are published.
    """
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        session.execute(_SETUP.encode())
        for name in _COLUMNS.keys() - set(tables):
            session.execute(f"ALTER PUBLICATION p DROP TABLE {name}".encode())
    histories = _Histories(pipeline, tables)
    histories.run()
    histories.look()
    for first in range(0, len(_PROGRAM), parts_of_a_batch):
        for part in _PROGRAM[first : first + parts_of_a_batch]:
            for transaction in part:
                histories.commit(transaction)
        histories.run()
    histories.check()
    return histories


@pytest.mark.slow
def test_histories_of_large_batches(pipeline: Pipeline) -> None:
    """A row has versions of many transactions in one batch, before and after a TRUNCATE and new columns."""
    pipeline.plan_options.update(mode="history")
    _lived(pipeline, 4, _MOST)


@pytest.mark.further
@pytest.mark.parametrize("kind", _KINDS)
def test_histories_show_the_source_as_of_each_lsn(pipeline: Pipeline, kind: str) -> None:
    pipeline.plan_options.update(mode="history", **_KINDS[kind])
    histories = _lived(pipeline, 1)
    # A copy beside changes that no batch has.
    histories.commit("UPDATE plain SET c = 99 WHERE a = 12; UPDATE whole SET a = 3 - a")
    histories.run(copy_tables=tuple(f"public.{name}" for name in _COLUMNS))
    histories.look()
    histories.forget_before_last()
    histories.commit("UPDATE plain SET a = a + 1000; UPDATE whole SET a = 3 - a")
    histories.run()
    histories.check()
