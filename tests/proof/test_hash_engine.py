"""Files of the lake hashed by Spark: the digests of the worker, for all kinds of tables, or an error."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.errors import SparkFailed
from airflow_provider_pgoutput.proof.digest import Digest, RowHash
from airflow_provider_pgoutput.proof.files.file_hash import FileHash, HashedFiles, HashJob
from airflow_provider_pgoutput.proof.key_ranges import KeyPart, KeyRanges
from airflow_provider_pgoutput.proof.ranges import Ranges
from airflow_provider_pgoutput.proof.share import HashPart, Turn
from tests.conformance.pipeline import CATALOG
from tests.proof.session_engine import SessionEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.proof.report import TableProof
    from tests.proof.worlds import World

_TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TYPE point3 AS (x int, "Y" text);
CREATE TABLE numbered (id int PRIMARY KEY, v text, n numeric(10, 2), t timestamptz, m mood, p point3,
    a int[]);
CREATE TABLE named (name text PRIMARY KEY, d date, j jsonb);
CREATE TABLE keyless (a int, b text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE parts (id int, at int, v text, PRIMARY KEY (id, at)) PARTITION BY LIST (at);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE parts_2 PARTITION OF parts DEFAULT;
CREATE TABLE versions (id int PRIMARY KEY, v text);
CREATE TABLE logged (id int PRIMARY KEY, v text);
CREATE TABLE filtered (id int PRIMARY KEY, shown text, hidden text);
CREATE PUBLICATION p FOR TABLE numbered, named, keyless, parts, versions, logged,
    filtered (id, shown) WHERE (id > 3) WITH (publish_via_partition_root);
INSERT INTO numbered SELECT i, 'v' || i, i / 4.0, '2024-01-01Z'::timestamptz + i * interval '1 s', 'sad',
    ROW(i, 'y')::point3, ARRAY[i, NULL] FROM generate_series(1, 300) i;
INSERT INTO numbered VALUES
    (901, NULL, 'NaN', 'infinity', NULL, NULL, '{{1},{2}}'), (-5, '', 0, NULL, 'happy', NULL, NULL);
INSERT INTO named SELECT 'ü' || i, '2024-01-01'::date + i, jsonb_build_object('i', i)
    FROM generate_series(1, 90) i;
INSERT INTO keyless SELECT i % 5, 'twice' FROM generate_series(1, 40) i;
INSERT INTO parts SELECT i, i % 3, 'v' FROM generate_series(1, 60) i;
INSERT INTO versions SELECT i, 'v' FROM generate_series(1, 20) i;
INSERT INTO logged SELECT i, 'v' FROM generate_series(1, 20) i;
INSERT INTO filtered SELECT i, 'v' || i, 'h' FROM generate_series(1, 9) i;
"""
_CHANGES = """
UPDATE numbered SET v = 'changed' WHERE id % 50 = 7;
DELETE FROM numbered WHERE id = 20;
UPDATE named SET d = NULL WHERE name = 'ü7';
DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless);
UPDATE parts SET at = 2 WHERE id = 3;
UPDATE versions SET v = 'changed' WHERE id < 5;
DELETE FROM versions WHERE id = 9;
UPDATE logged SET v = 'changed' WHERE id < 5;
UPDATE filtered SET shown = 'changed' WHERE id = 5;
"""
_DAMAGE = (
    "UPDATE {}.numbered SET n = n + 0.01 WHERE id = 77",
    "UPDATE {}.named SET j = '{{}}' WHERE name = 'ü8'",
    "INSERT INTO {0}.keyless SELECT * FROM {0}.keyless WHERE a = 1",
    "DELETE FROM {}.parts WHERE id = 40",
    "UPDATE {}.versions SET v = 'wrong' WHERE id = 6",
    "DELETE FROM {}.filtered WHERE id = 8",
)


def found_in(world: World, engine: SessionEngine | None, **more: object) -> dict[str, TableProof]:
    found = world.verify(hash_engine=engine, **more).tables
    return {each.table.removeprefix("public."): each for each in found}


def numbers(found: dict[str, TableProof]) -> dict[str, object]:
    return {
        name: (each.differences, each.source and each.source.rows) for name, each in found.items()
    }


@pytest.fixture(scope="module")
def world(new_world: Callable[..., World]) -> World:
    world = new_world(
        ("p",),
        write_mode="merge-on-read",
        table_options={
            "public.versions": TableOptions(mode="history"),
            "public.logged": TableOptions(mode="change_log"),
        },
    )
    world.sql(_TABLES)
    world.run()
    world.sql(_CHANGES)
    world.run()
    return world


@pytest.fixture
def engine(spark: SparkSession) -> SessionEngine:
    return SessionEngine(spark)


def test_parts_and_md5_are_equal(world: World, engine: SessionEngine) -> None:
    by_md5 = found_in(world, engine, hash_function="md5")
    assert all(each.is_equal for each in by_md5.values())
    parts = [found_in(world, engine, share=0.5) for _ in range(2)]
    assert all(each.is_equal for part in parts for each in part.values())
    assert {type(job.what.part) for job in engine.jobs} == {type(None), KeyPart, HashPart}


@pytest.mark.slow
def test_spark_finds_what_the_worker_finds(world: World, engine: SessionEngine) -> None:
    found = found_in(world, engine)
    assert all(each.is_equal for each in found.values()), [*map(str, found.values())]
    # The entries of a change log lead to its rows only together, so the worker reads them.
    targets = {job.target.rpartition(".")[2] for job in engine.jobs}
    assert targets == found.keys() - {"logged"}
    assert any(len(job.files) > 1 for job in engine.jobs)
    assert numbers(found) == numbers(found_in(world, None))
    world.damage(*_DAMAGE)
    damaged = found_in(world, engine, keys_shown=3)
    assert {name for name, each in damaged.items() if each.is_different} == found.keys() - {
        "logged"
    }
    assert numbers(damaged) == numbers(found_in(world, None, keys_shown=3))


