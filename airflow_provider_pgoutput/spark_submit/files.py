"""The files that one spark-submit needs. They are made in a private folder, and removed after it.

If the task is killed, the next one on the machine removes them (``scratch.py``).

The application travels with the job, and so does the part of this package that it imports. So Spark's side
need not have the package installed. Secrets travel in a properties file that only this user can read, because
everyone on the machine can read a command line, and Airflow logs it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import airflow_provider_pgoutput
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.scratch import ScratchFolder
from airflow_provider_pgoutput.spark_submit import log_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PACKAGE = "airflow_provider_pgoutput"
#: The application is a file outside of the package. Python puts the folder of a script first in its search
#: path, so modules in that folder would hide Python's own modules of the same name.
_SCRIPT = """\
import runpy

runpy.run_module("{package}.{room}.main", run_name="__main__", alter_sys=True)
"""

REDACTION_KEY = "spark.redaction.regex"
#: What Spark hides of its configuration in its event log and web page, by key or by value. Spark's default
#: lacks ``credential``, the key of REST catalogs, and others. The last part is a login in a URI.
#: https://spark.apache.org/docs/latest/configuration.html#runtime-environment
_REDACTION = (
    "(?i)secret|password|passwd|token|access.?key|credential|sas|private.?key|account.?key|authorization|"
    "connection.?string|//[^/@]*:[^/@]*@"
)
#: Spark puts these options before the user's own options for Java.
#: https://spark.apache.org/docs/latest/configuration.html#runtime-environment
_JAVA_OPTIONS_KEY = "spark.driver.defaultJavaOptions"
#: In a job of a few seconds, Java's optimising compiler costs more than the job.
_SHORT_JOB = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"


@dataclass(frozen=True, slots=True)
class Application:
    """One of our Spark applications."""

    #: The room of the package whose ``main`` it is.
    room: str
    #: What it imports: itself, ``batch`` and the errors. Nothing of Airflow's side is shipped.
    shipped: tuple[str, ...]


_EVERY_JOB = (
    "__init__.py",
    "errors.py",
    "crash_points.py",
    "garbage.py",
    "parent_watch.py",
    "masks.py",
    "log_rows.py",
    "slices.py",
    "batch",
)
APPLY = Application("apply", (*_EVERY_JOB, "apply"))
COPY = Application(
    "spark_copy",
    (
        *_EVERY_JOB,
        "filters.py",
        "scratch.py",
        "spark_driver.py",
        "lake",
        "capture",
        "spark_copy",
    ),
)
HASH = Application(
    "spark_proof",
    (
        *_EVERY_JOB,
        "filters.py",
        "scratch.py",
        "spark_driver.py",
        "lake",
        "capture",
        "proof",
        "spark_proof",
    ),
)


@dataclass(frozen=True, slots=True)
class SparkFiles:
    """Paths of the files of one job."""

    #: Only this user may enter it.
    folder: Path

    application: str
    package_zip: str
    properties_file: str


@contextmanager
def spark_files(
    secrets: Mapping[str, str],
    properties_file: str | None,
    started: Application = APPLY,
    redaction: str | None = None,
    *,
    is_short: bool = False,
    is_quiet: bool = False,
) -> Iterator[SparkFiles]:
    """Write the files of one job, and remove them when it is over.

    :param secrets: Spark configuration that must not be seen.
    :param properties_file: a file with which the new one begins, if there is any.
    :param redaction: the user's ``spark.redaction.regex``; None: the one in the properties file, if any.
    :param is_short: the job has so little to do that Java need not compile for speed.
    :param is_quiet: Spark's own log has what ``log_configuration.py`` leaves in it.
    :raises ConfigurationError: ``properties_file`` cannot be read.
    """
    scratch = ScratchFolder("spark")
    folder = scratch.path
    try:
        application = folder / f"pgoutput_{started.room}.py"
        package_zip = folder / "airflow_provider_pgoutput.zip"
        properties = folder / "spark.properties"
        root = Path(airflow_provider_pgoutput.__file__).parent
        script = _SCRIPT.format(package=_PACKAGE, room=started.room)
        application.write_text(script, encoding="utf-8")
        _zip_package(root, package_zip, started.shipped)
        options = [_SHORT_JOB] if is_short else []
        if is_quiet:
            log_file = folder / log_configuration.FILE_NAME
            log_file.write_text(log_configuration.TEXT, encoding="utf-8")
            options.append(log_configuration.java_option(log_file))
        text = _properties_text(secrets, properties_file, redaction)
        # At the beginning, because the last of two lines with one key counts, and that is the user's own.
        first = f"{_JAVA_OPTIONS_KEY}={' '.join(options)}\n" if options else ""
        write_private(properties, first + text)
        yield SparkFiles(folder, str(application), str(package_zip), str(properties))
    finally:
        scratch.remove()


def _zip_package(root: Path, target: Path, shipped: Sequence[str]) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in shipped:
            path = root / name
            files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
            for file in files:
                archive.write(file, f"{_PACKAGE}/{file.relative_to(root)}")


def write_private(path: Path, text: str) -> None:
    """Write a new file that only this user can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _properties_text(
    secrets: Mapping[str, str], properties_file: str | None, redaction: str | None
) -> str:
    given = _read(properties_file).rstrip("\n") if properties_file else ""
    lines = [given] if given else []
    own = _escaped(redaction) if redaction else _spelled(given, REDACTION_KEY)
    hidden = "|".join((_REDACTION, *(re.escape(key) for key in sorted(secrets))))
    lines.append(f"{REDACTION_KEY}={'|'.join(filter(None, (own, _escaped(hidden))))}")
    lines += [_property(key, value) for key, value in sorted(secrets.items())]
    return "\n".join(lines) + "\n"


