"""A manifest survives its JSON, and one that was altered, damaged or too new is refused."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_pgoutput.apply.iceberg.sql import partition_transform
from airflow_provider_pgoutput.batch.earlier_systems import (
    EarlierSystem,
    EarlierTable,
    EarlierTimeline,
)
from airflow_provider_pgoutput.batch.jobs import ApplyJob, TableOptions, job_from_json
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import (
    Manifest,
    PreparedTransaction,
    SkippedTransaction,
    Table,
)
from airflow_provider_pgoutput.batch.shape import SchemaChange, Storage
from airflow_provider_pgoutput.batch.table_version import Column, Counts, StagedFile, TableVersion
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError

#: What a job must say.
WHERE: dict[str, Any] = {
    "manifest_uri": "m",
    "staging_uri": "s",
    "catalog_name": "lake",
    "namespace": "ns",
}


def make_manifest(**changes: Any) -> Manifest:
    file = StagedFile(
        kind="changes",
        path="cdc/data/0000000000000010-a/16385-v1/changes-00000.parquet",
        rows=3,
        size_bytes=1000,
        sha256="ab" * 32,
        columns=("commit_lsn", "seq", "n0"),
        min_commit_lsn="0/10",
        max_commit_lsn="0/18",
    )
    version = TableVersion(
        version=1,
        schema_name='Sch."é',
        table_name="T'; DROP TABLE x;--",
        replica_identity="d",
        columns=(Column("日本", 23, -1, "integer", "int", identity=True),),
        key_columns=("日本",),
        files=(file,),
    )
    counts = Counts(inserts=2, deletes=1, rejected=1)
    table = Table(16385, version.schema_name, version.table_name, (version,), counts)
    values: dict[str, Any] = {
        "slot_name": "cdc",
        "system_identifier": "7000000000000000001",
        "timeline": 1,
        "database": "app",
        "publication_names": ("p", "a,b"),
        "start_lsn": Lsn(0x10),
        "end_lsn": Lsn(0x20),
        "tables": (table,),
        "transactions": 2,
    }
    return Manifest(**{**values, **changes})


def test_a_manifest_survives_its_json() -> None:
    manifest = make_manifest()
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_it_says_what_a_table_had_on_the_system_before() -> None:
    earlier = EarlierTable(16384, ((1, 1), (3, 2)))
    found = make_manifest()
    tables = tuple(dataclasses.replace(e, earlier=earlier) for e in found.tables)
    made = dataclasses.replace(found, tables=tables)
    assert Manifest.from_json(made.to_json()) == made
    assert made.batch_id != found.batch_id


def test_it_says_which_system_it_adopts() -> None:
    earlier = (EarlierSystem("7", "0/8"), EarlierSystem("8", "0/10"))
    timelines = (EarlierTimeline(1, "0/4"),)
    made = make_manifest(adopted_from=earlier, earlier_timelines=timelines)
    manifest = Manifest.from_json(made.to_json())
    assert (manifest.adopted_from, manifest.earlier_timelines) == (earlier, timelines)
    assert manifest.batch_id != make_manifest().batch_id
    assert manifest.adopts
    # A later batch of the same system.
    assert not make_manifest(adopted_from=earlier, start_lsn=Lsn(0x11)).adopts
    assert not make_manifest().adopts


@pytest.mark.parametrize("change", [{"end_lsn": Lsn(0x21)}, {"slot_name": "b"}, {"tables": ()}])
def test_the_batch_id_names_position_and_content(change: dict[str, Any]) -> None:
    told = make_manifest(transactions=9, complete_until="2026-01-02T03:04:06+00:00")
    assert make_manifest().batch_id == told.batch_id
    assert make_manifest().batch_id != make_manifest(**change).batch_id


def test_a_batch_id_stays_what_it_was() -> None:
    """The lake and the names of old manifests have it."""
    manifest = make_manifest()
    later = dataclasses.replace(manifest.tables[0], until_lsn="0/18", storage=Storage(1, ((1, 2),)))
    full = make_manifest(
        tables=(later, manifest.tables[0]),
        loaded_lsn="0/10",
        skipped=(SkippedTransaction("0/11", 2),),
        prepared=(PreparedTransaction("g", 7, "0/12", "0/13", 5, "p", 1, 2, "ef" * 32),),
    )
    assert [each.batch_id for each in (manifest, make_manifest(tables=()), full)] == [
        "8dda8a78c68d063b6175457da70b066218e54bc17ffe15c6568f87192c4712b2",
        "4212943a33a2ef21bc897208dce188634b2480e6eecd2d076b717e4876ebb11e",
        "9b71fb5c4b385178a499fcf87fb1b320e764239176299d3f5245c3768c45c3c9",
    ]


def test_each_table_has_a_line_of_its_own_in_the_file() -> None:
    manifest = make_manifest()
    first = manifest.tables[0]
    second = dataclasses.replace(first, relation_oid=16386)
    lines = make_manifest(tables=(first, second)).to_json().splitlines()
    found = [line for line in lines if line.startswith('{"relation_oid": ')]
    assert [json.loads(line.rstrip(","))["relation_oid"] for line in found] == [16385, 16386]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"format_version": 1}',
        pytest.param("[" * 10**5, id="nested too deep"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(BatchRefused):
        Manifest.from_json(text)


def test_a_manifest_of_a_newer_format_is_refused() -> None:
    body = json.loads(make_manifest().to_json()) | {"format_version": 2}
    with pytest.raises(BatchRefused, match="reads format 1"):
        Manifest.from_json(json.dumps(body))


@pytest.mark.parametrize("field", ["start_lsn", "tables", "slot_name", "rejected_files"])
def test_a_manifest_without_a_field_is_refused(field: str) -> None:
    body = json.loads(make_manifest().to_json())
    del body[field]
    with pytest.raises(BatchRefused, match="lacks a field"):
        Manifest.from_json(json.dumps(body))


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table["versions"][0]["files"][0].update(sha256="cd" * 32),
        lambda table: table["versions"][0]["columns"][0].update(lake_type="long"),
        lambda table: table["counts"].update(deletes=0),
        lambda table: table.update(copy_lsn="0/10"),
    ],
)
def test_an_altered_manifest_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    body = json.loads(make_manifest().to_json())
    change(body["tables"][0])
    with pytest.raises(BatchRefused, match="was altered"):
        Manifest.from_json(json.dumps(body))


#: Where a newer version may add a field: each kind of part, by its way from the top.
PARTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "manifest": lambda body: body,
    "table": lambda body: body["tables"][0],
    "counts": lambda body: body["tables"][0]["counts"],
    "version": lambda body: body["tables"][0]["versions"][0],
    "column": lambda body: body["tables"][0]["versions"][0]["columns"][0],
    "file": lambda body: body["tables"][0]["versions"][0]["files"][0],
}


@pytest.mark.parametrize("part", PARTS)
def test_a_field_of_a_newer_version_that_changes_nothing_is_left_out(part: str) -> None:
    """A newer version writes all of its fields. With its default a field is no part of the batch id."""
    manifest = make_manifest()
    body = json.loads(manifest.to_json())
    PARTS[part](body)["of_a_newer_version"] = None
    assert Manifest.from_json(json.dumps(body)) == manifest


@pytest.mark.parametrize("part", PARTS)
def test_a_field_of_a_newer_version_that_counts_is_refused(part: str) -> None:
    body = json.loads(make_manifest().to_json())
    PARTS[part](body)["of_a_newer_version"] = 7
    body["batch_id"] = "ab" * 32
    with pytest.raises(BatchRefused, match="newer version of the package staged") as refusal:
        Manifest.from_json(json.dumps(body))
    assert "or a newer one" in str(refusal.value)


def test_xcom_of_a_batch_is_small_json_with_counts_by_table() -> None:
    value = batch_xcom(make_manifest(), "file:///staging/m.json")
    assert json.loads(json.dumps(value)) == value
    assert value["changes"] == 3
    assert value["tables"]["Sch.\"é.T'; DROP TABLE x;--"]["rejected"] == 1


def test_a_job_survives_its_json() -> None:
    options = TableOptions(target="x", partitioned_by=("days(c)",), properties={"a": "b"})
    plan = ApplyJob(
        **WHERE,
        table_options={"public.t": options},
    )
    assert job_from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mode": "merge"}, "Unknown mode"),
        ({"mode": None}, "option mode is not a text"),
        ({"mode": "history", "soft_delete": True}, "soft_delete is an option of tables in mode"),
        ({"metadata_columns": ["_x"]}, "metadata columns"),
        ({"metadata_columns": [1]}, "metadata_columns is not a list of texts"),
        ({"keep_retyped_columns": 1}, "keep_retyped_columns is not true or false"),
        ({"drop_columns": "False"}, "drop_columns is not true or false"),
        ({"soft_delete": 0}, "soft_delete is not true or false"),
        ({"parallel_tables": "4"}, "parallel_tables is not a whole number"),
        ({"parallel_tables": True}, "parallel_tables is not a whole number"),
        ({"parallel_tables": 0}, "parallel_tables is below 1"),
        ({"tag_retention_days": "30"}, "tag_retention_days is not a whole number"),
        ({"tag_retention_days": 1.5}, "tag_retention_days is not a whole number"),
        ({"tag_retention_days": -1}, "tag_retention_days is negative"),
        ({"format_version": 1}, "Unknown format_version 1"),
        ({"write_mode": "fast"}, "Unknown write_mode 'fast'"),
        ({"dag_id": None}, "dag_id is not a text"),
    ],
)
def test_a_job_with_unknown_options_is_refused(change: dict[str, Any], said: str) -> None:
    body = json.loads(ApplyJob(**WHERE).to_json()) | change
    with pytest.raises(ConfigurationError, match=said):
        job_from_json(json.dumps(body))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": 1}, r"table_options\[a\.t\]\.target is not a text"),
        ({"mode": ["upsert"]}, r"table_options\[a\.t\]\.mode is not a text"),
        (
            {"keep_retyped_columns": "no"},
            r"table_options\[a\.t\]\.keep_retyped_columns is not true",
        ),
        (
            {"properties": {"a": 1}},
            r"table_options\[a\.t\]\.properties is not a mapping of texts to texts",
        ),
        (
            {"properties": ["a"]},
            r"table_options\[a\.t\]\.properties is not a mapping of texts to texts",
        ),
        ({"partitioned_by": [1]}, r"table_options\[a\.t\]\.partitioned_by is not a list of texts"),
    ],
)
def test_a_job_with_unknown_options_of_a_table_is_refused(
    change: dict[str, Any], said: str
) -> None:
    body = json.loads(
        ApplyJob(
            manifest_uri="m",
            staging_uri="s",
            catalog_name="lake",
            namespace="ns",
            table_options={"a.t": TableOptions()},
        ).to_json()
    )
    body["table_options"]["a.t"] |= change
    with pytest.raises(ConfigurationError, match=said):
        job_from_json(json.dumps(body))


@pytest.mark.parametrize(
    "transform",
    ["region", "days(made_at)", "Bucket(16, id)", "truncate(4, `a ``b`)", "`a) --`", "größe"],
)
def test_partition_transforms_are_known(transform: str) -> None:
    plan = ApplyJob(
        manifest_uri="m",
        staging_uri="s",
        catalog_name="lake",
        namespace="ns",
        table_options={"t": TableOptions(partitioned_by=(transform,))},
    )
    assert job_from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "transform",
    [
        "id) LOCATION 'file:///elsewhere' --",
        "days(made_at)) AS SELECT 1 --",
        "a, b",
        "`a` b`",
        "upper(name)",
        "bucket(id)",
        "id; DROP TABLE t",
        "",
    ],
)
def test_sql_in_place_of_a_partition_transform_is_refused(transform: str) -> None:
    """B26: the one option whose text becomes part of a statement."""
    plan = ApplyJob(
        manifest_uri="m",
        staging_uri="s",
        catalog_name="lake",
        namespace="ns",
        table_options={"t": TableOptions(partitioned_by=(transform,))},
    )
    with pytest.raises(ConfigurationError, match="partition transform"):
        plan.check()
    with pytest.raises(ConfigurationError, match="partition transform"):
        partition_transform(transform)


def test_target_names_come_from_schema_and_table() -> None:
    plan = ApplyJob(
        manifest_uri="m",
        staging_uri="s",
        catalog_name="lake",
        namespace="ns",
        table_options={"b.t": TableOptions(target="own")},
    )
    assert plan.target_name("public", "orders") == "orders"
    assert plan.target_name("sales", "orders") == "sales__orders"
    assert plan.target_name("b", "t") == "own"


def test_a_manifest_of_before_columns_had_numbers_is_read() -> None:
    """Its batch id is what it was."""
    manifest = make_manifest()
    body = json.loads(manifest.to_json())
    for table in body["tables"]:
        del table["schema_changes"], table["records_columns"]
        for version in table["versions"]:
            for column in version["columns"]:
                del column["attribute_number"]
    assert Manifest.from_json(json.dumps(body)) == manifest


def test_the_xcom_says_what_changed_of_a_schema() -> None:
    manifest = make_manifest()
    renamed = SchemaChange("column_renamed", "b", "a", "b", 2)
    tables = (dataclasses.replace(manifest.tables[0], schema_changes=(renamed,)),)
    changed = dataclasses.replace(manifest, tables=tables)
    assert Manifest.from_json(changed.to_json()) == changed
    value = batch_xcom(changed, "file:///staging/m.json")
    assert value["schema_changes"] == {tables[0].name: ["column a was renamed to b"]}
    assert "schema_changes" not in batch_xcom(manifest, "file:///staging/m.json")


def test_the_xcom_says_how_much_it_leaves_out_of_a_schema() -> None:
    manifest = make_manifest()
    changes = tuple(SchemaChange("column_dropped", f"c{number}") for number in range(123))
    for count, said in ((100, 100), (123, 101)):
        tables = (dataclasses.replace(manifest.tables[0], schema_changes=changes[:count]),)
        value = batch_xcom(dataclasses.replace(manifest, tables=tables), "uri")
        words = value["schema_changes"][tables[0].name]
        assert words[:100] == [f"column c{number} was dropped" for number in range(100)]
        assert len(words) == said
    assert words[-1].startswith("and 23 more")
