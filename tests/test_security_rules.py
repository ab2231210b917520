"""The rules of docs/security.md that a program can check in the source: SQL of Spark, and no code in data.

The rule for statements to PostgreSQL is in ``test_architecture.py``. Each rule is shown to see what
breaks it.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.source_code import parsed
from tests.test_architecture import PACKAGE_FILES, SOURCE_FILES, _name, _room

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Read data as code, or can be made to.
CODE_READERS = frozenset(
    {
        "pickle",
        "_pickle",
        "cPickle",
        "cloudpickle",
        "dill",
        "marshal",
        "shelve",
        "jsonpickle",
        "yaml",
    }
)
#: Run text as code, or import what a text names.
CODE_RUNNERS = frozenset({"eval", "exec", "compile", "__import__"})

#: What makes a text of the Spark half a piece of SQL.
_SQL = re.compile(
    r"\b(SELECT|UPDATE|MERGE|INSERT|DELETE|CREATE|ALTER|DROP|CALL|CAST|CASE|BETWEEN|COMMENT|LOCATION|"
    r"TBLPROPERTIES|PARTITIONED|AS|NOT|AND|OR|IS)\b|<=>|`|struct\(|explode\("
)
#: Attributes that hold SQL already (``names.py``, ``Bounds``) or a number.
_SQL_ATTRIBUTES = frozenset({"sql", "namespace_sql", "_sql_name", "least", "greatest"})
#: Where a text is for people and not for Spark.
_FOR_PEOPLE = frozenset({"advice", "info", "warning", "error", "comment"})


def _code_from_data(source: str) -> list[int]:
    """The lines that could run code which came as data."""
    found = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            bad = any(alias.name.split(".")[0] in CODE_READERS for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            bad = (node.module or "").split(".")[0] in CODE_READERS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            bad = node.func.id in CODE_RUNNERS | {"import_module", "import_string"}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            bad = node.func.attr in {"import_module", "import_string", "run_path", "run_module"}
        else:
            bad = False
        if bad:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", SOURCE_FILES, ids=_name)
def test_data_is_never_code(path: Path) -> None:
    """XCom, manifests, plans and connections are JSON: no pickle, no eval, no import by a name from data."""
    assert not _code_from_data(path.read_text(encoding="utf-8"))


def test_the_rule_about_data_sees_each_way_to_break_it() -> None:
    wrong = (
        "import pickle\n"
        "from yaml import load\n"
        "import dill as d\n"
        "eval(x)\n"
        "exec(x)\n"
        "__import__(x)\n"
        "importlib.import_module(x)\n"
        "runpy.run_path(x)\n"
    )
    assert _code_from_data(wrong) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not _code_from_data("import json\njson.loads(x)\nre.compile(x)\nimport importlib.util\n")


def _unquoted(source: str) -> list[int]:
    """The lines where SQL for Spark holds a name that did not pass through the function that quotes."""
    tree = parsed(source)
    for_people = {id(inner) for node in _not_sql(tree) for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in for_people and _is_sql(node):
            found += [value.lineno for value in _values(node) if not _may_stand_in_sql(value)]
        elif _is_sink(node) and _is_put_together(node.args[0]):  # type: ignore[attr-defined]
            found.append(node.lineno)  # type: ignore[attr-defined]
    return sorted(found)


def _not_sql(tree: ast.AST) -> Iterator[ast.AST]:
    """Messages of errors, lines of the log."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) or (
            isinstance(node, ast.keyword) and node.arg in _FOR_PEOPLE
        ):
            yield node
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _FOR_PEOPLE or name.endswith(("Refused", "RolledBack", "_refusal")):
                yield node


def _is_sql(node: ast.JoinedStr) -> bool:
    text = "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    return bool(_SQL.search(text))


def _values(node: ast.JoinedStr) -> Iterator[ast.expr]:
    """What is put into an f-string; where a home-made backtick stands before it, as a name is."""
    before = ""
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            yield (
                ast.Attribute(part.value, "name", lineno=part.lineno)
                if before.endswith("`") and not _is_constant(part.value)
                else part.value
            )
            before = ""
        else:
            before = str(part.value) if isinstance(part, ast.Constant) else ""


def _is_constant(value: ast.expr) -> bool:
    name = value.id if isinstance(value, ast.Name) else getattr(value, "attr", "")
    return name.strip("_").isupper()


def _may_stand_in_sql(value: ast.expr) -> bool:
    """Whether it is a constant, a call (of a function that quotes or builds SQL) or a local piece of SQL.

    An attribute or an element of something is data of the manifest or of the plan.
    """
    if isinstance(value, ast.Attribute):
        return value.attr in _SQL_ATTRIBUTES or _is_constant(value)
    if isinstance(value, ast.Subscript):
        return isinstance(value.slice, ast.Constant) and isinstance(value.slice.value, int)
    return True


def _is_sink(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and bool(node.args)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"sql", "expr", "selectExpr", "where", "filter"}
    )


def _is_put_together(node: ast.expr) -> bool:
    """Whether a statement is made by %, + or format() on the spot."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod | ast.Add) and any(
            isinstance(side, ast.Constant | ast.JoinedStr) and side is not None
            for side in (node.left, node.right)
        )
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "format"
        and isinstance(node.func.value, ast.Constant)
    )


@pytest.mark.parametrize("path", [p for p in PACKAGE_FILES if _room(p) == "apply"], ids=_name)
def test_names_reach_spark_quoted(path: Path) -> None:
    if path.name != "names.py":
        assert not _unquoted(path.read_text(encoding="utf-8"))


def test_the_rule_about_spark_sees_each_way_to_break_it() -> None:
    wrong = (
        'spark.sql(f"DROP TABLE {table.name}")\n'
        'statement = f"SELECT {column.name} AS x"\n'
        'f"UPDATE {self._table.target} SET a = 1"\n'
        'f"CAST({names[position]} AS INT)"\n'
        'f"`{column}` IS NULL"\n'
        'spark.sql("DROP TABLE %s" % name)\n'
        'spark.sql("DROP TABLE " + name)\n'
        'frame.where("a = {}".format(value))\n'
    )
    assert _unquoted(wrong) == [1, 2, 3, 4, 5, 6, 7, 8]
    right = (
        'spark.sql(f"DROP TABLE {quote(table.name)}")\n'
        'f"UPDATE {self._sql_name} SET {staged.OP} = {literal(text)}"\n'
        'raise TableRefused(f"The name {table.name} AS it is")\n'
    )
    assert not _unquoted(right)
