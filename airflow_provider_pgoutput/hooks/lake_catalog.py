"""One Airflow connection of type ``iceberg``, as pyiceberg and Spark need it.

pyiceberg's properties are read as ``IcebergHook`` reads them, so the same connection works with the whole
apache-iceberg provider. For Spark they become ``spark.sql.catalog.<name>.*``. Every property that is not
known to be harmless goes into ``spark_secrets``, which must reach Spark in a file, and never on a command
line. ``lake_login.py`` translates the login of a REST catalog, ``lake_storage.py`` credentials of object
stores.

Sources: https://py.iceberg.apache.org/configuration/ and
https://iceberg.apache.org/docs/latest/spark-configuration/#catalog-configuration
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from airflow_provider_pgoutput.batch.spark_packages import (
    RESOLVING_FILE_IO,
    SPARK_CATALOG,
    SPARK_EXTENSIONS,
)
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.hooks.lake_login import (
    google_scopes,
    has_java_login,
    java_login,
    signing_switch,
)
from airflow_provider_pgoutput.hooks.lake_storage import java_storage

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from airflow.sdk import Connection

#: pyiceberg's catalog types that Iceberg's Java has, too, and Java's names for them.
_JAVA_TYPES = {"sql": "jdbc", "rest": "rest", "glue": "glue", "hive": "hive"}

#: Extra of the connection with the catalog's name, if that is not the connection's name.
CATALOG_NAME_EXTRA = "catalog-name"

#: pyiceberg's switch for the names of types in the metastore.
_HIVE_2 = "hive.hive2-compatible"

#: Properties that may be seen on a command line and in a log. All others are treated as secrets, because a
#: secret may have any name (``header.Authorization``).
_HARMLESS = frozenset(
    {
        "type",
        "warehouse",
        "io-impl",
        "jdbc.schema-version",
        "jdbc.busy_timeout",
        "prefix",
        "header.X-Iceberg-Access-Delegation",
        "rest.auth.type",
        "rest.auth.sigv4.delegate-auth-type",
        "rest.sigv4-enabled",
        "rest.signing-region",
        "rest.signing-name",
        "client.region",
        "glue.id",
        "glue.endpoint",
        "s3.endpoint",
        "s3.region",
        "s3.path-style-access",
    }
)

#: pyiceberg's names of properties that have another name in Java.
_RENAMED = {
    "s3.region": ("s3.region", "client.region"),
    "glue.region": ("client.region",),
    "client.region": ("client.region",),
}

#: Static AWS keys. Java's Glue client has no property for them. The AWS SDK takes them from these variables.
_AWS_ENVIRONMENT = {
    "access-key-id": "AWS_ACCESS_KEY_ID",
    "secret-access-key": "AWS_SECRET_ACCESS_KEY",
    "session-token": "AWS_SESSION_TOKEN",
}

_CATALOG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SQL_SCHEME = re.compile(r"(sqlite|postgresql|postgres|mysql)(\+[a-z0-9_]+)?")


@dataclass(frozen=True, slots=True)
class LakeCatalog:
    """A catalog of Iceberg tables, with its properties as each engine names them."""

    #: The same name for both engines, because a SQL catalog stores it in every row.
    name: str
    #: For ``pyiceberg.catalog.load_catalog(name, **properties)``. It has secrets. Values are texts, except
    #: for nested extras (``auth``).
    pyiceberg_properties: dict[str, Any] = field(repr=False)
    #: Spark configuration without secrets.
    spark_conf: dict[str, str]
    #: Spark configuration with secrets.
    spark_secrets: dict[str, str] = field(repr=False)
    #: Environment variables for the Spark driver, with secrets.
    environment: dict[str, str] = field(repr=False)
    #: Names of the properties with which pyiceberg logs in to an object store, but Spark cannot.
    not_for_spark: tuple[str, ...] = ()
    #: The type of pyiceberg's ``auth`` that Java does not have; None: Java logs in as pyiceberg does.
    login_not_for_spark: str | None = None


def lake_catalog(
    connection: Connection, extra: dict[str, Any], catalog_name: str | None = None
) -> LakeCatalog:
    """Read a connection of type ``iceberg``.

    :param extra: its extras, already parsed.
    :param catalog_name: name of the catalog; None: the extra ``catalog-name``, or else the connection's ID,
        which is the name that ``IcebergHook`` uses.
    :raises ConfigurationError: Spark could not use this catalog, or the name is not allowed.
    """
    properties = _pyiceberg_properties(connection, extra)
    name = catalog_name or extra.get(CATALOG_NAME_EXTRA) or connection.conn_id
    if not _CATALOG_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a catalog in Spark.",
            advice="give catalog_name: letters, digits and underscores, not starting with a digit.",
        )
    texts = {key: value for key, value in properties.items() if isinstance(value, str)}
    stored, not_for_spark = java_storage(texts)
    login, login_not_for_spark = java_login(properties)
    # What the user gave under Java's own name stays.
    java = {**login, **_java_properties(stored)}
    if has_java_login(_java_properties(stored)):
        login_not_for_spark = None
    prefix = f"spark.sql.catalog.{name}"
    conf = {"spark.sql.extensions": SPARK_EXTENSIONS, prefix: SPARK_CATALOG}
    secrets: dict[str, str] = {}
    for key, value in java.items():
        harmless = key in _HARMLESS or (key == "uri" and not _may_hold_secret(value))
        (conf if harmless else secrets)[f"{prefix}.{key}"] = value
    return LakeCatalog(
        name=name,
        pyiceberg_properties=properties,
        spark_conf=conf,
        spark_secrets=secrets,
        environment=_environment(texts),
        not_for_spark=not_for_spark,
        login_not_for_spark=login_not_for_spark,
    )


def _pyiceberg_properties(connection: Connection, extra: dict[str, Any]) -> dict[str, Any]:
    if connection.conn_type != "iceberg":
        raise ConfigurationError(
            f"The connection {connection.conn_id!r} has type {connection.conn_type!r}.",
            advice="use a connection of type iceberg (provider apache-iceberg).",
        )
    properties = {
        key: _text(value)
        for key, value in extra.items()
        if key != CATALOG_NAME_EXTRA and value is not None
    }
    if connection.host:
        properties["uri"] = _with_port(connection.host.rstrip("/"), connection)
    properties["type"] = str(properties.get("type", "rest")).lower()
    if properties["type"] not in _JAVA_TYPES:
        raise ConfigurationError(
            f"The catalog type {properties['type']!r} has no counterpart in Spark.",
            advice=f"use one of {', '.join(_JAVA_TYPES)}; most other catalogs speak rest.",
        )
    if properties["type"] == "rest" and connection.login and connection.password:
        properties["credential"] = f"{connection.login}:{connection.password}"
    properties |= signing_switch(properties) | google_scopes(properties)
    if properties["type"] == "hive":
        # Without it pyiceberg makes no table with a timestamptz in a metastore of Hive 2. A newer metastore
        # takes the other name of the type, too. Iceberg's metadata have the right type in any case.
        properties.setdefault(_HIVE_2, "true")
    if properties["type"] != "glue" and not properties.get("uri"):
        raise ConfigurationError(
            f"The connection {connection.conn_id!r} has no host: it is the catalog's URI.",
            advice="set the host, or uri in the extras.",
        )
    return properties


def _with_port(uri: str, connection: Connection) -> str:
    """The host of the connection with its port.

    :raises ConfigurationError: the host is a URI with another port.
    """
    if not connection.port:
        return uri
    parts = urlsplit(uri)
    if not parts.netloc or _port(parts) not in (None, connection.port):
        raise ConfigurationError(
            f"The connection {connection.conn_id!r} has port {connection.port}, which does not fit its host.",
            advice="let the host be the catalog's URI, such as https://catalog.example/api, and give the port"
            " in one place only.",
        )
    where = parts.netloc if parts.port else f"{parts.netloc.removesuffix(':')}:{connection.port}"
    return parts._replace(netloc=where).geturl()


def _port(parts: SplitResult) -> int | None:
    """The port of a URI; None: it has none.

    :raises ConfigurationError: it is no number. The error does not quote it, because it may be the end of a
        password.
    """
    try:
        return parts.port
    except ValueError:
        raise ConfigurationError(
            "The port in the catalog's URI is not a number from 0 to 65535.",
            advice="mend the host of the connection, or uri in its extras. In a user or a password / ? # : @"
            " have to be written as %2F %3F %23 %3A %40.",
        ) from None


def _java_properties(properties: dict[str, str]) -> dict[str, str]:
    kind = properties["type"]
    java: dict[str, str] = {}
    for key, value in properties.items():
        if key in ("type", "uri", _HIVE_2, "s3.force-virtual-addressing") or key.startswith("py-"):
            continue
        if kind == "glue" and key.partition(".")[2] in _AWS_ENVIRONMENT and _is_client_key(key):
            continue
        for name in _RENAMED.get(key, (key,)):
            java.setdefault(name, value)
    java["type"] = _JAVA_TYPES[kind]
    if kind == "sql":
        java = {**_jdbc(properties["uri"]), **java}
        # pyiceberg's tables have the column that Java calls schema version V1. With V0 Java would not see the
        # type.
        java.setdefault("jdbc.schema-version", "V1")
    elif "uri" in properties:
        java["uri"] = properties["uri"]
    if "s3.endpoint" in properties or "s3.force-virtual-addressing" in properties:
        # By default pyiceberg addresses buckets by path, Java by host name.
        virtual = properties.get("s3.force-virtual-addressing", "false").lower() == "true"
        java.setdefault("s3.path-style-access", "false" if virtual else "true")
    if kind in ("sql", "hive") and not properties.get("warehouse", "").startswith(("file:", "/")):
        # Java's default for these two reads through Hadoop, which has no s3:// and no gs://.
        java.setdefault("io-impl", RESOLVING_FILE_IO)
    return java


def _jdbc(uri: str) -> dict[str, str]:
    """Translate SQLAlchemy's URL of a database to JDBC's, with user and password apart.

    Source: https://docs.sqlalchemy.org/en/20/core/engines.html#database-urls
    """
    parts = urlsplit(uri)
    scheme = _SQL_SCHEME.fullmatch(parts.scheme)
    if scheme is None:
        raise ConfigurationError(
            f"A SQL catalog on {parts.scheme!r} cannot be given to Spark.",
            advice="use sqlite, postgresql or mysql.",
        )
    if scheme[1] == "sqlite":
        # sqlite:////absolute/path and sqlite:///relative/path: everything after the third slash.
        return {
            "uri": f"jdbc:sqlite:{unquote(parts.path[1:])}",
            # Writers of several tables wait for the one lock instead of failing at once.
            "jdbc.busy_timeout": "60000",
        }
    query = dict(parse_qsl(parts.query))
    user = unquote(parts.username) if parts.username else query.pop("user", None)
    password = unquote(parts.password) if parts.password else query.pop("password", None)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
    where = host if _port(parts) is None else f"{host}:{_port(parts)}"
    database = "postgresql" if scheme[1].startswith("postgres") else "mysql"
    tail = f"?{urlencode(query)}" if query else ""
    jdbc = {"uri": f"jdbc:{database}://{where}{parts.path}{tail}"}
    if user:
        jdbc["jdbc.user"] = user
    if password:
        jdbc["jdbc.password"] = password
    return jdbc


def _environment(properties: dict[str, str]) -> dict[str, str]:
    if properties["type"] != "glue":
        return {}
    return {
        _AWS_ENVIRONMENT[key.partition(".")[2]]: value
        for key, value in sorted(properties.items())
        if _is_client_key(key) and key.partition(".")[2] in _AWS_ENVIRONMENT
    }


def _is_client_key(key: str) -> bool:
    return key.startswith(("client.", "glue."))


def _may_hold_secret(uri: str) -> bool:
    return "@" in uri or "?" in uri or ";" in uri


def _text(value: object) -> object:
    """A property as pyiceberg wants it: a text, unless it is nested."""
    if isinstance(value, (dict, list)):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
