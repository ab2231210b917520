"""The page of a pipeline that runs, that of ``make airflow``, in a real browser.

``make browser-test IMAGES=1`` also keeps the screenshots that the documentation shows. It takes some minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from quickstart.place import DemoPlace
from tests.browser.programs import chromium_and_python
from tests.quickstart.running_airflow import running_airflow

_LOOK = Path(__file__).with_name("look_at_demo.py")
_ROOT = Path(__file__).parents[2]
_IMAGES = _ROOT / "docs" / "images"
_RUNS = 5


@pytest.mark.submit
@pytest.mark.exhaustive
def test_charts_of_a_running_pipeline() -> None:
    chromium, python = chromium_and_python()
    checkout = Path(tempfile.mkdtemp(prefix="pgoutput-tests-airflow-"))
    checkout.chmod(0o755)
    try:
        with running_airflow(DemoPlace(checkout)) as airflow:
            facts = airflow.facts_of_runs(_RUNS)
            airflow.verify()
            command = [python, str(_LOOK), airflow.url, chromium, str(checkout)]
            environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=300
            )
            assert done.returncode == 0, done.stderr[-3000:]
            seen = json.loads(done.stdout)
        if os.environ.get("IMAGES"):
            for name in ("one", "in_navigation"):
                shutil.copy(checkout / f"{name}.png", _IMAGES / f"page_{name}.png")
    finally:
        shutil.rmtree(checkout, ignore_errors=True)
    assert seen["errors"] == []
    assert len(seen["figures"]) == 4
    # The first run makes the slot, so it has no figure of the WAL that is kept for it.
    assert all(points >= _RUNS - 1 for points in seen["figures"]), seen["figures"]
    tables = {name for each in facts for name in each["tables"]}
    assert tables >= {"public.pgbench_accounts", "public.pgbench_history"}
    assert all(name in seen["one"] for name in tables)
    assert "4 of 4 tables equal" in seen["one"]
    assert "The newest run ended" in seen["one"] or "A run is" in seen["one"]
    assert "/shop/demo" in seen["in_navigation"] or "demo" in seen["in_navigation"]
