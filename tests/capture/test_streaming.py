"""Streamed and prepared transactions of a real server: the same batches as when it sends them whole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.capture.pgoutput.reassemble import Reassembler
from airflow_provider_pgoutput.capture.stream.cut import BatchCut, Limits
from airflow_provider_pgoutput.capture.stream.options import StreamOptions
from airflow_provider_pgoutput.capture.stream.read import located
from airflow_provider_pgoutput.errors import BatchRefused, ProtocolError, SlotBusy, WrongSlot
from tests.capture.pgoutput import encode
from tests.capture.pgoutput.support import chunk_of
from tests.capture.pipeline_support import checkpoint_of
from tests.sweep import slow_but_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider_pgoutput.batch.manifest import Manifest
    from tests.capture.pipeline_support import Source

TRANSPORTS = ("sql", "walsender")
TWO_PHASE = StreamOptions(two_phase=True)
WHOLE = StreamOptions(proto_version=1)


@pytest.fixture
def streaming(source: Source) -> Source:
    """A source whose server streams every transaction (version 15: every one of some size)."""
    (version, database) = source.execute(
        "SELECT current_setting('server_version_num')::int, current_database()"
    )[0]
    setting = (
        "debug_logical_replication_streaming = immediate"
        if version >= 160000
        else "logical_decoding_work_mem = '64kB'"
    )
    source.execute(
        f"ALTER DATABASE {database} SET {setting}",
        "CREATE TABLE u(a int PRIMARY KEY, b text)",
        "ALTER TABLE u ALTER b SET STORAGE EXTERNAL",
        "ALTER PUBLICATION p ADD TABLE u",
    )
    return source


def write(source: Source) -> None:
    """Transactions that interleave, with savepoints, changes of shape, TOAST and truncates."""
    large = "INSERT INTO t SELECT g, repeat(g::text, 60) FROM generate_series({}, {}) g"
    with (
        psycopg.connect(source.conninfo) as first,
        psycopg.connect(source.conninfo) as second,
    ):
        first.execute(large.format(1, 900))
        second.execute(large.format(1001, 1900))
        first.execute("SAVEPOINT a")
        first.execute(large.format(2001, 2900))
        first.execute("SAVEPOINT b")
        first.execute("INSERT INTO u VALUES (1, repeat('toast', 4000))")
        second.execute("UPDATE t SET b = 'second' WHERE a < 1100")
        first.execute("ROLLBACK TO a")
        source.execute("INSERT INTO t VALUES (-1, 'between')")
        first.execute("INSERT INTO u VALUES (2, repeat('toast', 4000))")
        first.execute("UPDATE u SET a = 3")
        second.commit()
        first.execute(large.format(3001, 3900))
        first.execute("DELETE FROM t WHERE a % 7 = 0 AND a < 800")
        first.commit()
        first.execute(large.format(4001, 4900))
        first.rollback()
        first.execute("ALTER TABLE t ADD c int DEFAULT 7")
        first.execute("INSERT INTO t SELECT g, 'c', g FROM generate_series(5001, 5900) g")
        first.execute("SAVEPOINT a")
        first.execute("ALTER TABLE t ADD d int")
        first.execute("INSERT INTO t SELECT g, 'd', g, g FROM generate_series(6001, 6900) g")
        first.execute("ROLLBACK TO a")
        first.execute("INSERT INTO t SELECT g, 'e', g FROM generate_series(7001, 7900) g")
        first.commit()
    source.execute(
        "INSERT INTO t VALUES (-2, 'after', 1)",
        "TRUNCATE u",
        "INSERT INTO u SELECT g, 'new' FROM generate_series(1, 900) g",
    )


def content(source: Source, manifest: Manifest) -> dict[str, Any]:
    """What a batch holds, without the places of its files."""
    return {
        each.name: (
            [version.columns for version in each.versions],
            [_with_flags(row) for row in source.changes(manifest, each.name)],
        )
        for each in manifest.tables
    }


def _with_flags(row: dict[str, Any]) -> dict[str, Any]:
    """NULL in the flag of an unchanged value means no: how rows meet in a file depends on the clock."""
    return {
        name: bool(value) if name in {"u0", "u1", "u2", "u3"} else value
        for name, value in row.items()
    }


@pytest.mark.parametrize("transport", slow_but_each(2, TRANSPORTS))
def test_every_version_stages_the_same(streaming: Source, transport: str) -> None:
    source = streaming
    source.make_slot()
    write(source)
    (version,) = source.execute("SELECT current_setting('server_version_num')::int")[0]
    asked: list[dict[str, Any]] = [
        {"proto_version": 2, "streaming": "off"},
        {"proto_version": 2},
        {"proto_version": 3},
    ]
    if version >= 160000:
        asked += [{"proto_version": 4}, {"streaming": "parallel"}]
    staged = {}
    for number, options in enumerate([{"proto_version": 1}, *asked]):
        slot = f"{source.slot_name}_{transport}_{number}"
        source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
        manifest = source.stage(
            slot_name=slot,
            initial_copy="never",
            transport=transport,
            options=StreamOptions(**options),
        )
        staged[number] = content(source, manifest)
        source.drop_slot(slot)
    rows = staged[0]["public.t"][1]
    assert len(rows) > 4000
    assert {row["a"] for row in rows} & {2500, 4500, 6500} == set()
    for found in staged.values():
        assert found == staged[0]


LARGE_ROWS = "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series({0}0001, {0}1500) g"
#: Large subtransactions that are rolled back: with all of a transaction that has nothing else, or something
#: before them, or a change of shape; alone, in a transaction that is prepared and rolled back, or commits.
#: And a small one in a large transaction.
ROLLED_BACK = [
    ("SAVEPOINT s", LARGE_ROWS.format(1), "ROLLBACK"),
    ("INSERT INTO t VALUES (-1, 'no')", "SAVEPOINT s", LARGE_ROWS.format(2), "ROLLBACK"),
    (
        *(
            "SAVEPOINT s",
            LARGE_ROWS.format(3),
            "RELEASE s",
            "SAVEPOINT r",
            "ALTER TABLE t ADD c int",
        ),
        *(LARGE_ROWS.format(4), "ROLLBACK"),
    ),
    (
        *("SAVEPOINT s", LARGE_ROWS.format(5), "ROLLBACK TO s", "INSERT INTO t VALUES (-2, 'no')"),
        *("PREPARE TRANSACTION 'g'", "ROLLBACK PREPARED 'g'"),
    ),
    (
        *("SAVEPOINT s", LARGE_ROWS.format(6), "ROLLBACK TO s", "INSERT INTO t VALUES (-3, 'yes')"),
        "COMMIT",
    ),
    (
        "SAVEPOINT s",
        "INSERT INTO t VALUES (-4, 'no')",
        "RELEASE s",
        LARGE_ROWS.format(7),
        "ROLLBACK",
    ),
]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_large_subtransaction_that_was_rolled_back_changes_nothing(
    prepares: Source, transport: str, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL 18 tells of the rollback of subtransactions of which it never sent anything."""
    source = prepares
    ((version, database),) = source.execute(
        "SELECT current_setting('server_version_num')::int / 10000, current_database()"
    )
    source.execute(f"ALTER DATABASE {database} SET logical_decoding_work_mem = '64kB'")
    lake = checkpoint_of(source.stage(options=TWO_PHASE))
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        for number, statements in enumerate(ROLLED_BACK):
            session.execute("BEGIN")
            for statement in statements:
                session.execute(statement.encode())
            session.execute("INSERT INTO t VALUES (%s, 'after')", (number,))
    # It does so also when it streams nothing, in every version of the protocol.
    options: tuple[dict[str, Any], ...] = (
        {},
        {"binary": True},
        {"streaming": "off"},
        {"proto_version": 1},
    )
    asked: list[dict[str, Any]] = [{"options": StreamOptions(**each)} for each in options]
    asked += [{"options": StreamOptions(streaming="parallel")}] if version > 15 else []
    asked += [{"decode_parallelism": 2, "part_bytes": 30_000}] if transport == "sql" else []
    prepared = {"options": TWO_PHASE, "slot_name": source.slot_name}
    for number, given in enumerate([*asked, prepared]):
        slot = f"{source.slot_name}_{number}"
        source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
        caplog.clear()
        with caplog.at_level("INFO"):
            batch = source.stage(
                **{"slot_name": slot, "initial_copy": "never", "transport": transport, **given},
                **({"checkpoint": lake} if given is prepared else {}),
            )
        assert keys(source, batch) == [0, 1, 2, 3, -3, 4, 5], given
        told = [each for each in caplog.messages if "it had sent nothing of them" in each]
        assert len(told) == (version > 17), told
        assert not [each for each in caplog.messages if "Reading again" in each]
        source.drop_slot(slot)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_an_unfinished_transaction_comes_with_its_commit(streaming: Source, transport: str) -> None:
    source = streaming
    first = source.stage(transport=transport)
    with psycopg.connect(source.conninfo) as session:
        session.execute("INSERT INTO t SELECT g, 'open' FROM generate_series(1, 2000) g")
        source.execute("INSERT INTO t VALUES (-1, 'other')")
        second = source.stage(checkpoint=checkpoint_of(first), transport=transport)
        assert [row["a"] for row in source.changes(second, "public.t")] == [-1]
        session.execute("INSERT INTO t VALUES (3000, 'open')")
        session.commit()
    advance_slot(source.reader, source.slot_name, second.end_lsn)
    third = source.stage(checkpoint=checkpoint_of(second), transport=transport)
    assert [row["a"] for row in source.changes(third, "public.t")] == [*range(1, 2001), 3000]


