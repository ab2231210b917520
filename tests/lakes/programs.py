"""Programs of other makers that tests start: how they come onto this machine, and how they end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quickstart.dag_runs import end_group
from quickstart.jars import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
#: Pipelines and environments.
FOLDER = ROOT / ".quickstart" / "lakes"
#: Jars, for all checkouts.
_JARS = cache_folder() / "lakes"
#: Not the user's own: spark-submit looks there, too, and fails if it finds a description without its jar.
MAVEN_REPOSITORY = _JARS / "maven"
_START_SECONDS = 120
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>lakes</groupId><artifactId>server</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_NOTHING_ELSE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


class Unavailable(Exception):
    """A program is not to be had on this machine; the message says which, and what it lacks."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def jars(name: str, *coordinates: str, alone: bool = False) -> list[Path]:
    """The jars of some coordinates (``group:name:version`` or ``group:name:version:classifier``), by Maven.

    :param name: of the folder that keeps them.
    :param alone: without what they depend on.
    :raises Unavailable: there is no Maven, or it does not find them.
    """
    folder = _JARS / name
    if not (folder / "complete").exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise Unavailable(f"There is no Maven, which fetches {', '.join(coordinates)}.")
        dependencies = []
        for each in coordinates:
            tags = ("groupId", "artifactId", "version", "classifier")
            parts = zip(tags, each.split(":"), strict=False)
            dependencies.append("".join(f"<{tag}>{text}</{tag}>" for tag, text in parts))
        # Else Maven also looks for what is not copied.
        without = _NOTHING_ELSE if alone else ""
        wrapped = "".join(f"<dependency>{each}{without}</dependency>" for each in dependencies)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(_POM.format(dependencies=wrapped), encoding="utf-8")
        only = ["-DincludeScope=runtime"]
        _run(
            *(maven, "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"),
            *(*only, f"-DoutputDirectory={folder}", f"-Dmaven.repo.local={MAVEN_REPOSITORY}"),
        )
        (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))


def archive(coordinates: str) -> Path:
    """An archive of a Maven repository (``group:name:version:kind``).

    :raises Unavailable: there is no Maven, or it does not find the archive.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"There is no Maven, which fetches {coordinates}.")
    _, name, version, kind = coordinates.split(":")
    found = _JARS / f"{name}-{version}.{kind}"
    if not found.exists():
        options = (f"-DoutputDirectory={_JARS}", f"-Dmaven.repo.local={MAVEN_REPOSITORY}")
        _run(maven, "-q", "-B", "dependency:copy", f"-Dartifact={coordinates}", *options)
    return found


def python_with(name: str, *packages: str) -> Path:
    """The ``bin`` of an environment of its own with some packages.

    :raises Unavailable: one of them cannot be installed.
    """
    folder = FOLDER / name
    if not (folder / "complete").exists():
        uv = shutil.which("uv") or str(ROOT / ".quickstart" / "uv-venv" / "bin" / "uv")
        python = str(folder / "bin" / "python")
        _run(uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
        _run(uv, "pip", "install", "--quiet", "--python", python, *packages)
        (folder / "complete").touch()
    return folder / "bin"


def npm_program(name: str, package: str) -> Path:
    """A program of one of npm's packages.

    :param package: with its version.
    :raises Unavailable: there is no npm, or the package cannot be installed.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable(f"There is no npm, which installs {package}.")
    folder = FOLDER / "npm" / package
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _run(npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", package)
        (folder / "complete").touch()
    return folder / "node_modules" / ".bin" / name


def answer_of(
    program: Sequence[Path],
    given: object,
    environment: Mapping[str, str] | None = None,
    *,
    canary: str,
) -> Any:
    """What a program of these tests prints as JSON, if it gets a request as JSON.

    :param canary: a secret of the request, which it may not print.
    """
    done = subprocess.run(
        program,
        input=json.dumps(given),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert canary not in done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def compiled(source: Path, class_path: Sequence[Path]) -> Path:
    """The folder with the classes of a Java source.

    :raises Unavailable: there is no compiler for Java.
    """
    compiler = shutil.which("javac")
    if compiler is None:
        raise Unavailable(f"There is no javac, which compiles {source.name}.")
    folder = FOLDER / "classes"
    folder.mkdir(parents=True, exist_ok=True)
    _run(compiler, "-d", str(folder), "-cp", os.pathsep.join(map(str, class_path)), str(source))
    return folder


@contextlib.contextmanager
def running(
    command: Sequence[str], port: int, log: Path, *, environment: dict[str, str] | None = None
) -> Iterator[None]:
    """Start a server and wait until it listens; end it afterwards.

    :param log: what it prints.
    :raises AssertionError: it ended, or does not listen in time.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
        )
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(port):
            text = f"{command[0]} does not listen on port {port}, see {log}"
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.2)
        yield
    finally:
        end_group(process)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _run(*command: str) -> None:
    result = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        raise Unavailable(f"{' '.join(command[:4])} failed: {result.stdout[-1500:]}")
