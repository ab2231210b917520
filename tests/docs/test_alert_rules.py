"""The alert rules on the page of metrics, evaluated by Prometheus's own ``promtool`` (Debian's package)."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgoutput.tasks import metrics
from tests.debian import NotHere, unpacked

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "events.md"
_GAUGES = {
    f"airflow_{value.replace('.', '_')}"
    for value in vars(metrics).values()
    if isinstance(value, str) and value.startswith("pgoutput.")
}
_APPLIED = "airflow_pgoutput_apply_seconds"


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return str(unpacked("prometheus", "prometheus") / "usr" / "bin" / "promtool")
    except NotHere as error:
        pytest.skip(str(error))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    (found,) = re.findall(r"^```yaml\n(groups:\n.*?)^```$", _PAGE.read_text(), re.M | re.S)
    path = tmp_path / "rules.yml"
    path.write_text(found)
    return path


def test_the_rules_ask_for_gauges_that_are_sent(promtool: str, rules: Path) -> None:
    named = set(re.findall(r"airflow_pgoutput_\w+", rules.read_text()))
    assert len(_GAUGES) == 7
    assert len(named) == 4
    assert named <= _GAUGES
    done = subprocess.run(
        [promtool, "check", "rules", str(rules)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "4 rules found" in done.stdout


#: What was sent for the slot ``shop`` in each minute of an hour, and which alerts fire at its end. None: a
#: value in the first half only. Another slot sends all the time.
_CASES: list[tuple[dict[str, float | None], dict[str, str]]] = [
    ({}, {}),
    (
        {"airflow_pgoutput_retained_bytes": 25e9},
        {"PgoutputRetainedWal": "The server keeps 23.28GiB of WAL for slot shop."},
    ),
    ({"airflow_pgoutput_retained_bytes": 19e9}, {}),
    (
        {"airflow_pgoutput_freshness_seconds": 1200},
        {"PgoutputFreshness": "The lake of slot shop is 20m 0s behind."},
    ),
    ({"airflow_pgoutput_freshness_seconds": 800}, {}),
    (
        {"airflow_pgoutput_proof_age_seconds": 3 * 86400},
        {"PgoutputProofStale": "A table of slot shop was last verified 3d 0h 0m 0s ago."},
    ),
    ({"airflow_pgoutput_proof_age_seconds": 86400}, {}),
    (
        {_APPLIED: None},
        {"PgoutputNoRun": "No apply of slot shop succeeded for 15 minutes."},
    ),
]
_SEVERITY = {"PgoutputRetainedWal": "page", "PgoutputNoRun": "page"}


def asked(alerts: list[str], sent: dict[str, float | None], fires: dict[str, str]) -> Any:
    """A case as promtool takes it."""
    series = [{"series": f'{_APPLIED}{{slot="other"}}', "values": "5x60"}] + [
        {
            "series": f'{name}{{slot="shop"}}',
            "values": "5x30" if value is None else f"{value:.0f}x60",
        }
        for name, value in ({_APPLIED: 5.0} | sent).items()
    ]
    expected: dict[str, list[dict[str, Any]]] = {name: [] for name in alerts}
    for name, summary in fires.items():
        labels = {"severity": _SEVERITY.get(name, "warn"), "slot": "shop"}
        expected[name] = [{"exp_labels": labels, "exp_annotations": {"summary": summary}}]
    return {
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": "1h", "alertname": name, "exp_alerts": found}
            for name, found in expected.items()
        ],
    }


def evaluate(promtool: str, rules: Path, cases: Any) -> subprocess.CompletedProcess[str]:
    alerts = re.findall(r"alert: (\w+)", rules.read_text())
    test = {
        "rule_files": [rules.name],
        "evaluation_interval": "1m",
        "tests": [asked(alerts, sent, fires) for sent, fires in cases],
    }
    path = rules.with_name("test.yml")
    path.write_text(json.dumps(test))  # Which is YAML.
    command = [promtool, "test", "rules", str(path)]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_an_alert_fires_past_its_limit_and_not_before(promtool: str, rules: Path) -> None:
    done = evaluate(promtool, rules, _CASES)
    assert done.returncode == 0, done.stdout + done.stderr
    # promtool would notice.
    assert evaluate(promtool, rules, [(_CASES[1][0], {})]).returncode != 0
