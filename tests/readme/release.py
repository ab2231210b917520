"""``python -m tests.readme.release``: what ``make release`` runs. Build both archives, check and try them.

The wheel is built from the sdist, so the sdist has all that the wheel needs. A newcomer then does the
tutorial with this wheel in a new environment. Nothing is uploaded and no tag is made: a person does that.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from airflow_provider_pgoutput import __version__
from tests.lakes.programs import python_with
from tests.readme.__main__ import follow

ROOT = Path(__file__).resolve().parents[2]
_CHECKER = "twine==7.0.0"
_VERSION = re.compile(r"^## (\S+) \((\d{4}-\d{2}-\d{2}|unreleased)\)$", re.MULTILINE)


def newest_in_changelog() -> tuple[str, str]:
    """The first version of the changelog, and its date or ``unreleased``."""
    found = _VERSION.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert found, "CHANGELOG.md has no heading like '## 0.1.0 (unreleased)'"
    return found[1], found[2]


def build(folder: Path) -> tuple[Path, Path]:
    """Build sdist and wheel of this checkout; the same commit gives the same bytes.

    :returns: the sdist and the wheel.
    """
    uv = shutil.which("uv") or str(ROOT / ".quickstart" / "uv-venv" / "bin" / "uv")
    command = ["git", "log", "-1", "--format=%ct"]
    committed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": committed.stdout.strip()}
    build = [uv, "build", "--quiet", "--out-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, env=environment)
    (sdist,) = folder.glob(f"airflow_provider_pgoutput-{__version__}.tar.gz")
    (wheel,) = folder.glob(f"airflow_provider_pgoutput-{__version__}-*.whl")
    return sdist, wheel


def check(sdist: Path, wheel: Path) -> None:
    """What the package index would refuse, and files that belong to no release.

    :raises AssertionError: something is wrong; the message says what.
    """
    twine = python_with("release", _CHECKER) / "twine"
    command = [str(twine), "check", "--strict", str(sdist), str(wheel)]
    checked = subprocess.run(command, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with tarfile.open(sdist) as source:
        names = [each.partition("/")[2] for each in source.getnames()]
    assert {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} <= set(names)
    wrong = [each for each in names if "__pycache__" in each or each.startswith((".", "dist/"))]
    assert set(wrong) <= {".gitignore"}, wrong
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (each for each in archive.namelist() if each.endswith("/METADATA"))
        page = archive.read(metadata).decode()
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert links
    assert [each for each in links if not each.startswith(("https:", "#"))] == []


def main() -> int:
    """Build, check and try the release; say what is left to a person."""
    version, date = newest_in_changelog()
    assert version == __version__, (
        f"CHANGELOG.md begins with {version}, the package is {__version__}"
    )
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    sdist, wheel = build(folder)
    check(sdist, wheel)
    print(
        f"release: {sdist.name} and {wheel.name} are in dist/, and twine found nothing", flush=True
    )
    minutes = follow(wheel)
    print(f"release: the tutorial's first table came after {minutes:.1f} minutes", flush=True)
    if date == "unreleased":
        print(
            f"release: give {version} its date in CHANGELOG.md, then build again and tag v{version}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
