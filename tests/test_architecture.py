"""The rules of docs/internals/architecture.md that a program can check: imports, and how long things are.

The source is read as syntax trees, so nothing hidden in a function escapes; that the Spark half
imports where the other half's packages are missing is tried for real.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from tests.source_code import outline, parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Wrong = TypeVar("_Wrong")

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_pgoutput"
PACKAGE_FILES = sorted((ROOT / PACKAGE).rglob("*.py"))
SOURCE_FILES = [
    *PACKAGE_FILES,
    *(
        path
        for folder in ("benchmarks", "dags_examples", "quickstart", "scripts", "tools")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ),
]

# Who runs where: what travels to Spark imports nothing that stays with Airflow. The order of the rooms
# among themselves is test_floors.py's.
GROUND = {
    "__init__",
    "errors",
    "crash_points",
    "garbage",
    "parent_watch",
    "scratch",
    "masks",
    "log_rows",
    "slices",
    "filters",
}
MAY_IMPORT = {
    **{room: {room} for room in GROUND},
    "masks": {"masks", "errors"},
    "log_rows": {"log_rows"},
    "slices": {"slices"},
    "filters": {"filters", "errors"},
    "provider_info": {"__init__"},
    "batch": {"batch", *GROUND},
    "lake": {"lake", "batch", *GROUND},
    "capture": {"capture", "lake", "batch", *GROUND},
    "apply": {"apply", "batch", *GROUND},
    # What runs on Spark's executors by capture's and the proof's code, so the rooms that know both.
    "spark_driver": {"spark_driver", "capture", *GROUND},
    "spark_copy": {"spark_copy", "spark_driver", "capture", "batch", *GROUND},
    "spark_proof": {"spark_proof", "spark_driver", "proof", "lake", "capture", "batch", *GROUND},
}
ON_EXECUTORS = {"spark_driver", "spark_copy", "spark_proof"}
STANDARD_LIBRARY_ONLY = {*GROUND, "provider_info", "batch"}
#: What Airflow moved or added between its versions; airflow_versions.py has it for all of them.
DIFFERS_IN_AIRFLOW = {
    "airflow.configuration",
    "airflow.exceptions",
    "airflow.hooks",
    "airflow.providers.common.compat",
    "airflow.sdk.BaseHook",
    "airflow.sdk.conf",
    "airflow.sdk.configuration",
    "airflow.sdk.exceptions",
    "airflow.sdk.log",
    "asgiref",
}
ABSENT_IN_SPARK = ("airflow", "numpy", "psycopg", "pyarrow", "adbc_driver_postgresql", "pyiceberg")

MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_FUNCTION = 100


def _room(path: Path) -> str:
    """The part of the package that a file belongs to: a folder's name, or a top-level module's."""
    first = path.relative_to(ROOT / PACKAGE).parts[0]
    return first.removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Every module that a file imports, at whatever depth, in absolute form."""
    found: set[str] = set()
    for node in outline(path.read_text(encoding="utf-8")).imports:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}:{node.lineno} is a relative import"
            assert node.module is not None
            if node.module == PACKAGE:
                # `from package import errors` names a room, `import __version__` the package.
                found.update(
                    PACKAGE if alias.name.startswith("__") else f"{PACKAGE}.{alias.name}"
                    for alias in node.names
                )
            else:
                found.add(node.module)
    return found


def _rooms_imported(path: Path) -> set[str]:
    modules = (name.split(".") for name in _imports(path))
    return {parts[1] if len(parts) > 1 else "__init__" for parts in modules if parts[0] == PACKAGE}


