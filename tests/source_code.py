"""Parses Python source where a garbage collection in between cannot harm. Not here: what is sought in it.

A collection runs finalizers, py4j's among them, which log the traceback of a connection that was
reset. CPython 3.11 parses the traceback's lines to underline them, and parsing inside of parsing ends
the outer one with ``SystemError: AST constructor recursion depth mismatch``.
"""

from __future__ import annotations

import ast
import functools
import gc
from dataclasses import dataclass


def parsed(source: str) -> ast.Module:
    """The syntax tree of a module.

    :raises SyntaxError: not Python.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collects:
            gc.enable()


@dataclass(frozen=True)
class Outline:
    """What several rules look at in a module."""

    docstring: str
    #: At whatever depth.
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    #: How many lines each function has.
    lines_of_functions: tuple[tuple[str, int], ...]


@functools.cache
def outline(source: str) -> Outline:
    """The outline of a module. It is kept, so that each module is parsed once for all rules."""
    tree = parsed(source)
    imports, functions = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None, "it was parsed from a text"
            functions.append((node.name, node.end_lineno - node.lineno + 1))
    return Outline(ast.get_docstring(tree) or "", tuple(imports), tuple(functions))
