"""Which logins of a connection are those of both engines, and which only one of them has."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgoutput.lake.logins import no_keys_for_warehouse, no_login_for_catalog

_KEY = {"client.access-key-id": "AKIA0"}
_GOOGLE = {"type": "google", "google": {"credentials_path": "/key.json"}}


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "rest", "credential": "a:b"},
        {"type": "rest", "token": "a"},
        {"type": "rest", "auth": {"type": "basic", "basic": {"username": "a"}}},
        {"type": "rest", "auth": {"type": "oauth2", "oauth2": {"client_id": "a"}}},
        {"type": "rest", "auth": _GOOGLE},
        {"type": "rest", "auth": {"type": "noop"}, "header.Authorization": "Bearer a"},
        {"type": "rest", "rest.sigv4-enabled": "true", **_KEY},
        {"type": "sql", "uri": "postgresql+psycopg://me@db/lake"},
        {"type": "sql", "uri": "postgresql://db/lake?user=me"},
        {"type": "sql", "uri": "sqlite:////lake.db"},
        {"type": "glue", **_KEY},
        {"type": "glue", "glue.access-key-id": "AKIA0"},
    ],
)
def test_a_login_of_both_is_tried(properties: dict[str, Any]) -> None:
    assert no_login_for_catalog(properties) is None


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "rest"},
        # They sign nothing.
        {"type": "rest", **_KEY},
        # Each engine signs with the keys of its machine.
        {"type": "rest", "rest.sigv4-enabled": "true", "credential": "a:b"},
        {"type": "rest", "auth": {"type": "noop"}},
        {"type": "rest", "auth": {"type": "entra"}},
        {"type": "rest", "auth": {"type": "custom", "impl": "a.B"}},
        {"type": "rest", "auth": {"type": "google"}},
        {"type": "rest", "credential": "a:b", "rest.auth.type": "basic"},
        {"type": "sql", "uri": "postgresql://db/lake"},
        {"type": "sql", "uri": "postgresql://me@db/lake", "jdbc.user": "other"},
        {"type": "glue", "client.profile-name": "a"},
        {"type": "glue", **_KEY, "client.factory": "a.B"},
    ],
)
def test_no_other_login_is_tried(properties: dict[str, Any]) -> None:
    assert no_login_for_catalog(properties)


@pytest.mark.parametrize(
    ("folder", "properties"),
    [
        ("s3://b/w", {"s3.access-key-id": "AKIA0"}),
        ("s3a://b/w", _KEY),
        ("s3://b/w", {**_KEY, "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}),
        ("abfss://b@a.dfs.core.windows.net/w", {"adls.sas-token": "a"}),
        ("gs://b/w", {"gcs.oauth2.token": "a"}),
    ],
)
def test_keys_of_both_are_tried(folder: str, properties: dict[str, Any]) -> None:
    assert no_keys_for_warehouse(properties, folder) is None


@pytest.mark.parametrize(
    ("folder", "properties"),
    [
        ("", _KEY),
        ("file:///w", _KEY),
        ("s3://b/w", {}),
        ("s3://b/w", {"s3.profile-name": "a"}),
        ("s3://b/w", {**_KEY, "s3.role-arn": "a"}),
        ("s3://b/w", {**_KEY, "client.assume-role.arn": "a"}),
        ("s3://b/w", {**_KEY, "s3.sse.type": "kms"}),
        ("s3://b/w", {**_KEY, "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}),
        ("abfss://b@a.dfs.core.windows.net/w", {"adls.client-id": "a"}),
        ("gs://b/w", _KEY),
    ],
)
def test_no_other_keys_are_tried(folder: str, properties: dict[str, Any]) -> None:
    assert no_keys_for_warehouse(properties, folder)
