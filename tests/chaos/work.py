"""What the tasks of a pipeline do, as the operators do it, without Airflow."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from airflow_provider_pgoutput.apply.iceberg.sql import TableName
from airflow_provider_pgoutput.apply.iceberg.views import View
from airflow_provider_pgoutput.apply.maintain import maintain as maintain_tables
from airflow_provider_pgoutput.apply.pipeline import apply_batch
from airflow_provider_pgoutput.apply.replay import replay
from airflow_provider_pgoutput.batch.answers import DIFFERENCE
from airflow_provider_pgoutput.batch.jobs import (
    ApplyJob,
    MaintenanceJob,
    ReplayJob,
    WriteJob,
    job_from_json,
)
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.schema.policy import SchemaPolicy
from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.lake.checkpoint import read_checkpoint
from airflow_provider_pgoutput.lake.quarantine import incomplete_tables
from tests.conformance.pipeline import lake_comparison

CATALOG = "lake"


def stage(body: dict[str, Any]) -> dict[str, Any]:
    """Stage a batch; the names of its tables, and how many changes it has."""
    options = dict(body["options"])
    stream = {name: options.pop(name) for name in body["stream"]}
    policy = {name: options.pop(name) for name in body["policy"]}
    if "message_prefixes" in stream:
        stream["message_prefixes"] = tuple(stream["message_prefixes"])
    if "mask_secret" in options:
        options["mask_secret"] = options["mask_secret"].encode()
    if options.get("on_slot_lost") == DIFFERENCE:
        options["lake_comparison"] = lake_comparison(
            options, body["catalog_properties"], body["namespace"]
        )
    manifest, uri, *_ = stage_batch(
        CaptureRequest(
            checkpoint=_checkpoint(body),
            options=StreamOptions(**stream),
            schema_policy=SchemaPolicy(**policy),
            **options,
        )
    )
    return {
        "uri": uri,
        "start": str(manifest.start_lsn),
        "end": str(manifest.end_lsn),
        "changes": manifest.changes,
        "copied": {
            each.name: int(Lsn.parse(each.copy_lsn))
            for each in manifest.tables
            if each.copy_lsn is not None
        },
        "tables": sorted(each.name for each in manifest.tables),
    }


def apply(body: dict[str, Any]) -> dict[str, Any]:
    """Apply a batch in the JVM that the environment names."""
    job = job_from_json(body["job"])
    assert isinstance(job, ApplyJob)
    apply_batch(_session(), job)
    return _set_aside(body)


def bring_back(body: dict[str, Any]) -> dict[str, Any]:
    """Apply to the tables that are set aside what they lack, as the operator does."""
    job = job_from_json(body["job"])
    assert isinstance(job, ApplyJob)
    checkpoint = _checkpoint(body)
    waiting = [each for each in checkpoint.set_aside.values() if not each.needs_copy]
    if not waiting:
        return _set_aside(body)
    from_lsn = min(each.replay_lsn for each in waiting)
    area = StagingArea(job.staging_uri)
    batches = batches_between(
        area, body["slot_name"], from_lsn, checkpoint.end_lsn, checkpoint.system_identifier
    )
    shared = {each.name: getattr(job, each.name) for each in dataclasses.fields(WriteJob)}
    names = tuple(each.table_name for each in waiting)
    uris = tuple(each.manifest_uri for each in batches)
    replay(
        _session(),
        ReplayJob(**shared, manifest_uris=uris, tables=names, in_place=True, catch_up=True),
    )
    return _set_aside(body)


def apply_without_spark(body: dict[str, Any]) -> dict[str, Any]:
    """Move the checkpoint over a batch that changes no table, as the operator does; whether it could."""
    from airflow_provider_pgoutput.lake.checkpoint_rows import record_empty_batch
    from airflow_provider_pgoutput.tasks.received_batch import moves_checkpoint_only

    job, checkpoint = job_from_json(body["job"]), _checkpoint(body)
    assert isinstance(job, ApplyJob)
    area = StagingArea(job.staging_uri)
    path = job.manifest_uri.removeprefix(f"{area.staging_uri.rstrip('/')}/")
    manifest = Manifest.from_json(area.read(path))
    if checkpoint is None or not moves_checkpoint_only(manifest, checkpoint):
        return {"done": False}
    record_empty_batch(CATALOG, body["catalog_properties"], job, manifest)
    return {"done": True}


def delete_row(body: dict[str, Any]) -> dict[str, Any]:
    """Delete a row of a table of the lake, as somebody may with Spark; whether there was one."""
    session, target = _session(), body["target"]
    frame = session.table(target)
    name = "`" + frame.columns[0].replace("`", "``") + "`"
    row = frame.selectExpr(f"CAST({name} AS STRING) AS value").where("value IS NOT NULL").first()
    if row is None:
        return {"deleted": False}
    session.sql(
        f"DELETE FROM {target} WHERE CAST({name} AS STRING) = :value", args={"value": row["value"]}
    )
    return {"deleted": True}


def read_view(body: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of a view to a Parquet file, as a reader sees them; whether there is a view."""
    session = _session().newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    name = TableName(CATALOG, body["namespace"], body["view"])
    if View.load(session, name) is None:
        return {"exists": False}
    parquet.write_table(session.table(name.sql).toArrow(), body["file"])
    return {"exists": True}


