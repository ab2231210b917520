"""skip_lsns: a transaction that cannot be staged is named by its LSN, and left out on request (F40)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.batch.manifest import Manifest, SkippedTransaction
from airflow_provider_pgoutput.capture.request import AFTER_STAGE
from airflow_provider_pgoutput.capture.stream.options import SQL, WALSENDER, StreamOptions
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    SlotAheadOfCheckpoint,
    ValueRefused,
)
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
    from tests.capture.pipeline_support import Source

GOOD, BAD = "2026-01-02 03:04:05", "infinity"


def stage(source: Source, lake: Checkpoint | None, **options: Any) -> Manifest:
    given = {"publication_names": ("times",), "value_policy": {"default": "fail"}}
    return source.stage(**{**given, "checkpoint": lake, **options})


def insert(*rows: tuple[int, str]) -> str:
    values = ", ".join(f"({a}, '{at}', 'x')" for a, at in rows)
    return f"INSERT INTO times VALUES {values}"


@pytest.fixture
def lake(source: Source) -> Checkpoint:
    """The checkpoint after an empty copy; since then the second of three transactions cannot be staged."""
    source.execute(
        "CREATE TABLE times (a int PRIMARY KEY, at timestamp, b text)",
        "CREATE PUBLICATION times FOR TABLE times",
    )
    lake = checkpoint_of(stage(source, None))
    source.execute(insert((1, GOOD)), insert((2, GOOD), (3, BAD), (4, GOOD)), insert((5, GOOD)))
    return lake


def keys(source: Source, batch: Manifest) -> list[int]:
    return [row["a"] for row in source.changes(batch, "public.times")]


def poison(source: Source, lake: Checkpoint, **options: Any) -> Lsn:
    """Where the transaction commits that the run fails at, as the error says."""
    with pytest.raises(ValueRefused, match=r"skip_lsns=\['") as refusal:
        stage(source, lake, **options)
    error = refusal.value
    assert (error.table, error.column) == ("public.times", "at")
    assert error.lsn is not None
    return Lsn.parse(error.lsn)


@pytest.mark.parametrize("transport", [SQL, WALSENDER])
@pytest.mark.parametrize("binary", [False, True])
def test_the_run_fails_at_the_same_lsn_until_it_is_left_out(
    source: Source, lake: Checkpoint, transport: str, binary: bool, caplog: pytest.LogCaptureFixture
) -> None:
    how: dict[str, Any] = {"transport": transport, "options": StreamOptions(binary=binary)}
    lsn = poison(source, lake, **how)
    assert poison(source, lake, **how) == lsn
    batch = stage(source, lake, skip_lsns=(lsn,), **how)
    assert keys(source, batch) == [1, 5]
    assert batch.skipped == (SkippedTransaction(str(lsn), 3),)
    assert batch.transactions == 2
    assert f"committed at {lsn} is left out on request: 3 row changes" in caplog.text
    assert Manifest.from_json(batch.to_json()) == batch
    # It is behind the next batch, where an argument that is still there asks for nothing.
    source.execute(insert((6, GOOD)))
    after = stage(source, checkpoint_of(batch), skip_lsns=(lsn,), **how)
    assert (keys(source, after), after.skipped) == ([6], ())


@pytest.mark.parametrize("options", [{"streaming": "on"}, {"two_phase": True}])
def test_whatever_way_it_comes(source: Source, options: dict[str, Any]) -> None:
    (database,) = source.execute("SELECT current_database()")[0]
    source.execute(
        f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'",
        "CREATE TABLE times (a int PRIMARY KEY, at timestamp, b text)",
        "CREATE PUBLICATION times FOR TABLE times",
    )
    how = {"options": StreamOptions(**options)}
    lake = checkpoint_of(stage(source, None, **how))
    large = (
        "INSERT INTO times SELECT g, CASE g WHEN 2999 THEN 'infinity' ELSE '2026-01-02' END::timestamp,"
        " repeat('x', 100) FROM generate_series(1, 3000) g"
    )
    if options.get("two_phase"):
        source.execute(f"BEGIN; {large}; PREPARE TRANSACTION 'poison'", "COMMIT PREPARED 'poison'")
    else:
        source.execute(large)
    source.execute(insert((5000, GOOD)))
    lsn = poison(source, lake, **how)
    batch = stage(source, lake, skip_lsns=(lsn,), **how)
    assert keys(source, batch) == [5000]
    assert batch.skipped == (SkippedTransaction(str(lsn), 3000),)


def test_an_lsn_that_is_no_commit_is_refused(source: Source, lake: Checkpoint) -> None:
    lsn = poison(source, lake)
    with pytest.raises(ConfigurationError, match="No transaction") as refusal:
        stage(source, lake, skip_lsns=(lsn, Lsn(lsn + 1)))
    assert refusal.value.lsn == str(Lsn(lsn + 1))
    assert len(source.manifests()) == 1
    # What lies past the batch may be asked for already.
    assert keys(source, stage(source, lake, skip_lsns=(lsn, Lsn(2**50)))) == [1, 5]


def test_what_was_sealed_is_staged_again_without_it(source: Source, lake: Checkpoint) -> None:
    """It can be staged under another policy, say, and cannot be applied."""
    lsn = poison(source, lake)
    whole = stage(source, lake, value_policy={})
    assert keys(source, whole) == [1, 2, 3, 4, 5]
    batch = stage(source, lake, value_policy={}, skip_lsns=(lsn,))
    assert keys(source, batch) == [1, 5]
    # The other is gone, or a late task could bring it back; whoever comes next takes what was asked for.
    again = stage(source, lake, value_policy={})
    assert not any(whole.batch_id[:16] in name for name in source.manifests())
    assert again.batch_id == stage(source, lake, skip_lsns=(lsn,)).batch_id == batch.batch_id


def test_what_the_slot_has_passed_cannot_be_staged_again(source: Source, lake: Checkpoint) -> None:
    lsn = poison(source, lake)
    stage(source, lake, value_policy={}, advance=AFTER_STAGE)
    with pytest.raises(SlotAheadOfCheckpoint, match="without a transaction"):
        stage(source, lake, skip_lsns=(lsn,))
