"""What the owner of a pipeline may choose about types: by kind of type, and by column.

A choice is made before anything is connected. It is part of the column's lake type in the manifest, so apply
sees one schema. ``registry.py`` has the choices, and ``mapping.py`` finds the type that follows from one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.capture.types.registry import ROWS, STRING, TypeChoice
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What may be chosen for a composite type, which has no row in the registry.
COMPOSITE = TypeChoice(
    "composite",
    "struct",
    exact="all attributes, by the rules of their types",
    does_not_fit="attributes that do not fit, values from before `ALTER TYPE ... ADD` or `DROP ATTRIBUTE`",
)
#: What may be chosen for each kind of type, in addition to ``string``.
CHOICES: Mapping[str, TypeChoice] = {
    each.kind: each for each in (*(row.choice for row in ROWS if row.choice), COMPOSITE)
}


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for one column."""

    #: The choice by kind of type. A kind that is missing is a ``string``.
    by_kind: Mapping[str, str] = field(default_factory=dict)
    #: The kinds that were chosen for this very column. Then the choice holds for all of them in the column,
    #: also for a numeric whose numbers fit a decimal anyway.
    own_kinds: frozenset[str] = frozenset()
    #: Whether the column keeps PostgreSQL's text, whatever its type is.
    is_text: bool = False

    def of(self, kind: str) -> str:
        """The choice for a kind of type."""
        return self.by_kind.get(kind, STRING)


NO_CHOICE = Choice()


@dataclass(frozen=True, slots=True)
class TypeOptions:
    """The choices of a pipeline.

    :raises ConfigurationError: a kind or a choice is unknown, or does not go.
    """

    #: By kind of type, see ``CHOICES``.
    by_kind: Mapping[str, str] = field(default_factory=dict)
    #: By ``schema.table.column``; ``string`` keeps the text of any type.
    by_column: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind, choice in self.by_kind.items():
            if kind not in CHOICES:
                raise ConfigurationError(
                    f"type_options has the unknown kind of type {kind!r}.",
                    advice=f"choose from {', '.join(CHOICES)}.",
                )
            if choice != STRING and kind not in _kinds(choice, f"type_options[{kind!r}]"):
                known = CHOICES[kind]
                words = [STRING] if known.refused else [STRING, known.word]
                raise ConfigurationError(
                    f"type_options[{kind!r}] is {choice!r}.",
                    advice=f"use {' or '.join(map(repr, words))}.",
                )
        for column, choice in self.by_column.items():
            if choice != STRING:
                _kinds(choice, f"column_types[{column!r}]")

    def of(self, table: str, column: str) -> Choice:
        """What was chosen for a column.

        :param table: ``schema.table``.
        """
        name = f"{table}.{column}"
        chosen = self.by_column.get(name)
        if chosen is None:
            return Choice(self.by_kind)
        if chosen == STRING:
            return Choice(is_text=True)
        kinds = _kinds(chosen, name)
        return Choice({**self.by_kind, **dict.fromkeys(kinds, chosen)}, kinds)

    @property
    def wants_attributes(self) -> bool:
        """Whether some composites become structs."""
        chosen = self.by_kind.get(COMPOSITE.kind), *self.by_column.values()
        return COMPOSITE.word in chosen


def _kinds(choice: str, argument: str) -> frozenset[str]:
    """The kinds of type for which a choice is made, if it is not ``string``.

    :raises ConfigurationError: it is no choice.
    """
    found = [each for each in CHOICES.values() if each.allows(choice)]
    for each in found:
        if each.refused:
            raise ConfigurationError(f"{argument} is {choice!r}.", advice=each.refused)
    if not found:
        words = dict.fromkeys(each.word for each in CHOICES.values() if not each.refused)
        known = ", ".join(map(repr, words))
        raise ConfigurationError(
            f"{argument} is {choice!r}.",
            advice=f"use {STRING!r}, {known}; a decimal has a precision of 1 to 38.",
        )
    return frozenset(each.kind for each in found)
