"""The floor plan: a room imports only from the floors below it, and no import goes in a circle.

A room is a folder or a module at the top of the package, of ``capture/`` or of ``apply/``. Imports for types
alone count as well: who reads one file must not have to read the other first.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.source_code import outline

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_provider_pgoutput"
#: Rooms that have rooms of their own inside.
HOUSES = ("capture", "apply")

#: From the ground up. Rooms of one floor do not import one another.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("__init__",),
    ("errors", "crash_points", "garbage", "parent_watch", "provider_info"),
    ("scratch", "masks", "log_rows", "filters", "slices"),
    ("batch",),
    ("lake",),
    # From here on: capture.
    ("capture.pgoutput",),
    ("capture.types",),
    ("capture.source",),
    ("capture.masking",),
    ("capture.slot", "capture.schema", "capture.describe"),
    ("capture.column_choices",),
    ("capture.staging",),
    ("capture.filters",),
    ("capture.copy_job", "capture.lake_comparison"),
    ("capture.stream",),
    ("capture.refused", "capture.request"),
    (
        "capture.advance",
        "capture.fallback",
        "capture.membership",
        "capture.retire",
        "capture.start",
    ),
    ("capture.run",),
    ("capture.server",),
    ("capture.copied_tables", "capture.copy", "capture.start_position"),
    ("capture.stage",),
    ("capture.pipeline",),
    # From here on: apply. It imports nothing of capture; see test_architecture.py.
    ("apply.iceberg",),
    ("apply.schema",),
    ("apply.table",),
    ("apply.rows",),
    ("apply.current_views", "apply.publish", "apply.refused", "apply.slice_back"),
    ("apply.side_tables", "apply.slices_together"),
    ("apply.pipeline",),
    ("apply.replay_steps",),
    ("apply.rewind",),
    ("apply.maintain", "apply.replay"),
    ("apply.come_back", "apply.erase"),
    ("apply.main",),
    # What runs beside them.
    ("spark_driver",),
    ("spark_copy",),
    ("proof", "erasure"),
    ("spark_proof",),
    ("doctor",),
    # The doors.
    ("airflow_versions",),
    ("page",),
    ("hooks",),
    ("tasks",),
    ("spark_submit",),
    ("triggers", "links"),
    ("sensors", "operators"),
    ("task_groups", "cli"),
)

#: Imports that still lead upwards, as "importer -> imported". Only taken away from.
KNOWN_BREACHES: frozenset[str] = frozenset()

MOST_FILES_OF_A_FOLDER = 20


def _modules() -> dict[str, Path]:
    """Each module of the package by its dotted name without the package's own."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def _room(module: str) -> str:
    first, _, rest = module.partition(".")
    return f"{first}.{rest.split('.')[0]}" if first in HOUSES and rest else first


def _imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, at whatever depth, types included."""
    found: set[str] = set()
    for node in outline(path.read_text(encoding="utf-8")).imports:
        inside = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        names = [f"{inside}{alias.name}" for alias in node.names]
        for name in names:
            if name.split(".")[0] == PACKAGE:
                inner = name.removeprefix(PACKAGE).lstrip(".")
                while inner and inner not in MODULES:
                    inner = inner.rpartition(".")[0]
                found.add(inner or "__init__")
    return found


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each module of the package imports of it."""
    return {module: _imported(path) - {module} for module, path in MODULES.items()}


def test_every_room_has_its_floor() -> None:
    rooms = {_room(module) for module in MODULES} - set(HOUSES)
    named = [room for floor in FLOORS for room in floor]
    assert len(named) == len(set(named))
    assert rooms == set(named)


def test_imports_lead_down(imports: dict[str, set[str]]) -> None:
    floor_of = {room: number for number, floor in enumerate(FLOORS) for room in floor}
    floor_of |= dict.fromkeys(HOUSES, -1)  # Their __init__.py has a docstring and nothing else.
    upwards = {
        f"{importer} -> {imported}"
        for importer, all_imported in imports.items()
        for imported in all_imported
        if _room(importer) != _room(imported)
        and floor_of[_room(importer)] <= floor_of[_room(imported)]
    }
    assert upwards == KNOWN_BREACHES


def test_no_imports_go_in_a_circle(imports: dict[str, set[str]]) -> None:
    left = {module: set(imported) for module, imported in imports.items()}
    while True:
        free = {module for module, imported in left.items() if not imported & left.keys()}
        if not free:
            break
        for module in free:
            del left[module]
    # What is left imports itself in the end, or imports what does.
    assert not left, sorted(left)


def test_a_folder_can_be_seen_at_one_glance() -> None:
    folders = {path.parent for path in MODULES.values()}
    crowded = {
        str(folder.relative_to(ROOT))
        for folder in folders
        if len(list(folder.glob("*.py"))) - 1 > MOST_FILES_OF_A_FOLDER
    }
    assert not crowded
