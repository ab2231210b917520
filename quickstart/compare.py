"""Compares tables of PostgreSQL with the lake's, every row and every column, in any order.

Both sides are read as Arrow and counted as multisets, so duplicates (a table without a key) count.
It is meant for tables that fit in memory; no value of a row leaves this module, only counts do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyiceberg.catalog import Catalog

_SIDE = "_side"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one table compares.

    :ivar missing: rows of PostgreSQL that the lake lacks, duplicates counted.
    :ivar surplus: rows of the lake that PostgreSQL lacks, duplicates counted.
    """

    table: str
    source_rows: int
    lake_rows: int
    missing: int
    surplus: int

    @property
    def is_equal(self) -> bool:
        """Whether both sides hold the same rows."""
        return self.missing == 0 and self.surplus == 0


def compare_tables(
    conninfo: str, catalog: Catalog, pairs: Sequence[tuple[str, str]]
) -> list[Comparison]:
    """Compare tables, all of PostgreSQL's in one snapshot.

    :param conninfo: a libpq URI.
    :param catalog: the lake's catalog.
    :param pairs: PostgreSQL's name (``schema.table``) and the lake's (``namespace.table``).
    """
    from adbc_driver_postgresql import dbapi  # noqa: PLC0415 - loads a shared library

    found = []
    with dbapi.connect(conninfo) as session, session.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for source_name, lake_name in pairs:
            cursor.execute(_select_all(source_name))
            source = cursor.fetch_arrow_table()
            lake = catalog.load_table(lake_name).scan(selected_fields=tuple(source.column_names))
            found.append(compare_rows(source_name, source, lake.to_arrow()))
    return found


def compare_rows(name: str, source: pa.Table, lake: pa.Table) -> Comparison:
    """Compare two tables of the same columns as multisets of rows; a NULL equals a NULL."""
    columns = source.column_names
    lake = lake.select(columns).cast(source.schema)
    sides = pa.concat_tables([_with_side(source, 1), _with_side(lake, -1)])
    sums = sides.group_by(columns).aggregate([(_SIDE, "sum")])[f"{_SIDE}_sum"]
    missing = pc.sum(pc.if_else(pc.greater(sums, 0), sums, 0)).as_py() or 0
    surplus = pc.sum(pc.if_else(pc.less(sums, 0), pc.negate(sums), 0)).as_py() or 0
    return Comparison(name, source.num_rows, lake.num_rows, missing, surplus)


def _with_side(rows: pa.Table, side: int) -> pa.Table:
    return rows.append_column(_SIDE, pa.repeat(pa.scalar(side, pa.int64()), rows.num_rows))


def _select_all(name: str) -> str:
    schema, table = (part.replace('"', '""') for part in name.split(".", 1))
    return f'SELECT * FROM "{schema}"."{table}"'  # noqa: S608 - quoted as identifiers
