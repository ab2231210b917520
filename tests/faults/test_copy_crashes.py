"""Capture killed while it copies a table in the middle of a batch, with prepared transactions beside it.

The batch reads prepared rows of an earlier one from the staging area, copies a table that those rows are
in, and follows the others. What is not here: what the server waits for, see
``tests/capture/copy/test_two_phase_copies.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.conformance.compare import (
    connect,
    difference,
    lake_fields,
    quoted,
    read_lake,
    read_source,
)
from tests.conformance.pipeline import CATALOG
from tests.faults.processes import stage_in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conformance.pipeline import Batch
    from tests.faults.conftest import Subject


LATE = "public.late"
#: The others are in ``tests/capture/copy/test_two_phase_copies.py``, without a lake.
POINTS = ("stage.during_copy", "stage.after_files")


@pytest.fixture(autouse=True)
def no_prepared_transaction_outlives_the_test(postgres_database: str) -> Iterator[None]:
    yield
    with connect(postgres_database) as session:
        gids = session.execute(
            "SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchall()
        for (gid,) in gids:
            session.execute(f"ROLLBACK PREPARED {gid}")


def execute(run: Subject, *statements: str) -> None:
    with connect(run.pipeline.conninfo) as session:
        for statement in statements:
            session.execute(statement)


def prepare(run: Subject, gid: str, number: int) -> None:
    """Prepare a transaction that writes one row to each table."""
    execute(
        run,
        "BEGIN",
        f"INSERT INTO account VALUES ({number}, 'prepared', repeat('p', 9000), 1)",
        f"INSERT INTO bag VALUES ({number}, 'prepared')",
        f"INSERT INTO journal VALUES ({number}, 'prepared')",
        f"INSERT INTO late VALUES ({number}, 'prepared')",
        f"PREPARE TRANSACTION '{gid}'",
    )


def commit(run: Subject, gid: str) -> None:
    execute(run, f"COMMIT PREPARED '{gid}'")
    run.workload.journal_changes += 1
    run.judge.remember_source()


def waiting(batch: Batch) -> list[str]:
    return [each.gid for each in batch.manifest.prepared]


@pytest.mark.further
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_copy_beside_prepared_rows_is_repeated(
    point: str, subject: Callable[..., Subject]
) -> None:
    run = subject(POINTS.index(point), options=StreamOptions(two_phase=True))
    execute(run, "CREATE TABLE late(id int PRIMARY KEY, v text)")
    run.catch_up()
    prepare(run, "g", 100)
    assert waiting(run.run()) == ["g"]

    commit(run, "g")
    execute(run, "ALTER PUBLICATION p ADD TABLE late")
    assert stage_in_process(run.pipeline, point)
    run.judge.after_any_run()
    run.work()
    batch = run.stage()
    run.apply(batch)
    run.advance()
    assert [each.name for each in batch.manifest.tables if each.copy_lsn] == [LATE]

    prepare(run, "h", 101)
    prepare(run, "lost", 102)
    assert waiting(run.run()) == ["h", "lost"]
    execute(run, "ROLLBACK PREPARED 'lost'")
    commit(run, "h")
    assert stage_in_process(run.pipeline, point, copy_tables=[LATE], transport="walsender")
    run.judge.after_any_run()
    execute(run, "INSERT INTO late VALUES (103, 'after')")
    batch = run.stage(copy_tables=[LATE])
    run.apply(batch)
    assert not waiting(batch)
    run.finish()
    assert not _difference_of_late(run)


def _difference_of_late(run: Subject) -> str:
    name = quoted(CATALOG, run.pipeline.namespace, "late")
    run.pipeline.spark.catalog.refreshTable(name)
    fields = [lake_fields(run.pipeline.spark, name)[column] for column in ("id", "v")]
    with connect(run.pipeline.conninfo) as session:
        source = read_source(session, "public", "late", fields)
    assert source.total() == 3
    return difference(read_lake(run.pipeline.spark, name, fields), source)
