"""What every test may ask for: a PostgreSQL server, a fresh database, a Spark session, an Airflow.

Each is started once per test run, on first use, from packages; nothing on the machine is used or
changed. Airflow reads its configuration when it is imported, so its environment is set here, before
any test module is; nothing here imports Airflow for a test that does not ask for ``airflow_home``.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import hypothesis
import psycopg
import pytest
from psycopg import sql

from airflow_provider_pgoutput.capture.request import AFTER_APPLY, AFTER_STAGE
from airflow_provider_pgoutput.capture.stream.options import SQL, WALSENDER
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from quickstart.spark import LocalLake, local_conf, spark_environment
from tests import evidence, setting
from tests.conformance import passed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from pyspark.sql import SparkSession

_TESTS = Path(__file__).parent
_AIRFLOW_HOME = Path(tempfile.mkdtemp(prefix="pgoutput-tests-airflow-"))
os.environ.update(
    {
        "AIRFLOW_HOME": str(_AIRFLOW_HOME),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(_AIRFLOW_HOME / "dags"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_AIRFLOW_HOME / 'airflow.db'}",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
)

# An example may take long because the machine does other work. That is no fault of what is tested.
hypothesis.settings.register_profile(
    "tests",
    hypothesis.settings(),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")

# Lost with the machine, not with the process: a crash of the server alone keeps every commit.
_SERVER_SETTINGS = {"fsync": "off", "max_prepared_transactions": "10", "max_connections": "60"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--postgres-version",
        type=int,
        default=18,
        choices=(15, 16, 17, 18),
        help="the major version of the PostgreSQL server that the tests use (default: 18)",
    )
    parser.addoption(
        "--advance",
        default=AFTER_APPLY,
        choices=(AFTER_APPLY, AFTER_STAGE),
        help="when pipelines move their slot, where a test does not say it (default: after_apply)",
    )
    parser.addoption(
        "--transport",
        default=SQL,
        choices=(SQL, WALSENDER),
        help="how pipelines read their slot, where a test does not say it (default: sql)",
    )


def pytest_configure(config: pytest.Config) -> None:
    setting.advance = config.getoption("--advance")
    setting.transport = config.getoption("--transport")


#: What a test needs, by the fixtures that bring it. Nobody marks a test by hand.
NEEDS = {
    "postgres": {"postgres_server", "new_server_home"},
    "spark": {"spark"},
    "airflow": {"airflow_home", "seen"},
}


#: What takes long. Such a test is left to ``make further`` if no page of evidence names it, and nobody marked
#: it ``slow``.
EXPENSIVE = ("spark", "airflow", "submit")

#: Rooms whose files take minutes. They run first, so that at the end no process waits long for another.
LONG = ("airflow", "apply", "conformance", "faults", "matrix", "types_end_to_end")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with what it needs, before pytest looks at ``-m``; put long files first."""
    items.sort(key=lambda item: item.path.relative_to(_TESTS).parts[0] not in LONG)
    pages = evidence.named_by_pages()
    for item in items:
        asked_for = set(getattr(item, "fixturenames", ()))
        for mark, fixtures in NEEDS.items():
            if asked_for & fixtures:
                item.add_marker(mark)
        expensive = any(map(item.get_closest_marker, EXPENSIVE))
        if expensive and not item.get_closest_marker("slow") and not _is_named(item, pages):
            item.add_marker("further")


def _is_named(item: pytest.Item, pages: set[tuple[str, str]]) -> bool:
    path = item.path.relative_to(evidence.ROOT).as_posix()
    function = getattr(item, "originalname", None) or item.name
    return (path, "") in pages or (path, function) in pages


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_AIRFLOW_HOME, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note on which server a scenario passed, when the environment asks for it."""
    report = yield
    name = item.nodeid.rpartition("/")[2]
    kept = name.startswith(passed.NOTED)
    if os.environ.get(passed.VARIABLE) and kept and (report.when == "call" or report.failed):
        asked = item.config.getoption("--postgres-version")
        # A test that needs another server than the one asked for says which.
        properties: dict[str, Any] = dict(item.user_properties)
        version = properties.get("postgres_version", asked)
        passed.note(name, version, passed=report.passed)
    return report


@pytest.fixture(scope="session")
def postgres_server(
    request: pytest.FixtureRequest, new_server_home: Callable[[], Path]
) -> Iterator[EmbeddedPostgres]:
    """A server of its own with logical replication, on a free port of 127.0.0.1."""
    installation = find_or_fetch_installation(request.config.getoption("--postgres-version"))
    server = EmbeddedPostgres(
        new_server_home(), installation=installation, settings=_SERVER_SETTINGS
    )
    try:
        yield server.start()
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def new_server_home() -> Iterator[Callable[[], Path]]:
    """Makes folders for servers that tests start themselves.

    A server does not run as root, and only root may enter pytest's own folders.
    """
    made: list[Path] = []

    def make() -> Path:
        home = Path(tempfile.mkdtemp(prefix="pgoutput-tests-server-"))
        home.chmod(0o755)
        made.append(home)
        return home

    yield make
    for home in made:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def server_home(new_server_home: Callable[[], Path]) -> Path:
    """A folder for one server that the test starts itself."""
    return new_server_home()


@pytest.fixture
def own_server(server_home: Path, postgres_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A server of the test's own, which may be stopped and promoted."""
    found = EmbeddedPostgres(server_home, installation=postgres_server.installation)
    try:
        yield found.start()
    finally:
        found.destroy()


