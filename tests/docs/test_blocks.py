"""Every block of tutorial and how-to is run by a test, in the order of its page, or the page says why not.

SQL runs on a real server, as a role that may do no more than the page says; SQL of Spark on tables that a
pipeline made. What is not here: Python blocks (``test_python_blocks.py``).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from airflow.sdk import Connection
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyarrow import parquet

from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.hooks.connections import libpq_parameters
from airflow_provider_pgoutput.hooks.lake_catalog import lake_catalog
from quickstart.spark import local_conf, spark_environment
from tests.conformance.pipeline import Pipeline
from tests.docs.blocks import PAGES, SPARK, blocks_of
from tests.docs.test_python_blocks import BLOCKS as PYTHON_BLOCKS
from tests.docs.test_python_blocks import load
from tests.readme.__main__ import follow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
_REHEARSAL = "tests/conformance/test_tables_set_aside.py"
_MIGRATION = "tests/proof/test_adopted_source.py::test_f48_a_server_with_smaller_lsns_is_adopted"
_RECOVERY = (
    "tests/proof/test_adopted_restored.py::test_f48_a_server_that_lost_its_newest_wal_is_adopted"
)
#: The test that runs a block, or all blocks of a page but the Python ones. A name alone is of this file.
RUN_BY = {
    "how-to/another_system.md:1": _RECOVERY,
    "how-to/another_system.md:2": _MIGRATION,
    "how-to/catalogs_and_stores.md": "test_java_takes_the_options_of_a_class_archive",
    "how-to/filter_rows.md": "test_the_filters_of_the_page",
    "how-to/history_tables.md": "tests/apply/rows/test_history.py::test_the_queries_of_the_page",
    "how-to/managed_services.md": "test_the_statements_of_a_managed_service",
    "how-to/postgresql.md": "test_the_role_of_the_page_can_stage",
    "how-to/replay.md": "test_statements_for_spark_read_the_past",
    "how-to/tables_set_aside.md:1": f"{_REHEARSAL}::test_the_rehearsal_of_the_page",
    "how-to/tables_set_aside.md:2": "test_one_command_asks_for_a_copy",
    "how-to/verify.md": "test_statements_for_spark_read_the_past",
    "tutorial/demo.md:1": "test_the_commands_of_the_demo",
    "tutorial/demo.md:3": "test_the_commands_of_the_demo",
    "tutorial/first_pipeline.md": "test_the_tutorial_word_for_word",
}
#: Services on which nothing was tried. Their own way to make a role is not SQL everywhere.
SERVICES = {
    "Amazon RDS for PostgreSQL": "CREATE ROLE rds_replication; CREATE ROLE rds_iam",
    "Google Cloud SQL for PostgreSQL": "",
    "Azure Database for PostgreSQL Flexible Server": "",
    "Supabase": "",
    "Neon": "CREATE ROLE cdc LOGIN REPLICATION PASSWORD '...'",
}
_TABLES = """
    CREATE SCHEMA shop;
    CREATE TABLE shop.orders (id int PRIMARY KEY, price numeric(9, 2));
    CREATE TABLE shop.customers (id int PRIMARY KEY, name text);
    INSERT INTO shop.orders VALUES (7, 1.5);
    INSERT INTO shop.customers VALUES (1, 'Ada');
