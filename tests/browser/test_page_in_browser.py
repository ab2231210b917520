"""The page in a real browser, in a real Airflow, with what a hundred runs of a pipeline told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.seed import MARKUP
from tests.lakes.programs import Unavailable, free_port, python_with, running

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[2]
_LOOK = Path(__file__).with_name("look.py")
#: Screenshots that the documentation shows. ``make browser-test IMAGES=1`` takes them again.
_IMAGES = ("one", "in_navigation")
_DAGS = """
from airflow.sdk import DAG, task

for name in ("shop_dag", "danger_dag", "copy_dag", "verify_dag"):
    with DAG(name, schedule=None) as dag:

        @task
        def apply():
            pass

        apply()
    globals()[name] = dag
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What a person sees on the pages of an Airflow of its own."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("There is no Chromium (Debian's package chromium).")
    try:
        python = python_with("browser", "playwright==1.64.0") / "python"
    except Unavailable as error:
        pytest.skip(str(error))
    home, port = tmp_path_factory.mktemp("airflow"), free_port()
    (home / "dags").mkdir()
    (home / "dags" / "pipelines.py").write_text(_DAGS)
    (home / "passwords.json").write_text('{"ann": "a password"}')
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }
    airflow = [sys.executable, "-m", "airflow"]
    for command in (
        [*airflow, "db", "migrate"],
        [*airflow, "dags", "reserialize"],
        [*airflow, "dags", "trigger", "--run-id", "first", "copy_dag"],
        [sys.executable, "-m", "tests.browser.seed"],
    ):
        done = subprocess.run(
            command, env=environment, cwd=_ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    server = [*airflow, "api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with running(server, port, home / "api-server.log", environment=environment):
        base = f"http://127.0.0.1:{port}"
        command = [str(python), str(_LOOK), base, chromium, "ann", "a password", str(home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        if os.environ.get("IMAGES"):
            for name in _IMAGES:
                shutil.copy(home / f"{name}.png", _ROOT / "docs" / "images" / f"page_{name}.png")
        yield json.loads(done.stdout)


def test_who_did_not_log_in_sees_nothing(seen: dict[str, Any]) -> None:
    assert seen["anonymous"].startswith("Airflow refused /api/v2/assets.")


def test_all_pipelines_the_worst_first(seen: dict[str, Any]) -> None:
    text = seen["all"]
    assert text.index("app/danger") < text.index("app/shop")
    assert "slot in danger" in text
    assert "At the end of the newest run that was 2 min behind the source." in text


def test_one_pipeline_with_a_thousand_tables(seen: dict[str, Any]) -> None:
    assert seen["figures"] == 4
    assert seen["rows"] == 201
    assert "800 more. Search to see them." in seen["one"]
    assert seen["most_inserts"].startswith("public.t0999")
    assert seen["searched"].startswith("public.t0777")


def test_what_a_user_named_is_text_and_no_markup(seen: dict[str, Any]) -> None:
    assert MARKUP in seen["one"]
    assert seen["title"] == "PostgreSQL to Iceberg"


def test_the_pipeline_of_a_dag(seen: dict[str, Any]) -> None:
    assert seen["of_dag"].startswith("db.example.com:5432/app/danger")
    assert "The server may remove WAL that the slot needs." in seen["of_dag"]
    assert seen["of_no_dag"].startswith("No run of this DAG has applied a batch yet")


def test_what_was_proven(seen: dict[str, Any]) -> None:
    assert "proven 3.0 h ago" in seen["all"]
    assert "not proven" in seen["all"]
    proven = "1,000 of 1,000 tables, 123,456 rows, were proven equal at LSN 0/640, 3.0 h ago."
    assert proven in seen["one"]
    assert "The lake was never verified" in seen["of_dag"]


def test_how_far_a_first_copy_is(seen: dict[str, Any]) -> None:
    assert "task apply copies: 3 of 12 tables, 1.2 GB of about 4.8 GB; " in seen["copying"]
    assert "; 6,000,000 rows, 50,000 rows/s; about 6 min left." in seen["copying"]


def test_it_can_be_read_on_a_phone_and_in_the_dark(seen: dict[str, Any]) -> None:
    assert seen["overflow"] <= 0
    assert seen["ground"] == "rgb(13, 17, 23)"


def test_airflow_shows_it_in_its_frames(seen: dict[str, Any]) -> None:
    assert "app/danger" in seen["in_navigation"]
    assert "app/shop" in seen["in_navigation"]
    assert seen["on_dag"].startswith("db.example.com:5432/app/danger")


def test_nobody_else_is_asked_and_nothing_is_refused(seen: dict[str, Any]) -> None:
    assert len(seen["hosts"]) == 1
    assert seen["hosts"][0].startswith("127.0.0.1:")
    assert seen["errors"] == []
    print({name: value for name, value in seen.items() if name.endswith("_seconds")})
