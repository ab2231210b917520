"""Both engines tell a refusal of a catalog from its silence, on real servers: SQL catalogs and Glue.

One connection is asked through pyiceberg's clients, as the worker does it, and through Java's.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from airflow.sdk import Connection

from airflow_provider_pgoutput.batch.spark_packages import MYSQL, POSTGRESQL, aws
from airflow_provider_pgoutput.hooks.lake_catalog import lake_catalog
from airflow_provider_pgoutput.spark_submit.packages import versions_of
from quickstart.jars import spark_home
from quickstart.spark import site_conf, spark_environment
from tests.lakes.programs import Unavailable, answer_of, free_port, jars, python_with
from tests.lakes.servers import mariadb, moto_with_logins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from quickstart.postgres import EmbeddedPostgres

_HERE = Path(__file__).parent
_PASSWORD = "right-password"
_CANARY = "canary-0xC0FFEE"
_UNKNOWN_KEY = "AKIAXXXXXXXXXXXXXXXX"
#: IAM's actions that make a user and its key.
_ACTIONS = 2
_MAKE_USER = """
import boto3, json, sys
iam = boto3.client("iam", endpoint_url=sys.argv[1], region_name="us-east-1",
                   aws_access_key_id="any", aws_secret_access_key="any")
iam.create_user(UserName="nobody")
key = iam.create_access_key(UserName="nobody")["AccessKey"]
print(json.dumps([key["AccessKeyId"], key["SecretAccessKey"]]))
"""


@dataclass(frozen=True)
class Case:
    """A connection, and the error with which each engine has to end.

    :ivar only_worker: Java has one driver for a database, and Python has several.
    """

    extra: dict[str, Any]
    error: str
    only_worker: bool = False


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def worker() -> Path:
    """A Python with the clients of all catalogs."""
    version = importlib.metadata.version("pyiceberg")
    drivers = ("psycopg[binary]", "pg8000", "pymysql", "mysql-connector-python")
    try:
        extras = "glue,pyarrow,sql-postgres"
        return python_with("worker", f"pyiceberg[{extras}]=={version}", *drivers) / "python"
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def postgresql(postgres_server: EmbeddedPostgres) -> dict[str, Case]:
    """A SQL catalog in PostgreSQL, by all drivers of SQLAlchemy."""
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute("CREATE DATABASE refusals")
        session.execute(f"CREATE ROLE refused LOGIN PASSWORD '{_PASSWORD}'")
    found = {
        "postgresql_not_there": _sql(
            f"postgresql://refused:{_CANARY}@127.0.0.1:{free_port()}/refusals", "LakeUnavailable"
        )
    }
    server = f"127.0.0.1:{postgres_server.port}"
    for driver in ("psycopg2", "psycopg", "pg8000"):
        only_worker = driver != "psycopg2"
        for what, login, database, error in (
            ("password", f"refused:{_CANARY}", "refusals", "LakeDenied"),
            ("user", f"nobody:{_CANARY}", "refusals", "LakeDenied"),
            # Nobody may make tables there but the owner.
            ("right", f"refused:{_PASSWORD}", "refusals", "LakeDenied"),
            ("database", f"refused:{_PASSWORD}", "not_there", "ConfigurationError"),
        ):
            uri = f"postgresql+{driver}://{login}@{server}/{database}"
            found[f"{driver}_{what}"] = _sql(uri, error, only_worker=only_worker)
    return found


@pytest.fixture(scope="module")
def mysql(folder: Path) -> Iterator[dict[str, Case]]:
    """A SQL catalog in MariaDB, by two drivers."""
    statements = (
        "CREATE DATABASE refusals",
        "CREATE DATABASE readable",
        *(
            f"CREATE USER {name}@'%' IDENTIFIED BY '{_PASSWORD}'"
            for name in ("refused", "reader", "writer")
        ),
        "GRANT SELECT ON readable.* TO reader@'%'",
        "GRANT ALL ON *.* TO writer@'%'",
    )
    with mariadb(folder, *statements) as port:
        found = {
            "mysql_not_there": _sql(
                f"mysql+pymysql://refused:{_CANARY}@127.0.0.1:{free_port()}/x", "LakeUnavailable"
            )
        }
        for driver in ("pymysql", "mysqlconnector"):
            only_worker = driver != "pymysql"
            for what, login, database, error in (
                ("password", f"refused:{_CANARY}", "refusals", "LakeDenied"),
                ("of_database", f"refused:{_PASSWORD}", "refusals", "LakeDenied"),
                ("right", f"reader:{_PASSWORD}", "readable", "LakeDenied"),
                # Only who may use all databases learns that there is none of a name.
                ("database", f"writer:{_PASSWORD}", "not_there", "ConfigurationError"),
            ):
                uri = f"mysql+{driver}://{login}@127.0.0.1:{port}/{database}"
                found[f"{driver}_{what}"] = _sql(uri, error, only_worker=only_worker)
        yield found


@pytest.fixture(scope="module")
def glue(folder: Path, worker: Path) -> Iterator[dict[str, Case]]:
    """Glue of moto, which refuses a key that it does not know, and a user without a policy."""
    with moto_with_logins(folder, after_actions=_ACTIONS) as url:
        made = subprocess.run(
            [worker, "-c", _MAKE_USER, url], check=True, capture_output=True, text=True
        )
        key, secret = json.loads(made.stdout)
        yield {
            "glue_key": _glue(url, _UNKNOWN_KEY, _CANARY, "LakeDenied"),
            "glue_right": _glue(url, key, secret, "LakeDenied", only_worker=True),
            "glue_secret": _glue(url, key, _CANARY, "LakeDenied", only_worker=True),
            "glue_not_there": _glue(
                f"http://127.0.0.1:{free_port()}", _UNKNOWN_KEY, _CANARY, "LakeUnavailable"
            ),
        }


@pytest.mark.slow
def test_the_worker_tells_a_refusal_from_silence(worker: Path, cases: dict[str, Case]) -> None:
    given = {name: {"properties": _catalog(name, each)[0]} for name, each in cases.items()}
    answers = _answers([worker, _HERE / "ask_worker.py"], given)
    _check(cases, answers)


@pytest.mark.slow
@pytest.mark.submit
def test_spark_tells_a_refusal_from_silence(cases: dict[str, Case]) -> None:
    """Java's Glue client takes its keys from the environment, so all of its catalogs have the same."""
    cases = {name: each for name, each in cases.items() if not each.only_worker}
    home = spark_home()
    packages = (*POSTGRESQL.coordinates, *MYSQL.coordinates, *aws(versions_of(home)).coordinates)
    conf = site_conf("1g")
    more = jars("refusals", *packages, alone=True)
    conf["spark.jars"] = ",".join((conf["spark.jars"], *map(str, more)))
    environment: dict[str, str] = {}
    for name, each in cases.items():
        _, settings, variables = _catalog(name, each)
        conf |= settings
        environment |= variables
    given = {"conf": conf, "asked": list(cases)}
    program = [Path(sys.executable), _HERE / "ask_spark.py"]
    _check(cases, _answers(program, given, {**spark_environment(), **environment}))


