"""Several features at once: masks, a filter, renamed and constant columns, and two tenants in one table.

The same program runs in each mode twice: by SQL in text form, and by a walsender in binary form. After each
batch the lake must hold the rows that a SELECT at the source returns. The filter is the WHERE of the SELECT,
and Python masks the values. Of a change log the view of the current rows is compared.
Each feature by itself has more cases in ``test_masked_columns.py`` and others.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import psycopg
import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.log_rows import VIEW_SUFFIX
from airflow_provider_pgoutput.proof.verify import verify
from tests.capture.test_masks import CANARY, SECRET, hashed, plain_places
from tests.conformance.pipeline import CATALOG
from tests.proof.worlds import World

if TYPE_CHECKING:
    from tests.conformance.pipeline import Pipeline

_TENANTS = ("a", "b")
_PEOPLE = """
CREATE SCHEMA tenant_{0};
CREATE TABLE tenant_{0}.people (id int, email text, phone text, bio text, note text, nick text,
                                score numeric(10, 2), n int, PRIMARY KEY (id, email));
ALTER TABLE tenant_{0}.people ALTER bio SET STORAGE EXTERNAL, ALTER note SET STORAGE EXTERNAL;
INSERT INTO tenant_{0}.people
SELECT i, '{1}-' || i % 7, '+4{1}', repeat('{1}', 300), repeat('note ' || i, 700), '{1}', i / 4.0, i
  FROM generate_series(1, 40) i;
