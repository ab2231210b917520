"""``transport="auto"``: SQL, or the walsender where the server has no room for an answer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.stream.choose import Backlog, Capacity, against_sql
from airflow_provider_pgoutput.errors import TemporaryFilesFull
from tests.capture.pipeline_support import Source, checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.lake.checkpoint import Checkpoint

MIB, GIB = 1 << 20, 1 << 30
NO_LIMIT, LIMITED = Capacity(None, makes_copies=True), Capacity(500 * MIB, makes_copies=True)
NO_COPIES = Capacity(None, makes_copies=False)
PART = 192 * MIB


@pytest.mark.parametrize(
    ("room", "backlog", "words"),
    [
        (NO_LIMIT, Backlog(10 * MIB, PART, is_cut=True), None),
        # Parts keep the answers small, however long the backlog.
        (NO_LIMIT, Backlog(500 * GIB, PART, is_cut=True), None),
        (LIMITED, Backlog(500 * GIB, PART, is_cut=True), None),
        # Nothing can be larger than the backlog.
        (Capacity(MIB, makes_copies=True), Backlog(MIB, PART, is_cut=True), "temp_file_limit of 1"),
        (NO_COPIES, Backlog(GIB, PART, is_cut=True), None),
        (NO_COPIES, Backlog(5 * GIB, PART, is_cut=True), "5120 MiB .* cannot be cut"),
        # With two_phase the slot is read in one answer.
        (NO_LIMIT, Backlog(5 * GIB, PART, is_cut=False), "5120 MiB .* cannot be cut"),
        (LIMITED, Backlog(GIB, PART, is_cut=False), "1024 MiB .* temp_file_limit"),
    ],
)
def test_what_speaks_against_sql(room: Capacity, backlog: Backlog, words: str | None) -> None:
    reason = against_sql(room, backlog)
    if words is None:
        assert reason is None
    else:
        assert reason is not None
        assert re.search(words, reason)


def fill(source: Source, limit: str) -> Checkpoint:
    """A large transaction among small ones, for a server whose answers go to a file soon."""
    (database,) = source.execute("SELECT current_database()")[0]
    checkpoint = checkpoint_of(source.stage())
    source.execute(
        f"ALTER DATABASE {database} SET work_mem = '64kB'",
        f"ALTER DATABASE {database} SET temp_file_limit = '{limit}'",
        "INSERT INTO t VALUES (-1, 'small')",
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g",
        "INSERT INTO t VALUES (-2, 'small')",
    )
    return checkpoint


def choices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each for each in caplog.messages if "over the walsender" in each]


@pytest.mark.parametrize(
    ("limit", "part_bytes", "line"),
    [
        ("100MB", 192 * MIB, None),
        ("1MB", 192 * MIB, "is read over the walsender: .* may not fit"),
        # The parts are small enough, and one transaction is not.
        ("1MB", 100_000, "temp_file_limit.* Reading again over the walsender"),
    ],
)
def test_every_choice_stages_the_same(
    source: Source,
    limit: str,
    part_bytes: int,
    line: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checkpoint = fill(source, limit)
    with caplog.at_level("INFO"):
        batch = source.stage(
            checkpoint=checkpoint,
            transport="auto",
            part_bytes=part_bytes,
            decode_parallelism=2,
        )
    keys = [row["a"] for row in source.changes(batch, "public.t")]
    assert keys == [-1, *range(1, 20_001), -2]
    found = choices(caplog)
    assert len(found) == (line is not None)
    if line is not None:
        assert re.search(line, found[0])


def test_who_asked_for_sql_is_told_what_to_do(source: Source) -> None:
    checkpoint = fill(source, "1MB")
    with pytest.raises(TemporaryFilesFull, match="set transport to 'auto' or 'walsender'"):
        source.stage(checkpoint=checkpoint)
    assert len(source.manifests()) == 1
    assert source.stage(checkpoint=checkpoint, transport="walsender").changes == 20_002
