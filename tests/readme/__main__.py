"""``python -m tests.readme``: what ``make readme`` runs. A newcomer does what the tutorial says, verbatim.

After it the DAGs of all other pages that a reader copies are loaded by the same Airflow.
The environment is new and made by pip alone. Only this differs from the page: the package is a wheel of this
tree. The database, the folder of the lake and Airflow's home are the test's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from quickstart.jars import cache_folder
from quickstart.java import java_home
from quickstart.postgres import EmbeddedPostgres
from quickstart.servers import find_or_fetch_installation
from tests.docs.blocks import PAGES, blocks_of

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "tutorial" / "first_pipeline.md"
_BLOCK = re.compile(r"^```(bash|sql|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: What the page says, and what stands for it here.
_DATABASE, _FOLDER = "postgresql://user:password@localhost:5432/shop", "/tmp/lake"  # noqa: S108
_PACKAGE, _DAG_FILE = "airflow-provider-pgoutput[spark]", "~/airflow/dags/shop_to_lake.py"
_OPEN_PARENT = "/var/tmp"  # noqa: S108 - a new folder in it, which the server's own account enters
_POSTGRES = 18
#: The newcomer has these before.
_TABLES = """
    CREATE TABLE orders (id int PRIMARY KEY, customer text, price numeric(12, 2), made_at timestamptz);
    CREATE TABLE customers (name text PRIMARY KEY, notes text);
    INSERT INTO orders SELECT i, 'customer ' || i % 10, i * 1.5, now() FROM generate_series(1, 500) i;
    INSERT INTO customers SELECT 'customer ' || i, 'notes' FROM generate_series(0, 9) i;
"""
#: Loads the DAG files of a folder one by one: examples of two pages may have one name.
_LOAD_DAGS = """
import pathlib, sys
from airflow.dag_processing.dagbag import DagBag
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    bag = DagBag(dag_folder=str(path))
    assert bag.dags and not bag.import_errors, (path.name, bag.import_errors)
    print("loaded", path.name)
"""
_VARIABLES_OF_THIS_RUN = ("VIRTUAL_ENV", "SPARK_HOME", "PYTHONPATH", "PYTHONHOME", "SPARK_CONF_DIR")


def steps() -> list[tuple[str, str]]:
    """The blocks of the page, in their order: language and text."""
    page = _PAGE.read_text(encoding="utf-8")
    assert _DAG_FILE in page, "the page says where the DAG goes"
    return _BLOCK.findall(page)


@dataclass
class Newcomer:
    """Somebody with a PostgreSQL, a Python, a Java, and the page.

    :ivar home: the folder in which they work.
    """

    home: Path
    wheel: Path
    server: EmbeddedPostgres
    began: float = field(default_factory=time.monotonic)

    def do(self, language: str, text: str) -> str:
        """Do one step; return what it printed."""
        for said, here in {
            _DATABASE: self.server.conninfo("shop"),
            _FOLDER: str(self.home / "lake"),
            _PACKAGE: f"{self.wheel}[spark]",
        }.items():
            text = text.replace(said, here)
        if language == "sql":
            with psycopg.connect(self.server.conninfo("shop"), autocommit=True) as session:
                session.execute(text)
            return ""
        if language == "python" and "DAG(" in text:
            dags = self.home / "airflow" / "dags"
            dags.mkdir(parents=True, exist_ok=True)
            (dags / "shop_to_lake.py").write_text(text, encoding="utf-8")
            return ""
        if language == "python":
            return self._python(text)
        # Each block begins in the environment that the first one makes.
        active = "[ ! -e pgoutput ] || . pgoutput/bin/activate"
        return self._run(["bash", "-euo", "pipefail", "-c", f"{active}\n{text}"])

    def load(self, dag_files: dict[str, str]) -> str:
        """Load DAG files, by their names, as Airflow does; return a line for each."""
        folder = self.home / "dags of pages"
        folder.mkdir()
        for name, text in dag_files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return self._python(_LOAD_DAGS, str(folder))

    def _python(self, program: str, *arguments: str) -> str:
        return self._run(
            [str(self.home / "pgoutput" / "bin" / "python"), "-c", program, *arguments]
        )

    def _run(self, command: list[str]) -> str:
        variables = {
            name: value
            for name, value in os.environ.items()
            if name not in _VARIABLES_OF_THIS_RUN and not name.startswith("AIRFLOW")
        }
        java = (
            {} if shutil.which("java") else {"JAVA_HOME": str(java_home(cache_folder() / "java"))}
        )
        # Nothing of the checkout or of its environment is in the way.
        paths = os.environ.get("PATH", os.defpath).split(os.pathsep)
        outside = [each for each in paths if not each.startswith(str(_ROOT))]
        result = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.home,
            env={
                **variables,
                **java,
                "PATH": os.pathsep.join(outside),
                "AIRFLOW_HOME": str(self.home / "airflow"),
                # Java takes no HOME. Jars that others fetched on this machine are not there.
                "JAVA_TOOL_OPTIONS": f"-Duser.home={self.home}",
            },
        )
        assert result.returncode == 0, f"{command[-1]} failed:\n{result.stdout[-6000:]}"
        return result.stdout


def dag_files() -> dict[str, str]:
    """The DAGs of README, tutorial and how-to, by a file's name that says page and block."""
    found = {}
    for page in ("../README.md", *PAGES):
        for block in blocks_of(page):
            if block.language == "python" and "DAG(" in block.text:
                name = block.name.removeprefix("../").replace("/", "-").replace(".md:", "-")
                found[f"{name}.py"] = block.text
    return found


def follow(wheel: Path | None = None) -> float:
    """Do what the page says; return the minutes from ``pip install`` to the first own table.

    :param wheel: of the package; None: one is built of this tree.
    :raises AssertionError: a step failed, or the table does not have the rows.
    """
    with tempfile.TemporaryDirectory(prefix="pgoutput-readme-", dir=_OPEN_PARENT) as folder:
        home = Path(folder)
        home.chmod(0o755)
        if wheel is None:
            uv = shutil.which("uv") or str(_ROOT / ".quickstart" / "uv-venv" / "bin" / "uv")
            build = [uv, "build", "--wheel", "--quiet", "--out-dir", str(home), str(_ROOT)]
            subprocess.run(build, check=True)
            (wheel,) = home.glob("*.whl")
        installation = find_or_fetch_installation(_POSTGRES)
        with EmbeddedPostgres(home / "postgres", installation=installation) as server:
            with psycopg.connect(server.conninfo(), autocommit=True) as session:
                session.execute("CREATE DATABASE shop")
            with psycopg.connect(server.conninfo("shop"), autocommit=True) as session:
                session.execute(_TABLES)
            newcomer = Newcomer(home, wheel, server)
            minutes = None
            tables: list[str] = []
            for number, (language, text) in enumerate(steps(), start=1):
                began = time.monotonic()
                printed = newcomer.do(language, text)
                print(f"  block {number}: {time.monotonic() - began:.0f} s", flush=True)
                if "load_catalog" in text:
                    tables.append(printed)
                    minutes = minutes or (time.monotonic() - newcomer.began) / 60
            files = dag_files()
            loaded = newcomer.load(files)
            assert loaded.count("loaded ") == len(files) >= 5, loaded
        first, second = tables
        assert "customer 7" in first, first
        assert "'id': 1, 'customer': 'somebody else'" in second, second
        assert "'id': 2" not in second, second
        assert minutes is not None
        return minutes


def main() -> int:
    """Follow the page and print the minutes."""
    minutes = follow()
    print(f"readme: {minutes:.1f} minutes from pip install to the first own table", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
