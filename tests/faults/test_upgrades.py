"""F48: the source is moved to a newer major version with pg_upgrade, with its slot or without.

pg_upgrade makes another system of it, with an identifier of its own, and takes logical slots along from
version 17 on. What must hold is that no run takes the new server for the old one. What is not here: versions
below 16, of which there are no client programs on a test machine.

Source: https://www.postgresql.org/docs/current/pgupgrade.html
"""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.capture.advance import advance_slot
from airflow_provider_pgoutput.errors import SourceChanged
from quickstart.binaries import account_options, find_installation, server_account
from quickstart.postgres import HOST, SUPERUSER, EmbeddedPostgres
from tests.capture.pipeline_support import Source, checkpoint_of
from tests.faults.waiting_slot import new_source

if TYPE_CHECKING:
    from pathlib import Path

_NEWEST = 18
#: What autovacuum commits would count as changes that a slot lacks, and pg_upgrade would refuse the slot.
_SETTINGS = {"fsync": "off", "autovacuum": "off"}


def server(home: Path, major: int) -> EmbeddedPostgres:
    return EmbeddedPostgres(
        home,
        installation=find_installation(major),
        settings=_SETTINGS,
        authentication="trust",
    )


def run(home: Path, program: Path, *arguments: str) -> None:
    """Run a program of PostgreSQL's as the account of the servers, in a folder that it may write to."""
    account = server_account()
    place = home / "work"
    place.mkdir(exist_ok=True)
    if account is not None:
        os.chown(place, account.uid, account.gid)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    done = subprocess.run(
        [str(program), *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=place,
        env={**environment, "LC_ALL": "C"},
        **account_options(account),
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def upgraded(home: Path, old: EmbeddedPostgres) -> EmbeddedPostgres:
    """Stop a server and move its databases to the newest version."""
    old.stop()
    new = server(home / "new", _NEWEST)
    new.home.mkdir()
    account = server_account()
    if account is not None:
        os.chown(new.home, account.uid, account.gid)
    checksums = [] if old.major >= _NEWEST else ["--no-data-checksums"]
    run(
        home,
        new.installation.program("initdb"),
        f"--pgdata={new.data_directory}",
        f"--username={SUPERUSER}",
        "--auth=trust",
        "--encoding=UTF8",
        "--no-locale",
        "--no-sync",
        *checksums,
    )
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind((HOST, 0))
        ports = [str(each.getsockname()[1]) for each in (first, second)]
    logical = "-c wal_level=logical -c max_replication_slots=20 -c fsync=off"
    run(
        home,
        new.installation.program("pg_upgrade"),
        f"--old-bindir={old.installation.bin_directory}",
        f"--new-bindir={new.installation.bin_directory}",
        f"--old-datadir={old.data_directory}",
        f"--new-datadir={new.data_directory}",
        f"--old-options={logical}",
        f"--new-options={logical}",
        f"--old-port={ports[0]}",
        f"--new-port={ports[1]}",
        f"--username={SUPERUSER}",
        "--no-sync",
    )
    return new


@pytest.mark.parametrize("major", [16, pytest.param(18, marks=pytest.mark.exhaustive)])
def test_f48_an_upgraded_source_is_another_one(
    server_home: Path, tmp_path: Path, major: int
) -> None:
    """With version 18 the slot comes along, as it does from 17 on; before, it does not."""
    with server(server_home / "old", major) as old:
        source = new_source(old.conninfo(), tmp_path)
        source.execute("INSERT INTO t SELECT g, 'before' FROM generate_series(1, 10) g")
        batch = source.stage()
        checkpoint = checkpoint_of(source.stage(checkpoint=checkpoint_of(batch)))
        # pg_upgrade refuses a slot that lacks changes.
        advance_slot(source.reader, source.slot_name, checkpoint.end_lsn)
        new = upgraded(server_home, old)
    sealed = source.manifests()
    with new:
        source = Source(new.conninfo(), source.slot_name, tmp_path)
        kept = source.confirmed()
        assert (kept is not None) == (major >= 17)
        source.execute("INSERT INTO t VALUES (11, 'after')")
        for transport in ("sql", "walsender"):
            with pytest.raises(SourceChanged, match="system") as stop:
                source.stage(checkpoint=checkpoint, transport=transport, on_slot_lost="copy")
            assert stop.value.advice
        with pytest.raises(SourceChanged):
            advance_slot(
                source.reader, source.slot_name, checkpoint.end_lsn, checkpoint.system_identifier
            )
        assert (source.manifests(), source.confirmed()) == (sealed, kept)
        # The way on is the one that the error names: what the lake gets from the new source is a copy.
        fresh = Source(new.conninfo(), f"{source.slot_name}_new", tmp_path)
        assert len(fresh.copied(fresh.stage(), "public.t")) == 11