def _outside_imported(path: Path) -> set[str]:
    return {name.split(".")[0] for name in _imports(path)} - {PACKAGE, "__future__"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def breaches(rule: Callable[[Path], _Wrong], paths: Iterable[Path]) -> dict[str, _Wrong]:
    """What a rule finds wrong, by the file in which it does."""
    found = {_name(path): rule(path) for path in paths}
    return {name: wrong for name, wrong in found.items() if wrong}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_there_is_something_to_check() -> None:
    rooms = {_room(path) for path in PACKAGE_FILES}
    assert {"batch", "capture", "apply", "errors", "hooks", "operators"} <= rooms


def test_imports_follow_the_arrows() -> None:
    ruled = [path for path in PACKAGE_FILES if _room(path) in MAY_IMPORT]
    assert not breaches(lambda path: _rooms_imported(path) - MAY_IMPORT[_room(path)], ruled)


def test_other_packages_are_imported_only_where_they_belong() -> None:
    assert not breaches(_misplaced_imports, PACKAGE_FILES)


def _misplaced_imports(path: Path) -> set[str]:
    room, outside = _room(path), _outside_imported(path)
    if room in STANDARD_LIBRARY_ONLY:
        return outside - sys.stdlib_module_names
    absent = {"airflow"} if room in {"capture", "apply", *ON_EXECUTORS} else set()
    if room == "apply":
        absent |= {*ABSENT_IN_SPARK}
    elif room not in ON_EXECUTORS:
        absent |= {"pyspark", "py4j"}
    return outside & absent


def test_one_module_knows_how_versions_of_airflow_differ() -> None:
    others = [path for path in PACKAGE_FILES if path.name != "airflow_versions.py"]
    assert not breaches(_differing_imports, others)


def test_the_check_of_airflows_versions_sees_each_way_to_import(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("from airflow.sdk import Asset, conf\nimport airflow.exceptions as e\n")
    assert _differing_imports(path) == {"airflow.sdk.conf", "airflow.exceptions"}
    path.write_text("def f():\n    from airflow.sdk.log import mask_secret\n")
    assert _differing_imports(path) == {"airflow.sdk.log.mask_secret"}


def _differing_imports(path: Path) -> set[str]:
    """The imported names that not every version of Airflow has."""
    names: set[str] = set()
    for node in outline(path.read_text(encoding="utf-8")).imports:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        else:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {
        name
        for name in names
        if any(f"{name}.".startswith(f"{each}.") for each in DIFFERS_IN_AIRFLOW)
    }


_IMPORT_EVERYTHING = """
import importlib, pkgutil, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for room in {rooms!r}:
    package = importlib.import_module(f"airflow_provider_pgoutput.{{room}}")
    for module in pkgutil.walk_packages(package.__path__, f"{{package.__name__}}."):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rooms", "absent"),
    [
        (("batch", "apply"), ABSENT_IN_SPARK),
        (("batch", "capture"), ("airflow", "pyspark")),
        (("batch", "capture", "spark_copy"), ("airflow", "pyiceberg")),
        (("batch", "capture", "proof", "spark_proof"), ("airflow",)),
    ],
)
def test_each_half_imports_where_the_other_half_is_missing(
    rooms: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    code = _IMPORT_EVERYTHING.format(rooms=rooms, absent=absent)
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) == {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in PACKAGE_FILES
        if _room(path) in rooms and path.name != "__init__.py"
    } | {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in PACKAGE_FILES
        if _room(path) in rooms and path.name == "__init__.py" and path.parent.name not in rooms
    }


def test_the_package_itself_imports_nothing() -> None:
    """Spark ships it with --py-files, and Airflow reads the provider metadata of every package."""
    assert _imports(ROOT / PACKAGE / "__init__.py") <= {"__future__"}


def test_a_module_says_what_it_is() -> None:
    assert not breaches(lambda path: not outline(_text(path)).docstring, SOURCE_FILES)


def _missing_files(text: str) -> set[str]:
    """The Python files that a docstring or comment names in double backticks, and that do not exist."""
    named = set(re.findall(r"``([\w/]+\.py)``", text))
    return {each for each in named if not any(path.endswith(f"/{each}") for path in _all_files())}


@functools.cache
def _all_files() -> tuple[str, ...]:
    tests = sorted((ROOT / "tests").rglob("*.py"))
    return tuple(f"/{_name(path)}" for path in (*SOURCE_FILES, *tests))


def test_a_docstring_names_only_files_that_exist() -> None:
    assert not breaches(lambda path: _missing_files(_text(path)), SOURCE_FILES)


def test_the_check_of_named_files_sees_a_file_that_was_renamed() -> None:
    text = "``errors.py``, ``slot/facts.py``, ``slot/errors.py`` and ``facts_of_old.py``"
    assert _missing_files(text) == {"slot/errors.py", "facts_of_old.py"}


def test_files_and_functions_are_short() -> None:
    assert not breaches(_too_long, SOURCE_FILES)


def _too_long(path: Path) -> list[str]:
    text = _text(path)
    lines = text.count("\n")
    whole = [f"it has {lines} lines"] if lines > MOST_LINES_OF_A_FILE else []
    return whole + [
        f"{name} has {lines} lines"
        for name, lines in outline(text).lines_of_functions
        if lines > MOST_LINES_OF_A_FUNCTION
    ]


def _is_made_of_values(node: ast.expr) -> bool:
    """Whether an expression builds a text from values: f-string, %, + or str.format."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in node.values)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod | ast.Add)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "format"
        and isinstance(node.func.value, ast.Constant)
    )


def _statements_made_of_values(source: str) -> list[int]:
    """The lines where a text made of values is run as SQL, or is declared to be safe SQL."""
    return [
        node.lineno
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Call)
        and node.args
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id)
        in {"execute", "executemany", "copy", "SQL"}
        and _is_made_of_values(node.args[0])
    ]


def test_names_reach_the_server_quoted_and_values_as_parameters() -> None:
    speakers = [path for path in PACKAGE_FILES if _room(path) not in {"apply", "batch"}]
    assert not breaches(lambda path: _statements_made_of_values(_text(path)), speakers)


def test_the_check_of_statements_sees_each_way_to_do_it_wrong() -> None:
    wrong = (
        'c.execute(f"SELECT {x}")\n'
        'c.execute("SELECT %s" % x)\n'
        'c.execute("SELECT " + x)\n'
        'c.execute("SELECT {}".format(x))\n'
        'sql.SQL(f"SELECT {x}")\n'
    )
    assert _statements_made_of_values(wrong) == [1, 2, 3, 4, 5]
    right = (
        'c.execute(sql.SQL("SELECT {}").format(sql.Identifier(x)))\nc.execute("SELECT %s", (x,))\n'
    )
    assert not _statements_made_of_values(right)
