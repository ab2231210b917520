"""A source that was promoted: it goes on where it has all that the lake has, and else is refused."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import TYPE_CHECKING

import psycopg
import pytest

from airflow_provider_pgoutput.batch.earlier_systems import EarlierTimeline
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.catalog import read_server
from airflow_provider_pgoutput.capture.source.timelines import (
    check_timeline,
    parse_history,
    read_ends,
)
from airflow_provider_pgoutput.errors import SourceChanged
from tests.capture.pipeline_support import Source, checkpoint_of

if TYPE_CHECKING:
    from pathlib import Path

    from quickstart.postgres import EmbeddedPostgres


def promote(server: EmbeddedPostgres) -> None:
    """Start the server as a standby of nobody, and make it a primary of the next timeline."""
    server.stop()
    signal = server.data_directory / "standby.signal"
    signal.touch()
    owner = server.data_directory.stat()
    os.chown(signal, owner.st_uid, owner.st_gid)
    server.start()
    with psycopg.connect(server.conninfo(), autocommit=True) as session:
        assert session.execute("SELECT pg_promote()").fetchone() == (True,)


def test_a_source_that_left_the_lakes_history_is_refused(
    own_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    source = Source(own_server.conninfo(), "promoted", tmp_path / "staging")
    source.execute("CREATE TABLE t (a int PRIMARY KEY, b text)", "CREATE PUBLICATION p FOR TABLE t")
    lake = dataclasses.replace(checkpoint_of(source.stage()), timeline=1)
    promote(own_server)
    source.execute("INSERT INTO t VALUES (1, 'x')")
    ended = read_ends(source.reader, 2, "promoted")[1]
    assert ended >= lake.end_lsn
    batch = source.stage(checkpoint=lake)
    assert batch.timeline == 2
    ends = (EarlierTimeline(1, str(ended)),)
    assert batch.earlier_timelines == ends
    assert [row["a"] for row in source.changes(batch, "public.t")] == [1]
    # As if the lake had what the old primary wrote before it was lost; the new one is past that by now.
    ahead = dataclasses.replace(lake, end_lsn=Lsn(ended + 1))
    for other in (ahead, dataclasses.replace(lake, timeline=7)):
        with pytest.raises(SourceChanged, match="timeline 2") as stop:
            source.stage(checkpoint=other)
        assert stop.value.lsn == str(other.end_lsn)
        assert "another namespace" in str(stop.value.advice)
    with sessions.connect(source.reader) as session:
        check = functools.partial(
            check_timeline, source.reader, read_server(session, source.reader), slot="promoted"
        )
        check(then=1, end_lsn=lake.end_lsn)
        check(then=None, end_lsn=ahead.end_lsn)
        with pytest.raises(SourceChanged, match="ended at"):
            check(then=1, end_lsn=ahead.end_lsn)
    slot = source.confirmed()
    with pytest.raises(SourceChanged, match="ended at"):
        advance_slot(source.reader, "promoted", ahead.end_lsn, timeline=1)
    assert source.confirmed() == slot
    assert advance_slot(source.reader, "promoted", lake.end_lsn, timeline=1) >= lake.end_lsn
    later = dataclasses.replace(checkpoint_of(batch), timeline=2)
    source.execute("INSERT INTO t VALUES (2, 'y')")
    # The batch before tells it: the server is not asked again.
    following = source.stage(checkpoint=later)
    assert (following.start_lsn, following.earlier_timelines) == (batch.end_lsn, ends)


def test_a_history_file_names_where_each_timeline_ended() -> None:
    text = "1\t0/5000000\tno recovery target specified\n\n2\t1/A\tbefore 2000-01-01\n"
    assert parse_history(text) == {1: Lsn(0x5000000), 2: Lsn(0x1_0000_000A)}
    assert parse_history("") == {}