@pytest.fixture(params=["postgresql", "mysql", "glue"])
def cases(request: pytest.FixtureRequest) -> dict[str, Case]:
    try:
        found: dict[str, Case] = request.getfixturevalue(request.param)
    except Unavailable as error:
        pytest.skip(str(error))
    return found


def _catalog(name: str, case: Case) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """What pyiceberg takes, Spark's settings, and Spark's variables."""
    connection = Connection(conn_id=name, conn_type="iceberg", extra=json.dumps(case.extra))
    found = lake_catalog(connection, case.extra, name)
    return found.pyiceberg_properties, found.spark_conf | found.spark_secrets, found.environment


def _answers(
    program: Sequence[Path], given: object, environment: Mapping[str, str] | None = None
) -> dict[str, list[str] | None]:
    found: dict[str, list[str] | None] = answer_of(program, given, environment, canary=_CANARY)
    return found


def _check(cases: dict[str, Case], answers: dict[str, list[str] | None]) -> None:
    assert cases.keys() == answers.keys()
    found = {name: answer and answer[0] for name, answer in answers.items()}
    assert found == {name: each.error for name, each in cases.items()}, answers


def _sql(uri: str, error: str, *, only_worker: bool = False) -> Case:
    extra = {"type": "sql", "uri": uri, "warehouse": "file:///nowhere"}
    return Case(extra, error, only_worker)


def _glue(url: str, key: str, secret: str, error: str, *, only_worker: bool = False) -> Case:
    login = {"client.access-key-id": key, "client.secret-access-key": secret}
    where = {"type": "glue", "glue.endpoint": url, "client.region": "us-east-1"}
    return Case({**where, **login, "warehouse": "s3://bucket/warehouse"}, error, only_worker)
