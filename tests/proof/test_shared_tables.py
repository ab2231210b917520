"""Each slice of a shared table is compared with its own source, and repaired."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.apply.erase import ErasureResult, erase
from airflow_provider_pgoutput.apply.maintain import maintain
from airflow_provider_pgoutput.batch.answers import REPAIR
from airflow_provider_pgoutput.batch.jobs import ErasureJob, MaintenanceJob, TableOptions
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.doctor.findings import PROBLEM
from airflow_provider_pgoutput.doctor.observe import examine_pipeline
from airflow_provider_pgoutput.erasure.claim import claimed
from airflow_provider_pgoutput.erasure.rows import asked_tables, in_lake
from airflow_provider_pgoutput.lake.state import tables_of_slot
from airflow_provider_pgoutput.proof.repair import repair
from airflow_provider_pgoutput.proof.verify import verify
from tests.proof.worlds import World

if TYPE_CHECKING:
    from collections.abc import Callable

_TABLES = """
CREATE SCHEMA tenant_a; CREATE SCHEMA tenant_b;
CREATE TABLE tenant_a.orders (id int PRIMARY KEY, v text);
CREATE TABLE tenant_b.orders (id int PRIMARY KEY, v text, extra int);
CREATE TABLE public.plain (id int PRIMARY KEY, v text);
CREATE PUBLICATION p FOR TABLE tenant_a.orders, tenant_b.orders, public.plain;
INSERT INTO tenant_a.orders SELECT i, 'a' || i FROM generate_series(1, 60) i;
INSERT INTO tenant_b.orders SELECT i, 'b' || i, i FROM generate_series(1, 40) i;
INSERT INTO public.plain SELECT i, 'p' || i FROM generate_series(1, 20) i;
"""
_CHANGES = """
UPDATE tenant_a.orders SET v = 'changed', id = id + 100 WHERE id < 4;
DELETE FROM tenant_b.orders WHERE id > 30; UPDATE tenant_b.orders SET v = v || '!' WHERE id < 9;
"""


def rows(world: World) -> dict[str, int]:
    world.refresh()
    name = f"lake.{world.pipeline.namespace}.orders"
    counted = world.pipeline.spark.sql(f"SELECT tenant, shard, count(*) FROM {name} GROUP BY ALL")
    return {f"{tenant} {shard}": count for tenant, shard, count in counted.collect()}


def erase_row(world: World, table: str, number: int) -> ErasureResult:
    """Erase one row of a table of the source out of the lake."""
    pipeline = world.pipeline
    checkpoint = pipeline.checkpoint()
    assert checkpoint is not None
    asked = asked_tables({table: [{"id": number}]}, checkpoint, None)
    catalog = load_catalog("lake", **pipeline.catalog_properties)
    tables = in_lake(asked, tables_of_slot(catalog, pipeline.namespace, pipeline.slot_name))
    with claimed(StagingArea(pipeline.staging.as_uri()), pipeline.slot_name) as claim:
        job = ErasureJob(
            staging_uri=pipeline.staging.as_uri(),
            catalog_name="lake",
            namespace=pipeline.namespace,
            slot_name=pipeline.slot_name,
            tables=tables,
            claim=claim.token,
        )
        return erase(pipeline.spark, job)


def problems(world: World) -> list[str]:
    """What the doctor says of the pipeline's tables."""
    pipeline = world.pipeline
    catalog = load_catalog("lake", **pipeline.catalog_properties)
    _, findings = examine_pipeline(
        pipeline.reader,
        pipeline.slot_name,
        catalog,
        pipeline.namespace,
        StagingArea(pipeline.staging.as_uri()),
    )
    return [str(each) for each in findings if each.severity == PROBLEM]


def differing(world: World) -> list[str]:
    return [str(each) for each in world.verify().tables if not each.is_equal]


