"""method="auto" with a standby as the source: it keeps summaries of the WAL that it replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.proof.request import AUTO
from airflow_provider_pgoutput.proof.verify import verify
from tests.capture.pipeline_support import Source
from tests.capture.test_standby import following, promote, replayed, snapshots_logged, started
from tests.conformance.pipeline import Pipeline
from tests.proof.worlds import World
from tests.reader_role import reader_conninfo

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from airflow_provider_pgoutput.batch.lsn import Lsn
    from airflow_provider_pgoutput.proof.report import TableProof
    from quickstart.postgres import EmbeddedPostgres


def test_what_did_not_change_is_carried_over_until_the_standby_is_promoted(
    server_home: Path,
    postgres_server: EmbeddedPostgres,
    spark: SparkSession,
    lake_catalog_properties: dict[str, str],
    tmp_path: Path,
) -> None:
    if postgres_server.major < 17:
        pytest.skip("the server keeps no summaries of its WAL")
    with (
        started(server_home / "primary", postgres_server) as primary,
        following(primary, server_home / "standby", summarize_wal="on") as standby,
    ):
        written = Source(primary.conninfo(), "unused", tmp_path / "unused")
        read = Source(standby.conninfo(), "unused", tmp_path / "unused")
        reader_conninfo(primary.conninfo())
        written.execute(
            "CREATE TABLE numbered (id int PRIMARY KEY, v text)"
            " WITH (fillfactor = 10, autovacuum_enabled = off)",
            "CREATE PUBLICATION p FOR TABLE numbered",
            "INSERT INTO numbered SELECT i, 'value ' || i FROM generate_series(1, 25000) i",
        )
        replayed(written, read)
        pipeline = Pipeline(
            conninfo=standby.conninfo(),
            slot_name="on_standby",
            publication_names=("p",),
            namespace="on_standby",
            staging=tmp_path / "staging",
            catalog_properties=lake_catalog_properties,
            spark=spark,
        )
        world, source = World(pipeline, ("p",)), written

        def run(_: Lsn | None = None) -> None:
            # A commit behind the LSN, so that the pipeline gets there.
            source.execute("INSERT INTO numbered SELECT max(id) + 1, 'more' FROM numbered")
            source.execute("CHECKPOINT")
            if source is written:
                replayed(written, read)
            world.run()

        def proven() -> TableProof:
            (found,) = verify(world.request(method=AUTO), run).tables
            assert found.is_equal, found
            assert found.carried is not None
            return found

        with snapshots_logged(written):
            run()
            proven()
            written.execute("UPDATE numbered SET v = 'changed' WHERE id BETWEEN 100 AND 140")
            proven()
            carried = proven().carried
        assert carried is not None
        assert carried.why_all is None, carried
        assert carried.ranges_read < carried.of_ranges / 2
        primary.stop()
        promote(standby)
        source = read
        carried = proven().carried
        assert carried is not None
        assert carried.why_all is not None
        assert "timeline" in carried.why_all
