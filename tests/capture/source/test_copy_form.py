"""Decimals and lists are copied as their send functions make them, and become what the stream's text does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import ValueRefused
from tests.capture.pipeline_support import checkpoint_of
from tests.capture.types.test_copied_moments import rejected

if TYPE_CHECKING:
    from tests.capture.pipeline_support import Source

#: The type of a column and values of it, some of which the lake cannot hold.
COLUMNS: dict[str, tuple[str, ...]] = {
    "numeric(12,2)": ("0", "-1.5", "9999999999.99", "-0.01", "NaN", "100"),
    "numeric(38,10)": ("1234567890123456789012345678.0123456789", "0.0000000001", "-7", "NaN"),
    "numeric": ("1e40", "0.10", "NaN", "-Infinity", "12345.678900"),
    "numeric(5,-2)": ("12300", "-100", "0"),
    "bool[]": ("{t,f,NULL}", "{}", "{{t},{f}}"),
    "bytea[]": (r'{"\\x00ff","\\x",NULL}', "{}"),
    "int2[]": ("{1,-32768,32767}", "{NULL}", "[2:3]={1,2}"),
    "int4[]": ("{1,2,3}", "{2147483647,-2147483648}", "{{1,2},{3,4}}"),
    "int8[]": ("{9223372036854775807}", "{}"),
    "float4[]": ("{1.5,NaN,-Infinity}", "{-0}"),
    "float8[]": ("{0.1,1e300,NaN}", "{NULL,1}"),
    "text[]": ('{a,NULL,"NULL","b \\"c\\"",""}', '{"ä,}"}', "{}"),
    "varchar(5)[]": ("{abc,NULL}", "{}"),
    "char(4)[]": ("{ab,NULL}", "{}"),
    "date[]": ("{2024-02-29,NULL}", "{infinity}", "{0044-03-15 BC}"),
    "timestamp[]": ('{"2024-02-29 12:34:56.789012"}', "{infinity}"),
    "timestamptz[]": ('{"2024-02-29 12:34:56+00",NULL}', "{-infinity}"),
    "numeric[]": ("{1.50,NaN,1e40}", "{NULL,-0.001}"),
    "numeric(9,3)[]": ("{1.5,-2}", "{NaN}", "{}"),
    "uuid[]": ("{00000000-0000-4000-8000-0000000000ff,NULL}", "{}"),
}


def test_copied_and_changed_values_are_the_same(source: Source) -> None:
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(COLUMNS))
    fill = [
        f"INSERT INTO m (a, c{place}) VALUES ({place}.{number}, {literal}::{kind})"
        for place, (kind, values) in enumerate(COLUMNS.items())
        for number, value in enumerate(values)
        for literal in ("'" + value.replace("'", "''") + "'",)
    ]
    source.execute(
        f"CREATE TABLE m(a numeric(4,1) PRIMARY KEY, {columns})",
        "ALTER PUBLICATION p ADD TABLE m",
        *fill,
    )
    first = source.stage()
    source.execute("DELETE FROM m", *fill)
    second = source.stage(checkpoint=checkpoint_of(first))
    copied = sorted(source.copied(first, "public.m"), key=lambda row: row["a"])
    inserted = [row for row in source.changes(second, "public.m") if row["op"] == "I"]
    assert len(copied) == len(fill)
    # As text, because NaN is not equal to itself.
    assert list(map(str, copied)) == [
        str({name: row[name] for name in copied[0]}) for row in inserted
    ]
    kept = rejected(source, first)
    assert len(kept) > 8
    assert kept == rejected(source, second)
    with pytest.raises(ValueRefused):
        source.stage(
            checkpoint=checkpoint_of(second),
            copy_tables=["public.m"],
            value_policy={"decimal": "fail"},
        )
