"""Which logins of an ``iceberg`` connection pyiceberg and Spark have in common.

What such a login may do can be tried on the worker. A refusal of any other login says nothing about Spark.
``hooks/lake_login.py`` and ``hooks/lake_storage.py`` translate the logins.

Sources: https://py.iceberg.apache.org/configuration/ and
https://iceberg.apache.org/docs/latest/aws/#aws-client-customization
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    Properties = Mapping[str, Any]

#: Properties, by their beginnings, that only one engine reads. With them the engines log in as two users, or
#: a policy can tell their requests apart. Example: one that wants encryption by a key of KMS.
_ROLES_OF_SPARK = ("client.factory", "client.assume-role.", "client.credentials-provider")
_OF_ONE_ENGINE = {
    "rest": ("rest.auth.type",),
    "sql": ("jdbc.user", "jdbc.password"),
    "glue": _ROLES_OF_SPARK,
    "s3": (
        *_ROLES_OF_SPARK,
        "client.role-",
        "s3.role-",
        "s3.client-factory-impl",
        "s3.access-grants.",
        "s3.access-points.",
        "s3.acl",
        "s3.remote-signing-enabled",
        "s3.signer",
        "s3.sse.",
        "s3.write.",
    ),
    "azure": (
        "adls.client-",
        "adls.connection-string",
        "adls.credential",
        "adls.tenant-id",
        "adls.token",
    ),
    "google": ("gcs.auth.", "gcs.impersonate.", "gcs.no-auth"),
}
_KEYS_OF_GLUE = ("glue.access-key-id", "client.access-key-id")
#: Where Java is told to read and write by other classes than these, it may take its keys from elsewhere.
_FILE_IOS = ("ResolvingFileIO", "S3FileIO", "ADLSFileIO", "GCSFileIO")
_STORES = {
    "s3": "s3",
    "s3a": "s3",
    "abfs": "azure",
    "abfss": "azure",
    "gs": "google",
}
_KEYS_OF_STORES = {
    "s3": ("s3.access-key-id", "client.access-key-id"),
    "azure": ("adls.account-key", "adls.sas-token"),
    "google": ("gcs.oauth2.token",),
}


def no_login_for_catalog(properties: Properties) -> str | None:
    """Why what the login may do in the catalog cannot be tried; None: both engines have this login.

    :param properties: pyiceberg's, of a REST, SQL or Glue catalog.
    """
    kind = str(properties.get("type"))
    if only := _of_one_engine(properties, kind):
        return only
    known = {"rest": _of_rest, "sql": _of_sql, "glue": _of_glue}[kind](properties)
    return None if known else "the iceberg connection gives no login to both pyiceberg and Spark"


def no_keys_for_warehouse(properties: Properties, folder: str) -> str | None:
    """Why the warehouse cannot be tried; None: both engines have the keys of its store.

    :param folder: where the tables will be; empty: the catalog decides that for each table.
    """
    if not folder:
        return "the catalog alone says where a table will be"
    store = _STORES.get(urlsplit(folder).scheme, "")
    if only := _of_one_engine(properties, store):
        return only
    io = str(properties.get("io-impl", _FILE_IOS[0]))
    if io.rpartition(".")[2] not in _FILE_IOS:
        return "Spark may take its keys from elsewhere, because the iceberg connection has io-impl"
    if not any(map(properties.get, _KEYS_OF_STORES.get(store, ()))):
        return "the iceberg connection gives no keys for it to both pyiceberg and Spark"
    return None


def _of_one_engine(properties: Properties, of: str) -> str | None:
    found = sorted(name for name in properties if name.startswith(_OF_ONE_ENGINE.get(of, ())))
    if not found:
        return None
    return f"the iceberg connection has {', '.join(found)}, which only one of pyiceberg and Spark reads"


def _of_rest(properties: Properties) -> bool:
    if properties.get("rest.sigv4-enabled") == "true":
        # Without keys each engine signs with those of its machine.
        return bool(properties.get("client.access-key-id"))
    auth = properties.get("auth")
    if not isinstance(auth, dict):
        return bool(properties.get("credential") or properties.get("token"))
    match auth.get("type"):
        case "basic" | "oauth2":
            return True
        case "google":
            return bool((auth.get("google") or {}).get("credentials_path"))
        case "noop":
            return "header.Authorization" in properties
    return False


def _of_sql(properties: Properties) -> bool:
    parts = urlsplit(str(properties.get("uri")))
    # SQLite has no users. Without one in the URI a driver takes that of the operating system.
    return parts.scheme.startswith("sqlite") or bool(
        parts.username or "user" in parse_qs(parts.query)
    )


def _of_glue(properties: Properties) -> bool:
    return any(map(properties.get, _KEYS_OF_GLUE))
