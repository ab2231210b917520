"""Where replicated transactions come from, as a real server says it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

ORIGIN_COLUMNS = {"origin", "origin_lsn"}
both_transports = pytest.mark.parametrize("transport", ["sql", "walsender"])


@pytest.fixture
def up(source: Source) -> Iterator[str]:
    """An origin that the server has as long as the test runs."""
    source.execute("SELECT pg_replication_origin_create('up')")
    yield "up"
    source.execute("SELECT pg_replication_origin_drop('up')")


def replicate(source: Source, lsn: str | None, *statements: str, end: str = "COMMIT") -> None:
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute("SELECT pg_replication_origin_session_setup('up')")
        session.execute("BEGIN")
        if lsn is not None:
            session.execute(f"SELECT pg_replication_origin_xact_setup('{lsn}', now())")
        for statement in statements:
            session.execute(statement)
        session.execute(end)


def origins(source: Source, manifest: Manifest) -> list[tuple[Any, ...]]:
    rows = source.changes(manifest, "public.t")
    return [(row["a"], row.get("origin"), row.get("origin_lsn")) for row in rows]


@both_transports
@pytest.mark.parametrize("proto_version", [None, 1])
def test_c88_an_origin_is_that_of_its_transaction_alone(
    source: Source, up: str, transport: str, proto_version: int | None
) -> None:
    how: dict[str, Any] = {
        "transport": transport,
        "options": StreamOptions(proto_version=proto_version),
    }
    batch = source.stage(**how)
    source.execute("INSERT INTO t VALUES (1)")
    replicate(source, "1/AABBCCDD", "INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (3)")
    source.execute("INSERT INTO t VALUES (4)")
    replicate(source, None, "INSERT INTO t VALUES (5)")
    batch = source.stage(checkpoint=checkpoint_of(batch), **how)
    lsn = 0x1_AABB_CCDD
    found = origins(source, batch)
    assert found == [(1, None, None), (2, up, lsn), (3, up, lsn), (4, None, None), (5, up, None)]
    source.execute("INSERT INTO t VALUES (6)")
    batch = source.stage(checkpoint=checkpoint_of(batch), **how)
    (file,) = batch.tables[0].versions[0].files
    assert not ORIGIN_COLUMNS & set(file.columns)


@both_transports
def test_a_large_transaction_keeps_its_origin(source: Source, up: str, transport: str) -> None:
    """The server does not name the origin of what it streams, so it is not asked to stream."""
    (database,) = source.execute("SELECT current_database()")[0]
    source.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    large = "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 3000) g"
    first = source.stage(transport=transport)
    replicate(source, "0/10", large)
    batch = source.stage(checkpoint=checkpoint_of(first), transport=transport)
    assert {each[1:] for each in origins(source, batch)} == {(up, 0x10)}


@both_transports
def test_what_is_replicated_in_large_is_left_out_too(
    source: Source, up: str, transport: str
) -> None:
    (database,) = source.execute("SELECT current_database()")[0]
    source.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    how: dict[str, Any] = {"transport": transport, "options": StreamOptions(origin="none")}
    batch = source.stage(**how)
    replicate(
        source, "0/10", "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 3000) g"
    )
    source.execute("INSERT INTO t VALUES (-1)")
    batch = source.stage(checkpoint=checkpoint_of(batch), **how)
    assert origins(source, batch) == [(-1, None, None)]


@both_transports
def test_a_prepared_transaction_has_its_origin(source: Source, up: str, transport: str) -> None:
    how: dict[str, Any] = {"transport": transport, "options": StreamOptions(two_phase=True)}
    batch = source.stage(**how)
    replicate(source, "0/10", "INSERT INTO t VALUES (1)", end="PREPARE TRANSACTION 'g'")
    batch = source.stage(checkpoint=checkpoint_of(batch), **how)
    source.execute("COMMIT PREPARED 'g'")
    batch = source.stage(checkpoint=checkpoint_of(batch), **how)
    assert origins(source, batch) == [(1, up, 0x10)]


def test_c85_to_c88_are_the_same_with_every_version(source: Source, up: str) -> None:
    """Origins and logical messages, over both transports with each protocol version of the server."""
    source.make_slot()
    source.execute("INSERT INTO t VALUES (1, 'local')")
    emit = "SELECT pg_logical_emit_message(true, 'app', 'replicated')"
    replicate(source, "1/AABBCCDD", "INSERT INTO t VALUES (2)", emit, "SAVEPOINT s")
    replicate(source, None, "INSERT INTO t VALUES (3)")
    source.execute(
        "SELECT pg_logical_emit_message(false, 'app', 'alone')", "SELECT pg_switch_wal()"
    )
    source.execute("INSERT INTO t VALUES (4)")
    (server,) = source.execute("SELECT current_setting('server_version_num')::int")[0]
    versions = range(1, 5 if server >= 160000 else 4)
    slot = f"{source.slot_name}_copy"
    for origin, messages in itertools.product(("any", "none"), (False, True)):
        staged = []
        for transport, version in itertools.product(("sql", "walsender"), versions):
            source.execute(
                f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')"
            )
            options = StreamOptions(version, origin=origin, messages=messages)
            # Elsewhere, or the batch that was sealed first would be found again.
            folder = f"{origin}-{messages}-{transport}-{version}"
            way = dataclasses.replace(source, slot_name=slot, staging=source.staging / folder)
            batch = way.stage(initial_copy="never", transport=transport, options=options)
            staged.append((way.changes(batch, "public.t"), way.messages(batch)))
            source.drop_slot(slot)
        keys = [row["a"] for row in staged[0][0]]
        assert keys == ([1, 2, 3, 4] if origin == "any" else [1, 4])
        assert all(each == staged[0] for each in staged), (origin, messages)
        contents = {row["content"] for row in staged[0][1]}
        assert (b"alone" in contents) == messages
        assert (b"replicated" in contents) == (messages and origin == "any")
