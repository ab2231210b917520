"""What the annotations of a source say of SQL: which functions, attributes and arguments are ``Sql``.

They go by the bare name, so all that have a name must agree. What is not here: what is proved from them
(``spark_sql.py``).
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tests.source_code import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Types of which no value is harmful as SQL; ``DataFrame`` and Iceberg's ``Expression`` are no text at all.
_SAFE_TYPES = frozenset(
    {"Sql", "int", "bool", "Decimal", "Lsn", "datetime", "DataFrame", "Expression"}
)
_CONTAINERS = frozenset({"tuple", "list", "set", "frozenset", "Sequence", "Iterable", "Iterator"})
_MAPPINGS = frozenset({"dict", "Mapping"})
#: That a function with ``*arguments`` may be given.
_MOST_ARGUMENTS = 10


class Signature(NamedTuple):
    """What a function, or the making of an object, is given."""

    #: Name and type.
    parameters: list[tuple[str, ast.expr | None]]
    #: How many of them have no default.
    required: int

    def fits(self, node: ast.Call) -> bool:
        """Whether a call may be of this one, by the number of its arguments."""
        given = [*node.args, *node.keywords]
        if any(isinstance(each, ast.Starred) for each in node.args) or None in {
            each.arg for each in node.keywords
        }:
            return len(given) <= len(self.parameters)
        return self.required <= len(given) <= len(self.parameters)

    def sql_in(self, node: ast.Call) -> Iterator[ast.expr]:
        """What a call gives for parameters of type ``Sql``."""
        types = dict(self.parameters)
        for place, each in enumerate(node.args):
            meant = [annotation for _, annotation in self.parameters[place:]]
            if any(map(is_sql_type, meant if isinstance(each, ast.Starred) else meant[:1])):
                yield each
        for given in node.keywords:
            if given.arg is None or is_sql_type(types.get(given.arg)):
                yield given.value


class Declared:
    """What the annotations of the package say, by the bare name: all that have it must agree."""

    def __init__(self, sources: Iterable[str]) -> None:
        #: Return types of functions and methods.
        self.calls: dict[str, list[ast.expr | None]] = defaultdict(list)
        #: Types of attributes and properties.
        self.attributes: dict[str, list[ast.expr | None]] = defaultdict(list)
        self.signatures: dict[str, list[Signature]] = defaultdict(list)
        for source in sources:
            for node in ast.walk(parsed(source)):
                self._add(node)

    def _add(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.calls[node.name].append(node.returns)
                if any(is_named(each, "property") for each in node.decorator_list):
                    self.attributes[node.name].append(node.returns)
                self.signatures[node.name].append(_signature(node.args))
            case ast.ClassDef():
                fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
                named: list[tuple[str, ast.expr | None]] = [
                    (ast.unparse(each.target), each.annotation) for each in fields
                ]
                required = sum(each.value is None for each in fields)
                made = [
                    each.args
                    for each in node.body
                    if isinstance(each, ast.FunctionDef) and each.name == "__init__"
                ]
                self.signatures[node.name] += [_signature(each) for each in made] or [
                    Signature(named, required)
                ]
                for name, annotation in named:
                    self.attributes[name].append(annotation)
            case ast.AnnAssign(target=ast.Attribute(attr=name)):
                self.attributes[name].append(node.annotation)
            case ast.Assign():
                for target in node.targets:
                    if isinstance(target, ast.Attribute):
                        self.attributes[target.attr].append(None)


def _signature(given: ast.arguments) -> Signature:
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    if given.vararg is not None:
        every += [given.vararg] * _MOST_ARGUMENTS
    named = [(each.arg, each.annotation) for each in every if each.arg not in {"self", "cls"}]
    optional = len(given.defaults) + sum(each is not None for each in given.kw_defaults)
    optional += 0 if given.vararg is None else _MOST_ARGUMENTS
    return Signature(named, len(named) - optional)


def is_safe(annotation: ast.expr | None, values: bool) -> bool:
    """Whether all that a type can hold may stand in SQL; of a mapping perhaps only its values."""
    if isinstance(annotation, ast.Constant):
        return annotation.value is None or annotation.value is ...
    if isinstance(annotation, ast.Name):
        return annotation.id in _SAFE_TYPES
    if isinstance(annotation, ast.BinOp):
        return all(is_safe(each, values) for each in (annotation.left, annotation.right))
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.value, ast.Name):
        return False
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    if annotation.value.id in _MAPPINGS:
        return all(is_safe(each, False) for each in parts[1 if values else 0 :])
    return annotation.value.id in _CONTAINERS and all(is_safe(each, values) for each in parts)


def agree(declared: list[ast.expr | None], values: bool) -> bool:
    return bool(declared) and all(is_safe(each, values) for each in declared)


def is_sql_type(annotation: ast.expr | None) -> bool:
    return annotation is not None and bool(re.search(r"\bSql\b", ast.unparse(annotation)))


def is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