"""
#: In place of what the pages say: the server is one for many tests.
_ROLE, _PASSWORD = "cdc_of_a_page", "of-a-page"


def test_each_block_is_run_or_says_why_not() -> None:
    run: set[str] = set()
    for block in (each for page in PAGES for each in blocks_of(page)):
        how = {block.page, block.name} & RUN_BY.keys()
        if block.language == "python":
            assert any(block.text == each for each in PYTHON_BLOCKS.values()), block.name
        else:
            assert bool(how) != bool(block.not_run), f"{block.name}: {how or 'no test runs it'}"
            run |= how
    assert run == RUN_BY.keys()


@pytest.mark.parametrize("test", sorted(set(RUN_BY.values())))
def test_what_runs_a_block_is_a_test(test: str) -> None:
    path, _, name = test.rpartition("::")
    source = (ROOT / path if path else Path(__file__)).read_text(encoding="utf-8")
    assert f"\ndef {name}(" in source


class Source:
    """A database with the tables of the pages, and the roles that a page needs."""

    def __init__(self, conninfo: str) -> None:
        self.conninfo = conninfo
        self.session = psycopg.connect(conninfo, autocommit=True)
        self.roles: list[str] = []

    def do(self, text: str) -> None:
        """Do what a page says, with the roles and the database of this test."""
        here = re.sub(r"\bcdc\b", _ROLE, text.replace("'...'", f"'{_PASSWORD}'"))
        database = sql.Identifier(self.session.info.dbname).as_string()
        self.session.execute(here.replace("DATABASE app", f"DATABASE {database}").encode())
        made = re.findall(
            r"^\s*CREATE (?:ROLE|USER) (\w+)", here.replace("; ", ";\n"), re.MULTILINE
        )
        self.roles += made

    def as_administrator(self) -> None:
        """Go on as the owner of the tables, who makes roles and is no superuser."""
        if self.session.info.server_version < 160000:
            return  # Only a superuser could give REPLICATION.
        self.do("CREATE ROLE administrator_of_pages CREATEROLE REPLICATION")
        database = sql.Identifier(self.session.info.dbname).as_string()
        self.do(f"GRANT CREATE ON DATABASE {database} TO administrator_of_pages WITH GRANT OPTION")
        self.do(f"GRANT CONNECT ON DATABASE {database} TO administrator_of_pages WITH GRANT OPTION")
        for each in self.roles:
            if each != "administrator_of_pages":
                self.do(f"GRANT {each} TO administrator_of_pages WITH ADMIN OPTION")
        self.do("ALTER SCHEMA shop OWNER TO administrator_of_pages")
        for table in ("orders", "customers"):
            self.do(f"ALTER TABLE shop.{table} OWNER TO administrator_of_pages")
        self.do("SET ROLE administrator_of_pages")

    @property
    def reader(self) -> str:
        """The database as the role that the page makes."""
        return make_conninfo(self.conninfo, user=_ROLE, password=_PASSWORD)

    def staged(self, folder: Path) -> dict[str, int]:
        """How many rows a first run as that role copies, by table."""
        request = CaptureRequest(self.reader, "slot_of_a_page", ("shop",), folder.as_uri())
        return {
            f"{each.schema_name}.{each.table_name}": each.counts.copied
            for each in stage_batch(request)[0].tables
        }

    def close(self) -> None:
        self.session.execute("RESET ROLE")
        for each in self.roles:
            role = sql.Identifier(each)
            self.session.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
        for each in self.roles:
            self.session.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(each)))
        self.session.close()


@pytest.fixture
def source(postgres_database: str) -> Iterator[Source]:
    found = Source(postgres_database)
    found.do(_TABLES)
    yield found
    found.close()


@pytest.mark.parametrize("rights", ["All tables", "Named tables"])
def test_the_role_of_the_page_can_stage(source: Source, tmp_path: Path, rights: str) -> None:
    for block in blocks_of("how-to/postgresql.md"):
        if block.language == "json":
            psycopg.conninfo.make_conninfo("", **json.loads(block.text))
        elif block.section in {"The role", rights}:
            source.do(block.text)
    source.do("CREATE PUBLICATION shop FOR TABLE shop.orders, shop.customers")
    assert source.staged(tmp_path) == {"shop.orders": 1, "shop.customers": 1}


def test_each_service_with_statements_is_tried() -> None:
    blocks = blocks_of("how-to/managed_services.md")
    sections = [block.section for block in blocks]
    assert {*SERVICES, "Log in with IAM", "The same everywhere"} == set(sections)


@pytest.mark.parametrize("service", SERVICES)
def test_the_statements_of_a_managed_service(source: Source, tmp_path: Path, service: str) -> None:
    """On a plain server: an administrator who is no superuser runs them, and then the role can stage."""
    blocks = blocks_of("how-to/managed_services.md")
    check, *of_services = blocks
    source.do(SERVICES[service])
    source.as_administrator()
    on_rds = service.startswith("Amazon")
    sections = {service, "Log in with IAM"} if on_rds else {service}
    for block in of_services:
        if block.section in sections:
            source.do(block.text)
    with psycopg.connect(source.reader, autocommit=True) as session:
        answers = [session.execute(each.encode()).fetchall() for each in check.statements()]
    level, role, tables = answers
    assert level == [("logical",)]
    assert role == [(_ROLE, True, False)]
    assert sorted(tables) == [("shop", "shop", "customers"), ("shop", "shop", "orders")]
    assert source.staged(tmp_path) == {"shop.orders": 1, "shop.customers": 1}


@pytest.mark.slow
def test_statements_for_spark_read_the_past(
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> None:
    """Two batches change row 7; the statements of two pages read it as the first one left it."""
    pipeline = Pipeline(
        postgres_database, "of_pages", ("p",), "of_pages", tmp_path, lake_catalog_properties, spark
    )
    (verify,) = [each for each in blocks_of("how-to/verify.md") if each.language == "sql"]
    (replay,) = [each for each in blocks_of("how-to/replay.md") if each.language == "sql"]
    with psycopg.connect(postgres_database, autocommit=True) as session:
        session.execute("CREATE TABLE orders (id int PRIMARY KEY, price int)")
        session.execute("INSERT INTO orders VALUES (7, 1), (8, 1)")
        session.execute("CREATE PUBLICATION p FOR TABLE orders")
        first = pipeline.drain(pipeline.flush_lsn())[-1].manifest.end_lsn
        session.execute("UPDATE orders SET price = 2")
        pipeline.drain(pipeline.flush_lsn())
        (at_source,) = verify.statements()
        assert session.execute(at_source.encode()).fetchall() == [(7, 2)]

    def in_spark(statement: str, **here: str) -> Sequence[Any]:
        replaced = {"lake.shop.": "lake.of_pages.", "'shop'": "'of_pages'", **here}
        for said, meant in replaced.items():
            statement = statement.replace(said, meant)
        return spark.sql(statement).collect()

    refs, at_tag = verify.statements(SPARK)
    tag = f"pgoutput_{first.sortable}"
    assert tag in {row["name"] for row in in_spark(refs)}
    assert [tuple(row) for row in in_spark(at_tag, **{"<tag>": tag})] == [(7, 1)]
    snapshots, at_snapshot = replay.statements(SPARK)
    (lsn,) = re.findall(r"'([0-9A-F]{16})'", snapshots)
    (found,) = in_spark(snapshots, **{lsn: first.sortable})
    assert found["target"] == "of_pages.orders"
    (number,) = re.findall(r"VERSION AS OF (\d+)", at_snapshot)
    rows = in_spark(at_snapshot, **{number: str(found["snapshot_id"])})
    assert sorted(tuple(row) for row in rows) == [(7, 1), (8, 1)]


def test_one_command_asks_for_a_copy(
    airflow_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command starts the DAG of the page of schedules, and its argument reaches the task."""
    from airflow.cli import cli_parser
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

    _, command = blocks_of("how-to/tables_set_aside.md")
    (block,) = [
        each
        for each in blocks_of("how-to/schedule.md")
        if "copy_tables" in each.text and each.language == "python"
    ]
    dag = load(block.text, tmp_path)
    DagBundlesManager().sync_bundles_to_db()
    sync_bag_to_db(DagBag(str(tmp_path)), "dags-folder", None)
    program, *arguments = shlex.split(command.text)
    assert program == "airflow"
    given = cli_parser.get_parser().parse_args([*arguments, "--output", "json"])
    capsys.readouterr()
    given.func(given)
    (run,) = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run["dag_id"] == dag.dag_id
    params = dag.params.dump() | json.loads(str(run["conf"]).replace("'", '"'))
    template = dag.get_task("pgoutput_to_iceberg.stage").copy_tables
    rendered = dag.get_task("pgoutput_to_iceberg.stage").render_template(
        template, {"params": params}
    )
    assert json.loads(rendered) == ["public.orders"]


