"""A slot that is made while transactions alter the tables (C198)."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.source.storage import read_catalog_state
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source


def wait_until_it_waits_for(source: Source, xid: int) -> None:
    """Wait until a walsender waits for the end of a transaction."""
    deadline = time.monotonic() + 30
    query = (
        "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)"
        " WHERE a.backend_type = 'walsender' AND l.locktype = 'transactionid' AND NOT l.granted"
        f" AND l.transactionid = '{xid}'::xid"
    )
    while source.execute(query) == [(0,)]:
        assert time.monotonic() < deadline, "no slot is made"
        time.sleep(0.02)


def opened(source: Source) -> tuple[psycopg.Connection[Any], int]:
    """A session with an open transaction, and the transaction's number."""
    session = psycopg.connect(source.conninfo)
    row = session.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    assert row is not None
    return session, row[0]


def test_c198_a_table_that_is_altered_while_the_slot_is_made_is_described_as_it_is(
    source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL does not see what commits between two of the steps in which it makes a slot.

    A transaction that begins before the last step is then decoded with the catalogs of before, and so is what
    follows it in the same session.
    """
    source.execute(
        "CREATE TABLE made (id int PRIMARY KEY, before int)",
        "INSERT INTO made VALUES (1, 1)",
        "ALTER PUBLICATION p ADD TABLE made",
    )
    staged: list[Manifest] = []
    first, first_xid = opened(source)
    run = threading.Thread(target=lambda: staged.append(source.stage()))
    with closing(first), caplog.at_level(logging.INFO):
        run.start()
        wait_until_it_waits_for(source, first_xid)
        second, second_xid = opened(source)
        source.execute("ALTER TABLE made RENAME before TO after")
        first.commit()
        wait_until_it_waits_for(source, second_xid)
        third = psycopg.connect(source.conninfo)
        third.execute("INSERT INTO made (id, after) VALUES (2, 2)")
        second.commit()
        second.close()
        # A slot that is made anew waits for it.
        run.join(2)
        third.commit()
        third.close()
        run.join(60)
    (copied,) = staged
    source.execute("INSERT INTO made (id, after) VALUES (3, 3)")
    batch = source.stage(checkpoint=checkpoint_of(copied))
    found = [
        [column.name for column in version.columns]
        for manifest in (copied, batch)
        for table in manifest.tables
        if table.name == "public.made"
        for version in table.versions
    ]
    assert found
    assert all(names == ["id", "after"] for names in found), found
    assert "made anew" in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE made RENAME id TO other",
        "ALTER TABLE made REPLICA IDENTITY FULL",
        "ALTER SCHEMA own RENAME TO other",
        "ALTER TYPE mood RENAME VALUE 'a' TO 'b'",
        "ALTER TYPE pair RENAME ATTRIBUTE x TO y",
        "ALTER PUBLICATION p ADD TABLE made",
        "CREATE TABLE another (id int)",
        "DROP TABLE made",
    ],
)
def test_each_alteration_changes_the_state_of_the_catalogs(source: Source, statement: str) -> None:
    source.execute(
        "CREATE SCHEMA own",
        "CREATE TYPE mood AS ENUM ('a')",
        "CREATE TYPE pair AS (x int)",
        "CREATE TABLE made (id int PRIMARY KEY, m mood)",
    )
    with sessions.connect(source.reader) as session:
        before = read_catalog_state(session)
        source.execute("INSERT INTO made VALUES (1)", "ANALYZE made", "CREATE TEMP TABLE x (a int)")
        assert read_catalog_state(session) == before
        source.execute(statement)
        assert read_catalog_state(session) != before
