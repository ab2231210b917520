"""Tables that stay locked while they are to be copied: the others are copied, and these come later."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.copy import stage as copying
from airflow_provider_pgoutput.capture.copy.read import RefusedCopy
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.crash_points import watched
from airflow_provider_pgoutput.errors import SourceLocked
from tests.capture.test_staging_set_aside import ASIDE, Lake, rows
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.capture.pipeline_support import Source

OPTIONS: dict[str, Any] = {"publication_names": ("q",), "copy_connections": 2, **ASIDE}
#: What is locked, and by what.
LOCKS = {
    "table": ("LOCK TABLE held", "public.held"),
    "index": ("REINDEX INDEX held_pkey", "public.held_pkey"),
    "partition": ("LOCK TABLE ONLY held_1", "public.held_1"),
    "root": ("LOCK TABLE ONLY held", "public.held"),
}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LOCK_TIMEOUT_SECONDS", 1)


@pytest.fixture
def holder(source: Source) -> Iterator[psycopg.Connection[Any]]:
    """A session in whose transaction locks are held."""
    with closing(psycopg.connect(source.conninfo)) as session:
        yield session


def make(source: Source, kind: str = "table") -> None:
    parts = " PARTITION BY RANGE (a)" if kind in ("partition", "root") else ""
    source.execute(f"CREATE TABLE held (a int PRIMARY KEY, b text){parts}")
    if parts:
        source.execute("CREATE TABLE held_1 PARTITION OF held FOR VALUES FROM (0) TO (1000000)")
    source.execute(
        "INSERT INTO held SELECT generate_series(1, 3)",
        "INSERT INTO t VALUES (1, 'x')",
        "CREATE PUBLICATION q FOR TABLE t, held WITH (publish_via_partition_root)",
    )


def copied(source: Source, manifest: Any, name: str) -> list[int]:
    return sorted(each["a"] for each in source.copied(manifest, f"public.{name}"))


@pytest.mark.parametrize("when", slow_but_each(2, ["before the plan", "after the plan"]))
@pytest.mark.parametrize("kind", LOCKS)
def test_a_locked_table_keeps_no_other_from_being_copied(
    source: Source,
    holder: psycopg.Connection[Any],
    kind: str,
    when: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(source, kind)
    statement, name = LOCKS[kind]
    read: Any = vars(copying)["copy_tables"]

    def locked_late(*arguments: Any, **named: Any) -> Any:
        holder.execute(statement.encode())
        return read(*arguments, **named)

    def lock(point: str) -> None:
        if point == "stage.after_slot":
            holder.execute(statement.encode())

    lake = Lake()
    if when == "before the plan":
        with watched(lock):
            manifest = source.stage(**OPTIONS)
    else:
        with monkeypatch.context() as patched:
            patched.setattr(copying, "copy_tables", locked_late)
            manifest = source.stage(**OPTIONS)
    assert copied(source, manifest, "t") == [1]
    (entry,) = manifest.passed_over
    assert (entry.table_name, entry.error) == ("public.held", "SourceLocked")
    assert f"{name} by PID {holder.info.backend_pid}" in entry.reason
    lake.take(manifest)

    # As long as it is locked, the others go on, and no snapshot is waited for.
    source.execute("INSERT INTO t VALUES (2, 'y')")
    manifest = source.stage(checkpoint=lake.checkpoint, **OPTIONS)
    assert rows(source, manifest, "t") == [2]
    lake.take(manifest)
    assert lake.aside == {"held": "SourceLocked"}
    holder.rollback()
    source.execute("INSERT INTO held VALUES (4)")
    manifest = source.stage(checkpoint=lake.checkpoint, **OPTIONS)
    assert copied(source, manifest, "held") == [1, 2, 3, 4]
    lake.take(manifest)
    assert lake.aside == {}


def test_a_large_locked_table_is_waited_for_once(
    source: Source, holder: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its ranges would wait again."""
    monkeypatch.setattr("airflow_provider_pgoutput.capture.copy.plan.PART_BYTES", 1 << 13)
    make(source)
    source.execute("INSERT INTO held SELECT generate_series(4, 5000), repeat('x', 100)")
    read: Any = vars(copying)["copy_tables"]
    found: list[Any] = []

    def noted(*arguments: Any, **named: Any) -> Any:
        holder.execute("LOCK TABLE held")
        for each in read(*arguments, **named):
            found.append(each)
            yield each

    monkeypatch.setattr(copying, "copy_tables", noted)
    manifest = source.stage(**OPTIONS)
    assert copied(source, manifest, "t") == [1]
    refused = [each for each in found if isinstance(each, RefusedCopy)]
    assert len(refused[0].table_copy.ranges) > 10
    assert len(refused) <= OPTIONS["copy_connections"]


def test_a_new_table_that_is_locked_does_not_stop_the_changes_of_others(
    source: Source, holder: psycopg.Connection[Any]
) -> None:
    lake = Lake()
    source.execute("CREATE PUBLICATION q FOR TABLE t", "INSERT INTO t VALUES (1, 'x')")
    lake.take(source.stage(**OPTIONS))
    source.execute(
        "CREATE TABLE held (a int PRIMARY KEY, b text)",
        "INSERT INTO held VALUES (1)",
        "ALTER PUBLICATION q ADD TABLE held",
        "INSERT INTO t VALUES (2, 'y')",
    )
    holder.execute("LOCK TABLE held")
    manifest = source.stage(checkpoint=lake.checkpoint, **OPTIONS)
    assert rows(source, manifest, "t") == [2]
    lake.take(manifest)
    assert lake.aside == {"held": "SourceLocked"}
    holder.rollback()
    manifest = source.stage(checkpoint=lake.checkpoint, **OPTIONS)
    assert copied(source, manifest, "held") == [1]


def test_a_copy_of_a_locked_table_that_is_asked_for_is_refused(
    source: Source, holder: psycopg.Connection[Any]
) -> None:
    lake = Lake()
    make(source)
    lake.take(source.stage(**OPTIONS))
    source.execute("INSERT INTO held VALUES (4)", "INSERT INTO t VALUES (2, 'y')")
    holder.execute("LOCK TABLE held")
    manifest = source.stage(checkpoint=lake.checkpoint, copy_tables=("public.held",), **OPTIONS)
    assert [each.error for each in manifest.refused_copies] == ["SourceLocked"]
    assert manifest.passed_over == ()
    assert (rows(source, manifest, "held"), rows(source, manifest, "t")) == ([4], [2])


def test_a_run_stops_if_every_table_is_locked(
    source: Source, holder: psycopg.Connection[Any]
) -> None:
    make(source)

    def lock(point: str) -> None:
        if point == "stage.after_slot":
            holder.execute("LOCK TABLE held, t")

    with watched(lock), pytest.raises(SourceLocked, match=r"public\.held by PID"):
        source.stage(**OPTIONS)
    holder.rollback()
    manifest = source.stage(**OPTIONS)
    assert (copied(source, manifest, "t"), copied(source, manifest, "held")) == ([1], [1, 2, 3])
