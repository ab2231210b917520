"""What of an error leads to a damaged file. ``tests/apply/test_damaged_tables.py`` has whole applies."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider_pgoutput.apply.iceberg import damage


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ("File does not exist: s3a://lake/t/data/day=1/00000-a.parquet", {"00000-a.parquet"}),
        ("'/lake/t/data/a.b.orc' and /lake/t/metadata/m-0.avro.", {"a.b.orc", "m-0.avro"}),
        ("java.io.FileNotFoundException: /t/data/v.puffin (No such file)", {"v.puffin"}),
        ("org.apache.parquet.io.ParquetDecodingException: file:/t/data/x.parquet", {"x.parquet"}),
        ("org.apache.parquet.io and a.parquet.crc", set()),
        ("", set()),
    ],
)
def test_the_names_of_files_in_a_message(
    monkeypatch: pytest.MonkeyPatch, message: str, names: set[str]
) -> None:
    said = [SimpleNamespace(getMessage=lambda: message), SimpleNamespace(getMessage=lambda: None)]
    monkeypatch.setattr(damage, "exceptions", lambda _: said)
    assert damage._files_named(Exception()) == names


def test_a_message_that_quotes_a_long_value_is_searched_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = SimpleNamespace(getMessage=lambda: "ab.parquetx" * 200_000)
    monkeypatch.setattr(damage, "exceptions", lambda _: [value])
    # A search that takes time by the square of the length would not end today.
    assert damage._files_named(Exception()) == frozenset()