"""
#: Each text is a batch. ``{0}`` is the value that no file may have. A row passes while its id is below 1000.
_PROGRAM = (
    """
    UPDATE tenant_a.people SET n = n + 1 WHERE id < 9;
    UPDATE tenant_a.people SET id = id + 1000 WHERE id < 4;
    UPDATE tenant_a.people SET email = '{0}-new' WHERE id BETWEEN 5 AND 8;
    DELETE FROM tenant_a.people WHERE id IN (10, 1001);
    INSERT INTO tenant_b.people VALUES (2000, '{0}', NULL, '{0}', NULL, NULL, NULL, NULL),
                                       (100, '{0}', NULL, '{0}', 'short', '{0}', -1, NULL);
    UPDATE tenant_b.people SET id = 200, score = 9 WHERE id = 2000;
    UPDATE tenant_b.people SET bio = NULL WHERE id = 3;
    """,
    """
    UPDATE tenant_b.people SET id = id + 1000 WHERE id > 20;
    UPDATE tenant_b.people SET phone = '{0}' WHERE id > 1020;
    UPDATE tenant_b.people SET id = id - 1000, bio = '{0}' || bio, note = 'in'
     WHERE id > 1030;
    ALTER TABLE tenant_a.people ADD city text DEFAULT 'here';
    INSERT INTO tenant_a.people
    SELECT i, '{0}', '{0}', '{0}', 'x', NULL, i, i FROM generate_series(300, 320) i;
    UPDATE tenant_a.people SET city = 'there' WHERE id > 310;
    """,
    """
    UPDATE tenant_a.people SET note = 'before' WHERE id > 300;
    TRUNCATE tenant_a.people;
    INSERT INTO tenant_a.people VALUES (1, '{0}', '{0}', '{0}', 'again', '{0}', 1, 1);
    UPDATE tenant_b.people SET n = -n;
    """,
    "UPDATE tenant_a.people SET id = 2; UPDATE tenant_a.people SET email = '{0}-2';",
)
_COLUMNS = ("id", "email", "phone", "bio", "note", "score", "n")
_RENAMED = {"id": "number", "note": "text"}
_MASKS = {"email": "hash", "bio": "hash", "phone": "truncate(2)", "nick": "drop"}
_WAYS: dict[str, dict[str, Any]] = {
    "sql": {"transport": "sql", "options": StreamOptions(binary=False)},
    "walsender": {"transport": "walsender", "options": StreamOptions(binary=True)},
}
_MODES: dict[str, dict[str, Any]] = {
    "upsert": {},
    "version_3": {"format_version": 3},
    "copy_on_write": {"write_mode": "copy-on-write"},
    "soft_delete": {"soft_delete": True},
    "history": {"mode": "history"},
    "change_log": {"mode": "change_log", "current_views": True},
}
#: Which rows of the lake are current; without an entry: all.
_NOW = {"soft_delete": "_pgoutput_op <> 'D'", "history": "_pgoutput_is_current"}
#: These run in ``make slow``, the others in ``make further``.
_IN_CI = {("upsert", "sql"), ("history", "walsender")}

Rows = Counter[tuple[Any, ...]]


def _wanted(pipeline: Pipeline) -> Rows:
    """What the lake must hold now."""
    found: Rows = Counter()
    with psycopg.connect(pipeline.conninfo) as session:
        for tenant in _TENANTS:
            query = f"SELECT {', '.join(_COLUMNS)} FROM tenant_{tenant}.people WHERE id < 1000"
            for number, email, phone, bio, *others in session.execute(query.encode()):
                masked = (hashed(email), phone and phone[:2], bio and hashed(bio))
                found[number, *masked, *others, tenant, "eu"] += 1
    return found


def _held(pipeline: Pipeline, mode: str) -> Rows:
    view = VIEW_SUFFIX if mode == "change_log" else ""
    pipeline.spark.catalog.refreshTable(f"{CATALOG}.{pipeline.namespace}.people")
    name = f"{CATALOG}.{pipeline.namespace}.people{view}"
    names = [_RENAMED.get(each, each) for each in _COLUMNS]
    frame = pipeline.spark.table(name).where(_NOW.get(mode, "true"))
    return Counter(tuple(row) for row in frame.select(*names, "tenant", "shard").collect())


def _compare(pipeline: Pipeline, mode: str) -> None:
    found, wanted = _held(pipeline, mode), _wanted(pipeline)
    assert found == wanted, (found - wanted, wanted - found)


def _prove(pipeline: Pipeline) -> None:
    world = World(pipeline, ("p",))
    proof = verify(world.request(mask_secret=SECRET), world.run)
    assert [str(each) for each in proof.tables if not each.is_equal] == []
    assert {each.table for each in proof.tables} == {f"tenant_{each}.people" for each in _TENANTS}
    catalog = load_catalog(CATALOG, **pipeline.catalog_properties)
    table = catalog.load_table((pipeline.namespace, "people"))
    assert "nick" not in table.schema().column_names
    assert plain_places(Path(unquote(urlparse(table.location()).path))) == []
    assert plain_places(pipeline.staging) == []


@pytest.mark.parametrize(
    ("mode", "way"),
    [
        pytest.param(
            mode, way, marks=pytest.mark.slow if (mode, way) in _IN_CI else pytest.mark.further
        )
        for mode in _MODES
        for way in _WAYS
    ],
)
def test_data_on_the_way(pipeline: Pipeline, mode: str, way: str) -> None:
    with psycopg.connect(pipeline.conninfo, autocommit=True) as session:
        for tenant in _TENANTS:
            session.execute(_PEOPLE.format(tenant, CANARY).encode())
        session.execute("CREATE PUBLICATION p FOR TABLE tenant_a.people, tenant_b.people")
    tables = [f"tenant_{each}.people" for each in _TENANTS]
    pipeline.capture_options.update(
        columns={f"{table}.{column}": mask for table in tables for column, mask in _MASKS.items()},
        mask_secret=SECRET,
        filters=dict.fromkeys(tables, "id < 1000"),
        **_WAYS[way],
    )
    pipeline.plan_options.update(
        shared_names={r"tenant_(?P<tenant>.+)\.(.+)": "{2}"},
        table_options={
            table: TableOptions(renamed_columns=_RENAMED, constant_columns={"shard": "eu"})
            for table in tables
        },
        **_MODES[mode],
    )
    pipeline.apply(pipeline.stage())
    _compare(pipeline, mode)
    for batch in _PROGRAM:
        with psycopg.connect(pipeline.conninfo) as session:
            session.execute(batch.format(CANARY).encode())
        pipeline.apply(pipeline.stage())
        _compare(pipeline, mode)
    _prove(pipeline)
    # A replay in place cannot pass the batch that added ``city``, so it begins with the next one.
    replay(pipeline.spark, pipeline.replay_job(3))
    _compare(pipeline, mode)
    pipeline.apply(pipeline.stage(copy_tables=tuple(tables)))
    _compare(pipeline, mode)
    _prove(pipeline)
