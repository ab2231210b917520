"""Canaries in masked columns: refused values, held rows and reported differences leave them in no byte.

All modes of a table at once. The whole folder of the namespace is searched, the staging area, what Spark and
the tasks log, and what goes to XCom.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.batch.checkpoint import (
    CHECKPOINT_TABLE,
    PROOFS_TABLE,
    QUARANTINE_TABLE,
    REJECTED_TABLE,
)
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.errors import PgoutputError
from airflow_provider_pgoutput.log_rows import VIEW_SUFFIX
from airflow_provider_pgoutput.proof.record import proof_xcom, record_proof
from tests.capture.test_masks import CANARY, DAY, NUMBER, SECRET, hashed, plain_places
from tests.conformance.one_table import Lake
from tests.conformance.pipeline import CATALOG
from tests.every_byte import holders_of
from tests.proof.worlds import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.proof.report import Proof
    from tests.conformance.pipeline import Pipeline

#: The key of the first three is masked, and the rows of the last one are shown by their key.
_TABLES = {"upserted": "email", "versions": "email", "entries": "email", "shown": "id"}
_MASKS = {
    "email": "hash",
    "phone": "truncate(2)",
    "name": "redact",
    "bio": "hash",
    "nick": "drop",
    # No column of the lake has room for these values, so without a mask they would be rejected.
    "born": "hash",
    "amount": "null",
    "tags": "redact",
}
_TABLE = """
CREATE TABLE {0} (id int, email text, phone text, name text, bio text, nick text, born date,
                  amount numeric(12), tags text[], plain date, n int, PRIMARY KEY ({1}));
ALTER TABLE {0} ALTER bio SET STORAGE EXTERNAL;
INSERT INTO {0} SELECT i, '{2}-' || i, '+4{2}', '{2} name', repeat('{2} bio', 900), '{2} nick',
  '{3}', {4}, '{{{{{2},b}}}}', CASE i WHEN 2 THEN 'infinity'::date ELSE '2026-01-02' END, i
  FROM generate_series(1, 9) i;
"""
_CHANGES = """
INSERT INTO {0} SELECT 20, '{1}-20', '{1}', '{1}', '{1}', '{1}',
  'infinity', 'NaN', '{{{{{1},b}}}}', 'infinity', 20;
