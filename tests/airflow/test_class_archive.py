"""The class archive of a driver's Java: made by the first job, read by the next, and never a part of one.

Spark's own launcher starts Java here. What is not here: what it saves (``benchmarks/tiny_batch.py``).
"""

from __future__ import annotations

import logging
import os
import stat
import subprocess
from pathlib import Path

import pytest

from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.operators.class_archive import ClassArchive
from airflow_provider_pgoutput.operators.spark_files import SparkFiles, spark_files
from airflow_provider_pgoutput.quickstart.spark import spark_environment

#: Java ends with an error where it cannot read an archive that it was told to read.
_DEMANDED = "spark.driver.extraJavaOptions -Xshare:on\n"


def started(files: SparkFiles) -> tuple[int, list[str]]:
    """Have Spark start Java with the properties of a job; return its exit code and its options."""
    environment = {**os.environ, **spark_environment(), "SPARK_PRINT_LAUNCH_COMMAND": "1"}
    submit = Path(environment["SPARK_HOME"]) / "bin" / "spark-submit"
    command = [str(submit), "--properties-file", files.properties_file, "--version"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    (line,) = (each for each in done.stderr.splitlines() if each.startswith("Spark Command:"))
    return done.returncode, line.split(" -")[1:]


def has_base_archive() -> bool:
    """Whether Spark's Java has the archive of its own classes, which an image made by jlink lacks."""
    java = Path(spark_environment().get("JAVA_HOME") or os.environ["JAVA_HOME"]) / "bin" / "java"
    return subprocess.run([java, "-Xshare:on", "-version"], check=False).returncode == 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where no archive is yet, in a folder whose name has what Spark's and Java's files escape."""
    folder = tmp_path / 'an "odd" \\ folder'
    folder.mkdir()
    return folder / "apply.jsa"


def test_the_first_job_writes_it_and_the_next_reads_it(path: Path, tmp_path: Path) -> None:
    if not has_base_archive():
        pytest.skip("this Java writes no class archives")
    # What another worker writes just now, and what one left that was killed at it.
    young, old = (path.with_name(f".apply.jsa.{each}") for each in ("young", "old"))
    for each in (young, old):
        each.write_text("a part")
    os.utime(old, (0, 0))
    archive = ClassArchive(str(path))
    with spark_files({}, None, archive=archive) as files:
        assert started(files)[0] == 0
        assert not path.exists(), "it is there before it is whole"
        archive.keep()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(path.parent.iterdir()) == {path, young}
    given = tmp_path / "mine.properties"
    given.write_text(_DEMANDED)
    before = path.stat()
    archive = ClassArchive(str(path))
    with spark_files({}, str(given), is_short=True, archive=archive) as files:
        code, options = started(files)
        archive.keep()
    assert code == 0
    assert f"XX:SharedArchiveFile={path}" in options
    assert "XX:TieredStopAtLevel=1" in options
    assert path.stat() == before
    # That the demand is one: of a file that is no archive Java dies with it, and starts without.
    path.write_text("no archive")
    for demanded in (True, False):
        given.write_text(_DEMANDED if demanded else "")
        with spark_files({}, str(given), archive=ClassArchive(str(path))) as files:
            assert (started(files)[0] != 0) is demanded


def test_a_java_that_writes_none_fails_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = ClassArchive(str(path))
    with spark_files({}, None, archive=archive), caplog.at_level(logging.WARNING):
        archive.keep()
    assert "-Xshare:dump" in caplog.text
    assert not path.exists()


def test_a_folder_that_takes_no_file_fails_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = ClassArchive(str(path))
    with spark_files({}, None, archive=archive) as files:
        (Path(files.folder) / "classes.jsa").write_bytes(b"whole")
        path.mkdir()
        with caplog.at_level(logging.WARNING):
            archive.keep()
    assert "could not be written: Is a directory" in caplog.text
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("of_all", ["the file", "the folder"])
def test_what_others_may_write_is_not_run(path: Path, of_all: str) -> None:
    path.write_text("an archive")
    ClassArchive(str(path))
    (path if of_all == "the file" else path.parent).chmod(0o777)
    with pytest.raises(ConfigurationError, match="Others than this user may write"):
        ClassArchive(str(path))


@pytest.mark.parametrize("given", ["apply.jsa", "/nowhere/at/all/apply.jsa"])
def test_a_path_that_is_none_on_this_machine(given: str) -> None:
    with pytest.raises(ConfigurationError, match="no absolute path of a file in a folder"):
        ClassArchive(given)
