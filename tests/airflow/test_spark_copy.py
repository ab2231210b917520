"""``copy_engine="spark"`` on a cluster of two workers: the rows that the other engine reads, whoever dies."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException
from psycopg.conninfo import make_conninfo
from pyarrow import parquet

from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.capture.copy import on_spark
from airflow_provider_pgoutput.capture.copy import stage as copying
from airflow_provider_pgoutput.errors import ConnectionNotFound, SourceUnavailable
from airflow_provider_pgoutput.operators.stage import PgoutputStageOperator
from quickstart.spark import spark_environment
from tests.airflow.conftest import connection_json
from tests.conformance.compare import (
    connect,
    difference,
    lake_fields,
    quoted,
    read_lake,
    read_source,
)
from tests.conformance.pipeline import CATALOG, Batch, Pipeline
from tests.reader_role import reader_conninfo
from tests.spark_cluster import WORKERS, SparkCluster, standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.manifest import Table
    from airflow_provider_pgoutput.batch.table_version import StagedFile
    from tests.airflow.conftest import TestLake

    Session = psycopg.Connection[tuple[Any, ...]]

pytestmark = pytest.mark.submit

CANARY = "canary-0xC0FFEE-password"
TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'so "so"', 'happy');
CREATE TYPE point3 AS (x int, y numeric, "Z" text);
CREATE DOMAIN price AS numeric(12, 2);
CREATE TABLE kinds (
    id bigint PRIMARY KEY, i2 smallint, i4 int, f4 real, f8 float8, n numeric, p price, b bool, t text,
    c char(5), y bytea, d date, ts timestamp, tz timestamptz, ti time, iv interval, u uuid, j json, jb jsonb,
    m mood, r point3, ia int[], ta text[], ra int4range, ip inet, bits bit varying, ms mood[]);
INSERT INTO kinds SELECT g, g % 7, g, g / 3.0, g / 7.0, g / 9.0, g / 11.0, g % 2 = 0,
    CASE WHEN g % 5 = 0 THEN NULL ELSE 'text ü "' || chr(8364) || g END, 'c' || g % 10,
    decode(md5(g::text), 'hex'), '2000-01-01'::date + g, '1999-12-31'::timestamp + g * interval '1 hour',
    CASE WHEN g % 100 = 0 THEN 'infinity' ELSE '2024-01-01'::timestamptz + g * interval '1 s' END,
    '00:00'::time + g * interval '1 ms', g * interval '1 day 1 s', md5(g::text)::uuid,
    json_build_object('g', g), jsonb_build_object('a', g, 'b', ARRAY[1, NULL]),
    (ARRAY['sad', 'so "so"', 'happy'])[g % 3 + 1]::mood, ROW(g, g / 2.0, NULL)::point3, ARRAY[g, NULL, 1],
    ARRAY['a,b', '{"x"}', NULL], int4range(g, g + 5), '10.0.0.1'::inet + g, g::bit(12)::varbit,
    ARRAY['sad', 'happy']::mood[] FROM generate_series(1, 2000) g;
UPDATE kinds SET p = 'NaN' WHERE id = 7;
CREATE TABLE parts (id int, region text, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu') PARTITION BY RANGE (id);
CREATE TABLE parts_eu_1 PARTITION OF parts_eu FOR VALUES FROM (0) TO (6000);
CREATE TABLE parts_eu_2 PARTITION OF parts_eu FOR VALUES FROM (6000) TO (100000);
CREATE TABLE parts_us PARTITION OF parts FOR VALUES IN ('us');
INSERT INTO parts SELECT g, CASE WHEN g % 3 = 0 THEN 'us' ELSE 'eu' END, repeat('p', 150)
    FROM generate_series(1, 12000) g;
CREATE TABLE filtered (id int PRIMARY KEY, kept text, hidden text);
INSERT INTO filtered SELECT g, 'kept ' || g || repeat('x', 60000), 'hidden' FROM generate_series(1, 500) g;
CREATE SCHEMA "Sales é";
CREATE TABLE "Sales é"."Order ""x"".y" ("ID; --" int PRIMARY KEY, "select" text);
INSERT INTO "Sales é"."Order ""x"".y" SELECT g, 'quoted' FROM generate_series(1, 50) g;
CREATE TABLE nothing (id int PRIMARY KEY);
CREATE TABLE keyless (a int, b text);
INSERT INTO keyless SELECT g % 4, 'twice' FROM generate_series(1, 40) g;
CREATE PUBLICATION shop FOR TABLE kinds, parts, filtered (id, kept) WHERE (id % 2 = 0 AND kept LIKE 'k%'),
    "Sales é"."Order ""x"".y", nothing, keyless WITH (publish_via_partition_root = true);
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with standalone_cluster() as started:
        yield started


@pytest.fixture
def stage(
    cluster: SparkCluster,
    source: Session,
    postgres_database: str,
    lake: TestLake,
    set_connection: Callable[[str, dict[str, Any]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., PgoutputStageOperator]]:
    """Makes stage operators whose password is known to the test, and whose Spark is the cluster."""
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "private").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "private"))
    # Parts of 256 KiB, so that small tables have several.
    monkeypatch.setattr(on_spark, "PART_BYTES", 32 * 8192)
    source.execute(
        f"CREATE ROLE spark_reader LOGIN REPLICATION PASSWORD '{CANARY}';"
        "GRANT pg_read_all_data TO spark_reader"
    )
    conninfo = make_conninfo(postgres_database, user="spark_reader", password=CANARY)
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", connection_json(conninfo))
    set_connection(
        "spark_default", {"conn_type": "spark", "host": cluster.host, "port": cluster.port}
    )

    def make(slot_name: str, conf_more: dict[str, str] | None = None, **changed: Any) -> Any:
        arguments = {
            "task_id": f"stage_{slot_name}",
            "slot_name": slot_name,
            "publication_names": "shop",
            "staging_uri": (tmp_path / "staging").as_uri(),
            "namespace": "shop",
            "copy_engine": "spark",
            "spark_copy_from_bytes": "0",
            "spark_copy_conf": json.dumps({**cluster.conf(), **(conf_more or {})}),
        }
        return PgoutputStageOperator(**(arguments | changed))

    yield make
    source.execute("DROP OWNED BY spark_reader; DROP ROLE spark_reader")


class CommandLines(threading.Thread):
    """Looks at the command line of every process, again and again."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[str] = set()
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.2):
            for process in psutil.process_iter(["cmdline"]):
                self.seen.add(" ".join(process.info["cmdline"] or ()))

    def end(self) -> set[str]:
        self._ended.set()
        self.join()
        return self.seen