def test_slices_go_past_a_streamed_transaction(streaming: Source) -> None:
    """A limit makes short answers, of which some hold no commit at all."""
    source = streaming
    checkpoint = checkpoint_of(source.stage())
    write(source)
    seen = []
    while True:
        batch = source.stage(checkpoint=checkpoint, max_changes=10)
        if batch.end_lsn == checkpoint.end_lsn or not batch.changes:
            break
        seen += source.changes(batch, "public.t") if "public.t" in names(batch) else []
        checkpoint = checkpoint_of(batch)
    assert len({(row["commit_lsn"], row["seq"]) for row in seen}) == len(seen)
    assert len(seen) > 4000


def names(batch: Manifest) -> set[str]:
    return {each.name for each in batch.tables}


@pytest.fixture
def prepares(source: Source) -> Iterator[Source]:
    """A source of which no prepared transaction outlives the test."""
    yield source
    for (gid,) in source.execute(
        "SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()"
    ):
        source.execute(f"ROLLBACK PREPARED {gid}")


def prepare(source: Source, gid: str, *statements: str) -> None:
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute("BEGIN")
        for statement in statements:
            session.execute(statement.encode())
        session.execute(f"PREPARE TRANSACTION '{gid}'".encode())


def keys(source: Source, batch: Manifest) -> list[int]:
    return [row["a"] for row in source.changes(batch, "public.t")] if batch.tables else []


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("stream", [False, True])
def test_prepared_rows_wait_across_batches(
    prepares: Source, transport: str, stream: bool, request: pytest.FixtureRequest
) -> None:
    source = prepares
    if stream:
        request.getfixturevalue("streaming")
    how: dict[str, Any] = {"transport": transport, "options": TWO_PHASE}
    batch = source.stage(**how)
    slots = f"pg_replication_slots WHERE slot_name = '{source.slot_name}'"
    assert source.execute(f"SELECT two_phase FROM {slots}") == [(True,)]
    gid = """it's ../a "gid"; DROP TABLE t""" + "x" * 150
    prepare(
        source,
        gid.replace("'", "''"),
        "INSERT INTO t VALUES (1, 'x')",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (2, 'lost')",
        "ROLLBACK TO s",
        "INSERT INTO t SELECT g, repeat('y', 100) FROM generate_series(1000, 3000) g",
    )
    prepare(source, "never", "INSERT INTO t VALUES (3, 'rolled back')")
    source.execute("INSERT INTO t VALUES (99, 'between')")
    for step in range(3):
        batch = source.stage(checkpoint=checkpoint_of(batch), **how)
        assert keys(source, batch) == ([99] if step == 0 else [])
        assert [each.gid for each in batch.prepared] == [gid, "never"]
        advance_slot(source.reader, source.slot_name, batch.end_lsn)
    source.execute("ROLLBACK PREPARED 'never'", "INSERT INTO t VALUES (100, 'z')")
    quoted = gid.replace("'", "''")
    source.execute(f"COMMIT PREPARED '{quoted}'", "INSERT INTO t VALUES (101, 'z')")
    batch = source.stage(checkpoint=checkpoint_of(batch), **how)
    assert keys(source, batch) == [100, 1, *range(1000, 3001), 101]
    assert not batch.prepared


