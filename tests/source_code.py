"""Parses Python source where a garbage collection in between cannot harm. Not here: what is sought in it.

A collection runs finalizers, py4j's among them, which log the traceback of a connection that was
reset. CPython 3.11 parses the traceback's lines to underline them, and parsing inside of parsing ends
the outer one with ``SystemError: AST constructor recursion depth mismatch``.
"""

from __future__ import annotations

import ast
import functools
import gc


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


@functools.cache
def import_nodes(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The imports of a module, at whatever depth. Several rules look at them, so they are kept."""
    nodes = ast.walk(parsed(source))
    return tuple(each for each in nodes if isinstance(each, ast.Import | ast.ImportFrom))
