"""Prepares this checkout: uv, the locked Python packages, the two jars. Run by scripts/setup.

Only the standard library is used. What is there already is left alone, so a second run takes a
moment and needs no network. Nothing outside this checkout is written but uv's and our own cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / ".quickstart"
ENVIRONMENT = ROOT / ".venv"
STAMP = ENVIRONMENT / ".setup-stamp"
DISK_MIB = 3000  # The environment takes 1.4 GiB, uv's cache as much again while it is filled.
OLDEST_UV = (0, 8)  # Older ones cannot read the lock file's revision.
INDEX_VARIABLES = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")

# uv names each of the 200 packages; its last line counts them.
_PACKAGE_LINE = re.compile(r" [+~-] \S+==")

# What a tool printed -> what the reader should know, most specific first.
DIAGNOSES = (
    (r"No space left|os error 28|Errno 28", "The disk is full: free some space and run it again."),
    (
        r"certificate|UnknownIssuer|CERTIFICATE_VERIFY",
        (
            "The package index shows a certificate that this machine does not trust: let SSL_CERT_FILE "
            "name your network's certificate bundle."
        ),
    ),
    (
        r"dns error|resolve|connect|timed out|timeout|Network is unreachable|unreachable|proxy",
        "The package index could not be reached: check the network, or its proxy settings.",
    ),
    (
        r"No matching distribution|not found in the package registry|no wheels? with a matching",
        (
            "The package index lacks a package for this machine: Linux x86_64 or aarch64 with glibc, or "
            "macOS, is needed."
        ),
    ),
    (
        r"ensurepip|No module named venv",
        (
            "This Python cannot make virtual environments: install python3-venv (its name on Debian and "
            "Ubuntu), or uv."
        ),
    ),
)


def main() -> int:
    """Prepare everything; return the exit status."""
    os.chdir(ROOT)
    key = _environment_key()
    if STAMP.is_file() and STAMP.read_text() == key:
        say("the environment is up to date")
    else:
        _check_disk()
        uv = find_uv() or install_uv()
        install_packages(uv)
        STAMP.write_text(key)
    run(
        "the jars of Iceberg and of the SQLite catalog",
        [
            str(ENVIRONMENT / "bin" / "python"),
            "-c",
            (
                "import logging; logging.basicConfig(level='INFO', format='setup: %(message)s');"
                "from quickstart.spark import spark_jars; spark_jars()"
            ),
        ],
    )
    return 0


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"setup: {text}", flush=True)


def fail(text: str) -> None:
    """End with the sentence that says what is missing."""
    print(f"setup: FAILED. {text}", file=sys.stderr, flush=True)
    sys.exit(1)


def run(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a program, show what it prints, and end with a diagnosis if it fails."""
    say(what)
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    except OSError as error:
        fail(f"{command[0]} cannot be started: {error}")
    assert process.stdout is not None, "it is a pipe"
    lines = []
    for line in process.stdout:
        lines.append(line)
        if not _PACKAGE_LINE.match(line):
            print(f"  {line.rstrip()}", flush=True)
    if process.wait() != 0:
        fail(f"{diagnose(''.join(lines[-60:]))} (step: {what})")


def diagnose(output: str) -> str:
    """Return the sentence that explains a tool's output."""
    for pattern, sentence in DIAGNOSES:
        if re.search(pattern, output, re.IGNORECASE):
            return sentence
    return "The reason is in the lines above."


def find_uv() -> str | None:
    """Return a uv that is new enough: the machine's, or the one of an earlier setup."""
    for candidate in (shutil.which("uv"), str(STATE / "uv-venv" / "bin" / "uv")):
        if candidate is None:
            continue
        try:
            text = subprocess.run(
                [candidate, "--version"], check=True, capture_output=True, text=True
            ).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        match = re.search(r"(\d+)\.(\d+)", text)
        if match and (int(match.group(1)), int(match.group(2))) >= OLDEST_UV:
            return candidate
    return None


def install_uv() -> str:
    """Install uv into a folder of this checkout; the machine's Python is not changed."""
    folder = STATE / "uv-venv"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    uv = folder / "bin" / "uv"
    can_make_environments = (
        subprocess.run(
            [sys.executable, "-c", "import venv, ensurepip"], check=False, capture_output=True
        ).returncode
        == 0
    )
    if can_make_environments:
        run("a small environment for uv", [sys.executable, "-m", "venv", str(folder)])
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install"]
    else:
        # Debian and Ubuntu keep venv in a package of its own; a target folder needs only pip.
        found = subprocess.run(
            [sys.executable, "-m", "pip", "--version"], check=False, capture_output=True
        )
        if found.returncode != 0:
            fail(
                f"{sys.executable} has neither venv nor pip: install python3-venv (its name on "
                "Debian and Ubuntu), or uv."
            )
        pip = [sys.executable, "-m", "pip", "install", "--target", str(folder)]
    run("uv from the package index", [*pip, "--disable-pip-version-check", "--quiet", "uv"])
    return str(uv)


def install_packages(uv: str) -> None:
    """Install exactly what uv.lock names into .venv."""
    python = ["--python", sys.executable]
    index = _own_index()
    if index is None:
        run(
            "the packages of uv.lock (about 700 MB to download the first time)",
            [uv, "sync", "--frozen", "--no-progress", *python],
        )
        return
    # The lock file names the public index; a mirror serves the same files, with the same hashes.
    STATE.mkdir(exist_ok=True)
    requirements = STATE / "requirements.txt"
    own_index = {"UV_DEFAULT_INDEX": index}
    run(
        "the list of packages in uv.lock",
        [uv, "export", "--frozen", "--quiet", "--no-emit-project", "-o", str(requirements)],
    )
    if not (ENVIRONMENT / "bin" / "python").exists():
        run("the environment", [uv, "venv", *python, str(ENVIRONMENT)])
    target = ["--python", str(ENVIRONMENT / "bin" / "python")]
    run(
        "the packages of uv.lock, from this machine's package index",
        [uv, "pip", "install", "--no-progress", *target, "-r", str(requirements)],
        own_index,
    )
    run(
        "this package",
        [uv, "pip", "install", "--no-deps", *target, "--editable", str(ROOT)],
        own_index,
    )


def _own_index() -> str | None:
    """Return the package index that this machine is set up for, if it is not the public one."""
    for name in INDEX_VARIABLES:
        if os.environ.get(name):
            return os.environ[name]
    result = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        check=False,
        capture_output=True,
        text=True,
    )
    return result.stdout.strip() or None if result.returncode == 0 else None


def _environment_key() -> str:
    """Return what the environment depends on, as one hash."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("uv.lock", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _check_disk() -> None:
    free_mib = shutil.disk_usage(ROOT).free >> 20
    needed = DISK_MIB if not ENVIRONMENT.is_dir() else DISK_MIB // 4
    if free_mib < needed:
        fail(f"The disk of {ROOT} has {free_mib} MiB free; {needed} MiB are needed.")


if __name__ == "__main__":
    sys.exit(main())