def test_prepared_transactions_that_changed_nothing(prepares: Source) -> None:
    """Of some, older servers send a lone COMMIT PREPARED, or a lone Prepare before it."""
    source = prepares
    source.execute("INSERT INTO t VALUES (1, 'x')")
    batch = source.stage(options=TWO_PHASE)
    for number, end in enumerate(["COMMIT", "ROLLBACK", "COMMIT"]):
        prepare(source, "empty", "SELECT * FROM t FOR SHARE")
        if number == 2:
            batch = source.stage(checkpoint=checkpoint_of(batch), options=TWO_PHASE)
        source.execute(f"{end} PREPARED 'empty'", f"INSERT INTO t VALUES ({number + 2}, 'x')")
        batch = source.stage(checkpoint=checkpoint_of(batch), options=TWO_PHASE)
        assert keys(source, batch) == [number + 2]
        assert not batch.prepared


def test_two_phase_stages_what_a_plain_read_stages(prepares: Source) -> None:
    source = prepares
    source.make_slot()
    start = source.confirmed()
    for number, end in enumerate(["COMMIT", "ROLLBACK", "COMMIT", "COMMIT"]):
        insert = f"INSERT INTO t SELECT {number} * 1000 + g, 'p' FROM generate_series(1, 500) g"
        prepare(source, "again", insert, "UPDATE t SET b = 'u' WHERE a % 3 = 0")
        source.execute(f"INSERT INTO t VALUES ({-number - 1}, 'x')")
        source.execute(f"{end} PREPARED 'again'")
    staged = []
    for number, options in enumerate((WHOLE, TWO_PHASE)):
        slot = f"{source.slot_name}_{number}"
        source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
        manifest = source.stage(slot_name=slot, initial_copy="never", options=options)
        assert str(manifest.start_lsn) == start
        staged.append(content(source, manifest))
    assert staged[0] == staged[1]
    assert len(staged[0]["public.t"][1]) > 1500


