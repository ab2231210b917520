"""A batch of an earlier system, after the lake adopted another one: its LSN says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.batch.earlier_systems import EarlierSystem
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.xcom import batch_xcom
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.errors import BatchRefused
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from airflow_provider_pgoutput.tasks.received_batch import ReceivedBatch
from tests.batch.test_manifest import make_manifest

if TYPE_CHECKING:
    from pathlib import Path

ADOPTED_AT = Lsn(0x200)
LAKE = Checkpoint(
    end_lsn=Lsn(0x900),
    system_identifier="8",
    adopted_from=(EarlierSystem("7", str(ADOPTED_AT)),),
)


@pytest.mark.parametrize(
    ("system", "start", "end", "is_refused"),
    [
        ("7", 0x100, 0x200, False),
        ("7", 0x200, 0x300, True),
        ("7", 0x200, 0xA00, True),
        ("8", 0x200, 0x300, False),
    ],
)
def test_what_the_lake_left_is_refused_although_its_lsn_is_below_the_checkpoint(
    tmp_path: Path, system: str, start: int, end: int, is_refused: bool
) -> None:
    area = StagingArea(tmp_path.as_uri())
    manifest = make_manifest(
        system_identifier=system, start_lsn=Lsn(start), end_lsn=Lsn(end), tables=()
    )
    area.write_whole(manifest.path, manifest.to_json().encode())
    xcom = batch_xcom(manifest, area.uri(manifest.path))
    batch = ReceivedBatch.required(xcom, manifest.slot_name)
    if is_refused:
        with pytest.raises(BatchRefused, match=f"adopted system 8 at {ADOPTED_AT}"):
            batch.refuse_if_left(area, LAKE)
    else:
        batch.refuse_if_left(area, LAKE)
    area.delete_file(manifest.path)
    # It was pruned, so the lake has it.
    batch.refuse_if_left(area, LAKE)
