"""The lakes: a catalog and a store of other makers each, in which a pipeline lives its whole life."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from quickstart.place import NAMESPACE
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from quickstart.spark import site_conf
from tests.lakes.programs import FOLDER
from tests.lakes.servers import BUCKET, hive_metastore, mariadb, moto, rest_catalog, s3proxy
from tests.matrix.cells import Cell
from tests.matrix.environments import ROOT, Environments
from tests.matrix.life import Place, live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lakes.servers import Store

#: The versions that all lakes are tried with. The matrix tries others, in one catalog.
CELL = Cell(
    "lakes",
    "3.3.*",
    ".".join(platform.python_version_tuple()[:2]),
    18,
    also=("pyiceberg[sql-postgres,glue,hive]", "pymysql"),
)
#: Lakes that are tried with another Spark.
OTHER_CELLS = {
    "sql-postgresql-spark-3.5": dataclasses.replace(CELL, spark="3.5.9", scala="2.12"),
    "sql-postgresql-spark-4.0": dataclasses.replace(CELL, spark="4.0.5"),
}
CATALOG = "lake"
_MYSQL_PASSWORD = "secret-of-lake"
_DAYS = 24 * 60 * 60
_OLD_SECONDS = 3 * _DAYS
_OPEN_PARENT = "/var/tmp"  # noqa: S108 - a new folder in it, which the server's own account enters


@dataclass(frozen=True)
class Lake:
    """A catalog, a store, and what their users have to set.

    :ivar properties: of the catalog: the extras of the connection.
    :ivar login: login and password of the connection.
    :ivar variables: of the worker.
    :ivar spark: settings of Spark.
    :ivar staging_uri: None: a local folder.
    :ivar files: the folder in which the files of the tables can be found; None: they are in memory.
    :ivar secrets: what no log may have.
    :ivar is_nested: whether a namespace may be in another one.
    """

    properties: dict[str, str]
    login: tuple[str, str] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)
    staging_uri: str | None = None
    files: Path | None = None
    secrets: tuple[str, ...] = ()
    is_nested: bool = False

    def for_pyiceberg(self) -> dict[str, str]:
        """What ``pyiceberg.catalog.load_catalog`` takes."""
        login = {"credential": ":".join(self.login)} if self.login else {}
        return {**self.properties, **login}


@dataclass(frozen=True)
class LakePlace(Place):
    """A pipeline whose tables are in such a lake."""

    name: str
    its_lake: Lake

    @property
    def state(self) -> Path:
        return FOLDER / "pipelines" / self.name

    def environment(self, server: EmbeddedPostgres) -> dict[str, str]:
        extra = {**self.its_lake.properties, "catalog-name": CATALOG}
        connection: dict[str, object] = {"conn_type": "iceberg", "extra": extra}
        if self.its_lake.login:
            connection["login"], connection["password"] = self.its_lake.login
        return {
            **super().environment(server),
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).with_name("dags")),
            "AIRFLOW_CONN_ICEBERG_DEFAULT": json.dumps(connection),
            **self.its_lake.variables,
        }

    def spark_conf(self) -> dict[str, str]:
        """The site's settings. The jars come by ``packages="auto"``, so none are given."""
        conf = {**site_conf(driver_memory="1g"), **self.its_lake.spark}
        del conf["spark.jars"]
        # A machine on which Maven ran has other people's leftovers in the home folder.
        conf["spark.driver.extraJavaOptions"] += f" -Duser.home={FOLDER / 'home'}"
        return conf

    def dag_conf(self) -> dict[str, object]:
        found = super().dag_conf()
        if self.its_lake.staging_uri:
            found["staging_uri"] = self.its_lake.staging_uri
        return found

    def make_lake(self, server: EmbeddedPostgres) -> None:
        """The first run finds an empty catalog."""

    def catalog(self) -> tuple[str, dict[str, str]]:
        return CATALOG, self.its_lake.for_pyiceberg()

    @property
    def replayed(self) -> str:
        return "of_others.again" if self.its_lake.is_nested else super().replayed

    def secrets(self) -> set[str]:
        return set(self.its_lake.secrets)

    def leave_orphan(self) -> Path | None:
        if self.its_lake.files is None:
            return None
        # The replayed tables of other namespaces have the same names.
        file = next(self.its_lake.files.rglob(f"{NAMESPACE}*/orders*/data/**/*.parquet"))
        orphan = file.with_name("orphan.parquet")
        shutil.copyfile(file, orphan)
        then = time.time() - _OLD_SECONDS
        os.utime(orphan, (then, then))
        return orphan


