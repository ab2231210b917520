"""One iceberg connection, as pyiceberg and as Spark want it: a table of both, and no secret in sight."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Connection
from airflow.sdk.log import redact

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.hooks.iceberg import resolve_lake_catalog
from airflow_provider_pgoutput.hooks.lake_catalog import LakeCatalog, lake_catalog
from airflow_provider_pgoutput.lake.state import open_catalog

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "canary-0xC0FFEE"


def catalog_of(name: str | None = None, **fields: Any) -> LakeCatalog:
    extra = fields.pop("extra", {})
    fields.setdefault("conn_type", "iceberg")
    connection = Connection(conn_id="iceberg_default", extra=json.dumps(extra), **fields)
    return lake_catalog(connection, extra, name)


def spark_properties(properties: dict[str, str], name: str = "iceberg_default") -> dict[str, str]:
    prefix = f"spark.sql.catalog.{name}."
    return {
        key.removeprefix(prefix): value
        for key, value in properties.items()
        if key.startswith(prefix)
    }


def test_rest_becomes_rest_and_its_credential_is_a_secret() -> None:
    lake = catalog_of(
        host="https://catalog.example/api/",
        login="client",
        password=CANARY,
        extra={
            "warehouse": "prod",
            "scope": "all",
            "header.X-Key": CANARY,
            "s3.region": "eu-west-1",
        },
    )
    assert lake.pyiceberg_properties == {
        "type": "rest",
        "uri": "https://catalog.example/api",
        "credential": f"client:{CANARY}",
        "warehouse": "prod",
        "scope": "all",
        "header.X-Key": CANARY,
        "s3.region": "eu-west-1",
    }
    assert spark_properties(lake.spark_conf) == {
        "type": "rest",
        "uri": "https://catalog.example/api",
        "warehouse": "prod",
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
        "s3.region": "eu-west-1",
        "client.region": "eu-west-1",
    }
    assert spark_properties(lake.spark_secrets) == {
        "credential": f"client:{CANARY}",
        "scope": "all",
        "header.X-Key": CANARY,
    }


def test_sqlite_becomes_jdbc_of_the_same_file() -> None:
    lake = catalog_of(
        "lake",
        host="sqlite:////data/my lake.db",
        extra={"type": "sql", "warehouse": "file:///data/wh"},
    )
    assert lake.name == "lake"
    assert lake.spark_conf == {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": "jdbc:sqlite:/data/my lake.db",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.jdbc.busy_timeout": "60000",
        "spark.sql.catalog.lake.warehouse": "file:///data/wh",
    }
    assert lake.spark_secrets == {}


@pytest.mark.parametrize(
    ("uri", "jdbc_uri", "user", "password"),
    [
        (
            f"postgresql+psycopg2://lake:{CANARY}@db.example:6543/meta",
            "jdbc:postgresql://db.example:6543/meta",
            "lake",
            CANARY,
        ),
        (
            f"postgresql://db/meta?user=lake&password={CANARY}",
            "jdbc:postgresql://db/meta",
            "lake",
            CANARY,
        ),
        (
            "postgresql://a%40b:p%2Fw-secret@[::1]:5432/meta",
            "jdbc:postgresql://[::1]:5432/meta",
            "a@b",
            "p/w-secret",
        ),
        (f"mysql+pymysql://lake:{CANARY}@db/meta", "jdbc:mysql://db/meta", "lake", CANARY),
    ],
)
def test_sqlalchemy_urls_become_jdbc_urls_without_the_login(
    uri: str, jdbc_uri: str, user: str, password: str
) -> None:
    lake = catalog_of(host=uri, extra={"type": "sql", "warehouse": "s3://bucket/wh"})
    conf, secrets = spark_properties(lake.spark_conf), spark_properties(lake.spark_secrets)
    assert conf["uri"] == jdbc_uri
    assert conf["io-impl"] == "org.apache.iceberg.io.ResolvingFileIO"
    assert secrets == {"jdbc.user": user, "jdbc.password": password}


def test_an_uri_with_options_left_is_not_shown() -> None:
    lake = catalog_of(host="postgresql://db/meta?sslmode=require", extra={"type": "sql"})
    assert "uri" not in spark_properties(lake.spark_conf)
    assert (
        spark_properties(lake.spark_secrets)["uri"] == "jdbc:postgresql://db/meta?sslmode=require"
    )


def test_a_metastore_of_hive_2_takes_the_tables_of_pyiceberg() -> None:
    switch = "hive.hive2-compatible"
    lake = catalog_of(host="thrift://metastore:9083", extra={"type": "hive", "warehouse": "/lake"})
    assert lake.pyiceberg_properties[switch] == "true"
    java = {**lake.spark_conf, **lake.spark_secrets}
    assert not any(switch in key for key in java), "Java knows the metastore's version by itself"
    newer = catalog_of(host="thrift://metastore:9083", extra={"type": "hive", switch: "false"})
    assert newer.pyiceberg_properties[switch] == "false"


def test_glue_gets_its_region_by_property_and_its_keys_by_environment() -> None:
    lake = catalog_of(
        extra={
            "type": "glue",
            "glue.region": "eu-west-1",
            "glue.id": "123456789012",
            "glue.access-key-id": f"id-{CANARY}",
            "glue.secret-access-key": CANARY,
            "warehouse": "s3://bucket/wh",
        }
    )
    assert spark_properties(lake.spark_conf) == {
        "type": "glue",
        "client.region": "eu-west-1",
        "glue.id": "123456789012",
        "warehouse": "s3://bucket/wh",
    }
    assert lake.spark_secrets == {}
    assert lake.environment == {
        "AWS_ACCESS_KEY_ID": f"id-{CANARY}",
        "AWS_SECRET_ACCESS_KEY": CANARY,
    }


def test_a_nested_login_stays_nested_for_pyiceberg_and_is_translated_for_spark() -> None:
    auth = {"type": "basic", "basic": {"username": "someone", "password": CANARY}}
    lake = catalog_of(host="https://c", extra={"auth": auth, "numbers": [1]})
    assert lake.pyiceberg_properties["auth"] == auth
    assert lake.pyiceberg_properties["numbers"] == [1]
    assert CANARY not in json.dumps(lake.spark_conf)
    found = spark_properties(lake.spark_secrets)
    assert spark_properties(lake.spark_conf)["rest.auth.type"] == "basic"
    assert found["rest.auth.basic.username"] == "someone"
    assert found["rest.auth.basic.password"] == CANARY
    assert "auth" not in found
    other = catalog_of(host="https://c", extra={"auth": {"type": "entra"}})
    assert spark_properties(other.spark_secrets) == {}


def test_an_extra_without_a_value_is_not_given() -> None:
    lake = catalog_of(
        host="https://c", extra={"type": None, "token": None, "s3.region": None, "warehouse": "w"}
    )
    assert lake.pyiceberg_properties == {"type": "rest", "uri": "https://c", "warehouse": "w"}
    found = spark_properties({**lake.spark_conf, **lake.spark_secrets})
    assert found.keys() == {"type", "uri", "warehouse", "header.X-Iceberg-Access-Delegation"}


def test_what_pyiceberg_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.glue", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'pyiceberg\[glue\]'"):
        open_catalog("lake", {"type": "glue"})


def test_hive_keeps_its_thrift_uri() -> None:
    lake = catalog_of(
        host="thrift://metastore:9083", extra={"type": "hive", "warehouse": "s3a://b/wh"}
    )
    assert spark_properties(lake.spark_conf) == {
        "type": "hive",
        "uri": "thrift://metastore:9083",
        "warehouse": "s3a://b/wh",
        "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
    }


@pytest.mark.parametrize(
    ("given", "path_style"),
    [
        ({"s3.endpoint": "http://minio:9000"}, "true"),
        ({"s3.endpoint": "http://minio:9000", "s3.force-virtual-addressing": True}, "false"),
    ],
)
def test_buckets_are_addressed_as_pyiceberg_does(given: dict[str, Any], path_style: str) -> None:
    lake = catalog_of(
        host="https://c", extra={**given, "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    )
    conf = spark_properties(lake.spark_conf)
    assert conf["s3.path-style-access"] == path_style
    assert "py-io-impl" not in conf | spark_properties(lake.spark_secrets)


@pytest.mark.parametrize("kind", ["rest", "sql", "glue", "hive"])
@pytest.mark.parametrize(
    "key",
    [
        "credential", "token", "header.X-Key", "s3.access-key-id", "s3.secret-access-key",
        "s3.session-token", "gcs.oauth2.token", "adls.account-key", "adls.sas-token.x",
        "client.access-key-id", "client.secret-access-key", "client.session-token", "never.heard.of",
    ],
)  # fmt: skip
def test_no_secret_is_in_the_visible_configuration(kind: str, key: str) -> None:
    uri = {"rest": "https://u", "sql": "postgresql://u:p@h/d", "glue": None, "hive": "thrift://h:1"}
    lake = catalog_of(host=uri[kind], extra={"type": kind, key: CANARY, "warehouse": "s3://b/w"})
    assert CANARY not in json.dumps(lake.spark_conf)
    assert CANARY not in repr(lake)
    handed_over = {**lake.spark_secrets, **lake.environment}
    assert CANARY in handed_over.values()


def test_the_catalog_is_named_by_argument_then_extra_then_connection() -> None:
    extra = {"catalog-name": "from_extra", "warehouse": "w"}
    assert catalog_of("given", host="https://c", extra=extra).name == "given"
    assert catalog_of(host="https://c", extra=extra).name == "from_extra"
    assert catalog_of(host="https://c").name == "iceberg_default"
    assert "catalog-name" not in catalog_of(host="https://c", extra=extra).pyiceberg_properties


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"conn_type": "postgres", "host": "h"}, "type iceberg"),
        ({"host": "https://c", "extra": {"type": "in-memory"}}, "no counterpart"),
        ({"extra": {"type": "sql"}}, "has no host"),
        ({"host": "oracle://h/d", "extra": {"type": "sql"}}, "sqlite, postgresql or mysql"),
        ({"host": "https://c", "name": "my-catalog"}, "cannot be the name"),
    ],
)
def test_what_spark_could_not_use_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        catalog_of(**fields)


@pytest.mark.parametrize(
    ("host", "extra", "secret"),
    [
        ("http://c", {"adls.connection-string": "Key=canary-one"}, "Key=canary-one"),
        ("http://c", {"rest.Authorization": "Basic canary-two"}, "Basic canary-two"),
        ("https://me:canary-three@c:8181/api", {}, "canary-three"),
        ("http://c", {"s3.proxy-uri": "http://me:canary-four@proxy"}, "canary-four"),
        ("postgresql://airflow:canary%2Ffive@db/x", {"type": "sql"}, "canary%2Ffive"),
        ("postgresql://airflow:canary%40six@db/x", {"type": "sql"}, "canary@six"),
    ],
)
def test_secrets_are_masked_in_logs_and_plain_words_are_not(
    set_connection: Callable[[str, dict[str, Any]], None],
    host: str,
    extra: dict[str, str],
    secret: str,
) -> None:
    set_connection("masked", {"conn_type": "iceberg", "host": host, "extra": extra})
    resolve_lake_catalog("masked")
    assert redact(f"airflow said {secret} to the proxy") == "airflow said *** to the proxy"
