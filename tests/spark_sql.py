"""Finds Spark SQL that holds a text of unknown origin: what is proved, and where a proof is asked for.

A text is SQL when it is a constant of the source, or is put together of constants, of numbers and of what is
declared as ``Sql`` (``apply/iceberg/sql.py``), which mypy checks. What a name holds is looked for in its own
function; beyond it declarations count (``declared_sql.py``). A list that has two names is not followed. What
is not here: which files are read (``test_security_rules.py``).
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.declared_sql import agree, is_named, is_safe, is_sql_type
from tests.source_code import parsed
from tests.test_architecture import PACKAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.declared_sql import Declared

#: What makes a text of the Spark half a piece of SQL.
_SQL = re.compile(
    r"\b(SELECT|UPDATE|MERGE|INSERT|DELETE|CREATE|ALTER|DROP|CALL|CAST|CASE|BETWEEN|COMMENT|LOCATION|"
    r"TBLPROPERTIES|PARTITIONED|AS|NOT|AND|OR|IS)\b|<=>|`|struct\(|explode\("
)
#: Methods that read their arguments as SQL, as the identifier of a table or as a schema.
_SINKS = frozenset(
    {
        *("sql", "expr", "selectExpr", "where", "filter", "schema", "parsePlan"),
        *("table", "writeTo", "createOrReplaceTempView"),
    }
)
#: Where a text is for people and not for Spark.
_FOR_PEOPLE = frozenset({"advice", "info", "warning", "error", "comment"})
_NUMBERS = frozenset({"int", "len", "range", "Decimal"})
_COPIES = frozenset({"Sql", "list", "tuple", "set", "frozenset", "sorted", "reversed"})
#: Names of staged columns, made of a position: ``batch/changes.py``, which knows nothing of SQL.
_STAGED_NAMES = frozenset({"new", "old", "unchanged"})
_ADDS = frozenset({"append", "add", "extend", "insert", "update", "setdefault"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_NUMBER = ast.Constant(0)


class _Proof:
    """What can be proved of the texts of one module."""

    def __init__(self, tree: ast.Module, declared: Declared) -> None:
        self._tree, self._declared = tree, declared
        self._parents = {
            child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        #: Imported from elsewhere: not what the package declares under this name.
        self._foreign = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(PACKAGE)
            for alias in node.names
        }
        self._shared = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Global | ast.Nonlocal)
            for name in node.names
        }
        self._open: set[tuple[ast.AST, bool]] = set()

    def holds(self, node: ast.expr, values: bool = False) -> bool:
        """Whether ``node`` is a piece of SQL, a column of Spark, a number, or some of these.

        :param values: of a mapping the values alone are meant.
        """
        # What is made of itself in a loop is as good as what is added to it.
        if (node, values) in self._open:
            return True
        self._open.add((node, values))
        try:
            return self._holds(node, values)
        finally:
            self._open.remove((node, values))

    def _holds(self, node: ast.expr, values: bool) -> bool:
        if isinstance(node, ast.Name):
            return self._name(node, values)
        if isinstance(node, ast.Attribute):
            return _is_constant(node) or agree(self._declared.attributes[node.attr], values)
        if isinstance(node, ast.Call):
            is_name = isinstance(node.func, ast.Name)
            return self._function(node, values) if is_name else self._method(node, values)
        parts = _parts(node, values)
        return parts is not None and all(self.holds(*each) for each in parts)

    def _function(self, node: ast.Call, values: bool) -> bool:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name in _COPIES:
            return all(self.holds(each, values) for each in node.args)
        is_ours = name not in self._foreign and agree(self._declared.calls[name], values)
        return name in _NUMBERS or is_ours

    def _method(self, node: ast.Call, values: bool) -> bool:
        if not isinstance(node.func, ast.Attribute):
            return False
        of, name = node.func.value, node.func.attr
        if name == "join":
            return isinstance(of, ast.Constant) and self.holds(node.args[0])
        if name in {"get", "values"}:
            return self.holds(of, values=True) and all(map(self.holds, node.args[1:]))
        is_staged = is_named(of, "staged") and name in _STAGED_NAMES
        return is_staged or _is_of_functions(of) or agree(self._declared.calls[name], values)

    def _name(self, node: ast.Name, values: bool) -> bool:
        """Whether all that its function, or the module, gives to a name holds."""
        if node.id in self._shared:
            return False
        scope: ast.AST = node
        while scope in self._parents:
            scope = self._parents[scope]
            found = list(self._given(scope, node.id, values))
            if found:
                return all(found)
        return _is_constant(node)

    def _given(self, scope: ast.AST, name: str, values: bool) -> Iterator[bool]:
        if isinstance(scope, _COMPREHENSIONS):
            for each in scope.generators:
                yield from self._looped(each.target, each.iter, name, values)
        elif isinstance(scope, _FUNCTIONS):
            arguments = (each for each in ast.walk(scope.args) if isinstance(each, ast.arg))
            yield from (is_safe(each.annotation, values) for each in arguments if each.arg == name)
            for statement in _own(scope):
                yield from self._given_by(statement, name, values)
        elif isinstance(scope, ast.Module) and not _is_constant(ast.Name(name)):
            for statement in _own(scope):
                yield from self._given_by(statement, name, values)

    def _given_by(self, node: ast.AST, name: str, values: bool) -> Iterator[bool]:
        match node:
            case ast.Assign():
                for target in node.targets:
                    yield from self._assigned(target, node.value, name, values)
            case (
                ast.AnnAssign(value=ast.expr() as value)
                | ast.AugAssign(value=value)
                | ast.NamedExpr(value=value)
            ):
                yield from self._assigned(node.target, value, name, values)
            case ast.For():
                yield from self._looped(node.target, node.iter, name, values)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr=attr)) if found == name:
                if attr in _ADDS:
                    yield all(self.holds(each, values) for each in node.args)
            case ast.withitem(optional_vars=ast.expr() as target):
                yield from (False for each in ast.walk(target) if is_named(each, name))
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name == name:
                yield False
            case ast.FunctionDef() | ast.ClassDef() if node.name == name:
                yield False

    def _assigned(
        self, target: ast.expr, value: ast.expr, name: str, values: bool
    ) -> Iterator[bool]:
        if isinstance(target, ast.Tuple | ast.List):
            alike = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
            parts = value.elts if alike else [value] * len(target.elts)  # type: ignore[attr-defined]
            for each, part in zip(target.elts, parts, strict=True):
                yield from self._assigned(each, part, name, values)
        elif isinstance(target, ast.Starred):
            yield from self._assigned(target.value, value, name, values)
        elif isinstance(target, ast.Subscript) and is_named(target.value, name):
            yield self.holds(value) and (values or self.holds(target.slice))
        elif is_named(target, name):
            yield self.holds(value, values)

    def _looped(self, target: ast.expr, over: ast.expr, name: str, values: bool) -> Iterator[bool]:
        """What a loop gives to a name."""
        called = over.func if isinstance(over, ast.Call) else None
        if (
            isinstance(called, ast.Attribute)
            and called.attr == "items"
            and isinstance(target, ast.Tuple)
        ):
            key, value = target.elts
            yield from self._assigned(key, called.value, name, False)
            if any(is_named(each, name) for each in ast.walk(value)):
                yield self.holds(called.value, values=True)
        elif (
            isinstance(called, ast.Name)
            and called.id in {"enumerate", "zip"}
            and isinstance(target, ast.Tuple)
        ):
            assert isinstance(over, ast.Call)
            sides = [_NUMBER, over.args[0]] if called.id == "enumerate" else over.args
            for each, side in zip(target.elts, sides, strict=True):
                yield from self._assigned(each, side, name, False)
        else:
            yield from (self.holds(over) for each in ast.walk(target) if is_named(each, name))


def _parts(node: ast.expr, values: bool) -> list[tuple[ast.expr, bool]] | None:
    """What must hold so that an expression does, each as ``holds`` takes it; None: it never does."""
    match node:
        case ast.Constant() | ast.Compare():
            return []
        case ast.JoinedStr():
            found = list(_values(node))
        case ast.Subscript():
            return [(node.value, True)]
        case ast.IfExp():
            found = [node.body, node.orelse]
        case ast.BinOp():
            found = [node.left, node.right]
        case ast.BoolOp():
            found = node.values
        case ast.Tuple() | ast.List() | ast.Set():
            found = node.elts
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            found = [node.elt]
        case ast.Dict() | ast.DictComp():
            return _parts_of_mapping(node, values)
        case ast.Starred() | ast.NamedExpr():
            found = [node.value]
        case ast.UnaryOp():
            found = [node.operand]
        case _:
            return None
    return [(each, values) for each in found]


def _parts_of_mapping(node: ast.Dict | ast.DictComp, values: bool) -> list[tuple[ast.expr, bool]]:
    if isinstance(node, ast.DictComp):
        keys, held = [node.key], [(node.value, False)]
    else:
        # What is unpacked has no key.
        keys = [each for each in node.keys if each is not None]
        pairs = zip(node.keys, node.values, strict=True)
        held = [(value, values and key is None) for key, value in pairs]
    return held if values else [*((each, False) for each in keys), *held]


def unproved(source: str, declared: Declared) -> list[int]:
    """The lines where SQL for Spark holds a text that did not pass through the function that quotes."""
    tree = parsed(source)
    proof = _Proof(tree, declared)
    for_people = {id(inner) for node in _not_sql(tree) for inner in ast.walk(node)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_people:
            continue
        if isinstance(node, ast.JoinedStr) and _is_sql(node):
            found |= {each.lineno for each in _values(node) if not proof.holds(each)}
        elif isinstance(node, ast.Call):
            asked = [*_asked_by_spark(node), *_asked_by_declaration(node, declared)]
            found |= {node.lineno for each, values in asked if not proof.holds(each, values)}
        elif (
            isinstance(node, ast.AnnAssign)
            and node.value is not None
            and is_sql_type(node.annotation)
            and not proof.holds(node.value, values=True)
        ):
            found.add(node.lineno)
    return sorted(found)


def _asked_by_spark(node: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(node.func, ast.Attribute) and node.func.attr in _SINKS:
        yield from ((each, False) for each in node.args)
        yield from ((each.value, False) for each in node.keywords)


def _asked_by_declaration(node: ast.Call, declared: Declared) -> Iterator[tuple[ast.expr, bool]]:
    """What is given for a parameter or a field of type ``Sql``: mypy lets a row's value, ``Any``, pass."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name in {"Sql", "cast"}:
        is_ours = name == "Sql" or is_sql_type(node.args[0])
        yield from ((each, False) for each in node.args[-1:] if is_ours)
    fitting = [each for each in declared.signatures.get(name, ()) if each.fits(node)]
    # Of several that have the name, one that asks for no SQL may be meant.
    asked = [list(each.sql_in(node)) for each in fitting]
    yield from ((each, True) for each in min(asked, key=len, default=()))


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
            yield from (
                _values(part.format_spec) if isinstance(part.format_spec, ast.JoinedStr) else ()
            )
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


def _is_of_functions(node: ast.expr) -> bool:
    """Whether a chain of calls begins with ``F``: columns of Spark, not text."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return is_named(node, "F")


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function or module but those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield from _own(node)
