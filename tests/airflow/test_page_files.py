"""The page's app by itself: files, and what a browser may do with them. ``tests/browser`` looks at it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pgoutput.page.plugin import STATIC, URL_PREFIX, PgoutputPlugin, page_app

if TYPE_CHECKING:
    from starlette.testclient import TestClient

#: Without empty lines and comments. It is read and mended without tools.
_MOST_LINES_OF_CODE = 800


@pytest.fixture(scope="module")
def client() -> TestClient:
    from starlette.testclient import TestClient

    return TestClient(page_app, raise_server_exceptions=False)


def test_it_is_files_that_ask_nobody_but_this_host(client: TestClient) -> None:
    answer = client.get("/")
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    for path in STATIC.iterdir():
        text = client.get(f"/{path.name}").text
        assert text == path.read_text()
        assert set(re.findall(r"https?://[^/\"' ]+", text)) <= {"http://www.w3.org"}
        assert "innerHTML" not in text
        assert not re.search(r"\son[a-z]+=|style=", text)


def test_its_scripts_and_styles_are_there(client: TestClient) -> None:
    for path in STATIC.iterdir():
        named = re.findall(r"(?:src|href)=\"([^\"]+)\"|from \"\./([^\"]+)\"", path.read_text())
        for found in (one or other for one, other in named):
            assert client.get(f"/{found}").status_code == 200, found


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/nothing", "/../plugin.py"])
def test_nothing_else_is_there(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "content-security-policy" in answer.headers


def test_it_stays_small() -> None:
    lines = [line.strip() for path in STATIC.iterdir() for line in path.read_text().splitlines()]
    code = [line for line in lines if line and not line.startswith("//")]
    assert len(code) < _MOST_LINES_OF_CODE


def test_airflow_shows_it_in_the_navigation_and_on_each_dag() -> None:
    assert [each["url_prefix"] for each in PgoutputPlugin.fastapi_apps] == [URL_PREFIX]
    shown = {each["destination"]: each["href"] for each in PgoutputPlugin.external_views}
    assert shown == {"nav": "/pgoutput/", "dag": "/pgoutput/?dag_id={DAG_ID}"}


@pytest.mark.slow
def test_a_setting_takes_it_out() -> None:
    asked = (
        "from airflow_provider_pgoutput.page.plugin import PgoutputPlugin as page;"
        "print(len(page.fastapi_apps), len(page.external_views))"
    )
    environment = {**os.environ, "AIRFLOW__PGOUTPUT__PAGE": "False"}
    done = subprocess.run(
        [sys.executable, "-c", asked], check=True, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split()[-2:] == ["0", "0"]
