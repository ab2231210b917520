"""Runs a PostgreSQL server of our own on this machine: TCP on 127.0.0.1, logical replication on.

For demonstrations and tests. It is not a way to run a production server, it never touches a server
that it did not start, and it downloads nothing (`binaries.py` finds the programs).

Layout of a server's home folder::

    <home>/data/         PGDATA, owned by the account that runs the server
    <home>/password      the superuser's generated password, readable by us only
    <home>/server.log    what the server printed
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

from airflow_provider_pgoutput.errors import ConfigurationError, SourceUnavailable
from quickstart.binaries import (
    Installation,
    account_options,
    can_enter,
    find_installation,
    readable_by,
    server_account,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

log = logging.getLogger(__name__)

SUPERUSER = "postgres"
HOST = "127.0.0.1"
# https://www.postgresql.org/docs/current/server-shutdown.html
_STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
StopMode = Literal["fast", "immediate"]

DEFAULT_SETTINGS: dict[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",  # Socket paths are limited to 107 bytes; TCP has no such limit.
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_ATTEMPTS = 20
_STATUS_LINE = 7  # postmaster.pid holds the server's status in its eighth line.


class EmbeddedPostgres:
    """A PostgreSQL server that lives in one folder and stops with the process that started it.

    :param home: the server's folder; made if missing. A server that an earlier process left behind
        in it is stopped first.
    :param major: the major version to look for.
    :param installation: programs to use in place of those that `find_installation` finds.
    :param settings: server settings added to `DEFAULT_SETTINGS`; they win.
    :param authentication: how TCP clients prove who they are; ``trust`` needs no password.
    :param port: the TCP port; a free one is chosen if it is None, and kept over restarts.
    :raises ConfigurationError: no programs of that version, or nobody to run them as.

    Use it as a context manager, or call `start` and `stop`. On Linux the kernel also stops the
    server when the thread that called `start` ends, so call it from the main thread.
    """

    def __init__(
        self,
        home: Path,
        *,
        major: int = 18,
        installation: Installation | None = None,
        settings: Mapping[str, str] | None = None,
        authentication: Literal["scram-sha-256", "trust"] = "scram-sha-256",
        port: int | None = None,
    ) -> None:
        self.home = home.absolute()
        self.data_directory = self.home / "data"
        self.log_path = self.home / "server.log"
        self._account = server_account()
        self.installation = readable_by(self._account, installation or find_installation(major))
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._authentication = authentication
        self._port = port
        self._password = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def version(self) -> str:
        """The server's version, such as ``18.6``."""
        return self.installation.version

    @property
    def major(self) -> int:
        """The server's major version, such as 18."""
        return self.installation.major

    @property
    def port(self) -> int:
        """The TCP port on 127.0.0.1; known after the first `start`."""
        if self._port is None:
            raise ConfigurationError("The PostgreSQL server has no port before its first start.")
        return self._port

    @property
    def password(self) -> str:
        """The superuser's password; empty if authentication is ``trust``."""
        return self._password

    @property
    def is_running(self) -> bool:
        """Whether the server that this object started is alive."""
        return self._process is not None and self._process.poll() is None

    def conninfo(self, dbname: str = "postgres", user: str = SUPERUSER) -> str:
        """Return a libpq URI of one database; the superuser's holds the password."""
        secret = (
            f":{quote(self._password, safe='')}" if self._password and user == SUPERUSER else ""
        )
        return f"postgresql://{quote(user, safe='')}{secret}@{HOST}:{self.port}/{quote(dbname, safe='')}"

    def start(self) -> EmbeddedPostgres:
        """Create the database cluster if there is none, start the server and wait until it is ready.

        :raises SourceUnavailable: the server ended or was not ready in time; the message holds the
            end of its log.
        """
        if self.is_running:
            return self
        self._prepare_home()
        self._stop_leftover()
        if not (self.data_directory / "PG_VERSION").is_file():
            self._initialise()
        self._password = self._read_password()
        chosen_here = self._port is None
        for attempt in range(_ATTEMPTS):
            port = self._port or _free_port()
            if self._launch(port):
                self._port = port
                log.info("PostgreSQL %s is ready on %s:%d", self.version, HOST, port)
                return self
            if "pre-existing shared memory block" in self._log_tail():
                time.sleep(1)  # Children of a server that was killed take a moment to notice.
                continue
            # Another process took the port between our look and the server's bind.
            if not chosen_here or "Address already in use" not in self._log_tail():
                break
            log.info("port %d was taken, trying another (attempt %d)", port, attempt + 1)
        raise SourceUnavailable(
            f"PostgreSQL {self.version} in {self.home} did not start. Its log ends with: "
            f"{self._log_tail()}"
        )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server; ``immediate`` is a crash: the next start recovers from the WAL.

        :raises SourceUnavailable: it was still there after a minute, and has been killed.
        """
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(_STOP_SIGNALS[mode])
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired as error:
                self.kill()
                raise SourceUnavailable(
                    f"PostgreSQL {self.version} in {self.home} did not stop ({mode}) within "
                    f"{_STOP_SECONDS:.0f} seconds and was killed."
                ) from error
        self._process = None

    def kill(self) -> None:
        """Kill the server's main process with SIGKILL; its children notice and end by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(
        self, mode: StopMode = "fast", settings: Mapping[str, str] | None = None
    ) -> EmbeddedPostgres:
        """Stop and start again on the same port, with further settings if given."""
        self.stop(mode)
        self.settings.update(settings or {})
        return self.start()

    def destroy(self) -> None:
        """Stop the server and remove its folder."""
        self.stop("immediate")
        self._stop_leftover()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> EmbeddedPostgres:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _prepare_home(self) -> None:
        self.home.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.home.chmod(0o755)
        if self._account is not None and not can_enter(self.home, self._account):
            raise ConfigurationError(
                f"PostgreSQL cannot run as root, and the account {self._account.name} that would "
                f"run it may not enter {self.home}.",
                advice="choose a folder whose parents every user may enter, such as /var/tmp.",
            )
        if not (self.data_directory / "PG_VERSION").is_file():
            # What an interrupted initdb left is worth nothing, and initdb refuses to reuse it.
            shutil.rmtree(self.data_directory, ignore_errors=True)
        self.data_directory.mkdir(mode=0o700, exist_ok=True)
        if self._account is not None:
            os.chown(self.data_directory, self._account.uid, self._account.gid)

    def _initialise(self) -> None:
        """Run initdb in a folder that becomes ``data`` only when it is complete."""
        unfinished = self.home / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        password = secrets.token_urlsafe(24)
        password_file = unfinished.with_name("password.initdb")
        _write_private(password_file, password + "\n")
        if self._account is not None:
            os.chown(unfinished, self._account.uid, self._account.gid)
            os.chown(password_file, self._account.uid, self._account.gid)
        command = [
            str(self.installation.program("initdb")),
            f"--pgdata={unfinished}",
            f"--username={SUPERUSER}",
            f"--auth={self._authentication}",
            f"--pwfile={password_file}",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ]
        try:
            result = subprocess.run(
                command,
                check=False,
                capture_output=True,
                text=True,
                cwd="/",
                env=_server_environment(),
                **account_options(self._account),
            )
        finally:
            password_file.unlink()
        if result.returncode != 0:
            raise SourceUnavailable(
                f"initdb of PostgreSQL {self.version} failed in {self.home}: "
                f"{(result.stderr or result.stdout).strip()[-1000:]}"
            )
        _write_private(self.home / "password", password if self._authentication != "trust" else "")
        self.data_directory.rmdir()
        unfinished.rename(self.data_directory)

    def _read_password(self) -> str:
        path = self.home / "password"
        return path.read_text() if path.is_file() else ""

    def _launch(self, port: int) -> bool:
        """Start the server process and wait; False if it ended instead of becoming ready."""
        command = [str(self.installation.program("postgres")), "-D", str(self.data_directory)]
        for name, value in {**self.settings, "port": str(port)}.items():
            command += ["-c", f"{name}={value}"]
        with self.log_path.open("wb") as server_log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=server_log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=_server_environment(),
                # Ctrl-C in a terminal reaches the whole foreground group; stopping is ours to do.
                start_new_session=True,
                preexec_fn=_stop_with_parent(),  # noqa: PLW1509 - see there
                **account_options(self._account),
            )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                self._process = None
                return False
            if self._is_ready(self._process.pid):
                return True
            time.sleep(0.02)
        self.kill()
        return False

    def _is_ready(self, pid: int) -> bool:
        """Read the server's own statement, the way pg_ctl does."""
        lines = self._pid_file_lines()
        return (
            len(lines) > _STATUS_LINE
            and lines[0].strip() == str(pid)
            and lines[_STATUS_LINE].strip() == "ready"
        )

    def _pid_file_lines(self) -> list[str]:
        try:
            return (self.data_directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _stop_leftover(self) -> None:
        """Stop a server that an earlier, killed process of ours left running in this folder."""
        lines = self._pid_file_lines()
        if not lines or not _is_server_of(int(lines[0]), self.data_directory):
            return
        pid = int(lines[0])
        log.info("stopping the PostgreSQL server (process %d) that an earlier run left", pid)
        for mode in ("fast", "immediate"):
            try:
                os.kill(pid, _STOP_SIGNALS[mode])
            except ProcessLookupError:
                return
            deadline = time.monotonic() + _STOP_SECONDS / 4
            while time.monotonic() < deadline:
                if not _is_server_of(pid, self.data_directory):
                    return
                time.sleep(0.05)
        raise SourceUnavailable(
            f"A PostgreSQL server (process {pid}) still runs in {self.home} and does not stop.",
            advice=f"end it by hand: kill -9 {pid}",
        )

    def _log_tail(self) -> str:
        if not self.log_path.is_file():
            return "(no log was written)"
        return " | ".join(self.log_path.read_text(errors="replace").splitlines()[-8:])


def _is_server_of(pid: int, data_directory: Path) -> bool:
    """Whether the process is a server of that folder: a number alone may have been used again."""
    if not sys.platform.startswith("linux"):
        command = ["ps", "-o", "command=", "-p", str(pid)]
        text = subprocess.run(command, check=False, capture_output=True, text=True).stdout
        return str(data_directory) in text
    try:
        words = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return os.fsencode(data_directory) in words  # The cmdline of a zombie is empty.


def _stop_with_parent() -> Callable[[], None] | None:
    """Return what the child must run so that the kernel stops it when its parent dies (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    # Loaded here: between fork and exec a child of a threaded process must not wait for a lock,
    # and the partial below makes one system call and nothing else.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return functools.partial(prctl, set_parent_death_signal, int(signal.SIGINT), 0, 0, 0)


def _server_environment() -> dict[str, str]:
    """The caller's environment without the variables that would steer a server or initdb."""
    steering = ("PG", "LC_", "LANG", "TZ", "LD_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    return {**kept, "LC_ALL": "C"}


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
