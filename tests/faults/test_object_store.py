"""F26: the staging area is in an object store that refuses, loses, waits, and lists what is no longer so.

Judged by what is staged, compared with the source, and by where the slot stands. Spark's own way to an object
store is not here: what it reads there was hashed before, see ``tests/apply/rows/test_staged_files.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.capture.request import AFTER_APPLY, AFTER_STAGE
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    LakeDenied,
    LakeUnavailable,
    PgoutputError,
    SlotAheadOfCheckpoint,
)
from tests.capture.pipeline_support import Source, checkpoint_of
from tests.faults.object_store import BUCKET, Action, Fault, ObjectStore, Request
from tests.faults.waiting_slot import ROWS, fill, keys, new_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

_URI = f"s3://{BUCKET}"
_ALWAYS = 10_000


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with ObjectStore() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def source(postgres_database: str, tmp_path: Path) -> Source:
    return new_source(postgres_database, tmp_path / "downloaded")


def stage(source: Source, checkpoint: Checkpoint, **options: Any) -> Manifest:
    return source.stage(checkpoint=checkpoint, staging_uri=_URI, **options)


def waiting(source: Source) -> Checkpoint:
    """Rows that wait in the slot; the first batch of it is in the store."""
    checkpoint = fill(source)
    first = source.stage(checkpoint=checkpoint, staging_uri=_URI, max_changes=ROWS // 3)
    return checkpoint_of(first)


def manifests(store: ObjectStore) -> list[str]:
    return sorted(key for key in store.objects if "/manifests/" in key)


def expect_rest(source: Source, store: ObjectStore, batch: Manifest) -> None:
    """All rows but those of the first batch, each once, in files that are there."""
    store.download(source.staging)
    assert keys(source, batch) == list(range(ROWS // 3 + 1, ROWS + 1))
    assert all(len(store.objects[path]) for path in batch.paths)


def of_data(request: Request) -> bool:
    return "/data/" in request.key


def of_manifest(request: Request) -> bool:
    return "/manifests/" in request.key


def of_operation(name: str) -> Callable[[Request], bool]:
    return lambda request: request.operation == name


@pytest.mark.parametrize(
    ("action", "operations"),
    [
        (Action.SLOW_DOWN, ("begin", "part", "complete", "list", "get", "head")),
        (Action.CUT_REQUEST, ("part",)),
        (Action.CUT_ANSWER, ("begin", "part", "complete", "list", "get", "head")),
        (Action.WAIT, ("begin", "part", "complete", "list", "get", "head")),
    ],
    ids=["slow-down", "cut-request", "cut-answer", "wait"],
)
def test_f26_what_fails_once_costs_time_only(
    source: Source, store: ObjectStore, action: Action, operations: tuple[str, ...]
) -> None:
    checkpoint = waiting(source)
    faults = [Fault(action, of_operation(name), seconds=0.3) for name in operations]
    store.fail(*faults)
    batch = stage(source, checkpoint)
    assert {each.happened for each in faults} == {1}
    expect_rest(source, store, batch)
    assert len(manifests(store)) == 2


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(of_data, id="data", marks=pytest.mark.exhaustive),
        pytest.param(of_manifest, id="manifest"),
    ],
)
def test_f26_a_store_that_takes_nothing_ends_the_run(
    source: Source, store: ObjectStore, what: Any
) -> None:
    checkpoint, confirmed = waiting(source), source.confirmed()
    refusal = Fault(Action.SLOW_DOWN, lambda each: what(each) and each.operation == "part", _ALWAYS)
    store.fail(refusal)
    with pytest.raises(LakeUnavailable) as stop:
        stage(source, checkpoint)
    assert refusal.happened > 1
    assert stop.value.advice
    assert len(manifests(store)) == 1
    assert source.confirmed() == confirmed
    store.fail()
    expect_rest(source, store, stage(source, checkpoint))


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "AccessDenied", LakeDenied),
        (403, "InvalidAccessKeyId", LakeDenied),
        (403, "SignatureDoesNotMatch", LakeDenied),
        (401, "Unauthorized", LakeDenied),
        (404, "NoSuchBucket", ConfigurationError),
        (301, "PermanentRedirect", ConfigurationError),
        # A retry takes new ones.
        (400, "ExpiredToken", LakeUnavailable),
    ],
)
def test_a_store_that_refuses_for_good_is_found_out_before_a_slot_is_made(
    source: Source, store: ObjectStore, status: int, code: str, error: type[PgoutputError]
) -> None:
    store.fail(Fault(Action.REFUSE, lambda each: True, _ALWAYS, refusal=(status, code)))
    with pytest.raises(error) as refused:
        source.stage(staging_uri=_URI)
    assert type(refused.value) is error
    assert refused.value.advice
    assert source.execute("SELECT slot_name FROM pg_replication_slots") == []
    store.fail()
    source.stage(staging_uri=_URI)
    assert manifests(store)
    assert not [key for key in store.objects if "check_" in key]


def test_a_store_that_deletes_nothing_is_found_out_before_a_slot_is_made(
    source: Source, store: ObjectStore
) -> None:
    store.fail(Fault(Action.REFUSE, lambda each: each.operation == "delete", _ALWAYS))
    with pytest.raises(LakeDenied, match="did not delete"):
        source.stage(staging_uri=_URI)
    assert source.execute("SELECT slot_name FROM pg_replication_slots") == []


def test_a_run_with_a_slot_is_refused_by_the_same_errors(
    source: Source, store: ObjectStore
) -> None:
    checkpoint, confirmed = waiting(source), source.confirmed()
    store.fail(Fault(Action.REFUSE, of_data, _ALWAYS))
    with pytest.raises(LakeDenied, match="did not write"):
        stage(source, checkpoint)
    assert source.confirmed() == confirmed
    store.fail()
    expect_rest(source, store, stage(source, checkpoint))


def test_f26_a_manifest_whose_answer_was_lost_is_the_batch(
    source: Source, store: ObjectStore
) -> None:
    """The store has it and the run does not know: the next one finds it and stages nothing."""
    checkpoint = waiting(source)
    store.knows_completed = False
    store.fail(
        Fault(Action.CUT_ANSWER, lambda each: of_manifest(each) and each.operation == "complete")
    )
    with pytest.raises(LakeUnavailable):
        stage(source, checkpoint)
    before = dict(store.objects)
    assert len(manifests(store)) == 2
    batch = stage(source, checkpoint)
    assert store.objects == before
    expect_rest(source, store, batch)


def test_f26_a_listing_that_lags_costs_a_second_batch_of_the_same_rows(
    source: Source, store: ObjectStore
) -> None:
    checkpoint = waiting(source)
    sealed = stage(source, checkpoint, advance=AFTER_APPLY)
    store.unlisted = tuple(manifests(store)[1:])
    again = stage(source, checkpoint, advance=AFTER_APPLY)
    for batch in (sealed, again):
        expect_rest(source, store, batch)
    # One that is listed and gone is nobody's batch: the run waits for the store to say the truth.
    (removed,) = store.unlisted
    store.unlisted, store.listed_still = (), (removed,)
    for key in manifests(store)[1:]:
        del store.objects[key]
    with pytest.raises(LakeUnavailable):
        stage(source, checkpoint, advance=AFTER_APPLY)
    store.listed_still = ()
    expect_rest(source, store, stage(source, checkpoint, advance=AFTER_APPLY))


def test_f26_a_slot_past_a_batch_that_is_not_listed_waits_for_it(
    source: Source, store: ObjectStore
) -> None:
    """With ``after_stage`` the store alone has the rows: nothing goes on without them."""
    checkpoint = waiting(source)
    sealed = stage(source, checkpoint, advance=AFTER_STAGE)
    assert source.confirmed() == str(sealed.end_lsn)
    store.unlisted = tuple(manifests(store)[1:])
    with pytest.raises(SlotAheadOfCheckpoint):
        stage(source, checkpoint, advance=AFTER_STAGE)
    store.unlisted = ()
    found = stage(source, checkpoint, advance=AFTER_STAGE)
    assert found.batch_id == sealed.batch_id
    expect_rest(source, store, found)