def test_a_limit_leaves_later_ends_to_the_next_batch(prepares: Source) -> None:
    """The read goes past the end of the batch: what it sees there has not happened yet."""
    source = prepares
    batch = source.stage(options=TWO_PHASE)
    prepare(source, "g", "INSERT INTO t VALUES (1, 'g')")
    source.execute("INSERT INTO t VALUES (2, 'x')")
    source.execute("COMMIT PREPARED 'g'")
    source.execute("INSERT INTO t VALUES (3, 'x')")
    found = []
    for _ in range(3):
        batch = source.stage(checkpoint=checkpoint_of(batch), max_changes=1, options=TWO_PHASE)
        found.append((keys(source, batch), [each.gid for each in batch.prepared]))
        advance_slot(source.reader, source.slot_name, batch.end_lsn)
    assert found == [([2], ["g"]), ([1], []), ([3], [])]


def test_a_limit_bounds_what_the_server_answers(prepares: Source) -> None:
    """Of short transactions the answer may end before the limit is reached, and the batch with it."""
    source = prepares
    batch = source.stage(options=TWO_PHASE)
    prepare(source, "g", "INSERT INTO t VALUES (0, 'g')")
    short = "BEGIN FOR i IN 1..4000 LOOP INSERT INTO t VALUES (i, 'x'); COMMIT; END LOOP; END"
    source.execute(f"DO $$ {short} $$", "COMMIT PREPARED 'g'")
    found = []
    for _ in range(2):
        batch = source.stage(checkpoint=checkpoint_of(batch), max_changes=8000, options=TWO_PHASE)
        found.append((keys(source, batch), [each.gid for each in batch.prepared]))
    (first, waiting), (second, none) = found
    assert 2000 < len(first) < 4000
    assert [*first, *second] == [*range(1, 4001), 0]
    assert (waiting, none) == (["g"], [])


def test_rows_prepared_before_a_copy_are_not_lost(prepares: Source) -> None:
    """A slot that exists already, with a transaction prepared between its start and the copy."""
    source = prepares
    source.execute(
        f"SELECT pg_create_logical_replication_slot('{source.slot_name}', 'pgoutput', false, true)",
        "INSERT INTO t VALUES (1, 'copied')",
    )
    batch = source.stage(options=TWO_PHASE)
    assert [row["a"] for row in source.copied(batch, "public.t")] == [1]
    assert batch.start_lsn < batch.end_lsn
    assert not batch.prepared


def test_a_slot_that_reads_two_phase_is_refused_without_it(source: Source) -> None:
    batch = source.stage(options=TWO_PHASE)
    with pytest.raises(WrongSlot, match="two_phase"):
        source.stage(checkpoint=checkpoint_of(batch))


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("harm", "words"), [(damage, "damaged"), (Path.unlink, "missing")])
def test_a_prepared_file_that_is_not_the_one_sealed_is_refused(
    prepares: Source, harm: Callable[[Path], None], words: str
) -> None:
    source = prepares
    batch = source.stage(options=TWO_PHASE)
    prepare(source, "g", "INSERT INTO t VALUES (1, 'g')")
    batch = source.stage(checkpoint=checkpoint_of(batch), options=TWO_PHASE)
    advance_slot(source.reader, source.slot_name, batch.end_lsn)
    (staged,) = batch.prepared
    harm(source.staging / staged.path)
    source.execute("COMMIT PREPARED 'g'")
    with pytest.raises(BatchRefused, match=words):
        source.stage(checkpoint=checkpoint_of(batch), options=TWO_PHASE)


