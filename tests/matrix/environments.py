"""Makes the environments of a cell: one with this package and its Airflow, one with its Spark.

They are apart, as in production, so the wheel's own bounds choose every version that the cell does not name.
The environments stay in ``.quickstart/matrix``, and a second run takes what is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.spark_packages import runtime
from airflow_provider_pgoutput.errors import ConfigurationError
from airflow_provider_pgoutput.spark_submit.packages import versions_of
from quickstart.jars import SQLITE_JDBC, cache_folder, fetch_jars
from quickstart.java import java_home

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.matrix.cells import Cell

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".quickstart" / "matrix"
#: pyenv offers a Python by its version only where somebody has chosen it, so its folders are searched.
_PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
_LAST_CHARACTERS = 2000
#: A project that needs Spark's SQL, without Hive and machine learning.
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>matrix</groupId><artifactId>spark</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.spark</groupId><artifactId>spark-sql_{scala}</artifactId><version>{spark}</version>
  </dependency></dependencies>
</project>
"""


@dataclass(frozen=True)
class Environments:
    """The programs of a cell."""

    cell: Cell
    airflow: Path
    spark: Path

    @classmethod
    def make(cls, cell: Cell, *, with_spark: bool = True) -> Environments:
        """Install what a cell needs.

        :raises ConfigurationError: there is no such Python, or a package cannot be installed.
        """
        found = cls(
            cell,
            FOLDER / f"airflow-{cell.airflow.removesuffix('.*')}-python-{cell.python}",
            FOLDER / f"spark-{cell.spark}-scala-{cell.scala}-python-{cell.python}",
        )
        with tempfile.TemporaryDirectory() as folder:
            _uv("build", "--wheel", "--quiet", "--out-dir", folder, str(ROOT))
            (wheel,) = Path(folder).glob("*.whl")
            airflow = f"apache-airflow=={cell.airflow}"
            packages = (str(wheel), airflow, "pyiceberg[sql-sqlite]", *cell.also)
            _install(found.airflow, cell.python, *packages)
        if with_spark:
            _install(found.spark, cell.python, f"pyspark=={cell.spark}")
            _take_scala(found.spark_home / "jars", cell)
        return found

    @property
    def python(self) -> Path:
        """The Python that has Airflow."""
        return self.airflow / "bin" / "python"

    @property
    def spark_home(self) -> Path:
        """The folder of Spark."""
        (home,) = self.spark.glob("lib/python3*/site-packages/pyspark")
        return home

    def variables(self) -> dict[str, str]:
        """What finds the programs, Spark's own Python included."""
        spark_python, home = self.spark / "bin" / "python", self.spark_home
        path = (str(self.airflow / "bin"), str(home / "bin"), os.environ.get("PATH", os.defpath))
        return {
            "JAVA_HOME": str(java_home(cache_folder() / "java")),
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": str(spark_python),
            "PYSPARK_DRIVER_PYTHON": str(spark_python),
            "PATH": os.pathsep.join(path),
            # Else the package would be that of the current folder, and not the wheel.
            "PYTHONSAFEPATH": "1",
        }

    def jars(self) -> list[Path]:
        """The jars that this Spark needs for Iceberg tables in a SQLite catalog.

        :raises AssertionError: ``packages="auto"`` would take another one for Iceberg.
        """
        by_itself = runtime(versions_of(self.spark_home)).names
        assert by_itself == self.cell.iceberg.coordinates, by_itself
        return fetch_jars((self.cell.iceberg, SQLITE_JDBC))

    def versions(self) -> dict[str, str]:
        """The versions that were installed, by package."""
        names = ("apache-airflow", "apache-airflow-task-sdk", "sqlalchemy", "pyiceberg", "pyarrow")
        code = (
            "import importlib.metadata as m, platform;"
            f"print(platform.python_version(), *map(m.version, {names}))"
        )
        found = subprocess.run(
            [str(self.python), "-c", code], check=True, capture_output=True, text=True
        )
        return dict(zip(("python", *names), found.stdout.split(), strict=True))


def has_python(version: str) -> bool:
    """Whether a Python of this version, as ``3.11``, is on this machine."""
    try:
        _uv("python", "find", "--no-project", version)
    except ConfigurationError:
        return False
    return True


def _install(environment: Path, python: str, *packages: str) -> None:
    at = environment / "bin" / "python"
    if not at.exists():
        _uv("venv", "--quiet", "--no-project", "--python", python, str(environment))
    _uv("pip", "install", "--quiet", "--python", str(at), *packages)


def _take_scala(jars: Path, cell: Cell) -> None:
    """Take the jars of a Scala that pyspark's wheel does not have. Maven has them, so it needs Maven."""
    if any(jars.glob(f"spark-core_{cell.scala}-*.jar")):
        return
    with tempfile.TemporaryDirectory(dir=jars.parent) as folder:
        pom = Path(folder) / "pom.xml"
        pom.write_text(_POM.format(scala=cell.scala, spark=cell.spark), encoding="utf-8")
        # In the user's own repository spark-submit would find descriptions without jars, and fail.
        repository = f"-Dmaven.repo.local={FOLDER / 'maven'}"
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", repository]
        _run("mvn", "-q", "-B", "-f", str(pom), *copy, f"-DoutputDirectory={folder}/jars")
        shutil.rmtree(jars)
        (Path(folder) / "jars").rename(jars)


def _uv(*arguments: str) -> None:
    # scripts/setup installs one where the machine has none.
    uv = shutil.which("uv") or str(ROOT / ".quickstart" / "uv-venv" / "bin" / "uv")
    pythons = [str(each) for each in sorted(_PYENV.glob("3.*/bin"))]
    _run(uv, *arguments, before_path=pythons)


def _run(*command: str, before_path: Sequence[str] = ()) -> None:
    path = os.pathsep.join([*before_path, os.environ.get("PATH", os.defpath)])
    result = subprocess.run(
        command,
        check=False,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if result.returncode != 0:
        raise ConfigurationError(f"{' '.join(command)} failed: {result.stdout[-_LAST_CHARACTERS:]}")