@pytest.mark.slow
def test_the_masks_of_the_page(source: Source, airflow_home: Path, tmp_path: Path) -> None:
    (block,) = blocks_of("how-to/mask_columns.md")
    (tmp_path / "dags").mkdir()
    stage = load(block.text, tmp_path / "dags").get_task("pgoutput_to_iceberg.stage")
    source.session.execute(
        "CREATE TABLE public.users (id int PRIMARY KEY, email text, name text, postcode text,"
        " birthday date, notes text)"
    )
    source.session.execute(
        "INSERT INTO public.users VALUES (1, 'ada@x.org', 'Ada', '10115', '1815-12-10', 'a note')"
    )
    source.session.execute("CREATE PUBLICATION shop FOR TABLE public.users")
    request = CaptureRequest(
        source.conninfo,
        "slot_of_a_page",
        stage.publication_names,
        (tmp_path / "staging").as_uri(),
        columns=stage.columns,
        mask_secret=b"a secret of this test",
    )
    (table,) = stage_batch(request).manifest.tables
    source.session.execute("SELECT pg_drop_replication_slot('slot_of_a_page')")
    (version,) = table.versions
    rows = parquet.read_table(tmp_path / "staging" / version.files[0].path)
    (row,) = rows.rename_columns([each.name for each in version.columns]).to_pylist()
    hashed = hmac.new(b"a secret of this test", b"ada@x.org", hashlib.sha256).hexdigest()
    assert row.pop("email") == hashed
    assert row == {"id": 1, "name": "***", "postcode": "10", "birthday": None}


