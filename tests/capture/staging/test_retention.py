"""What retention removes, and above all what it leaves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, PreparedTransaction
from airflow_provider_pgoutput.batch.set_aside import Refusal, SetAside
from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.capture.source.catalog import Server
from airflow_provider_pgoutput.capture.staging.archive import batches_between
from airflow_provider_pgoutput.capture.staging.area import StagingArea
from airflow_provider_pgoutput.capture.staging.batch import BatchFacts, BatchInProgress
from airflow_provider_pgoutput.capture.staging.finished import CatalogAfter
from airflow_provider_pgoutput.capture.staging.manifests import find_ending, find_sealed
from airflow_provider_pgoutput.capture.staging.repairs import KeysOfTable, leave_request
from airflow_provider_pgoutput.capture.staging.retention import Pruned, prune
from airflow_provider_pgoutput.capture.staging.sealed_copies import find_seals
from airflow_provider_pgoutput.capture.types.cast import NULL_AND_KEEP, ValuePolicy
from airflow_provider_pgoutput.errors import BatchRefused
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from tests.capture.pipeline_support import history_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from airflow_provider_pgoutput.capture.describe import Described
    from airflow_provider_pgoutput.capture.pgoutput.messages import Relation

SYSTEM = "73"
VERSION = TableVersion(1, "public", "t", "d", (Column("a", 23, -1, "integer", "int"),), ("a",))
SOON = timedelta(hours=1)


def undescribed(relation: Relation) -> Described:
    raise AssertionError("no relation is announced in a copy")


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path))


def attempt(area: StagingArea, start: int, name: str = "a") -> BatchInProgress:
    """An attempt whose files are complete, and which is not sealed yet."""
    batch = BatchInProgress(
        area, "s", Lsn(start), name, undescribed, ValuePolicy(NULL_AND_KEEP, {}), 8
    )
    table = batch.add_copy(1, VERSION, Lsn(start))
    batch.copy_rows(table, pa.record_batch({"n0": pa.array(range(start), pa.int32())}), [])
    batch.finish_files()
    return batch


def sealed(
    area: StagingArea,
    start: int,
    end: int,
    *,
    system: str = SYSTEM,
    prepared: Sequence[PreparedTransaction] = (),
) -> Manifest:
    batch = attempt(area, start, f"a{end}")
    server = Server(180000, system, 1, "db", Lsn(0x1000), "logical")
    facts = BatchFacts(
        publication_names=("p",),
        end=Lsn(end),
        catalog=CatalogAfter(history_of()),
        prepared=prepared,
    )
    made = batch.seal(lambda: server, facts)
    return made[0]


def waiting(area: StagingArea, path: str) -> PreparedTransaction:
    output = area.create(path)
    output.write(b"rows")
    written = output.finish()
    return PreparedTransaction("g", 7, "0/1", "0/2", 0, path, 1, *written)


def pruned(area: StagingArea, checkpoint: int, age: timedelta = -SOON, **given: Any) -> Pruned:
    """Prune what is older than ``age``; below zero: even what was written just now."""
    at = Checkpoint(Lsn(checkpoint), SYSTEM)
    return prune(area, "s", at, older_than=datetime.now(UTC) - age, **given)


def starts(area: StagingArea) -> list[int]:
    names = area.names(layout.manifest_folder("s"))
    return [int(name.partition("-")[0], 16) for name in names if name.endswith(".json")]


def whole(area: StagingArea, manifest: Manifest) -> bool:
    return None not in area.sizes(list(manifest.paths))


def test_what_was_applied_goes_and_the_newest_of_it_stays(area: StagingArea) -> None:
    batches = [sealed(area, start, start + 16) for start in (16, 32, 48, 64)]
    result = pruned(area, checkpoint=64)
    assert starts(area) == [48, 64]
    assert (result.batches, result.first_lsn) == (2, Lsn(48))
    # Two manifests and two data files.
    assert result.files == 4
    assert result.size_bytes > 0
    assert [whole(area, each) for each in batches] == [False, False, True, True]
    assert find_sealed(area, "s", SYSTEM, Lsn(64)) is not None
    folders = {entry.path.split("/")[2] for entry in area.entries("s/data", recursive=True)}
    assert {name[:16] for name in folders} == {Lsn(48).sortable, Lsn(64).sortable}
    again = pruned(area, checkpoint=64)
    assert (again.batches, again.files) == (0, 0)


def test_a_manifest_whose_writer_died_at_once_is_none(area: StagingArea) -> None:
    """Azure and HDFS show a file as soon as it is opened, and empty."""
    made = sealed(area, 16, 32)
    opened = layout.manifest_path("s", Lsn(16), Lsn(48), "0" * 64)
    area.create(opened).finish()
    found = find_sealed(area, "s", SYSTEM, Lsn(16))
    assert found is not None
    assert found[0] == made
    assert [each.end_lsn for each in batches_between(area, "s", Lsn(16))] == [Lsn(32)]
    assert pruned(area, checkpoint=16).batches == 0


def test_what_a_table_lacks_stays_longer(area: StagingArea) -> None:
    for start in (16, 32, 48, 64):
        sealed(area, start, start + 16)
    lacks = SetAside(7, "public.t", Lsn(32), 2, Refusal("RowMissing", "A row is missing."))
    at = Checkpoint(Lsn(80), SYSTEM, set_aside={7: lacks})
    now = datetime.now(UTC)
    result = prune(area, "s", at, older_than=now + SOON, set_aside_older_than=now - SOON)
    # The batch before it stays, too: it ends where the first one that is lacked starts.
    assert starts(area) == [16, 32, 48, 64]
    assert (result.batches, result.kept_batches) == (0, 3)
    assert result.kept_bytes > 0
    assert result.kept_since is not None
    result = prune(area, "s", at, older_than=now + SOON, set_aside_older_than=now + SOON)
    assert starts(area) == [64]
    assert (result.batches, result.kept_batches, result.kept_since) == (3, 0, None)


def test_without_its_first_batch_nothing_stays_for_a_table(area: StagingArea) -> None:
    for start in (32, 48, 64):
        sealed(area, start, start + 16)
    lacks = SetAside(7, "public.t", Lsn(16), 3, Refusal("RowMissing", "A row is missing."))
    at = Checkpoint(Lsn(80), SYSTEM, set_aside={7: lacks})
    prune(area, "s", at, older_than=datetime.now(UTC) + SOON)
    assert starts(area) == [64]


def test_what_is_young_stays(area: StagingArea) -> None:
    sealed(area, 16, 32)
    sealed(area, 32, 48)
    assert pruned(area, checkpoint=48, age=SOON) == Pruned(0, 0, 0, Lsn(16))


def test_what_the_user_keeps_stays(area: StagingArea) -> None:
    for start in (16, 32, 48, 64):
        sealed(area, start, start + 16)
    assert pruned(area, checkpoint=80, keep_from=Lsn(40)).first_lsn == Lsn(32)
    assert starts(area) == [32, 48, 64]


def test_nothing_goes_from_the_middle(area: StagingArea) -> None:
    """A batch that stays keeps all that follow it, whatever their age."""
    old, young = sealed(area, 32, 48), sealed(area, 16, 32)
    entry = max(area.entries(layout.manifest_folder("s")), key=lambda each: each.modified)
    at = Checkpoint(Lsn(96), SYSTEM)
    assert prune(area, "s", at, older_than=entry.modified).batches == 0
    assert starts(area) == [16, 32]
    assert whole(area, old)
    assert whole(area, young)


def test_what_waits_prepared_outlives_its_batch(area: StagingArea) -> None:
    transaction = waiting(area, f"s/data/{Lsn(16).sortable}-a32/prepared/prepared-00000.arrow")
    sealed(area, 16, 32, prepared=[transaction])
    sealed(area, 32, 48, prepared=[transaction])
    last = sealed(area, 48, 64, prepared=[transaction])
    assert pruned(area, checkpoint=64).batches == 2
    assert whole(area, last)
    kept = find_ending(area, "s", SYSTEM, Lsn(64))
    assert kept is not None
    assert kept.prepared == (transaction,)
    # It ended; the next batches do not name it.
    sealed(area, 64, 80)
    sealed(area, 80, 96)
    pruned(area, checkpoint=96)
    assert area.sizes([transaction.path]) == [None]


def test_files_of_dead_attempts_go_when_they_are_old(area: StagingArea) -> None:
    sealed(area, 16, 32)
    attempt(area, 16, "dead")
    attempt(area, 32, "running")
    paths = [entry.path for entry in area.entries("s/data", recursive=True)]
    (dead,) = [path for path in paths if "-dead-" in path]
    (running,) = [path for path in paths if "-running-" in path]
    assert pruned(area, checkpoint=32, age=SOON).files == 0
    assert None not in area.sizes([dead, running])
    assert pruned(area, checkpoint=32).files == 1
    sizes = area.sizes([dead, running])
    assert sizes[0] is None
    assert sizes[1] is not None


def test_seals_of_copies_that_no_batch_took_go_with_their_files(area: StagingArea) -> None:
    def copied(start: int) -> None:
        """An attempt that died after it had sealed a table."""
        batch = BatchInProgress(
            area, "s", Lsn(start), "dead", undescribed, ValuePolicy(NULL_AND_KEEP, {}), 8
        )
        table = batch.add_copy(1, VERSION, Lsn(start))
        batch.copy_rows(table, pa.record_batch({"n0": pa.array([1], pa.int32())}), [])
        batch.seal_copies([table], ["f"])

    sealed(area, 16, 32)
    copied(16)
    copied(32)
    seals = [entry.path for entry in area.entries("s/copies", recursive=True)]
    assert len(seals) == 2
    assert pruned(area, checkpoint=32, age=SOON).files == 0
    # The seal, its file, and nothing of the batch that starts at the checkpoint.
    assert pruned(area, checkpoint=32).files == 2
    assert area.sizes(seals)[0] is None
    assert [entry.path for entry in area.entries("s/copies", recursive=True)] == seals[1:]
    assert len(find_seals(area, "s", Lsn(32))) == 1
    assert not find_seals(area, "s", Lsn(16))


def test_another_system_and_foreign_files_are_left_alone(area: StagingArea, tmp_path: Path) -> None:
    other = sealed(area, 16, 32, system="99")
    sealed(area, 32, 48)
    sealed(area, 48, 64)
    foreign = tmp_path / "s" / "manifests" / "notes.txt"
    foreign.write_text("mine")
    assert pruned(area, checkpoint=64).batches == 1
    assert starts(area) == [16, 48]
    assert whole(area, other)
    assert foreign.exists()


def test_plans_go_with_their_batches(area: StagingArea) -> None:
    old, last = sealed(area, 16, 32), sealed(area, 32, 48)
    plans = [layout.job_path("s", each.batch_id, "1-x") for each in (old, last)]
    for path in plans:
        area.write_whole(path, b"{}")
    pruned(area, checkpoint=48)
    assert [size is None for size in area.sizes(plans)] == [True, False]


def test_a_damaged_manifest_stops_it(area: StagingArea) -> None:
    sealed(area, 16, 32)
    last = sealed(area, 32, 48)
    path = layout.manifest_path("s", last.start_lsn, last.end_lsn, last.batch_id)
    area.delete_file(path)
    area.write_whole(path, b"{")
    with pytest.raises(BatchRefused):
        pruned(area, checkpoint=48)
    assert starts(area) == [16, 32]


def test_requests_for_repairs_go_when_they_expired(area: StagingArea) -> None:
    """They have keys of rows, so they do not stay until they are old. Nor does what was half written."""
    left = leave_request(area, "s", SYSTEM, [KeysOfTable(1, "public.t", ("a",), (("7",),))], 60)
    expired = layout.repair_path("s", int(time.time()) - 1, "0" * 16)
    waiting_path = layout.repair_path("s", int(time.time()) + 60, "1" * 16)
    half = [f"{each}.{'2' * 32}.tmp" for each in (expired, waiting_path)]
    foreign = f"{layout.repair_folder('s')}/README.json"
    for path in (expired, *half, foreign):
        area.write_whole(path, b"{}")
    assert pruned(area, checkpoint=32, age=SOON).files == 2
    sizes = area.sizes([left.path, expired, *half, foreign])
    assert [size is None for size in sizes] == [False, True, True, False, False]
