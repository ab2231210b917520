"""What a run refuses: slots, publications and sources that are not what the checkpoint says."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from airflow_provider_pgoutput.batch.answers import COPY
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.advance import SlotOnServer, advance_slot, move_slot
from airflow_provider_pgoutput.capture.request import CaptureRequest
from airflow_provider_pgoutput.capture.slot.replication_slot import create_slot
from airflow_provider_pgoutput.capture.source import session as sessions
from airflow_provider_pgoutput.capture.stream.options import SQL, WALSENDER
from airflow_provider_pgoutput.errors import (
    ConfigurationError,
    PgoutputError,
    PublicationMissing,
    SlotAheadOfCheckpoint,
    SlotBusy,
    SlotNotFound,
    SourceChanged,
    SourceUnavailable,
    ValueRefused,
    WrongSlot,
)
from airflow_provider_pgoutput.lake.checkpoint import Checkpoint
from tests.capture.pipeline_support import checkpoint_of

if TYPE_CHECKING:
    from airflow_provider_pgoutput.capture.source.catalog import Server
    from tests.capture.pipeline_support import Source

TRANSPORTS = [SQL, WALSENDER]


def refused(source: Source, error: type[PgoutputError], **options: Any) -> str:
    """Stage, expect the error, and that neither a batch nor a file remains."""
    before, confirmed = source.manifests(), source.confirmed()
    with pytest.raises(error) as caught:
        source.stage(**options)
    assert type(caught.value) is error
    assert source.manifests() == before
    assert source.confirmed() == confirmed
    return str(caught.value)


def test_a_slot_that_is_gone_is_not_made_anew(source: Source) -> None:
    first = source.stage()
    source.drop_slot(source.slot_name)
    refused(source, SlotNotFound, checkpoint=checkpoint_of(first))
    assert source.confirmed() is None


def test_a_slot_of_another_database_is_refused(source: Source) -> None:
    with psycopg.connect(source.conninfo, dbname="postgres", autocommit=True) as session:
        session.execute(
            f"SELECT pg_create_logical_replication_slot('{source.slot_name}', 'pgoutput')"
        )
    try:
        assert "'postgres'" in refused(source, WrongSlot)
    finally:
        source.drop_slot(source.slot_name)


def test_a_physical_slot_is_refused(source: Source) -> None:
    source.execute(f"SELECT pg_create_physical_replication_slot('{source.slot_name}')")
    try:
        assert "physical" in refused(source, WrongSlot)
    finally:
        source.drop_slot(source.slot_name)


def test_a_slot_of_another_plugin_is_refused(source: Source) -> None:
    try:
        source.make_slot("test_decoding")
    except psycopg.errors.UndefinedFile:
        pytest.skip("this server was built without test_decoding")
    assert "test_decoding" in refused(source, WrongSlot)


def test_a_temporary_slot_is_refused(source: Source) -> None:
    with psycopg.connect(source.conninfo, autocommit=True) as session:
        session.execute(
            f"SELECT pg_create_logical_replication_slot('{source.slot_name}', 'pgoutput', true)"
        )
        with pytest.raises(WrongSlot, match="temporary"):
            source.stage()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_slot_that_somebody_reads_is_busy(source: Source, transport: str) -> None:
    from airflow_provider_pgoutput.capture.stream.walsender import WalsenderStream

    checkpoint = checkpoint_of(source.stage())
    other = WalsenderStream(source.read(checkpoint.end_lsn, Lsn(2**62)))
    try:
        message = refused(source, SlotBusy, checkpoint=checkpoint, transport=transport)
        assert "PID" in message
    finally:
        other.close()
    source.stage(checkpoint=checkpoint, transport=transport)


def test_a_slot_that_moved_past_the_checkpoint_is_refused(source: Source) -> None:
    first = source.stage()
    source.execute("INSERT INTO t VALUES (1)")
    source.execute(
        f"SELECT pg_replication_slot_advance('{source.slot_name}', pg_current_wal_flush_lsn())"
    )
    refused(source, SlotAheadOfCheckpoint, checkpoint=checkpoint_of(first))


def test_another_system_is_refused(source: Source) -> None:
    checkpoint = dataclasses.replace(checkpoint_of(source.stage()), system_identifier="7")
    refused(source, SourceChanged, checkpoint=checkpoint)


def test_a_source_behind_the_lake_is_refused(source: Source) -> None:
    first = source.stage()
    refused(source, SourceChanged, checkpoint=Checkpoint(Lsn(2**62), first.system_identifier))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["nope", "a,b", 'a"b', "my pub"])
def test_a_missing_publication_is_refused(source: Source, transport: str, name: str) -> None:
    checkpoint = checkpoint_of(source.stage())
    source.execute("INSERT INTO t VALUES (1)")
    options = {"checkpoint": checkpoint, "transport": transport}
    refused(source, PublicationMissing, publication_names=["p", name], **options)
    quoted = name.replace('"', '""')
    source.execute(f'CREATE PUBLICATION "{quoted}" FOR TABLE t')
    source.execute("INSERT INTO t VALUES (2)")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["a,b", 'a"b', "my pub"])
def test_names_of_publications_are_quoted(source: Source, transport: str, name: str) -> None:
    quoted = name.replace('"', '""')
    source.execute(f'CREATE PUBLICATION "{quoted}" FOR TABLE t')
    checkpoint = checkpoint_of(source.stage(publication_names=[name]))
    source.execute("INSERT INTO t VALUES (1)")
    manifest = source.stage(publication_names=[name], checkpoint=checkpoint, transport=transport)
    assert [row["a"] for row in source.changes(manifest, "public.t")] == [1]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_publication_made_after_a_change_of_the_batch_is_refused(
    source: Source, transport: str
) -> None:
    checkpoint = checkpoint_of(source.stage())
    source.execute("DROP PUBLICATION p", "INSERT INTO t VALUES (1)")
    source.execute("CREATE PUBLICATION p FOR TABLE t", "INSERT INTO t VALUES (2)")
    options = {"checkpoint": checkpoint, "transport": transport, "on_slot_lost": COPY}
    # The slot is sound, so that option alone does nothing.
    message = refused(source, PublicationMissing, **options)
    assert "drop the slot and run once with on_slot_lost='copy'" in message
    source.drop_slot(source.slot_name)
    batch = source.stage(**options)
    assert sorted(row["a"] for row in source.copied(batch, "public.t")) == [1, 2]


def test_two_column_lists_for_one_table_are_explained(source: Source) -> None:
    source.execute("ALTER TABLE t ADD c int", "CREATE PUBLICATION q FOR TABLE t (a, b)")
    message = refused(source, ConfigurationError, publication_names=["p", "q"])
    assert "column list" in message
    assert "public.t" in message


def test_no_password_is_shown(source: Source) -> None:
    for conninfo in (
        "host=127.0.0.1 port=1 password=canary-secret",
        psycopg.conninfo.make_conninfo(source.conninfo, password="canary-secret"),
        "canary-secret",
    ):
        with pytest.raises((SourceUnavailable, ConfigurationError)) as caught:
            source.stage(conninfo=conninfo)
        assert "canary" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert "canary" not in repr(source.request(conninfo=conninfo))


@pytest.mark.parametrize(
    "options",
    [
        {"sslmode": "require"},
        {"sslmode": "verify-full", "sslrootcert": "/nowhere/ca.pem"},
        {"user": "nobody_here", "password": "canary-secret"},
        {"user": "canary_kept_out", "password": "canary-secret"},
        {"dbname": "no_such_database"},
    ],
)
def test_a_connection_that_the_server_does_not_take_fails_in_one_line(
    source: Source, options: dict[str, str]
) -> None:
    """B20: TLS, a missing CA, a wrong login, pg_hba.conf and a missing database; waiting helps with none."""
    (hba,) = source.execute("SHOW hba_file")[0]
    rules = Path(hba).read_text()
    Path(hba).write_text("host all canary_kept_out all reject\n" + rules)
    try:
        source.execute("SELECT pg_reload_conf()")
        time.sleep(0.3)
        message = refused(
            source,
            ConfigurationError,
            conninfo=psycopg.conninfo.make_conninfo(source.conninfo, **options),
        )
        assert "canary-secret" not in message
        assert "What to do" in message
    finally:
        Path(hba).write_text(rules)
        source.execute("SELECT pg_reload_conf()")


def test_a_value_that_does_not_fit_refuses_the_batch_when_told_so(source: Source) -> None:
    source.execute("ALTER TABLE t ADD ts timestamptz")
    checkpoint = checkpoint_of(source.stage())
    source.execute("INSERT INTO t VALUES (1, 'x', 'infinity')")
    message = refused(
        source, ValueRefused, checkpoint=checkpoint, value_policy={"timestamp": "fail"}
    )
    assert "infinity" not in message
    assert not list((source.staging / source.slot_name / "data").glob("*/*/changes*"))


@pytest.mark.parametrize(
    "options",
    [
        {"slot_name": "No"},
        {"slot_name": "../x"},
        {"transport": "carrier pigeon"},
        {"publication_names": []},
        {"publication_names": "p"},
        {"max_changes": 0},
        {"memory_mib": 0},
        {"copy_connections": 0},
    ],
)
def test_arguments_are_checked(options: dict[str, Any]) -> None:
    valid: dict[str, Any] = {
        "conninfo": "", "slot_name": "s", "publication_names": ["p"], "staging_uri": "/x",
    }  # fmt: skip
    CaptureRequest(**valid)
    with pytest.raises(ConfigurationError):
        CaptureRequest(**{**valid, **options})


def test_advance_moves_to_the_checkpoint_and_no_further(source: Source) -> None:
    first = source.stage()
    source.execute("INSERT INTO t VALUES (1)")
    second = source.stage(checkpoint=checkpoint_of(first))
    source.execute("INSERT INTO t VALUES (2)")
    for _ in range(2):
        assert advance_slot(source.reader, source.slot_name, second.end_lsn) == second.end_lsn
        assert source.confirmed() == str(second.end_lsn)
    # An older checkpoint is harmless: a later run was faster.
    assert advance_slot(source.reader, source.slot_name, first.end_lsn) == second.end_lsn
    third = source.stage(checkpoint=checkpoint_of(second))
    assert [row["a"] for row in source.changes(third, "public.t")] == [2]


def test_two_tables_that_are_called_by_one_name_are_refused(source: Source) -> None:
    """B25: ``copy_tables`` could mean either, and so could XCom and the options of apply."""
    source.execute(
        'CREATE SCHEMA "a.b"',
        "CREATE SCHEMA a",
        'CREATE TABLE "a.b".c(i int PRIMARY KEY)',
        'CREATE TABLE a."b.c"(i int PRIMARY KEY)',
        'ALTER PUBLICATION p ADD TABLE "a.b".c',
    )
    first = source.stage(copy_tables=["a.b.c"])
    source.execute('ALTER PUBLICATION p ADD TABLE a."b.c"')
    both = 'The published tables "a"."b.c" and "a.b"."c" have the same name as schema.table'
    assert both in refused(source, ConfigurationError, checkpoint=checkpoint_of(first))
    new = dataclasses.replace(source, slot_name=f"{source.slot_name}_new")
    assert both in refused(new, ConfigurationError)
    assert new.confirmed() is None


def test_advance_refuses_positions_that_are_none(source: Source) -> None:
    first = source.stage()
    with pytest.raises(ConfigurationError):
        advance_slot(source.reader, source.slot_name, Lsn(0))
    with pytest.raises(SourceChanged):
        advance_slot(source.reader, source.slot_name, Lsn(2**62))
    with pytest.raises(SlotNotFound):
        advance_slot(source.reader, "nobody_s_slot", first.end_lsn)
    assert source.confirmed() == str(first.end_lsn)


class _OvertakenSlot(SlotOnServer):
    """A slot that another run moves once it was looked at."""

    def __init__(self, session: Any, source: Source, moved_to: Lsn) -> None:
        super().__init__(session, source.reader, source.slot_name)
        self._moved_to = moved_to

    def move(self, lsn: Lsn) -> Lsn:
        advance_slot(self._conninfo, self.slot_name, self._moved_to)
        return super().move(lsn)


def test_a_later_run_that_is_faster_is_no_error(source: Source) -> None:
    first = source.stage()
    source.execute("INSERT INTO t VALUES (1)")
    second = source.stage(checkpoint=checkpoint_of(first))
    source.execute("INSERT INTO t VALUES (2)")
    third = source.stage(checkpoint=checkpoint_of(second))
    with sessions.connect(source.reader) as session:
        slot = _OvertakenSlot(session, source, third.end_lsn)
        assert move_slot(slot, second.end_lsn, first.system_identifier) == third.end_lsn
    assert source.confirmed() == str(third.end_lsn)


def test_two_first_runs_that_make_the_slot_at_the_same_time(source: Source) -> None:
    """The one that comes second is tried again, and finds what the other one made."""
    source.make_slot()
    with pytest.raises(SlotBusy, match="already exists"):
        create_slot(source.reader, source.slot_name, source.server())


class _FlushedFurther(SlotOnServer):
    """A slot whose server tells a position that it has not reached, as one does that has gone back since."""

    def server(self) -> Server:
        told = super().server()
        return dataclasses.replace(told, flush_lsn=Lsn(told.flush_lsn + (1 << 30)))


def test_a_server_that_moves_the_slot_less_far_than_asked_is_no_success(source: Source) -> None:
    """B24: past the end of its WAL the server moves a slot to that end only, and calls it done."""
    first = source.stage()
    source.execute("INSERT INTO t VALUES (1, 'flushed')")
    asked = Lsn(first.end_lsn + (1 << 29))
    with sessions.connect(source.reader) as session:
        slot = _FlushedFurther(session, source.reader, source.slot_name)
        with pytest.raises(SourceUnavailable, match=r"moved the slot to .* only") as refusal:
            move_slot(slot, asked, first.system_identifier)
    assert refusal.value.lsn == str(asked)
    reached = Lsn.parse(str(source.confirmed()))
    assert first.end_lsn < reached < asked
    assert f"to {reached} only" in str(refusal.value)