@pytest.mark.slow
def test_the_filters_of_the_page(source: Source, airflow_home: Path, tmp_path: Path) -> None:
    identities, dag = blocks_of("how-to/filter_rows.md")
    (tmp_path / "dags").mkdir()
    stage = load(dag.text, tmp_path / "dags").get_task("pgoutput_to_iceberg.stage")
    for statement in (
        "CREATE TABLE public.orders (id int PRIMARY KEY, region text, amount numeric)",
        "CREATE TABLE public.users (id int PRIMARY KEY, active bool, created_at timestamptz)",
        identities.text,
        "INSERT INTO public.orders VALUES (1, 'eu', 10), (2, 'eu', 9.99), (3, 'us', 10), (4, NULL, 10)",
        "INSERT INTO public.users VALUES (5, true, NULL), (8, NULL, NULL)",
        "INSERT INTO public.users VALUES (6, false, '2025-12-31 23:59:59+00')",
        "INSERT INTO public.users VALUES (7, false, '2026-01-01 00:00:00+00')",
        "CREATE PUBLICATION shop FOR TABLE public.orders, public.users",
    ):
        source.session.execute(statement.encode())
    request = CaptureRequest(
        source.conninfo,
        "slot_of_a_page",
        stage.publication_names,
        (tmp_path / "staging").as_uri(),
        filters=stage.filters,
    )
    tables = stage_batch(request).manifest.tables
    source.session.execute("SELECT pg_drop_replication_slot('slot_of_a_page')")
    files = [file for table in tables for file in table.versions[0].files]
    read = [parquet.read_table(tmp_path / "staging" / each.path) for each in files]
    assert sorted(key for rows in read for key in rows.column(0).to_pylist()) == [1, 5, 7]


def test_the_commands_of_the_page_make_connections() -> None:
    """Airflow's parser takes them, and what they make is read as the page says."""
    page = (ROOT / "docs" / "how-to" / "catalogs_and_stores.md").read_text(encoding="utf-8")
    commands = re.findall(r"`airflow (connections add [^`]+)`", page)
    made = {each.conn_id: each for each in map(_connection, commands)}
    source, catalog, cluster = (
        made.pop(name) for name in ("postgres_default", "iceberg_default", "spark_default")
    )
    assert made == {}
    parameters = libpq_parameters(source, source.extra_dejson)
    assert parameters["host"] == "db.example.com"
    assert parameters["dbname"] == "shop"
    assert parameters["sslmode"] == "verify-full"
    assert parameters["sslrootcert"] == "/etc/ssl/certs/db-ca.pem"
    lake = lake_catalog(catalog, catalog.extra_dejson)
    assert lake.name == "lake"
    assert lake.pyiceberg_properties["uri"] == "https://catalog.example.com"
    assert lake.pyiceberg_properties["warehouse"] == "lake"
    assert lake.pyiceberg_properties["credential"] == "ID:SECRET"
    assert (cluster.host, cluster.port) == ("spark://spark.example.com", 7077)


def _connection(command: str) -> Connection:
    """What a command of Airflow's would write into its database."""
    from airflow.cli import cli_parser

    given = cli_parser.get_parser().parse_args(shlex.split(command))
    names = ("host", "port", "schema", "login", "password", "extra")
    values = {name: getattr(given, f"conn_{name}") for name in names}
    if values["port"] is not None:
        values["port"] = int(values["port"])
    return Connection(conn_id=given.conn_id, conn_type=given.conn_type, **values)


@pytest.mark.exhaustive
def test_java_takes_the_options_of_a_class_archive(tmp_path: Path) -> None:
    """A job writes the archive; another one ends if Java cannot read it."""
    write, read = blocks_of("how-to/catalogs_and_stores.md")
    job = tmp_path / "job.py"
    job.write_text(
        "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().range(5).count()\n"
    )
    settings = "".join(
        f"{name} {value}\n"
        for name, value in local_conf(driver_memory="1g").items()
        if name != "spark.driver.extraJavaOptions"
    )
    for block, options in ((write, ""), (read, "-Xshare:on")):
        properties = tmp_path / "spark.conf"
        text = block.text.strip().replace("/opt/pgoutput", str(tmp_path)).replace("=", " ", 1)
        properties.write_text(f"{settings}{text} {options}\n")
        subprocess.run(
            [
                "spark-submit",
                "--master",
                "local[2]",
                "--properties-file",
                str(properties),
                str(job),
            ],
            env=spark_environment(),
            check=True,
        )
        assert (tmp_path / "apply.jsa").is_file()


@pytest.mark.exhaustive
def test_the_commands_of_the_demo() -> None:
    """``make test`` is not among them: it runs this."""
    make, _, looking, _ = blocks_of("tutorial/demo.md")
    commands = [line.partition("#")[0].strip() for line in make.text.splitlines()]
    assert commands == ["make demo", "make test"]
    for command in (commands[0], looking.text.strip()):
        subprocess.run(["bash", "-c", command], cwd=ROOT, check=True)


@pytest.mark.exhaustive
def test_the_tutorial_word_for_word() -> None:
    assert follow() < 30
