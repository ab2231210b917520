"""Tables of sources that share one table of the lake: how they are made, staged, applied and compared."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.batch.jobs import TableOptions
from airflow_provider_pgoutput.errors import CommitStateUnknown, PublishRefused
from tests.apply.build import Relation, Source, column, numbered
from tests.apply.conftest import sort, source_rows
from tests.apply.test_crashes import Killed

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.jobs import ApplyJob

COLUMNS = numbered((column("id"), column("name", "string"), column("note", "string")))


def stage(sources: Sequence[Source], how: dict[str, Any]) -> list[ApplyJob]:
    """Stage a batch of each source, with options for all tables of all sources."""
    how = {**how}
    of_table = {"partitioned_by": how.pop("partitioned_by", ())}
    namespace = sources[0].slot_name
    return [
        replace(
            source.stage(),
            namespace=namespace,
            table_options={
                relation.full_name: TableOptions(
                    target="people",
                    shared=True,
                    constant_columns={"region": region_of(relation)},
                    **of_table,
                )
                for relation in source.relations.values()
            },
            **how,
        )
        for source in sources
    ]


def run(spark: SparkSession, sources: Sequence[Source], how: dict[str, Any]) -> list[ApplyJob]:
    """Stage a batch of each source, and apply it."""
    jobs = stage(sources, how)
    for job in jobs:
        apply_batch(spark, job)
    return jobs


def drive_at_once(
    spark: SparkSession, batches: Iterable[Sequence[ApplyJob]], reach: Callable[[str], None]
) -> None:
    """Apply the batches of several pipelines at the same time, each in a thread of its own.

    :param reach: is called at each crash point. If it raises ``Killed``, that apply is run again.
    """
    failed: list[BaseException] = []

    def drive(jobs: Sequence[ApplyJob]) -> None:
        try:
            for job in jobs:
                while True:
                    try:
                        apply_batch(spark, job)
                        break
                    except (Killed, PublishRefused, CommitStateUnknown):
                        continue
        except BaseException as error:
            failed.append(error)

    drivers = [threading.Thread(target=drive, args=(jobs,)) for jobs in batches]
    with crash_points.watched(reach):
        for driver in drivers:
            driver.start()
        for driver in drivers:
            driver.join()
    assert not failed, failed[0]


def region_of(relation: Relation) -> str:
    return f"{relation.source.slot_name} {relation.schema_name}"


def tables(source: Source, *schemas: str, identity: str = "d") -> list[Relation]:
    return [
        source.table("people", COLUMNS, ("id",), identity, toast=("note",), schema_name=schema)
        for schema in schemas
    ]


def check(spark: SparkSession, relations: Sequence[Relation], how: dict[str, Any]) -> None:
    namespace = relations[0].source.slot_name
    name = TableName("lake", namespace, "people")
    spark.catalog.refreshTable(name.sql)
    frame = spark.table(name.sql)
    if how.get("mode") == "history":
        frame = frame.where("_pgoutput_is_current")
    if how.get("soft_delete"):
        frame = frame.where("_pgoutput_op <> 'D'")
    found = sort(tuple(row) for row in frame.select("id", "name", "note", "region").collect())
    wanted = [(*row, region_of(each)) for each in relations for row in source_rows(each)]
    assert found == sort(wanted)


def change(relation: Relation, number: random.Random) -> None:
    """One random change. The keys of all tables are the same few numbers."""
    ids = [row["id"] for row in relation.rows]
    free = [i for i in range(12) if i not in ids]
    what = number.choice(["insert", "insert", "update", "touch", "move", "delete", "truncate"])
    if what == "insert" and free:
        relation.insert(number.choice(free), f"n{number.random()}", f"note {number.random()}")
    elif what == "truncate" and number.random() < 0.3:
        relation.truncate()
    elif ids and what in {"update", "touch", "move", "delete"}:
        chosen = number.choice(ids)
        if what == "delete":
            relation.delete(lambda row: row["id"] == chosen)
        elif what == "move" and free:
            relation.update(lambda row: row["id"] == chosen, {"id": number.choice(free)})
        else:
            changed = {"name": f"u{number.random()}"}
            if what == "update":
                changed["note"] = f"other {number.random()}"
            relation.update(lambda row: row["id"] == chosen, changed)
