"""Credentials of object stores: what Iceberg's Java gets under its own names, and what it has none for."""

from __future__ import annotations

import json

import pytest
from airflow.sdk import Connection

from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog, lake_catalog
from airflow_provider_pgoutput.hooks.lake_storage import java_storage

ACCOUNT = {"adls.account-name": "shop", "adls.account-key": "secret"}
AZURE = "abfss://lake@shop.dfs.core.windows.net/warehouse"


def catalog_of(**extra: str) -> LakeCatalog:
    connection = Connection(
        conn_id="lake", conn_type="iceberg", host="https://c", extra=json.dumps(extra)
    )
    return lake_catalog(connection, extra)


@pytest.mark.parametrize("kind", ["rest", "glue"])
def test_keys_for_all_of_aws_are_those_of_s3(kind: str) -> None:
    keys = {"access-key-id": "AK", "secret-access-key": "SK", "session-token": "ST"}
    lake = catalog_of(type=kind, **{f"client.{name}": value for name, value in keys.items()})
    prefix = "spark.sql.catalog.lake"
    assert lake.spark_secrets == {f"{prefix}.s3.{name}": value for name, value in keys.items()}
    assert lake.not_for_spark == ()
    # For pyiceberg they are what they were.
    assert lake.pyiceberg_properties["client.access-key-id"] == "AK"


@pytest.mark.parametrize("order", [1, -1])
def test_keys_of_s3_itself_win(order: int) -> None:
    given = dict([("client.access-key-id", "other"), ("s3.access-key-id", "own")][::order])
    assert java_storage(given)[0] == {"s3.access-key-id": "own"}


def test_the_key_of_an_account_of_azure_needs_its_name() -> None:
    java, left = java_storage(ACCOUNT)
    assert java == {
        "adls.auth.shared-key.account.name": "shop",
        "adls.auth.shared-key.account.key": "secret",
    }
    assert left == ()
    alone = {"adls.account-key": "secret"}
    assert java_storage(alone) == (alone, ("adls.account-key",))


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ({"warehouse": AZURE}, "shop.dfs.core.windows.net"),
        ({"adls.account-name": "shop", "warehouse": "prod"}, "shop.dfs.core.windows.net"),
        (
            {"adls.account-name": "shop", "adls.dfs-storage-authority": ".dfs.example"},
            "shop.dfs.example",
        ),
    ],
)
def test_a_token_is_of_a_host(given: dict[str, str], host: str) -> None:
    java, left = java_storage({**given, "adls.sas-token": "secret"})
    assert java == {**given, f"adls.sas-token.{host}": "secret"}
    assert left == ()


@pytest.mark.parametrize(
    "name",
    [
        "adls.sas-token",
        "adls.client-id",
        "adls.connection-string",
        "s3.role-arn",
        "client.profile-name",
    ],
)
def test_what_java_has_no_name_for_is_named(name: str) -> None:
    assert catalog_of(**{name: "secret", "s3.region": "eu"}).not_for_spark == (name,)


def test_what_is_called_alike_stays() -> None:
    alike = {"gcs.oauth2.token": "a", "adls.token": "b", "s3.access-key-id": "c"}
    assert java_storage(alike) == (alike, ())
