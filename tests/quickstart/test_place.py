"""The demo's folders: one demo at a time, leftovers of a killed one are ended, failures are shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError, SourceError
from quickstart.dag_runs import end_group
from quickstart.pgbench import Load
from quickstart.place import DAG_ID, DemoPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quickstart.postgres import EmbeddedPostgres


@pytest.fixture
def place() -> Iterator[DemoPlace]:
    checkout = Path(tempfile.mkdtemp(prefix="pgoutput-tests-demo-"))
    checkout.chmod(0o755)
    yield DemoPlace(checkout)
    shutil.rmtree(checkout, ignore_errors=True)


def test_the_place_of_this_checkout_has_the_example_dag() -> None:
    place = DemoPlace.of_this_checkout()
    assert (place.checkout / "dags_examples" / f"{DAG_ID}.py").is_file()


def test_a_second_demo_of_one_checkout_is_refused(place: DemoPlace) -> None:
    with place.locked(), pytest.raises(ConfigurationError, match="Another `make demo`"):  # noqa: SIM117
        with DemoPlace(place.checkout).locked():
            pytest.fail("two demos at once")
    with place.locked():
        assert place.state.is_dir()


def test_what_a_killed_demo_left_running_is_ended(place: DemoPlace) -> None:
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "PGOUTPUT_DEMO": str(place.state)},
    )
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "PGOUTPUT_DEMO": "/another/checkout"},
    )
    try:
        with place.locked():
            assert left.wait(10) != 0
            assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_a_program_that_ignores_the_polite_signal_is_ended_with_its_children() -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    end_group(process)
    assert process.poll() is not None
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"
    process.stdout.close()


def test_the_environment_names_each_connection_once_and_secrets_only_there(
    place: DemoPlace, postgres_server: EmbeddedPostgres
) -> None:
    place.clear()
    environment = place.environment(postgres_server)
    source = json.loads(environment["AIRFLOW_CONN_POSTGRES_DEFAULT"])
    assert source["port"] == postgres_server.port
    assert source["password"] == postgres_server.password
    lake = json.loads(environment["AIRFLOW_CONN_ICEBERG_DEFAULT"])
    assert lake["extra"]["uri"] == f"sqlite:///{place.lake.catalog_file}"
    written = [path.read_text() for path in place.state.rglob("*") if path.is_file()]
    assert written
    assert all(postgres_server.password not in text for text in written)
    place.clear()


def test_a_load_that_cannot_run_is_noticed(
    place: DemoPlace, postgres_server: EmbeddedPostgres
) -> None:
    """There is no demo database on this server."""
    log_path = place.checkout / "pgbench.log"
    with Load(postgres_server, log_path) as load:
        assert load.wait(30) != 0
        with pytest.raises(SourceError, match="ended too early"):
            load.check()