@pytest.mark.parametrize(
    "mode", [pytest.param("upsert", marks=pytest.mark.slow), "history", "change_log"]
)
def test_each_slice_is_proven_alone(new_world: Callable[..., World], mode: str) -> None:
    def options(shard: str) -> dict[str, Any]:
        return {
            "mode": mode,
            "shared_names": {r"tenant_(?P<tenant>.+)\.(.+)": "{2}"},
            "table_options": {
                f"tenant_{tenant}.orders": TableOptions(constant_columns={"shard": shard})
                for tenant in "ab"
            }
            | {"public.plain": TableOptions(target=f"plain_{shard}")},
        }

    one, two = (new_world(("p",), **options(shard)) for shard in ("eu", "us"))
    two = World(
        dataclasses.replace(two.pipeline, namespace=one.pipeline.namespace), two.publications
    )
    worlds = (one, two)
    for world in worlds:
        world.sql(_TABLES)
        world.run()
    for world in worlds:
        world.sql(_CHANGES)
        world.run()
        assert differing(world) == []
    one.sql("TRUNCATE tenant_a.orders; INSERT INTO tenant_a.orders VALUES (1, 'anew')")
    one.run()
    assert [differing(world) for world in worlds] == [[], []]
    # The newest batch of one slice is older than that of another.
    assert [problems(world) for world in worlds] == [[], []]
    if mode == "upsert":
        assert rows(one) == {"a eu": 1, "b eu": 30, "a us": 60, "b us": 30}
    for world in worlds:
        world.sql("DELETE FROM tenant_b.orders WHERE id = 2")
        world.run()
    before = rows(one)
    result = erase_row(one, "tenant_b.orders", 2)
    after = rows(one)
    assert after == {
        **before,
        "b eu": before["b eu"] - result.tables[f"{one.pipeline.namespace}.orders"]["rows_erased"],
    }
    assert (after["b eu"] < before["b eu"]) == (mode != "upsert")
    if mode == "change_log":
        return
    now = " AND _pgoutput_is_current" if mode == "history" else ""
    two.damage(
        f"UPDATE {{}}.orders SET v = 'damaged' WHERE id = 5 AND tenant = 'b' AND shard = 'us'{now}"
    )
    assert differing(one) == []
    request = two.request(on_difference=REPAIR)
    proof = verify(request, two.run)
    found = {each.table: each.differences for each in proof.tables if each.differences is not None}
    assert [*found] == ["tenant_b.orders"]
    second = repair(request, proof, run=two.run, wait=two.run)
    assert second is not None
    maintain(
        two.pipeline.spark,
        MaintenanceJob(
            staging_uri=two.pipeline.staging.as_uri(),
            catalog_name="lake",
            namespace=two.pipeline.namespace,
            slot_name=two.pipeline.slot_name,
            snapshot_retention_seconds=0,
        ),
    )
    for world in worlds:
        world.sql("UPDATE tenant_b.orders SET v = v || '?' WHERE id = 1")
        world.run()
        assert differing(world) == []


@pytest.mark.slow
def test_an_erasure_leaves_the_notes_of_another_slot(new_world: Callable[..., World]) -> None:
    """Both sources have a table of this name with these keys. A row of an earlier version has no slot."""

    def options(shard: str) -> dict[str, Any]:
        return {
            "shared_names": {r"tenant_(?P<tenant>.+)\.(.+)": "{2}"},
            "table_options": {"tenant_a.orders": TableOptions(constant_columns={"shard": shard})},
        }

    one, two = (new_world(("p",), **options(shard)) for shard in ("eu", "us"))
    two = World(
        dataclasses.replace(two.pipeline, namespace=one.pipeline.namespace), two.publications
    )
    names = {world.pipeline.slot_name: shard for world, shard in ((one, "eu"), (two, "us"))}
    notes = f"lake.{one.pipeline.namespace}.pgoutput_rejected_values"

    def noted() -> list[tuple[str | None, str]]:
        one.refresh()
        rows = one.pipeline.spark.sql(f"SELECT slot_name, key FROM {notes}").collect()
        return sorted((names.get(slot, "older"), key) for slot, key in rows)

    for world in (one, two):
        world.sql(
            "CREATE SCHEMA tenant_a; CREATE TABLE tenant_a.orders (id int PRIMARY KEY, tags text[]);"
            "CREATE PUBLICATION p FOR TABLE tenant_a.orders;"
            # Two dimensions do not fit a list.
            "INSERT INTO tenant_a.orders VALUES (1, '{{a,b}}'), (2, '{{a,b}}')"
        )
        world.run()
    one.damage("ALTER TABLE {}.pgoutput_rejected_values DROP COLUMN slot_name")
    erase_row(one, "tenant_a.orders", 2)
    for world in (one, two):
        world.sql("INSERT INTO tenant_a.orders VALUES (3, '{{a,b}}'), (4, '{{a,b}}')")
        world.run()
    older = [("older", '{"id": "1"}')] * 2
    three, four = '{"id": "3"}', '{"id": "4"}'
    assert noted() == [("eu", three), ("eu", four), *older, ("us", three), ("us", four)]
    erase_row(one, "tenant_a.orders", 3)
    assert noted() == [("eu", four), *older, ("us", three), ("us", four)]
    erase_row(one, "tenant_a.orders", 1)
    assert noted() == [("eu", four), ("us", three), ("us", four)]