def property_of(properties_file: str, key: str) -> str | None:
    """The value of one key in a properties file, for values without escapes; None: there is none.

    :raises ConfigurationError: the file cannot be read.
    """
    found = _spelled(_read(properties_file), key)
    return found and found.strip()


def _read(properties_file: str) -> str:
    try:
        return Path(properties_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"The properties file {properties_file} cannot be read."
        ) from error


def _spelled(properties: str, key: str) -> str | None:
    """The value of a key as the file spells it. If two lines have the key, the last counts."""
    found = re.findall(rf"^\s*{re.escape(key)}\s*[\s=:]\s*(.+)$", properties, re.MULTILINE)
    return found[-1] if found else None


def _property(key: str, value: str) -> str:
    """One line of a Java properties file.

    Source: https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/Properties.html#load(java.io.Reader)
    """
    return f"{_escaped(key)}={_escaped(value)}"


def _escaped(text: str) -> str:
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}
    special |= {character: f"\\{character}" for character in " =:#!"}
    return "".join(
        special.get(character, character)
        if character.isascii()
        else "".join(f"\\u{unit:04x}" for unit in _utf16(character))
        for character in text
    )


def _utf16(character: str) -> list[int]:
    encoded = character.encode("utf-16-be")
    return [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]


def spark_defaults(spark_binary: str, env_vars: Mapping[str, Any]) -> str | None:
    """Path of the ``spark-defaults.conf`` that this spark-submit would read without a properties file.

    :param spark_binary: see ``_conf_folder``, and so is ``env_vars``.
    """
    folder = _conf_folder(spark_binary, env_vars)
    path = folder and folder / "spark-defaults.conf"
    return str(path) if path and path.is_file() else None


def has_own_log(
    spark_binary: str,
    env_vars: Mapping[str, Any],
    properties_file: str | None,
    given: Mapping[str, Any],
) -> bool:
    """Whether the user has said how Spark shall log.

    :param spark_binary: see ``_conf_folder``, and so is ``env_vars``.
    :param properties_file: the one with which the job's begins, if there is any.
    :param given: the user's configuration.
    """
    text = _read(properties_file) if properties_file else ""

    def values(*keys: str) -> list[str | None]:
        return [str(given.get(key) or "") or _spelled(text, key) for key in keys]

    return log_configuration.has_own(
        _conf_folder(spark_binary, env_vars),
        _environment(env_vars),
        values(log_configuration.LEVEL_KEY),
        values(*log_configuration.JAVA_OPTIONS_KEYS),
    )


def _conf_folder(spark_binary: str, env_vars: Mapping[str, Any]) -> Path | None:
    """The folder of Spark's configuration; None: it was not found.

    :param spark_binary: the spark-submit, by its path or as ``PATH`` finds it. It knows its home.
    :param env_vars: environment variables, in addition to those of this process.
    """
    home = spark_home(spark_binary, env_vars)
    if named := _environment(env_vars).get("SPARK_CONF_DIR"):
        return Path(named)
    return home and home / "conf"


def spark_home(spark_binary: str, env_vars: Mapping[str, Any]) -> Path | None:
    """The folder of the Spark that a spark-submit starts; None: there is none.

    :param spark_binary: see ``_conf_folder``, and so is ``env_vars``.
    """
    environment = _environment(env_vars)
    if named := environment.get("SPARK_HOME"):
        return Path(named)
    found = shutil.which(spark_binary, path=environment.get("PATH"))
    return _home_of(Path(found)) if found else None


def _environment(env_vars: Mapping[str, Any]) -> dict[str, str]:
    return {**os.environ, **{name: str(value) for name, value in env_vars.items()}}


def _home_of(program: Path) -> Path:
    """Home of a spark-submit. One that pip installed finds it in its package."""
    root = program.parent.parent
    if (program.parent / "find_spark_home.py").is_file():
        for package in sorted(root.glob("lib/python*/site-packages/pyspark")):
            return package
    return root


def own_spark_submit() -> str | None:
    """Path of the spark-submit in Airflow's own environment; None: there is none.

    A worker that was started by an absolute path does not have its environment's ``bin`` in ``PATH``.
    """
    if os.environ.get("SPARK_HOME"):
        return None
    path = Path(sys.prefix) / "bin" / "spark-submit"
    return str(path) if path.is_file() else None