UPDATE {0} SET phone = '+5{1}', plain = 'infinity' WHERE id = 3;
UPDATE {0} SET email = '{1}-40', id = 40 WHERE id = 4;
DELETE FROM {0} WHERE id = 5;
UPDATE {0} SET bio = '{1} new', tags = '{{{1}}}', amount = -{2}, plain = '-infinity' WHERE id = 6;
"""
_WAYS: dict[str, dict[str, Any]] = {
    "text": {"transport": "sql", "options": StreamOptions(binary=False)},
    "binary": {"transport": "walsender", "options": StreamOptions(binary=True)},
}


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(each, marks=pytest.mark.slow if each == "binary" else pytest.mark.further)
        for each in _WAYS
    ],
)
def test_no_byte_holds_a_masked_value(
    pipeline: Pipeline, way: str, caplog: pytest.LogCaptureFixture, tmp_path_factory: Any
) -> None:
    caplog.set_level("DEBUG")
    spark_log = tmp_path_factory.mktemp("log")
    told: list[str] = []
    with _spark_logs_to(pipeline.spark, spark_log / "spark.log"):
        _run_all(pipeline, way, told)

    folder = Path(unquote(urlparse(Lake(pipeline).table("shown").location()).path)).parent
    made = {each.name for each in folder.iterdir()}
    own = {CHECKPOINT_TABLE, PROOFS_TABLE, QUARANTINE_TABLE, REJECTED_TABLE}
    assert made >= {*_TABLES, *own}
    assert any(VIEW_SUFFIX in each for each in made)
    # The search finds a hash wherever the key is: in rows, in bounds of columns, in values that had no room.
    of_hash = holders_of(folder, hashed(f"{CANARY}-20"))
    assert {each.split("/")[1] for each in of_hash} >= {*_TABLES, REJECTED_TABLE}
    assert {each.rpartition(".")[2] for each in of_hash} >= {"parquet"}
    assert plain_places(folder) == []
    assert plain_places(pipeline.staging) == []
    assert "upserted" in (spark_log / "spark.log").read_text()
    assert plain_places(spark_log) == []
    assert len(told) == 6
    for text in (caplog.text, *told):
        assert not [each for each in (CANARY, NUMBER, DAY, SECRET.decode()) if each in text]


def _run_all(pipeline: Pipeline, way: str, told: list[str]) -> None:
    """Copy, changes, damage of the lake, held rows, a verification, a run that fails.

    :param told: gets what goes to XCom, and the messages of errors.
    """
    lake, world = Lake(pipeline), World(pipeline, ("p",))
    for name, key in _TABLES.items():
        world.sql(_TABLE.format(name, key, CANARY, DAY, NUMBER))
    lake.execute(f"CREATE PUBLICATION p FOR TABLE {', '.join(_TABLES)}")
    pipeline.capture_options.update(
        columns={f"public.{t}.{c}": mask for t in _TABLES for c, mask in _MASKS.items()},
        mask_secret=SECRET,
        **_WAYS[way],
    )
    pipeline.plan_options.update(
        current_views=True,
        on_row_refused="quarantine",
        table_options={
            "public.versions": TableOptions(mode="history"),
            "public.entries": TableOptions(mode="change_log"),
        },
    )
    told.append(json.dumps(batch_xcom(lake.run(), "uri")))
    for name in _TABLES:
        world.sql(_CHANGES.format(name, CANARY, NUMBER))
    told.append(json.dumps(batch_xcom(lake.run(), "uri")))
    rejected = pipeline.spark.table(f"{CATALOG}.{pipeline.namespace}.{REJECTED_TABLE}").collect()
    # In the copy one value of each table has no room in a column, in the changes three. No masked one.
    assert len(rejected) == 4 * len(_TABLES)
    assert {each.column_name for each in rejected} == {"plain"}
    keys = {each.key for each in rejected if each.table_name == "upserted"}
    wanted = {hashed(f"{CANARY}-{number}") for number in (2, 20, 3, 6)}
    assert {json.loads(each)["email"] for each in keys} == wanted

    # These rows are lost in the lake. The server does not send ``bio``, so they are held.
    world.damage("DELETE FROM {}.shown WHERE id = 7", "DELETE FROM {}.upserted WHERE n = 7")
    for name in ("shown", "upserted"):
        world.sql(f"UPDATE {name} SET phone = '+6{CANARY}' WHERE id IN (1, 7)")
    told.append(json.dumps(batch_xcom(lake.run(), "uri")))
    quarantine = f"{CATALOG}.{pipeline.namespace}.{QUARANTINE_TABLE}"
    assert pipeline.spark.table(quarantine).count() == 2

    _verify(world, told)
    # Where values without room are errors, the error names no value either.
    world.sql(f"UPDATE upserted SET plain = 'infinity', name = '{CANARY}' WHERE id = 8")
    with pytest.raises(PgoutputError) as refused:
        pipeline.stage(value_policy={"default": "fail"})
    told.append(str(refused.value))


def _verify(world: World, told: list[str]) -> None:
    """Damage masked values in the lake; the report and the record say which rows differ."""
    pipeline = world.pipeline
    world.damage(
        "UPDATE {}.shown SET name = 'other' WHERE id = 1",
        "UPDATE {}.shown SET email = 'other', born = NULL WHERE id = 2",
        "DELETE FROM {}.shown WHERE id = 3",
        "UPDATE {}.upserted SET email = 'other' WHERE n = 1",
        "UPDATE {}.versions SET phone = 'x' WHERE n = 1 AND _pgoutput_is_current",
    )
    proof: Proof = world.verify(mask_secret=SECRET, on_difference="succeed", keys_shown=9)
    different = {each.target: each.differences for each in proof.tables if each.is_different}
    shown = different[f"{pipeline.namespace}.shown"]
    assert shown is not None
    assert {str(number) for number in (1, 2, 3)} <= set("".join(map(str, shown.keys)))
    record_proof(load_catalog(CATALOG, **pipeline.catalog_properties), pipeline.namespace, proof)
    told += [str(proof), json.dumps(proof_xcom(proof), default=str)]


@contextmanager
def _spark_logs_to(spark: SparkSession, path: Path) -> Iterator[None]:
    """Let Spark, Iceberg and Hadoop write all of their level INFO to a file."""
    jvm: Any = spark._jvm
    core = jvm.org.apache.logging.log4j.core
    appender = (
        core.appender.FileAppender.newBuilder()
        .withFileName(str(path))
        .setLayout(core.layout.PatternLayout.createDefaultLayout())
        .setName("canaries")
        .build()
    )
    appender.start()
    root = jvm.org.apache.logging.log4j.LogManager.getRootLogger()
    root.addAppender(appender)
    spark.sparkContext.setLogLevel("INFO")
    try:
        yield
    finally:
        spark.sparkContext.setLogLevel("ERROR")
        root.removeAppender(appender)
        appender.stop()
