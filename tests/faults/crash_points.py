"""Every crash point of the package, found in its source: a new one is swept without being listed.

The points are the calls of ``reach`` in ``capture/``, ``apply/`` and ``proof/``. What is not here: who
reaches them.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from tests.source_code import parsed

#: Passed only where a slot is lost (``test_lost_slot_crashes.py``, ``tests/proof/test_after_loss.py``), by
#: large transactions (F08 in ``tests/capture/test_streaming.py``), by repairs
#: (``tests/proof/test_repair.py``), and by pruning (``test_set_aside_crashes.py``).
ELSEWHERE = {
    "prune.after_manifests",
    "stage.after_difference",
    "stage.after_drop",
    "stage.after_repair_read",
    "stage.after_repair_snapshot",
    "stage.after_spill",
    "stage.during_difference",
    "stage.before_repair_removed",
}
PACKAGE = Path(__file__).resolve().parents[2] / "airflow_provider_pgoutput"


@functools.cache
def crash_points(room: str) -> tuple[str, ...]:
    """Names of the crash points of one room of the package.

    Those of the quarantine are not among them: ``test_set_aside_crashes.py`` reaches them, and
    ``tests/apply/rows/test_quarantine.py``. Nor are those of an erasure, which
    ``tests/conformance/test_erasure.py`` reaches, and of a view (``tests/apply/test_shared_views.py``).
    """
    names: dict[str, None] = {}
    for path in sorted((PACKAGE / room).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(text)) if "reach(" in text else ():
            if isinstance(node, ast.Call) and _called(node) == "reach":
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: no literal name"
                names[str(argument.value)] = None
    return tuple(each for each in names if not each.startswith(("erase.", "quarantine.", "view.")))


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
