"""The argument ``rows``: what is refused before anything is changed, and no message has a value."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.batch import checkpoint as lake_names
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.shape import KnownColumn, Shape
from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.erasure.rows import asked_tables
from airflow_provider_pgoutput.errors import ConfigurationError, TableRefused
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from airflow_provider_pgoutput.lake.state import SlotTable
from airflow_provider_pgoutput.masks import HASH, Mask, MaskedColumn

if TYPE_CHECKING:
    from pyiceberg.table import Table

SECRET = b"a secret of these tests, long enough"
#: Every wrong value in these tests contains it.
CANARY = "canary"


def checkpoint(*columns: tuple[str, str], key: tuple[str, ...], mask: str | None = None) -> Any:
    known = tuple(KnownColumn(i, *each, each[1]) for i, each in enumerate(columns, start=1))
    masks = (MaskedColumn(1, columns[0][0], mask),) if mask else ()
    return Checkpoint(
        Lsn(16),
        "7",
        tables={5: "public.t"},
        shapes={5: Shape(known, key, "d", masks=masks)},
        shaped_at={5: Lsn(16)},
    )


def version(*columns: tuple[str, str, int], mask: str | None = None) -> TableVersion:
    made = tuple(
        Column(name, 0, -1, kind, kind, attribute_number=number, mask=mask)
        for name, kind, number in columns
    )
    return TableVersion(0, "public", "t", "d", made, ("id",))


@pytest.mark.parametrize(
    ("lake_type", "value", "wanted"),
    [
        ("int", 7, pa.scalar(7, pa.int32())),
        ("int", "-7", pa.scalar(-7, pa.int32())),
        ("long", "9000000000", pa.scalar(9000000000)),
        ("string", "O'Brien", pa.scalar("O'Brien")),
        ("string", 7, pa.scalar("7")),
        (
            "uuid",
            "6F9619FF-8B86-D011-B42D-00C04FC964FF",
            pa.scalar("6f9619ff-8b86-d011-b42d-00c04fc964ff"),
        ),
        ("boolean", True, pa.scalar(True)),
        ("boolean", "f", pa.scalar(False)),
        ("date", "2026-11-28", pa.scalar("2026-11-28").cast(pa.date32())),
        ("decimal(12, 2)", "7.5", pa.scalar("7.50").cast(pa.decimal128(12, 2))),
        (
            "timestamp",
            "2026-11-28 01:02:03.5",
            pa.scalar("2026-11-28 01:02:03.500000").cast(pa.timestamp("us")),
        ),
        (
            "timestamptz",
            "2026-11-28 02:02:03+01",
            pa.scalar("2026-11-28 01:02:03Z").cast(pa.timestamp("us", tz="UTC")),
        ),
    ],
)
def test_a_value_is_read_in_the_type_of_its_column(
    lake_type: str, value: Any, wanted: pa.Scalar
) -> None:
    (asked,) = asked_tables(
        {"public.t": [{"id": value}]}, checkpoint(("id", lake_type), key=("id",)), None
    )
    assert asked.in_version(version(("id", lake_type, 1)), 5, "7") == [{0: wanted}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "rows is empty"),
        ({"public.other": [{"id": 7}]}, "does not know it"),
        ({"public.t": {"id": 7}}, "no list of rows"),
        ({"public.t": []}, "no list of rows"),
        ({"public.t": [CANARY]}, "something else than a mapping"),
        ({"public.t": [{"id": None}]}, "no text, whole number or boolean"),
        ({"public.t": [{"id": 7.5}]}, "no text, whole number or boolean"),
        ({"public.t": [{"id": CANARY}]}, "not of its type int"),
        ({"public.t": [{"id": 3000000000}]}, "not of its type int"),
        ({"public.t": [{"id": 7, "name": CANARY}]}, "exactly the key of the table: id"),
        ({"public.t": [{"name": CANARY}]}, "exactly the key of the table: id"),
        ({"public.t": [{"nick": CANARY}]}, "no column of the table"),
        ({"public.t": [{"id": 7}, {"name": CANARY}]}, "different columns"),
    ],
)
def test_what_cannot_be_found_is_refused(rows: Any, message: str) -> None:
    known = checkpoint(("id", "int"), ("name", "string"), key=("id",))
    with pytest.raises((ConfigurationError, TableRefused), match=message) as refused:
        asked_tables(rows, known, None)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize(
    ("system", "oid", "name", "wanted"),
    [
        ("8", 5, "public.t", True),
        ("8", 5, "public.before", True),
        ("7", 3, "public.before", True),
        ("7", 5, "public.another", False),
        ("7", 9, "public.t", True),
        ("8", 3, "public.another", False),
    ],
)
def test_an_earlier_table_of_the_lake_is_known_by_its_oid_on_its_own_system(
    system: str, oid: int, name: str, wanted: bool
) -> None:
    """On system 7 the table was OID 3, and OID 5 another one. It was renamed there."""
    known = dataclasses.replace(
        checkpoint(("id", "int"), key=("id",)),
        system_identifier="8",
        names_by_system={("7", 3): "public.t", ("7", 5): "public.another", ("8", 5): "public.t"},
    )
    (asked,) = asked_tables({"public.t": [{"id": 7}]}, known, None)
    properties = {
        lake_names.PROPERTY_SYSTEM_IDENTIFIER: system,
        lake_names.PROPERTY_RELATION_OID: str(oid),
        lake_names.PROPERTY_SOURCE_TABLE: name,
    }
    assert asked.is_in(SlotTable(cast("Table", None), properties)) == wanted


def test_a_table_without_a_key_takes_any_columns_of_a_type_that_compares() -> None:
    known = checkpoint(("id", "int"), ("size", "double"), key=())
    asked_tables({"public.t": [{"id": 7}]}, known, None)
    with pytest.raises(ConfigurationError, match="of type double"):
        asked_tables({"public.t": [{"size": 7}]}, known, None)


def test_a_hashed_key_is_given_plain() -> None:
    hashed = Mask(HASH).recorded(SECRET)
    known = checkpoint(("id", "string"), key=("id",), mask=hashed)
    rows = {"public.t": [{"id": CANARY}]}
    (asked,) = asked_tables(rows, known, SECRET)
    digest = hmac.new(SECRET, CANARY.encode(), hashlib.sha256).hexdigest()
    masked = version(("id", "string", 1), mask=hashed)
    assert asked.in_version(masked, 5, "7") == [{0: pa.scalar(digest)}]
    assert asked.in_key(f'{{"id": "{digest}"}}')
    # What was staged before the column was masked.
    assert asked.in_version(version(("id", "string", 1)), 5, "7") == [{0: pa.scalar(CANARY)}]
    assert CANARY not in repr(asked)
    for secret in (None, b"another secret, as long as that"):
        with pytest.raises(ConfigurationError, match="not the secret of the hash") as refused:
            asked_tables(rows, known, secret)
        assert CANARY not in str(refused.value)
    other = version(
        ("id", "string", 1), mask=Mask(HASH).recorded(b"the secret before, long enough")
    )
    with pytest.raises(ConfigurationError, match="prune the batches"):
        asked.in_version(other, 5, "7")


def test_a_column_that_keeps_no_values_finds_no_row() -> None:
    known = checkpoint(("id", "string"), key=(), mask="redact")
    with pytest.raises(ConfigurationError, match="its values are not kept"):
        asked_tables({"public.t": [{"id": "7"}]}, known, None)


def test_a_column_is_found_by_its_number_then_by_its_name() -> None:
    known = checkpoint(("id", "int"), key=("id",))
    (asked,) = asked_tables({"public.t": [{"id": 7}]}, known, None)
    seven = pa.scalar(7, pa.int32())
    # It had another name, and another column had this one.
    renamed = version(("id", "int", 2), ("number", "int", 1))
    assert asked.in_version(renamed, 5, "7") == [{1: seven}]
    # The numbers of an earlier table mean nothing.
    assert asked.in_version(renamed, 4, "7") == [{0: seven}]
    # Neither do those of another system, unless nothing else helps: pg_upgrade keeps them.
    assert asked.in_version(renamed, 5, "6") == [{0: seven}]
    assert asked.in_version(version(("number", "int", 1)), 5, "6") == [{0: seven}]
    assert asked.in_version(version(("name", "string", 3)), 5, "7") is None
    # A type that does not hold the value never had it.
    (large,) = asked_tables(
        {"public.t": [{"id": 9000000000}]}, checkpoint(("id", "long"), key=("id",)), None
    )
    assert large.in_version(version(("id", "int", 1)), 5, "7") == []