def test_a_commit_whose_prepare_was_never_staged_is_refused(prepares: Source) -> None:
    source = prepares
    batch = source.stage(options=TWO_PHASE)
    prepare(source, "g", "INSERT INTO t VALUES (1, 'g')")
    batch = source.stage(checkpoint=checkpoint_of(batch), options=TWO_PHASE)
    advance_slot(source.reader, source.slot_name, batch.end_lsn)
    for name in source.manifests():
        (source.staging / source.slot_name / "manifests" / name).unlink()
    source.execute("COMMIT PREPARED 'g'")
    with pytest.raises(ProtocolError, match="COMMIT PREPARED") as refused:
        source.stage(checkpoint=checkpoint_of(batch), options=TWO_PHASE)
    assert refused.value.slot == source.slot_name
    assert refused.value.lsn
    assert refused.value.advice


def test_an_error_in_the_bytes_names_slot_position_and_offset() -> None:
    """Of what is streamed the decoder knows no LSN: the last one that was read to its end is named."""
    cut = BatchCut(Lsn(0x40), Lsn(0x80), Limits())
    with pytest.raises(ProtocolError) as refused, located("orders", cut):
        list(Reassembler(4).take(chunk_of([encode.stream_commit(700, 0x48)])))
    assert (refused.value.slot, refused.value.lsn) == ("orders", "0/40")
    assert refused.value.message.endswith("transaction 700 was not streamed, at byte 1.")


def test_origins_are_left_out_on_every_version(source: Source) -> None:
    """From version 16 on by the server, before by the decoder."""
    source.make_slot()
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute("INSERT INTO t VALUES (1, 'local')")
        session.execute("SELECT pg_replication_origin_create('up')")
        session.execute("SELECT pg_replication_origin_session_setup('up')")
        session.execute("INSERT INTO t VALUES (2, 'remote'), (3, 'remote')")
        session.execute("SELECT pg_replication_origin_session_reset()")
        session.execute("INSERT INTO t VALUES (4, 'local')")
        session.execute("SELECT pg_replication_origin_drop('up')")
    every = source.stage(initial_copy="never", options=StreamOptions(origin="any"))
    assert keys(source, every) == [1, 2, 3, 4]
    slot = f"{source.slot_name}_none"
    source.execute(f"SELECT pg_copy_logical_replication_slot('{source.slot_name}', '{slot}')")
    own = source.stage(slot_name=slot, initial_copy="never", options=StreamOptions(origin="none"))
    assert keys(source, own) == [1, 4]


def test_two_phase_is_switched_on_at_the_checkpoint_only(prepares: Source) -> None:
    """A transaction prepared between the slot and the lake would be passed by unread."""
    source = prepares
    first = source.stage()
    prepare(source, "g", "INSERT INTO t VALUES (1, 'g')")
    second = source.stage(checkpoint=checkpoint_of(first))
    with pytest.raises(SlotBusy, match="switched on at the checkpoint"):
        source.stage(checkpoint=checkpoint_of(second), options=TWO_PHASE)
    advance_slot(source.reader, source.slot_name, second.end_lsn)
    source.execute("COMMIT PREPARED 'g'")
    third = source.stage(checkpoint=checkpoint_of(second), options=TWO_PHASE)
    assert keys(source, third) == [1]


@pytest.mark.further
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_f08_a_reader_killed_with_an_unfinished_transaction_on_its_disk(
    streaming: Source,
    transport: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it had spilled is removed by the next reader, which reads the transaction again, whole."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    lake = checkpoint_of(streaming.stage())
    rows = 80_000
    with psycopg.connect(streaming.conninfo) as unfinished:
        unfinished.execute(
            f"INSERT INTO u SELECT g, repeat(md5(g::text), 32) FROM generate_series(1, {rows}) g"
        )
        streaming.execute("INSERT INTO t VALUES (1, 'committed meanwhile')")
        options = {"transport": transport, "checkpoint": lake}
        assert streaming.stage_in_process("stage.after_spill:2", **options) == -9
        (spilled,) = scratch.glob("pgoutput-spill-*/*")
        unfinished.commit()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    whole = streaming.stage(**options)
    assert len(streaming.changes(whole, "public.t")) == 1
    found = [row["a"] for row in streaming.changes(whole, "public.u")]
    assert len(found) == len(set(found)) == rows
    assert not spilled.exists()
