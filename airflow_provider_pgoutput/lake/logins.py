"""Whether an ``iceberg`` connection makes pyiceberg and Spark log in as the same user.

If it does, pyiceberg can try on the worker what Spark will be allowed to do. If it does not, nothing is
tried: a refusal of pyiceberg would say nothing about Spark. ``hooks/lake_login.py`` and
``hooks/lake_storage.py`` make Spark's properties from those of pyiceberg.

Sources: https://py.iceberg.apache.org/configuration/ and
https://iceberg.apache.org/docs/latest/aws/#aws-client-customization
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    Properties = Mapping[str, Any]

#: How the names of properties begin that only pyiceberg or only Spark reads. With them the two log in as
#: different users, or send different requests. Example: with ``s3.sse.`` only Spark asks for encryption, and
#: a bucket may refuse every request that does not.
_LOGINS_OF_SPARK = ("client.factory", "client.assume-role.", "client.credentials-provider")
_OF_ONE_ENGINE = {
    "rest": ("rest.auth.type",),
    "sql": ("jdbc.user", "jdbc.password"),
    "glue": _LOGINS_OF_SPARK,
    "s3": (
        *_LOGINS_OF_SPARK,
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
#: Classes of ``io-impl`` that take their keys from the connection. Another class may take others.
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
    """The reason not to try the login on the catalog; None: try it, both engines use it.

    :param properties: those of pyiceberg. Their ``type`` is ``rest``, ``sql`` or ``glue``.
    """
    kind = str(properties.get("type"))
    if only := _of_one_engine(properties, kind):
        return only
    known = {"rest": _of_rest, "sql": _of_sql, "glue": _of_glue}[kind](properties)
    return (
        None if known else "the iceberg connection has no login that both pyiceberg and Spark use"
    )


def no_keys_for_warehouse(properties: Properties, folder: str) -> str | None:
    """The reason not to try to write to the warehouse; None: try it, both engines use the same keys.

    :param folder: where the tables will be; empty: the catalog decides that for each table.
    """
    if not folder:
        return "the catalog alone says where a table will be"
    store = _STORES.get(urlsplit(folder).scheme, "")
    if only := _of_one_engine(properties, store):
        return only
    io = str(properties.get("io-impl", _FILE_IOS[0]))
    if io.rpartition(".")[2] not in _FILE_IOS:
        return f"Spark may take its keys from elsewhere: io-impl of the iceberg connection is {io}"
    if not any(map(properties.get, _KEYS_OF_STORES.get(store, ()))):
        return "the iceberg connection has no keys of the store that both pyiceberg and Spark use"
    return None


def _of_one_engine(properties: Properties, of: str) -> str | None:
    found = sorted(name for name in properties if name.startswith(_OF_ONE_ENGINE.get(of, ())))
    if not found:
        return None
    return (
        f"only one of pyiceberg and Spark reads this of the iceberg connection: {', '.join(found)}"
    )


def _of_rest(properties: Properties) -> bool:
    if properties.get("rest.sigv4-enabled") == "true":
        # Without keys in the connection, each engine signs its requests with the keys of its own machine.
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
    # SQLite has no users. If the URI of another database names no user, each driver takes its own default.
    return parts.scheme.startswith("sqlite") or bool(
        parts.username or "user" in parse_qs(parts.query)
    )


def _of_glue(properties: Properties) -> bool:
    return any(map(properties.get, _KEYS_OF_GLUE))