def maintain(body: dict[str, Any]) -> dict[str, Any]:
    """Compact the tables and expire what is old, as the maintenance DAG does."""
    job = job_from_json(body["job"])
    assert isinstance(job, MaintenanceJob)
    maintain_tables(_session(), job)
    return {}


def advance(body: dict[str, Any]) -> dict[str, Any]:
    """Move the slot to the checkpoint."""
    checkpoint = _checkpoint(body)
    assert checkpoint is not None, "nothing was applied yet"
    advance_slot(body["conninfo"], body["slot_name"], checkpoint.end_lsn)
    return {"end": str(checkpoint.end_lsn)}


def prune(body: dict[str, Any]) -> dict[str, Any]:
    """Remove what is applied from the staging area."""
    from datetime import UTC, datetime

    from airflow_provider_pgoutput.capture.staging.retention import prune as prune_area

    checkpoint = _checkpoint(body)
    assert checkpoint is not None, "nothing was applied yet"
    area = StagingArea(body["staging_uri"])
    prune_area(area, body["slot_name"], checkpoint, older_than=datetime.now(UTC))
    return {}


def verify(body: dict[str, Any]) -> dict[str, Any]:
    """Compare lake and source at one LSN, as the operator does; what was found of each table."""
    from airflow_provider_pgoutput.proof import verify as proof
    from airflow_provider_pgoutput.proof.request import ProofRequest

    request = ProofRequest(
        catalog_name=CATALOG,
        mask_secret=body.pop("mask_secret").encode(),
        **body,
    )
    return {
        each.table: {
            "equal": each.is_equal,
            "why not compared": each.not_compared,
            "left out": list(each.columns_left_out),
            "text": str(each),
        }
        for each in proof.verify(request).tables
    }


def _session() -> SparkSession:
    gateway = launch_gateway()
    jvm = gateway.jvm
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    conf = SparkConf(_jvm=jvm, _jconf=java_context.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=java_context, conf=conf))


def _set_aside(body: dict[str, Any]) -> dict[str, Any]:
    """The tables that are set aside, and those of them that only a copy brings back."""
    found = _checkpoint(body).set_aside.values()
    catalog = load_catalog(CATALOG, **body["catalog_properties"])
    incomplete = incomplete_tables(catalog, body["namespace"], body["slot_name"]).values()
    return {
        "incomplete": sorted(each.table_name for each in incomplete),
        "set_aside": sorted(each.table_name for each in found),
        "needs_copy": sorted(each.table_name for each in found if each.needs_copy),
    }


def _checkpoint(body: dict[str, Any]) -> Any:
    return read_checkpoint(
        CATALOG, body["catalog_properties"], body["namespace"], body["slot_name"]
    )