def test_rows_that_are_marked_as_deleted_do_not_count(
    new_world: Callable[..., World], engine: SessionEngine
) -> None:
    world = new_world(("s",), soft_delete=True)
    world.delete_softly()
    assert found_in(world, engine)["soft"].is_equal
    assert engine.jobs
    world.damage("UPDATE {}.soft SET _pgoutput_op = 'D' WHERE id = 9")
    different = found_in(world, engine)["soft"].differences
    assert different is not None
    assert different.missing == 1


def test_a_file_that_executors_cannot_read_is_looked_at_by_the_worker(
    world: World, engine: SessionEngine
) -> None:
    catalog = load_catalog(CATALOG, **world.pipeline.catalog_properties)
    table = catalog.load_table((world.pipeline.namespace, "named"))
    path = Path(urlsplit(next(iter(table.scan().plan_files())).file.file_path).path)
    content = path.read_bytes()
    path.unlink()
    found = found_in(world, engine, tables=["public.named"])["named"]
    path.write_bytes(content)
    assert found.is_damaged
    assert f"The file {path.name} of the table is missing" in str(found)


class Forgetful(SessionEngine):
    """Leaves something out of its answer."""

    def __init__(self, spark: SparkSession, forget: Callable[[HashedFiles], HashedFiles]) -> None:
        super().__init__(spark)
        self._forget = forget

    def hashed(self, job: HashJob) -> HashedFiles:
        return self._forget(super().hashed(job))


@pytest.mark.parametrize(
    "forget",
    [
        lambda found: dataclasses.replace(found, files=dict([*found.files.items()][1:])),
        lambda found: dataclasses.replace(found, ranges=Ranges.empty(len(found.ranges.rows))),
    ],
)
def test_an_answer_that_lacks_something_proves_nothing(
    world: World, spark: SparkSession, forget: Callable[[HashedFiles], HashedFiles]
) -> None:
    with pytest.raises(SparkFailed, match="did not hash the files"):
        found_in(world, Forgetful(spark, forget), tables=["public.keyless"])


def test_executors_with_another_pyiceberg_prove_nothing(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SessionEngine(spark)
    hashed = engine.hashed
    monkeypatch.setattr(
        engine, "hashed", lambda job: hashed(dataclasses.replace(job, pyiceberg="0.1"))
    )
    with pytest.raises(SparkFailed, match=r"executors have pyiceberg .*, and the worker 0\.1"):
        found_in(world, engine, tables=["public.keyless"])


def test_small_tables_stay_with_the_worker(world: World, spark: SparkSession) -> None:
    engine = SessionEngine(spark, least_bytes=1 << 30)
    found_in(world, engine, tables=["public.keyless", "public.parts"])
    assert not engine.jobs


_COLUMN = Column("id", 23, -1, "", "int")
_HASH = RowHash.of([_COLUMN, Column("m", 25, -1, "", "string", mask="redact")], {}, 7, is_md5=True)


@pytest.mark.parametrize(
    "what",
    [
        FileHash(("id", "m"), _HASH, "_pgoutput_op", KeyRanges("id", "id", 2, 1, 9, 5, None)),
        FileHash(
            ("id", "m"),
            _HASH,
            hash_part=HashPart(RowHash.of([_COLUMN], {}, 1), ["id"], Turn(2, 3)),
        ),
    ],
)
def test_what_is_hashed_comes_back_from_its_text(what: FileHash) -> None:
    again = FileHash.from_body(json.loads(json.dumps(what.to_body())))
    assert again.to_body() == what.to_body()
    rows = pa.RecordBatch.from_pydict(
        {"id": pa.array([4, 8, 15, 16, 23], pa.int32()), "m": ["x", None, "y", "", "x"]}
    )
    found, wanted = (each.of_rows([rows]) for each in (again, what))
    assert (found.rows == wanted.rows).all()
    assert (found.totals == wanted.totals).all()
    part, wanted_part = again.part, what.part
    assert part is not None
    assert wanted_part is not None
    assert (part.mask(rows) == wanted_part.mask(rows)).all()


def test_digests_of_64_bits_come_back_from_their_text() -> None:
    digest = Digest(3, 2**64 - 1)
    found = HashedFiles({"a": digest}, Ranges.of(digest))
    again = HashedFiles.from_json(found.to_json())
    assert again.files == found.files
    assert again.ranges.digest == digest


def test_executors_get_the_login_of_the_store_and_not_the_catalogs(tmp_path: Path) -> None:
    given = {
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": tmp_path.as_uri(),
        "credential": "of-the-catalog",
        "token": "of-the-catalog",
        "s3.secret-access-key": "of-the-store",
    }
    catalog = load_catalog("any", type="sql", **given)
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", pa.schema([("id", pa.int32())]))
    table.append(pa.table({"id": pa.array([1], pa.int32())}))
    table.append(pa.table({"id": pa.array([2], pa.int32())}))
    first = table.refresh().snapshots()[0]
    job = HashJob.of(table, "n.t", first.snapshot_id, ["a"], FileHash(("id",), _HASH))
    assert job.store == {"s3.secret-access-key": "of-the-store"}
    assert "of-the" not in repr(job)
    again = HashJob.from_json(job.to_json()).table()
    assert again.scan(snapshot_id=first.snapshot_id).to_arrow()["id"].to_pylist() == [1]
