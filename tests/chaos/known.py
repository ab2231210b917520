"""Faults that are known and not mended yet: what no program does until they are, and why."""

from __future__ import annotations

#: Operations that no program has.
OPERATIONS: dict[str, str] = {}
#: Kinds of tables that no program has.
TABLES: dict[str, str] = {}
#: Parts of messages that end a run without a verdict.
REFUSALS: dict[str, str] = {}
