"""Digests of the source and of the lake are equal for values of every type, and only for equal values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from psycopg import sql
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.capture.source.catalog import read_types
from airflow_provider_pgoutput.capture.source.session import connect
from airflow_provider_pgoutput.proof.digest import RowHash, aggregates, digest_of
from tests.reader_role import reader_conninfo
from tests.types_end_to_end.conftest import TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from airflow_provider_pgoutput.batch.table_version import Column
    from airflow_provider_pgoutput.capture.source.session import Session
    from airflow_provider_pgoutput.capture.types.type_info import TypeInfo
    from tests.types_end_to_end.conftest import Carried

#: Two, because a salt decides what stands for NULL.
SALTS = (1, -(2**63))
#: By name: whether values are hashed by md5.
FUNCTIONS = pytest.mark.parametrize("is_md5", [False, True], ids=["server", "md5"])


@pytest.fixture(scope="module")
def session(carried: Carried) -> Iterator[Session]:
    """As the role of the pipeline, for which the tests have set hostile defaults."""
    with connect(reader_conninfo(carried.staged.conninfo)) as opened:
        yield opened


@pytest.fixture(scope="module")
def types(session: Session) -> dict[int, TypeInfo]:
    return read_types(session, attributes=True)


@pytest.fixture(scope="module")
def columns(carried: Carried) -> list[Column]:
    """All columns, as the pipeline described them."""
    (table,) = (each for each in carried.batches[-1].manifest.tables if each.name == TABLE)
    found = {each.name: each for each in table.versions[-1].columns}
    return [found[f"c{place}"] for place in carried.places]


@pytest.fixture(scope="module")
def rows(carried: Carried) -> pa.Table:
    """The lake's rows in the order of ``id``."""
    catalog = load_catalog("lake", **carried.pipeline.catalog_properties)
    table = catalog.load_table((carried.pipeline.namespace, "values")).scan().to_arrow()
    return table.sort_by("id").combine_chunks()


def _source_hashes(session: Session, row_hash: RowHash) -> list[int]:
    query = sql.SQL('SELECT {} FROM public."values" AS t ORDER BY id').format(
        row_hash.expression("t")
    )
    return [value % 2**64 for (value,) in session.execute(query).fetchall()]


def _lake_hashes(rows: pa.Table, row_hash: RowHash) -> list[int]:
    arrays = [rows.column(name).combine_chunks() for name in row_hash.names]
    found: list[int] = row_hash.of_rows(arrays).tolist()
    return found


@FUNCTIONS
@pytest.mark.slow
@pytest.mark.parametrize("salt", SALTS)
def test_each_value_of_each_type_has_one_hash(
    carried: Carried,
    session: Session,
    types: dict[int, TypeInfo],
    columns: list[Column],
    rows: pa.Table,
    salt: int,
    is_md5: bool,
) -> None:
    wrong = []
    for place, column in zip(carried.places, columns, strict=True):
        row_hash = RowHash.of([column], types, salt, is_md5=is_md5)
        theirs, ours = _source_hashes(session, row_hash), _lake_hashes(rows, row_hash)
        label = f"{carried.staged.columns[place].label} as {column.lake_type}"
        wrong += [
            f"{label} in row {number}"
            for number, (one, other) in enumerate(zip(theirs, ours, strict=True))
            if one != other
        ]
    assert not wrong


@FUNCTIONS
def test_different_values_have_different_hashes(
    carried: Carried,
    types: dict[int, TypeInfo],
    columns: list[Column],
    rows: pa.Table,
    is_md5: bool,
) -> None:
    """Also NULL and an empty text, 0.0 and -0.0, char(n) with its padding, NULL within a list."""
    compared = 0
    for number, column in enumerate(columns):
        hashes = _lake_hashes(rows, RowHash.of([column], types, 1, is_md5=is_md5))
        values = [repr(each) for each in carried.values["pyiceberg"][number]]
        by_value = dict(zip(values, hashes, strict=True))
        same = _alike_in_the_lake(column, by_value)
        assert len(set(by_value.values())) == len(by_value) - same, column.lake_type
        compared += len(by_value)
    assert compared > 1500


def _alike_in_the_lake(column: Column, by_value: dict[str, int]) -> int:
    """How many values pyiceberg cannot tell from another one: a NULL list of structs reads as empty."""
    is_list_of_structs = column.lake_type.startswith("list<struct")
    return int(is_list_of_structs and {"None", "[]"} <= by_value.keys())


@FUNCTIONS
def test_the_digest_of_whole_rows_is_the_same_in_sql(
    session: Session,
    types: dict[int, TypeInfo],
    columns: list[Column],
    rows: pa.Table,
    is_md5: bool,
) -> None:
    row_hash = RowHash.of(columns, types, SALTS[1], is_md5=is_md5)
    query = sql.SQL('SELECT {} FROM public."values" AS t').format(
        aggregates(row_hash.expression("t"))
    )
    found = session.execute(query).fetchone()
    assert found is not None
    (batch,) = rows.select(list(row_hash.names)).to_batches()
    ours = row_hash.digest(batch)
    assert digest_of(*found) == ours
    assert ours.rows == rows.num_rows


@FUNCTIONS
def test_an_exchange_of_values_between_two_rows_is_seen(
    types: dict[int, TypeInfo], columns: list[Column], rows: pa.Table, is_md5: bool
) -> None:
    """The sum of hashes of single values would be blind to it."""
    row_hash = RowHash.of(columns, types, 1, is_md5=is_md5)
    arrays: list[Any] = [rows.column(name).combine_chunks() for name in row_hash.names]
    before = row_hash.of_rows(arrays).sum(dtype=np.uint64)
    exchanged = 0
    for place, values in enumerate(arrays):
        order = np.arange(len(values))
        order[[0, 1]] = [1, 0]
        if values[0] == values[1] or repr(values[0]) == repr(values[1]):
            continue
        changed = [*arrays[:place], values.take(order), *arrays[place + 1 :]]
        assert row_hash.of_rows(changed).sum(dtype=np.uint64) != before, row_hash.names[place]
        exchanged += 1
    assert exchanged > 100
