"""The wheel as a user gets it: what is in it, and that Airflow finds the provider through it."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import airflow_provider_pgoutput

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built as a release would be."""
    # The one that scripts/setup installs when there is none.
    uv = shutil.which("uv") or str(ROOT / ".quickstart" / "uv-venv" / "bin" / "uv")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [uv, "build", "--wheel", "--quiet", "--out-dir", str(folder), str(ROOT)], check=True
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    version = airflow_provider_pgoutput.__version__
    tops = {name.split("/")[0] for name in names}
    assert tops == {"airflow_provider_pgoutput", f"airflow_provider_pgoutput-{version}.dist-info"}
    assert "airflow_provider_pgoutput/py.typed" in names
    package = ROOT / "airflow_provider_pgoutput"
    sources = {
        f"airflow_provider_pgoutput/{path.relative_to(package)}" for path in package.rglob("*.py")
    }
    assert sources <= set(names)
    assert not [name for name in names if "test" in name.lower() or "__pycache__" in name]


@pytest.mark.slow
def test_it_declares_its_entry_point_and_does_not_pull_in_spark(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            name.rpartition("/")[2]: archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith(("METADATA", "entry_points.txt"))
        }
    points = configparser.ConfigParser()
    points.read_string(texts["entry_points.txt"])
    target = points["apache_airflow_provider"]["provider_info"]
    assert target == "airflow_provider_pgoutput.provider_info:get_provider_info"
    assert points["console_scripts"]["pgoutput"] == "airflow_provider_pgoutput.cli.script:main"
    required = [
        line for line in texts["METADATA"].splitlines() if line.startswith("Requires-Dist:")
    ]
    assert not [line for line in required if "pyspark" in line and "extra ==" not in line]


@pytest.mark.slow
def test_airflow_finds_the_provider_through_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Unpacked in front of everything else, as an installation without a source tree would be."""
    target = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    environment = {**os.environ, "PYTHONPATH": str(target), "AIRFLOW_HOME": str(tmp_path / "home")}
    environment.pop("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", None)
    code = "import airflow_provider_pgoutput as p; print(p.__file__)"
    origin = subprocess.run(
        [sys.executable, "-c", code],
        check=True, capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert origin.stdout.startswith(str(target))
    arguments = ["airflow-provider-pgoutput", "--full", "--output", "json"]
    found = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "get", *arguments],
        check=True, capture_output=True, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert "airflow_provider_pgoutput.operators.stage" in found.stdout
    assert airflow_provider_pgoutput.__version__ in found.stdout
