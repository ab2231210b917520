"""The session that holds the exported snapshot of a copy dies while the copy runs: the lake is the source.

What is not here: a snapshot that is gone before anything is read, and other reasons for a new one
(``tests/capture/staging/test_sealed_copies.py``); a copy by Spark (``tests/airflow/test_spark_copy.py``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput import crash_points
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.copy import read
from tests.conformance.compare import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.faults.conftest import Subject


def test_f29_a_snapshot_lost_during_a_copy_is_followed_by_another(
    subject: Callable[[int], Subject],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a row at a time, so that the largest table is being read when the first rows are taken."""
    monkeypatch.setattr(read, "_BATCH_BYTES", 1)
    caplog.set_level(logging.WARNING)
    run = subject(29)
    ended: list[bool] = []

    def at(point: str) -> None:
        if point != "stage.during_copy" or ended:
            return
        with connect(run.pipeline.conninfo) as session:
            found = session.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE backend_type = 'walsender' AND datname = current_database()"
            ).fetchall()
            ended.extend(each for (each,) in found)
            # What each copy holds then depends on its own point.
            session.execute("DELETE FROM account WHERE id = 1")
            session.execute("UPDATE account SET id = 101, name = 'moved' WHERE id = 2")
            session.execute("DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)")
            session.execute("INSERT INTO bag VALUES (7, 'new'), (7, 'new')")
        run.judge.remember_source()

    with crash_points.watched(at):
        batch = run.stage(copy_connections=1)
    assert ended == [True]
    assert "2 of 3 tables are copied at a new point" in caplog.text
    points = {each.table_name: Lsn.parse(str(each.copy_lsn)) for each in batch.manifest.tables}
    assert batch.manifest.start_lsn == points["account"] < points["bag"] == points["journal"]
    run.apply(batch)
    run.advance()
    run.work()
    run.finish()