_database_numbers = itertools.count(1)


@pytest.fixture
def postgres_database(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """The libpq URI of an empty database; it and its slots are dropped after the test."""
    name = f"test_{next(_database_numbers)}"
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        # Copying the files of the template takes less time than writing all its pages to the WAL.
        create = sql.SQL("CREATE DATABASE {} STRATEGY file_copy")
        session.execute(create.format(sql.Identifier(name)))
    yield postgres_server.conninfo(name)
    postgres_server.start()  # A test may have stopped it.
    with psycopg.connect(postgres_server.conninfo(), autocommit=True) as session:
        session.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s",
            (name,),
        )
        session.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s AND NOT temporary",
            (name,),
        )
        session.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )


@pytest.fixture(scope="session")
def local_lake() -> Iterator[LocalLake]:
    """An Iceberg warehouse in a temporary folder, in a catalog named ``lake``."""
    home = Path(tempfile.mkdtemp(prefix="pgoutput-tests-lake-"))
    yield LocalLake(home).create()
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def lake_catalog_properties(local_lake: LocalLake) -> dict[str, str]:
    """What ``pyiceberg.catalog.load_catalog("lake", **properties)`` takes."""
    return local_lake.pyiceberg_properties()


# Thousands of queries over a few rows. A description of each plan is written for a page that nobody
# opens, and code of one plan serves the next test that has the same.
_FEW_ROWS = {
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "0",
    "spark.sql.codegen.cache.maxEntries": "5000",
}


@pytest.fixture(scope="session")
def spark(local_lake: LocalLake) -> Iterator[SparkSession]:
    """A Spark session with two cores and the Iceberg catalog ``lake``."""
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("pgoutput-tests")
    conf = {**local_conf(driver_memory="2g"), **local_lake.spark_conf(), **_FEW_ROWS}
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    write_files_without_processes(session)
    yield session
    session.stop()


_LOCAL_FILES = """
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
    public LocalFiles() {
        super(new WithoutPermissions());
        setWriteChecksum(false);
    }

    public static class WithoutPermissions extends RawLocalFileSystem {
        public void setPermission(Path path, FsPermission permission) {}
    }
}
"""


def write_files_without_processes(session: SparkSession) -> None:
    """Let Hadoop start no ``chmod`` for each file that it writes, and write no ``.crc`` file beside it.

    Spark brings a compiler for Java. An open file system is found by its URI, whatever its settings.
    """
    jvm, context = cast("Any", session._jvm), cast("Any", session.sparkContext)
    compiler = getattr(jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.cook(_LOCAL_FILES)
    settings = getattr(jvm, "org.apache.hadoop.conf.Configuration")(
        context._jsc.hadoopConfiguration()
    )
    settings.setClassLoader(compiler.getClassLoader())
    settings.set("fs.file.impl", "LocalFiles")
    root = getattr(jvm, "java.net.URI")("file:///")
    file_systems = getattr(jvm, "org.apache.hadoop.fs.FileSystem")
    file_systems.get(root, settings).close()
    opened = file_systems.get(root, settings)
    assert opened.getClass().getName() == "LocalFiles"


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The folder of an Airflow with an empty metadata database (SQLite) and no example DAGs."""
    (_AIRFLOW_HOME / "dags").mkdir(exist_ok=True)
    from airflow.utils.db import initdb

    initdb()
    return _AIRFLOW_HOME
