"""``type_options``, which choose for a whole pipeline, from the server to the lake; all of them at once."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_pgoutput.capture.pipeline import stage_batch
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from tests.capture.types.oracle import REJECTED
from tests.conformance.compare import connect
from tests.conformance.pipeline import Batch
from tests.reader_role import reader_conninfo
from tests.types_end_to_end.columns import BY_KIND, chosen_by_kind
from tests.types_end_to_end.conftest import insert, read_source, read_spark

if TYPE_CHECKING:
    from tests.types_end_to_end.conftest import Carried


_TABLE = "public.by_kind"


@pytest.mark.parametrize("binary", [False, True])
def test_choices_by_kind_hold_what_the_server_stores(carried: Carried, binary: bool) -> None:
    name = f"by_kind_{binary}".lower()
    pipeline = dataclasses.replace(
        carried.pipeline,
        slot_name=name,
        publication_names=(name,),
        namespace=name,
        staging=carried.staged.folder / name,
    )
    with contextlib.closing(connect(carried.staged.conninfo)) as session:
        # The defaults of the database are against the pipeline, not against this session.
        session.execute("SET array_nulls = on")
        session.execute("SET client_encoding = 'UTF8'")
        columns = chosen_by_kind(session.info.server_version // 10_000)
        defined = ", ".join(f"c{place} {each.sql_type}" for place, each in enumerate(columns))
        session.execute(f"CREATE TABLE {_TABLE} (id int PRIMARY KEY, {defined})")
        session.execute(f"CREATE PUBLICATION {name} FOR TABLE {_TABLE}")
        request = CaptureRequest(
            conninfo=reader_conninfo(carried.staged.conninfo),
            slot_name=name,
            publication_names=(name,),
            staging_uri=pipeline.staging.as_uri(),
            type_options=BY_KIND,
            options=StreamOptions(binary=binary),
        )
        copied = insert(session, columns, 1, _TABLE)
        copy = Batch(*stage_batch(request)[:2])
        insert(session, columns, copied + 1, _TABLE)
        manifest = copy.manifest
        checkpoint = Checkpoint(manifest.end_lsn, manifest.system_identifier)
        changes = Batch(*stage_batch(dataclasses.replace(request, checkpoint=checkpoint))[:2])
        _, stored = read_source(session, columns, _TABLE)
        session.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        session.execute(f"DROP TABLE {_TABLE}")
        session.execute(f"DROP PUBLICATION {name}")
    for batch in (copy, changes):
        pipeline.apply(batch)
    found = read_spark(pipeline, range(len(columns)), "by_kind")
    for column, ours, theirs in zip(columns, found, stored, strict=True):
        assert column.stored is not None
        wanted = [None if each is None else column.stored(each) for each in theirs]
        assert ours == [None if each == REJECTED else each for each in wanted], column.label
        assert any(each is not None for each in ours), column.label
    catalog = load_catalog("lake", **pipeline.catalog_properties)
    schema = catalog.load_table((name, "by_kind")).schema()
    kinds = [str(schema.find_type(f"c{place}")).split("<")[0] for place in range(len(columns))]
    assert kinds[:5] == ["decimal(20, 4)", "list", "decimal(20, 4)", "decimal(12, 2)", "uuid"]
    assert kinds[6:] == [
        "long",
        "list",
        "struct",
        "list",
        "struct",
        "list",
        "struct",
        "struct",
        "string",
    ]
