"""Runs one engine in a Python environment of its own, which uv makes from the package index."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.engines.reader import PACKAGES
from tests.engines.trino_server import VERSION, trino

ROOT = Path(__file__).parents[2]
_READER = Path(__file__).with_name("reader.py")
_SECONDS = 600


def read_with(
    engine: str, request: list[dict[str, Any]], home: Path
) -> tuple[str, dict[str, dict[str, Any]]]:
    """The engine's version, and its answer for each table that it did not die of.

    :param home: where the environments are.
    """
    python = _python(engine, home)
    if engine != "trino":
        return _answers(engine, python, request, {})
    with trino(home, python.parents[1]) as port:
        _, answers = _answers(engine, python, request, {"TRINO_PORT": str(port)})
    return VERSION, answers


def _answers(
    engine: str, python: Path, request: list[dict[str, Any]], variables: dict[str, str]
) -> tuple[str, dict[str, dict[str, Any]]]:
    answers: dict[str, dict[str, Any]] = {}
    version, waiting = "", list(request)
    while waiting:
        ended = subprocess.run(
            [str(python), str(_READER), engine],
            input=json.dumps(waiting),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={**os.environ, **variables},
            check=False,
        )
        first, *lines = ended.stdout.splitlines() or [""]
        assert first, f"{engine} does not start: {ended.stderr[-2000:]}"
        version = json.loads(first)["version"]
        answers |= {each["name"]: each for each in map(json.loads, lines)}
        # The engine's process died of the next table. The others get a process of their own.
        waiting = waiting[len(lines) + 1 :]
    return version, answers


def _python(engine: str, home: Path) -> Path:
    """The Python that has the newest version of an engine. The page says on which day that was."""
    folder = home / engine
    python = folder / "bin" / "python"
    uv = _uv()
    if not python.exists():
        make = ["venv", "--quiet", "--clear", "--python", sys.executable, str(folder)]
        subprocess.run([uv, *make], check=True)
    install = ["pip", "install", "--quiet", "--upgrade", "--python", str(python)]
    subprocess.run([uv, *install, *PACKAGES[engine]], check=True)
    return python


def _uv() -> str:
    """The machine's uv, or the one that ``make setup`` installed."""
    return shutil.which("uv") or str(ROOT / ".quickstart" / "uv-venv" / "bin" / "uv")