def manifest_of(batch: Any) -> Manifest:
    return Manifest.from_json(Path(batch["manifest_uri"].removeprefix("file://")).read_text())


def paths(root: Path, files: tuple[StagedFile, ...]) -> list[Path]:
    """The files of a manifest, each of which must be what the manifest says."""
    found = [root / each.path for each in files]
    for path, each in zip(found, files, strict=True):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == each.sha256
        assert parquet.read_metadata(path).num_rows == each.rows
    return found


def rows(found: list[Path]) -> Counter[str]:
    return Counter(
        repr(row) for path in found for row in parquet.ParquetFile(path).read().to_pylist()
    )


def copied(root: Path, table: Table) -> list[Path]:
    return paths(root, table.versions[-1].files)


def test_the_copy_is_that_of_the_other_engine_and_every_executor_took_part(
    cluster: SparkCluster,
    stage: Callable[..., Any],
    source: Session,
    tmp_path: Path,
    task_context: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source.execute(TABLES)
    wanted = manifest_of(stage("by_worker", copy_engine="worker").execute(task_context))
    command_lines = CommandLines()
    command_lines.start()
    # A Python worker dies when it has completed the files of its eighth part, before it could say so.
    conf = {"spark.executorEnv.PGOUTPUT_CRASH_AT": "copy.after_range:8"}
    found = manifest_of(stage("by_spark", conf).execute(task_context))
    seen, log = command_lines.end(), capsys.readouterr().out

    root = tmp_path / "staging"
    assert [each.name for each in found.tables] == [each.name for each in wanted.tables]
    for table, other in zip(found.tables, wanted.tables, strict=True):
        ours, theirs = copied(root, table), copied(root, other)
        assert rows(ours) == rows(theirs), table.name
        assert table.counts == other.counts
        assert table.versions[-1].columns == other.versions[-1].columns
        schemas = {str(parquet.read_schema(path)) for path in (*ours, *theirs)}
        assert len(schemas) == bool(theirs), table.name
    rejected = rows(paths(root, found.rejected_files))
    assert rejected == rows(paths(root, wanted.rejected_files))
    assert rejected.total() == 21

    # What the tasks left that died is gone: only files that the manifest names are there.
    assert {str(path.relative_to(root)) for path in (root / "by_spark").rglob("*.parquet")} == {
        *found.paths
    }
    (tasks,) = cluster.tasks_by_executor()
    assert len(tasks) == WORKERS
    assert tasks.total() > 6
    assert "by 2 executor(s)" in log
    last = re.findall(r"INFO (\d of 5 tables, .* left)", log)[-1]
    rows_copied = sum(each.counts.copied for each in found.tables)
    assert re.fullmatch(
        rf"5 of 5 tables, (\d+\.\d) of about \1 MiB copied; {rows_copied:,} rows, [\d,]+ rows/s,"
        r" \d+\.\d MiB/s; about 0 s left",
        last,
    ), last
    assert ", 0 rows/s" not in last
    assert " 0.0 MiB/s" not in last
    assert "Python worker exited unexpectedly" in log

    assert any("pgoutput_spark_copy.py" in each for each in seen)
    assert not [each for each in seen if CANARY in each]
    assert CANARY not in log
    assert not [name for name, text in cluster.texts() if CANARY in text]
    assert not [path for path in root.rglob("*.json") if CANARY in path.read_text()]
    assert not list((tmp_path / "private").iterdir())


@pytest.mark.further
def test_a_filter_is_followed_by_spark_as_by_the_worker(
    stage: Callable[..., Any], source: Session, tmp_path: Path, task_context: Any
) -> None:
    source.execute(TABLES)
    filters = {
        # With and without a row filter of the publication.
        "public.filtered": "id >= 250",
        "public.parts": "(region = 'eu' AND id > 9000) OR id IN (3, 6)",
    }
    wanted = manifest_of(
        stage("by_worker", copy_engine="worker", filters=filters).execute(task_context)
    )
    found = manifest_of(stage("by_spark", filters=filters).execute(task_context))
    root = tmp_path / "staging"
    for table, other in zip(found.tables, wanted.tables, strict=True):
        assert rows(copied(root, table)) == rows(copied(root, other)), table.name
    counts = {each.name: each.counts.copied for each in found.tables}
    assert (counts["public.filtered"], counts["public.parts"]) == (126, 2002)


def test_a_table_that_cannot_be_copied_stops_no_other(
    stage: Callable[..., Any], source: Session, tmp_path: Path, task_context: Any
) -> None:
    """One table has a value that its column cannot hold. The row filter of another one fails."""
    source.execute(
        TABLES + "CREATE TABLE torn (id int PRIMARY KEY); INSERT INTO torn VALUES (1), (0), (2);"
        "ALTER PUBLICATION shop ADD TABLE torn WHERE (1 / id > -1)"
    )
    options = {"value_policy": {"decimal": "fail"}}
    with pytest.raises(AirflowFailException):
        stage("stopped", on_table_refused="fail", **options).execute(task_context)
    aside = {"on_table_refused": "set_aside", **options}
    batch = stage("aside", **aside).execute(task_context)
    found = manifest_of(batch)
    refused = {each.table_name: each.error for each in found.passed_over}
    assert refused == {"public.kinds": "ValueRefused", "public.torn": "SourceError"}
    assert batch["set_aside"].keys() == refused.keys()
    wanted = manifest_of(stage("by_worker", copy_engine="worker", **aside).execute(task_context))
    assert [each.name for each in found.tables] == [each.name for each in wanted.tables]
    root = tmp_path / "staging"
    for table, other in zip(found.tables, wanted.tables, strict=True):
        assert rows(copied(root, table)) == rows(copied(root, other)), table.name


class Staging(threading.Thread):
    """A stage task in a thread."""

    def __init__(self, operator: PgoutputStageOperator, context: Any) -> None:
        super().__init__(daemon=True)
        self._operator, self._context = operator, context
        self.batch: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.batch = self._operator.execute(self._context)
        except BaseException as error:
            self.error = error


def eventually(condition: Callable[[], Any], seconds: float = 180) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come to that")


def spark_submit() -> psutil.Process | None:
    """The driver's JVM, a child of this process."""
    for each in psutil.Process().children():
        try:
            if any("pgoutput_spark_copy.py" in word for word in each.cmdline()):
                return each
        except psutil.NoSuchProcess:
            continue
    return None


@pytest.mark.further
def test_a_killed_driver_and_a_lost_snapshot_leave_no_half_of_a_table(
    stage: Callable[..., Any],
    source: Session,
    postgres_database: str,
    tmp_path: Path,
    task_context: Any,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second table is locked while Spark reads it, so that there is time to kill something."""
    source.execute(
        "CREATE TABLE first (a int PRIMARY KEY, b text);"
        "INSERT INTO first SELECT g, repeat('f', 100) FROM generate_series(1, 9000) g;"
        "CREATE TABLE second (a int PRIMARY KEY, b text);"
        # One part, which keeps one executor waiting; the other one copies the first table.
        "INSERT INTO second SELECT g, repeat('s', 100) FROM generate_series(1, 1500) g;"
        "CREATE PUBLICATION shop FOR TABLE first, second"
    )
    root = tmp_path / "staging" / "interrupted"

    def waiting_for_lock() -> list[int]:
        found = source.execute(
            "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database() AND query LIKE 'SELECT%second%'"
        )
        return [pid for (pid,) in found]

    with psycopg.connect(postgres_database) as locker:
        killed = Staging(stage("interrupted"), task_context)
        killed.start()
        eventually(spark_submit)
        locker.execute("LOCK TABLE second")
        eventually(waiting_for_lock)
        (seal,) = eventually(lambda: list(root.glob("copies/*/*.json")))
        # How far it is, with the second table still to come.
        half = re.compile(
            r"INFO 1 of 2 tables, \d+\.\d of about \d+\.\d MiB copied; 9,000 rows, [1-9][\d,]* rows/s,"
            r" \d+\.\d MiB/s; about [\d,]+ s left"
        )
        printed: list[str] = []

        def is_half_done() -> bool:
            printed.append(capsys.readouterr().out)
            return half.search("".join(printed)) is not None

        eventually(is_half_done)
        # The driver says it again and again, and the worker tells it the page.
        of_worker = [r"1 of 2 tables, \d+\.\d of about \d+\.\d MiB copied; 9,000 rows"] * 2
        eventually(lambda: re.search(".*".join(of_worker), caplog.text, re.DOTALL))
        assert task_context["ti"].pushed["pgoutput_progress"]["rows"] == 9000
        private = [path for path in (tmp_path / "private").rglob("*") if path.is_file()]
        assert private
        assert not [path for path in private if CANARY.encode() in path.read_bytes()]
        driver = spark_submit()
        assert driver is not None
        driver.kill()
        killed.join(120)
        assert "Error code" in str(killed.error)
        locker.rollback()
    sealed = json.loads(seal.read_text())
    assert {str(path.relative_to(root.parent)) for path in root.rglob("*.parquet")} >= {
        each["path"] for each in sealed["files"]
    }
    source.execute("DELETE FROM first WHERE a = 1")
    source.execute("DELETE FROM second WHERE a = 1")

    with psycopg.connect(postgres_database) as locker:
        staging = Staging(stage("interrupted"), task_context)
        staging.start()
        eventually(spark_submit)
        locker.execute("LOCK TABLE second")
        blocked = eventually(waiting_for_lock)
        source.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
            " WHERE temporary AND database = current_database()"
        )
        source.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) pid", (blocked,))
        locker.rollback()
    staging.join(240)
    assert staging.error is None
    manifest = manifest_of(staging.batch)
    first, second = sorted(manifest.tables, key=lambda each: each.name)
    # The first was taken over with its point; the second was read at the last of three.
    assert first.copy_lsn == str(manifest.start_lsn) == sealed["copy_lsn"]
    assert second.copy_lsn == str(manifest.end_lsn)
    assert rows(copied(root.parent, second)) == Counter(
        repr({"n0": a, "n1": "s" * 100}) for a in range(2, 1501)
    )
    assert "1 of 1 tables are copied at a new point" in caplog.text


class Writer(threading.Thread):
    """Changes two tables, a transaction after the other."""

    def __init__(self, conninfo: str) -> None:
        super().__init__(daemon=True)
        self._conninfo = conninfo
        self._ended = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        with psycopg.connect(self._conninfo) as session:
            while not self._ended.is_set():
                number = self.transactions % 3000
                for table in ("first", "second"):
                    session.execute(f"DELETE FROM {table} WHERE a = {3 * number}".encode())
                    session.execute(
                        f"UPDATE {table} SET b = 'changed' WHERE a = {3 * number + 1}".encode()
                    )
                    session.execute(
                        f"INSERT INTO {table} VALUES ({100_000 + self.transactions}, 'new')".encode()
                    )
                session.commit()
                self.transactions += 1
                time.sleep(0.01)

    def end(self) -> None:
        self._ended.set()
        self.join()


@pytest.mark.further
def test_a_copy_under_writes_and_what_follows_make_the_lake_the_source(
    stage: Callable[..., Any],
    source: Session,
    postgres_database: str,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    set_connection: Callable[[str, dict[str, Any]], None],
    tmp_path: Path,
    task_context: Any,
) -> None:
    """No gap and no double around the copy's point, in a table with a key and in one without."""
    source.execute(
        "CREATE TABLE first (a int PRIMARY KEY, b text);"
        "INSERT INTO first SELECT g, repeat('f', 100) FROM generate_series(1, 9000) g;"
        "CREATE TABLE second (a int, b text);"
        "ALTER TABLE second REPLICA IDENTITY FULL;"
        "INSERT INTO second SELECT g % 6000, repeat('s', 100) FROM generate_series(1, 9000) g;"
        "CREATE PUBLICATION shop FOR TABLE first, second"
    )
    extra = {name: value for name, value in lake_catalog_properties.items() if name != "uri"}
    set_connection(
        "iceberg_default",
        {"conn_type": "iceberg", "host": lake_catalog_properties["uri"], "extra": extra},
    )
    pipeline = Pipeline(
        conninfo=postgres_database,
        slot_name="under_writes",
        publication_names=("shop",),
        namespace="spark_copy_under_writes",
        staging=tmp_path / "staging",
        catalog_properties=lake_catalog_properties,
        spark=spark,
    )
    writer = Writer(postgres_database)
    writer.start()
    operator = stage("under_writes", namespace=pipeline.namespace, catalog_name=CATALOG)
    staging = Staging(operator, task_context)
    staging.start()
    eventually(spark_submit)
    begun = writer.transactions
    staging.join(240)
    assert staging.error is None
    assert writer.transactions > begun + 20
    writer.end()
    first = Batch(manifest_of(staging.batch), staging.batch["manifest_uri"])
    assert [each.counts.copied > 5000 for each in first.manifest.tables] == [True, True]
    pipeline.apply(first)
    second = pipeline.stage()
    assert second.manifest.changes > 100
    pipeline.apply(second)
    with connect(postgres_database) as session:
        for table in ("first", "second"):
            name = quoted(CATALOG, pipeline.namespace, table)
            spark.catalog.refreshTable(name)
            fields = [lake_fields(spark, name)[column] for column in ("a", "b")]
            held = read_source(session, "public", table, fields)
            assert not difference(read_lake(spark, name, fields), held), table
            assert held.total() > 5000


def test_a_table_is_sealed_while_the_worker_copies_its_own(
    stage: Callable[..., Any],
    source: Session,
    tmp_path: Path,
    task_context: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker begins with its own table when Spark's is sealed, and then fails."""
    source.execute(
        "CREATE TABLE large (a int PRIMARY KEY, b text);"
        "INSERT INTO large SELECT g, repeat('f', 100) FROM generate_series(1, 3000) g;"
        "CREATE TABLE small (a int PRIMARY KEY);"
        "INSERT INTO small VALUES (1);"
        "CREATE PUBLICATION shop FOR TABLE large, small"
    )
    root = tmp_path / "staging" / "beside"
    seals: list[Path] = []
    read: Any = vars(copying)["copy_tables"]

    def read_late(*arguments: Any, **options: Any) -> Iterator[Any]:
        seals.extend(eventually(lambda: list(root.glob("copies/*/*.json"))))
        yield from read(*arguments, **options)
        raise SourceUnavailable("It went away.")

    monkeypatch.setattr(copying, "copy_tables", read_late)
    with pytest.raises(SourceUnavailable, match="It went away"):
        stage("beside", spark_copy_from_bytes="100000").execute(task_context)
    assert len(seals) == 1
    assert spark_submit() is None, "the job was left"


def test_wrong_arguments_fail_before_anything_is_made(
    source: Session,
    postgres_database: str,
    lake: TestLake,
    tmp_path: Path,
    task_context: Any,
    monkeypatch: Any,
) -> None:
    common = {
        "task_id": "stage",
        "slot_name": "wrong",
        "publication_names": "shop",
        "staging_uri": (tmp_path / "staging").as_uri(),
        "namespace": "shop",
    }
    wrong = {
        "Unknown copy_engine 'quick'": {"copy_engine": "quick"},
        "spark_copy_from_bytes": {"copy_engine": "spark", "spark_copy_from_bytes": "many"},
    }
    for message, changed in wrong.items():
        with pytest.raises(AirflowFailException, match=message):
            PgoutputStageOperator(**common, **changed).execute(task_context)
    with pytest.raises(ConnectionNotFound, match="'nobody' was not found"):
        PgoutputStageOperator(**common, copy_engine="spark", spark_conn_id="nobody").execute(
            task_context
        )
    with_token = connection_json(reader_conninfo(postgres_database), iam="true")
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", with_token)
    with pytest.raises(AirflowFailException, match="IAM token"):
        PgoutputStageOperator(**common, copy_engine="spark").execute(task_context)
    assert source.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
