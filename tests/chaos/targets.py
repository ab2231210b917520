"""To which table of the lake a table of the source is written, and the options that change that."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos import slices

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from airflow_provider_pgoutput.batch.jobs import ApplyJob
    from tests.chaos.options import Options
    from tests.chaos.tasks import Refusal


@dataclass
class Targets:
    """The tables of one pipeline, by their names at the source and in the lake."""

    options: Options
    namespace: str
    chance: random.Random
    plan: Callable[[], ApplyJob]
    #: The tables that are published now, ``schema.table``.
    published: Callable[[], set[str]]

    def mode(self, table: str) -> str:
        """The mode of a table of the source."""
        return str(self.options.tables.get(table, {}).get("mode") or self.options.plan["mode"])

    def is_log(self, table: str) -> bool:
        """Whether a table of the source is written as a change log."""
        return self.mode(table) == "change_log"

    def source_name(self, table: str) -> str:
        """The name at the source of a table. A refusal may name it as the lake calls it."""
        return self.source_names(table)[0]

    def source_names(self, table: str) -> list[str]:
        """The names at the source of all tables that are written to a table of the lake."""
        if not table.startswith(f"{self.namespace}."):
            return [table]
        target = table.removeprefix(f"{self.namespace}.")
        plan = self.plan()
        known = dict.fromkeys((*self.options.tables, *sorted(self.published())))
        found = [each for each in known if plan.target_name(*each.split(".", 1)) == target]
        schema, mark, name = target.partition("__")
        return found or [f"{schema}.{name}" if mark else f"public.{target}"]

    def name_another(self, table: str) -> None:
        """Let a table begin anew in a target of another name, once it is copied."""
        name = f"{table.replace('.', '__')}_{self.chance.randrange(10**6)}"
        self.options.tables.setdefault(table, {})["target"] = name

    def keep(self, table: str, target: str) -> None:
        """Give a table that was renamed the target and the options that it had under its former name."""
        plan, options = self.plan(), self.options.tables
        former = [each for each in options if plan.target_name(*each.split(".", 1)) == target]
        kept = options[former[0]] if former else {}
        if target == slices.TARGET:
            kept = {**kept, **slices.shared(table.removesuffix("_n"))}
        options[table] = {**kept, "target": target}

    def name_columns(self, table: str, refusal: Refusal) -> None:
        """Give columns the names in the lake that a refusal asks for."""
        found = re.search(r"renamed_columns=(\{.*?\})", refusal.message)
        assert found is not None, refusal
        self._names(table).update(ast.literal_eval(found[1]))

    def name_column_otherwise(self, table: str, column: str) -> None:
        """Give a column another name in the lake, which no other table shares."""
        self._names(table)[column] = f"lake_{column}_{self.chance.randrange(10**6)}"

    def _names(self, table: str) -> dict[str, str]:
        names: dict[str, str] = self.options.tables.setdefault(table, {}).setdefault(
            "renamed_columns", {}
        )
        return names
