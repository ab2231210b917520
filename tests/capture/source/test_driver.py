"""Releases of the ADBC driver that are slow are named, and no others."""

from __future__ import annotations

import importlib.metadata

import adbc_driver_postgresql
import pytest

from airflow_provider_pgoutput.capture.source.session import slow_driver


@pytest.mark.parametrize(
    ("version", "is_slow"),
    [
        ("1.8.0", False),
        ("1.9.0", True),
        ("1.13.0", True),
        ("1.14.0", False),
        ("1.9rc1", True),
        ("1.10.0.dev3+g1234", True),
        ("2.9rc1", False),
        ("9rc1", False),
        ("unknown", False),
    ],
)
def test_a_slow_release_is_named_with_the_factor(version: str, *, is_slow: bool) -> None:
    said = slow_driver(version)
    assert (said is not None) == is_slow
    if said is not None:
        assert version in said
        assert "2 to 5 times" in said


def test_the_release_that_the_tests_use_is_not_slow() -> None:
    assert adbc_driver_postgresql.__version__ == importlib.metadata.version(
        "adbc-driver-postgresql"
    )
    assert slow_driver(adbc_driver_postgresql.__version__) is None
