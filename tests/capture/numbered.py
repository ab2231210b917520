"""What the changes of a random run lead to, put together by ``attnum``: the judge of the numbers.

Where the pipeline says that it cannot know a column, the column is not compared. What is not here: the
comparison of the ways of reading, by names (``torture.py``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.shape import KnownColumn, Shape
from airflow_provider_pgoutput.capture import schema
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.capture.source.storage import read_storage
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

Numbered = dict[int, str | None]


class Doubts(logging.Handler):
    """Names of the columns of which the pipeline says that it cannot know something."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.names: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple), "the warnings name table and columns"
        self.names |= set(str(record.args[1]).split(", "))

    def __enter__(self) -> Doubts:
        logging.getLogger(schema.__name__).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(schema.__name__).removeHandler(self)


def read_columns(source: Source, table: str) -> dict[int, tuple[str, str, str | None]]:
    """Name, type and missing value of the columns that a table has, by number."""
    rows = source.execute(
        "SELECT attnum, attname::text, format_type(atttypid, atttypmod),"
        " (attmissingval::text::text[])[1] FROM pg_attribute"
        f" WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
    )
    return {number: tuple(rest) for number, *rest in rows}


def read_table(source: Source, table: str) -> list[Numbered]:
    """Rows as text, by number."""
    columns = read_columns(source, table)
    names = ", ".join(f"{name}::text" for name, *_ in columns.values())
    rows = source.execute(f"SELECT {names} FROM {table}")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def checkpoint_now(source: Source, tables: tuple[str, ...]) -> Checkpoint:
    """The checkpoint of a lake that holds all up to the slot's position."""
    (oids,) = source.execute(f"SELECT {', '.join(f'{t!r}::regclass::oid::int8' for t in tables)}")
    with connect(source.conninfo) as session:
        storage = read_storage(session, oids)
    shapes = {
        oid: Shape(
            tuple(
                KnownColumn(number, name, kind, kind)
                for number, (name, kind, _) in read_columns(source, table).items()
            ),
            (),
            "d",
            storage[oid],
        )
        for table, oid in zip(tables, oids, strict=True)
    }
    named = {oid: f"public.{table}" for table, oid in zip(tables, oids, strict=True)}
    ((system,),) = source.execute("SELECT system_identifier::text FROM pg_control_system()")
    confirmed = source.confirmed()
    assert confirmed is not None
    return Checkpoint(Lsn.parse(confirmed), system, named, shapes=shapes)


def staged_columns(manifest: Manifest, table: str) -> set[int]:
    """Numbers of the columns of the newest version: of later ones no row has told yet."""
    for each in manifest.tables:
        if each.name == f"public.{table}":
            return {column.attribute_number or 0 for column in each.versions[-1].columns}
    return set()


def doubtful(manifest: Manifest, source: Source, table: str, names: set[str]) -> set[int]:
    """Numbers of the columns that have one of the names, or ever had."""
    found = {number for number, (name, *_) in read_columns(source, table).items() if name in names}
    for each in manifest.tables:
        for version in each.versions:
            if each.name == f"public.{table}":
                found |= {c.attribute_number or 0 for c in version.columns if c.name in names}
    return found