def live_in(name: str) -> None:
    """Start the servers of a lake, and let a pipeline live in it.

    :raises Unavailable: one of the servers is not to be had here.
    :raises SourceError: a DAG run or a command failed.
    :raises AssertionError: the lake is not what the source is.
    """
    environments = Environments.make(OTHER_CELLS.get(name, CELL))
    with (
        tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir=_OPEN_PARENT) as folder,
        LAKES[name](Path(folder), environments.spark_home) as lake,
    ):
        live(LakePlace(ROOT, environments, name, lake))


@contextlib.contextmanager
def _hive(home: Path, spark_home: Path) -> Iterator[Lake]:
    """Hive's metastore, with all files in local folders."""
    warehouse = home / "warehouse"
    warehouse.mkdir()
    with hive_metastore(home, warehouse, spark_home) as uri:
        yield Lake(
            {"type": "hive", "uri": uri, "warehouse": warehouse.as_uri()},
            files=warehouse,
        )


@contextlib.contextmanager
def _glue(home: Path, spark_home: Path) -> Iterator[Lake]:
    """Glue, with tables and batches on S3."""
    with moto(home) as store:
        client = {
            "client.region": "us-east-1",
            "client.access-key-id": store.access_key,
            "client.secret-access-key": store.secret_key,
        }
        where = {"type": "glue", "glue.endpoint": store.url, "warehouse": _warehouse()}
        yield _staged_on(store, {**where, **client, **store.for_iceberg()})


@contextlib.contextmanager
def _rest(home: Path, spark_home: Path) -> Iterator[Lake]:
    """A REST catalog with OAuth2 and a prefix. Only the catalog gives keys of the store, for each table."""
    with s3proxy(home) as store, rest_catalog(home, store, spark_home) as login:
        properties = {
            "type": "rest",
            "uri": login.url,
            "oauth2-server-uri": f"{login.url}/v1/oauth/tokens",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        }
        yield Lake(
            properties,
            login=(login.client, login.secret),
            files=store.folder,
            secrets=(login.secret, store.secret_key),
            is_nested=True,
        )


@contextlib.contextmanager
def _sql_postgresql(home: Path, spark_home: Path) -> Iterator[Lake]:
    """A SQL catalog in PostgreSQL, with tables and batches on an S3 that checks signatures."""
    home.chmod(0o755)
    installation = find_or_fetch_installation(CELL.postgres)
    with (
        s3proxy(home) as store,
        EmbeddedPostgres(home / "postgres", installation=installation) as server,
    ):
        with psycopg.connect(server.conninfo(), autocommit=True) as session:
            session.execute("CREATE DATABASE catalog")
        login = f"postgres:{server.password}@127.0.0.1:{server.port}"
        uri = f"postgresql+psycopg2://{login}/catalog"
        where = {"type": "sql", "uri": uri, "warehouse": _warehouse()}
        properties = {**where, **store.for_iceberg()}
        yield _staged_on(store, properties, secrets=(str(server.password),), is_nested=True)


@contextlib.contextmanager
def sql_mysql(home: Path, spark_home: Path) -> Iterator[Lake]:
    """A SQL catalog in MariaDB, with all files in local folders."""
    warehouse = home / "warehouse"
    warehouse.mkdir()
    statements = (
        "CREATE DATABASE catalog",
        f"CREATE USER lake@'%' IDENTIFIED BY '{_MYSQL_PASSWORD}'",
        "GRANT ALL ON catalog.* TO lake@'%'",
    )
    with mariadb(home, *statements) as port:
        uri = f"mysql+pymysql://lake:{_MYSQL_PASSWORD}@127.0.0.1:{port}/catalog"
        yield Lake(
            {"type": "sql", "uri": uri, "warehouse": warehouse.as_uri()},
            files=warehouse,
            secrets=(_MYSQL_PASSWORD,),
            is_nested=True,
        )


def _staged_on(
    store: Store,
    properties: dict[str, str],
    *,
    secrets: tuple[str, ...] = (),
    is_nested: bool = False,
) -> Lake:
    """A lake whose batches are in the store of its tables."""
    return Lake(
        properties,
        variables=store.for_arrow(),
        spark=store.for_hadoop(),
        staging_uri=f"s3://{BUCKET}/staging",
        files=store.folder,
        secrets=(store.secret_key, *secrets),
        is_nested=is_nested,
    )


def _warehouse() -> str:
    return f"s3://{BUCKET}/warehouse"


LAKES: dict[str, Callable[[Path, Path], contextlib.AbstractContextManager[Lake]]] = {
    "hive": _hive,
    "glue": _glue,
    "rest": _rest,
    "sql-postgresql": _sql_postgresql,
    **dict.fromkeys(OTHER_CELLS, _sql_postgresql),
    "sql-mysql": sql_mysql,
}
